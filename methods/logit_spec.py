"""LogitSpec (Liu et al. 2025, arXiv 2507.01449): the last logits also rank the token after next.

The first branch copies what followed the context's longest suffix before. Every further one starts
with a token that the logits after the last token ranked high, and continues with what followed it
in the context (section 3).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from methods.parts.array_draft import ArrayDrafter
from methods.parts.branches import PARENT, SIZE, SOURCE, add, allocate_tree, copy_nodes
from methods.parts.branches import start as start_tree
from methods.parts.gram_table import COUNT, NONE, GramTable, find, has_room, new_row
from methods.parts.parameters import Parameters, count
from specbench.method import Drafter, Method
from specbench.models.compiled_code import njit
from specbench.models.facade import Target
from specbench.types import MOST, ROOT, InputError, Needs, Prefill, Step, TopK, require_nodes

NEXT, RANKED, BEHIND = 0, 1, 2


@njit(widen=True)
def _mark(table, text, place, stop, longest, latest):
    """Enter the n-grams of up to ``longest`` tokens that end at ``place`` to ``stop`` - 1, and
    where they end.

    A row of the table is a token, and the rows that it owns are the tokens in front of it. latest:
    the place of an n-gram that is known is replaced. Returns the first end that was not entered,
    for lack of room if before ``stop``.
    """
    while place < stop and has_room(table, longest):
        owner = np.int64(0)
        for start in range(place - 1, max(0, place - longest) - 1, -1):
            row = find(table, owner, text, start, 1)
            known = row != NONE
            if not known:
                row = new_row(table, owner, text, start, 1)
            if latest or not known:
                table[row, COUNT] = place
            owner = row
        place += 1
    return place


@njit(widen=True)
def _find_behind(table, text, gram, length):
    """The first and the end of at most ``length`` tokens that followed the longest suffix of
    ``gram`` that occurred.
    """
    place, owner = np.int64(len(text)), np.int64(0)
    for start in range(len(gram) - 1, -1, -1):
        owner = find(table, owner, gram, start, 1)
        if owner == NONE:
            break
        place = np.int64(table[owner, COUNT])
    return place, min(place + length, len(text) - 1)


@njit(widen=True)
def _draft(
    nodes, tree, table, stored, length, marked, ranked, lengths, longest, num_draft, room, merge
):
    """Draft what followed the context's end, then a branch for each ranked token, which is not the
    root.

    nodes, tree: filled. stored, length: see ``GrowingText``. marked: (2,) int64, the next end to
    enter: as an n-gram's first, as its latest. Returns the number of nodes; -1 if the table must
    grow first.
    """
    text, known = stored[:length], length - 1  # the root is not retrieved from
    full = known - num_draft + 1
    marked[0] = _mark(table, text, marked[0], known, longest, False)
    marked[1] = _mark(table, text, marked[1], full, longest, True)
    if marked[0] < known or marked[1] < full:
        return -1
    start_tree(tree)
    first, end = _find_behind(table, text, text[-longest:], num_draft)
    add(tree, ROOT, text[:end], first, NEXT, room, merge)
    gram = np.append(text[len(text) - min(len(text), longest - 1) :], np.int32(0))
    branch = np.empty(lengths.max(), np.int32)
    for rank in range(len(ranked)):
        size = np.int64(tree[ROOT, SIZE])
        if size >= room:
            break
        if ranked[rank] == text[-1]:
            continue
        gram[-1] = branch[0] = ranked[rank]
        first, end = _find_behind(table, text, gram, lengths[rank] - 1)
        count = 1
        for place in range(first, end):
            branch[count] = text[place]
            count += 1
        add(tree, ROOT, branch[:count], 0, BEHIND, room - size, merge)
        if size < tree[ROOT, SIZE] and tree[size, PARENT] == ROOT:
            tree[size, SOURCE] = RANKED
    return copy_nodes(tree, nodes)


class _Speculator(ArrayDrafter):
    def __init__(self, method: LogitSpec, ranked: Tensor) -> None:
        super().__init__(method.capacity - 1)
        self._method = method
        self._ranked = ranked.numpy()  # (k,) of the logits that chose the context's last token
        self._table = GramTable(1, 1)
        self._marked, self._tree = np.ones(2, np.int64), allocate_tree(method.capacity - 1)

    def fill(self, context: Sequence[int], budget: int) -> int:
        method, text = self._method, self.text
        text.follow(context)
        given = (text.stored, text.length, self._marked, self._ranked, method.length_at)
        sizes = (method.max_ngram, method.num_draft, min(budget, method.capacity - 1), method.merge)
        while (size := _draft(self.nodes, self._tree, self._table.rows, *given, *sizes)) < 0:
            self._table.grow()
        return int(size)

    def observe(self, step: Step) -> None:
        if step.topk is not None:
            self._ranked = step.topk.ids.numpy()[step.path[-1] + 1 if step.path else 0]


@dataclass(eq=False)
class LogitSpec(Parameters, Method):
    """LogitSpec; conf/method/logit_spec.yaml describes the parameters."""

    by_node = True
    sources = ("next", "ranked", "behind_ranked")

    max_ngram: int = count(3)
    num_draft: int = count(20)
    capacity: int = count(64, low=2)
    ranks: Sequence[int] = (8, 32)
    lengths: Sequence[int] = (4, 3, 1)
    merge: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        ranks, lengths = list(self.ranks), list(self.lengths)
        if ranks != sorted(set(ranks)) or not all(0 <= rank <= MOST for rank in ranks):
            raise InputError(f"ranks={ranks}: expected rising whole numbers from 0 to {MOST}")
        if len(lengths) != len(ranks) + 1 or not all(1 <= each <= MOST for each in lengths):
            raise InputError(
                f"lengths={lengths}: expected {len(ranks) + 1} from 1 to {MOST}, one more than"
                " ranks"
            )
        self.length_at = np.array(
            [lengths[bisect_left(ranks, rank)] for rank in range(self.capacity)]
        )
        self._ranked = self.capacity

    @property
    def needs(self) -> Needs:
        """The ranking of every node, since any may turn out to be the last accepted one."""
        return Needs(node_topk=self._ranked, read_topk=True)

    def bind(self, target: Target) -> None:
        require_nodes(f"capacity={self.capacity}", self.capacity - 1, target.max_nodes)
        self._ranked = min(self.capacity, target.vocab_size)
        top = TopK(torch.zeros(1, self._ranked, dtype=torch.long), torch.zeros(1, self._ranked))
        # compile, so that no request does
        self.begin([0], Prefill(0, topk=top), 0).propose([0, 0], self.capacity)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The ranking after the prompt's last token comes with the prefill."""
        assert prefill.topk is not None  # by ``needs``
        return _Speculator(self, prefill.topk.ids[-1])
