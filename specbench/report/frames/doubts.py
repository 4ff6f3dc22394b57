"""The warnings about a run: those in its manifest, and those that follow from its records."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from specbench.records.record import OVERALL, VANILLA
from specbench.records.store import Run
from specbench.report.frames.control import Control
from specbench.report.frames.facts import TIME_ONLY, Facts
from specbench.report.frames.profiles import read_device
from specbench.report.frames.reported import ReportedRun
from specbench.report.frames.shards import doubt_shards
from specbench.report.text.label import label
from specbench.stats import MIN_CASES


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
        yield f"{', '.join(facts.methods)}: added to the run later, over the vanilla that ran beside"
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
            yield f"{name}: {_parting(int(row.violations))}"


def _parting(violations: int) -> str:
    if violations:
        return f"{violations} ids lie beyond the tolerance of lossless output"
    return "outputs that differ from vanilla's were not judged (measure.lossless=true judges them)"


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
        yield "the A/A control has no finished case beside vanilla's: how steady the timing was is not known"
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
