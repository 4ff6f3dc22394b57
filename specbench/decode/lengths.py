"""Policies of draft lengths: after each level of a draft, whether another one is worth it (``decode.length``).

A drafter that drafts level by level asks between its forwards (``Drafter.goes_on``); any other draft is cut behind it,
by the same rule. A policy is one of ``Budgets``: under load it acts within ``load.budget``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from specbench.decode.budgets import FullBudget
from specbench.decode.stopping import AdaEdl, Bandit, Confidence, Policy, Price
from specbench.decode.trimming import Budgets, TrimmedDraft, chances_of, cut_draft, find_depths, may_cut
from specbench.method import DraftLevel, GoesOn, Method
from specbench.profile import open_profile
from specbench.types import CaseError, Draft, InputError, Step

FIXED, ADAEDL, CONFIDENCE, BANDIT, PRICE = KINDS = ("fixed", "adaedl", "confidence", "bandit", "price")
Limit = Callable[[Budgets | None], Budgets | None]  # the policy within these budgets


class LengthBudget(FullBudget):
    """A policy within other budgets. Methods that draft beside the target, or batches of rows, keep their lengths."""

    def __init__(self, policy: Policy, inner: Budgets | None = None) -> None:
        self._policy, self._inner = policy, inner or FullBudget()
        self._begun = self._drafting_s = 0.0
        self._drafted = self._judged = False
        self.goes_on: GoesOn | None = self._ask

    @property
    def idle(self) -> bool:
        """Whether there were drafts, and the policy could judge none of them."""
        return self._drafted and not self._judged

    def _ask(self, level: DraftLevel) -> bool:
        self._judged |= self._policy.judges(level)
        return self._policy.goes_on(level)

    def share(self, methods: Sequence[Method], most: int) -> Sequence[int]:
        self._begun = time.perf_counter()
        shares, drafts = self._inner.share(methods, most), self._policy.start()
        return [share if drafts or not _ends(method) else 0 for method, share in zip(methods, shares, strict=True)]

    def trim(self, methods: Sequence[Method], drafts: Sequence[Draft], shares: Sequence[int]) -> Sequence[TrimmedDraft]:
        self._drafting_s = time.perf_counter() - self._begun
        own = [self._cut(method, draft) for method, draft in zip(methods, drafts, strict=True)]
        found = self._inner.trim(methods, [draft for draft, _ in own], shares)
        return [(draft, _joined(kept, last)) for (_, kept), (draft, last) in zip(own, found, strict=True)]

    def _cut(self, method: Method, draft: Draft) -> TrimmedDraft:
        self._drafted |= len(draft) > 0
        if not len(draft) or draft.passenger is not None or isinstance(draft.parents, Tensor) or not _ends(method):
            return draft, None
        depths, chances = find_depths(draft), _chances(draft)
        length, deepest = 1, max(depths)
        while length < deepest and self._ask(_newest(draft, depths, chances, length)):
            length += 1
        kept = [node for node, depth in enumerate(depths) if depth <= length]
        if kept and kept[-1] >= len(kept) and not may_cut(method):  # its rows would have other numbers
            return draft, None
        return cut_draft(draft, kept)

    def observe(self, drafts: Sequence[Draft], steps: Sequence[Step | CaseError], rows: int, seconds: float) -> None:
        self._inner.observe(drafts, steps, rows, seconds)
        good = [(draft, step) for draft, step in zip(drafts, steps, strict=True) if isinstance(step, Step)]
        outcomes = [(_deepest(draft, step), len(step.path)) for draft, step in good]
        emitted = sum(len(step.emitted) for _, step in good)
        self._policy.observe(outcomes, emitted, rows, self._drafting_s, seconds)

    def reset(self) -> None:
        self._inner.reset()
        self._policy.reset()


def _ends(method: Method) -> bool:
    """Whether the length of its drafts is the policy's."""
    needs = method.needs
    return not (needs.concurrent or needs.rows)


def describe_idle(budgets: Mapping[str, Budgets | None], apart: Collection[str]) -> list[str]:
    """A line for each method that no policy acted on. apart: methods with a loop of their own."""
    found: list[str] = []
    for name, each in budgets.items():
        if isinstance(each, LengthBudget) and (name in apart or each.idle):
            why = "it has a loop of its own" if name in apart else "they say nothing that the policy could judge by"
            found.append(f"{name}: decode.length leaves its drafts as they are: {why}")
    return found


def _joined(first: Sequence[int] | None, second: Sequence[int] | None) -> Sequence[int] | None:
    """Which nodes of the whole draft are left when it is cut twice."""
    return second if first is None else first if second is None else [first[node] for node in second]


def _deepest(draft: Draft, step: Step) -> int:
    parents = draft.parents if step.parents is None else step.parents
    return max(find_depths(Draft(draft.tokens, parents)), default=0)


def _chances(draft: Draft) -> Sequence[float] | None:
    """(N,) the drafter's probability of the path down to each node; None where it states none."""
    if draft.score is None and draft.probs is not None:
        tokens = torch.as_tensor(draft.tokens, device=draft.probs.device)[:, None]
        draft = Draft(draft.tokens, draft.parents, score=draft.probs.gather(1, tokens)[:, 0].tolist())
    return None if draft.score is None else chances_of(draft)


def _newest(draft: Draft, depths: Sequence[int], chances: Sequence[float] | None, depth: int) -> DraftLevel:
    """The level of this depth of a whole draft."""
    if chances is None:
        return DraftLevel(depth, drafted=True)
    node = max((node for node, found in enumerate(depths) if found == depth), key=chances.__getitem__)
    return DraftLevel(depth, chances[node], None if draft.probs is None else draft.probs[node], True)


def make_limit(kind: str, threshold: float, profile: str | None) -> Limit:
    """What puts the policy ``kind`` within budgets; a fixed one leaves them as they are. Raises InputError.

    threshold: of ``confidence``. profile: file, or the name of a published fit, for ``price``.
    """
    if kind not in KINDS:
        raise InputError(f"decode.length={kind}: expected one of {', '.join(KINDS)}")
    if not 0 < threshold < 1:
        raise InputError(f"decode.length_threshold={threshold}: expected a probability above 0 and below 1")
    priced = None if profile is None else open_profile(profile)
    if kind == PRICE and priced is None:
        raise InputError(
            f"decode.length_profile={profile}: expected a latency profile with decode.length={PRICE}; specbench profile"
            " writes one"
        )
    if kind == FIXED:
        return lambda inner: inner

    def limit(inner: Budgets | None) -> Budgets:
        policies: dict[str, Callable[[], Policy]] = {
            ADAEDL: AdaEdl,
            CONFIDENCE: lambda: Confidence(threshold),
            BANDIT: Bandit,
        }
        if kind == PRICE and priced is not None:
            return LengthBudget(Price(priced), inner)
        return LengthBudget(policies[kind](), inner)

    return limit
