"""Budgets of nodes (``load.budget``): how much each of several requests drafts, and which nodes of
drafts are fed.

Every node costs all requests of a forward. ``equal`` gives each request the same share; ``score``
feeds the nodes that are most likely accepted, of any request; ``controlled`` measures the
throughput of several budgets under the current load and takes the best one, so that drafting is
reduced and turned off as load rises. While it is off, a step is vanilla's, and trying budgets costs
a hundredth of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor
from typing_extensions import override

from specbench.method import GoesOn, Method
from specbench.models.tree import compute_depths
from specbench.types import ROOT, CaseError, Draft, Step

TrimmedDraft = tuple[
    Draft, Sequence[int] | None
]  # the draft as fed, and its nodes' numbers in the whole one, None = all


class Budgets:
    """The limits of what each request may draft. This base class lets every request draft what its
    method wants.

    goes_on: the question that drafters ask between two levels of a draft; None = they do not ask.
    cuts: whether ``trim`` may cut a draft.
    """

    goes_on: GoesOn | None = None
    cuts = False

    def share(self, methods: Sequence[Method], most: int) -> Sequence[int]:
        """Return the number of nodes that each request may draft.

        Args:
            methods: of the requests. A request with a share of 0 does not draft if its method
                ``pauses``.
            most: [nodes] the engine's limit.
        """
        return [most] * len(methods)

    def trim(
        self, methods: Sequence[Method], drafts: Sequence[Draft], shares: Sequence[int]
    ) -> Sequence[TrimmedDraft]:
        """Return the part of each draft that is fed."""
        return [(draft, None) for draft in drafts]

    def observe(
        self, drafts: Sequence[Draft], steps: Sequence[Step | CaseError], rows: int, seconds: float
    ) -> None:
        """Learn from a step. drafts: as fed. rows: of the forward. seconds: of the whole step."""

    def reset(self) -> None:
        """Forget what was learned from requests, as a method does."""


def may_cut(method: Method) -> bool:
    """Returns whether only the accepted path of its drafts is read."""
    needs = method.needs
    return not (needs.hidden or needs.node_topk or needs.rows or needs.concurrent or method.by_node)


def find_depths(draft: Draft) -> list[int]:
    """(N,) of its nodes, 1 = child of the root."""
    return compute_depths([*map(int, draft.parents)])


def chances_of(draft: Draft, rate: Callable[[int], float] = lambda _: 0.5) -> list[float]:
    """(N,) that a node is accepted: its score, or that of its depth shared with its siblings, times
    its parent's.

    rate: depth -> how often nodes of that depth are accepted where their parent is.
    """
    depths, siblings = find_depths(draft), Counter(int(parent) for parent in draft.parents)
    found: list[float] = []
    for node, parent in enumerate(map(int, draft.parents)):
        own = (
            rate(depths[node]) / siblings[parent]
            if draft.score is None
            else float(draft.score[node])
        )
        found.append(own * (1.0 if parent == ROOT else found[parent]))
    return found


def keep_likeliest(chances: Sequence[Sequence[float]], nodes: int) -> list[list[int]]:
    """The nodes of each draft that are among the likeliest of all; a parent comes before its
    children.
    """
    flat = np.array([chance for own in chances for chance in own])
    owners = np.repeat(np.arange(len(chances)), [len(own) for own in chances])
    firsts = np.cumsum([0, *(len(own) for own in chances)])
    chosen = np.sort(np.argsort(-flat, kind="stable")[:nodes])
    return [
        (chosen[owners[chosen] == place] - firsts[place]).tolist() for place in range(len(chances))
    ]


def cut_draft(draft: Draft, nodes: Sequence[int]) -> TrimmedDraft:
    """The draft of these nodes alone, and their numbers in the whole one."""
    if len(nodes) == len(draft):
        return draft, None
    place = {ROOT: ROOT} | {node: number for number, node in enumerate(nodes)}
    parents = [place[int(draft.parents[node])] for node in nodes]
    tokens = (
        draft.tokens[list(nodes)]
        if isinstance(draft.tokens, Tensor)
        else [draft.tokens[node] for node in nodes]
    )
    kept: dict[str, Any] = {
        name: [values[node] for node in nodes]
        for name in ("passenger", "source", "score")
        if (values := getattr(draft, name)) is not None
    }
    probs = None if draft.probs is None else draft.probs[list(nodes)]
    return replace(draft, tokens=tokens, parents=parents, probs=probs, **kept), nodes


def in_whole_draft(step: Step, kept: Sequence[int] | None) -> Step:
    """A step as the drafter sees it: its path in the draft that was proposed."""
    return step if kept is None else replace(step, path=tuple(kept[node] for node in step.path))


# [nodes] a request that the controller chooses among; None = all that the method wants
LEVELS = (0, 2, 8, 32, None)
PROBE = 4  # [steps] that a level is tried for
KEPT = 0.5  # weight of a level's earlier steps when it is tried again
AGAIN, LATEST = 32, 4096  # [steps] until a level that lost is tried again, doubled each time
# of the best rate: above it, not to draft waits no longer; below, at most [steps]
NEARLY, LATEST_OFF = 0.93, 128
# of the best rate: a level below it waits four times as long, and larger budgets are not tried
CLEARLY = 0.8
MEMORY = 64  # [steps] that a level's rate is a mean of
MARGIN = 1.04  # by which drafting must be ahead of not drafting
SHARE = 0.01  # of the time, that trying levels may cost


class _Shares(Budgets):
    """Cuts a draft that is larger than its share, such as one of a fixed tree."""

    cuts = True

    @override
    def trim(
        self, methods: Sequence[Method], drafts: Sequence[Draft], shares: Sequence[int]
    ) -> Sequence[TrimmedDraft]:
        return [
            cut_draft(draft, keep_likeliest([chances_of(draft)], share)[0])
            if len(draft) > share
            else (draft, None)
            for draft, share in zip(drafts, shares, strict=True)
        ]


class EqualBudget(_Shares):
    """The same share of ``nodes``, those of a forward, for each."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    @override
    def share(self, methods: Sequence[Method], most: int) -> Sequence[int]:
        share, rest = divmod(self._nodes, len(methods))
        return [min(most, share + (place < rest)) for place in range(len(methods))]


