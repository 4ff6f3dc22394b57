"""``specbench compare A B [RUN]``: how much faster one method of a run is than another, why, and
where.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from specbench.commands import make_parser
from specbench.input import InputError, file_path
from specbench.names import near, printable
from specbench.records.record import OVERALL, VANILLA
from specbench.report.build import read_findings
from specbench.report.frames.cases import category_order
from specbench.report.frames.findings import FACTORS, Findings, explain
from specbench.report.frames.headline import find_headlines
from specbench.report.frames.pairs import find_contest
from specbench.report.frames.predict import LEADS
from specbench.report.label import Cell, format_number, label
from specbench.report.locate import DEFAULT_RUN, find_runs
from specbench.report.table import Table
from specbench.report.tables.pairs import ratio_cell
from specbench.report.tables.terminal import open_console, print_table
from specbench.report.writers import BOUNDED
from specbench.stats import MIN_CASES, Estimate

FIGURES = {"speedup": "speed", "predicted_speedup": "modelled speed", "mat": "MAT"}
WHY = (
    "speedup over vanilla = MAT (tokens a step) x forward (vanilla's time over the method's) x"
    " overhead (the share of a step that is the forward's, over vanilla's) x remainder (what is in"
    " no phase)"
)


def main(argv: Sequence[str]) -> int:
    """Print the ratio with its interval, the factors of both, and the categories, or one of them.
    Raises InputError.
    """
    parser = make_parser("compare", __doc__)
    parser.add_argument("first", metavar="A", help="a method of the run")
    parser.add_argument("second", metavar="B", help="another; vanilla for plain decoding")
    parser.add_argument(
        "run",
        nargs="?",
        type=file_path,
        default=DEFAULT_RUN,
        metavar="RUN",
        help=f"default {DEFAULT_RUN}",
    )
    parser.add_argument(
        "--category",
        default=OVERALL,
        metavar="NAME",
        help="the ratio and the factors of one category",
    )
    parser.add_argument(
        "--profile",
        type=file_path,
        metavar="FILE",
        help="a latency profile, where the run has no times",
    )
    given = parser.parse_intermixed_args(argv)
    findings = read_findings(find_runs([given.run]), given.profile)
    # one that grew by methods is split
    if (count := len({run.directory for run in findings.runs})) > 1:
        raise InputError(f"{given.run}: contains {count} runs; expected one of them")
    names = [given.first, given.second]
    known = list(dict.fromkeys(name for facts in findings.facts for name in facts.methods))
    for name in names:
        if name not in known:
            raise InputError(f"{name}: no method of {given.run}; {near(name, known)}")
    if names[0] == names[1]:
        raise InputError(f"{names[0]}: given twice; expected two methods of {', '.join(known)}")
    categories = category_order(
        findings.summary.loc[findings.summary["category"] != OVERALL, "category"]
    )
    if given.category not in (OVERALL, *categories):
        raise InputError(
            f"--category {given.category}: {given.run} has no such category;"
            f" {near(given.category, categories)}"
        )
    console = open_console()
    facts, rows = (
        findings.facts[0],
        findings.summary[findings.summary["category"] == given.category],
    )
    cases = int(rows["cases"].max())
    short = _ratio(findings, names, "speedup", given.category) or _ratio(
        findings, names, "mat", given.category
    )
    few = (
        f"; no intervals {_without_intervals(findings)}"
        if short and short.count < MIN_CASES
        else ""
    )
    run = findings.runs[0].directory.resolve().name
    where = "" if given.category == OVERALL else f" of {given.category}"
    load = f", {facts.arrivals} (load={facts.load['kind']})" if facts.load else ""
    lines = [f"{run}: {facts.model} on {facts.suite}{load}, {cases} cases{where}{few}"]
    lines += _describe_ratios(findings, names, given.category)
    remarks = [remark for headline in find_headlines(findings) for remark in headline.remarks]
    lines += [
        remark for remark in remarks if given.category == OVERALL or not remark.startswith(LEADS)
    ]
    console.print(printable("\n".join(lines)), markup=False, soft_wrap=True)
    by_category = _where(findings, names) if given.category == OVERALL else None
    for table in (_why(findings, names, given.category), by_category):
        if table is not None:
            print_table(table, console)
    return 0


def _describe_ratios(findings: Findings, names: Sequence[str], category: str) -> list[str]:
    """One line per figure that both have: 'speed: pld over sam 1.06 [1.02, 1.10]'; or that they
    share no figure.
    """
    lines = []
    for figure in FIGURES:
        if (found := _ratio(findings, names, figure, category)) is not None:
            cell = ratio_cell(found)
            bounds = f" [{cell.interval}]" if cell.interval else ""
            lines.append(
                f"{_spell(findings, figure, category)}: {names[0]} over {names[1]}"
                f" {cell.text}{bounds}"
            )
    return lines or [
        f"{' and '.join(names)}: share no figure; one may be lossy, or have no finished case"
    ]


def _spell(findings: Findings, figure: str, category: str) -> str:
    """A figure's name: the server's tokens/s have no category, and say nothing at given
    arrivals.
    """
    facts = findings.facts[0]
    server = facts.saturated and category == OVERALL
    of = (
        f" of {'the server, in tokens/s' if server else 'each request'}"
        if figure == "speedup" and facts.load
        else ""
    )
    return f"{FIGURES[figure]}{of}"


def _without_intervals(findings: Findings) -> str:
    load = findings.facts[0].load
    return (
        f"under {MIN_CASES} stretches, of a category, or at given arrivals"
        if load
        else f"under {MIN_CASES} cases"
    )


def _ratio(findings: Findings, names: Sequence[str], figure: str, category: str) -> Estimate | None:
    """One method's figure over the other's, paired; None if they share none. Requests under load
    are not paired.
    """
    facts = findings.facts[0]
    first, second = ((name, "") for name in names)
    if figure == "speedup" and facts.load and not (facts.saturated and category == OVERALL):
        rows = findings.summary[findings.summary["category"] == category].set_index("method")[
            "speedup"
        ]
        ratio = float(rows.get(names[0], math.nan) / rows.get(names[1], math.nan))
        return None if math.isnan(ratio) else Estimate(ratio, None, None, 0)
    contest = find_contest(findings.contests, (facts.model, facts.suite), figure, first)
    return (
        None
        if contest is None or second not in contest.entrants
        else contest.over(first, second, category)
    )


def _why(findings: Findings, names: Sequence[str], category: str) -> Table | None:
    """The factors of both, and their quotient; None if one has no recorded phases."""
    found = explain(findings, category)
    plain = dict.fromkeys((*FACTORS, "speedup"), 1.0)
    for _, rows in found.groupby("basis", sort=False):
        by_name = {row["method"]: row for row in rows.to_dict("records")} | {VANILLA: plain}
        if all(name in by_name for name in names):
            one, two = (by_name[name] for name in names)
            ratio = {key: one[key] / two[key] for key in plain}
            body = zip([*map(label, names), "ratio"], (one, two, ratio), strict=True)
            rows = tuple(
                (Cell(name), *(Cell(format_number(row[key])) for key in plain))
                for name, row in body
            )
            return Table("why", "Why.", WHY, ("", *FACTORS, "decode speedup"), rows)
    return None


def _where(findings: Findings, names: Sequence[str]) -> Table | None:
    """Both in every category by the first figure that they have there, and one over the other with
    its interval.
    """
    rows = findings.summary[findings.summary["category"] != OVERALL]
    figure = next((name for name in FIGURES if rows[name].notna().any()), None)
    categories = category_order(rows["category"])
    if figure is None or len(categories) < 2:
        return None
    values = rows.pivot_table(
        index="category", columns="method", values=figure, aggfunc="first", observed=False
    )
    values = values.reindex(columns=list(names)).reindex(categories)
    if VANILLA in names:
        values[VANILLA] = 1.0
    found = {
        name: _ratio(findings, names, figure, name) or Estimate(math.nan, None, None, 0)
        for name in categories
    }
    cells = tuple(
        (
            Cell(name),
            *(Cell(format_number(value)) for value in values.loc[name]),
            ratio_cell(found[name]),
        )
        for name in sorted(categories, key=lambda name: -np.nan_to_num(found[name].value))
    )
    bounded = any(estimate.low is not None for estimate in found.values())
    header = ("category", *map(label, names), f"ratio [{BOUNDED}]" if bounded else "ratio")
    why = (
        "the ratio is paired by case" if bounded else f"no intervals {_without_intervals(findings)}"
    )
    meaning = f"{_spell(findings, figure, categories[0])} over vanilla's, by category; {why}."
    return Table("where", "Where.", meaning, header, cells)
