"""A run in Spec-Bench's formulas beside ours, and answer files in its formulas alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.records.answers import Answer, read_answers
from specbench.records.record import VANILLA
from specbench.records.store import Run, RunError
from specbench.report.exchange.answer_files import answers_of, hold_records
from specbench.report.exchange.spec_bench import Score, doubts, score
from specbench.report.frames.facts import Facts
from specbench.report.frames.findings import Findings
from specbench.report.frames.summary import category_order
from specbench.report.label import BLANK, Cell, format_count, format_number, format_rate, label
from specbench.report.table import KEYS, Table, to_csv, to_markdown, without_blanks, write_texts
from specbench.report.tables.summary import caption
from specbench.report.tokenizer import find_tokenizer, read_counter

NAME = "compat_spec_bench"
FORMULAS = (
    "Spec-Bench: tokens/s is the mean over questions; speedup is that mean over the baseline's, whose tokens are "
    "counted by tokenising its text again, without EOS; MAT counts the prefill's forward as a step, as its baseline "
    "and PLD do."
)
_OURS = "Ours: ratios of totals, committed ids on both sides, paired by case; MAT {}. Diff: theirs from ours."
_AFTER, _IN_PREFILL = "without the prefill", "with the prefill where it verified a draft (decode.first_draft=prefill)"
_COMPARED = ("tokens_per_s", "mat", "speedup")
_TIMED = ("tokens_per_s", "baseline_tokens_per_s", "speedup", "speedup_std")  # not known of a replayed target
_SHOWN: dict[str, Callable[[float], str]] = {
    "tokens_per_s": format_rate,
    "baseline_tokens_per_s": format_rate,
    "mat": format_number,
    "speedup": format_number,
}
_TITLES = {"tokens_per_s": "tokens/s", "baseline_tokens_per_s": "baseline", "mat": "MAT", "speedup": "speedup"}


def compare(findings: Findings, tokenizer: Path | None = None) -> tuple[pd.DataFrame, list[str]]:
    """A row a (model, suite, method, variant, task), overall last; and warnings about them.

    Columns: Spec-Bench's figures, ours as ``<figure>_ours``, and ``<figure>_difference`` [%] of theirs from ours.
    tokenizer: folder or file; default the run's own. Raises RunError where there is none, or no vanilla.
    """
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for reported in findings.reported:
        run, facts = hold_records(reported.run), reported.facts
        count = lru_cache(maxsize=None)(read_counter(tokenizer or find_tokenizer(run)))
        for method, scores in _scores(run, facts, count, notes).items():
            if method in facts.unaccepted:
                continue
            unknown = {} if facts.timed and not facts.time_only else dict.fromkeys(_TIMED, float("nan"))
            for task, found in scores.items():
                key = (*reported.place, task, *reported.key(method)[2:])
                rows.append(dict(zip(KEYS, key, strict=True)) | found | unknown)
    return _beside_ours(pd.DataFrame(rows), findings.summary), list(dict.fromkeys(notes))


def _beside_ours(frame: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    ours = summary.set_index(list(KEYS)).loc[pd.MultiIndex.from_frame(frame[list(KEYS)])]
    for figure in _COMPARED:
        frame[f"{figure}_ours"] = ours[figure].to_numpy(float)
        frame[f"{figure}_difference"] = 100 * (frame[figure] / frame[f"{figure}_ours"].replace(0, float("nan")) - 1)
    return frame


def _scores(run: Run, facts: Facts, count: Callable[[str], int], notes: list[str]) -> dict[str, dict[str, Score]]:
    """Method -> task -> score. notes: warnings are added to it."""
    rounds = sorted({record.round for record in run.records})
    baseline = {number: answers_of(run, facts, VANILLA, number) for number in rounds}
    if not any(baseline.values()):
        raise RunError(
            f"run {run.directory}: vanilla has no finished case; Spec-Bench's speedup is measured against it"
        )
    found = {}
    for method in facts.methods:
        answers = {number: answers_of(run, facts, method, number) for number in rounds}
        both = [number for number in rounds if answers[number] and baseline[number]]
        if both:
            found[method] = _ordered(score([answers[n] for n in both], [baseline[n] for n in both], count))
            notes += [note for n in both for note in doubts(label(method), answers[n], baseline[n])]
    return found


def _ordered(scores: Mapping[str, Score]) -> dict[str, Score]:
    """Spec-Bench's tasks in its order, overall last."""
    *tasks, last = scores
    return {task: scores[task] for task in (*category_order(tasks), last)}


