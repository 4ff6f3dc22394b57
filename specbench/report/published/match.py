"""Published figures matched with measured ones: by how much they differ, and what may explain it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.records.store import Run
from specbench.report.frames.facts import Facts, read_parameters, read_settings, spell_value
from specbench.report.frames.findings import Findings
from specbench.report.frames.reported import ReportedRun
from specbench.report.published.figures import DEFINITION, HARDWARE, PublishedFigure

MAT_TOLERANCE = 0.03  # half of it is rounding, the rest near ties and how the prefill is counted
REPRODUCED, DIFFERS, SHOWN = "reproduced", "differs", ""
_SPEEDUPS = ("speedup_hf", "speedup")  # the papers' denominator where it was measured, else vanilla


@dataclass(frozen=True, slots=True)
class Match:
    """One published figure beside ours. verdict: reproduced | differs | '' (times: shown, never judged)."""

    figure: PublishedFigure
    variant: str
    ours: float
    verdict: str
    notes: tuple[str, ...]
    ran_on: str

    @property
    def difference(self) -> float:
        """Ours less theirs."""
        return self.ours - self.figure.value


def compare(findings: Findings, figures: Sequence[PublishedFigure]) -> list[Match]:
    """Every published figure that a run has a counterpart of, in the order of the files, then of the runs."""
    rows = {
        (row["category"], row["model"], row["suite"], row["method"], row["variant"]): row
        for row in findings.summary.to_dict("records")
    }
    found: list[Match] = []
    for figure in figures:
        for reported in findings.reported:
            if figure.method not in reported.facts.methods:
                continue  # another run's row would be found under its name
            row = rows.get((figure.category, *reported.key(figure.method)))
            if row is not None and _belongs(reported, figure, figures):
                found += _matched(reported, row, figure)
    return found


def _belongs(reported: ReportedRun, figure: PublishedFigure, figures: Sequence[PublishedFigure]) -> bool:
    """Is the run's row this row of this table? Tables of other models only where the suite has none of its own."""
    facts = reported.facts
    if not (figure.model and figure.method and figure.suite == facts.suite and figure.needs != DEFINITION):
        return False
    own = same_model(facts.model, figure.model)
    others = not own and not any(same_model(facts.model, f.model) for f in figures if f.suite == facts.suite)
    return (own or others) and selected(reported, figure)


def _matched(reported: ReportedRun, row: Mapping[str, Any], figure: PublishedFigure) -> Iterator[Match]:
    run, facts = reported.run, reported.facts
    ours, column = _measured(row, figure.metric)
    if pd.isna(ours):
        return
    notes = differences(reported, figure)
    if row["errors"]:
        notes.append(f"{row['errors']} case{'s' if row['errors'] > 1 else ''} failed")
    verdict = SHOWN
    if figure.metric == "mat":
        complete = whole(run, facts) and not unfinished(reported) and not row["errors"]
        sound = same_model(facts.model, figure.model) and complete
        near = abs(ours - figure.value) <= MAT_TOLERANCE + 1e-9
        verdict = REPRODUCED if sound and near else DIFFERS
    elif figure.metric == "speedup" and column == "speedup":
        notes.append("speedup over vanilla, not over Hugging Face")
    if figure.needs == HARDWARE:
        notes.append("another machine")
    unstated = (UNSTATED,) if verdict == DIFFERS else ()
    yield Match(figure, row["variant"], ours, verdict, tuple(notes) or unstated, _machine(run, facts))


def _measured(row: Mapping[str, Any], metric: str) -> tuple[float, str]:
    """The figure of a row of the summary and its column; NaN where there is none."""
    for column in _SPEEDUPS if metric == "speedup" else (metric,):
        value = row.get(column)
        if isinstance(value, int | float) and not pd.isna(value):
            return float(value), column
    return float("nan"), metric


def _machine(run: Run, facts: Facts) -> str:
    """The GPUs that the target ran on, else the processor; a replay ran no target."""
    if not facts.timed:
        return "replayed answers"
    machine = run.section("machine")
    gpus = [str(gpu.get("name")) for gpu in machine.get("gpus") or [] if isinstance(gpu, Mapping)]
    if gpus and not facts.device.startswith("cpu"):
        return " + ".join(gpus)
    processor = machine.get("cpu")
    return str(processor.get("model") if isinstance(processor, Mapping) else processor or "unknown")


