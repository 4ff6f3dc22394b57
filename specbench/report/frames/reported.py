"""One run of a report, with what is read from it once: its facts, its variants, its control and its prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specbench.records.record import CaseRecord
from specbench.records.store import Run
from specbench.report.frames.control import Control
from specbench.report.frames.facts import Facts
from specbench.report.frames.predict import Prediction
from specbench.report.frames.shards import MeasuredShard
from specbench.report.frames.trials import Trials

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


def of_least_load(entries: Sequence[ReportedRun], place: tuple[str, str]) -> list[ReportedRun]:
    """The runs with the least load of a model and suite: methods are compared with each other under one load."""
    here = [entry for entry in entries if entry.place == place]
    loads = [(entry.facts.load.get("requests", 1), entry.facts.load.get("rate") or 0) for entry in here]
    return [entry for entry, load in zip(here, loads, strict=True) if load == min(loads)]


def keys_of(entries: Sequence[ReportedRun]) -> set[tuple[str, str]]:
    """(method, variant) of the runs."""
    return {(name, entry.variants.get(name, "")) for entry in entries for name in entry.facts.methods}


def only(frame: pd.DataFrame, keys: set[tuple[str, str]]) -> pd.DataFrame:
    """A frame's rows of these methods; the whole frame where it does not say which row is whose."""
    if not {"method", "variant"} <= set(frame.columns):
        return frame
    named = zip(frame["method"], frame["variant"], strict=True)
    return frame[np.fromiter((key in keys for key in named), bool, len(frame))]
