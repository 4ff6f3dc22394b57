"""Hybrid: drafts of several methods in one tree, the nodes most likely to be accepted first, within
a node budget.

No source has it in this form: the Cacheback paper proposes its branches next to any other drafter's
(section 6), and SAM-Decoding switches between two drafters. Here every member drafts, equal paths
are merged, and the budget goes to the likeliest paths. A path's probability is the product of its
nodes' probabilities; a node that several members propose is as likely as if they erred
independently, 1 - (1 - a)(1 - b). A node's class is its member, the size of that member's draft,
its depth, its rank among its siblings and its member's score. The rate of a class is the share of
its nodes that were right where their parent was; every step counts each node whose parent is on the
emitted path, fed or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from torch import Tensor

from methods.parts.array_draft import PARENT, SOURCE, TOKEN, ArrayDrafter
from methods.parts.branches import hash_child
from methods.parts.parameters import Parameters, count, positive, probability
from specbench.method import Drafter, Method, Peer
from specbench.models.compiled_code import njit
from specbench.models.facade import ModelCard, Target
from specbench.types import ROOT, CaseError, Draft, InputError, Needs, Prefill, Step, named

# of a drafter's whole draft, by doubling: drafters that know how sure they are draft more
SIZES = 7
DEPTHS = 8  # deeper ones are one class
RANKS = 4  # later siblings are one class
LEVELS = 8  # of a drafter's own score, 0 to 1; one class more is for no score


@njit(widen=True)
def class_of(member: int, size: int, depth: int, rank: int, score: float) -> int:
    """Number of a node's class. size: of the draft. depth, rank: from 0. score: 0 to 1, nan = the
    drafter has none.
    """
    doublings = 0
    while size > 1 and doublings < SIZES - 1:
        size, doublings = (size + 1) // 2, doublings + 1
    return (member * SIZES + doublings) * DEPTHS * RANKS * (LEVELS + 1) + _class_in_draft(
        depth, rank, score
    )


@njit(widen=True)
def _class_in_draft(depth, rank, score):
    """Number of a node's class among those of its member and of the size of its draft."""
    level = LEVELS if np.isnan(score) else min(max(int(score * LEVELS), 0), LEVELS - 1)
    return (min(depth, DEPTHS - 1) * RANKS + min(rank, RANKS - 1)) * (LEVELS + 1) + level


DEPTH, CLASS = 3, 4  # rows of drafted nodes after those of ``ArrayDrafter``
MEMBER = SOURCE  # of the merged tree's nodes
PRIOR, SEEN, RIGHT = range(3)  # rows of the counts of classes


# Nests deeper: one compiled loop.
@njit(widen=True)
def _merge(drafted, scores, sizes, counts, strength, tree, chances):
    """Merge drafts into a tree: equal paths are one node, its chances joined; returns the nodes of
    the tree.

    drafted: (members, 5, most) int64, the nodes of each draft; depths and classes are filled in.
    scores: (members, most) of the nodes, nan = unknown. sizes: (members,) of the drafts. counts,
    strength: of ``AcceptanceRates``, of whose classes only those of the drafts' nodes are computed.
    tree, chances: (3, M) int64 and (M,), filled with tokens, parents and members, and with the
    chances of the tree's nodes.
    """
    count, most = sizes.sum(), sizes.max()
    place, children = np.empty(most, np.int64), np.empty(most, np.int64)
    # nodes of a hash value, as in a draft tree
    first, other = np.full(count + 1, ROOT), np.empty(count, np.int64)
    size = 0
    for member in range(len(sizes)):
        nodes, at_root = drafted[member], 0
        start = class_of(member, sizes[member], 0, 0, 0.0)
        for number in range(sizes[member]):
            owner, children[number] = nodes[PARENT, number], 0
            if owner == ROOT:
                above, depth, rank = ROOT, 0, at_root
                at_root += 1
            else:
                above, depth, rank = place[owner], nodes[DEPTH, owner] + 1, children[owner]
                children[owner] += 1
            kind, token = (
                start + _class_in_draft(depth, rank, scores[member, number]),
                nodes[TOKEN, number],
            )
            nodes[DEPTH, number], nodes[CLASS, number] = depth, kind
            rate = (counts[PRIOR, kind] + counts[RIGHT, kind]) / (strength + counts[SEEN, kind])
            bucket = hash_child(above, token, len(first))
            node = first[bucket]
            while node != ROOT and (tree[TOKEN, node] != token or tree[PARENT, node] != above):
                node = other[node]
            if node == ROOT:
                node, size = size, size + 1
                tree[TOKEN, node], tree[PARENT, node], tree[MEMBER, node] = token, above, member
                chances[node], other[node], first[bucket] = rate, first[bucket], node
            else:
                chances[node] = 1 - (1 - chances[node]) * (1 - rate)
            place[number] = node
    return size


