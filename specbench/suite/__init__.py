"""Suites: the questions of a benchmark as cases, and the prompts that a target is given for them.

A suite has a place with questions, a format to read them by and a form to put them in, plus a
selection. Its origin and hash are kept with the cases and written to the manifest of a run.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from specbench.names import suite_name
from specbench.records.record import OVERALL
from specbench.suite.format import HubTables, SuiteFormat, Wording
from specbench.suite.formats import format_named
from specbench.suite.number import count_unread
from specbench.suite.settings import SuiteConfig, select, whole_of
from specbench.suite.sources import locate
from specbench.types import Case, InputError

_SHOTS_SPLIT = "train"  # never the split that is measured


@dataclass(frozen=True, slots=True)
class Suite:
    """The selected cases of a benchmark, and where they are from.

    origin: path of the file or folder, or name of the data set on the hub.
    sha256: of the bytes of the files on disk (packed, if gzipped), concatenated; of the rows for a
    data set. With worked examples, of that hash and the one of the examples' file. warnings: what
    makes the numbers hard to compare with others', for the run's manifest. whole: the cases of
    which a selection with a ``part`` keeps some; empty without one.
    """

    name: str
    cases: tuple[Case, ...]
    origin: str
    sha256: str
    warnings: tuple[str, ...] = ()
    whole: tuple[Case, ...] = ()


def load_suite(settings: SuiteConfig) -> Suite:
    """Finds, reads and narrows a suite.

    Raises:
        InputError: a file is missing or malformed, the format or form is unknown, or the selection
            names what the suite does not have.
    """
    if not settings.name and not settings.path:
        raise InputError(
            "suite.path: not set; expected a file of questions, or one of the suites by suite=NAME"
        )
    name = settings.name or suite_name(settings.path or "")
    reader = format_named(settings.format or (None if settings.name else "own"))
    fields = {ours: theirs for ours, theirs in vars(settings.fields).items() if theirs}
    for key, value in (
        *((f"fields.{each}", name) for each, name in fields.items()),
        ("frame", settings.frame),
    ):
        if value and not reader.own:
            raise InputError(
                f"suite.{key}={value}: is for prompts of your own (suite.path=FILE); leave it out."
            )
    form = reader.choose_form(settings.form)
    place = locate(
        name, settings.path, settings.relative, settings.hub, home=settings.home, holds=reader.holds
    )
    rows, digest = reader.read_rows(place)
    prefix, shots_digest = _write_shots(name, settings, reader, form)
    cases = reader.cases(rows, Wording(form, prefix, fields, settings.frame), str(place))
    if taken := [case.id for case in cases if OVERALL in (case.category, case.subcategory)]:
        raise InputError(
            f"{place}: question {taken[0]} is of category {OVERALL!r}, which is the row of all"
            " categories; rename it"
        )
    selected = select(cases, settings)
    found = _warnings(settings, place, len(cases), digest, selected)
    warnings = tuple(f"Suite {name}: {warning}" for warning in found)
    if shots_digest:
        digest = hashlib.sha256(f"{digest} {shots_digest}".encode()).hexdigest()
    return Suite(name, selected, str(place), digest, warnings, whole_of(cases, settings))


def _warnings(
    settings: SuiteConfig,
    place: Path | HubTables,
    count: int,
    digest: str,
    selected: Sequence[Case],
) -> Iterator[str]:
    """Yields what makes the numbers hard to compare."""
    if settings.expected is not None and count != settings.expected:
        yield f"{place} has {count} questions, the official file has {settings.expected}."
    # A data set on the hub is hashed by its rows, which no file's hash can equal.
    if (
        settings.sha256 is not None
        and isinstance(place, Path)
        and digest != settings.sha256.lower()
    ):
        yield f"{place} has sha256 {digest}, the official file has {settings.sha256.lower()}."
    if unread := count_unread(selected):
        yield (
            f"{unread} of {len(selected)} references stand in \\boxed, and math-verify is not"
            " installed: only plain numbers among them are compared, so the share of correct"
            " answers is of fewer questions; pip install 'specbench[math]'."
        )


def _write_shots(
    name: str, settings: SuiteConfig, format: SuiteFormat, form: str
) -> tuple[str, str]:
    """Returns the worked examples as the text in front of every question, and the SHA-256 of their
    file.

    They keep the order of their file, so a file of exactly that many rows is used in its order.
    Raises InputError for an invalid form, for a missing file, and for one with too few rows.
    """
    count, hub = settings.shots, settings.hub
    if not count:
        return "", ""
    if format.shot is None:
        raise InputError(
            f"suite.shots={count}: this suite's format has no worked examples; leave it out."
        )
    if form != format.shot_form:
        raise InputError(
            f"suite.shots={count}: suite.form={form} puts no examples in front of a question; "
            f"set suite.form={format.shot_form}, or leave suite.shots out."
        )
    near = str(
        PurePosixPath(settings.relative or f"{name}/test.jsonl").with_name(f"{_SHOTS_SPLIT}.jsonl")
    )
    train = replace(hub, split=_SHOTS_SPLIT, file=None) if hub and any(vars(hub).values()) else None
    key = "suite.shots_from"
    place = locate(
        f"{name} examples", settings.shots_from, near, train, key=key, holds=format.holds
    )
    rows, digest = format.read_rows(place, key)
    if fault := next((row.fault for row in rows if row.fault), ""):
        raise InputError(fault)
    if len(rows) < count:
        raise InputError(
            f"suite.shots={count}: {place} has {len(rows)} rows. Ask for fewer, or name another"
            " file."
        )
    drawn = sorted(random.Random(f"shots {settings.shots_seed}").sample(range(len(rows)), count))
    return "".join(format.shot(rows[index]) for index in drawn), digest
