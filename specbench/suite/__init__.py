"""Suites: the questions of a benchmark as cases, and the prompts that a target is given for them.

A suite has a place with questions, a format to read them by and a form to put them in, plus a selection. Its origin
and hash are kept with the cases and written to the manifest of a run.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from specbench.records.record import OVERALL
from specbench.suite.format import HubTables, SuiteFormat, Wording
from specbench.suite.formats import format_named
from specbench.suite.number import count_unread
from specbench.suite.own import count_system
from specbench.suite.prompt import PromptBuilder, answer_text
from specbench.suite.selection import EVERYTHING, Selection, select
from specbench.suite.sources import HubAddress, locate
from specbench.types import Case, InputError

__all__ = ["PromptBuilder", "Selection", "Shots", "Suite", "answer_text", "load_suite", "select", "whole_of"]

_SHOTS_SPLIT = "train"  # never the split that is measured


@dataclass(frozen=True, slots=True)
class Shots:
    """Worked examples in front of every question (few-shot prompting), drawn once for the suite.

    count: how many. seed: of their draw only, so another sample or order of the suite leaves the prompts unchanged.
    source: a file of the suite's format; None for ``train.jsonl`` next to the suite's own file, then the train split
    of its data set on the hub.
    """

    count: int = 0
    seed: int = 0
    source: str | os.PathLike[str] | None = None


NO_SHOTS = Shots()


@dataclass(frozen=True, slots=True)
class Suite:
    """The selected cases of a benchmark, and where they are from.

    origin: path of the file or folder, or name of the data set on the hub.
    sha256: of the bytes of the files on disk (packed, if gzipped), concatenated; of the rows for a data set. With
    worked examples, of that hash and the one of the examples' file.
    warnings: what makes the numbers hard to compare with others', for the run's manifest.
    whole: the cases of which a selection with a ``part`` keeps some; empty without one.
    """

    name: str
    cases: tuple[Case, ...]
    origin: str
    sha256: str
    warnings: tuple[str, ...] = ()
    whole: tuple[Case, ...] = ()


def load_suite(
    name: str,
    *,
    path: str | os.PathLike[str] | None = None,
    relative: str | None = None,
    hub: HubAddress | None = None,
    home: str | None = None,
    format: str | None = None,
    form: str | None = None,
    shots: Shots = NO_SHOTS,
    expected: int | None = None,
    sha256: str | None = None,
    selection: Selection = EVERYTHING,
    fields: Mapping[str, str] | None = None,
    frame: str | None = None,
) -> Suite:
    """Finds, reads and narrows a suite.

    Args:
        name: of the suite, for its default place and its warnings.
        path: its file or folder.
        relative: its place below ``$SPECBENCH_DATA/suites``.
        hub: its address on the Hugging Face hub (see ``sources.locate``).
        home: where its authors publish it, for errors.
        format: how it is read, one of ``formats.FORMATS``.
        form: how a question is put, one of the format's.
        shots: worked examples in front of every question.
        expected: the number of questions of the official suite; another number is a warning.
        sha256: of the official file; another hash is a warning.
        selection: the cases to keep, and their order.
        fields: what a case needs -> the file's name of it; only for the user's own prompts.
        frame: the text around a prompt; only for the user's own prompts.

    Returns:
        The selected cases with their origin.

    Raises:
        InputError: a file is missing or malformed, the format or form is unknown, or the selection names what the
            suite does not have.
    """
    reader = format_named(format)
    chosen = reader.choose_form(form)
    for key, value in (("fields", dict(fields or {})), ("frame", frame)):
        if value and not reader.own:
            raise InputError(f"suite.{key}={value}: is for prompts of your own (suite.path=FILE); leave it out.")
    place = locate(name, path, relative, hub, home=home, holds=reader.holds)
    rows, digest = reader.read_rows(place)
    prefix, shots_digest = _write_shots(name, shots, reader, chosen, relative, hub)
    cases = reader.cases(rows, Wording(chosen, prefix, fields or {}, frame), str(place))
    if taken := [case.id for case in cases if OVERALL in (case.category, case.subcategory)]:
        raise InputError(
            f"{place}: question {taken[0]} is of category {OVERALL!r}, which is the row of all categories; rename it"
        )
    selected = select(cases, selection)
    system = count_system(rows) if format == "own" else 0
    found = _warnings(place, len(cases), digest, expected, sha256, system, selected)
    warnings = tuple(f"Suite {name}: {warning}" for warning in found)
    if shots_digest:
        digest = hashlib.sha256(f"{digest} {shots_digest}".encode()).hexdigest()
    return Suite(name, tuple(selected), str(place), digest, warnings, whole_of(cases, selection))


def _warnings(
    place: Path | HubTables,
    count: int,
    digest: str,
    expected: int | None,
    sha256: str | None,
    system: int,
    selected: Sequence[Case],
) -> Iterator[str]:
    if system:
        yield f"{system} rows have a system message, which is left out; model.system sets one."
    if expected is not None and count != expected:
        yield f"{place} has {count} questions, the official file has {expected}."
    # A data set on the hub is hashed by its rows, which no file's hash can equal.
    if sha256 is not None and isinstance(place, Path) and digest != sha256.lower():
        yield f"{place} has sha256 {digest}, the official file has {sha256.lower()}."
    if unread := count_unread(selected):
        yield (
            f"{unread} of {len(selected)} references stand in \\boxed, and math-verify is not installed:"
            " only plain numbers among them are compared, so the share of correct answers is of fewer questions;"
            " pip install 'specbench[math]'."
        )


def _write_shots(
    name: str, shots: Shots, format: SuiteFormat, form: str, relative: str | None, hub: HubAddress | None
) -> tuple[str, str]:
    """Returns the worked examples as the text in front of every question, and the SHA-256 of their file.

    They keep the order of their file, so a file of exactly ``count`` rows is used whole and in order. Raises
    InputError for an invalid count or form, for a missing file, and for one with too few rows.
    """
    for key, value in (("shots", shots.count), ("shots_seed", shots.seed)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"suite.{key}={value!r}: expected a whole number.")
    if shots.count < 0:
        raise InputError(f"suite.shots={shots.count}: expected a whole number of at least 0.")
    if not shots.count:
        return "", ""
    if format.shot is None:
        raise InputError(f"suite.shots={shots.count}: this suite's format has no worked examples; leave it out.")
    if form != format.shot_form:
        raise InputError(
            f"suite.shots={shots.count}: suite.form={form} puts no examples in front of a question; "
            f"set suite.form={format.shot_form}, or leave suite.shots out."
        )
    near = str(PurePosixPath(relative or f"{name}/test.jsonl").with_name(f"{_SHOTS_SPLIT}.jsonl"))
    there = {**hub, "split": _SHOTS_SPLIT, "file": None} if hub else None
    place = locate(f"{name} examples", shots.source, near, there, key="suite.shots_from", holds=format.holds)
    rows, digest = format.read_rows(place, "suite.shots_from")
    if fault := next((row.fault for row in rows if row.fault), ""):
        raise InputError(fault)
    if len(rows) < shots.count:
        raise InputError(
            f"suite.shots={shots.count}: {place} has {len(rows)} rows. Ask for fewer, or name another file."
        )
    drawn = sorted(random.Random(f"shots {shots.seed}").sample(range(len(rows)), shots.count))
    return "".join(format.shot(rows[index]) for index in drawn), digest


def whole_of(cases: Sequence[Case], selection: Selection) -> tuple[Case, ...]:
    """Returns the cases of which the selection's ``part`` keeps some; empty if it has no part."""
    return tuple(select(cases, replace(selection, part=None))) if selection.part is not None else ()
