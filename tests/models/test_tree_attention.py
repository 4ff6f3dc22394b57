"""The tree-attention kernel in Triton's interpreter, against float64 and SDPA; and the engine that
decodes with it.

bfloat16 is wrong in the interpreter (3.6 to 3.9 of Triton); ``scripts/lab/kernels.py`` compiles it.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import team
from torch._dynamo.testing import CompileCounter
from torch.nn.functional import scaled_dot_product_attention

from builders.engines import assert_greedy
from builders.models import build
from specbench.models.fast import attention
from specbench.models.fast.attention import FastOptions, attend_flex, find_attention
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.graphs import EXACT, GRAPHED
from specbench.models.fast.masks import TreeMask, pack_bits
from specbench.types import InputError

kernel = pytest.importorskip(
    "specbench.models.fast.kernels.tree_attention",
    reason="Triton is not installed: pip install '.[triton]'", exc_type=ImportError,
)  # fmt: skip
SMALL = kernel.Tile(16, 16, 4, 1)  # blocks of few keys: more edges in less time
ERROR = {torch.float32: 2e-6, torch.float16: 2e-3}
CPU = torch.device("cpu")


class Trees:
    """Random rows of B requests over a cache, and what they see. parents: of each request's rows, a
    root's its own.
    """

    def __init__(
        self, parents, pasts, heads=4, key_heads=2, size=16, window=None, dtype=torch.float32
    ) -> None:
        batches, width = len(parents), len(parents[0])
        self.parents, self.pasts, self.window, self.dtype = parents, pasts, window, dtype
        slots = max(pasts) + width + 5
        random = torch.Generator().manual_seed(7)
        fed = torch.randn(batches * width, heads + 2 * key_heads, size, generator=random).to(dtype)
        both = torch.randn(2, batches, key_heads, slots, size, generator=random).to(dtype)
        for batch, past in enumerate(pasts):
            both[:, batch, :, past + width :] = float("nan")  # slots of nobody are never read
        self.query, (self.keys, self.values) = fed[:, :heads], both
        self.depths = torch.zeros(batches, width, dtype=torch.int64)
        self.seen = np.stack([np.eye(width, dtype=bool)] * batches)
        for batch, rows in enumerate(parents):
            for row, parent in enumerate(rows):
                if parent != row:
                    self.seen[batch, row] |= self.seen[batch, parent]
                    self.depths[batch, row] = self.depths[batch, parent] + 1
        if window is not None:
            self.seen &= (self.depths[:, :, None] - self.depths[:, None, :] < window).numpy()

    def mask(self, attend=None) -> TreeMask:
        bits = torch.from_numpy(pack_bits(self.seen.reshape(-1, self.seen.shape[2])))
        return TreeMask(attend, torch.tensor(self.pasts), self.depths.flatten(), bits, self.window)

    def by_sdpa(self, dtype=torch.float64) -> torch.Tensor:
        found = []
        for batch, past in enumerate(self.pasts):
            width = len(self.parents[batch])
            near = torch.ones(width, past, dtype=torch.bool)
            if self.window is not None:
                near = past + self.depths[batch, :, None] - torch.arange(past) < self.window
            rows = self.query.unflatten(0, (-1, width))[batch].transpose(0, 1).to(dtype)
            cached = [each[batch, :, : past + width].to(dtype) for each in (self.keys, self.values)]
            seen = torch.cat([near, torch.from_numpy(self.seen[batch])], 1)
            mixed = scaled_dot_product_attention(
                rows[None], *(each[None] for each in cached), seen, enable_gqa=True
            )
            found.append(mixed[0].transpose(0, 1))
        return torch.cat(found)

    def error(self, got: torch.Tensor) -> float:
        want = self.by_sdpa()
        return float((got.double() - want).norm() / want.norm())


@st.composite
def trees(draw, most=40) -> Trees:
    """Lengths at the edges of blocks, widths at those of words and tiles."""
    batches = draw(st.sampled_from([1, 1, 2]))
    width = draw(st.sampled_from([1, 2, 7, 16, 17, 31, 32, 33, most]))
    parents = [
        [0, *(draw(st.integers(0, row - 1)) for row in range(1, width))] for _ in range(batches)
    ]
    pasts = [
        draw(st.sampled_from([0, 1, 15, 16, 17, 31, 32, 33, 47, 64, 65])) for _ in range(batches)
    ]
    key_heads, groups = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (1, 4)]))
    size = draw(st.sampled_from([16, 64, 80, 96, 128]))
    window = draw(st.sampled_from([None, None, 1, 4, 16, 40]))
    dtype = draw(st.sampled_from(list(ERROR)))
    return Trees(parents, pasts, key_heads * groups, key_heads, size, window, dtype)


@pytest.mark.parametrize("most", [40, pytest.param(100, marks=pytest.mark.exhaustive)])
@settings(max_examples=15)
@given(
    st.data(),
    st.sampled_from([1, 2, 4, 16]),
    st.sampled_from([SMALL, kernel.SINGLE, *kernel.TILES]),
)
def test_the_kernel_is_sdpa(most, data, splits, tile):
    drawn = data.draw(trees(most))
    got = kernel.launch(drawn.query, drawn.keys, drawn.values, drawn.mask(), tile, splits)
    assert got.dtype == drawn.dtype
    assert drawn.error(got) < max(ERROR[drawn.dtype], 2 * drawn.error(drawn.by_sdpa(drawn.dtype)))


CHAIN_AND_FORK = [0, *range(15), 3, 16, 16, 18]  # a branch next to a chain


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 7])
def test_flex_attention_is_sdpa(window):
    drawn = Trees([CHAIN_AND_FORK] * 2, [33, 5], window=window)
    got = attend_flex(drawn.query, drawn.keys.nan_to_num(), drawn.values.nan_to_num(), drawn.mask())
    assert drawn.error(got) < 1e-6


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_compiled_once_for_all_lengths():
    """A counter that stays at one is no proof: what torch has forgotten is compiled again, and
    counted.
    """
    counter, drawn = CompileCounter(), Trees([CHAIN_AND_FORK], [33])
    compiled = torch.compile(attention._attend_flex, dynamic=False, backend=counter)
    for past, anew, count in ((33, False, 1), (12, False, 1), (12, True, 2)):
        drawn.pasts = [past]
        mask, given = (
            drawn.mask(),
            (drawn.query, drawn.keys.nan_to_num(), drawn.values.nan_to_num()),
        )
        if anew:
            torch._dynamo.reset()
        got = compiled(*given, mask.cached, mask.depths, mask.bits, None, None)
        torch.testing.assert_close(got, attend_flex(*given, mask), atol=1e-5, rtol=1e-5)
        assert counter.frame_count == count


def right_and_wrong() -> tuple[Trees, TreeMask]:
    drawn = Trees([CHAIN_AND_FORK], [64])
    return drawn, drawn.mask()


def error_of(drawn: Trees, mask: TreeMask) -> float:
    return drawn.error(
        kernel.launch(
            drawn.query, drawn.keys.nan_to_num(), drawn.values.nan_to_num(), mask, SMALL, 4
        )
    )


def test_one_ancestor_bit_is_seen():
    drawn, mask = right_and_wrong()
    assert error_of(drawn, mask) < 1e-6
    mask.bits[19] ^= 1 << 3
    assert error_of(drawn, mask) > 1e-3


@pytest.mark.parametrize("off", [-1, 1])
def test_a_length_off_by_one_is_seen(off):
    drawn, mask = right_and_wrong()
    mask.cached.add_(off)
    assert error_of(drawn, mask) > 1e-3


def test_a_row_that_sees_no_key_of_a_split_takes_nothing_from_it():
    """Of a split that only others see, all scores are minus infinity."""
    drawn = Trees([[0, 0, 0, 0]], [64], window=4)
    assert error_of(drawn, drawn.mask()) < 1e-6


def test_tiles_and_splits():
    """On 132 multiprocessors all programs of a launch run at once; where keys are few, there are
    few.
    """
    assert [kernel.choose_tile(rows, False).rows for rows in (1, 16, 17, 64, 65, 384)] == [
        16,
        16,
        32,
        64,
        64,
        64,
    ]
    assert kernel.choose_tile(64, True) == kernel.SINGLE
    assert kernel.choose_splits(32, 2048, 64, 132) == 8
    assert kernel.choose_splits(8, 2048, 64, 132) == 32
    assert kernel.choose_splits(8, 256, 64, 132) == 4
    assert kernel.choose_splits(1000, 2048, 64, 132) == 1


def test_heads_that_are_too_large_are_refused():
    drawn = Trees([[0]], [4], size=256)
    with pytest.raises(ValueError, match="head size 256"):
        kernel.attend(drawn.query, drawn.keys, drawn.values, drawn.mask())


@pytest.mark.parametrize(
    ("way", "device", "dtype", "found", "message"),
    [
        ("dense", "cuda", torch.float16, True, "expected one of auto, sdpa, triton, fused, flex"),
        ("triton", "cuda", torch.float16, False, r"pip install 'specbench\[triton\]'"),
        ("triton", "cpu", torch.float16, True, "CUDA device, got cpu"),
        ("triton", "cuda", torch.float64, True, "model.dtype is float64"),
    ],
)
def test_what_cannot_run_is_refused_in_a_line(way, device, dtype, found, message, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(attention, "find_spec", lambda name: SimpleNamespace() if found else None)
    with pytest.raises(InputError, match=f"^engine.attention={way}: .*{message}.*$"):
        find_attention(way, torch.device(device), dtype, 64)


@pytest.mark.parametrize("way", ["triton", "flex", "fused"])
@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-mixed", "qwen3"])
@pytest.mark.parametrize("buckets", [EXACT, GRAPHED], ids=["exact", "graphed"])
@pytest.mark.matrix
def test_the_engine_emits_plain_greedy_ids(way, family, buckets):
    """Trees, chains and rows of one token, windows and grouped heads, in exact and in padded
    widths.
    """
    model = build(family)
    engine = FastEngine(model, 512, frozenset(), 8, buckets, options=FastOptions(attention=way))
    assert engine.buckets.whole  # no recording is of a length of keys
    assert (type(engine.compact.small).__name__ == "FusedOps") == (way == "fused")
    assert_greedy(engine, model, list(range(20, 50)), 6)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("way", "single"), [("triton", False), ("fused", False), ("fused", True)])
def test_two_ranks_attend_by_it(way, single, monkeypatch):
    """single: with our products, too, which take float32 only here."""
    if single:
        monkeypatch.setattr("specbench.models.fast.kernels.products.DTYPES", (torch.float32,))
    model = build("llama")
    with team(model, options=FastOptions(attention=way)) as (engine, _):
        assert_greedy(engine, model, [5, 17, 3], 6)
