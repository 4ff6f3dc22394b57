"""The sections of a page: what each shows, as values that the macros of ``templates/parts.html.j2`` put into HTML."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from specbench.measure.identity import hide_identity
from specbench.records.record import CONTROL, OVERALL, VANILLA, CaseRecord
from specbench.records.settings import flatten
from specbench.report.columns import OVERALL_COLUMNS
from specbench.report.frames.cases import category_order
from specbench.report.frames.facts import Facts
from specbench.report.frames.findings import FACTORS, Findings, explain
from specbench.report.frames.headline import sort_rows
from specbench.report.frames.pairs import Contest, is_alone
from specbench.report.frames.summary import drop_repeated_rows, with_drafting
from specbench.report.label import BLANK, Cell, format_number, format_share, label
from specbench.report.page.parts import part
from specbench.report.table import MEANINGS, Heading, Row, Table, method_table
from specbench.report.tables.summary import meaning, split_lossy
from specbench.report.writers import to_html

MAX_ROWS = 100  # a page stays readable; records.jsonl has all of them
_FACTOR_TITLES = {
    "mat": "Tokens a step",
    "forward": "\N{MULTIPLICATION SIGN} forward",
    "overhead": "\N{MULTIPLICATION SIGN} overhead",
    "remainder": "\N{MULTIPLICATION SIGN} remainder",
}
_STAIR_PX = 7
_MARKS = {VANILLA: "reference", CONTROL: "control"}
_VERDICT_HEADER = (
    *("Method", "Checked answers", "Vanilla's very ids", "Ids checked", "Ties", "Violations", "Largest gap"),
    "Close steps",
)
_VERDICTS = ("record", "equal", "positions", "ties", "violations", "worst_gap", "close_steps")  # columns of the trials
_DIFFERENCES_HEADER = ("Method", "Case", "Round", "Turn", "Token", "Ties", "Violations", "Largest gap")
_MANIFEST = (
    *("specbench", "created", "config_hash", "model", "suite", "trace", "rounds", "temperature", "git", "versions"),
    "machine",
)


def why_section(findings: Findings) -> Markup:
    """Each decode speedup as a product, the fastest method first; '' if no step was measured or modelled."""
    rows = explain(findings)
    rows = rows[np.isfinite(rows[[*FACTORS, "speedup"]].astype(float)).all(axis=1)]
    if rows.empty:
        return Markup("")
    rows = rows.sort_values(["model", "suite", "basis", "speedup"], ascending=[True, True, True, False], kind="stable")
    names = [name for name in ("model", "suite", "basis") if rows[name].nunique() > 1]
    header = [*map(str.capitalize, names), "Method", "Staircase", *_FACTOR_TITLES.values(), "= Decode speedup"]
    found = rows.to_dict("records")
    ends = [np.cumprod([1.0, *(float(row[name]) for name in FACTORS)]) for row in found]  # of the stairs, from vanilla
    logs = np.log(ends)
    low, high = min(0.0, logs.min()) - 0.05, max(0.0, logs.max()) + 0.05
    places = 100 * (logs - low) / (high - low)  # per cent of the width
    lines = [
        {
            "names": [str(row[name]) for name in names],
            "method": Cell(label(row["method"], row["variant"])),
            "one": place[0],
            "stairs": _stairs(place),
            "factors": [format_number(float(row[name])) for name in FACTORS],
            "speedup": format_number(float(row["speedup"])),
        }
        for row, place in zip(found, places, strict=True)
    ]
    basis = "" if "basis" in names else f" {str(rows['basis'].iloc[0]).capitalize()}."
    return part("why", MEANINGS["why"] + basis, header, len(names) + 1, lines, _STAIR_PX * (len(FACTORS) + 1))


def _stairs(places: np.ndarray) -> list[dict[str, Any]]:
    """places: (F + 1,) where each stair ends, in per cent of the width, vanilla's 1 first."""
    steps = [(f"factor{number}", places[number], places[number + 1]) for number in range(len(FACTORS))]
    return [
        {
            "kind": kind,
            "left": min(start, end),
            "width": max(0.4, abs(end - start)),
            "top": number * _STAIR_PX + 1,
            "height": _STAIR_PX - 2,
        }
        for number, (kind, start, end) in enumerate([*steps, ("product", places[0], places[-1])])
    ]


