"""One run of a report, with what is read from it once: its facts, its variants, its control and its prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specbench.record import CaseRecord
from specbench.report.data.control import Control
from specbench.report.data.facts import Facts
from specbench.report.data.predict import Prediction
from specbench.report.data.shards import MeasuredShard
from specbench.store import Run

Key = tuple[str, str, str, str]
ROW = ("model", "suite", "method", "variant")  # the columns that a Key fills


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """variants: method -> what distinguishes it from the same method in the other runs.

    control: None without an A/A pair. prediction: None where no latency profile was given or found. shards: of a merged
    run.
    """

    run: Run
    facts: Facts
    variants: Mapping[str, str]
    control: Control | None = None
    prediction: Prediction | None = None
    shards: tuple[MeasuredShard, ...] = ()

    @property
    def place(self) -> tuple[str, str]:
        """Model and suite."""
        return self.facts.model, self.facts.suite

    def key(self, method: str) -> Key:
        """Model, suite, method and variant: the names of the method's rows in every table."""
        return (*self.place, method, self.variants.get(method, ""))

    def succeeded(self, method: str) -> list[CaseRecord]:
        """The method's records of cases that failed in no round, as in every other figure."""
        records = [record for record in self.run.records if record.method == method]
        failed = {record.case for record in records if record.status != "ok"}
        return [record for record in records if record.case not in failed]
