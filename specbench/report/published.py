"""Published figures of papers and leaderboards (``results/published/*.csv``) matched with measured
ones.

A figure is read as it was printed. A match states by how much ours differs, and what may explain
it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, BeforeValidator, FiniteFloat, ValidationError

from specbench.input import cut, decode_text, describe, read_file
from specbench.records.manifest import spell_value
from specbench.records.record import OVERALL
from specbench.records.store import Run, RunError
from specbench.report.frames.facts import Facts, read_parameters, read_settings
from specbench.report.frames.findings import Findings
from specbench.report.frames.reported import ReportedRun
from specbench.report.label import BLANK, Cell, format_number, format_rate
from specbench.report.table import KEYS, Table
from specbench.report.writers import write_tables
from specbench.stats import MIN_CASES

PACKAGE = Path(__file__).resolve().parents[1]
DEFINITION, TRACE, HARDWARE = "definition", "trace", "hardware"


def _pairs(text: object) -> object:
    """'k=10;w=10' -> {'k': '10', 'w': '10'}."""
    if not isinstance(text, str):
        return text
    entries = [entry.partition("=") for entry in text.split(";") if entry]
    if not all(equals for _, equals, _ in entries):
        raise ValueError("expected KEY=VALUE;KEY=VALUE")
    return {key: value for key, _, value in entries}


Pairs = Annotated[dict[str, str], BeforeValidator(_pairs)]


class PublishedFigure(BaseModel, frozen=True):
    """A printed figure, a row of a file; results/published/README.md defines each column.

    model, suite, category, method, metric: in this harness's names, '' = it has none. name: the row
    as printed. setting: what distinguishes the row from others of the method. setup: how the source
    measured, where it states it. needs: the most that it takes to measure it again.
    """

    source: str
    table: str
    model: str
    suite: str
    category: str
    method: str
    name: str
    setting: Pairs
    metric: str
    value: FiniteFloat
    spread: str
    printed: str
    needs: Literal["definition", "trace", "weights", "hardware"]
    setup: Pairs
    corpus: str
    hardware: str
    date: str
    url: str

    @property
    def place(self) -> tuple[str, str]:
        """Source and table."""
        return self.source, self.table


COLUMNS = tuple(PublishedFigure.model_fields)


def published_dir() -> Path:
    """Inside an installed package, or ``results/published`` of a checkout."""
    inside = PACKAGE / "published"
    return inside if inside.is_dir() else PACKAGE.parent / "results" / "published"


def read_published(folder: Path | None = None) -> list[PublishedFigure]:
    """Every figure, file by file. Raises RunError naming the file, the line and what is wrong
    there.
    """
    folder = folder or published_dir()
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise RunError(
            f"{folder}: has no csv; expected the published figures, which are part of an"
            " installation"
        )
    return [figure for path in files for figure in _read_file(path)]


def _read_file(path: Path) -> Iterable[PublishedFigure]:
    text = decode_text(read_file(path, "", "expected a csv file"), str(path))
    header = ",".join(COLUMNS)
    if (first := text.partition("\n")[0].rstrip("\r")) != header:
        raise RunError(f"{path}: has the columns {cut(first)}; expected {header}")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    for number, row in enumerate(reader, 2):
        if None in row or None in row.values():
            fix = "expected one a column, and quotes around text with a comma"
            raise RunError(f"{path}, line {number}: has not {len(COLUMNS)} cells; {fix}")
        try:
            yield PublishedFigure.model_validate(row)
        except ValidationError as error:
            raise RunError(f"{path}, line {number}: {describe(error)}") from None


MAT_TOLERANCE = 0.03  # half of it is rounding, the rest near ties and how the prefill is counted
REPRODUCED, PARTIAL, DIFFERS, SHOWN = "reproduced", "partial", "differs", ""
# suite settings that leave questions out
NARROWED = ("limit", "first", "sample", "categories", "part", "ids")
UNSTATED = "nothing that the manifest or the source states"
_SPEEDUPS = ("speedup_hf", "speedup")  # the papers' denominator where it was measured, else vanilla
_LENGTH, _DTYPE, _PREFILL = "decode.max_new_tokens", "model.dtype", "prefill"


@dataclass(frozen=True, slots=True)
class Match:
    """One published figure next to ours. verdict: reproduced | partial | differs | ''.

    partial: of a part of the questions, or with failed cases, and near, or in our interval. '': a
    time, or a MAT of too few cases; it is shown and not compared.
    """

    figure: PublishedFigure
    variant: str
    ours: float
    verdict: str
    notes: tuple[str, ...]
    ran_on: str

    @property
    def difference(self) -> float:
        """Returns our figure minus theirs."""
        return self.ours - self.figure.value


def compare(findings: Findings, figures: Sequence[PublishedFigure]) -> list[Match]:
    """Returns every published figure with a counterpart in a run, in the order of the files, then
    of the runs.
    """
    rows = {tuple(row[key] for key in KEYS): row for row in findings.summary.to_dict("records")}
    found: list[Match] = []
    for figure in figures:
        for reported in findings.reported:
            if figure.method not in reported.facts.methods:
                continue  # another run's row would be found under its name
            model, suite, method, variant = reported.key(figure.method)
            row = rows.get((model, suite, figure.category, method, variant))
            if row is not None and _belongs(reported, figure, figures):
                found += _matched(reported, row, figure)
    return found


def _belongs(
    reported: ReportedRun, figure: PublishedFigure, figures: Sequence[PublishedFigure]
) -> bool:
    """Whether the run's row is this row, with the method set as there; a row without a temperature
    is greedy.

    Tables of other models only if the suite has no tables.
    """
    facts = reported.facts
    if not (
        figure.model
        and figure.method
        and figure.suite == facts.suite
        and figure.needs != DEFINITION
    ):
        return False
    own = _same_model(facts.model, figure.model)
    if not own and any(
        _same_model(facts.model, each.model) for each in figures if each.suite == facts.suite
    ):
        return False
    found = _settings(reported, figure.method)
    return all(
        _alike(found.get(key), value)
        for key, value in {"decode.temperature": "0", **figure.setting}.items()
    )


def describe_unmatched(findings: Findings, figures: Sequence[PublishedFigure]) -> Iterator[str]:
    """Why no published figure is next to a run's: what ran, then the tables of each suite, with
    shared methods.
    """
    ran = {name for facts in findings.facts for name in facts.methods}
    models = ", ".join(dict.fromkeys(f"{facts.model} on {facts.suite}" for facts in findings.facts))
    yield f"No published figure matches {models} with {', '.join(sorted(ran))}."
    yield (
        "Expected one of the suites below, as suite=spec_bench suite.path=question.jsonl, also with"
        " +size=small."
    )
    yield f"{published_dir()}/*.csv have (methods of this run):"
    suites: dict[str, list[PublishedFigure]] = {}
    for figure in figures:
        if figure.suite and figure.method and figure.model and figure.needs != DEFINITION:
            suites.setdefault(figure.suite, []).append(figure)
    for suite, rows in suites.items():
        shared = [name for name in dict.fromkeys(figure.method for figure in rows) if name in ran]
        why = (
            "set otherwise: "
            if shared and suite in {facts.suite for facts in findings.facts}
            else ""
        )
        why += ", ".join(shared) or "none of these methods"
        named = "; ".join(dict.fromkeys(" ".join(figure.place) for figure in rows))
        yield f"  suite={suite} ({why}): {named}"


def _matched(
    reported: ReportedRun, row: Mapping[str, Any], figure: PublishedFigure
) -> Iterator[Match]:
    run, facts = reported.run, reported.facts
    columns = _SPEEDUPS if figure.metric == "speedup" else (figure.metric,)
    known = [
        name
        for name in columns
        if isinstance(row.get(name), int | float) and not pd.isna(row[name])
    ]
    if not known:
        return
    ours = float(row[known[0]])
    notes = _find_differences(reported, figure)
    if row["errors"]:
        notes.append(f"{row['errors']} case{'s' if row['errors'] > 1 else ''} failed")
    verdict = SHOWN
    if figure.metric == "mat":
        complete = _is_whole(run, facts) and not _unfinished(reported) and not row["errors"]
        near = abs(ours - figure.value) <= MAT_TOLERANCE + 1e-9
        if not (near or complete) and (near := row["mat_low"] <= figure.value <= row["mat_high"]):
            notes.append("in our 95 % interval")
        agrees = _same_model(facts.model, figure.model) and near
        verdict = (REPRODUCED if complete else PARTIAL) if agrees else DIFFERS
        if verdict == DIFFERS and not complete and pd.isna(row["mat_low"]):
            verdict = SHOWN
            notes.append(f"under {MIN_CASES} cases are too few to compare")
    elif figure.metric == "speedup" and known[0] == "speedup":
        notes.append("speedup over vanilla, not over Hugging Face")
    if figure.needs == HARDWARE:
        notes.append("another machine")
    unstated = (UNSTATED,) if verdict == DIFFERS else ()
    yield Match(
        figure, row["variant"], ours, verdict, tuple(notes) or unstated, _machine(run, facts)
    )


def _machine(run: Run, facts: Facts) -> str:
    """Returns the GPUs that the target ran on, else the processor; a replay ran no target."""
    if not facts.timed:
        return "replayed answers"
    machine = run.section("machine")
    gpus = [str(gpu["name"]) for gpu in machine.get("gpus", ())]
    if gpus and not facts.device.startswith("cpu"):
        return " + ".join(gpus)
    return str(machine.get("cpu") or "unknown")


def _same_model(measured: str, published: str) -> bool:
    """A trace names its model with a tail: 'vicuna-7b-v1.3-vanilla-float16-temp-0.0' is
    'vicuna-7b-v1.3'.
    """
    return bool(published) and (measured == published or measured.startswith(f"{published}-"))


def _is_whole(run: Run, facts: Facts) -> bool:
    """Returns whether all questions of the suite were asked and their number is the official
    one.
    """
    suite = run.section("config", "suite")
    official = suite.get("expected") in (None, facts.planned)
    return official and all(suite.get(key) is None for key in NARROWED)


def _unfinished(reported: ReportedRun) -> list[str]:
    """'200 of 480 cases are recorded'; nothing if all are, or their number is not known."""
    seen, planned = len(reported.trials.cases), reported.facts.planned
    return [f"{seen} of {planned} cases are recorded"] if planned and seen < planned else []


def _find_differences(reported: ReportedRun, figure: PublishedFigure) -> list[str]:
    """Returns what differs, one entry each, the model first; empty if no difference is known."""
    run, facts = reported.run, reported.facts
    found = (
        []
        if _same_model(facts.model, figure.model)
        else [f"model {facts.model}, not {figure.model}"]
    )
    found += [] if _is_whole(run, facts) else [f"{facts.planned} of the suite's questions"]
    found += _unfinished(reported)
    given = run.section("config", "model").get("tokenizer")
    if not facts.timed and ";" in facts.trace:  # answers that were kept as text are tokenised anew
        found.append(f"tokenizer: answers tokenised anew, {facts.trace.rpartition(';')[2].strip()}")
    elif facts.timed and given:
        found.append(f"tokenizer {Path(str(given)).name}")
    found += _compare_setup(reported, figure)
    if figure.corpus:
        inputs = run.section("methods", figure.method, "inputs")
        files = ", ".join(Path(path).name for path in inputs)
        found.append(
            f"corpus of {files}, not {figure.corpus}"
            if files
            else f"no corpus, theirs {figure.corpus}"
        )
    return found


def _compare_setup(reported: ReportedRun, figure: PublishedFigure) -> Iterator[str]:
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
        yield (
            "the prefill is a step that verifies the first draft (decode.first_draft=prefill),"
            " theirs may not be"
        )


def _settings(reported: ReportedRun, method: str) -> dict[str, Any]:
    """'decode.temperature', 'suite.order', 'model.template' ... and the method's own parameters by
    their names.
    """
    return read_settings(reported.run, reported.facts) | read_parameters(reported.run, method)


def _alike(found: Any, wanted: str) -> bool:
    """A manifest's value against a table's text: 10 is '10', 0.0 is '0', True is 'true'."""
    if isinstance(found, int | float) and not isinstance(found, bool):
        try:
            return float(wanted) == float(found)
        except ValueError:
            return False
    return str(found).lower() == wanted.lower()


NAME = "published"
TITLES = {
    "mat": "MAT",
    "speedup": "speedup",
    "tokens_per_s": "tokens/s",
    "target_compute": "target compute",
}
_WRITTEN: dict[str, Callable[[float], str]] = {
    "mat": lambda value: format_number(value, 3),
    "tokens_per_s": format_rate,
}
_TASK = "Task"
_HEADER = ("Row there: ours", _TASK, "Figure", "Paper", "Ours", "Difference", "Verdict", "Notes")
_JUDGED = (
    f"MAT within {MAT_TOLERANCE} is reproduced; partial if questions are left out or cases failed,"
    " and then also in our 95 % interval; times of another machine are shown and not compared."
)


def published_tables(matches: Sequence[Match], figures: Sequence[PublishedFigure]) -> list[Table]:
    """The summary, with the overall figures and all notes, then each published table that has a
    counterpart.

    A table without an overall figure has all of its figures in the summary. figures: all that were
    published.
    """
    notes = dict.fromkeys(note for match in matches for note in _notes(match))
    shared = [note for note in notes if all(note in _notes(match) for match in matches)]
    letters = {
        note: _letters(n) for n, note in enumerate(note for note in notes if note not in shared)
    }
    machines = ", ".join(dict.fromkeys(match.ran_on for match in matches))
    shown, details = [], []
    for place in dict.fromkeys(match.figure.place for match in matches):
        own = [match for match in matches if match.figure.place == place]
        first, printed = own[0].figure, sum(figure.place == place for figure in figures)
        words, last = place[1].partition(" "), place[0].rpartition(" ")[2]
        source = (
            f"{place[0]} {words[2]}" if words[0].lower() == last.lower() else ", ".join(place)
        )  # not "leaderboard, leaderboard"
        date = f" ({first.date})" if first.date else ""
        count = len({id(match.figure) for match in own})
        where = (
            f"{source}{date}, measured on: {first.hardware or 'hardware not stated'}; ours:"
            f" {machines}."
        )
        meaning = f"Figures with a counterpart here: {count} of {printed}."
        name, rows = (
            f"{NAME} {first.source} {first.table}",
            tuple(_row(match, letters) for match in own),
        )
        details.append(Table(name, where, meaning, _HEADER, rows, labels=2, spread=False))
        for match in [match for match in own if match.figure.category == OVERALL] or own:
            there, task, *cells = _row(match, letters)
            named = there if task.text == OVERALL else Cell(f"{there.text}, {task.text}")
            shown.append((Cell(source), named, *cells))
    legend = [
        *([f"All: {'; '.join(shared)}."] if shared else []),
        *(f"{letter}: {note}." for note, letter in letters.items()),
    ]
    header = ("Source", *(title for title in _HEADER if title != _TASK))
    meaning = " ".join([_JUDGED, *legend])
    return [
        Table(NAME, f"Ours: {machines}.", meaning, header, tuple(shown), labels=2, spread=False),
        *details,
    ]


def _notes(match: Match) -> list[str]:
    """The variant of the run, then the notes."""
    return [*([f"run with {match.variant}"] if match.variant else []), *match.notes]


def _letters(number: int) -> str:
    """A ... z, aa, ab ..."""
    high, low = divmod(number, len(ascii_lowercase))
    return (_letters(high - 1) if high else "") + ascii_lowercase[low]


def _row(match: Match, letters: Mapping[str, str]) -> tuple[Cell, ...]:
    figure = match.figure
    setting = ", ".join(f"{key}={value}" for key, value in figure.setting.items())
    write = _WRITTEN.get(figure.metric, format_number)
    there = f"{figure.name} [{setting}]" if setting else figure.name
    sign = "+" if match.difference >= 0 else "-"
    texts: tuple[str, ...] = (
        f"{there}: {figure.method}",
        figure.category,
        TITLES.get(figure.metric, figure.metric),
        figure.printed,
    )
    texts += (write(match.ours), f"{sign}{write(abs(match.difference))}", match.verdict or BLANK)
    return tuple(
        map(
            Cell,
            (*texts, " ".join(sorted(letters[note] for note in _notes(match) if note in letters))),
        )
    )


def published_frame(matches: Sequence[Match]) -> pd.DataFrame:
    """Returns one row per pair of figures, unrounded, with its notes in words."""
    kept = {
        "source",
        "table",
        "model",
        "suite",
        "category",
        "name",
        "method",
        "metric",
        "printed",
        "date",
        "url",
    }
    columns = [
        "source",
        "table",
        "model",
        "suite",
        "category",
        "name",
        "setting",
        "method",
        "variant",
        "metric",
    ]
    columns += [
        "published",
        "printed",
        "ours",
        "difference",
        "verdict",
        "note",
        "published_on",
        "ours_on",
    ]
    rows = [
        match.figure.model_dump(include=kept)
        | {
            "setting": ";".join(f"{key}={value}" for key, value in match.figure.setting.items()),
            "variant": match.variant,
            "published": match.figure.value,
            "ours": match.ours,
            "difference": match.difference,
            "verdict": match.verdict,
            "note": "; ".join(match.notes),
            "published_on": match.figure.hardware,
            "ours_on": match.ran_on,
        }
        for match in matches
    ]
    return pd.DataFrame(rows, columns=[*columns, "date", "url"])


def write_published(matches: Sequence[Match], tables: Sequence[Table], output: Path) -> list[Path]:
    """tables/published.csv, unrounded, .md and .tex. Returns the files."""
    return write_tables(output, NAME, tables, **{NAME: published_frame(matches)})


def summarise_verdicts(matches: Sequence[Match]) -> str:
    """A closing line: how many MATs were compared and how many of them every run agrees on."""
    judged: dict[int, set[str]] = {}
    for match in matches:
        if match.verdict:
            judged.setdefault(id(match.figure), set()).add(match.verdict)
    agree = sum(verdicts == {REPRODUCED} for verdicts in judged.values())
    partial = sum(verdicts == {PARTIAL} for verdicts in judged.values())
    more = f", {partial} more in part" if partial else ""
    others = sum(not match.verdict for match in matches)
    return (
        f"{agree} of {len(judged)} compared MATs are reproduced{more}; {others} other figures are"
        f" in {NAME}.md."
    )