def compare_table(frame: pd.DataFrame, findings: Findings) -> Table:
    """The comparison as printed: Spec-Bench's figure, ours, and by how much theirs differs."""
    several = frame[["model", "suite"]].drop_duplicates().shape[0] > 1
    header = ["Method", "Task"]
    for figure in _COMPARED:
        header += [_TITLES[figure], "ours", "diff"]
    rows = []
    for row in frame.to_dict("records"):
        place = f", {row['model']} on {row['suite']}" if several else ""
        cells = [label(row["method"], row["variant"]) + place, row["category"]]
        for figure in _COMPARED:
            write = _SHOWN[figure]
            cells += [write(row[figure]), write(row[f"{figure}_ours"]), _signed(row[f"{figure}_difference"])]
        rows.append(tuple(map(Cell, cells)))
    where = caption(findings.facts, findings.summary)
    ours = _OURS.format(_IN_PREFILL if any(facts.in_prefill for facts in findings.facts) else _AFTER)
    return without_blanks(Table(NAME, where, f"{FORMULAS} {ours}", tuple(header), tuple(rows), frozenset(), labels=2))


def _signed(percent: float) -> str:
    if pd.isna(percent):
        return BLANK
    return f"{percent:+.1f}%" if abs(percent) >= 0.05 else "0.0%"


def score_files(baseline: Path, methods: Sequence[Path], tokenizer: Path | None) -> tuple[pd.DataFrame, list[str]]:
    """A row a (file, task) in Spec-Bench's formulas, the baseline itself first; and warnings about them.

    Raises RunError for a file that is none, and without a tokenizer, which answer files do not name.
    """
    if tokenizer is None:
        raise RunError(
            "--answers: no tokenizer; Spec-Bench counts the baseline's tokens by tokenising its text, so give the "
            "folder that holds the model's tokenizer.json: --tokenizer DIR"
        )
    count = lru_cache(maxsize=None)(read_counter(tokenizer))
    reference = read_answers(baseline)
    steps = [length for answer in reference for length in answer.accept_lengths]
    if sum(steps) > len(steps):
        raise RunError(
            f"{baseline}: its steps emit {sum(steps) / len(steps):.2f} tokens each, so it is no baseline; expected the "
            "file of plain decoding first, then the methods'"
        )
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for path in dict.fromkeys((baseline, *methods)):
        answers: list[Answer] = reference if path == baseline else read_answers(path)
        notes += doubts(path.stem, answers, reference)
        scores = _ordered(score([answers], [reference], count))
        rows += [{"file": path.stem, "category": task} | found for task, found in scores.items()]
    return pd.DataFrame(rows).drop(columns="speedup_std"), notes


def files_table(frame: pd.DataFrame, baseline: Path) -> Table:
    """The figures of answer files as printed."""
    header = ("File", "Task", "Questions", *(_TITLES[figure] for figure in _SHOWN))
    rows = []
    for row in frame.to_dict("records"):
        figures = [write(row[figure]) for figure, write in _SHOWN.items()]
        rows.append(tuple(map(Cell, (row["file"], row["category"], format_count(row["questions"]), *figures))))
    return Table(NAME, f"Baseline: {baseline.name}.", FORMULAS, header, tuple(rows), frozenset(), labels=2)


def write_compat(frame: pd.DataFrame, table: Table, output: Path) -> list[Path]:
    """tables/compat_spec_bench.csv, unrounded, and .md. Returns the files."""
    texts = {f"{NAME}.csv": to_csv(frame), f"{NAME}.md": to_markdown(table)}
    return write_texts(output / "tables", texts)
