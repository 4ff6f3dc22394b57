"""Arrivals as a server recorded them: a list of times, or the file of a public trace in its publisher's own form.

Of a trace two things are used: when each request arrived, and the tokens of its answer. Prompts are those of the suite,
since a trace has none. Requests without an answer failed when they were recorded, and are left out.
"""

from __future__ import annotations

import csv
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specbench.input import InputError, cut, decode_text, parse_json, read_file, read_lines

MOST_ARRIVALS = 1_000_000  # rows that are read of a file; public traces have up to 44 million
_FIX = (
    "expected a JSON list of arrival times in seconds, ascending, or the file of a public trace (Mooncake, BurstGPT,"
    " Azure; docs/batching.md)"
)


def _read_number(value: Any) -> float:
    """A finite number of seconds; a text in a file of columns, a number in a file of JSON lines."""
    found = float(value)
    if isinstance(value, bool) or not math.isfinite(found):
        raise ValueError
    return found


def _read_count(value: Any) -> int:
    if isinstance(value, (bool, float)) or int(value) < 0:
        raise ValueError
    return int(value)


def _read_date(value: str) -> float:
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
    read: Callable[[Any], float]
    tokens: str


FORMS = {
    # github.com/kvcache-ai/Mooncake, FAST25-release/traces/*.jsonl: also input_length, hash_ids
    "mooncake": Form("timestamp", "milliseconds", lambda value: 1e-3 * _read_number(value), "output_length"),
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

    def repeat(self, first: int = 0, speed: float = 1.0) -> Iterator[float]:
        """[s] Arrivals without end from number ``first`` on, which is at 0; ``speed`` times as many a second."""
        count, begin = len(self.times_s), self.times_s[first % len(self.times_s)]
        length = count / self.rate
        for number in itertools.count(first % count):
            lap, place = divmod(number, count)
            yield (lap * length + self.times_s[place] - begin) / speed


def read_arrivals(path: str) -> RecordedArrivals:
    """The arrivals of a file, whose form its content decides. Raises InputError."""
    named = Path(path).expanduser()
    about = named.stat() if named.is_file() else None
    return _read(named, about and (about.st_mtime_ns, about.st_size))


@functools.lru_cache(maxsize=1)  # of a run: each of its stretches asks again
def _read(path: Path, _version: object) -> RecordedArrivals:
    what = "load.times="
    first = next((line for line in read_lines(path, what, _FIX, rest=True) if line.strip()), b"")
    if first.lstrip().removeprefix(b"\xef\xbb\xbf").startswith(b"["):
        found = RecordedArrivals(_read_list(path))
    else:
        rows = sorted(_read_rows(path, first), key=lambda row: row[0])
        found = RecordedArrivals(*zip(*rows, strict=True)) if rows else RecordedArrivals(())
    if len(found.times_s) < 2 or found.times_s[0] == found.times_s[-1]:
        raise InputError(f"{what}{path}: has {len(found.times_s)} arrivals; {_FIX}, at least two of them apart")
    return found


def _read_list(path: Path) -> tuple[float, ...]:
    times = parse_json(read_file(path, "load.times=", _FIX), f"load.times={path}", _FIX)
    for place, time in enumerate(times):
        if not isinstance(time, (int, float)) or isinstance(time, bool):
            raise InputError(f"load.times={path}, entry {place}: got {cut(repr(time))}; expected a number of seconds")
        if place and time < times[place - 1]:
            raise InputError(
                f"load.times={path}, entry {place}: got {time}, after {times[place - 1]}; expected ascending times"
            )
    return tuple(map(float, times))


def _read_rows(path: Path, first: bytes) -> Iterator[tuple[float, int]]:
    """(arrival [s], tokens of the answer) of each row of a public trace with an answer."""
    lined = first.lstrip().startswith(b"{")  # JSON lines; else columns under a header
    form: Form | None = None
    for number, row in itertools.islice(_json_rows(path) if lined else _csv_rows(path), MOST_ARRIVALS):
        where = f"load.times={path}, line {number}"
        form = form or next((each for each in FORMS.values() if each.time in row), None)
        if form is None:
            known = "; ".join(f"{name}: {each.time}, {each.tokens}" for name, each in FORMS.items())
            raise InputError(f"{where}: has {cut(', '.join(map(str, row)))}; expected the columns of a trace ({known})")
        time_s = _read_value(row, form.time, form.read, form.expected, where)
        if tokens := _read_value(row, form.tokens, _read_count, "a number of tokens", where):
            yield time_s, tokens


def _read_value(row: Mapping[str, Any], column: str, read: Callable[[Any], Any], expected: str, where: str) -> Any:
    value = row.get(column)
    if value is None:
        raise InputError(f"{where}: column {column} is missing; expected {expected} in it")
    try:
        return read(value)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{where}, column {column}: got {cut(repr(value))}; expected {expected}") from None


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(read_lines(path, "load.times=", _FIX, rest=True), start=1):
        if line.strip():
            where = f"load.times={path}, line {number}"
            row = parse_json(line, where, _FIX)
            if not isinstance(row, dict):
                raise InputError(f"{where}: got {cut(repr(row))}; expected an object with a timestamp")
            yield number, row


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    where = f"load.times={path}"
    lines = (decode_text(line, where) for line in read_lines(path, "load.times=", _FIX, rest=True))
    reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, [])
        yield from ((reader.line_num, dict(zip(header, row, strict=False))) for row in reader if row)
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: {error}; {_FIX}") from None
