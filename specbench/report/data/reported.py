"""One run of a report, with what is read from it once: its facts, its variants, its control and its prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specbench.record import CaseRecord
from specbench.report.data.control import Control
from specbench.report.data.facts import Facts
from specbench.report.data.predict import Prediction
from specbench.report.data.shards import MeasuredShard
from specbench.report.data.trials import Trials
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
    trials: Trials
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

    def records(self, method: str) -> Iterator[CaseRecord]:
        """The method's records, read again where the run does not hold them."""
        return (self.run.records[place] for place in self.trials.columns(method)["record"].tolist())

    def succeeded(self, method: str) -> list[CaseRecord]:
        """Those of cases that failed in no round, as in every other figure."""
        counted = self.trials.columns(method)["counted"]
        return [record for record, good in zip(self.records(method), counted, strict=True) if good]
