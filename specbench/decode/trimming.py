"""Which nodes of a draft are fed: the interface of budgets and policies, and what cuts a draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from specbench.method import GoesOn, Method
from specbench.types import ROOT, CaseError, Draft, Step

TrimmedDraft = tuple[Draft, Sequence[int] | None]  # and which nodes of the whole draft these are, None = all


class Budgets(Protocol):
    """How many nodes each request may draft. goes_on: what its drafters ask between two levels, None = nothing."""

    goes_on: GoesOn | None

    def share(self, methods: Sequence[Method], most: int) -> Sequence[int]:
        """A number for each request, given by its method. most: of an engine.

        Under load none are asked of a request with 0, where its method ``pauses``.
        """

    def trim(self, methods: Sequence[Method], drafts: Sequence[Draft], shares: Sequence[int]) -> Sequence[TrimmedDraft]:
        """What is fed of the drafts."""

    def observe(self, drafts: Sequence[Draft], steps: Sequence[Step | CaseError], rows: int, seconds: float) -> None:
        """A step's outcome. drafts: as fed. rows: of the forward. seconds: of the whole step."""

    def reset(self) -> None:
        """Forget what was learned from requests, as a method does."""


def may_cut(method: Method) -> bool:
    """Whether nothing but the accepted path of its drafts is read."""
    needs = method.needs
    return not (needs.hidden or needs.node_topk or needs.rows or needs.concurrent or method.by_node)


def find_depths(draft: Draft) -> list[int]:
    """(N,) of its nodes, 1 = child of the root."""
    depths: list[int] = []
    for parent in draft.parents:
        depths.append(1 if int(parent) == ROOT else depths[int(parent)] + 1)
    return depths


def chances_of(draft: Draft, rate: Callable[[int], float] = lambda _: 0.5) -> list[float]:
    """(N,) that a node is accepted: its score, or that of its depth shared with its siblings, times its parent's.

    rate: depth -> how often nodes of that depth are accepted where their parent is.
    """
    depths, siblings = find_depths(draft), Counter(int(parent) for parent in draft.parents)
    found: list[float] = []
    for node, parent in enumerate(map(int, draft.parents)):
        own = rate(depths[node]) / siblings[parent] if draft.score is None else float(draft.score[node])
        found.append(own * (1.0 if parent == ROOT else found[parent]))
    return found


def keep_likeliest(chances: Sequence[Sequence[float]], nodes: int) -> list[list[int]]:
    """The nodes of each draft that are among the likeliest of all; a parent comes before its children."""
    flat = np.array([chance for own in chances for chance in own])
    owners = np.repeat(np.arange(len(chances)), [len(own) for own in chances])
    firsts = np.cumsum([0, *(len(own) for own in chances)])
    chosen = np.sort(np.argsort(-flat, kind="stable")[:nodes])
    return [(chosen[owners[chosen] == place] - firsts[place]).tolist() for place in range(len(chances))]


def cut_draft(draft: Draft, nodes: Sequence[int]) -> TrimmedDraft:
    """The draft of these nodes alone, and their numbers in the whole one."""
    if len(nodes) == len(draft):
        return draft, None
    place = {ROOT: ROOT} | {node: number for number, node in enumerate(nodes)}
    parents = [place[int(draft.parents[node])] for node in nodes]
    tokens = draft.tokens[list(nodes)] if isinstance(draft.tokens, Tensor) else [draft.tokens[node] for node in nodes]
    kept: dict[str, Any] = {
        name: [held[node] for node in nodes]
        for name in ("passenger", "source", "score")
        if (held := getattr(draft, name)) is not None
    }
    probs = None if draft.probs is None else draft.probs[list(nodes)]
    return replace(draft, tokens=tokens, parents=parents, probs=probs, **kept), nodes


def in_whole_draft(step: Step, kept: Sequence[int] | None) -> Step:
    """A step as the drafter sees it: its path in the draft that was proposed."""
    return step if kept is None else replace(step, path=tuple(kept[node] for node in step.path))
