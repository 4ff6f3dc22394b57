"""The cases of a suite that a run decodes, and their order: pure functions on lists of cases.

Every narrowing keeps the order of the file and only the last step may shuffle, so two runs with the same selection
and seed see the same cases in the same order on every machine. The seeds are strings given to ``random.Random``,
which hashes them with SHA-512: one seed gives the sample and the shuffle independent streams.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from specbench.types import Case, InputError

ORDERS = ("file", "shuffled")
_SHOWN = 8  # how many names of a long list an error shows
_KEYS = ("ids", "categories", "limit", "first", "sample", "part")  # the narrowings, in the order they are applied


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a suite to keep; None keeps everything.

    categories: Spec-Bench tasks (``multi-turn``) or raw categories (``writing``).
    limit: the first N cases of each category (of each task: ``writing`` and ``math`` share the N of ``multi-turn``).
    sample: N cases in all, drawn with ``seed``, kept in the order of the file; all of them if there are fewer.
    seed: of the sample and of the shuffle.
    first: the first N cases in all.
    ids: these cases; the order in which they are named does not matter.
    part: ``k/n`` keeps every n-th case from the k-th on, of what the other keys left: the n parts are disjoint, have
        equal shares of every category and together make the complete selection (to tune on one half, or to spread a
        run over machines).
    order: ``file``, or ``shuffled`` with ``seed``.
    """

    categories: tuple[str, ...] | None = None
    limit: int | None = None
    sample: int | None = None
    seed: int = 0
    first: int | None = None
    ids: tuple[str, ...] | None = None
    part: str | None = None
    order: str = "file"


EVERYTHING = Selection()


def select(cases: Sequence[Case], selection: Selection) -> list[Case]:
    """Keeps the cases that the selection names: by ids, categories, limit, first, sample and part in turn.

    Returns:
        The kept cases, in the selection's order.

    Raises:
        InputError: an id or category is unknown, a number is below 1, the order is unknown, or no case is left; the
            message names the key.
    """
    _check(selection)
    kept = list(cases)
    if selection.ids is not None:
        wanted = dict.fromkeys(_names(selection.ids))
        _require_known("ids", list(wanted), [case.id for case in cases])
        kept = [case for case in kept if case.id in wanted]
    if selection.categories is not None:
        kept = _in_categories(kept, cases, _names(selection.categories))
    if selection.limit is not None:
        kept = _first_of_each(kept, selection.limit)
    if selection.first is not None:
        kept = kept[: selection.first]
    if selection.sample is not None:
        draw = random.Random(f"sample {selection.seed}")
        kept = [kept[index] for index in sorted(draw.sample(range(len(kept)), min(selection.sample, len(kept))))]
    if selection.part is not None:
        start, step = _part(selection.part)
        kept = kept[start - 1 :: step]
    if not kept:
        raise InputError(_nothing_left(cases, selection))
    if selection.order == "shuffled":
        random.Random(f"order {selection.seed}").shuffle(kept)
    return kept


def _check(selection: Selection) -> None:
    for key in ("limit", "first", "sample"):
        value = getattr(selection, key)
        if value is None or (_is_int(value) and value >= 1):
            continue
        raise InputError(f"suite.{key}={value!r}: expected a whole number of at least 1, or null for all cases.")
    if not _is_int(selection.seed):
        raise InputError(f"suite.seed={selection.seed!r}: expected a whole number, for example suite.seed=0.")
    if selection.order not in ORDERS:
        raise InputError(f"suite.order={selection.order!r}: expected one of {', '.join(ORDERS)}.")
    for key in ("ids", "categories"):
        value = getattr(selection, key)
        if value is not None and not any(_names(value)):
            raise InputError(f"suite.{key} is empty, so it would keep no case: name some, or write null for all cases.")


def _part(text: str) -> tuple[int, int]:
    """Returns (k, n) of ``k/n``."""
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", str(text))
    start, step = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= start <= step:
        raise InputError(f"suite.part={text}: expected k/n with k from 1 to n, for example 1/2 for the first half.")
    return start, step


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _names(value: str | int | Iterable[object]) -> list[str]:
    """Returns names as texts: a shell gives a number for an id of digits, and one name without a list."""
    return [str(value)] if isinstance(value, str | int) else [str(name) for name in value]


def _in_categories(cases: Sequence[Case], suite: Sequence[Case], wanted: Sequence[str]) -> list[Case]:
    """Keeps cases of these categories, each of which the complete suite must have."""
    tasks = dict.fromkeys(case.category for case in suite)
    raw = dict.fromkeys(case.subcategory for case in suite if case.subcategory)
    _require_known("categories", wanted, list(tasks | raw))
    return [case for case in cases if not {case.category, case.subcategory}.isdisjoint(wanted)]


def _first_of_each(cases: Sequence[Case], limit: int) -> list[Case]:
    seen: Counter[str] = Counter()
    kept = []
    for case in cases:
        seen[case.category] += 1
        if seen[case.category] <= limit:
            kept.append(case)
    return kept


def _require_known(key: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    there = set(known)
    unknown = [name for name in wanted if name not in there]
    if not unknown:
        return
    close = dict.fromkeys(match for name in unknown for match in get_close_matches(name, known, n=3))
    hint = f"; did you mean {', '.join(close)}?" if close else "."
    raise InputError(
        f"suite.{key}={_listed(wanted)}: the suite has no {_listed(unknown)}{hint} "
        f"It has {_listed(known)}. Fix suite.{key}, or leave it out for all cases."
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    # A list that is not much longer is shown whole: the categories of a suite, but not its ids.
    if more <= _SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN])} ... {names[-1]} ({len(names)} in all)"


def _nothing_left(cases: Sequence[Case], selection: Selection) -> str:
    if not cases:
        return "The suite has no cases to select from: check the file that suite.path names."
    given = {key: value for key in _KEYS if (value := getattr(selection, key)) is not None}
    keys = ", ".join(
        f"suite.{key}={value if isinstance(value, int) else _listed(_names(value))}" for key, value in given.items()
    )
    counts = Counter(case.category for case in cases)
    there = ", ".join(f"{category} ({count})" for category, count in counts.items())
    return f"{keys} leaves no case of {len(cases)}. There are {there}. Leave one of these keys out, or widen it."
