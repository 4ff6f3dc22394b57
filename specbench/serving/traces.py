"""Arrivals as a server recorded them: a list of times, or the file of a public trace in its publisher's own form.

Of a trace two things are used: when each request arrived, and the tokens of its answer. Prompts are those of the suite,
since a trace has none. Requests without an answer failed when they were recorded, and are left out.
"""

from __future__ import annotations

import codecs
import csv
import functools
import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specbench.input import InputError, cut, decode_text, parse_json, read_file, read_lines

MOST_ARRIVALS = 1_000_000  # rows that are read of a file; public traces have up to 44 million
LEAST_RATE, MOST_RATE = 1e-6, 1e9  # [requests/s] of a file, in the mean
_FIX = (
    "expected a JSON list of arrival times in seconds, ascending, or the file of a public trace (Mooncake, BurstGPT,"
    " Azure; docs/batching.md)"
)


def _read_number(value: Any, text: bool) -> float:
    """A finite number. text: the file has columns, so that all values are texts; JSON has numbers."""
    found = float(value)
    if isinstance(value, str) != text or isinstance(value, bool) or not math.isfinite(found):
        raise ValueError
    return found


def _read_count(value: Any, text: bool) -> int:
    if isinstance(value, str) != text or isinstance(value, (bool, float)) or int(value) < 0:
        raise ValueError
    return int(value)


def _read_date(value: str, _text: bool) -> float:
    """Seconds of a date; one without a zone is in UTC."""
    found = datetime.fromisoformat(value)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True, slots=True)
class Form:
    """A publisher's form of a trace, which the name of its column of times identifies.

    time: column of the arrival. expected: what that column has. read: a value of it as [s]. tokens: column of the
    answer's tokens.
    """

    time: str
    expected: str
    read: Callable[[Any, bool], float]
    tokens: str


FORMS = {
    # github.com/kvcache-ai/Mooncake, FAST25-release/traces/*.jsonl: also input_length, hash_ids
    "mooncake": Form(
        "timestamp", "milliseconds", lambda value, text: 1e-3 * _read_number(value, text), "output_length"
    ),
    # github.com/HPMLL/BurstGPT, data/*.csv: also Model, Request tokens, Total tokens, Log Type
    "burstgpt": Form("Timestamp", "seconds", _read_number, "Response tokens"),
    # github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_*.csv: also ContextTokens
    "azure": Form("TIMESTAMP", "a date such as 2023-11-16 18:15:46.6805900", _read_date, "GeneratedTokens"),
}


@dataclass(frozen=True, slots=True)
class RecordedArrivals:
    """times_s: [s] ascending, at least two of them apart. tokens: of each one's answer; empty if they are not known."""

    times_s: tuple[float, ...]
    tokens: tuple[int, ...] = ()

    @property
    def rate(self) -> float:
        """[requests/s] In the mean, if the record begins again one mean gap after its last arrival."""
        return (len(self.times_s) - 1) / (self.times_s[-1] - self.times_s[0])

    def repeat(self, first: int = 0, rate: float | None = None) -> Iterator[float]:
        """[s] Arrivals without end from number ``first`` on, which is at 0; rate: the mean one, None = as recorded."""
        count, begin, recorded = len(self.times_s), self.times_s[first % len(self.times_s)], self.rate
        length = count / recorded
        for number in itertools.count(first % count):
            lap, place = divmod(number, count)
            yield (lap * length + self.times_s[place] - begin) * recorded / (rate or recorded)

    def count(self, first: int, seconds: float, rate: float) -> int:
        """Those of ``repeat`` that arrive within so many seconds of number ``first``, which is one of them."""
        count, begin, recorded = len(self.times_s), self.times_s[0], self.rate
        place = first % count
        laps, rest = divmod(self.times_s[place] - begin + seconds * rate / recorded, count / recorded)
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
        rows = sorted(_read_rows(path, first), key=lambda row: row[0])
        found = RecordedArrivals(*zip(*rows, strict=True)) if rows else RecordedArrivals(())
    if len(found.times_s) < 2 or found.times_s[0] == found.times_s[-1]:
        raise InputError(f"{what}{path}: has {len(found.times_s)} arrivals; {_FIX}, at least two of them apart")
    if not LEAST_RATE <= found.rate <= MOST_RATE:
        raise InputError(
            f"{what}{path}: has {found.rate:.3g} arrivals a second in the mean, from {found.times_s[0]:g} to"
            f" {found.times_s[-1]:g} s; {_FIX}, with {LEAST_RATE:g} to {MOST_RATE:g} a second"
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
        times.append(_convert(value, _read_number, False, "a number of seconds", where))
        if times[-1] < times[place - 1]:
            raise InputError(
                f"{where}: got {cut(repr(value))}, after {times[place - 1]:.15g}; expected ascending times"
            )
    return tuple(times)


def _read_rows(path: Path, first: bytes) -> Iterator[tuple[float, int]]:
    """(arrival [s], tokens of the answer) of each row of a public trace with an answer."""
    columns = not first.startswith(b"{")  # under a header; else JSON lines
    form: Form | None = None
    for number, row in itertools.islice(_csv_rows(path) if columns else _json_rows(path), MOST_ARRIVALS):
        where = f"load.times={path}, line {number}"
        form = form or next((each for each in FORMS.values() if each.time in row), None)
        if form is None:
            known = "; ".join(f"{name}: {each.time}, {each.tokens}" for name, each in FORMS.items())
            raise InputError(f"{where}: has {cut(', '.join(map(str, row)))}; expected the columns of a trace ({known})")
        for column, expected in ((form.time, form.expected), (form.tokens, "a number of tokens")):
            if row.get(column) is None:
                raise InputError(f"{where}: column {column} is missing; expected {expected} in it")
        time_s = _convert(row[form.time], form.read, columns, form.expected, f"{where}, column {form.time}")
        what = f"{where}, column {form.tokens}"
        if tokens := _convert(row[form.tokens], _read_count, columns, "a number of tokens", what):
            yield time_s, tokens


def _convert(value: Any, read: Callable[[Any, bool], Any], text: bool, expected: str, where: str) -> Any:
    try:
        return read(value, text)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{where}: got {cut(repr(value))}; expected {expected}") from None


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(_read_lines(path), start=1):
        if line.strip():
            where = f"load.times={path}, line {number}"
            row = parse_json(line, where, _FIX)
            if not isinstance(row, dict):
                raise InputError(f"{where}: got {cut(repr(row))}; expected an object with a timestamp")
            yield number, row


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    where = f"load.times={path}"
    lines = (decode_text(line, where) for line in _read_lines(path))
    reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, [])
        if twice := next((name for name, count in Counter(header).items() if name and count > 1), ""):
            raise InputError(f"{where}, line 1: has column {cut(twice)} twice; expected each column once")
        for row in filter(None, reader):
            if any(row[len(header) :]):  # such as a number with a comma: the values after it have other columns
                there = f"{where}, line {reader.line_num}"
                raise InputError(
                    f"{there}: has {len(row)} values under {len(header)} columns; expected as many values as columns, a"
                    " number with a comma in quotes"
                )
            yield reader.line_num, dict(zip(header, row, strict=False))
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: {error}; {_FIX}") from None
