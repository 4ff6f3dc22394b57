"""Bytes and operations of a forward against the worked table for a 7B Llama (bf16, context 512)."""

import pytest

from specbench.profile import ModelShape

LLAMA_7B = ModelShape(6_607_343_616, 4096, 11008, 32000, 32, 32, 32, 128, 2)
H200, A100 = (4300.0, 790_000.0), (1750.0, 260_000.0)  # GB/s, GFLOP/s


def test_bytes_and_operations_of_one_token():
    assert LLAMA_7B.bytes_read(1, 512) * 1e-9 == pytest.approx(13.5, abs=0.05)
    assert LLAMA_7B.operations(1, 512) * 1e-9 == pytest.approx(13.5, abs=0.05)
    assert LLAMA_7B.bytes_read(1, 2048) * 1e-9 == pytest.approx(14.3, abs=0.05)


@pytest.mark.parametrize(
    ("machine", "fed", "low", "high"),
    [
        (H200, 8, 1.00, 1.04),
        (H200, 64, 1.03, 1.37),
        (H200, 128, 1.07, 1.76),
        (A100, 32, 1.02, 1.22),
        (A100, 96, 1.05, 1.69),
    ],
)
def test_the_range_of_the_slowdown(machine, fed, low, high):
    found = LLAMA_7B.slowdown([fed], 512, *machine)
    assert [each[0] for each in found] == pytest.approx([low, high], abs=0.011)


def test_deep_in_the_compute_bound_region_the_range_is_still_low_to_high():
    low, high = LLAMA_7B.slowdown([64, 512], 512, 4300.0, 10_000.0)
    assert (low <= high).all()