class ScoreBudget(EqualBudget):
    """The likeliest ``nodes`` of all drafts: by ``Draft.score``, and how often nodes of that depth
    were accepted.

    A draft that is drawn, or read by the rows of its nodes, keeps to an equal share.
    """

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self._tried: Counter[int] = Counter()
        self._accepted: Counter[int] = Counter()

    @override
    def share(self, methods: Sequence[Method], most: int) -> Sequence[int]:
        equal = super().share(methods, most)
        return [
            most if may_cut(method) else share for method, share in zip(methods, equal, strict=True)
        ]

    @override
    def trim(
        self, methods: Sequence[Method], drafts: Sequence[Draft], shares: Sequence[int]
    ) -> Sequence[TrimmedDraft]:
        free = [
            place
            for place, method in enumerate(methods)
            if may_cut(method) and drafts[place].probs is None
        ]
        fixed = sum(len(draft) for place, draft in enumerate(drafts) if place not in free)
        kept = keep_likeliest(
            [self._chances(drafts[place]) for place in free], max(0, self._nodes - fixed)
        )
        found: list[TrimmedDraft] = [(draft, None) for draft in drafts]
        for place, nodes in zip(free, kept, strict=True):
            found[place] = cut_draft(drafts[place], nodes)
        return found

    @override
    def observe(
        self, drafts: Sequence[Draft], steps: Sequence[Step | CaseError], rows: int, seconds: float
    ) -> None:
        for draft, step in zip(drafts, steps, strict=True):
            if isinstance(step, Step) and len(draft):
                reached = len(step.path)
                self._accepted.update(range(1, reached + 1))
                self._tried.update(
                    range(1, min(reached + 1, max(find_depths(draft), default=0)) + 1)
                )

    def _chances(self, draft: Draft) -> list[float]:
        return chances_of(
            draft, lambda depth: (self._accepted[depth] + 1) / (self._tried[depth] + 2)
        )


@dataclass(slots=True)
class _Level:
    """One number of nodes, as measured. emitted, seconds: tokens and time of the last steps."""

    emitted: float = 0.0
    seconds: float = 0.0
    due: int = 0  # the step at which it is tried again
    wait: int = AGAIN  # [steps] until the time after that

    @property
    def rate(self) -> float:
        """The throughput [tokens/s]."""
        return self.emitted / self.seconds if self.seconds else 0.0

    def add(self, emitted: int, seconds: float) -> None:
        """Enter a step into the running means."""
        keep = 1 - 1 / MEMORY
        self.emitted, self.seconds = keep * self.emitted + emitted, keep * self.seconds + seconds