@njit(widen=True)
def _merge_best(drafted, scores, sizes, counts, strength, budget, threshold, kept, kept_chances):
    """Merge drafts and copy the nodes of the ``budget`` likeliest paths of at least ``threshold``,
    in order.

    Of equal ones a parent comes before its child. kept, kept_chances: (3, M) int64 and (M,), filled
    as ``tree`` and ``chances`` of ``_merge``, which explains the other arguments. Returns the
    number of nodes.
    """
    most = sizes.sum()
    tree, chances = np.empty((3, most), np.int64), np.empty(most)
    size = _merge(drafted, scores, sizes, counts, strength, tree, chances)
    whole, order, found = np.empty(size), np.empty(size, np.int64), 0
    for node in range(size):
        whole[node] = (
            chances[node]
            if tree[PARENT, node] == ROOT
            else chances[node] * whole[tree[PARENT, node]]
        )
        if whole[node] >= threshold:
            order[found] = node
            found += 1
    for last in range(1, found if found > budget else 0):  # sort, if not all can stay
        node, place = order[last], last
        while place > 0 and whole[order[place - 1]] < whole[node]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = node
    number = np.full(size + 1, ROOT)  # among the kept ones; the last is the root's
    for place in range(min(found, budget)):
        number[order[place]] = place
    found = 0
    for node in range(size):
        if number[node] != ROOT:
            kept[TOKEN, found], kept[MEMBER, found] = tree[TOKEN, node], tree[MEMBER, node]
            kept[PARENT, found], kept_chances[found] = number[tree[PARENT, node]], chances[node]
            number[node] = found
            found += 1
    return found


# Nests deeper: one compiled loop.
@njit(widen=True)
def _judge(drafted, sizes, emitted, counts, path, ends):
    """Count the nodes whose parent was emitted, and those of them that were right.

    path, ends: filled with each draft's right path, one after the other, and where each ends. Of
    right siblings the first one's children are checked.
    """
    size = 0
    for member in range(len(sizes)):
        nodes, start = drafted[member], size
        for node in range(sizes[member]):
            depth = nodes[DEPTH, node]
            if depth >= len(emitted) or depth > size - start:
                continue
            if depth > 0 and nodes[PARENT, node] != path[start + depth - 1]:
                continue
            counts[SEEN, nodes[CLASS, node]] += 1
            if nodes[TOKEN, node] == emitted[depth]:
                counts[RIGHT, nodes[CLASS, node]] += 1
                if depth == size - start:
                    path[size] = node
                    size += 1
        ends[member] = size


class AcceptanceRates:
    """Rates of every class of ``members`` drafters; a class starts from its drafter's own score, or
    from ``prior``.

    strength: [observations] that the prior weighs. counts: (3, classes) the prior's, nodes seen,
    nodes that were right (``MergedTree.judge``).
    """

    def __init__(self, members: int, prior: float, strength: float) -> None:
        level = np.append((np.arange(LEVELS) + 0.5) / LEVELS, prior)
        self.strength = float(strength)
        self.counts = np.zeros((3, members * SIZES * DEPTHS * RANKS * len(level)))
        self.counts[PRIOR] = strength * np.tile(level, members * SIZES * DEPTHS * RANKS)

    def clear(self) -> None:
        """Forget the counts."""
        self.counts[SEEN:] = 0

    @property
    def rates(self) -> np.ndarray:
        """(classes,) estimates so far."""
        return (self.counts[PRIOR] + self.counts[RIGHT]) / (self.strength + self.counts[SEEN])


