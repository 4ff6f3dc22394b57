"""The formats of other harnesses' result files: how a file is recognised, read and written, and
files next to a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from specbench.input import InputError, parse_json, read_file, refuse_foreign
from specbench.names import file_name
from specbench.records.record import CONTROL, CaseRecord
from specbench.records.store import RunError, write_atomically
from specbench.report.exchange import nvidia
from specbench.report.exchange.figures import Figures, Measured
from specbench.report.frames.findings import Findings
from specbench.report.label import Cell, format_count, format_number, format_rate, format_share
from specbench.report.table import Table, without_blanks
from specbench.report.tables.terminal import open_console, print_table
from specbench.report.tokenizer import find_tokenizer, read_tokenizer
from specbench.report.writers import to_csv, to_markdown, write_texts


@dataclass(frozen=True, slots=True)
class Format:
    """A format. file: the name that its harness uses. mark: a key that no other format has.

    timed: it has times, so a model must have been timed. plain: it can report decoding without
    drafts.
    """

    file: str
    mark: str
    read: Callable[[bytes, str], Sequence[Figures]]
    write: Callable[[Measured], str]
    timed: bool = True
    plain: bool = True


_SHOWN = 200  # characters of the keys of an unknown file
FORMATS = {
    "speculation_profile": Format("speculation_profile.json", "marginal_accept_rates",
    nvidia.read_profile,
                                  nvidia.write_profile, timed=False, plain=False),
    "acceptance_rate": Format("acceptance_rate.json", "Acceptance_Length_Histogram",
    nvidia.read_rates,
                              nvidia.write_rates, timed=False),
    "timing": Format("timing.json", "Output TPS", nvidia.read_times, nvidia.write_times),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Imported:
    """A file as read. name: of the file, or of a method of the run next to it."""

    name: str
    format: str
    groups: Sequence[Figures]


def read_imported(path: Path) -> Imported:
    """Read a file of any of the formats. Raises InputError naming the file and the key that is
    wrong.
    """
    fix = f"expected a file of one of: {', '.join(FORMATS)}"
    raw = read_file(path, "file to import ", fix)
    value = parse_json(raw, str(path), fix)
    last = value[-1] if isinstance(value, list) and value else value
    found = last.keys() if isinstance(last, dict) else ()
    known = [name for name, each in FORMATS.items() if each.mark in found]
    if len(known) != 1:
        marks = "; ".join(f"{name}: {each.mark}" for name, each in FORMATS.items())
        shown = ", ".join(sorted(found))[:_SHOWN] or "none"
        raise InputError(f"{path}: has the keys {shown}; expected those of one format ({marks})")
    return Imported(path.name, known[0], FORMATS[known[0]].read(raw, str(path)))


def measured_of(findings: Findings, format: Format) -> Iterator[tuple[str, Measured | None]]:
    """Yields each method as (name, Measured), or (the reason, None) if this format cannot represent
    it.
    """
    for reported in findings.reported:
        facts, run = reported.facts, reported.run
        by_path = run.section("config", "decode").get("verify") == "block"
        for method in (name for name in facts.methods if name != CONTROL):
            records = reported.succeeded(method)
            plain = not any(any(turn.proposed) for record in records for turn in record.turns)
            made = run.section("model")
            inputs = run.section("methods", method, "inputs")
            target = (str(made["path"]), made.get("fingerprint")) if made.get("path") else None
            draft = next(iter(inputs.items()), None)  # the weights come first
            found = Measured(facts, method, records, by_path, target, draft)
            timed = (
                facts.timed
                and not facts.time_only
                and not facts.load
                and all(turn.wall_s for turn in found.turns)
            )
            reasons = {
                "no case succeeded": not records,
                "recorded no drafts, and this format describes drafts": plain and not format.plain,
                "drafts from a model whose answers were replayed": method in facts.unaccepted,
                "not timed request by request with a model's own answers, and this format has"
                " times": format.timed and not timed,
            }
            why = next((reason for reason, applies in reasons.items() if applies), "")
            yield (f"{method}: {why}", None) if why else (method, found)


def export_run(
    findings: Findings, name: str, output: Path, tokenizer: Path | None = None
) -> tuple[list[Path], list[str]]:
    """Write one file a method, ``<method>/<file>``. Returns the files, and what was left out and
    why.

    name: one of ``FORMATS``, or ``samples``, which need the tokenizer, by default the run's own.
    Raises RunError for several runs, and if no method can be written.
    """
    if len({run.directory for run in findings.runs}) > 1:
        raise RunError(
            f"--export: got {len(findings.runs)} runs; expected one, its methods are the folders'"
            " names"
        )
    left: list[str] = []
    if name == SAMPLES:
        file, texts = f"{SAMPLES}.jsonl", write_samples(findings, tokenizer)
    else:
        file, texts = FORMATS[name].file, {}
        for reason, found in measured_of(findings, FORMATS[name]):
            if found is None:
                left.append(reason)
            else:
                texts[found.method] = FORMATS[name].write(found)
    if not texts:
        raise RunError(
            f"run {findings.runs[0].directory}: no method can be written as {name}"
            f" ({'; '.join(left)})"
        )
    for method in texts:
        mark = "completion" if name == SAMPLES else FORMATS[name].mark
        refuse_foreign(
            output / file_name(method) / file, mark.encode(), "move it, or give --output DIR"
        )
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
        named = {
            "task_id": record.case,
            "completion": text,
            "method": record.method,
            "round": record.round,
        }
        return json.dumps(named, ensure_ascii=False) + "\n"

    of_methods = (
        (reported, name) for reported in findings.reported for name in reported.facts.methods
    )
    return {
        name: "".join(map(sample, each.succeeded(name)))
        for each, name in of_methods
        if name != CONTROL
    }


NAME = "imported"
_MEANING = (
    "Files of other harnesses, each with the run's methods as that harness would have counted them."
    " Steps: those that the acceptance length is of. At least n: share of steps that accepted so"
    " many drafts. Blank: unknown."
)
_COLUMNS = {
    "requests": ("Requests", format_count),
    "steps": ("Steps", format_count),
    "length": ("Acceptance length", lambda value: format_number(value, 4)),
    "tokens_per_s": ("Tokens/s", format_rate),
}
_POSITIONS = 5  # that are printed; the csv has all


def imported_frame(files: Sequence[Imported], findings: Findings | None) -> pd.DataFrame:
    """Returns one row per file or method and group, unrounded; NaN for a missing figure."""
    rows = []
    for name in dict.fromkeys(each.format for each in files):
        format, shown = FORMATS[name], [file for file in files if file.format == name]
        # counted as the format's harness counts
        for method, own in measured_of(findings, format) if findings else ():
            shown += (
                [Imported(method, name, format.read(format.write(own).encode(), method))]
                if own
                else []
            )
        for each in shown:
            for group in each.groups:
                row = {"row": each.name, "format": name, "group": group.group}
                row |= {key: getattr(group, key) for key in _COLUMNS}
                rows.append(
                    row
                    | {
                        f"at_least_{place}": share
                        for place, share in enumerate(group.positions, start=1)
                    }
                )
    frame = pd.DataFrame(rows)
    return frame.astype(dict.fromkeys(frame.columns[3:], float))


def imported_table(frame: pd.DataFrame) -> Table:
    """The figures as printed."""
    positions = [name for name in frame.columns if name.startswith("at_least_")][:_POSITIONS]
    titles = [title for title, _ in _COLUMNS.values()] + [
        f"At least {name.rpartition('_')[2]}" for name in positions
    ]
    rows = []
    for row in frame.to_dict("records"):
        figures = [write(row[name]) for name, (_, write) in _COLUMNS.items()]
        figures += [format_share(row[name]) for name in positions]
        rows.append(tuple(map(Cell, (row["row"], row["format"], row["group"], *figures))))
    header = ("Row", "Format", "Group", *titles)
    return without_blanks(Table(NAME, "", _MEANING, header, tuple(rows), labels=3))


def show_imported(paths: Sequence[Path], findings: Findings | None, output: Path | None) -> None:
    """Prints files next to the methods of runs, and writes tables/imported.csv and .md if output is
    given.
    """
    frame = imported_frame([read_imported(path) for path in paths], findings)
    table = imported_table(frame)
    print_table(table, open_console())
    if output:
        texts = {f"{NAME}.csv": to_csv(frame), f"{NAME}.md": to_markdown([table])}
        print("\n".join(map(str, write_texts(output / "tables", texts))))
