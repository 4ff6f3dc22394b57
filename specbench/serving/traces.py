"""Arrivals as a server recorded them: a list of times, or a table of times and tokens.

Of a table two things are used: when each request arrived, and the tokens of its answer. Prompts are
those of the suite, since a table has none. Requests without an answer failed when they were
recorded, and are left out.
"""

from __future__ import annotations

import codecs
import csv
import functools
import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.input import InputError, cut, decode_text, parse_json, read_file, read_lines

MOST_ARRIVALS = 1_000_000  # rows that are read of a file; public traces have up to 44 million
LEAST_RATE, MOST_RATE = 1e-6, 1e9  # [requests/s] of a file, in the mean
TIME, ANSWER = "time_s", "answer_tokens"
_FIX = (
    "expected a JSON list of arrival times in seconds, ascending, or a csv file with the columns"
    f" {TIME} and {ANSWER} (docs/batching.md)"
)


@dataclass(frozen=True, slots=True)
class RecordedArrivals:
    """times_s: [s] ascending, at least two of them apart. tokens: of each one's answer; empty if
    they are not known.
    """

    times_s: tuple[float, ...]
    tokens: tuple[int, ...] = ()

    @property
    def rate(self) -> float:
        """[requests/s] In the mean, if the record begins again one mean gap after its last
        arrival.
        """
        return (len(self.times_s) - 1) / (self.times_s[-1] - self.times_s[0])

    def repeat(self, first: int = 0, rate: float | None = None) -> Iterator[float]:
        """[s] Arrivals without end from number ``first`` on, which is at 0; rate: the mean one,
        None = as recorded.
        """
        count, begin, recorded = (
            len(self.times_s),
            self.times_s[first % len(self.times_s)],
            self.rate,
        )
        length = count / recorded
        for number in itertools.count(first % count):
            lap, place = divmod(number, count)
            yield (lap * length + self.times_s[place] - begin) * recorded / (rate or recorded)

    def count(self, first: int, seconds: float, rate: float) -> int:
        """Those of ``repeat`` that arrive within so many seconds of number ``first``, which is one
        of them.
        """
        count, begin, recorded = len(self.times_s), self.times_s[0], self.rate
        place = first % count
        laps, rest = divmod(
            self.times_s[place] - begin + seconds * rate / recorded, count / recorded
        )
        return int(laps) * count + bisect_left(self.times_s, begin + rest) - place


def read_arrivals(path: str) -> RecordedArrivals:
    """The arrivals of a file, whose form its content decides. Raises InputError."""
    named = Path(path).expanduser()
    about = named.stat() if named.is_file() else None
    return _read(named, about and (about.st_mtime_ns, about.st_size))


@functools.lru_cache(maxsize=1)  # of a run: each of its stretches asks again
def _read(path: Path, _version: object) -> RecordedArrivals:
    what = "load.times="
    first = next((line for line in _read_lines(path) if line.strip()), b"").lstrip()
    if first.startswith(b"["):
        found = RecordedArrivals(_read_list(path))
    else:
        rows = sorted(_read_rows(path), key=lambda row: row[0])
        found = RecordedArrivals(*zip(*rows, strict=True)) if rows else RecordedArrivals(())
    if len(found.times_s) < 2 or found.times_s[0] == found.times_s[-1]:
        raise InputError(
            f"{what}{path}: has {len(found.times_s)} arrivals; {_FIX}, at least two of them apart"
        )
    if not LEAST_RATE <= found.rate <= MOST_RATE:
        raise InputError(
            f"{what}{path}: has {found.rate:.3g} arrivals a second in the mean, from"
            f" {found.times_s[0]:g} to {found.times_s[-1]:g} s; {_FIX}, with {LEAST_RATE:g} to"
            f" {MOST_RATE:g} a second"
        )
    return found


def _read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file without its byte order mark."""
    for number, line in enumerate(read_lines(path, "load.times=", _FIX, rest=True)):
        yield line if number else line.removeprefix(codecs.BOM_UTF8)


def _read_list(path: Path) -> tuple[float, ...]:
    times: list[float] = []
    raw = read_file(path, "load.times=", _FIX).removeprefix(codecs.BOM_UTF8)
    for place, value in enumerate(parse_json(raw, f"load.times={path}", _FIX)):
        where = f"load.times={path}, entry {place}"
        if isinstance(value, (str, bool)):
            raise InputError(f"{where}: got {cut(repr(value))}; expected a number of seconds")
        times.append(_read_time(value, where))
        if times[-1] < times[place - 1]:
            raise InputError(
                f"{where}: got {cut(repr(value))}, after {times[place - 1]:.15g}; expected"
                " ascending times"
            )
    return tuple(times)


def _read_rows(path: Path) -> Iterator[tuple[float, int]]:
    """(arrival [s], tokens of the answer) of each row with an answer."""
    where = f"load.times={path}"
    lines = (decode_text(line, where) for line in _read_lines(path))
    reader = csv.reader(lines, strict=True)
    try:
        rows = filter(None, reader)
        header = next(rows, [])
        if header.count(TIME) != 1 or header.count(ANSWER) != 1:
            raise InputError(
                f"{where}: has the columns {cut(', '.join(header)) or 'none'}; {_FIX}, each once"
            )
        for row in itertools.islice(rows, MOST_ARRIVALS):
            here = f"{where}, line {reader.line_num}"
            # such as a number with a comma: the values after it have other columns
            if len(row) != len(header):
                raise InputError(
                    f"{here}: has {len(row)} values under {len(header)} columns; expected as many"
                    " values as columns, a number with a comma in quotes"
                )
            time_s = _read_time(row[header.index(TIME)], f"{here}, column {TIME}")
            tokens = row[header.index(ANSWER)]
            if not (tokens.isdecimal() and len(tokens) < 10):
                raise InputError(
                    f"{here}, column {ANSWER}: got {cut(repr(tokens))}; expected a number of tokens"
                )
            if count := int(tokens):
                yield time_s, count
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: {error}; {_FIX}") from None


def _read_time(value: Any, where: str) -> float:
    """Read a finite number of seconds."""
    try:
        found = float(value)
    except (ValueError, TypeError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise InputError(f"{where}: got {cut(repr(value))}; expected a number of seconds")
    return found
