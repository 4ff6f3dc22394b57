"""Which cases of a suite a run takes, and in what order: pure functions on lists of cases.

Every narrowing keeps the order of the file and only the last step may shuffle, so two runs with the same selection
and seed see the same cases in the same order on every machine. The seeds are strings handed to ``random.Random``,
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
    """What to keep of a suite; None keeps everything.

    categories: Spec-Bench tasks (``multi-turn``) or raw categories (``writing``).
    limit: the first N cases of each category (of each task: ``writing`` and ``math`` share the N of ``multi-turn``).
    sample: N cases in all, drawn with ``seed``, kept in the order of the file; all of them if there are fewer.
    seed: of the sample and of the shuffle.
    first: the first N cases in all.
    ids: these cases; the order in which they are named does not matter.
    part: ``k/n`` keeps every n-th case from the k-th on, of what the others left: the n parts are disjoint, share
        every category alike and make the whole together (to tune on one half, or to spread a run over machines).
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
    """Keep what the selection names: by ids, categories, limit, first, sample and part in turn, then put in order.

    Raises InputError, which names the key, for an unknown id or category, a number below 1, an unknown order, and
    when no case is left.
    """
    _check(selection)
    kept = list(cases)
    if selection.ids is not None:
        kept = _with_ids(kept, _names(selection.ids))
    if selection.categories is not None:
        kept = _in_categories(kept, cases, _names(selection.categories))
    if selection.limit is not None:
        kept = _first_of_each(kept, selection.limit)
    if selection.first is not None:
        kept = kept[: selection.first]
    if selection.sample is not None:
        kept = _sampled(kept, selection.sample, selection.seed)
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
    """(k, n) of ``k/n``."""
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", str(text))
    start, step = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= start <= step:
        raise InputError(f"suite.part={text}: expected k/n with k from 1 to n, for example 1/2 for the first half.")
    return start, step


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _names(value: str | int | Iterable[object]) -> list[str]:
    """The names as text: a shell gives numbers where ids look like numbers, and no list where there is one name."""
    return [str(value)] if isinstance(value, str | int) else [str(name) for name in value]


def _with_ids(cases: Sequence[Case], wanted: Sequence[str]) -> list[Case]:
    _require_known("ids", wanted, [case.id for case in cases])
    names = set(wanted)
    return [case for case in cases if case.id in names]


def _in_categories(cases: Sequence[Case], suite: Sequence[Case], wanted: Sequence[str]) -> list[Case]:
    """Categories of the whole suite are valid, also those that ``ids`` left out."""
    tasks = dict.fromkeys(case.category for case in suite)
    raw = dict.fromkeys(case.subcategory for case in suite if case.subcategory)
    _require_known("categories", wanted, list(tasks | raw))
    return [case for case in cases if not {case.category, case.subcategory}.isdisjoint(wanted)]


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


def _first_of_each(cases: Sequence[Case], limit: int) -> list[Case]:
    seen: Counter[str] = Counter()
    kept = []
    for case in cases:
        seen[case.category] += 1
        if seen[case.category] <= limit:
            kept.append(case)
    return kept


def _sampled(cases: Sequence[Case], count: int, seed: int) -> list[Case]:
    chosen = random.Random(f"sample {seed}").sample(range(len(cases)), min(count, len(cases)))
    return [cases[index] for index in sorted(chosen)]


def _nothing_left(cases: Sequence[Case], selection: Selection) -> str:
    if not cases:
        return "The suite has no cases to select from: check the file that suite.path names."
    given = {key: getattr(selection, key) for key in _KEYS}
    asked = ", ".join(f"suite.{key}={_shown_value(value)}" for key, value in given.items() if value is not None)
    held = Counter(case.category for case in cases)
    there = ", ".join(f"{category} ({count})" for category, count in held.items())
    return f"{asked} leaves no case of {len(cases)}. There are {there}. Leave one of these keys out, or widen it."


def _shown_value(value: int | Sequence[str]) -> str:
    return str(value) if isinstance(value, int) else _listed(_names(value))