NARROWED = ("limit", "first", "sample", "categories", "part", "ids")  # suite settings that leave questions out
UNSTATED = "nothing that the manifest or the source states"
_LENGTH, _DTYPE, _PREFILL = "decode.max_new_tokens", "model.dtype", "prefill"


def same_model(measured: str, published: str) -> bool:
    """A trace names its model with a tail: 'vicuna-7b-v1.3-vanilla-float16-temp-0.0' is 'vicuna-7b-v1.3'."""
    return bool(published) and (measured == published or measured.startswith(f"{published}-"))


def selected(reported: ReportedRun, figure: PublishedFigure) -> bool:
    """Was the method set as this very row of its table? A row without a temperature is greedy."""
    wanted = {"decode.temperature": "0", **figure.setting}
    found = _settings(reported, figure.method)
    return all(_alike(found.get(key), value) for key, value in wanted.items())


def whole(run: Run, facts: Facts) -> bool:
    """Were all questions of the suite asked, and is it the official one by their number?"""
    suite = run.section("config", "suite")
    official = suite.get("expected") in (None, facts.planned)
    return official and all(suite.get(key) is None for key in NARROWED)


def unfinished(reported: ReportedRun) -> str:
    """'200 of 480 cases are recorded'; '' where all are, or their number is not known."""
    seen, facts = len(reported.trials.cases), reported.facts
    return f"{seen} of {facts.planned} cases are recorded" if facts.planned and seen < facts.planned else ""


def differences(reported: ReportedRun, figure: PublishedFigure) -> list[str]:
    """What differs, one entry a thing, the model first; empty where nothing is known to."""
    run, facts = reported.run, reported.facts
    return [
        *([] if same_model(facts.model, figure.model) else [f"model {facts.model}, not {figure.model}"]),
        *([] if whole(run, facts) else [f"{facts.planned} of the suite's questions"]),
        *filter(None, [unfinished(reported)]),
        *_tokenizer(run, facts),
        *_setup(reported, figure),
        *_corpus(run, figure),
    ]


def _setup(reported: ReportedRun, figure: PublishedFigure) -> Iterator[str]:
    facts = reported.facts
    found = _settings(reported, figure.method) | {_DTYPE: facts.dtype}
    for key, theirs in figure.setup.items():
        if key == _PREFILL:
            if not facts.in_prefill:
                yield f"they count the prefill as {theirs} (decode.first_draft=prefill does)"
        elif key in (_LENGTH, _DTYPE) and not facts.timed:
            continue  # the recorded answers have their length, and were computed as they were
        elif not _alike(found.get(key), theirs):
            yield f"{key.removeprefix('model.')} {spell_value(found.get(key))}, not {theirs}"
    if facts.in_prefill and _PREFILL not in figure.setup:
        yield "the prefill is a step that verifies the first draft (decode.first_draft=prefill), theirs is not said so"


def _corpus(run: Run, figure: PublishedFigure) -> Iterator[str]:
    """A method's own files against the corpus that the source names."""
    if figure.corpus:
        entry = run.manifest["methods"].get(figure.method)
        files = ", ".join(Path(path).name for path in (entry.get("inputs") or {})) if isinstance(entry, Mapping) else ""
        yield f"corpus of {files}, not {figure.corpus}" if files else f"no corpus, theirs {figure.corpus}"


def _tokenizer(run: Run, facts: Facts) -> Iterator[str]:
    """Answers that were kept as text are tokenised anew; a live run may have been given another tokenizer."""
    given = run.section("config", "model").get("tokenizer")
    if not facts.timed and ";" in facts.trace:
        yield f"tokenizer: answers tokenised anew, {facts.trace.rpartition(';')[2].strip()}"
    elif facts.timed and given:
        yield f"tokenizer {Path(str(given)).name}"


def _settings(reported: ReportedRun, method: str) -> dict[str, Any]:
    """'decode.temperature', 'suite.order', 'model.template' ... and the method's own parameters by their names."""
    return read_settings(reported.run, reported.facts) | read_parameters(reported.run, method)


def _alike(found: Any, wanted: str) -> bool:
    """A manifest's value against a table's text: 10 is '10', 0.0 is '0', True is 'true'."""
    if isinstance(found, int | float) and not isinstance(found, bool):
        try:
            return float(wanted) == float(found)
        except ValueError:
            return False
    return str(found).lower() == wanted.lower()
