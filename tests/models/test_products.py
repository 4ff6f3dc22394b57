"""Our products of few rows in Triton's interpreter against float64, and the engine that decodes
with them.

The interpreter rounds to bfloat16 by cutting bits off, so its errors there are twice those of a
GPU.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import silu

from builders.engines import assert_greedy
from builders.models import build
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.operations import Linear, Norm, Unscaled

interpreter = pytest.importorskip("triton.runtime.interpreter", reason="pip install '.[triton]'")
products = pytest.importorskip(
    "specbench.models.fast.kernels.products",
    reason="Triton is not installed: pip install '.[triton]'", exc_type=ImportError,
)  # fmt: skip
ERROR = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
BLOCKS = {"broad": products.BROAD, "narrow": products.NARROW, "small": products.Block(32, 32, 2)}
EXHAUSTIVE = pytest.mark.exhaustive
NARROWER = (torch.float16, torch.bfloat16)


@pytest.fixture
def single(monkeypatch):
    """Takes float32 too, in which ids can be compared."""
    monkeypatch.setattr(products, "DTYPES", (torch.float32, *NARROWER))


def draw(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make(outputs, inputs, dtype, block="small", splits=1, bias=False, padding=0):
    """A product whose weights lie in rows that are ``padding`` numbers longer, which are NaN."""
    stored = torch.full((outputs, inputs + padding), float("nan"))
    stored[:, :inputs] = draw(outputs, inputs) / inputs**0.5
    layer = SimpleNamespace(
        weight=stored.to(dtype)[:, :inputs], bias=draw(outputs).to(dtype) if bias else None
    )
    made = products.ShortLinear([layer], False)
    made.block, made.splits = BLOCKS[block], splits
    return made


def in_double(product, rows) -> torch.Tensor:
    found = rows.double() @ product.weight.double().T
    return found if product.bias is None else found + product.bias.double()


def norm_in_double(rows, norm) -> torch.Tensor:
    rows = rows.double()
    return (
        rows
        * torch.rsqrt(rows.square().mean(1, keepdim=True) + norm.epsilon)
        * norm.weight.double()
    )


def error(got, want) -> float:
    return float((got.double() - want).norm() / want.norm())


def leave_squares(rows, parts: int) -> torch.Tensor:
    """The squares as a product with ``parts`` tiles leaves them; rows that were not fed have
    garbage.
    """
    squares = torch.full((parts, 16), float("nan"))
    squares[:, : len(rows)] = torch.stack(
        [each.float().square().sum(1) for each in rows.chunk(parts, 1)]
    )
    return squares


@st.composite
def cases(draw_one):
    """Rows, sizes at the edges of blocks, and how the weights lie."""
    return {
        "count": draw_one(st.integers(1, 16)),
        "outputs": draw_one(st.sampled_from([2, 16, 34, 64, 70, 130])),
        "inputs": draw_one(st.sampled_from([1, 32, 33, 128, 200, 256, 300])),
        "dtype": draw_one(st.sampled_from([*ERROR])),
        "block": draw_one(st.sampled_from([*BLOCKS])),
        "splits": draw_one(st.sampled_from([1, 2, 4])),
        "bias": draw_one(st.booleans()),
        "padding": draw_one(st.sampled_from([0, 3, 8])),
    }


@settings(max_examples=12)
@given(cases(), st.booleans())
def test_what_comes_before_and_after_a_product(case, normed):
    """Plain, added and gated, after a norm or not; computed twice, since the first leaves the
    counters at zero.
    """
    count, dtype = case.pop("count"), case["dtype"]
    product, rows = make(**case), 3 * draw(count, case["inputs"], seed=5).to(dtype)
    norm, fed, truth = Norm(draw(case["inputs"], seed=6).abs().to(dtype), 1e-5), rows, rows.double()
    if normed:
        fed, truth = (
            Unscaled(rows, leave_squares(rows, min(3, case["inputs"])), norm),
            norm_in_double(rows, norm),
        )
    want, kept = in_double(product, truth), draw(count, case["outputs"], seed=7).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "DTYPES", tuple(ERROR))
        first, again = product(fed), product(fed)
        assert torch.equal(first, again)
        assert first.dtype == dtype
        assert error(first, want) < ERROR[dtype]
        gate, up = want.chunk(2, 1)
        assert error(product.gate(fed), silu(gate) * up) < 2 * ERROR[dtype]
        added, squares = product.add(fed, kept)
        assert error(added, want + kept.double()) < ERROR[dtype]
        assert error(squares.sum(0)[:count], added.double().square().sum(1)) < 1e-6


@pytest.mark.parametrize("dtype", ERROR, ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("splits", [1, 2, 4])
def test_a_row_has_the_same_bits_in_any_company(dtype, splits, single, monkeypatch):
    """Of 1 to 16 rows, at any place; with torch's product for 17.

    The interpreter's own product has other bits for another place of a row, by the processor's
    library.
    """
    by_row = SimpleNamespace(**vars(np) | {"matmul": lambda rows, other, dtype: np.stack(
        [np.matmul(row[None], other, dtype=dtype)[0] for row in rows])})  # fmt: skip
    monkeypatch.setattr(interpreter, "np", by_row)
    product, rows = make(40, 200, dtype, splits=splits), draw(17, 200, seed=5).to(dtype)
    norm = Norm(torch.ones(200), 1e-6)
    alone = [product(row[None])[0] for row in rows]
    for count in (2, 7, 8, 16):
        chosen = list(range(17 - count, 17))[::-1]
        assert torch.equal(product(rows[chosen]), torch.stack([alone[each] for each in chosen]))
    gated = product.gate(Unscaled(rows[:16], leave_squares(rows[:16], 3), norm))
    few = product.gate(Unscaled(rows[3:5], leave_squares(rows[3:5], 3), norm))
    assert torch.equal(few, gated[3:5])
    assert torch.equal(product(rows), Linear.__call__(product, rows))
    assert not product.takes(rows)


def errors_of(change) -> float:
    """Of a product of 64 outputs in 4 splits, gated after a norm, with one thing changed."""
    product, rows = make(64, 128, torch.float16, splits=4), draw(4, 128, seed=5).half()
    norm = Norm(torch.ones(128), 1e-6)
    want = in_double(product, norm_in_double(rows, norm)).chunk(2, 1)
    fed = Unscaled(rows, leave_squares(rows, 4), norm)
    change(product, fed)
    return error(product.gate(fed), silu(want[0]) * want[1])


WRONG = {
    "a program that counts twice": lambda product, fed: product._arrivals.fill_(1),
    "one part of a row's squares missing": lambda product, fed: fed.squares[0].zero_(),
    "squares of another row": lambda product, fed: fed.squares.copy_(fed.squares.roll(1, 1)),
    "one weight": lambda product, fed: product.weight[5, 7].add_(1),
    "the other half of the pairs": lambda product, fed: product.weight.copy_(
        product.weight.roll(32, 0)
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_seen(name):
    assert errors_of(lambda product, fed: None) < 2e-3
    assert not errors_of(WRONG[name]) < 5e-3


def test_blocks_and_splits():
    """The products of Llama 2 7B and of small models on 132 multiprocessors."""

    def choose(outputs, inputs):
        return products.choose_block(torch.empty(outputs, inputs, device="meta"), 132)

    assert choose(12288, 4096) == (products.BROAD, 1)
    assert choose(22016, 4096) == (products.BROAD, 1)
    assert choose(4096, 11008) == (products.NARROW, 1)
    assert choose(2048, 8192) == (products.NARROW, 2)
    assert choose(896, 4864) == (products.NARROW, 4)
    assert choose(896, 896) == (products.NARROW, 1)  # too few blocks to fill a pipeline


@pytest.mark.parametrize(
    "family",
    ["qwen2-mixed", *(pytest.param(each, marks=EXHAUSTIVE) for each in ("llama", "qwen3"))],
)
def test_the_engine_emits_plain_greedy_ids(family, single):
    model = build(family)
    engine = FastEngine(model, 512, frozenset(), 8, options=FastOptions(attention="fused"))
    launched = count_launches(engine)
    assert_greedy(engine, model, [5, 17, 3], 6)
    assert {products.PLAIN.value, products.ADD.value, products.GATE.value} <= launched
    assert (products.ROTATE.value in launched) == (family != "qwen3")  # norms of heads come between


def count_launches(engine) -> set[int]:
    """The kinds of product that the engine's weights launch from now on."""
    launched = set[int]()
    layers = [
        each
        for layer in engine.compact.layers
        for each in (layer.qkv, layer.out, layer.gate_up, layer.down)
    ]
    for each in (*layers, engine.compact.head):
        launch = each._launch
        each._launch = lambda given, after, *others, launch=launch, **named: (
            launched.add(after.value), launch(given, after, *others, **named))[1]  # fmt: skip
    return launched
