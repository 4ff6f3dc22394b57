"""Hybrid: drafts of several methods in one tree, the nodes most likely to be accepted first, within a node budget.

No source has it in this form: the Cacheback paper proposes its branches next to any other drafter's (section 6), and
SAM-Decoding switches between two drafters. Here every member drafts, equal paths are merged, and the budget goes to the
likeliest paths. A path's probability is the product of its nodes' probabilities; a node that several members propose is
as likely as if they erred independently, 1 - (1 - a)(1 - b). A node's class is its member, the size of that member's
draft, its depth, its rank among its siblings and its member's score. The rate of a class is the share of its nodes that
were right where their parent was; every step counts each node whose parent is on the emitted path, fed or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

import numpy as np
from torch import Tensor

from methods.parts.parameters import Parameters, count, positive, probability
from specbench.method import Drafter, Method, Peer
from specbench.models.compiled_code import njit
from specbench.models.facade import ModelCard, Target
from specbench.types import ROOT, CaseError, Draft, InputError, Needs, Prefill, Step, named

SIZES = 7  # of a drafter's whole draft, by doubling: drafters that know how sure they are draft more
DEPTHS = 8  # deeper ones are one class
RANKS = 4  # later siblings are one class
LEVELS = 8  # of a drafter's own score, 0 to 1; one class more is for no score


@njit()
def class_of(member: int, size: int, depth: int, rank: int, score: float) -> int:
    """Number of a node's class. size: of the draft. depth, rank: from 0. score: 0 to 1, nan = the drafter has none."""
    doublings = 0
    while size > 1 and doublings < SIZES - 1:
        size, doublings = (size + 1) // 2, doublings + 1
    level = LEVELS if np.isnan(score) else min(max(int(score * LEVELS), 0), LEVELS - 1)
    kind = member * SIZES + doublings
    return ((kind * DEPTHS + min(depth, DEPTHS - 1)) * RANKS + min(rank, RANKS - 1)) * (LEVELS + 1) + level


