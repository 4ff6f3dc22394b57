"""``report.html``: one file that contains everything, so that it can be mailed.

The style sheet and the scripts are files of this package. The page contains them, and allows them
by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from specbench.records.manifest import flatten
from specbench.records.record import CONTROL, OVERALL, VANILLA, CaseRecord
from specbench.records.store import PAGE, write_atomically
from specbench.report.columns import OVERALL_COLUMNS
from specbench.report.frames.cases import list_categories, overall
from specbench.report.frames.detail import LOADED, OBJECTIVE
from specbench.report.frames.facts import Facts
from specbench.report.frames.findings import FACTORS, Findings, explain
from specbench.report.frames.headline import Headline, find_headlines, sort_rows
from specbench.report.frames.load import Load
from specbench.report.frames.pairs import Contest, is_alone
from specbench.report.frames.summary import drop_repeated_rows, with_drafting
from specbench.report.label import BLANK, Cell, format_number, format_share, label, raise_first
from specbench.report.page.opening import opening
from specbench.report.page.parts import part, templates
from specbench.report.page.tokens import sample_cases, token_section
from specbench.report.plots.scene import DPI
from specbench.report.table import MEANINGS, Heading, Row, Table, method_table
from specbench.report.tables import detail as tables_of
from specbench.report.tables.modelled import crossover_table
from specbench.report.tables.pairs import pair_tables, settings_tables
from specbench.report.tables.summary import (
    DEFINITIONS,
    build_tables,
    caption,
    meaning,
    split_lossy,
    steps_table,
)
from specbench.report.writers import to_html

_HERE = Path(__file__).resolve().parent
_SCRIPTS = ("tables.js", "tokens.js", "tree.js", "panes.js")  # in one scope, in this order
_SCREEN_DPI = 125
_HEADINGS = {"speedup_by_category": "Speedup by category", "mat_by_category": "MAT by category"}


def write_page(
    findings: Findings,
    plots: Sequence[Path],
    output: Path,
    load: Load | None = None,
    titled: bool = False,
) -> Path:
    """Writes the page with its plots inside.

    Args:
        findings: Of the runs that the page reports.
        plots: PNG files.
        output: The folder of the page.
        load: What a latency profile predicts for more concurrent requests.
        titled: The plots have no titles of their own.
    """
    path = output / PAGE
    write_atomically(path, render_page(findings, plots, load, titled))
    return path


def render_page(
    findings: Findings, plots: Sequence[Path] = (), load: Load | None = None, titled: bool = False
) -> str:
    """Returns the complete document; the arguments are those of ``write_page``."""
    where = "; ".join(dict.fromkeys(f"{facts.model} on {facts.suite}" for facts in findings.facts))
    headlines = find_headlines(findings, load)
    found = _sections(findings, gallery(plots, titled), headlines, load)
    sections = {title: body.strip() for title, body in found.items() if body}
    words = re.sub(
        r"<script.*?</script>|<[^>]*>", " ", "".join(sections.values()), flags=re.S
    ).lower()
    used = {word: meaning for word, meaning in DEFINITIONS.items() if word.lower() in words}
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    texts = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    # scripts share names with each other and nothing else
    script = '"use strict";\n(() => {\n' + texts + "})();\n"
    policy = (  # nothing is loaded, and nothing runs but our own script
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src"
        f" '{_hash(script)}'; base-uri 'none'; form-action 'none'"
    )
    sections["What each number means"] = part("definitions", used).strip()
    about = _describe(findings).removeprefix(f"{where} ")
    return templates().get_template("page.html.j2").render(
        where=where, policy=Markup(policy), style=Markup(style), script=Markup(script),
        caption=about, opening=opening(findings, headlines), sections=sections,
    )  # fmt: skip


def _hash(text: str) -> str:
    """Returns the hash that browsers make of the text between the tags."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode(
        "ascii"
    )


