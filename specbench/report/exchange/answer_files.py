"""A run's records as Spec-Bench's answer files, one a method, for its own scripts and for others that read them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from specbench.names import file_name
from specbench.records.answers import Answer, AnswerTurn, write_answers
from specbench.records.record import CaseRecord
from specbench.records.store import Run, RunError, remove_partials
from specbench.report.frames.facts import TIME_ONLY, Facts

_NUMBER = re.compile("0|[1-9][0-9]{0,17}")  # in 64 bits; no two cases become one number
_ID_CHARS = 22  # of an answer_id, as long as the ones that eval.py draws


def export_answers(run: Run, facts: Facts, folder: Path) -> list[Path]:
    """Write ``<method>.jsonl`` for every method; with several rounds each in a folder ``run_1``, ``run_2`` ...

    Cases that failed are left out. Raises RunError for a run without records, or whose times are not the model's.
    """
    if not run.records:
        raise RunError(f"run {run.directory}: no records, so no answers to export; run `specbench` to the end first")
    if not facts.timed:
        raise RunError(
            f"run {run.directory}: its target was replayed, so it has no wall times of a model; expected a run with "
            "one (engine=eager)"
        )
    if facts.time_only:
        raise RunError(
            f"run {run.directory}: {TIME_ONLY}; its answers are replayed; expected a run without model.trace"
        )
    files = []
    run = hold_records(run)
    rounds = sorted({record.round for record in run.records})
    for number in rounds:
        place = folder / f"run_{number + 1}" if len(rounds) > 1 else folder
        place.mkdir(parents=True, exist_ok=True)
        remove_partials(place)
        for method in facts.methods:
            path = place / f"{file_name(method)}.jsonl"
            write_answers(path, answers_of(run, facts, method, number))
            files.append(path)
    return files


def hold_records(run: Run) -> Run:
    """The run with its records in memory: they are gone through for each method."""
    return replace(run, records=list(run.records))


def answers_of(run: Run, facts: Facts, method: str, number: int) -> list[Answer]:
    """The answers of one method in one round, by id, which is the order of the suite."""
    records = [
        record for record in run.records if record.method == method and record.round == number and record.status == "ok"
    ]
    answers = [_answer(run, facts, record) for record in records]
    return sorted(answers, key=lambda answer: (isinstance(answer.question_id, str), answer.question_id))


def _answer(run: Run, facts: Facts, record: CaseRecord) -> Answer:
    """The prefill's forward counts as a step that emitted one token: the convention of Spec-Bench's own baseline.

    Where it verified the first draft too, it is the record's first step already.
    """
    lengths = [() if not turn.ids else turn.accept if turn.in_prefill else (1, *turn.accept) for turn in record.turns]
    turns = [
        AnswerTurn(turn.text.strip(), len(steps), len(turn.ids), turn.wall_s)
        for turn, steps in zip(record.turns, lengths, strict=True)
    ]
    name = (run.manifest.get("config_hash", ""), record.method, record.round, record.case)
    return Answer(
        question_id=int(record.case) if _NUMBER.fullmatch(record.case) else record.case,
        category=record.subcategory or record.category,
        task=record.category,
        model_id=f"{facts.model}-{record.method}-{facts.dtype or 'auto'}-temp-{facts.temperature}",
        turns=tuple(turns),
        accept_lengths=tuple(length for steps in lengths for length in steps),
        answer_id=hashlib.sha256(repr(name).encode()).hexdigest()[:_ID_CHARS],
        tstamp=_created(run),
    )


def _created(run: Run) -> float:
    """[s] since 1970, when the run began."""
    try:
        moment = datetime.fromisoformat(str(run.manifest.get("created")))
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def left_out(run: Run, facts: Facts) -> list[str]:
    """A line for each method with failed cases, which are not in its answer file."""
    lines = []
    for method in facts.methods:
        failed = {record.case for record in run.records if record.method == method and record.status != "ok"}
        if failed:
            lines.append(f"{method}: {len(failed)} failed cases are not in its answers")
    return lines
