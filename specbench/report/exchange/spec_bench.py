"""Spec-Bench's formulas over answer files and over a run, next to specbench's figures; writes its
answer files.

The formulas are what its ``evaluation/speed.py`` and leaderboard print, oddities included:

* tokens/s of a method: mean over questions of (sum of new_tokens / sum of wall_time), turns summed.
  Short answers weigh as much as long ones.
* tokens/s of the baseline: the same, but tokens are counted by tokenising its text again, without
  BOS and without EOS.
* speedup: the first over the second, a ratio of means. Questions are not paired.
* mean accepted tokens: mean over all steps of all questions. Vanilla = 1.
* several runs: the mean of their tokens/s and speedups, with the sample standard deviation; accept
  lengths pooled.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specbench.input import refuse_foreign
from specbench.names import file_name
from specbench.records.answers import FAILED, Answer, AnswerTurn, read_answers, write_answers
from specbench.records.record import OVERALL, VANILLA, CaseRecord
from specbench.records.store import Run, RunError, remove_partials
from specbench.report.frames.cases import category_order
from specbench.report.frames.facts import Facts
from specbench.report.frames.findings import Findings
from specbench.report.label import BLANK, Cell, format_count, format_number, format_rate, label
from specbench.report.table import KEYS, Table, without_blanks
from specbench.report.tables.summary import caption
from specbench.report.tokenizer import find_tokenizer, read_counter
from specbench.report.writers import to_csv, to_markdown, write_texts

_BLANK = float("nan")
Score = dict[str, float]  # one method on one task, as Spec-Bench counts


def score(
    method: Sequence[Sequence[Answer]],
    baseline: Sequence[Sequence[Answer]],
    count: Callable[[str], int],
) -> dict[str, Score]:
    """Task -> score, in Spec-Bench's order, overall last. method, baseline: the answers of each
    run.

    count: text -> tokens. questions: of the method in one run. speedup_std: over the runs.
    """
    ours = [_rates(answers, lambda answer: answer.new_tokens) for answers in method]
    theirs = [
        _rates(answers, lambda answer: sum(count(turn.text) for turn in answer.turns))
        for answers in baseline
    ]
    if len(theirs) == 1:  # one baseline file for several runs of a method
        theirs = theirs * len(ours)
    found = {}
    for task in (
        *category_order([answer.task for answers in method for answer in answers]),
        OVERALL,
    ):
        speeds, base = ([_mean(rates.get(task, [])) for rates in side] for side in (ours, theirs))
        ratios = [
            speed / reference if reference else _BLANK
            for speed, reference in zip(speeds, base, strict=True)
        ]
        answers = [answer for run in method for answer in run if task in (OVERALL, answer.task)]
        found[task] = {
            "questions": len(ours[0].get(task, [])),
            "tokens_per_s": _mean(speeds),
            "baseline_tokens_per_s": _mean(base),
            "speedup": _mean(ratios),
            "speedup_std": float(np.std(ratios, ddof=1)) if len(ratios) > 1 else _BLANK,
            "mat": _mean([length for answer in answers for length in answer.accept_lengths]),
        }
    return found


def doubts(name: str, method: Sequence[Answer], baseline: Sequence[Answer]) -> list[str]:
    """Warnings of facts that affect Spec-Bench's figures and are not visible in them."""
    found = []
    missing = len(
        {answer.question_id for answer in baseline} ^ {answer.question_id for answer in method}
    )
    if missing:
        found.append(
            f"{name}: {missing} questions are in only one of method ({len(method)}) and baseline"
            f" ({len(baseline)}); the formulas do not pair them"
        )
    repeated = len(method) - len({answer.question_id for answer in method})
    if repeated:
        found.append(
            f"{name}: {repeated} lines answer a question again; every line counts, as in speed.py"
        )
    if any(answer.misspelt for answer in method):
        found.append(
            f"{name}: its accept lengths are read from the key 'accept_lengths:', as the adapter of"
            " REST has it"
        )
    failed = sum(any(turn.text == FAILED for turn in answer.turns) for answer in method)
    if failed:
        found.append(
            f"{name}: {failed} answers say {FAILED}, whose counts are those of the turn before"
        )
    if any(answer.new_tokens != sum(answer.accept_lengths) for answer in method):
        found.append(
            f"{name}: accept lengths do not add up to its new tokens: its adapter does not count"
            " the prefill's forward as a step, or counts tokens that it then cut"
        )
    return found


