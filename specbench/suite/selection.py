"""The cases of a suite that a run decodes, and their order: pure functions on lists of cases.

Every narrowing keeps the order of the file and only the last step may shuffle, so two runs with the same selection
and seed see the same cases in the same order on every machine. The seeds are strings given to ``random.Random``,
which hashes them with SHA-512: one seed gives the sample and the shuffle independent streams.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from specbench.suite.settings import SHUFFLED, SuiteConfig
from specbench.types import Case, InputError

_SHOWN = 8  # how many names of a long list an error shows
_KEYS = ("ids", "categories", "limit", "first", "sample", "part")  # the narrowings, in the order they are applied


def select(cases: Sequence[Case], settings: SuiteConfig) -> tuple[Case, ...]:
    """Keeps the cases that the settings name: by ids, categories, limit, first, sample and part in turn.

    Returns:
        The kept cases, in the order of the settings.

    Raises:
        InputError: an id or category is unknown, or no case is left; the message names the key.
    """
    kept = list(cases)
    if settings.ids is not None:
        _require_known("ids", settings.ids, [case.id for case in cases])
        kept = [case for case in kept if case.id in settings.ids]
    if settings.categories is not None:
        raw = [case.subcategory for case in cases if case.subcategory]
        _require_known("categories", settings.categories, [*(case.category for case in cases), *raw])
        kept = [case for case in kept if not {case.category, case.subcategory}.isdisjoint(settings.categories)]
    if settings.limit is not None:
        kept = _first_of_each(kept, settings.limit)
    kept = kept[: settings.first]
    if settings.sample is not None:
        draw = random.Random(f"sample {settings.seed}")
        kept = [kept[index] for index in sorted(draw.sample(range(len(kept)), min(settings.sample, len(kept))))]
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
    close = dict.fromkeys(match for name in unknown for match in get_close_matches(name, known, n=3))
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
    keys = (f"suite.{key}={_listed(value) if isinstance(value, list) else value}" for key, value in given.items())
    counts = Counter(case.category for case in cases)
    there = ", ".join(f"{category} ({count})" for category, count in counts.items())
    left = f"{', '.join(keys)} leaves no case of {len(cases)}"
    return f"{left}. There are {there}. Leave one of these keys out, or widen it."
