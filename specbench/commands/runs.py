"""``specbench list``: the runs below a folder, the newest first: what, when, which method is best,
complete or not.

A run's best method comes from its ``summary.csv``, which its report wrote; the records are not
read, but for the last.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.commands import make_parser
from specbench.input import InputError, file_path
from specbench.kept import LIMIT, find_limit, find_place, list_kept
from specbench.names import printable
from specbench.records.manifest import differing, flatten, spell_value
from specbench.records.record import CONTROL, OVERALL, VANILLA
from specbench.records.store import MANIFEST, RECORDS, SET_ASIDE, SHARDS, read_manifest
from specbench.runs.digest import decisive
from specbench.screen import Screen

SUMMARY = "summary.csv"
WIDTH = 120
_PIPED = 1000  # columns: nothing is cut if no terminal ends the line
DECIDING = ("speedup", "predicted_speedup", "mat")  # the first that a run has
_MOST_VARIED = 3  # settings that are shown
_IN_COLUMNS = re.compile(r"(model|suite)\.(name|path)$|method\.\w+\._target_$")
_GB = 1e9
_CHUNK = 1 << 16  # [bytes] read at once from the end of the records


@dataclass(frozen=True, slots=True)
class Listed:
    """A run in a line.

    name: its folder. best: method and figure, '' without a report. done: how far it is. settings:
    flat; varied: those in which the runs of its sweep differ.
    """

    name: str
    started: str
    model: str
    suite: str
    methods: int
    best: str
    done: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    varied: str = ""


def main(argv: Sequence[str]) -> int:
    """Print the index. Raises InputError if the folder contains no run."""
    parser = make_parser("list", __doc__)
    parser.add_argument(
        "folder",
        nargs="?",
        type=file_path,
        default=Path("results"),
        help="of the runs (default results)",
    )
    parser.add_argument(
        "--cache", action="store_true", help="what is kept in the cache instead, and its limit"
    )
    given = parser.parse_args(argv)
    if given.cache:
        print_cache()
        return 0
    folder = given.folder
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder; expected one that specbench wrote runs into, such as"
            " results"
        )
    found = name_varied([list_run(run, folder) for run in find_every_run(folder)])
    if not found:
        raise InputError(
            f"{folder}: contains no run; expected a folder into which specbench wrote runs, as"
            " results"
        )
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    titles = (
        "started",
        "run",
        *(["varied"] if any(each.varied for each in found) else []),
        "model",
        "suite",
    )
    for title in (*titles, "methods", "best", "done"):
        whole = len("2026-11-23 04:55") if title == "started" else None
        table.add_column(
            title, justify="right" if title == "methods" else "left", no_wrap=True, min_width=whole
        )
    for each in sorted(found, key=lambda run: run.started, reverse=True):
        own = [getattr(each, "name" if title == "run" else title) for title in titles]
        cells = (*own, str(each.methods), each.best, each.done)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console = Screen(highlight=False)
    console.width = max(console.width, WIDTH) if console.is_terminal else _PIPED
    console.print(table, crop=False)
    return 0


def print_cache() -> None:
    """Print what the cache keeps, the latest used first."""
    kept = list_kept()
    for each in kept:
        names = ", ".join(sorted(path.name for path in each.folder.iterdir()))
        used = datetime.fromtimestamp(each.used).isoformat(" ", "minutes")
        print(printable(f"{each.size / _GB:7.2f} GB  {used}  {names}"))
    total = sum(each.size for each in kept)
    print(
        printable(
            f"{total / _GB:7.2f} GB  of at most {find_limit() / _GB:g} ({LIMIT}), in {find_place()}"
        )
    )


def find_every_run(folder: Path) -> list[Path]:
    """The runs in a folder and in those in it, such as sweeps; no links, no parts, nothing set
    aside.
    """
    found = [path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{MANIFEST}")]
    own = [run for run in found if not run.is_symlink() and run.parent.name != SHARDS]
    own = [run for run in own if run.parent == folder or not run.parent.is_symlink()]
    return [run for run in own if not SET_ASIDE.search(run.name)]


def list_run(run: Path, folder: Path) -> Listed:
    """The line of a run; an unreadable manifest is named in it."""
    name = run.relative_to(folder).as_posix()
    try:
        manifest = read_manifest(run)
    except InputError:
        return Listed(name, "", "", "", 0, "", f"{MANIFEST} cannot be read")
    methods = [each for each in manifest.methods if each != VANILLA]
    cases, begun = manifest.suite.cases, count_blocks(run / RECORDS)
    total = manifest.blocks or (cases or 0) * (manifest.rounds or 1)  # grown, or under load
    done = "" if not cases else "complete" if begun >= total else f"{begun} of {total} blocks"
    lossy = {each for each, entry in manifest.methods.items() if not entry.lossless}
    try:
        best = find_best(run / SUMMARY, lossy) if (run / SUMMARY).is_file() else ""
    except (ValueError, LookupError, csv.Error):  # damaged; a report writes it again
        best = f"{SUMMARY} cannot be read"
    return Listed(
        name,
        manifest.created[:16].replace("T", " "),
        manifest.model.name or "",
        manifest.suite.name or "",
        len(methods),
        best,
        done,
        flatten(decisive(manifest.config.written)),
    )


def name_varied(listed: Sequence[Listed]) -> list[Listed]:
    """The lines, those of a sweep with the settings in which its runs differ: 'pld.num_draft=3'."""
    found = list(listed)
    sweeps: dict[str, list[int]] = {}
    for place, run in enumerate(listed):
        if run.settings and "/" in run.name:
            sweeps.setdefault(run.name.partition("/")[0], []).append(place)
    for places in sweeps.values():
        for place, own in zip(
            places, differing([listed[place].settings for place in places]), strict=True
        ):
            kept = {key: value for key, value in own.items() if not _IN_COLUMNS.match(key)}
            parts = [
                f"{key.removeprefix('method.')}={spell_value(value)}" for key, value in kept.items()
            ]
            more = ["..."] if len(parts) > _MOST_VARIED else []
            found[place] = replace(listed[place], varied=" ".join(parts[:_MOST_VARIED] + more))
    return found


def find_best(summary: Path, lossy: set[str]) -> str:
    """'pld 1.11 [1.06, 1.16]': the lossless method with the largest figure, and which one unless a
    speedup.
    """
    with summary.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("category") == OVERALL]
    rows = [row for row in rows if row["method"] not in {VANILLA, CONTROL, *lossy}]
    figure = next((name for name in DECIDING if any(row.get(name) for row in rows)), None)
    if figure is None:
        return ""
    best = max((row for row in rows if row[figure]), key=lambda row: float(row[figure]))
    low, high = best.get(f"{figure}_low"), best.get(f"{figure}_high")
    bounds = f" [{float(low):.2f}, {float(high):.2f}]" if low and high else ""
    kind = {"speedup": "", "predicted_speedup": "modelled ", "mat": "MAT "}[figure]
    return f"{best['method']} {kind}{float(best[figure]):.2f}{bounds}"


def count_blocks(records: Path) -> int:
    """Blocks that were begun, by the last whole line; 0 without one."""
    for line in _last_lines(records):
        try:
            return int(json.loads(line)["block"]) + 1
        except (ValueError, KeyError, TypeError):
            continue
    return 0


def _last_lines(path: Path) -> Iterator[bytes]:
    """Whole lines of a file from its end, read as they are requested."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        place, rest = file.seek(0, os.SEEK_END), b""
        while place:
            size = min(_CHUNK, place)
            place = file.seek(place - size)
            first, *lines = (file.read(size) + rest).split(b"\n")
            yield from (line for line in reversed(lines) if line)
            rest = first
        if rest:
            yield rest
