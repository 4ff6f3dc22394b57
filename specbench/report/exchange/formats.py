"""The formats, by name: how a file is known, read and written; and a run's methods as a harness would have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json

from specbench.input import InputError, decode_text, parse_json, read_file
from specbench.names import file_name
from specbench.records.record import CONTROL
from specbench.records.store import RunError, write_atomically
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
from specbench.report.exchange.samples import SAMPLES, write_samples
from specbench.report.exchange.specforge import read_report, write_report
from specbench.report.exchange.vllm import read_bench, read_csv, write_bench, write_csv
from specbench.report.frames.findings import Findings


@dataclass(frozen=True, slots=True)
class Format:
    """file: what its harness calls it. mark: keys that no other format has.

    timed: it has times, so a model must have been timed. plain: it can tell of decoding without drafts.
    """

    file: str
    mark: tuple[str, ...]
    read: Callable[[bytes, str], Sequence[Figures]]
    write: Callable[[Measured], str]
    timed: bool = True
    plain: bool = True


_SHOWN = 200  # characters of the keys of an unknown file
_UNTIMED = {"timed": False}
_OF_DRAFTS = {"timed": False, "plain": False}
FORMATS = {
    "speculation_profile": Format(
        "speculation_profile.json", ("marginal_accept_rates",), read_profile, write_profile, **_OF_DRAFTS
    ),
    "acceptance_rate": Format(
        "acceptance_rate.json", ("Acceptance_Length_Histogram",), read_rates, write_rates, **_UNTIMED
    ),
    "timing": Format("timing.json", ("Output TPS",), read_times, write_times),
    "aiperf": Format("profile_export.jsonl", ("metadata", "metrics"), read_requests, write_requests),
    "vllm_bench": Format("vllm_bench.json", ("completed", "output_throughput"), read_bench, write_bench),
    "specforge": Format("specforge.json", ("runs", "concurrency"), read_report, write_report),
    "speculators": Format("acceptance.csv", ("num_drafts", "acceptance_length"), read_csv, write_csv, **_OF_DRAFTS),
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
    known = [name for name, each in FORMATS.items() if found.issuperset(each.mark)]
    if len(known) != 1:
        marks = "; ".join(f"{name}: {', '.join(each.mark)}" for name, each in FORMATS.items())
        shown = ", ".join(sorted(found))[:_SHOWN] or "none"
        raise InputError(f"{path}: has the keys {shown}; expected those of one format ({marks})")
    return Imported(path.name, known[0], FORMATS[known[0]].read(raw, str(path)))


def _keys(raw: bytes, where: str) -> frozenset[str]:
    """Of the object in a file, or of the last in a list or the first of its lines; of a table its header."""
    head = raw.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head.startswith((b"{", b"[")):
        return frozenset(decode_text(raw, where).split("\n", 1)[0].strip().split(","))
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
            found = Measured(facts, method, records, str(run.manifest.get("created", "")), plain, by_path)
            why = _why_not(found, format)
            yield (f"{method}: {why}", None) if why else (method, found)


def _why_not(found: Measured, format: Format) -> str:
    """'' where it can be written."""
    facts = found.facts
    if not found.records:
        return "no case succeeded"
    if found.plain and not format.plain:
        return "recorded no drafts, of which this format tells"
    if found.method in facts.unaccepted:
        return "drafts from a model whose answers were replayed"
    timed = facts.timed and not facts.time_only and not facts.load and all(turn.wall_s for turn in found.turns)
    if format.timed and not timed:
        return "not timed request by request with a model's own answers, and this format has times"
    return ""


def export_run(
    findings: Findings, name: str, output: Path, tokenizer: Path | None = None
) -> tuple[list[Path], list[str]]:
    """Write one file a method, ``<method>/<file>``. Returns the files, and what was left out and why.

    name: one of ``FORMATS``, or ``samples``, which need the tokenizer, by default the run's own. Raises RunError for
    several runs, and where no method can be written.
    """
    if len({run.directory for run in findings.runs}) > 1:
        raise RunError(f"--export: got {len(findings.runs)} runs; expected one, its methods are the folders' names")
    left: list[str] = []
    if name == SAMPLES:
        file, texts = f"{SAMPLES}.jsonl", write_samples(findings, tokenizer)
    else:
        file, texts = FORMATS[name].file, {}
        for said, found in measured_of(findings, FORMATS[name]):
            if found is None:
                left.append(said)
            else:
                texts[found.method] = FORMATS[name].write(found)
    if not texts:
        raise RunError(f"run {findings.runs[0].directory}: no method can be written as {name} ({'; '.join(left)})")
    for method, text in texts.items():
        (output / file_name(method)).mkdir(parents=True, exist_ok=True)
        write_atomically(output / file_name(method) / file, text)
    return [output / file_name(method) / file for method in texts], left


def as_imported(findings: Findings, name: str) -> list[Imported]:
    """The methods of the runs as this format would tell of them: counted as its harness counts."""
    format = FORMATS[name]
    found = (measured for _, measured in measured_of(findings, format) if measured)
    return [Imported(each.method, name, format.read(format.write(each).encode(), each.method)) for each in found]
