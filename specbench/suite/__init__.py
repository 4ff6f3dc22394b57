"""Suites: the questions of a benchmark as cases, and the prompts that a target is given for them.

A suite is a place with questions, a format to read them by and a form to put them in, plus a selection. Its origin and
hash stay with the cases and go into the manifest of a run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.records.record import OVERALL
from specbench.suite.format import Wording
from specbench.suite.formats import format_named
from specbench.suite.number import count_unread
from specbench.suite.own import OWN, count_system
from specbench.suite.prompt import PromptBuilder, answer_text
from specbench.suite.rows import SourceRow
from specbench.suite.selection import EVERYTHING, Selection, select
from specbench.suite.shots import Shots, worked
from specbench.suite.sources import HubAddress, HubTables, locate
from specbench.types import Case, InputError

__all__ = ["PromptBuilder", "Selection", "Shots", "Suite", "answer_text", "load_suite", "select", "whole_of"]

NO_SHOTS = Shots()


@dataclass(frozen=True, slots=True)
class Suite:
    """The selected cases of a benchmark, and where they are from.

    origin: path of the file or folder, or name of the data set on the hub.
    sha256: of the bytes of the files as they lie on disk (packed, if gzipped), one after the other; of the rows for a
    data set. With worked examples, of that hash and the one of the examples' file.
    warnings: what makes the numbers hard to compare with others', for the run's manifest.
    whole: the cases that a selection with a ``part`` takes its own from; empty without one.
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
    """Find, read and narrow a suite.

    path, relative, hub, home: where it is (see ``sources.locate``). format: how it is read, one of
    ``formats.FORMATS``.
    form: how a question is put, one of the format's. shots: worked examples in front of every question.
    fields: what a case needs -> the file's name of it; frame: the text around a prompt: of prompts of one's own only.
    expected: how many questions the official suite has; sha256: its file's hash; another number or hash is a warning.
    Raises InputError for a file that is missing or malformed, for an unknown format or form, and for a selection
    that names what is not there.
    """
    reader = format_named(format)
    chosen = reader.choose_form(form)
    for key, value in (("fields", dict(fields or {})), ("frame", frame)):
        if value and not reader.own:
            raise InputError(f"suite.{key}={value}: is for prompts of your own (suite.path=FILE); leave it out.")
    place = locate(name, path, relative, hub, home=home, holds=reader.holds)
    rows, digest = reader.read_rows(place)
    prefix, shots_digest = worked(name, shots, reader, chosen, relative, hub)
    cases = reader.cases(rows, Wording(chosen, prefix, fields or {}, frame), str(place))
    _refuse_overall(cases, str(place))
    selected = select(cases, selection)
    warnings = [
        *(_warn_of_system(rows) if reader is OWN else ()),
        *_warn_of_unofficial(place, len(cases), digest, expected, sha256),
        *_warn_of_unread(selected),
    ]
    if shots_digest:
        digest = hashlib.sha256(f"{digest} {shots_digest}".encode()).hexdigest()
    told = tuple(f"Suite {name}: {warning}" for warning in warnings)
    return Suite(name, tuple(selected), str(place), digest, told, whole_of(cases, selection))


def _refuse_overall(cases: Sequence[Case], place: str) -> None:
    if taken := [case.id for case in cases if OVERALL in (case.category, case.subcategory)]:
        raise InputError(
            f"{place}: question {taken[0]} is of category {OVERALL!r}, which is the row of all categories; rename it"
        )


def _warn_of_system(rows: Sequence[SourceRow]) -> Iterator[str]:
    if count := count_system(rows):
        yield f"{count} rows have a system message, which is left out; model.system sets one."


def _warn_of_unofficial(
    place: Path | HubTables, count: int, digest: str, expected: int | None, sha256: str | None
) -> Iterator[str]:
    if expected is not None and count != expected:
        yield f"{place} has {count} questions, the official file has {expected}."
    # A data set on the hub is hashed by its rows, which no file's hash can equal.
    if sha256 is not None and isinstance(place, Path) and digest != sha256.lower():
        yield f"{place} has sha256 {digest}, the official file has {sha256.lower()}."


def _warn_of_unread(selected: Sequence[Case]) -> Iterator[str]:
    if count := count_unread(selected):
        yield (
            f"{count} of {len(selected)} references stand in \\boxed, and math-verify is not installed:"
            " only plain numbers among them are compared, so the share of correct answers is of fewer questions;"
            " pip install 'specbench[math]'."
        )


def whole_of(cases: Sequence[Case], selection: Selection) -> tuple[Case, ...]:
    """What the part of a selection is a part of; empty where it has none."""
    return tuple(select(cases, replace(selection, part=None))) if selection.part is not None else ()
