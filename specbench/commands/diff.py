"""``specbench diff RUN RUN``: what two runs were set to and made with, where it differs, and their
figures.

The first lines report whether the records are the same: a run that is repeated, here or on another
machine, has equal tokens and accepted lengths, and other times. With --fail the exit code is 1 if a
figure of the second run is worse than a limit allows: the complete interval of the ratio, the
second run over the first, is beyond the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from specbench.commands import make_parser
from specbench.input import InputError, file_path
from specbench.names import printable
from specbench.records.manifest import differing, flatten, spell_value
from specbench.records.record import CONTROL, OVERALL, CaseRecord
from specbench.records.store import Run, RunError
from specbench.report.build import read_findings
from specbench.report.frames.findings import Findings
from specbench.report.frames.regression import (
    FAILS,
    MISSING,
    PASSES,
    UNDECIDED,
    Check,
    Limit,
    check_limits,
)
from specbench.report.label import (
    BLANK,
    Cell,
    format_bounded,
    format_interval,
    format_number,
    format_rate,
    label,
)
from specbench.report.locate import find_runs
from specbench.report.table import Table
from specbench.report.tables.terminal import open_console, print_table
from specbench.report.writers import BOUNDED
from specbench.runs.digest import decisive
from specbench.screen import DONE, FAILED

# Entries of a manifest, in addition to its settings: what a run was made with.
MADE_WITH = ("specbench", "engine", "forward", "threads", "versions", "git")
FIGURES = {"mat": "MAT", "speedup": "speedup", "tokens_per_s": "tokens/s"}
NAMES = ("A", "B")


def main(argv: Sequence[str]) -> int:
    """Print what is equal and what is not. Raises InputError."""
    parser = make_parser("diff", __doc__)
    parser.add_argument("runs", nargs=2, type=file_path, metavar="RUN", help="a run's directory")
    parser.add_argument(
        "--fail",
        nargs="+",
        action="extend",
        default=[],
        metavar="LIMIT",
        help=(
            "COLUMN<RATIO or COLUMN>RATIO of summary.csv, as 'mat<0.98': exit 1 if a method's"
            " ratio, the second run over the first, is beyond it with its interval"
        ),
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit 1 for inconclusive and missing ratios, too"
    )
    given = parser.parse_args(argv)
    limits = [Limit.parse(text) for text in given.fail]
    if given.strict and not limits:
        raise InputError("--strict: is for limits; expected --fail LIMIT, as --fail 'mat<0.98'")
    both = []
    for path in given.runs:
        found = find_runs([path])
        if len(found) != 1:
            raise RunError(f"{path}: contains {len(found)} runs; expected one of them")
        both.append(read_findings(found))
    console = open_console()
    one, two = (found.runs[0] for found in both)
    for name, run in zip(NAMES, (one, two), strict=True):
        console.print(printable(f"{name}: {run.directory}"), markup=False, soft_wrap=True)
    console.print(describe_equal(one.records, two.records), markup=False, soft_wrap=True)
    sides = differing([_settings(run) for run in (one, two)])
    if rows := tuple(
        (Cell(key), *(Cell(spell_value(side[key])) for side in sides)) for key in sides[0]
    ):
        print_table(Table("settings", "Settings.", "What differs.", ("", *NAMES), rows), console)
    print_table(figures_table(both), console)
    if not limits:
        return DONE
    checks = check_limits(both, limits)
    print_table(limits_table(checks), console)
    for reason in dict.fromkeys(check.reason for check in checks if check.reason):
        console.print(f"{reason}.", markup=False, soft_wrap=True)
    count = {
        name: sum(check.verdict == name for check in checks)
        for name in (FAILS, UNDECIDED, MISSING, PASSES)
    }
    console.print(
        ", ".join(f"{number} {name}" for name, number in count.items() if number), markup=False
    )
    failed = count[FAILS] or (given.strict and count[PASSES] < len(checks))
    return FAILED if failed else DONE


def describe_equal(one: Sequence[CaseRecord], two: Sequence[CaseRecord]) -> str:
    """Return the line '84 records are in both; 84 have the same tokens and accepted lengths.'."""
    first, second = (
        {
            (each.case, each.method, each.round): [(turn.ids, turn.accept) for turn in each.turns]
            for each in side
        }
        for side in (one, two)
    )
    shared = first.keys() & second.keys()
    same = sum(first[key] == second[key] for key in shared)
    alone = f" ({len(first) - len(shared)} and {len(second) - len(shared)} are in one only)"
    return (
        f"{len(shared)} records are in both{alone}; {same} have the same tokens and accepted"
        " lengths."
    )


def _settings(run: Run) -> dict[str, Any]:
    """The settings that decide records, and what the run was made with."""
    made: Mapping[str, Any] = {key: run.manifest.get(key) for key in MADE_WITH}
    processes = run.manifest.get("processes") or [{}]
    machine = {
        key: value
        for key, value in (processes[-1].get("machine") or {}).items()
        if not key.startswith("load")
    }
    return flatten(decisive(run.section("config"))) | flatten(made) | flatten({"machine": machine})


def figures_table(both: Sequence[Findings]) -> Table:
    """One row per method: MAT, speedup and tokens/s of both runs."""
    frames = [
        found.summary[
            (found.summary["category"] == OVERALL) & (found.summary["method"] != CONTROL)
        ].set_index("method")
        for found in both
    ]
    methods = dict.fromkeys(name for frame in frames for name in frame.index)
    figures = [(frame, name) for name in FIGURES for frame in frames]
    rows = tuple(
        (Cell(label(m)), *(Cell(_figure(frame, m, name)) for frame, name in figures))
        for m in methods
    )
    header = ("method", *(f"{title} {name}" for title in FIGURES.values() for name in NAMES))
    return Table("figures", "Figures.", "Overall; in brackets 95 %.", header, rows)


def limits_table(checks: Sequence[Check]) -> Table:
    """One row per limit and method: both figures, their ratio, and the verdict."""
    rows = tuple(
        (
            Cell(check.limit.text),
            Cell(label(check.method)),
            *(Cell(format_number(value)) for value in check.values),
            Cell(
                format_number(check.ratio.value, 3),
                format_interval(*check.ratio.bounds, decimals=3),
            ),
            Cell(check.verdict),
        )
        for check in checks
    )
    meaning = (
        "Ratio: B over A, paired by case. It fails if its interval is beyond the limit, or if it"
        " has none and is beyond it; if only the ratio itself is beyond the limit, it is"
        " inconclusive."
    )
    return Table(
        "limits",
        "Limits.",
        meaning,
        ("limit", "method", *NAMES, f"ratio [{BOUNDED}]", "verdict"),
        rows,
    )


def _figure(frame: pd.DataFrame, method: str, name: str) -> str:
    if method not in frame.index:
        return BLANK
    row = frame.loc[method]
    if name == "tokens_per_s":
        return format_rate(row[name])
    if name == "mat":
        return format_number(row[name])
    return format_bounded(row[name], row[f"{name}_low"], row[f"{name}_high"])