class MergedTree:
    """The union of the drafts of ``members``, each of at most ``most`` nodes, which are written to
    ``drafted``.

    drafted: (members, 5, most) int64. scores: (members, most). sizes: (members,) int64, of the
    drafts.
    """

    def __init__(self, rates: AcceptanceRates, members: int, most: int) -> None:
        self._rates, self.sizes = rates, np.zeros(members, np.int64)
        self.drafted, self.scores = (
            np.empty((members, 5, most), np.int64),
            np.full((members, most), np.nan),
        )
        self._path, self._ends = np.empty(members * most, np.int64), np.empty(members, np.int64)
        self._given = self.drafted, self.scores, self.sizes, rates.counts

    def take(self, member: int, draft: Draft) -> int:
        """Copy a draft; returns its size. Raises CaseError for a draft with passengers, which
        cannot be merged.
        """
        if draft.passenger is not None:
            raise CaseError(
                "a member of a hybrid drafts passengers; expected a method whose nodes can all be"
                " accepted"
            )
        size = len(draft)
        for row, values in ((TOKEN, draft.tokens), (PARENT, draft.parents)):
            self.drafted[member, row, :size] = (
                values.tolist() if isinstance(values, Tensor) else values
            )
        self.scores[member, :size] = np.nan if draft.score is None else draft.score
        return size

    def merge(self, budget: int, threshold: float, nodes: np.ndarray, score: np.ndarray) -> int:
        """Write the nodes of the ``budget`` likeliest paths, those below ``threshold`` left out;
        returns their number.

        nodes, score: see ``ArrayDrafter``.
        """
        size: int = _merge_best(*self._given, self._rates.strength, budget, threshold, nodes, score)
        return size

    def judge(self, emitted: Sequence[int]) -> None:
        """Count the nodes that ``emitted`` proves right or wrong."""
        _judge(
            self.drafted, self.sizes, np.array(emitted), self._rates.counts, self._path, self._ends
        )

    def list_paths(self) -> list[list[int]]:
        """Return each draft's right path as ``judge`` found it, root first."""
        ends = self._ends.tolist()
        found = self._path[: ends[-1]].tolist()
        return [found[start:end] for start, end in pairwise([0, *ends])]


