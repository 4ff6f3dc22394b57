"""What the judge of losslessness said of some answers, as rows of tables, and how many runs it would so find faulty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specbench.record import CaseRecord

ANSWERS, TOKENS = (1, 3, 10, 30), (1_000, 10_000, 30_000, 100_000)
RATE = 1e-4  # of wrong tokens, in the table by tokens
SOUND_HEAD = "other ids than vanilla's | ids | ties | largest gap | violations | close steps"
FOUND_HEAD = f"answers | other ids than vanilla's | found | in {' | '.join(map(str, ANSWERS))} answers"
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
        """Cells under ``FOUND_HEAD``: the chance that a run of so many answers has a violation."""
        chances = (f"{chance_of_finding(self.found, self.answers, drawn):.0%}" for drawn in ANSWERS)
        return f"{self.answers} | {self.parted} | {self.found} | {' | '.join(chances)}"

    def rate_row(self, strikes: int) -> str:
        """Cells under ``RATE_HEAD`` behind the dtype, where each of ``strikes`` wrong tokens was one to find."""
        share = self.violations / strikes
        return f"{share:.0%} | {' | '.join(f'{1 - (1 - RATE * share) ** tokens:.0%}' for tokens in TOKENS)}"


def chance_of_finding(found: int, answers: int, drawn: int) -> float:
    """That ``drawn`` of ``answers``, without replacement and all of them at most, hold one of the ``found``."""
    drawn = min(drawn, answers)
    return 1 - math.comb(answers - found, drawn) / math.comb(answers, drawn)