# Nests deeper: one compiled loop.
@njit()
def _merge(
    tokens: np.ndarray,
    parents: np.ndarray,
    scores: np.ndarray,
    starts: np.ndarray,
    prior: np.ndarray,
    strength: float,
    seen: np.ndarray,
    right: np.ndarray,
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Merges drafts into a tree: equal paths are one node, its chances joined.

    parents: within each draft; starts: where each draft begins; prior, strength, seen, right: of ``AcceptanceRates``,
    of whose classes only those of the drafts' nodes are computed. Returns (depths, classes) of the drafts' nodes, and
    (tokens, parents, chances, members) of the tree's.
    """
    count = len(tokens)
    depths, classes, place = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    children = np.zeros(count, np.int64)
    token, parent = np.empty(count, np.int64), np.empty(count, np.int64)
    chance, member_of = np.empty(count), np.empty(count, np.int64)
    child, sibling = np.full(count + 1, ROOT), np.full(count, ROOT)  # of node i: child[i + 1]
    size = 0
    for member in range(len(starts) - 1):
        first, at_root = starts[member], 0
        for number in range(first, starts[member + 1]):
            if parents[number] == ROOT:
                above, depths[number], rank = ROOT, 0, at_root
                at_root += 1
            else:
                owner = first + parents[number]
                above, depths[number], rank = place[owner], depths[owner] + 1, children[owner]
                children[owner] += 1
            classes[number] = class_of(member, starts[member + 1] - first, depths[number], rank, scores[number])
            kind = classes[number]
            rate = (prior[kind] + right[kind]) / (strength + seen[kind])
            node, last = child[above + 1], ROOT
            while node != ROOT and token[node] != tokens[number]:
                last, node = node, sibling[node]
            if node == ROOT:
                node, size = size, size + 1
                token[node], parent[node], chance[node], member_of[node] = tokens[number], above, rate, member
                if last == ROOT:
                    child[above + 1] = node
                else:
                    sibling[last] = node
            else:
                chance[node] = 1 - (1 - chance[node]) * (1 - rate)
            place[number] = node
    return (depths, classes), (token[:size], parent[:size], chance[:size], member_of[:size])


@njit()
def _likeliest(
    parents: np.ndarray, chances: np.ndarray, budget: int, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """(nodes, their parents among them) of the ``budget`` likeliest paths of at least ``threshold``, in order."""
    count = len(parents)
    whole, kept = np.empty(count), np.zeros(count, np.bool_)
    for node in range(count):
        whole[node] = chances[node] if parents[node] == ROOT else chances[node] * whole[parents[node]]
    order = np.argsort(-whole, kind="mergesort")  # stable: of equal ones a parent stays before its child
    for place in range(min(budget, count)):
        kept[order[place]] = whole[order[place]] >= threshold
    nodes = np.flatnonzero(kept)
    number = np.full(count, ROOT)
    above = np.empty(len(nodes), np.int64)
    for place, chosen in enumerate(nodes):
        number[chosen] = place
        above[place] = ROOT if parents[chosen] == ROOT else number[parents[chosen]]
    return nodes, above


# Nests deeper: one compiled loop.
@njit()
def _judge(
    tokens: np.ndarray,
    parents: np.ndarray,
    depths: np.ndarray,
    classes: np.ndarray,
    starts: np.ndarray,
    emitted: np.ndarray,
    seen: np.ndarray,
    right: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Count the nodes whose parent was emitted, and those of them that were right.

    Returns each draft's right path, one after the other, and where each begins. Of right siblings the first one's
    children are checked.
    """  # fmt: skip
    members = len(starts) - 1
    path, begins = np.empty(members * len(emitted), np.int64), np.zeros(members + 1, np.int64)
    size = 0
    for member in range(members):
        first, start = starts[member], size
        for node in range(first, starts[member + 1]):
            depth = depths[node]
            if depth >= len(emitted) or depth > size - start:
                continue
            if depth > 0 and parents[node] != path[start + depth - 1]:
                continue
            seen[classes[node]] += 1
            if tokens[node] == emitted[depth]:
                right[classes[node]] += 1
                if depth == size - start:
                    path[size] = node - first
                    size += 1
        begins[member + 1] = size
    return path[:size], begins


class AcceptanceRates:
    """Rates of every class of ``members`` drafters; a class starts from its drafter's own score, or from ``prior``.

    strength: [observations] that the prior weighs. seen, right: (classes,) nodes counted (``MergedTree.judge``).
    """

    def __init__(self, members: int, prior: float, strength: float) -> None:
        level = np.append((np.arange(LEVELS) + 0.5) / LEVELS, prior)
        self.prior = strength * np.tile(level, members * SIZES * DEPTHS * RANKS)
        self.strength = float(strength)
        self.seen = np.zeros(len(self.prior))
        self.right = np.zeros(len(self.prior))

    def clear(self) -> None:
        """Forget the counts."""
        self.seen[:] = 0
        self.right[:] = 0

    @property
    def rates(self) -> np.ndarray:
        """(classes,) estimates so far."""
        return (self.prior + self.right) / (self.strength + self.seen)


class MergedTree:
    """The union of ``drafts``, one a member. tokens, parents, chances, members: (N,) of its nodes."""

    def __init__(self, drafts: Sequence[Draft], rates: AcceptanceRates) -> None:
        """Raises CaseError for a draft with passengers, which cannot be merged."""
        self._rates = rates
        if any(draft.passenger is not None for draft in drafts):
            raise CaseError("a member of a hybrid drafts passengers; expected a method whose nodes can all be accepted")
        self._starts = np.array([0, *accumulate(map(len, drafts))])
        self._tokens = _joined([draft.tokens for draft in drafts])
        self._parents = _joined([draft.parents for draft in drafts])
        parts = [[np.nan] * len(draft) if draft.score is None else draft.score for draft in drafts]
        scores = np.array([*chain.from_iterable(parts)], float)
        drafted, merged = _merge(
            self._tokens, self._parents, scores, self._starts, rates.prior, rates.strength, rates.seen, rates.right
        )
        self._depths, self._classes = drafted
        self.tokens, self.parents, self.chances, self.members = merged

    def best(self, budget: int, threshold: float) -> Draft:
        """The ``budget`` likeliest paths' nodes, those below ``threshold`` left out."""
        nodes, parents = _likeliest(self.parents, self.chances, budget, threshold)
        return Draft(
            self.tokens[nodes].tolist(),
            parents.tolist(),
            source=self.members[nodes].tolist(),
            score=self.chances[nodes].tolist(),
        )

    def judge(self, emitted: Sequence[int]) -> list[list[int]]:
        """Count the nodes that ``emitted`` proves right or wrong; returns each draft's right path, root first."""
        rates = self._rates
        path, begins = _judge(
            self._tokens, self._parents, self._depths, self._classes, self._starts,
            np.asarray(emitted, np.int64), rates.seen, rates.right,
        )  # fmt: skip
        found = path.tolist()
        return [found[start:end] for start, end in pairwise(begins)]


def _joined(parts: Sequence[Sequence[int] | Tensor]) -> np.ndarray:
    """(M,) int64 of all parts, on the host."""
    plain = (part.tolist() if isinstance(part, Tensor) else part for part in parts)
    return np.array([*chain.from_iterable(plain)], np.int64)


class _Union(Drafter):
    def __init__(self, method: Hybrid, drafters: Sequence[Drafter]) -> None:
        self._method, self._drafters = method, drafters
        self._tree = MergedTree([Draft() for _ in drafters], method.rates)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method = self._method
        room = min(budget, method.member_budget)
        self._tree = MergedTree([drafter.propose(context, room) for drafter in self._drafters], method.rates)
        return self._tree.best(min(budget, method.budget), method.threshold)

    def observe(self, step: Step) -> None:
        accepted = len(step.path)
        for path, drafter in zip(self._tree.judge(step.emitted), self._drafters, strict=True):
            own = (step.emitted, tuple(path[:accepted]), step.done, step.fed, step.topk, step.hidden, step.late)
            drafter.observe(Step(step.root, *own, step.parents))  # ``replace`` takes several times as long

    def finish(self, context: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.finish(context)

    def stats(self) -> dict[str, float]:
        named = zip(self._method.sources, self._drafters, strict=True)
        return {f"{name}.{key}": value for name, drafter in named for key, value in drafter.stats().items()}


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
                raise InputError(f"members.{name}: has its own decoding loop; expected a method that proposes drafts")
            if not member.lossless:
                raise InputError(f"members.{name}: is lossy; expected a lossless method")
        self.sources = tuple(self.members)
        self.rates = AcceptanceRates(len(self.members), self.prior, self.strength)

    @property
    def needs(self) -> Needs:
        """The needs of all members together."""
        needs = [member.needs for member in self.members.values()]
        return Needs(
            node_topk=max(each.node_topk for each in needs), prompt_topk=max(each.prompt_topk for each in needs)
        )

    @property
    def pauses(self) -> bool:
        """False where a member reads hidden states: the steps left out would be a path outside its draft."""
        return super().pauses and not self.needs.hidden

    @property
    def inputs(self) -> tuple[str, ...]:
        """The members' files."""
        return tuple(path for member in self.members.values() for path in member.inputs)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The members' warnings."""
        return tuple(f"{name}: {text}" for name, member in self.members.items() for text in member.warnings)

    def check(self, model: ModelCard) -> None:
        """Check every member."""
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
                "reads a step by its own draft's nodes, and the merged tree has others": needs.hidden or member.by_node,
                "drafts rows for a batch": needs.rows,
                "drafts while the target runs": needs.concurrent,
            }
            for reason, applies in reasons.items():
                if applies:
                    raise InputError(
                        f"members.{name}: {reason}; expected a method that proposes a tree from tokens or top-k"
                    )
        tree = MergedTree([Draft.chain([1, 2])], AcceptanceRates(1, 0.5, 1.0))  # compile, so that no request does
        tree.best(1, 0.0)
        tree.judge([1])

    def reset(self) -> None:
        """Every member forgets, and so do the rates."""
        self.rates.clear()
        for member in self.members.values():
            member.reset()

    def private(self) -> Method | None:
        """Return a hybrid of the members' private copies; None if a member has none."""
        own, members = super().private(), {name: member.private() for name, member in self.members.items()}
        if not isinstance(own, Hybrid) or None in members.values():
            return None
        own.members = {name: member for name, member in members.items() if member is not None}
        return own

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Every member begins, each under its own seed."""
        members = enumerate(self.members.values())
        return _Union(self, [member.begin(prompt, prefill, seed + number) for number, member in members])

    def state_bytes(self) -> int:
        """Bytes of the members' state."""
        return sum(member.state_bytes() for member in self.members.values())

    def close(self) -> None:
        """Close every member."""
        for member in self.members.values():
            member.close()