def _rates(answers: Sequence[Answer], tokens: Callable[[Answer], int]) -> Mapping[str, list[float]]:
    """[tokens/s] of each question, by task and overall."""
    rates: dict[str, list[float]] = {OVERALL: []}
    for answer in answers:
        rate = tokens(answer) / answer.wall_time_s if answer.wall_time_s > 0 else _BLANK
        rates.setdefault(answer.task, []).append(rate)
        rates[OVERALL].append(rate)
    return rates


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else _BLANK


_NUMBER = re.compile("0|[1-9][0-9]{0,17}")  # in 64 bits; no two cases become one number
_ID_CHARS = 22  # of an answer_id, as long as the ones that eval.py draws


def export_answers(run: Run, facts: Facts, folder: Path) -> list[Path]:
    """Write ``<method>.jsonl`` for every method; with several rounds each in a folder ``run_1``,
    ``run_2`` ...

    Cases that failed are left out. Raises RunError for a run without records, or whose times are
    not the model's, and InputError for files of others in their place.
    """
    if not run.records:
        raise RunError(
            f"run {run.directory}: no records, so no answers to export; run `specbench` to the end"
            " first"
        )
    if not facts.timed:
        raise RunError(
            f"run {run.directory}: its target was replayed, so it has no wall times of a model;"
            " expected a run with one (engine=eager)"
        )
    if facts.time_only:
        fix = "without model.trace" if facts.trace else "of servers that do not draw acceptance"
        raise RunError(
            f"run {run.directory}: {facts.time_note}; its answers are no model's; expected a run"
            f" {fix}"
        )
    files = []
    run = replace(run, records=list(run.records))  # in memory: each method reads them
    rounds = sorted({record.round for record in run.records})
    places = {
        number: folder / f"run_{number + 1}" if len(rounds) > 1 else folder for number in rounds
    }
    for place in places.values():
        for method in facts.methods:
            fix = "move it, or give --export-answers another folder"
            refuse_foreign(place / f"{file_name(method)}.jsonl", b'"choices"', fix)
    for number, place in places.items():
        place.mkdir(parents=True, exist_ok=True)
        remove_partials(place)
        for method in facts.methods:
            path = place / f"{file_name(method)}.jsonl"
            write_answers(path, answers_of(run, facts, method, number))
            files.append(path)
    return files


def answers_of(run: Run, facts: Facts, method: str, number: int) -> list[Answer]:
    """The answers of one method in one round, by id, which is the order of the suite."""
    records = (
        record for record in run.records if (record.method, record.round) == (method, number)
    )
    answers = [_answer(run, facts, record) for record in records if record.status == "ok"]
    return sorted(
        answers, key=lambda answer: (isinstance(answer.question_id, str), answer.question_id)
    )