def leaderboard(summary: pd.DataFrame, facts: Sequence[Facts], contests: Sequence[Contest]) -> Markup:
    """Every method's figures, overall and by category, to be sorted and filtered on the page.

    Without a script it is the plain table of the overall figures. Lossy methods have a separate table.
    """
    rows = with_drafting(drop_repeated_rows(summary))
    rows = pd.concat([sort_rows(part) for _, part in rows.groupby(["model", "suite"], sort=False)])
    overall = rows[rows["category"] == OVERALL]
    rows = rows.assign(counted=rows["cases"].where(rows["category"] != OVERALL))  # what may be in brackets
    columns = [
        replace(column, few="counted" if f"{column.figure}_low" in rows else "")
        for column in OVERALL_COLUMNS
        if overall.empty or overall[column.figure].notna().any()
    ]
    categories = [OVERALL, *category_order(rows.loc[rows["category"] != OVERALL, "category"])]
    rows = rows.assign(where=rows["model"] + " on " + rows["suite"])
    places = list(rows["where"].unique())
    boards = [_board(some, columns, remark, contests) for some, remark in split_lossy(rows, facts)]
    return Markup("").join([part("filters", categories, places), *boards])


def _board(rows: pd.DataFrame, columns: Sequence[Heading], remark: str, contests: Sequence[Contest]) -> Markup:
    """The rows of all categories, with the best figures of each category in bold. remark: '' for lossless methods."""
    ranks = {name: rank for rank, name in enumerate(dict.fromkeys(rows["category"]))}
    rows = rows.sort_values("category", key=lambda names: names.map(ranks), kind="stable")

    def alone(figure: str, best: Row) -> bool:
        return is_alone(contests, best["category"], figure, best)

    table = method_table("board", ("", meaning(rows, remark)), rows, columns, alone=alone)
    figures = {column.title: column.figure for column in columns}
    shown = [figures[title] for title in table.header[table.labels :]]
    lines = [
        {
            "category": row["category"],
            "where": row["where"],
            "hidden": row["category"] != OVERALL,
            "mark": "lossy" if remark else _MARKS.get(row["method"], ""),
            "values": ["" if math.isnan(value) else f"{value:.6g}" for value in (float(row[name]) for name in shown)],
        }
        for row in rows.to_dict("records")
    ]
    return part("board", table, lines)


def lossless_section(findings: Findings) -> Markup:
    """The verdicts on every lossless method's answers and where they first differ from vanilla's; '' without any."""
    judged = _find_judged(findings)
    others = judged[judged["method"] != VANILLA]
    if others.empty:
        return Markup("")
    groups = judged.groupby("name", sort=False)
    rows = tuple((Cell(str(name)), *map(Cell, _figures(found))) for name, found in groups)
    verdicts = Table("lossless", "", MEANINGS["lossless"], _VERDICT_HEADER, rows)
    order, falling = ["violations", "worst_gap", "run", "record"], [False, False, True, True]
    differ = others[~others["equal"].astype(bool)].sort_values(order, ascending=falling, kind="stable")
    cells = tuple(
        tuple(map(Cell, _difference(row.name, findings.runs[row.run].records[row.record])))
        for row in differ[:MAX_ROWS].itertuples(index=False)
    )
    remark = "Turns and tokens are counted from 0."
    listed = Table("differences", "", remark, _DIFFERENCES_HEADER, cells, labels=2)
    return to_html([verdicts]) + part("differences", len(differ), len(others), _cut(len(differ)), listed)