def _sections(
    findings: Findings, pictures: Markup, headlines: Sequence[Headline], load: Load | None
) -> dict[str, Markup]:
    """Heading -> its section, '' if there is nothing to show. Figures come first, evidence is
    folded.
    """
    few = {
        "Warnings": part("list", findings.warnings) if findings.warnings else Markup(""),
        "Environment": environment(findings),
    }
    if findings.summary.empty:  # nothing was decoded yet: no table has a row
        return few
    tables = build_tables(findings.summary, findings.facts, findings.contests)
    # accepted lengths were replayed: not to be ranked
    marked = findings.summary["time_only_step_ms"].notna()
    ranked, unranked = findings.summary[~marked], findings.summary[marked]
    timed = build_tables(unranked, [facts for facts in findings.facts if facts.time_only])[
        "overall"
    ]
    board = unranked.empty or len(ranked)
    detail, tails = findings.detail, findings.detail["tails"]
    crossover = [crossover_table(load)] if load else []
    return {
        "Leaderboard": (
            leaderboard(ranked, findings.facts, findings.contests) if board else Markup("")
        ),
        "Under load": to_html(
            [
                *tables_of.objective_tables(detail[OBJECTIVE]),
                *tables_of.served_tables(detail[LOADED]),
                *crossover,
            ]
        ),
        "Time only": to_html([] if unranked.empty else timed),
        "Best settings": to_html(settings_tables(findings, headlines)),
        "Why": why_section(findings),
        **{_HEADINGS[name]: to_html(tables[name]) for name in _HEADINGS if name in tables},
        "Plots": pictures,
        "Token by token": token_section(sample_cases(findings)),
        "Warnings": few["Warnings"],
        "Lossless": lossless_section(findings),
        "Errors": failures(findings),
        "Answers": to_html(tables_of.quality_tables(findings)),
        "Thinking": to_html(tables_of.thinking_tables(detail["thinking"])),
        "Method against method": to_html(pair_tables(findings, headlines)),
        "Along the context": to_html(tables_of.lengths_tables(detail["by_length"])),
        "Along a trajectory": to_html(tables_of.turns_tables(detail["by_turn"])),
        "Waiting": to_html([tables_of.tails_table(tails, "")] if len(tails) else []),
        "A mean step": to_html([steps_table(findings.summary, findings.facts)]),
        "Audit": to_html(tables_of.audit_tables(findings)),
        "Acceptance by other definitions": to_html(
            tables_of.count_tables(detail["accept_definitions"])
        ),
        "Shards": to_html(tables_of.shards_tables(findings)),
        "Environment": few["Environment"],
    }


def gallery(plots: Sequence[Path], titled: bool = False) -> Markup:
    """The plots inside the page, all at one scale, in as many columns as the screen is wide for.

    Args:
        plots: PNG files.
        titled: They have no titles inside, so that the page prints their titles.
    """
    if not plots:
        return Markup("")
    from PIL import Image  # part of matplotlib, and slow to import

    # matplotlib, which drew them, is slow to import
    from specbench.report.plots.catalogue import title_of

    pictures: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for path in plots:
        memory = io.BytesIO()
        # in 256 colours, a third of the bytes: a page may have hundreds of pictures
        with Image.open(path) as drawn:
            drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(memory, "png")
            width = drawn.width * _SCREEN_DPI // DPI
        look = {
            "data": base64.b64encode(memory.getvalue()).decode("ascii"),
            "width": width,
            "titled": titled,
        }
        # the bars by category show the same figures, and with intervals
        folded = path.stem.startswith("radar")
        pictures[folded].append(look | {"title": title_of(path.stem)})
    return part("pictures", pictures[False], pictures[True])


def _describe(findings: Findings) -> str:
    """The settings of the runs, what was replayed, and when the runs were created, in UTC."""
    lines = [caption(findings.facts, findings.summary)]
    for title, found in (
        ("Replay of", [each for each in findings.facts if not each.timed]),
        *((f"{raise_first(each.time_note)},", [each]) for each in findings.facts if each.time_only),
    ):
        if traces := dict.fromkeys(each.trace for each in found if each.trace):
            lines.append(f"{title} {'; '.join(traces)}.")
    stamps = [str(run.manifest["created"]) for run in findings.runs if "created" in run.manifest]
    if stamps:
        lines.append(
            f"Created {', '.join(dict.fromkeys(stamp[:16].replace('T', ' ') for stamp in stamps))}"
            " UTC."
        )
    return " ".join(dict.fromkeys(filter(None, lines)))


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
    *(
        "Method",
        "Checked answers",
        "Vanilla's very ids",
        "Ids checked",
        "Ties",
        "Violations",
        "Largest gap",
    ),
    "Close steps",
)
# columns of the trials
_VERDICTS = ("record", "equal", "positions", "ties", "violations", "worst_gap", "close_steps")
_DIFFERENCES_HEADER = (
    "Method",
    "Case",
    "Round",
    "Turn",
    "Token",
    "Ties",
    "Violations",
    "Largest gap",
)
_MANIFEST = (
    *(
        "specbench",
        "created",
        "config_hash",
        "model",
        "suite",
        "trace",
        "rounds",
        "temperature",
        "git",
        "versions",
    ),
    "machine",
)


def why_section(findings: Findings) -> Markup:
    """Each decode speedup as a product, the fastest method first; '' if no step was measured or
    modelled.
    """
    rows = explain(findings)
    rows = rows[np.isfinite(rows[[*FACTORS, "speedup"]].astype(float)).all(axis=1)]
    if rows.empty:
        return Markup("")
    rows = rows.sort_values(
        ["model", "suite", "basis", "speedup"], ascending=[True, True, True, False], kind="stable"
    )
    names = [name for name in ("model", "suite", "basis") if rows[name].nunique() > 1]
    header = [
        *map(str.capitalize, names),
        "Method",
        "Staircase",
        *_FACTOR_TITLES.values(),
        "= Decode speedup",
    ]
    found = rows.to_dict("records")
    # of the stairs, from vanilla
    ends = [np.cumprod([1.0, *(float(row[name]) for name in FACTORS)]) for row in found]
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
    return part(
        "why",
        MEANINGS["why"] + basis,
        header,
        len(names) + 1,
        lines,
        _STAIR_PX * (len(FACTORS) + 1),
    )


