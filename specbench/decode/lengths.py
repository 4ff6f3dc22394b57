"""Policies of draft lengths (``decode.length``): after each level of a draft, whether to draft
another one.

A drafter that drafts level by level asks between its forwards (``Drafter.goes_on``); any other
draft is cut afterwards by the same rule. A policy is one of ``Budgets``: under load it acts within
``load.budget``.

Every policy is a stopping time: whether a level follows is decided from the levels above it and
from earlier steps, never from a token of that level. A drawn node that is fed is then a sample of
its stated distribution, whatever the policy, so the ratio test and block verification stay exact
(Leviathan et al. 2023, theorem 3.5, applies to each position). A policy that dropped the very token
that it has looked at would not be exact: the rest of its level is no longer such a sample.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from typing_extensions import override

from specbench.decode.budgets import (
    Budgets,
    TrimmedDraft,
    chances_of,
    cut_draft,
    find_depths,
    may_cut,
)
from specbench.decode.latency import price_rows
from specbench.method import DraftLevel, GoesOn, Method
from specbench.profile import Profile
from specbench.types import CaseError, Draft, InputError, Step

Outcome = tuple[int, int]  # levels of a draft, and how many of them were accepted


class Policy:
    """Decides how many levels a draft has. This one never stops."""

    def start(self) -> bool:
        """Returns whether to draft in this step at all."""
        return True

    def judges(self, level: DraftLevel) -> bool:
        """Returns whether the data suffice to decide; see ``goes_on``."""
        return True

    def goes_on(self, level: DraftLevel) -> bool:
        """Returns whether the level below is drafted and fed."""
        return True

    def observe(
        self,
        outcomes: Sequence[Outcome],
        emitted: int,
        rows: int,
        drafting_s: float,
        seconds: float,
    ) -> None:
        """A step of all requests. emitted: tokens. rows: of its forward. drafting_s: part of its
        ``seconds``.
        """

    def reset(self) -> None:
        """Forget what requests taught."""


class Confidence(Policy):
    """SpecDec++ (Huang et al. 2024, arXiv 2405.19715): stop once some token so far is likely to be
    rejected.

    The paper trains a head to predict acceptance. DSpark has one; of others the drafter's own
    probabilities are taken.
    """

    def __init__(self, threshold: float) -> None:
        """threshold: the least probability that all tokens so far are accepted; the paper's h is 1
        less this.

        Where a head knows the next one's chance, of these and the next.
        """
        self._threshold = threshold

    @override
    def judges(self, level: DraftLevel) -> bool:
        return level.probability is not None

    @override
    def goes_on(self, level: DraftLevel) -> bool:
        if level.probability is None:
            return True
        following = 1.0 if level.following is None else float(level.following)
        return float(level.probability) * following >= self._threshold


class AdaEdl(Policy):
    """AdaEDL (Agrawal et al. 2024, arXiv 2410.18351): stop where 1 - sqrt(gamma H) falls below a
    moving threshold.

    H: entropy of the drafter's distribution [nats]. The threshold rises while fewer drafted tokens
    are accepted than wanted, and falls else, by moving averages as in Draft & Verify (Zhang et al.
    2023, arXiv 2309.08168, section 3.3).
    """

    GAMMA, WANTED, STEP, KEEP_RATE, KEEP = 0.2, 0.9, 0.01, 0.5, 0.9

    def __init__(self) -> None:
        self.reset()

    @override
    def reset(self) -> None:
        self._rate, self._threshold = self.WANTED, 0.4

    @override
    def judges(self, level: DraftLevel) -> bool:
        return level.distribution is not None

    @override
    def goes_on(self, level: DraftLevel) -> bool:
        if level.distribution is None:
            return True
        entropy = float(torch.special.entr(level.distribution.double()).sum())
        return 1 - math.sqrt(self.GAMMA * entropy) >= self._threshold

    @override
    def observe(
        self,
        outcomes: Sequence[Outcome],
        emitted: int,
        rows: int,
        drafting_s: float,
        seconds: float,
    ) -> None:
        for depth, accepted in outcomes:
            if depth:
                self._rate = self.KEEP_RATE * self._rate + (1 - self.KEEP_RATE) * accepted / depth
                wanted = self._threshold + (self.STEP if self._rate <= self.WANTED else -self.STEP)
                self._threshold = self.KEEP * self._threshold + (1 - self.KEEP) * wanted


class Bandit(Policy):
    """A bandit over lengths by upper confidence bounds, as UCBSpec of BanditSpec (Hou et al. 2025,
    arXiv 2505.15141).

    An arm's reward is what the harness reports: tokens over time of the steps that took it, as a
    share of the best arm's. The paper counts steps; with lengths as arms the longest would always
    win. Steps are forgotten as in discounted UCB (Garivier and Moulines 2011): a step in which a
    drafter reads a prompt costs many times any other.
    """

    ARMS = (0, 1, 2, 4, 8, 16)  # [levels]
    WIDTH = 0.1  # of the bounds: rewards differ by much less than their range of 1
    MEMORY = 256  # [steps]

    def __init__(self) -> None:
        self.reset()

    @override
    def reset(self) -> None:
        self._taken, self._emitted, self._seconds = (
            dict.fromkeys(self.ARMS, 0.0) for _ in range(3)
        )
        self._arm, self._first = self.ARMS[-1], True

    @override
    def start(self) -> bool:
        untried = [arm for arm in self.ARMS if not self._taken[arm]]
        self._arm = untried[-1] if untried else self._best()
        return self._arm > 0

    def _best(self) -> int:
        rates = {arm: self._emitted[arm] / max(self._seconds[arm], 1e-9) for arm in self.ARMS}
        top, steps = max(rates.values()), math.log(max(1.0, sum(self._taken.values())))

        def bound(arm: int) -> float:
            return rates[arm] / top + self.WIDTH * math.sqrt(2 * steps / self._taken[arm])

        return max(self.ARMS, key=bound)

    @override
    def goes_on(self, level: DraftLevel) -> bool:
        return level.depth < self._arm

    @override
    def observe(
        self,
        outcomes: Sequence[Outcome],
        emitted: int,
        rows: int,
        drafting_s: float,
        seconds: float,
    ) -> None:
        if self._first:  # of a first step, most is the drafter's prompt
            self._first = False
            return
        for means, now in ((self._taken, 1), (self._emitted, emitted), (self._seconds, seconds)):
            for arm in self.ARMS:
                means[arm] *= 1 - 1 / self.MEMORY
            means[self._arm] += now


class Price(Policy):
    """Stop where the next level costs more than it brings.

    It brings its probability to be accepted: of the path so far, by the drafter, times how often
    that depth was accepted where it was reached, or a trained head's prediction of that. Its cost
    is the profile's time for the additional rows of one level, and the drafting of a level as timed
    in the run. A second is worth the tokens that it has brought so far.
    """

    AGAIN = 32  # [steps] until a whole draft is asked for, so that deeper levels are seen
    MEMORY = 64  # [steps] that the worth of a second is a mean of

    def __init__(self, profile: Profile) -> None:
        self.forward_s = price_rows(profile)
        self.reset()

    @override
    def reset(self) -> None:
        self._tried, self._accepted = Counter[int](), Counter[int]()
        self._emitted, self._seconds = 1.0, self.forward_s(1)
        self._levels = self._rows = self._drafting_s = self._others = 0.0
        self._steps, self._whole = 0, True

    @override
    def start(self) -> bool:
        self._whole = self._steps % self.AGAIN == 0
        self._steps += 1
        return self.goes_on(DraftLevel(0, 1.0))

    @override
    def goes_on(self, level: DraftLevel) -> bool:
        if self._whole:
            return True
        below, reach = level.depth + 1, level.probability
        if reach is None:
            reach = math.prod(map(self._chance, range(1, below)))
        following = self._chance(below) if level.following is None else float(level.following)
        width = self._rows / self._levels if self._levels else 1.0
        before = round(self._others + 1 + width * level.depth)
        cost_s = self.forward_s(before + max(1, round(width))) - self.forward_s(before)
        if not level.drafted and self._levels:
            cost_s += self._drafting_s / self._levels
        return float(reach) * following > cost_s * self._emitted / self._seconds

    def _chance(self, depth: int) -> float:
        """Return the probability that a node of this depth is accepted if its parent is."""
        return (self._accepted[depth] + 1) / (self._tried[depth] + 2)

    @override
    def observe(
        self,
        outcomes: Sequence[Outcome],
        emitted: int,
        rows: int,
        drafting_s: float,
        seconds: float,
    ) -> None:
        keep = 1 - 1 / self.MEMORY
        self._emitted = keep * self._emitted + emitted
        self._seconds = keep * self._seconds + self.forward_s(rows) + drafting_s
        self._others = rows * (1 - 1 / max(1, len(outcomes)))
        drafted = sum(depth for depth, _ in outcomes)
        if drafted:
            self._levels = keep * self._levels + drafted
            self._rows = keep * self._rows + rows - len(outcomes)
            self._drafting_s = keep * self._drafting_s + drafting_s
        for depth, accepted in outcomes:
            self._tried.update(range(1, min(depth, accepted + 1) + 1))
            self._accepted.update(range(1, min(depth, accepted) + 1))


FIXED, ADAEDL, CONFIDENCE, BANDIT, PRICE = KINDS = (
    "fixed",
    "adaedl",
    "confidence",
    "bandit",
    "price",
)
# the policy within budgets, by a profile of steps
Limit = Callable[[Budgets | None, Profile | None], Budgets | None]


class LengthBudget(Budgets):
    """A policy of draft lengths within other budgets; it leaves concurrent drafters and batches of
    rows unchanged.
    """

    cuts = True

    def __init__(self, policy: Policy, inner: Budgets | None = None) -> None:
        self._policy, self._inner = policy, inner or Budgets()
        self._begun = self._drafting_s = 0.0
        self._drafted = self._judged = False
        self.goes_on: GoesOn | None = self._ask

    @property
    def idle(self) -> bool:
        """Whether there were drafts, and the policy could decide on none of them."""
        return self._drafted and not self._judged

    def _ask(self, level: DraftLevel) -> bool:
        self._judged |= self._policy.judges(level)
        return self._policy.goes_on(level)

    @override
    def share(self, methods: Sequence[Method], most: int) -> Sequence[int]:
        self._begun = time.perf_counter()
        shares, drafts = self._inner.share(methods, most), self._policy.start()
        return [
            share if drafts or not _ends(method) else 0
            for method, share in zip(methods, shares, strict=True)
        ]

    @override
    def trim(
        self, methods: Sequence[Method], drafts: Sequence[Draft], shares: Sequence[int]
    ) -> Sequence[TrimmedDraft]:
        self._drafting_s = time.perf_counter() - self._begun
        own = [self._cut(method, draft) for method, draft in zip(methods, drafts, strict=True)]
        found = self._inner.trim(methods, [draft for draft, _ in own], shares)
        return [
            (draft, _joined(kept, last))
            for (_, kept), (draft, last) in zip(own, found, strict=True)
        ]

    def _cut(self, method: Method, draft: Draft) -> TrimmedDraft:
        self._drafted |= len(draft) > 0
        if (
            not len(draft)
            or draft.passenger is not None
            or isinstance(draft.parents, Tensor)
            or not _ends(method)
        ):
            return draft, None
        depths, chances = find_depths(draft), _chances(draft)
        length, deepest = 1, max(depths)
        while length < deepest and self._ask(_newest(draft, depths, chances, length)):
            length += 1
        kept = [node for node, depth in enumerate(depths) if depth <= length]
        # its rows would have other numbers
        if kept and kept[-1] >= len(kept) and not may_cut(method):
            return draft, None
        return cut_draft(draft, kept)

    @override
    def observe(
        self, drafts: Sequence[Draft], steps: Sequence[Step | CaseError], rows: int, seconds: float
    ) -> None:
        self._inner.observe(drafts, steps, rows, seconds)
        good = [
            (draft, step)
            for draft, step in zip(drafts, steps, strict=True)
            if isinstance(step, Step)
        ]
        outcomes = [(_deepest(draft, step), len(step.path)) for draft, step in good]
        emitted = sum(len(step.emitted) for _, step in good)
        self._policy.observe(outcomes, emitted, rows, self._drafting_s, seconds)

    @override
    def reset(self) -> None:
        self._inner.reset()
        self._policy.reset()


def _ends(method: Method) -> bool:
    """Returns whether the policy sets the length of its drafts."""
    needs = method.needs
    return not (needs.concurrent or needs.rows)


def describe_idle(budgets: Mapping[str, Budgets | None], apart: Collection[str]) -> list[str]:
    """Return a line for each method that no policy acted on. apart: methods with their own
    loops.
    """
    found: list[str] = []
    for name, each in budgets.items():
        if isinstance(each, LengthBudget) and (name in apart or each.idle):
            why = (
                "it has a loop of its own"
                if name in apart
                else "they say nothing that the policy could judge by"
            )
            found.append(f"{name}: decode.length leaves its drafts unchanged: {why}")
    return found


def _joined(first: Sequence[int] | None, second: Sequence[int] | None) -> Sequence[int] | None:
    """Return the nodes of the complete draft that remain when it is cut twice."""
    return (
        second if first is None else first if second is None else [first[node] for node in second]
    )


def _deepest(draft: Draft, step: Step) -> int:
    parents = draft.parents if step.parents is None else step.parents
    return max(find_depths(Draft(draft.tokens, parents)), default=0)


def _chances(draft: Draft) -> Sequence[float] | None:
    """(N,) the drafter's probability of the path down to each node; None where it states none."""
    if draft.score is None and draft.probs is not None:
        tokens = torch.as_tensor(draft.tokens, device=draft.probs.device)[:, None]
        draft = Draft(
            draft.tokens, draft.parents, score=draft.probs.gather(1, tokens)[:, 0].tolist()
        )
    return None if draft.score is None else chances_of(draft)


