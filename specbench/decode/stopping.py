"""When a draft ends: the rules that are asked after each of its levels (``decode.length``).

Every rule is a stopping time: whether a level follows is decided from the levels above it and from earlier steps, never
from a token of that level. A drawn node that is fed is then a sample of its stated distribution, whatever the rule, so
the ratio test and block verification stay exact (Leviathan et al. 2023, theorem 3.5, holds position by position). A
rule that drops the very token that it has looked at does not: what is left of its level is no such sample.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache

import torch

from specbench.method import DraftLevel
from specbench.profile import Profile

Outcome = tuple[int, int]  # levels of a draft, and how many of them were accepted


class Policy:
    """Decides how many levels a draft has. This one never stops."""

    def start(self) -> bool:
        """Whether to draft in this step at all."""
        return True

    def judges(self, level: DraftLevel) -> bool:
        """Whether this is enough to decide by; see ``goes_on``."""
        return True

    def goes_on(self, level: DraftLevel) -> bool:
        """Whether the level below is drafted and fed."""
        return True

    def observe(self, outcomes: Sequence[Outcome], emitted: int, rows: int, drafting_s: float, seconds: float) -> None:
        """A step of all requests. emitted: tokens. rows: of its forward. drafting_s: part of its ``seconds``."""

    def reset(self) -> None:
        """Forget what requests taught."""


class Confidence(Policy):
    """SpecDec++ (Huang et al. 2024, arXiv 2405.19715): stop once some token so far is likely to be rejected.

    The paper trains a head to predict acceptance. DSpark has one; of others the drafter's own probabilities are taken.
    """

    def __init__(self, threshold: float) -> None:
        """threshold: the least probability that all tokens so far are accepted; the paper's h is 1 less this.

        Where a head knows the next one's chance, of these and the next.
        """
        self._threshold = threshold

    def judges(self, level: DraftLevel) -> bool:
        return level.reach is not None

    def goes_on(self, level: DraftLevel) -> bool:
        if level.reach is None:
            return True
        following = 1.0 if level.following is None else float(level.following)
        return float(level.reach) * following >= self._threshold


class AdaEdl(Policy):
    """AdaEDL (Agrawal et al. 2024, arXiv 2410.18351): stop where 1 - sqrt(gamma H) falls below a moving threshold.

    H: entropy of the drafter's distribution [nats]. The threshold rises while fewer drafted tokens are accepted than
    wanted, and falls else, by moving averages as in Draft & Verify (Zhang et al. 2023, arXiv 2309.08168, section 3.3).
    """

    GAMMA, WANTED, STEP, KEEP_RATE, KEEP = 0.2, 0.9, 0.01, 0.5, 0.9

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._rate, self._threshold = self.WANTED, 0.4

    def judges(self, level: DraftLevel) -> bool:
        return level.law is not None

    def goes_on(self, level: DraftLevel) -> bool:
        if level.law is None:
            return True
        return 1 - math.sqrt(self.GAMMA * float(torch.special.entr(level.law.double()).sum())) >= self._threshold

    def observe(self, outcomes: Sequence[Outcome], emitted: int, rows: int, drafting_s: float, seconds: float) -> None:
        for depth, accepted in outcomes:
            if depth:
                self._rate = self.KEEP_RATE * self._rate + (1 - self.KEEP_RATE) * accepted / depth
                wanted = self._threshold + (self.STEP if self._rate <= self.WANTED else -self.STEP)
                self._threshold = self.KEEP * self._threshold + (1 - self.KEEP) * wanted


class Bandit(Policy):
    """A bandit over lengths by upper confidence bounds, as UCBSpec of BanditSpec (Hou et al. 2025, arXiv 2505.15141).

    An arm's reward is what the harness reports: tokens over time of the steps that took it, as a share of the best
    arm's. The paper counts steps; with lengths as arms the longest would always win. Steps are forgotten as in
    discounted UCB (Garivier and Moulines 2011): a step in which a drafter reads a prompt costs many times any other.
    """

    ARMS = (0, 1, 2, 4, 8, 16)  # [levels]
    WIDTH = 0.1  # of the bounds: rewards differ by much less than their range of 1
    MEMORY = 256  # [steps]

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._taken, self._emitted, self._seconds = (dict.fromkeys(self.ARMS, 0.0) for _ in range(3))
        self._arm, self._first = self.ARMS[-1], True

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

    def goes_on(self, level: DraftLevel) -> bool:
        return level.depth < self._arm

    def observe(self, outcomes: Sequence[Outcome], emitted: int, rows: int, drafting_s: float, seconds: float) -> None:
        if self._first:  # of a first step, most is the drafter's prompt
            self._first = False
            return
        for held, now in ((self._taken, 1), (self._emitted, emitted), (self._seconds, seconds)):
            for arm in self.ARMS:
                held[arm] *= 1 - 1 / self.MEMORY
            held[self._arm] += now


class Price(Policy):
    """Stop where the next level costs more than it brings.

    It brings its probability to be accepted: of the path so far, by the drafter, times how often that depth was
    accepted where it was reached, or what a trained head says of it. It costs what a profile says of one level's more
    rows, and the drafting of a level as timed in the run. A second is worth the tokens that it has brought so far.
    """

    AGAIN = 32  # [steps] until a whole draft is asked for, so that deeper levels are seen
    MEMORY = 64  # [steps] that the worth of a second is a mean of
    CONTEXT = 512  # [tokens] at which a forward is priced

    def __init__(self, profile: Profile) -> None:
        self.forward_s = cache(lambda rows: float(profile.step_ms([rows], [self.CONTEXT])[0]) / 1e3)
        self.reset()

    def reset(self) -> None:
        self._tried, self._accepted = Counter[int](), Counter[int]()
        self._emitted, self._seconds = 1.0, self.forward_s(1)
        self._levels = self._rows = self._drafting_s = self._others = 0.0
        self._steps, self._whole = 0, True

    def start(self) -> bool:
        self._whole = self._steps % self.AGAIN == 0
        self._steps += 1
        return self.goes_on(DraftLevel(0, 1.0))

    def goes_on(self, level: DraftLevel) -> bool:
        if self._whole:
            return True
        below, reach = level.depth + 1, level.reach
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
        """That a node of this depth is accepted where its parent is."""
        return (self._accepted[depth] + 1) / (self._tried[depth] + 2)

    def observe(self, outcomes: Sequence[Outcome], emitted: int, rows: int, drafting_s: float, seconds: float) -> None:
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
