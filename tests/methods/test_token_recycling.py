"""Token Recycling against the integer examples of the reference, each with the wrong variant that must fail them."""

from __future__ import annotations

import pytest
import torch

from compose import composed
from methods.parts.recycling import RecyclingMatrix
from methods.parts.tree_template import TreeTemplate
from methods.token_recycling import TokenRecycling
from specbench import cli
from specbench.types import InputError, Prefill, Step, TopK

COUNTS = [[2], [2, 1], [0, 0, 0]]


class _Target:
    max_nodes = 256
    vocab_size = 16
    device = torch.device("cpu")


def bound(**options) -> TokenRecycling:
    method = TokenRecycling(COUNTS, k=3, **options)
    method.bind(_Target())
    return method


def test_template_of_the_reference():
    tree = cli._plain(composed("method=[token_recycling]"))["method"]["token_recycling"]["tree"]
    template = TreeTemplate.from_counts(tree, 8)
    assert [end - start for start, end in template.levels] == [8, 21, 25, 15, 8, 3]
    assert len(template) == 80
    children = [template.parents.count(node) for node in range(80)]
    assert children.count(0) == 40

    def path(node):
        return [] if node == -1 else [*path(template.parents[node]), template.ranks[node]]

    paths = {"-".join(map(str, path(node))) for node in range(80)}
    assert {"0-7-0", "0-2-1", "0-0-4-0", "0-0-0-1-0-0", "0-0-0-0-0-1"} <= paths  # the last five the authors added


def test_fill_breadth_first():
    method = bound()
    method.matrix.rows[5] = torch.tensor([6, 7, 8])
    method.matrix.rows[6] = torch.tensor([1, 2, 3])
    method.matrix.rows[7] = torch.tensor([4, 9, 0])
    assert method.matrix.draft(5).tokens.tolist() == [6, 7, 1, 2, 4]
    assert method.template.parents == (-1, -1, 0, 0, 1)
    depth_first = TreeTemplate((-1, 0, 0, -1, 3), (0, 0, 1, 1, 0), ((0, 1), (1, 3), (3, 4), (4, 5)))
    assert method.matrix.draft(5).tokens.tolist() != [6, 1, 2, 7, 4]  # what tree order the example tells apart
    assert depth_first.parents != method.template.parents


def test_cold_matrix_drafts_token_zero():
    assert bound().matrix.draft(9).tokens.tolist() == [0, 0, 0, 0, 0]


ROWS = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


@pytest.mark.parametrize(
    ("update", "five"), [("last", [7, 8, 9]), ("first", [1, 2, 3]), ("merge", [1, 8, 3])]
)  # fmt: skip
def test_update_of_a_repeated_token(update, five):
    method = bound(update=update)
    method.matrix.learn(torch.tensor([5, 6, 5]), TopK(ROWS, ROWS.float()))
    assert method.matrix.rows[5].tolist() == five
    assert method.matrix.rows[6].tolist() == [4, 5, 6]
    assert method.matrix.rows.abs().sum() == sum(five) + 15


def test_a_request_learns_from_every_forward_and_drafts_from_its_last_token():
    method = bound()
    ids = torch.tensor([[6, 7, 8]])
    drafter = method.begin([3, 4], Prefill(5, topk=TopK(ids, ids.float())), 0)
    assert method.matrix.rows[4].tolist() == [6, 7, 8]  # the prefill's row follows the last prompt token
    assert not method.matrix.rows[3].any()
    draft = drafter.propose([3, 4, 5], 64)
    rows = torch.arange(18).reshape(6, 3) % 16
    drafter.observe(Step(5, (9,), (), True, torch.tensor([5, *draft.tokens.tolist()]), TopK(rows, rows.float())))
    assert method.matrix.rows[5].tolist() == rows[0].tolist()
    assert len(draft) == 5
    assert drafter.propose([3, 4, 5, 4], 64).tokens.tolist()[:2] == [6, 7]


def test_prompt_row_i_is_what_follows_prompt_token_i():
    method = bound(update_from_prefill=True)
    rows = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    method.begin([10, 11, 10], Prefill(5, topk=TopK(rows, rows.float())), 0)
    assert method.matrix.rows[11].tolist() == [4, 5, 6]
    assert method.matrix.rows[10].tolist() == [7, 8, 9]
    assert method.needs.prompt_topk == 3


def test_a_depth_first_fill_would_fail_the_example():
    depth_first = TreeTemplate((-1, 0, 0, -1, 3), (0, 0, 1, 1, 0), ((0, 1), (1, 3), (3, 4), (4, 5)))
    matrix = RecyclingMatrix(depth_first, 3, "last", 16, torch.device("cpu"))
    matrix.rows[5], matrix.rows[6] = torch.tensor([6, 7, 8]), torch.tensor([1, 2, 3])
    matrix.rows[7] = torch.tensor([4, 9, 0])
    assert matrix.draft(5).tokens.tolist() != [6, 7, 1, 2, 4]


def test_reset_forgets():
    method = bound()
    method.matrix.learn(torch.tensor([5]), TopK(ROWS[:1], ROWS[:1].float()))
    method.reset()
    assert not method.matrix.rows.any()
    assert method.state_bytes() == 16 * 3 * 8


@pytest.mark.parametrize(
    ("counts", "message"),
    [([[2], [1]], "level 1 lists 1 nodes; expected 2"), ([[9]], "from 0 to 3"), ([[0]], "no node"), ([], "no node")],
)
def test_bad_tree_is_named(counts, message):
    with pytest.raises(InputError, match=message):
        TokenRecycling(counts, k=3)
