"""The formats, by name: how a file is known, read and written; and a run's methods as a harness would have them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json

from specbench.input import InputError, decode_text, parse_json, read_file
from specbench.names import file_name
from specbench.record import CONTROL
from specbench.report.data.facts import Facts
from specbench.report.data.findings import Findings
from specbench.report.exchange.aiperf import read_requests, write_requests
from specbench.report.exchange.figures import Figures, Measured
from specbench.report.exchange.nvidia import (
    read_profile,
    read_rates,
    read_times,
    write_profile,
    write_rates,
    write_times,
)
from specbench.report.exchange.specforge import read_report, write_report
from specbench.report.exchange.vllm import read_bench, read_csv, write_bench, write_csv
from specbench.store import RunError, write_atomically


@dataclass(frozen=True, slots=True)
class Format:
    """file: what its harness calls it. mark: keys that no other format has.

    timed: it has times, so a model must have been timed. plain: it can tell of decoding without drafts.
    """

    file: str
    mark: frozenset[str]
    read: Callable[[bytes, str], list[Figures]]
    write: Callable[[Measured], str]
    timed: bool = True
    plain: bool = True


def _marks(*keys: str) -> frozenset[str]:
    return frozenset(keys)


FORMATS = {
    "speculation_profile": Format(
        "speculation_profile.json",
        _marks("marginal_accept_rates"),
        read_profile,
        write_profile,
        timed=False,
        plain=False,
    ),
    "acceptance_rate": Format(
        "acceptance_rate.json",
        _marks("Acceptance_Length_Histogram"),
        read_rates,
        write_rates,
        timed=False,
    ),
    "timing": Format("timing.json", _marks("Output TPS"), read_times, write_times),
    "aiperf": Format("profile_export.jsonl", _marks("metadata", "metrics"), read_requests, write_requests),
    "vllm_bench": Format("vllm_bench.json", _marks("completed", "output_throughput"), read_bench, write_bench),
    "specforge": Format("specforge.json", _marks("runs", "concurrency"), read_report, write_report),
    "speculators": Format(
        "acceptance.csv",
        _marks("num_drafts", "acceptance_length"),
        read_csv,
        write_csv,
        timed=False,
        plain=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Imported:
    """A file as read. name: its own, or a method's of a run beside it."""

    name: str
    format: str
    groups: Sequence[Figures]


def read_imported(path: Path) -> Imported:
    """Read a file of any of the formats. Raises InputError naming the file and the key that is wrong."""
    raw = read_file(path, "file to import ", f"expected a file of one of: {', '.join(FORMATS)}")
    found = _keys(raw, str(path))
    known = [name for name, each in FORMATS.items() if each.mark <= found]
    if len(known) != 1:
        marks = "; ".join(f"{name}: {', '.join(sorted(each.mark))}" for name, each in FORMATS.items())
        shown = ", ".join(sorted(found)[:10]) or "none"
        raise InputError(f"{path}: has the keys {shown}; expected those of one format ({marks})")
    return Imported(path.name, known[0], FORMATS[known[0]].read(raw, str(path)))


def _keys(raw: bytes, where: str) -> frozenset[str]:
    """Of the object in a file, or of the last in a list or the first of its lines; of a table its header."""
    head = raw.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head.startswith((b"{", b"[")):
        return frozenset(next(csv.reader([decode_text(raw, where).split("\n", 1)[0].strip()]), []))
    try:
        value = from_json(head.split(b"\n", 1)[0], allow_inf_nan=False)
    except ValueError:  # an object of several lines
        value = parse_json(raw, where, "expected JSON, JSON lines or csv")
    value = value[-1] if isinstance(value, list) and value else value
    return frozenset(value) if isinstance(value, dict) else frozenset()


def measured_of(findings: Findings, format: Format) -> Iterator[tuple[str, Measured | None]]:
    """Each method of the runs as ``Measured``; why not and None where it cannot be written in this format."""
    for reported in findings.reported:
        facts, run = reported.facts, reported.run
        by_path = run.section("config", "decode").get("verify") == "block"
        for method in (name for name in facts.methods if name != CONTROL):
            records = reported.succeeded(method)
            plain = not any(any(turn.proposed) for record in records for turn in record.turns)
            if why := _why_not(facts, format, method, bool(records), plain):
                yield f"{method}: {why}", None
            else:
                yield method, Measured(facts, method, records, str(run.manifest.get("created", "")), plain, by_path)


def _why_not(facts: Facts, format: Format, method: str, records: bool, plain: bool) -> str:
    """'' where it can be written. plain: it drafted nothing, or does not say what."""
    if not records:
        return "no case succeeded"
    if plain and not format.plain:
        return "recorded no drafts, of which this format tells"
    if method in facts.unaccepted:
        return "drafts from a model whose answers were replayed"
    if format.timed and (not facts.timed or facts.time_only or facts.load):
        return "not timed request by request with a model's own answers, and this format has times"
    return ""


def export_run(findings: Findings, name: str, output: Path) -> tuple[list[Path], list[str]]:
    """Write one file a method, ``<method>/<file>``. Returns the files, and what was left out and why.

    Raises RunError for several runs, and where no method can be written.
    """
    if len({run.directory for run in findings.runs}) > 1:
        raise RunError(f"--export: got {len(findings.runs)} runs; expected one, its methods are the folders' names")
    format, files, left = FORMATS[name], [], []
    for said, found in measured_of(findings, format):
        if found is None:
            left.append(said)
            continue
        path = output / file_name(found.method) / format.file
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, format.write(found))
        files.append(path)
    if not files:
        raise RunError(f"run {findings.runs[0].directory}: no method can be written as {name} ({'; '.join(left)})")
    return files, left


def as_imported(findings: Findings, name: str) -> list[Imported]:
    """The methods of the runs as this format would tell of them: counted as its harness counts."""
    format = FORMATS[name]
    found = (measured for _, measured in measured_of(findings, format) if measured)
    return [Imported(each.method, name, format.read(format.write(each).encode(), each.method)) for each in found]
