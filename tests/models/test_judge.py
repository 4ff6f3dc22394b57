"""The check of the kernels passes right ones and finds wrong ones: in Triton's interpreter, in
bfloat16 in torch.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from specbench.models.fast.attention import attend_flex

judge = pytest.importorskip(
    "specbench.models.fast.kernels.judge",
    reason="Triton is not installed: pip install '.[triton]'", exc_type=ImportError,
)  # fmt: skip
kernel, small_ops, products = judge.tree_attention, judge.small_ops, judge.products
CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["f32", "f16"])


def case(dtype, pasts=(31, 64, 65), splits=4, window=None):
    return judge.AttentionCase(dtype, 1, 2, 16, 20, pasts, window, splits)


def by_torch(query, keys, values, mask, *_):
    """The same attention in torch; NaN of slots that no row sees would be multiplied by 0."""
    return attend_flex(query, keys.nan_to_num(), values.nan_to_num(), mask)


def flip_a_bit(run):
    def wrong(query, keys, values, mask, *rest):
        bits = mask.bits.clone()
        bits[len(bits) // 2, 0] ^= 1
        return run(query, keys, values, replace(mask, bits=bits), *rest)

    return wrong


def shift_the_length(by):
    def change(run):
        def wrong(query, keys, values, mask, *rest):
            return run(query, keys, values, replace(mask, cached=mask.cached + by), *rest)

        return wrong

    return change


WRONG = pytest.mark.parametrize(
    "change",
    [flip_a_bit, shift_the_length(-1), shift_the_length(1)],
    ids=["bit", "shorter", "longer"],
)


@DTYPES
@pytest.mark.parametrize("splits", [1, 2, 64])
@pytest.mark.parametrize("window", [None, 40])
def test_the_kernels_pass(dtype, splits, window):
    assert judge.find_fault([case(dtype, splits=splits, window=window)], CPU) is None


@DTYPES
@WRONG
def test_a_wrong_mask_is_found(dtype, change, monkeypatch):
    monkeypatch.setattr(kernel, "launch", change(kernel.launch))
    assert "AttentionCase(dtype=torch.float" in judge.find_fault([case(dtype)], CPU)


@DTYPES
def test_nodes_that_were_fed_before_are_seen(dtype, monkeypatch):
    """As in a draft model's tree: the last rows are fed. The wrong variant reads the bits of as
    many slots as rows.
    """
    drawn, run = judge.AttentionCase(dtype, 1, 2, 16, 20, (31, 64), columns=70), kernel.launch
    assert judge.find_fault([drawn], CPU) is None
    monkeypatch.setattr(
        kernel,
        "launch",
        lambda query, keys, values, mask, *rest: run(
            query, keys, values, replace(mask, columns=None), *rest
        ),
    )
    assert judge.find_fault([drawn], CPU)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@WRONG
def test_a_wrong_mask_is_found_in_bfloat16_among_many_keys(change, monkeypatch):
    drawn = judge.AttentionCase(torch.bfloat16, 1, 4, 128, 33, (2047, 2048), None, 1)
    monkeypatch.setattr(kernel, "launch", by_torch)
    assert judge.find_fault([drawn], CPU) is None
    monkeypatch.setattr(kernel, "launch", change(by_torch))
    assert judge.find_fault([drawn], CPU)


@DTYPES
def test_a_merge_without_rescaling_is_found(dtype, monkeypatch):
    drawn = case(dtype, (112,), 2)  # no split is empty
    assert judge.find_fault([drawn], CPU) is None

    class Average:
        def __getitem__(self, grid):
            return lambda partial, peaks, out, count, **options: out.copy_(partial.mean(0))

    monkeypatch.setattr(kernel, "merge_splits", Average())
    assert judge.find_fault([drawn], CPU)


@DTYPES
def test_numbers_after_the_fed_rows_are_not_read(dtype, monkeypatch):
    """One more column: the slot after the last row is NaN."""
    run = kernel.launch

    def wrong(query, keys, values, mask, *rest):
        return run(query, keys, values, replace(mask, columns=21), *rest)

    monkeypatch.setattr(kernel, "launch", wrong)
    assert "the error is nan" in judge.find_fault([case(dtype, (11,))], CPU)


@DTYPES
@pytest.mark.parametrize(("groups", "size"), [(2, 16), (3, 80)])
def test_the_small_operations_pass(dtype, groups, size):
    """Rows beyond one program's block, heads beyond one program's; no other slot is written."""
    assert judge.find_fault([judge.RowsCase(dtype, 2, groups, size, 3, 72, 1100)], CPU) is None


@pytest.mark.parametrize("wrong", ["add_norm", "gate", "make_rotation"])
def test_a_wrong_small_operation_is_found(wrong, monkeypatch):
    kind = small_ops.FusedOps
    right = getattr(kind, wrong)
    changed = {
        "add_norm": lambda self, rows, added, norm: right(
            self, rows, added, judge.Norm(norm.weight, 1e-2)
        ),
        "gate": lambda self, gate_up: right(self, gate_up.roll(1, 1)),
        "make_rotation": lambda self, positions: right(self, positions.roll(1)),
    }
    monkeypatch.setattr(kind, wrong, changed[wrong])
    assert judge.find_fault([judge.RowsCase(torch.float16, 2, 2, 16, 3, 72, 1100)], CPU)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("count", [1, 16, 17])
def test_the_products_pass(dtype, count):
    assert (
        judge.find_fault([judge.ProductsCase(dtype, 2, 2, 16, count, 72, 100, 199, True)], CPU)
        is None
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize(("key_heads", "groups", "size", "block", "splits"), [
    (1, 4, 128, "BROAD", 2),  # Llama 3 8B: 32 and 8 heads
    (1, 7, 128, "NARROW", 1),  # Qwen2.5 7B: 28 and 4
    (4, 1, 96, "BROAD", 1),  # Phi-3 mini: 32 and 32
    (1, 1, 18, "NARROW", 4),
])  # fmt: skip
def test_the_products_of_other_heads_pass(
    dtype, key_heads, groups, size, block, splits, monkeypatch
):
    """With a bias; no other slot is written."""
    monkeypatch.setattr(products, "choose_block", lambda *_: (getattr(products, block), splits))
    drawn = judge.ProductsCase(dtype, key_heads, groups, size, 5, 160, 100, 199, True)
    assert judge.find_fault([drawn], CPU) is None


def without_an_input(self, run, given, after, out, *rest, **named):
    rows = given.rows if isinstance(given, judge.Unscaled) else given
    rows[:, -1] = 0
    return run(self, given, after, out, *rest, **named)


def in_the_next_column(self, run, given, after, out, *rest, **named):
    return out.copy_(run(self, given, after, out, *rest, **named).roll(1, 1))


def with_other_squares(self, run, given, *rest, **named):
    if isinstance(given, judge.Unscaled):
        given = replace(given, squares=given.squares * 1.1)
    return run(self, given, *rest, **named)


def at_other_positions(self, run, *given, **named):
    if "positions" in named:
        named["positions"] = named["positions"].roll(1)
    return run(self, *given, **named)


def with_a_row_of_its_memory(self, run, given, after, out, *rest, **named):
    """The second time a number differs in its last bit, as with counters that are not zero
    again.
    """
    found = run(self, given, after, out, *rest, **named)
    if self.__dict__.setdefault("called", False):
        found.view(torch.int16)[0, 0] ^= 1
    self.called = True
    return found


def without_the_bias(self, run, *given, **named):
    self.bias = None
    return run(self, *given, **named)


def in_the_last_block_of_a_head(self, run, given, after, out, *rest, **named):
    found = run(self, given, after, out, *rest, **named)
    if len(self.weight) == 199:
        found[:, -1] *= 1.1
    return found


@pytest.mark.parametrize(
    "wrong",
    [without_an_input, in_the_next_column, with_other_squares, at_other_positions,
    with_a_row_of_its_memory,
     without_the_bias, in_the_last_block_of_a_head],
)  # fmt: skip
def test_a_wrong_product_is_found(wrong, monkeypatch):
    run = products.ShortLinear._launch
    drawn = judge.ProductsCase(torch.float16, 2, 2, 16, 3, 72, 100, 199, True)
    monkeypatch.setattr(
        products.ShortLinear,
        "_launch",
        lambda self, *given, **named: wrong(self, run, *given, **named),
    )
    assert "ProductsCase(dtype=torch.float16" in judge.find_fault([drawn], CPU)


@pytest.mark.parametrize("window", [None, 40])
def test_the_wide_set_has_every_pair_of_values(window):
    cases = [each for each in judge.list_wide() if isinstance(each, judge.AttentionCase)]
    some = [each for each in cases if each.window == window and each.dtype == torch.bfloat16]
    for one, other in itertools.combinations(("groups", "splits", "width", "size"), 2):
        assert len({(getattr(each, one), getattr(each, other)) for each in some}) == 9
    tiles = {kernel.choose_tile(each.width * each.groups, False).rows for each in cases}
    assert tiles == {tile.rows for tile in kernel.TILES}


def test_the_cases_of_a_model_go_through_the_call_of_its_engine(monkeypatch):
    """With the model's window, the memory of its cache, and the splits that ``attend`` chooses."""
    few = list(
        judge.list_few(
            torch.float32, 1, 2, 16, [None, 8, None], (1, 5), 72, 100, 70, 99, columns=40
        )
    )
    assert {each.window for each in few if isinstance(each, judge.AttentionCase)} == {None, 8}
    assert judge.find_fault(few, CPU) is None
    monkeypatch.setattr(kernel, "attend", flip_a_bit(kernel.attend))
    assert judge.find_fault(few, CPU)