class Controller(_Shares):
    """Takes the number of nodes per request (the level) with the most tokens per second, as
    measured at this load.

    A level that loses is tried again after a wait that doubles, and only while all trials together
    have cost less than ``SHARE`` of the time. The level without drafts is tried again after a
    constant wait if its rate is near the best: times of a machine drift, and only those of
    neighbouring steps compare. A trial ends early if it clearly loses. A new load begins with the
    best level of the nearest known load.
    """

    def __init__(self) -> None:
        self._levels: dict[int, list[_Level]] = {}
        self._usual: dict[int, int] = {}  # of each load the level last taken for the best
        self._steps: Counter[int] = Counter()
        self._load = self._tried = self._left = 0
        self._total = self._lost = 0.0  # [s] of all steps; that trying has cost
        self._resumes = False  # drafting begins again with this step
        self._first = True  # until the levels of the first load are tried, trials may cost any time

    @override
    def share(self, methods: Sequence[Method], most: int) -> Sequence[int]:
        load = len(methods).bit_length()
        if load != self._load:
            if load not in self._levels:
                self._levels[load] = [_Level() for _ in LEVELS]
                near = min(self._usual, key=lambda known: abs(known - load), default=load)
                self._usual[load] = self._usual.get(near, 0)
            self._load, self._left = load, 0
        levels = self._levels[load]
        if not self._left:
            before = self._tried
            self._tried, self._left = self._choose(levels, self._steps[load])
            self._resumes = before == 0 != self._tried
        nodes = LEVELS[self._tried]
        return [most if nodes is None else min(most, nodes)] * len(methods)

    def _choose(self, levels: Sequence[_Level], now: int) -> tuple[int, int]:
        """(level, steps to stay at it): one that is due, else the best. Above a budget that clearly
        loses none is.
        """
        best = self._usual[self._load] = self._best(levels)
        if self._first or self._lost <= SHARE * self._total:
            for place, level in enumerate(levels):
                if place > 1 and levels[place - 1].rate < CLEARLY * levels[best].rate:
                    break
                if level.due <= now and not (level.seconds and place == best):
                    level.emitted, level.seconds = KEPT * level.emitted, KEPT * level.seconds
                    return place, PROBE
            self._first = False
        return best, 1

    def _best(self, levels: Sequence[_Level]) -> int:
        """Not to draft, unless drafting is ahead of it by more than a little."""
        if not any(level.seconds for level in levels):
            return self._usual[self._load]
        place = max(range(len(levels)), key=lambda each: levels[each].rate)
        return place if levels[place].rate > MARGIN * levels[0].rate else 0

    @override
    def observe(
        self, drafts: Sequence[Draft], steps: Sequence[Step | CaseError], rows: int, seconds: float
    ) -> None:
        levels, level = self._levels[self._load], self._levels[self._load][self._tried]
        emitted = sum(len(step.emitted) for step in steps if isinstance(step, Step))
        best = levels[self._usual[self._load]]
        self._total += seconds
        if level is not best and best.rate:
            self._lost += max(0.0, seconds - emitted / best.rate)
        if self._resumes:  # drafters caught up: no step of this level
            self._resumes = False
            return
        level.add(emitted, seconds)
        self._steps[self._load] += 1
        self._left -= 1
        if level is not best and self._left < PROBE - 1 and level.rate < CLEARLY * best.rate:
            self._left = 0
        if self._left == 0 and level.due <= self._steps[self._load]:
            longer = 4 if level.rate < CLEARLY * best.rate else 2
            latest = (
                LATEST
                if level is not levels[0]
                else AGAIN
                if level.rate > NEARLY * best.rate
                else LATEST_OFF
            )
            level.wait = AGAIN if level is best else min(latest, level.wait * longer)
            level.due = self._steps[self._load] + level.wait


def make_budgets(kind: str, nodes: int) -> Budgets:
    """The budgets of ``load.budget``. nodes: of a forward, for those that share them."""
    if kind == "controlled":
        return Controller()
    return (
        Budgets()
        if kind == "full"
        else EqualBudget(nodes)
        if kind == "equal"
        else ScoreBudget(nodes)
    )