def _find_judged(findings: Findings) -> pd.DataFrame:
    """A row for each judged record of a lossless method, by method; also vanilla's, whose ties are the noise floor."""
    ranks = {name: rank for facts in findings.facts for rank, name in enumerate(facts.methods)}
    frames = [pd.DataFrame(columns=["run", "method", "name", *_VERDICTS])]
    for number, reported in enumerate(findings.reported):
        suffix = f" ({reported.run.directory.name})" if len(findings.runs) > 1 else ""
        for method, each in reported.trials.methods.items():
            judged = each.columns["judged"]
            if method not in findings.lossy and judged.any():
                found = pd.DataFrame({name: each.columns[name][judged] for name in _VERDICTS})
                frames.append(found.assign(run=number, method=method, name=label(method) + suffix))
    known = pd.concat(frames[1:] or frames)
    return known.sort_values("method", key=lambda names: names.map(ranks), kind="stable")


def _figures(verdicts: pd.DataFrame) -> list[str]:
    """The figures of forced ids are blank if ids were compared only."""
    forced = verdicts[verdicts["positions"] > 0]
    known = [str(len(verdicts)), format_share(int(verdicts["equal"].sum()) / len(verdicts))]
    if forced.empty:
        return [*known, *[BLANK] * (len(_VERDICT_HEADER) - 3)]
    sums = [str(int(forced[name].sum())) for name in ("positions", "ties", "violations")]
    close = BLANK if forced["close_steps"].isna().all() else str(int(forced["close_steps"].sum()))
    return [*known, *sums, f"{forced['worst_gap'].max():.2g}", close]


def _difference(name: str, record: CaseRecord) -> tuple[str, ...]:
    verdict = record.lossless
    assert verdict is not None
    found = (str(verdict.ties), str(verdict.violations), f"{verdict.worst_gap:.2g}")
    return (name, record.case, str(record.round), *map(str, verdict.divergence or (BLANK, BLANK)), *found)


def failures(findings: Findings) -> Markup:
    """Each failed case with its traceback folded; '' if none failed."""
    failed = []
    for reported in findings.reported:
        columns = (each.columns for each in reported.trials.methods.values())
        places = sorted(int(place) for rows in columns for place in rows["record"][~rows["ok"]])
        failed += [(reported.run, place) for place in places]
    shown = []  # (title, traceback)
    for run, place in failed[:MAX_ROWS]:
        record = run.records[place]
        error: Mapping[str, Any] = record.error or {}
        if not run.section("config", "report").get("identify"):  # older runs recorded the home directory and the user
            error = hide_identity(error)
        title = f"{label(record.method)}, case {record.case}, round {record.round}"
        title += f", turn {error['turn']}" if error.get("turn") is not None else ""
        reason = f"{error.get('type', 'error')}: {error.get('message', 'no message was recorded')}"
        shown.append((f"{title}: {reason}", str(error.get("traceback") or "no traceback was recorded")))
    return part("failures", len(failed), _cut(len(failed)), shown) if failed else Markup("")


def _cut(total: int) -> str:
    return f" The first {MAX_ROWS} are listed; records.jsonl has all." if total > MAX_ROWS else ""


def environment(findings: Findings) -> Markup:
    """For each run: its manifest, its machine, its methods' parameters and its configuration, folded if several."""
    parts = []
    for run in findings.runs:
        manifest = run.manifest
        found = {key: manifest[key] for key in _MANIFEST if manifest.get(key) not in (None, {}, "")}
        facts = {
            key: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            for key, value in flatten(found).items()
        }
        texts = {
            title: json.dumps(manifest[key], indent=2, ensure_ascii=False, default=str)
            for title, key in (("Methods and their parameters", "methods"), ("Configuration", "config"))
            if manifest.get(key)
        }
        parts.append(part("environment", run.directory.name if len(findings.runs) > 1 else "", facts, texts))
    return Markup("").join(parts)
