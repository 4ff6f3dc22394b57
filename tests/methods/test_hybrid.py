"""The hybrid: merging and choosing by hand, the truth that rates learn, and members that see their
own steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders.runs import job_for
from head_models import paths_of
from methods.hybrid import SEEN, AcceptanceRates, Hybrid, MergedTree, class_of
from methods.parts.array_draft import list_nodes
from specbench.method import Drafter, Method
from specbench.types import Draft, InputError, Needs, Prefill, Step


class _Fixed(Method):
    """Drafts what it is given and keeps the steps it sees."""

    def __init__(self, draft: Draft, topk: int = 0) -> None:
        self.draft, self.topk, self.seen, self.resets = draft, topk, [], 0

    @property
    def needs(self) -> Needs:
        return Needs(node_topk=self.topk)

    def reset(self) -> None:
        self.resets += 1

    def begin(self, prompt, prefill, seed):
        outer = self

        class _One(Drafter):
            def propose(self, context, budget):
                return outer.draft

            def observe(self, step):
                outer.seen.append(step)

            def stats(self):
                return {"asked": 1.0}

        return _One()

    def state_bytes(self) -> int:
        return 7


def merged(drafts: Sequence[Draft], rates: AcceptanceRates) -> MergedTree:
    tree = MergedTree(rates, len(drafts), 12)
    tree.sizes[:] = [tree.take(member, draft) for member, draft in enumerate(drafts)]
    return tree


def best(drafts: Sequence[Draft], budget: int, threshold: float) -> Draft:
    nodes, score = np.empty((3, 36), np.int64), np.empty(36)
    tree = merged(drafts, AcceptanceRates(len(drafts), 0.5, 8))
    return list_nodes(nodes, score, tree.merge(budget, threshold, nodes, score))


def judge(draft: Draft, emitted: Sequence[int], rates: AcceptanceRates) -> list[list[int]]:
    tree = merged([draft], rates)
    tree.merge(12, 0.0, np.empty((3, 12), np.int64), np.empty(12))
    tree.judge(emitted)
    return tree.list_paths()


def test_equal_paths_are_one_and_the_likeliest_win():
    """5-6 of one and 5-7 of the other share the 5, which is then 1 - 0.5 * 0.5 likely; 6 and 7 stay
    at 0.5.
    """
    drafts = Draft([5, 6], [-1, 0]), Draft([5, 7, 8], [-1, 0, -1])
    # Paths: 5 at 0.75, 8 at 0.5, 5-6 and 5-7 at 0.375.
    assert list(best(drafts, 2, 0.0).tokens) == [5, 8]
    assert list(best(drafts, 3, 0.0).tokens) == [5, 6, 8]
    wanted = Draft([5, 6, 7, 8], [-1, 0, 0, -1], source=[0, 0, 1, 1], score=[0.75, 0.5, 0.5, 0.5])
    assert best(drafts, 9, 0.0) == wanted
    assert list(best(drafts, 9, 0.4).tokens) == [5, 8]
    assert list(best([Draft([5, 6], [-1, -1], score=[0.05, 0.95])], 1, 0.0).tokens) == [6]


@st.composite
def random_drafts(draw):
    count = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    return Draft([draw(st.integers(0, 3)) for _ in range(count)], parents)


@given(st.lists(random_drafts(), min_size=1, max_size=3), st.integers(1, 20))
def test_a_merged_tree_holds_the_members_paths_and_no_other(drafts, budget):
    everything = {path for draft in drafts for path in paths_of(draft)}
    assert set(paths_of(best(drafts, 99, 0.0))) == everything
    some = best(drafts, budget, 0.0)
    assert len(some) == min(budget, len(everything)) == len(set(paths_of(some)))  # nothing twice
    assert set(paths_of(some)) <= everything
    assert all(parent < node for node, parent in enumerate(some.parents))


@given(random_drafts(), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_only_nodes_whose_parent_was_emitted_are_counted(draft, emitted):
    rates = AcceptanceRates(1, 0.5, 8)
    (path,) = judge(draft, emitted, rates)
    found = paths_of(draft)
    true = tuple(emitted)
    assert [found[node] for node in path] == [true[: length + 1] for length in range(len(path))]
    judged = [
        parent in (-1, *path) and len(way) <= len(true) and way[:-1] == true[: len(way) - 1]
        for way, parent in zip(found, draft.parents, strict=True)
    ]
    best = [
        node
        for node, (way, at) in enumerate(zip(found, judged, strict=True))
        if at and way == true[: len(way)]
    ]
    assert set(path) <= set(best)
    assert len(path) == max((len(found[node]) for node in best), default=0)
    assert rates.counts[SEEN].sum() == sum(judged)


def test_rates_move_to_what_was_seen_and_classes_do_not_overlap():
    rates = AcceptanceRates(1, 0.5, 8)
    number = class_of(0, 2, 0, 0, float("nan"))
    for token in [5] * 8 + [6] * 8:
        judge(Draft.chain([token, 7]), [5, 7], rates)
    assert rates.rates[number] == (0.5 * 8 + 8) / (8 + 16)
    assert rates.rates[class_of(0, 2, 1, 0, float("nan"))] == (0.5 * 8 + 8) / (8 + 8)
    assert rates.rates[class_of(0, 2, 2, 0, float("nan"))] == 0.5
    rates.clear()
    assert rates.rates[number] == 0.5
    kinds = itertools.product(
        range(2), (1, 2, 3, 64, 99), range(9), range(5), (0.0, 0.5, 1.0, float("nan"))
    )
    numbers = {class_of(*kind) for kind in kinds}
    assert len(numbers) == 2 * 4 * 8 * 4 * 4  # depths from 7 on are one, ranks from 3 on are one
    assert max(numbers) < len(AcceptanceRates(2, 0.5, 8).rates)


def test_members_see_their_own_path_and_every_row():
    one, two = _Fixed(Draft([9, 5, 6], [-1, -1, 1]), topk=3), _Fixed(Draft([5], [-1]), topk=1)
    hybrid = Hybrid({"one": one, "two": two}, budget=8)
    assert hybrid.needs == Needs(node_topk=3)
    assert (hybrid.sources, hybrid.state_bytes()) == (("one", "two"), 14)
    drafter = hybrid.begin([1], Prefill(2), 0)
    draft = drafter.propose([1, 2], 8)
    assert set(paths_of(draft)) == {(9,), (5,), (5, 6)}
    rows = torch.arange(4)
    drafter.observe(Step(2, (5, 6, 7), (1, 2), False, fed=rows))
    assert one.seen[0].path == (1, 2)
    assert two.seen[0].path == (0,)
    assert one.seen[0].fed is rows
    # cut after the root's own token: the 5 was right, but nothing accepted
    drafter.observe(Step(7, (5,), (), True))
    assert one.seen[1].path == ()
    assert drafter.stats() == {"one.asked": 1.0, "two.asked": 1.0}
    hybrid.reset()
    assert one.resets == two.resets == 1


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["+method.hybrid.members.cacheback.leder=1"],
        "method.hybrid.members.cacheback.leder: no such parameter"),
        (["method@method.hybrid.members.peer=hf_generate"], "method.hybrid.members.peer"),
        (["method.hybrid.members.cacheback.tables=dual"],
        "method.hybrid.members.cacheback.frozen: not set"),
    ],
)  # fmt: skip
def test_a_members_mistake_is_named_where_it_was_made(overrides, words):
    overrides = [f"+{item}" if item.startswith("method@") else item for item in overrides]
    with pytest.raises(InputError, match=words):
        job_for("method=[hybrid]", *overrides)


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (Needs(hidden=(1,)), "own draft's nodes"),
        (Needs(rows=True), "rows"),
        (Needs(concurrent=True), "target runs"),
    ],
)
def test_a_member_that_cannot_be_one_is_refused(needs, words):
    member = _Fixed(Draft())
    type(member).needs = property(lambda self: needs)
    try:
        with pytest.raises(InputError, match=f"members.odd: .*{words}"):
            Hybrid({"odd": member}).bind(None)
    finally:
        type(member).needs = property(lambda self: Needs(node_topk=self.topk))


def test_any_method_of_the_folder_can_be_a_member():
    job = job_for("method=[hybrid]", "+method@method.hybrid.members.recycling=token_recycling")
    hybrid = next(entry.method for entry in job.entries if entry.name == "hybrid")
    assert list(hybrid.members) == ["suffix_decoding", "cacheback", "recycling"]
    assert hybrid.needs.node_topk == 8
