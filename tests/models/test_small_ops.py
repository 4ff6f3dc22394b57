"""Each fused kernel in Triton's interpreter against torch's operations, and the engine that decodes
with them.
"""

from __future__ import annotations

import pytest
import torch

from specbench.models.fast.operations import Norm, SmallOps

FusedOps = pytest.importorskip(
    "specbench.models.fast.kernels.small_ops",
    reason="Triton is not installed: pip install '.[triton]'", exc_type=ImportError,
).FusedOps  # fmt: skip
NEAR = {torch.float32: 1e-6, torch.float16: 2e-3}
DTYPES = pytest.mark.parametrize("dtype", NEAR, ids=["f32", "f16"])


def both(size=16, heads=4, key_heads=2, dtype=torch.float32) -> tuple[SmallOps, SmallOps]:
    angles = torch.randn(50, size)
    tables = angles.cos().to(dtype), angles.sin().to(dtype)
    return SmallOps(*tables, heads, key_heads), FusedOps(*tables, heads, key_heads)


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, atol=NEAR[want.dtype], rtol=NEAR[want.dtype])


@DTYPES
def test_add_and_norm(dtype):
    torch.manual_seed(1)
    ours, fused = both(dtype=dtype)
    rows, added, norm = (
        torch.randn(3, 72).to(dtype),
        torch.randn(3, 72).to(dtype),
        Norm(torch.rand(72).to(dtype), 1e-5),
    )
    for got, want in zip(
        fused.add_norm(rows, added, norm), ours.add_norm(rows, added, norm), strict=True
    ):
        near(got, want)
    wrong = Norm(norm.weight, 1.0)
    assert not torch.allclose(fused.add_norm(rows, added, wrong)[1], norm(rows + added), atol=1e-2)


@DTYPES
def test_gate(dtype):
    torch.manual_seed(1)
    ours, fused = both(dtype=dtype)
    rows = 3 * torch.randn(2, 2 * 1100).to(dtype)  # beyond one program's block
    near(fused.gate(rows), ours.gate(rows))
    assert not torch.allclose(fused.gate(rows.roll(1100, 1)), ours.gate(rows), atol=1e-1)


@DTYPES
@pytest.mark.parametrize("size", [16, 80])
def test_rotation_and_writing(dtype, size):
    """Heads beyond one program's, slots in any order; no other slot is written."""
    torch.manual_seed(1)
    heads, places, at = (
        torch.randn(3, 10, size).to(dtype),
        torch.tensor([4, 9, 4]),
        torch.tensor([7, 2, 3]),
    )
    found = []
    for ops in both(size, 6, 2, dtype):
        slots = torch.full((4, 11, size), 5.0).to(dtype)
        found.append((ops.make_rotation(places)(heads, slots, at), slots))
    for got, want in zip(found[1], found[0], strict=True):
        near(got, want)
    assert (found[1][1][:, [0, 1, 4, 5, 6, 8, 9, 10]] == 5).all()
    elsewhere = both(size, 6, 2, dtype)[1].make_rotation(places + 1)(heads, slots, at)
    assert not torch.allclose(elsewhere, found[0][0], atol=1e-2)