def _newest(
    draft: Draft, depths: Sequence[int], chances: Sequence[float] | None, depth: int
) -> DraftLevel:
    """The level of this depth of a whole draft."""
    if chances is None:
        return DraftLevel(depth, drafted=True)
    node = max(
        (node for node, found in enumerate(depths) if found == depth), key=chances.__getitem__
    )
    return DraftLevel(
        depth, chances[node], None if draft.probs is None else draft.probs[node], True
    )


def make_limit(kind: str, threshold: float) -> Limit:
    """Return a function that adds the policy ``kind`` to budgets; ``fixed`` leaves them unchanged.
    Raises InputError.

    threshold: of ``confidence``. The function takes the budgets, and the profile of steps that
    ``price`` needs.
    """
    if kind not in KINDS:
        raise InputError(f"decode.length={kind}: expected one of {', '.join(KINDS)}")
    if not 0 < threshold < 1:
        raise InputError(
            f"decode.length_threshold={threshold}: expected a probability above 0 and below 1"
        )
    if kind == FIXED:
        return lambda inner, _: inner
    policies: dict[str, Callable[[Profile | None], Policy]] = {
        ADAEDL: lambda _: AdaEdl(),
        CONFIDENCE: lambda _: Confidence(threshold),
        BANDIT: lambda _: Bandit(),
        PRICE: lambda profile: Price(cast(Profile, profile)),
    }
    return lambda inner, profile: LengthBudget(policies[kind](profile), inner)
