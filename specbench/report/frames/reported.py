"""One run of a report with what is read from it once, the warnings about it, and remarks on runs side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from specbench.records.record import OVERALL, VANILLA, CaseRecord
from specbench.records.store import Run
from specbench.report.frames.control import Control, MeasuredShard, doubt_shards
from specbench.report.frames.facts import TIME_ONLY, Facts, read_device
from specbench.report.frames.predict import Prediction
from specbench.report.frames.trials import Trials
from specbench.report.label import label
from specbench.stats import MIN_CASES

Key = tuple[str, str, str, str]


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


def find_doubts(reported: ReportedRun, rows: pd.DataFrame) -> list[str]:
    """Warnings of one run, the manifest's first. rows: the run's rows of the summary."""
    run, facts = reported.run, reported.facts
    overall = rows[rows["category"] == OVERALL]
    found = [
        *run.manifest.get("warnings", []),
        *_coverage(len(reported.trials.cases), facts, overall),
        *_methods(overall, facts),
        *_thinking(reported),
        *_timing(run, facts, overall, reported.control),
        *doubt_shards(reported.shards),
        *_predictions(reported),
    ]
    return list(dict.fromkeys(found))


def _coverage(seen: int, facts: Facts, overall: pd.DataFrame) -> Iterator[str]:
    if not seen:
        yield "no records: no case has finished yet"
    elif facts.planned and seen < facts.planned:
        yield f"unfinished: {seen} of {facts.planned} cases are recorded; the same command continues the run"
    if VANILLA not in set(overall["method"]) and seen and not facts.later:
        yield "vanilla has no records: there is no speedup"
    if facts.later:
        yield f"{', '.join(facts.methods)}: added to the run later, compared with the vanilla that ran with them"
    if 0 < seen < MIN_CASES:
        yield f"{seen} case{'s' if seen > 1 else ''}: no intervals are given under {MIN_CASES}"


def _methods(overall: pd.DataFrame, facts: Facts) -> Iterator[str]:
    for row in overall.itertuples():
        name = label(row.method, row.variant)
        total = row.cases + row.errors
        if row.errors:
            yield f"{name}: {row.errors} of {total} cases failed and are in none of its figures (see Errors)"
        if row.method == VANILLA and row.close_steps > 0:
            yield (
                f"{100 * row.close_steps:.2g} % of vanilla's steps are decided within a rounding step of {facts.dtype}:"
                " answers and MAT can differ on another engine, device or version"
            )
        if row.method == VANILLA and row.violations > 0:
            yield f"{name}: {int(row.violations)} ids beyond the tolerance: its own rounding exceeds it"
        elif row.lossless < 1 and row.method not in facts.lossy:
            beyond = f"{int(row.violations)} ids lie beyond the tolerance of lossless output"
            unjudged = "outputs that differ from vanilla's were not judged (measure.lossless=true judges them)"
            yield f"{name}: {beyond if int(row.violations) else unjudged}"


def _thinking(reported: ReportedRun) -> Iterator[str]:
    turns = [each.turns for each in reported.trials.methods.values()]
    if lacking := sum(each.unanswered for each in turns):
        yield (
            f"{lacking} of {sum(each.thought for each in turns)} turns that think end before their thinking does and"
            " have no answer (decode.max_new_tokens sets how long they may be)"
        )


def _timing(run: Run, facts: Facts, overall: pd.DataFrame, control: Control | None) -> Iterator[str]:
    if not facts.timed:
        yield (
            "replayed target: MAT, acceptance, tokens fed and the drafters' own time are real; no model was run, so"
            " its times and every speedup stay blank"
        )
        return
    if facts.time_only:
        yield (
            f"{TIME_ONLY}: the model's forwards are real and follow recorded answers, so times hold for drafts that are"
            " accepted as recorded; no speedup is claimed"
        )
    for name in sorted(facts.unaccepted):
        yield (
            f"{label(name)}: it drafts from what the model computes, which is not recorded: the time of its steps is"
            " real, MAT and every figure that needs it stay blank"
        )
    if control is None and run.manifest.get("control"):
        yield "the A/A control has no finished case in common with vanilla: the steadiness of the timing is unknown"
    elif control is None:
        yield "no A/A control: how steady the timing was is not known (measure.control=true)"
    elif not control.steady:
        yield f"A/A control, {control.sentence()}"


def _predictions(reported: ReportedRun) -> Iterator[str]:
    found = reported.prediction
    if found is None:
        return
    outside, steps = (sum(cases[name].sum() for cases in found.cases.values()) for name in ("outside", "steps"))
    share = outside / max(1, steps)
    if share > 0:
        yield (
            f"predicted speedups: {100 * share:.1f} % of the steps lie outside what the profile measured (fewer or more"
            " tokens, shorter or longer contexts); its edges were extended"
        )
    facts = reported.facts
    if facts.timed and not found.own:
        yield (
            f"predicted speedups are those of {found.profile.label}; the run was on"
            f" {read_device(reported.run, facts)} ({facts.model}, {facts.engine}, {facts.dtype}), so its measured ones"
            " cannot be compared with them, and the time of drafting is that of this machine"
        )


LIKE = 1.5  # sizes of models that differ by less are alike
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(b|m)(?![a-z])")
_UNITS = {"b": 1e9, "m": 1e6}
_RANDOM = "The weights are random: their answers are not a trained model's, so MAT and speedups say nothing of one."
_HIDDEN = ("questions", "weights")  # known by hashes, which mean nothing to a reader
# What rows side by side have in common.
_SHARED: dict[str, Callable[[ReportedRun], Any]] = {
    "weights": lambda entry: entry.run.section("model").get("fingerprint"),
    "questions": lambda entry: entry.run.section("suite").get("sha256"),
    "temperature": lambda entry: f"{entry.facts.temperature:g}",
    "dtype": lambda entry: entry.facts.dtype,
    "engine": lambda entry: entry.facts.engine,
    "device": lambda entry: read_device(entry.run, entry.facts) if entry.facts.timed else None,
    "load": lambda entry: entry.facts.arrivals or "one request at a time",
    "first draft": lambda entry: "in the prefill" if entry.facts.in_prefill else "after it",
    "tokens a turn": lambda entry: entry.run.section("config", "decode").get("max_new_tokens"),
}


def find_remarks(entries: Sequence[ReportedRun]) -> tuple[str, ...]:
    """Those of one model and suite."""
    return tuple(dict.fromkeys([*_of_times(entries), *_of_each(entries), *_between(entries)]))


def _of_times(entries: Sequence[ReportedRun]) -> Iterator[str]:
    timed = [entry for entry in entries if entry.facts.timed]
    noise = [entry.control.noise for entry in timed if entry.control and entry.control.steady is False]
    warnings = [text for entry in timed for text in entry.run.manifest.get("warnings", [])]
    unsafe = any(text.endswith("times are unsafe") for text in warnings)
    reasons = ["other processes competed for the processor"] if unsafe else []
    if noise:
        some = "" if len(timed) == 1 else f" (unsteady: {len(noise)} of {len(timed)} runs)"
        reasons.append(f"vanilla against itself differs by up to {100 * max(noise):.1f} %{some}")
    if reasons:
        yield f"The times are unsafe: {' and '.join(reasons)}."


def _of_each(entries: Sequence[ReportedRun]) -> Iterator[str]:
    for entry in entries:
        if "random" in map(entry.run.section("model").get, ("path", "weights")):
            yield _RANDOM
        if entry.prediction is None:
            continue
        profile, facts = entry.prediction.profile, entry.facts
        there = profile.parameters or read_size(profile.model)
        here = facts.parameters or read_size(facts.model)
        if there and here and not 1 / LIKE < there / here < LIKE:
            yield (
                f"The profile is of a model of another size: {profile.model} has {spell_size(there)} parameters,"
                f" {facts.model} {spell_size(here)}."
            )


def _between(entries: Sequence[ReportedRun]) -> Iterator[str]:
    found = []
    for what, read in _SHARED.items():
        values = dict.fromkeys(str(value) for entry in entries if (value := read(entry)) is not None)
        if len(values) > 1:
            found.append(what if what in _HIDDEN else f"{what} ({', '.join(values)})")
    if found:
        yield f"The runs differ in {' and '.join(found)}: methods of different runs are not compared by these figures."


def read_size(name: str) -> float | None:
    """The number of parameters in a model's name, as in 'vicuna-7b-v1.3'; None without one."""
    found = _SIZE.search(name.lower())
    return float(found[1]) * _UNITS[found[2]] if found else None


def spell_size(parameters: float) -> str:
    """'8.0 billion'."""
    unit, name = (1e9, "billion") if parameters >= 1e9 else (1e6, "million")
    return f"{parameters / unit:.1f} {name}"