def _stairs(places: np.ndarray) -> list[dict[str, Any]]:
    """places: (F + 1,) where each stair ends, in per cent of the width, vanilla's 1 first."""
    steps = [
        (f"factor{number}", places[number], places[number + 1]) for number in range(len(FACTORS))
    ]
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


def leaderboard(
    summary: pd.DataFrame, facts: Sequence[Facts], contests: Sequence[Contest]
) -> Markup:
    """Every method's figures, overall and by category, to be sorted and filtered on the page.

    Without a script it is the plain table of the overall figures. Lossy methods have a separate
    table.
    """
    rows = with_drafting(drop_repeated_rows(summary))
    rows = pd.concat([sort_rows(part) for _, part in rows.groupby(["model", "suite"], sort=False)])
    whole = overall(rows)
    # what may be in brackets
    rows = rows.assign(counted=rows["cases"].where(rows["category"] != OVERALL))
    columns = [
        replace(column, few="counted" if f"{column.figure}_low" in rows else "")
        for column in OVERALL_COLUMNS
        if whole.empty or whole[column.figure].notna().any()
    ]
    categories = [OVERALL, *list_categories(rows)]
    rows = rows.assign(where=rows["model"] + " on " + rows["suite"])
    places = list(rows["where"].unique())
    boards = [_board(some, columns, remark, contests) for some, remark in split_lossy(rows, facts)]
    return Markup("").join([part("filters", categories, places), *boards])


def _board(
    rows: pd.DataFrame, columns: Sequence[Heading], remark: str, contests: Sequence[Contest]
) -> Markup:
    """The rows of all categories, with the best figures of each category in bold. remark: '' for
    lossless methods.
    """
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
            "values": [
                "" if math.isnan(value) else f"{value:.6g}"
                for value in (float(row[name]) for name in shown)
            ],
        }
        for row in rows.to_dict("records")
    ]
    return part("board", table, lines)


def lossless_section(findings: Findings) -> Markup:
    """The verdicts on every lossless method's answers and where they first differ from vanilla's;
    '' without any.
    """
    judged = _find_judged(findings)
    others = judged[judged["method"] != VANILLA]
    if others.empty:
        return Markup("")
    groups = judged.groupby("name", sort=False)
    rows = tuple((Cell(str(name)), *map(Cell, _figures(found))) for name, found in groups)
    verdicts = Table("lossless", "", MEANINGS["lossless"], _VERDICT_HEADER, rows)
    order, falling = ["violations", "worst_gap", "run", "record"], [False, False, True, True]
    differ = others[~others["equal"].astype(bool)].sort_values(
        order, ascending=falling, kind="stable"
    )
    cells = tuple(
        tuple(map(Cell, _difference(row.name, findings.runs[row.run].records[row.record])))
        for row in differ[:MAX_ROWS].itertuples(index=False)
    )
    remark = "Turns and tokens are counted from 0."
    listed = Table("differences", "", remark, _DIFFERENCES_HEADER, cells, labels=2)
    return to_html([verdicts]) + part(
        "differences", len(differ), len(others), _cut(len(differ)), listed
    )


def _find_judged(findings: Findings) -> pd.DataFrame:
    """A row for each judged record of a lossless method, by method; also vanilla's, whose ties are
    the noise floor.
    """
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
    return (
        name,
        record.case,
        str(record.round),
        *map(str, verdict.divergence or (BLANK, BLANK)),
        *found,
    )


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
        error = record.error
        assert error is not None
        title = (
            f"{label(record.method)}, case {record.case}, round {record.round}, turn"
            f" {error['turn']}"
        )
        shown.append((f"{title}: {error['type']}: {error['message']}", error["traceback"]))
    return part("failures", len(failed), _cut(len(failed)), shown) if failed else Markup("")


def _cut(total: int) -> str:
    return f" The first {MAX_ROWS} are listed; records.jsonl has all." if total > MAX_ROWS else ""


def environment(findings: Findings) -> Markup:
    """For each run: its manifest, its machine, its methods' parameters and its configuration,
    folded if several.
    """
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
            for title, key in (
                ("Methods and their parameters", "methods"),
                ("Configuration", "config"),
            )
            if manifest.get(key)
        }
        parts.append(
            part("environment", run.directory.name if len(findings.runs) > 1 else "", facts, texts)
        )
    return Markup("").join(parts)
