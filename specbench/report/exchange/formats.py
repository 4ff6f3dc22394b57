"""The formats of other harnesses' result files: how a file is recognised, read and written, and files next to a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pydantic_core import from_json

from specbench.input import InputError, decode_text, parse_json, read_file, refuse_foreign
from specbench.names import file_name
from specbench.records.record import CONTROL, CaseRecord
from specbench.records.store import RunError, write_atomically
from specbench.report.exchange import golden, nvidia, servers
from specbench.report.exchange.figures import Figures, Measured
from specbench.report.frames.findings import Findings
from specbench.report.label import Cell, format_count, format_number, format_rate, format_share
from specbench.report.table import Table, without_blanks
from specbench.report.tables.terminal import open_console, print_table
from specbench.report.tokenizer import find_tokenizer, read_tokenizer
from specbench.report.writers import to_csv, to_markdown, write_texts


@dataclass(frozen=True, slots=True)
class Format:
    """A format. file: the name that its harness uses. mark: keys that no other format has.

    timed: it has times, so a model must have been timed. plain: it can report decoding without drafts.
    """

    file: str
    mark: tuple[str, ...]
    read: Callable[[bytes, str], Sequence[Figures]]
    write: Callable[[Measured], str]
    timed: bool = True
    plain: bool = True


_SHOWN = 200  # characters of the keys of an unknown file
FORMATS = {
    "speculation_profile": Format("speculation_profile.json", ("marginal_accept_rates",), nvidia.read_profile,
                                  nvidia.write_profile, timed=False, plain=False),
    "acceptance_rate": Format("acceptance_rate.json", ("Acceptance_Length_Histogram",), nvidia.read_rates,
                              nvidia.write_rates, timed=False),
    "timing": Format("timing.json", ("Output TPS",), nvidia.read_times, nvidia.write_times),
    "aiperf": Format("profile_export.jsonl", ("metadata", "metrics"), servers.read_requests, servers.write_requests),
    "vllm_bench": Format("vllm_bench.json", ("completed", "output_throughput"), servers.read_bench,
                         servers.write_bench),
    "specforge": Format("specforge.json", ("runs", "concurrency"), servers.read_report, servers.write_report),
    "speculators": Format("acceptance.csv", ("num_drafts", "acceptance_length"), servers.read_csv, servers.write_csv,
                          timed=False, plain=False),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Imported:
    """A file as read. name: of the file, or of a method of the run next to it."""

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
    """Returns the keys of the object, of the last one in a list, or of the first line; of a table its header."""
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
    """Yields each method as (name, Measured), or (the reason, None) if this format cannot represent it."""
    for reported in findings.reported:
        facts, run = reported.facts, reported.run
        by_path = run.section("config", "decode").get("verify") == "block"
        for method in (name for name in facts.methods if name != CONTROL):
            records = reported.succeeded(method)
            plain = not any(any(turn.proposed) for record in records for turn in record.turns)
            created, made = str(run.manifest.get("created", "")), run.section("model")
            inputs = (run.section("methods").get(method) or {}).get("inputs") or {}
            target = (str(made["path"]), made.get("fingerprint")) if made.get("path") else None
            draft = next(iter(inputs.items()), None)  # the weights come first
            found = Measured(facts, method, records, created, plain, by_path, target, draft)
            timed = facts.timed and not facts.time_only and not facts.load and all(turn.wall_s for turn in found.turns)
            reasons = {
                "no case succeeded": not records,
                "recorded no drafts, and this format describes drafts": plain and not format.plain,
                "drafts from a model whose answers were replayed": method in facts.unaccepted,
                "not timed request by request with a model's own answers, and this format has times": format.timed
                and not timed,
            }
            why = next((reason for reason, applies in reasons.items() if applies), "")
            yield (f"{method}: {why}", None) if why else (method, found)


def export_run(
    findings: Findings, name: str, output: Path, tokenizer: Path | None = None
) -> tuple[list[Path], list[str]]:
    """Write one file a method, ``<method>/<file>``. Returns the files, and what was left out and why.

    name: one of ``FORMATS``, ``golden``, or ``samples``, which need the tokenizer, by default the run's own. Raises
    RunError for several runs of a format without curves, and if no method can be written.
    """
    if len({run.directory for run in findings.runs}) > 1 and name != golden.GOLDEN:
        raise RunError(f"--export: got {len(findings.runs)} runs; expected one, its methods are the folders' names")
    left: list[str] = []
    if name == SAMPLES:
        file, texts = f"{SAMPLES}.jsonl", write_samples(findings, tokenizer)
    elif name == golden.GOLDEN:
        file, (texts, left) = golden.FILE, golden.write_golden(findings)
    else:
        file, texts = FORMATS[name].file, {}
        for reason, found in measured_of(findings, FORMATS[name]):
            if found is None:
                left.append(reason)
            else:
                texts[found.method] = FORMATS[name].write(found)
    if not texts:
        raise RunError(f"run {findings.runs[0].directory}: no method can be written as {name} ({'; '.join(left)})")
    for method in texts:
        mark = {SAMPLES: "completion", golden.GOLDEN: golden.MARK}.get(name) or FORMATS[name].mark[0]
        refuse_foreign(output / file_name(method) / file, mark.encode(), "move it, or give --output DIR")
    for method, text in texts.items():
        (output / file_name(method)).mkdir(parents=True, exist_ok=True)
        write_atomically(output / file_name(method) / file, text)
    return [output / file_name(method) / file for method in texts], left


SAMPLES = "samples"
_BEFORE = "a"  # in front of an answer, since a decoder takes the first blank off a text


def write_samples(findings: Findings, tokenizer: Path | None = None) -> dict[str, str]:
    """Method -> a line each finished case: its last answer, blanks at its begin kept, no thinking.

    findings: of one run. tokenizer: by default the run's own. Raises RunError without a tokenizer.
    """
    library = read_tokenizer(tokenizer or find_tokenizer(findings.runs[0]))
    before = library.encode(_BEFORE, add_special_tokens=False).ids
    start = len(library.decode(before))

    def sample(record: CaseRecord) -> str:
        turn = record.turns[-1]
        text = library.decode([*before, *turn.ids[turn.thinking or 0 :]])[start:]
        named = {"task_id": record.case, "completion": text, "method": record.method, "round": record.round}
        return json.dumps(named, ensure_ascii=False) + "\n"

    of_methods = ((reported, name) for reported in findings.reported for name in reported.facts.methods)
    return {name: "".join(map(sample, each.succeeded(name))) for each, name in of_methods if name != CONTROL}


NAME = "imported"
_MEANING = (
    "Files of other harnesses, each with the run's methods as that harness would have counted them. Steps: those that"
    " the acceptance length is of. At least n: share of steps that accepted so many drafts. Blank: unknown."
)
_COLUMNS = {
    "requests": ("Requests", format_count),
    "tokens": ("Tokens", format_count),
    "steps": ("Steps", format_count),
    "length": ("Acceptance length", lambda value: format_number(value, 4)),
    "rate": ("Acceptance rate", format_share),
    "tokens_per_s": ("Tokens/s", format_rate),
}
_POSITIONS = 5  # that are printed; the csv has all


def imported_frame(files: Sequence[Imported], findings: Findings | None) -> pd.DataFrame:
    """Returns one row per file or method and group, unrounded; NaN for a missing figure."""
    rows = []
    for name in dict.fromkeys(each.format for each in files):
        format, shown = FORMATS[name], [file for file in files if file.format == name]
        for method, own in measured_of(findings, format) if findings else ():  # counted as the format's harness counts
            shown += [Imported(method, name, format.read(format.write(own).encode(), method))] if own else []
        for each in shown:
            for group in each.groups:
                row = {"row": each.name, "format": name, "group": group.group}
                row |= {key: getattr(group, key) for key in (*_COLUMNS, "drafted", "accepted")}
                rows.append(row | {f"at_least_{place}": share for place, share in enumerate(group.positions, start=1)})
    frame = pd.DataFrame(rows)
    return frame.astype(dict.fromkeys(frame.columns[3:], float))


def imported_table(frame: pd.DataFrame) -> Table:
    """The figures as printed."""
    positions = [name for name in frame.columns if name.startswith("at_least_")][:_POSITIONS]
    titles = [title for title, _ in _COLUMNS.values()] + [f"At least {name.rpartition('_')[2]}" for name in positions]
    rows = []
    for row in frame.to_dict("records"):
        figures = [write(row[name]) for name, (_, write) in _COLUMNS.items()]
        figures += [format_share(row[name]) for name in positions]
        rows.append(tuple(map(Cell, (row["row"], row["format"], row["group"], *figures))))
    header = ("Row", "Format", "Group", *titles)
    return without_blanks(Table(NAME, "", _MEANING, header, tuple(rows), labels=3))


def show_imported(paths: Sequence[Path], findings: Findings | None, output: Path | None) -> None:
    """Prints files next to the methods of runs, and writes tables/imported.csv and .md if output is given."""
    curves = [path for path in paths if path.suffix in (".yaml", ".yml")]
    tables = {}
    if others := [path for path in paths if path not in curves]:
        frame = imported_frame([read_imported(path) for path in others], findings)
        tables[NAME] = frame, imported_table(frame)
    if curves:
        cells = [cell for path in curves for cell in golden.read_golden(path)]
        frame = golden.golden_frame(cells, golden.measure_golden(findings)[0] if findings else ())
        tables[golden.GOLDEN] = frame, golden.golden_table(frame)
    texts: dict[str, str] = {}
    for name, (frame, table) in tables.items():
        print_table(table, open_console())
        texts |= {f"{name}.csv": to_csv(frame), f"{name}.md": to_markdown([table])}
    if output:
        print("\n".join(map(str, write_texts(output / "tables", texts))))
