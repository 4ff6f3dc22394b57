"""What the judge of losslessness said of some answers, as rows of tables, and how many runs it would so find faulty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binomtest

from specbench.records.record import CaseRecord

ANSWERS, TOKENS = (3, 10, 30), (1_000, 10_000, 30_000, 100_000)
RATE = 1e-4  # of wrong tokens, in the table by tokens
SOUND_HEAD = "other ids than vanilla's | ids | ties | largest gap | violations | close steps"
FOUND_HEAD = f"answers | other ids than vanilla's | found | in 1 answer [95 %] | in {' | '.join(map(str, ANSWERS))}"
RATE_HEAD = f"one in {round(1 / RATE):,} | dtype | found of each | in {' | '.join(f'{n:,}' for n in TOKENS)} tokens"


@dataclass(frozen=True, slots=True)
class Judged:
    """Sums over judged records. parted: with other ids than vanilla's. found: with a violation."""

    answers: int
    parted: int
    found: int
    ids: int
    ties: int
    violations: int
    worst_gap: float
    close_share: float

    @classmethod
    def of(cls, records: Sequence[CaseRecord]) -> Judged:
        """Of records that were all judged."""
        verdicts = [record.lossless for record in records if record.lossless is not None]
        assert len(verdicts) == len(records), "a record was not judged"
        steps = sum(len(turn.accept) for record in records for turn in record.turns)
        return cls(
            len(verdicts),
            sum(not each.equal for each in verdicts),
            sum(each.violations > 0 for each in verdicts),
            sum(each.positions for each in verdicts),
            sum(each.ties for each in verdicts),
            sum(each.violations for each in verdicts),
            max(each.worst_gap for each in verdicts),
            sum(each.close_steps or 0 for each in verdicts) / steps,
        )

    def sound_row(self) -> str:
        """Cells under ``SOUND_HEAD``."""
        return (
            f"{self.parted} of {self.answers} | {self.ids} | {self.ties} | {self.worst_gap:.2g} | {self.violations}"
            f" | {self.close_share:.2%}"
        )

    def found_row(self) -> str:
        """Cells under ``FOUND_HEAD``: the chance that one answer has a violation, by Wilson's interval, and a run."""
        share = self.found / self.answers
        bounds = binomtest(self.found, self.answers).proportion_ci(method="wilson")
        chances = (f"{chance_of_finding(share, answers):.0%}" for answers in ANSWERS)
        return (
            f"{self.answers} | {self.parted} | {self.found} | {share:.0%} [{bounds.low:.0%}, {bounds.high:.0%}]"
            f" | {' | '.join(chances)}"
        )

    def rate_row(self, strikes: int) -> str:
        """Cells under ``RATE_HEAD`` behind the dtype, where each of ``strikes`` wrong tokens was one to find."""
        share = self.violations / strikes
        return f"{share:.0%} | {' | '.join(f'{chance_of_finding(RATE * share, tokens):.0%}' for tokens in TOKENS)}"


def chance_of_finding(share: float, count: int) -> float:
    """That one of ``count`` independent answers, or tokens, is found where each is with the chance ``share``."""
    return 1 - (1 - share) ** count
