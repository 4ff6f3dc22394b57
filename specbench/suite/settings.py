"""The settings of a suite: the places of its questions, the form of the prompt, and the selected
cases in their order.

Every narrowing keeps the order of the file and only the last step may shuffle, so two runs with the
same selection and seed see the same cases in the same order on every machine. The seeds are strings
given to ``random.Random``, which hashes them with SHA-512: one seed gives the sample and the
shuffle independent streams.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from specbench.input import must, one_of, when
from specbench.names import ASSETS
from specbench.types import Case, InputError

SHUFFLED = "shuffled"
_ABOVE_0 = must(lambda value: value >= 1, "a whole number of at least 1, or null for all cases")
_NAMES = must(bool, "some names, or null for all cases")


def _is_part(text: str) -> bool:
    found = re.fullmatch("([0-9]+)/([0-9]+)", text)
    return found is not None and 1 <= int(found[1]) <= int(found[2])


def is_bundled(suite: SuiteConfig) -> bool:
    """Whether the questions of a suite are those of its name in the package."""
    return suite.path is None and suite.name is not None and bundled_file(suite.name).is_file()


def bundled_file(name: str) -> Path:
    """The file of questions of a suite in the package; it need not exist."""
    return ASSETS / name / "question.jsonl"


_READ = when(
    "suite.format", lambda run: run.suite.format != "trace", "a suite of questions, as suite=NAME"
)
_FOUND = when(
    "suite.path", lambda run: run.suite.path is None or run.suite.shots > 0, "suite.path=null"
)
_SOUGHT = when(
    "suite.name",
    lambda run: not is_bundled(run.suite),
    "a suite outside of the package, as suite=gsm8k",
)
_SHOTS = when("suite.shots", lambda run: run.suite.shots > 0, "suite.shots=N")
_SEEDED = when(
    "suite.order",
    lambda run: run.suite.order == SHUFFLED or run.suite.sample is not None,
    f"suite.order={SHUFFLED} or suite.sample=N",
)
_PART = must(_is_part, "k/n with k from 1 to n, for example 1/2 for the first half")


@dataclass
class HubConfig:
    """A hub data set: one ``file`` of its repository, or one ``split`` of each of its
    ``configs``.
    """

    repo: str | None = None
    file: str | None = None
    configs: list[str] | None = None
    split: str | None = None
    revision: str | None = None


@dataclass
class FieldsConfig:
    """The fields of a case -> their names in a file of your own prompts."""

    prompt: str | None = None
    id: str | None = None
    category: str | None = None
    reference: str | None = None
    system: str | None = None


@dataclass
class SuiteConfig:
    """Group ``suite`` of the configuration; conf/suite/ has an option for each benchmark.

    name: for its default place and its warnings. path: its file or folder. relative: its place
    below ``$SPECBENCH_DATA/suites``. home: where its authors publish the file, for the message if
    it is not found. format: the reader, one of ``formats.FORMATS``; null = Spec-Bench's question
    file. form: how a question is put, null = the format's first. fields: the names of a file of
    your own prompts. frame: the only turn, ``{NAME}`` the row's field of that name.

    shots: the number of worked examples before each question, drawn with shots_seed only, so
    another sample or order leaves the prompts unchanged. shots_from: a file of the suite's format;
    null = ``train.jsonl`` next to the suite's own file, then the train split of its data set on the
    hub. expected, sha256: of the official file; another number of questions or hash is a warning.

    ids, categories, limit, first, sample and part keep some of the cases, in this order; null keeps
    all. categories: Spec-Bench tasks (``multi-turn``) or raw categories (``writing``). limit: the
    first N cases of each category (of each task: ``writing`` and ``math`` share the N of
    ``multi-turn``). sample: N cases in all, drawn with ``seed``, kept in the order of the file; all
    of them if there are fewer. part: ``k/n`` keeps every n-th case from the k-th on: the n parts
    are disjoint, have equal shares of every category and together make the complete selection.
    order: ``file``, or ``shuffled`` with ``seed``.
    """

    name: Annotated[str | None, _READ] = None
    path: Annotated[str | None, _READ] = None
    relative: Annotated[str | None, _READ, _FOUND, _SOUGHT] = None
    # OmegaConf puts no mapping in the place of a null.
    hub: Annotated[HubConfig | None, _READ, _FOUND, _SOUGHT] = field(default_factory=HubConfig)
    home: Annotated[str | None, _READ, _FOUND, _SOUGHT] = None
    format: str | None = None
    fields: Annotated[FieldsConfig, _READ] = field(default_factory=FieldsConfig)
    frame: Annotated[str | None, _READ] = None
    form: Annotated[str | None, _READ] = None
    shots: Annotated[int, must(lambda value: value >= 0, "a whole number of at least 0"), _READ] = 0
    shots_seed: Annotated[int, _SHOTS] = 0
    shots_from: Annotated[str | None, _SHOTS] = None
    expected: Annotated[int | None, _READ] = None
    sha256: Annotated[str | None, _READ] = None
    categories: Annotated[list[str] | None, _NAMES] = None
    limit: Annotated[int | None, _ABOVE_0] = None
    sample: Annotated[int | None, _ABOVE_0] = None
    seed: Annotated[int, _SEEDED] = 0
    first: Annotated[int | None, _ABOVE_0] = None
    part: Annotated[str | None, _PART] = None
    ids: Annotated[list[str] | None, _NAMES] = None
    order: Annotated[str, one_of("file", SHUFFLED)] = "file"


_SHOWN = 8  # how many names of a long list an error shows
# the narrowings, in the order they are applied
_KEYS = ("ids", "categories", "limit", "first", "sample", "part")


def select(cases: Sequence[Case], settings: SuiteConfig) -> tuple[Case, ...]:
    """Keeps the cases that the settings name: by ids, categories, limit, first, sample and part in
    turn.

    Returns:
        The kept cases, in the order of the settings.

    Raises:
        InputError: an id or category is unknown, or no case is left; the message names the key.
    """
    kept = list(cases)
    if settings.ids is not None:
        _require_known("ids", settings.ids, [case.id for case in cases])
        wanted = set(settings.ids)
        kept = [case for case in kept if case.id in wanted]
    if settings.categories is not None:
        raw = [case.subcategory for case in cases if case.subcategory]
        _require_known(
            "categories", settings.categories, [*(case.category for case in cases), *raw]
        )
        kept = [
            case
            for case in kept
            if not {case.category, case.subcategory}.isdisjoint(settings.categories)
        ]
    if settings.limit is not None:
        kept = _first_of_each(kept, settings.limit)
    kept = kept[: settings.first]
    if settings.sample is not None:
        draw = random.Random(f"sample {settings.seed}")
        kept = [
            kept[index]
            for index in sorted(draw.sample(range(len(kept)), min(settings.sample, len(kept))))
        ]
    if settings.part is not None:
        start, step = map(int, settings.part.split("/"))
        kept = kept[start - 1 :: step]
    if not kept:
        raise InputError(_nothing_left(cases, settings))
    if settings.order == SHUFFLED:
        random.Random(f"order {settings.seed}").shuffle(kept)
    return tuple(kept)


def whole_of(cases: Sequence[Case], settings: SuiteConfig) -> tuple[Case, ...]:
    """Returns the cases of which ``suite.part`` keeps some; empty if it is not set."""
    return select(cases, replace(settings, part=None)) if settings.part is not None else ()


def _first_of_each(cases: Sequence[Case], limit: int) -> list[Case]:
    seen: Counter[str] = Counter()
    kept = []
    for case in cases:
        seen[case.category] += 1
        if seen[case.category] <= limit:
            kept.append(case)
    return kept


def _require_known(key: str, wanted: Sequence[str], there: Sequence[str]) -> None:
    known = dict.fromkeys(there)
    wanted = list(dict.fromkeys(wanted))
    unknown = [name for name in wanted if name not in known]
    if not unknown:
        return
    close = dict.fromkeys(
        match for name in unknown for match in get_close_matches(name, known, n=3)
    )
    hint = f"; did you mean {', '.join(close)}?" if close else "."
    raise InputError(
        f"suite.{key}={_listed(wanted)}: the suite has no {_listed(unknown)}{hint} "
        f"It has {_listed(list(known))}. Fix suite.{key}, or leave it out for all cases."
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    # A list that is not much longer is shown whole: the categories of a suite, but not its ids.
    if more <= _SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN])} ... {names[-1]} ({len(names)} in all)"


def _nothing_left(cases: Sequence[Case], settings: SuiteConfig) -> str:
    if not cases:
        return "The suite has no cases to select from: check the file that suite.path names."
    given = {key: value for key in _KEYS if (value := getattr(settings, key)) is not None}
    keys = (
        f"suite.{key}={_listed(value) if isinstance(value, list) else value}"
        for key, value in given.items()
    )
    counts = Counter(case.category for case in cases)
    there = ", ".join(f"{category} ({count})" for category, count in counts.items())
    left = f"{', '.join(keys)} leaves no case of {len(cases)}"
    return f"{left}. There are {there}. Leave one of these keys out, or widen it."