def _answer(run: Run, facts: Facts, record: CaseRecord) -> Answer:
    """The prefill's forward counts as a step that emitted one token: the convention of Spec-Bench's
    own baseline.

    Where it verified the first draft too, it is the record's first step already.
    """
    lengths = [
        () if not turn.ids else turn.accept if turn.in_prefill else (1, *turn.accept)
        for turn in record.turns
    ]
    turns = [
        AnswerTurn(turn.text.strip(), len(steps), len(turn.ids), turn.wall_s)
        for turn, steps in zip(record.turns, lengths, strict=True)
    ]
    try:
        created = datetime.fromisoformat(str(run.manifest.get("created")))
    except ValueError:
        created = datetime.fromtimestamp(0, UTC)
    name = (run.manifest.get("config_hash", ""), record.method, record.round, record.case)
    return Answer(
        question_id=int(record.case) if _NUMBER.fullmatch(record.case) else record.case,
        category=record.subcategory or record.category,
        task=record.category,
        model_id=f"{facts.model}-{record.method}-{facts.dtype or 'auto'}-temp-{facts.temperature}",
        turns=tuple(turns),
        accept_lengths=tuple(length for steps in lengths for length in steps),
        answer_id=hashlib.sha256(repr(name).encode()).hexdigest()[:_ID_CHARS],
        tstamp=(created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp(),
    )


def left_out(run: Run, facts: Facts) -> list[str]:
    """A line for each method with failed cases, which are not in its answer file."""
    lines = []
    for method in facts.methods:
        failed = {
            record.case
            for record in run.records
            if record.method == method and record.status != "ok"
        }
        if failed:
            lines.append(f"{method}: {len(failed)} failed cases are not in its answers")
    return lines


NAME = "compat_spec_bench"
FORMULAS = (
    "Spec-Bench: tokens/s is the mean over questions; speedup is that mean over the baseline's,"
    " whose tokens are counted by tokenising its text again, without EOS; MAT counts the prefill's"
    " forward as a step, as its baseline and PLD do."
)
_OURS = (
    "Ours: ratios of totals, committed ids on both sides, paired by case; MAT {}. Diff: theirs from"
    " ours."
)
_AFTER, _IN_PREFILL = (
    "without the prefill",
    "with the prefill where it verified a draft (decode.first_draft=prefill)",
)
_COMPARED = ("tokens_per_s", "mat", "speedup")
# not known of a replayed target
_TIMED = ("tokens_per_s", "baseline_tokens_per_s", "speedup", "speedup_std")
_SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {  # figure -> its title and format
    "tokens_per_s": ("tokens/s", format_rate),
    "baseline_tokens_per_s": ("baseline", format_rate),
    "mat": ("MAT", format_number),
    "speedup": ("speedup", format_number),
}


def compare(findings: Findings, tokenizer: Path | None = None) -> tuple[pd.DataFrame, list[str]]:
    """A row a (model, suite, method, variant, task), overall last; and warnings about them.

    Columns: Spec-Bench's figures, ours as ``<figure>_ours``, and ``<figure>_difference`` [%] of
    theirs from ours. tokenizer: folder or file; default the run's own. Raises RunError without a
    tokenizer, or without vanilla.
    """
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for reported in findings.reported:
        run, facts = replace(reported.run, records=list(reported.run.records)), reported.facts
        count = lru_cache(maxsize=None)(read_counter(tokenizer or find_tokenizer(run)))
        rounds = sorted({record.round for record in run.records})
        baseline = {number: answers_of(run, facts, VANILLA, number) for number in rounds}
        if not any(baseline.values()):
            raise RunError(
                f"run {run.directory}: vanilla has no finished case; Spec-Bench's speedup is"
                " measured against it"
            )
        unknown = {} if facts.timed and not facts.time_only else dict.fromkeys(_TIMED, float("nan"))
        for method in facts.methods:
            answers = {number: answers_of(run, facts, method, number) for number in rounds}
            both = [number for number in rounds if answers[number] and baseline[number]]
            if not both:
                continue
            notes += [note for n in both for note in doubts(label(method), answers[n], baseline[n])]
            if method in facts.unaccepted:
                continue
            scores = score([answers[n] for n in both], [baseline[n] for n in both], count)
            for task, found in scores.items():
                key = (*reported.place, task, *reported.key(method)[2:])
                rows.append(dict(zip(KEYS, key, strict=True)) | found | unknown)
    frame = pd.DataFrame(rows)
    ours = findings.summary.set_index(list(KEYS)).loc[pd.MultiIndex.from_frame(frame[list(KEYS)])]
    for figure in _COMPARED:
        frame[f"{figure}_ours"] = ours[figure].to_numpy(float)
        frame[f"{figure}_difference"] = 100 * (
            frame[figure] / frame[f"{figure}_ours"].replace(0, float("nan")) - 1
        )
    return frame, list(dict.fromkeys(notes))


def compare_table(frame: pd.DataFrame, findings: Findings) -> Table:
    """The comparison as printed: Spec-Bench's figure, ours, and by how much theirs differs."""
    several = frame[["model", "suite"]].drop_duplicates().shape[0] > 1
    header = (
        "Method",
        "Task",
        *(name for figure in _COMPARED for name in (_SHOWN[figure][0], "ours", "diff")),
    )
    rows = []
    for row in frame.to_dict("records"):
        place = f", {row['model']} on {row['suite']}" if several else ""
        cells = [label(row["method"], row["variant"]) + place, row["category"]]
        for figure in _COMPARED:
            _, write = _SHOWN[figure]
            cells += [
                write(row[figure]),
                write(row[f"{figure}_ours"]),
                _signed(row[f"{figure}_difference"]),
            ]
        rows.append(tuple(map(Cell, cells)))
    where = caption(findings.facts, findings.summary)
    ours = _OURS.format(
        _IN_PREFILL if any(facts.in_prefill for facts in findings.facts) else _AFTER
    )
    return without_blanks(Table(NAME, where, f"{FORMULAS} {ours}", header, tuple(rows), labels=2))


def _signed(percent: float) -> str:
    return BLANK if pd.isna(percent) else f"{percent:+.1f}%" if abs(percent) >= 0.05 else "0.0%"


def score_files(
    baseline: Path, methods: Sequence[Path], tokenizer: Path | None
) -> tuple[pd.DataFrame, list[str]]:
    """A row a (file, task) in Spec-Bench's formulas, the baseline itself first; and warnings about
    them.

    Raises RunError for a file that is none, and without a tokenizer, which answer files do not
    name.
    """
    if tokenizer is None:
        raise RunError(
            "--answers: no tokenizer; Spec-Bench counts the baseline's tokens by tokenising its"
            " text, so give the folder that contains the model's tokenizer.json: --tokenizer DIR"
        )
    count = lru_cache(maxsize=None)(read_counter(tokenizer))
    reference = read_answers(baseline)
    steps = [length for answer in reference for length in answer.accept_lengths]
    if sum(steps) > len(steps):
        raise RunError(
            f"{baseline}: its steps emit {sum(steps) / len(steps):.2f} tokens each, so it is no"
            " baseline; expected the file of plain decoding first, then the methods'"
        )
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for path in dict.fromkeys((baseline, *methods)):
        answers: list[Answer] = reference if path == baseline else read_answers(path)
        notes += doubts(path.stem, answers, reference)
        scores = score([answers], [reference], count)
        rows += [{"file": path.stem, "category": task} | found for task, found in scores.items()]
    return pd.DataFrame(rows).drop(columns="speedup_std"), notes


def files_table(frame: pd.DataFrame, baseline: Path) -> Table:
    """The figures of answer files as printed."""
    header = ("File", "Task", "Questions", *(title for title, _ in _SHOWN.values()))
    rows = []
    for row in frame.to_dict("records"):
        figures = [write(row[figure]) for figure, (_, write) in _SHOWN.items()]
        rows.append(
            tuple(
                map(Cell, (row["file"], row["category"], format_count(row["questions"]), *figures))
            )
        )
    return Table(NAME, f"Baseline: {baseline.name}.", FORMULAS, header, tuple(rows), labels=2)


def write_compat(frame: pd.DataFrame, table: Table, output: Path) -> list[Path]:
    """tables/compat_spec_bench.csv, unrounded, and .md. Returns the files."""
    texts = {f"{NAME}.csv": to_csv(frame), f"{NAME}.md": to_markdown([table])}
    return write_texts(output / "tables", texts)
