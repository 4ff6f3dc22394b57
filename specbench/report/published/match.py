"""Published figures beside the ones measured: which belong together, by how much they differ, and what may be why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specbench.report.data.facts import Facts
from specbench.report.data.findings import Findings
from specbench.report.published.figures import DEFINITION, HARDWARE, Figure
from specbench.report.published.notes import UNSTATED, differences, same_model, selected, unfinished, whole
from specbench.store import Run

MAT_TOLERANCE = 0.03  # half of it is rounding, the rest near ties and how the prefill is counted
REPRODUCED, DIFFERS, SHOWN = "reproduced", "differs", ""
_SPEEDUPS = ("speedup_hf", "speedup")  # the papers' denominator where it was measured, else vanilla


@dataclass(frozen=True, slots=True)
class Match:
    """One published figure beside ours. verdict: reproduced | differs | '' (times: shown, never judged)."""

    figure: Figure
    method: str
    variant: str
    ours: float
    verdict: str
    notes: tuple[str, ...]
    ran_on: str

    @property
    def difference(self) -> float:
        """Ours less theirs."""
        return self.ours - self.figure.value


def compare(findings: Findings, figures: Sequence[Figure]) -> list[Match]:
    """Every published figure that a run has a counterpart of, in the order of the files, then of the runs."""
    rows = {
        (row["model"], row["suite"], row["category"], row["method"], row["variant"]): row
        for row in findings.summary.to_dict("records")
    }
    found: list[Match] = []
    for figure in figures:
        for run, facts, variants in zip(findings.runs, findings.facts, findings.variants, strict=True):
            if figure.method not in facts.methods:
                continue  # another run's row would be found under its name
            row = rows.get((facts.model, facts.suite, figure.category, figure.method, variants.get(figure.method, "")))
            if row is not None and _belongs(run, facts, figure, figures):
                found += _matched(run, facts, row, figure)
    return found


def _belongs(run: Run, facts: Facts, figure: Figure, figures: Sequence[Figure]) -> bool:
    """Is the run's row this row of this table? Tables of other models only where the suite has none of its own."""
    if not (figure.model and figure.method and figure.suite == facts.suite and figure.needs != DEFINITION):
        return False
    own = same_model(facts.model, figure.model)
    others = not own and not any(same_model(facts.model, f.model) for f in figures if f.suite == facts.suite)
    return (own or others) and selected(run, figure.method, figure)


def _matched(run: Run, facts: Facts, row: Mapping[str, Any], figure: Figure) -> Iterator[Match]:
    ours, column = _measured(row, figure.metric)
    if pd.isna(ours):
        return
    notes = differences(run, facts, figure.method, figure)
    if row["errors"]:
        notes.append(f"{row['errors']} case{'s' if row['errors'] > 1 else ''} failed")
    verdict = SHOWN
    if figure.metric == "mat":
        complete = whole(run) and not unfinished(run, facts) and not row["errors"]
        sound = same_model(facts.model, figure.model) and complete
        near = abs(ours - figure.value) <= MAT_TOLERANCE + 1e-9
        verdict = REPRODUCED if sound and near else DIFFERS
    elif figure.metric == "speedup" and column == "speedup":
        notes.append("speedup over vanilla, not over Hugging Face")
    if figure.needs == HARDWARE:
        notes.append("another machine")
    yield Match(
        figure, figure.method, row["variant"], ours, verdict, tuple(notes) or _unstated(verdict), _machine(run, facts)
    )


def _unstated(verdict: str) -> tuple[str, ...]:
    return (UNSTATED,) if verdict == DIFFERS else ()


def _measured(row: Mapping[str, Any], metric: str) -> tuple[float, str]:
    """The figure of a row of the summary and the column that it stands in; NaN where there is none."""
    for column in _SPEEDUPS if metric == "speedup" else (metric,):
        value = row.get(column)
        if isinstance(value, int | float) and not pd.isna(value):
            return float(value), column
    return float("nan"), metric


def _machine(run: Run, facts: Facts) -> str:
    """The GPUs that the target ran on, else the processor; a replay ran no target."""
    if not facts.timed:
        return "replayed answers"
    machine = run.manifest.get("machine")
    machine = machine if isinstance(machine, Mapping) else {}
    gpus = [str(gpu.get("name")) for gpu in machine.get("gpus") or [] if isinstance(gpu, Mapping)]
    if gpus and not facts.device.startswith("cpu"):
        return " + ".join(gpus)
    processor = machine.get("cpu")
    return str(processor.get("model") if isinstance(processor, Mapping) else processor or "unknown")