class _Union(ArrayDrafter):
    def __init__(self, method: Hybrid, drafters: Sequence[Drafter]) -> None:
        super().__init__(len(drafters) * method.member_budget, scored=True)
        self._method, self._drafters, self._fills = (
            method,
            drafters,
            list[Callable[[Sequence[int], int], int]](),
        )
        self._observing = [
            number
            for number, each in enumerate(drafters)
            if type(each).observe is not Drafter.observe
        ]
        self._tree = tree = MergedTree(method.rates, len(drafters), method.member_budget)
        self.text = next(
            (each.text for each in drafters if isinstance(each, ArrayDrafter)), self.text
        )
        for member, drafter in enumerate(drafters):
            if isinstance(drafter, ArrayDrafter):
                drafter.nodes = tree.drafted[member, :DEPTH]
                drafter.score = None if drafter.score is None else tree.scores[member]
                drafter.text = self.text
                self._fills.append(drafter.fill)
            else:
                self._fills.append(partial(self._take, member, drafter))

    def _take(self, member: int, drafter: Drafter, context: Sequence[int], budget: int) -> int:
        return self._tree.take(member, drafter.propose(context, budget))

    def fill(self, context: Sequence[int], budget: int) -> int:
        method, tree, room = self._method, self._tree, min(budget, self._method.member_budget)
        self.text.follow(context)
        for member, fill in enumerate(self._fills):
            tree.sizes[member] = fill(context, room)
        assert self.score is not None
        return tree.merge(min(budget, method.budget), method.threshold, self.nodes, self.score)

    def observe(self, step: Step) -> None:
        self._tree.judge(step.emitted)
        if not self._observing:
            return
        paths, accepted = self._tree.list_paths(), len(step.path)
        for number in self._observing:
            own = (
                step.emitted,
                tuple(paths[number][:accepted]),
                step.done,
                step.fed,
                step.topk,
                step.hidden,
            )
            # ``replace`` takes longer
            self._drafters[number].observe(Step(step.root, *own, step.late, step.parents))

    def finish(self, context: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.finish(context)

    def stats(self) -> dict[str, float]:
        named = zip(self._method.sources, self._drafters, strict=True)
        return {
            f"{name}.{key}": value
            for name, drafter in named
            for key, value in drafter.stats().items()
        }


@dataclass(eq=False)
class Hybrid(Parameters, Method):
    """Drafts of several methods in one tree; conf/method/hybrid.yaml describes the parameters."""

    learned = ("rates",)

    members: Mapping[str, Method]
    budget: int = count(32)
    member_budget: int = count(64)
    threshold: float = probability(0.0)
    prior: float = probability(0.3)
    strength: float = positive(8.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.members:
            raise InputError("members: none; expected at least one method")
        for name, member in self.members.items():
            if isinstance(member, Peer):
                raise InputError(
                    f"members.{name}: has its own decoding loop; expected a method that proposes"
                    " drafts"
                )
            if not member.lossless:
                raise InputError(f"members.{name}: is lossy; expected a lossless method")
        self.sources = tuple(self.members)
        self.rates = AcceptanceRates(len(self.members), self.prior, self.strength)

    @property
    def needs(self) -> Needs:
        needs = [member.needs for member in self.members.values()]
        return Needs(
            node_topk=max(each.node_topk for each in needs),
            prompt_topk=max(each.prompt_topk for each in needs),
        )

    @property
    def pauses(self) -> bool:
        """False where a member reads hidden states: the steps left out would be a path outside its
        draft.
        """
        return super().pauses and not self.needs.hidden

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(path for member in self.members.values() for path in member.inputs)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(
            f"{name}: {text}" for name, member in self.members.items() for text in member.warnings
        )

    def check(self, model: ModelCard) -> None:
        for name, member in self.members.items():
            with named(f"members.{name}."):
                member.check(model)

    def bind(self, target: Target) -> None:
        """Bind every member. Raises InputError for one whose drafts cannot be merged."""
        for name, member in self.members.items():
            with named(f"members.{name}."):
                member.bind(target)
            needs = member.needs
            reasons = {
                "reads a step by its own draft's nodes, and the merged tree has others": (
                    needs.hidden or member.by_node
                ),
                "drafts rows for a batch": needs.rows,
                "drafts while the target runs": needs.concurrent,
            }
            for reason, applies in reasons.items():
                if applies:
                    raise InputError(
                        f"members.{name}: {reason}; expected a method that proposes a tree from"
                        " tokens or top-k"
                    )
        tree = MergedTree(AcceptanceRates(1, 0.5, 1.0), 1, 2)
        tree.sizes[0] = tree.take(0, Draft.chain([1, 2]))
        # compile, so that no request does
        tree.merge(1, 0.0, np.empty((3, 2), np.int64), np.empty(2))
        tree.judge([1])

    def reset(self) -> None:
        self.rates.clear()
        for member in self.members.values():
            member.reset()

    def private(self) -> Method | None:
        own, members = (
            super().private(),
            {name: member.private() for name, member in self.members.items()},
        )
        if not isinstance(own, Hybrid) or None in members.values():
            return None
        own.members = {name: member for name, member in members.items() if member is not None}
        return own

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Every member begins, each under its own seed."""
        members = enumerate(self.members.values())
        return _Union(
            self, [member.begin(prompt, prefill, seed + number) for number, member in members]
        )

    def state_bytes(self) -> int:
        return sum(member.state_bytes() for member in self.members.values())

    def close(self) -> None:
        for member in self.members.values():
            member.close()
