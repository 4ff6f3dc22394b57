"""``report.html``: one file that holds everything, so that it can be mailed. Whatever a run recorded is escaped."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from specbench.record import CONTROL, VANILLA
from specbench.report.definitions import DEFINITIONS
from specbench.report.drafting import with_drafting
from specbench.report.findings import Findings
from specbench.report.label import Cell, label, microseconds, share
from specbench.report.page_evidence import differences, environment, failures
from specbench.report.page_style import CSS
from specbench.report.palette import DPI
from specbench.report.summary import OVERALL
from specbench.report.table import Table
from specbench.report.tables import build_tables, caption, steps_table
from specbench.store import write_atomically

PAGE = "report.html"
_PNG_WIDTH = slice(16, 20)  # the four bytes of a PNG's header that hold its width
_SCREEN_DPI = 125
_HEADINGS = {"speedup_by_category": "Speedup by category", "mat_by_category": "MAT by category"}
_PLOTS = {
    "speedup": "Speedup over vanilla",
    "mat": "Mean accepted tokens",
    "speedup_by_category": "Speedup by category",
    "mat_by_category": "Mean accepted tokens by category",
    "mat_against_fed": "Mean accepted tokens against tokens fed",
    "radar": "Radar of the categories",
    "time_split": "Where a decode step's time goes",
    "accept_lengths": "Tokens emitted by a decode step",
    "accept_positions": "Acceptance by position in the draft",
    "accept_sources": "Where drafted and accepted tokens came from",
    "growth": "Mean accepted tokens against tokens remembered",
}


def write_page(findings: Findings, plots: Sequence[Path], output: Path) -> Path:
    """Write the page with its plots inside. plots: png files."""
    path = output / PAGE
    write_atomically(path, render_page(findings, plots))
    return path


def render_page(findings: Findings, plots: Sequence[Path] = ()) -> str:
    """The whole document."""
    where = "; ".join(dict.fromkeys(f"{facts.model} on {facts.suite}" for facts in findings.facts))
    sections = [
        _head(findings, where),
        _section("Verdicts", _verdicts(findings)),
        _section("Warnings", _list(findings.warnings)) if findings.warnings else "",
        *_tables(findings),
        _section("Plots", _gallery(plots)) if plots else "",
        _section("A mean step", _table(steps_table(findings.summary))),
        _section("Outputs that differ from vanilla's", differences(findings)),
        _section("Errors", failures(findings)),
        _section("What each number means", _definitions()),
        _section("Environment", environment(findings)),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(where)} | specbench</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, sections))
        + "\n</body>\n</html>\n"
    )


def _head(findings: Findings, where: str) -> str:
    facts = caption(findings.facts, findings.summary)
    created = ", ".join(
        dict.fromkeys(str(run.manifest["created"]) for run in findings.runs if "created" in run.manifest)
    )
    traces = dict.fromkeys(each.trace for each in findings.facts if not each.timed and each.trace)
    replays = f"Replay of {'; '.join(traces)}." if traces else ""
    lines = [facts, replays, f"Created {created}." if created else ""]
    return f'<h1>{html.escape(where)}</h1>\n<p class="soft">{html.escape(" ".join(filter(None, lines)))}</p>'


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{html.escape(title)}</h2>\n{body}\n</section>" if body else ""


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in items) + "</ul>"


def _verdicts(findings: Findings) -> str:
    rows = findings.summary[findings.summary["category"] == OVERALL]
    leader = _fastest(rows, findings.lossy) or _most_accepted(rows, findings)
    cards = [leader, _lossless(rows, findings), _steadiness(findings), _errors(rows)]
    items = (
        f'<li class="{tone}"><b>{html.escape(title)}</b>{html.escape(text)}</li>'
        for tone, title, text in filter(None, cards)
    )
    return f'<ul class="verdicts">{"".join(items)}</ul>'


def _fastest(rows: pd.DataFrame, lossy: frozenset[str]) -> tuple[str, str, str] | None:
    """The largest speedup, where it is one model and suite; lossy methods are no rivals."""
    rivals = rows[~rows["method"].isin([VANILLA, CONTROL, *lossy]) & rows["speedup"].notna()]
    if rivals.empty or len(rows.groupby(["model", "suite"])) > 1:
        return None
    best = rivals.loc[rivals["speedup"].idxmax()]
    text = f"{label(best['method'], best['variant'])}: {best['speedup']:.2f} times vanilla"
    if pd.notna(best["speedup_low"]):
        text += f" [{best['speedup_low']:.2f}, {best['speedup_high']:.2f}]"
    faster = best["speedup_low"] > 1 or (pd.isna(best["speedup_low"]) and best["speedup"] > 1)
    return ("good" if faster else "warn", "Fastest lossless method", text)


def _most_accepted(rows: pd.DataFrame, findings: Findings) -> tuple[str, str, str] | None:
    """Without times, the largest MAT and what it costs, where it is one model and suite and no case failed."""
    rivals = rows[~rows["method"].isin([VANILLA, *findings.lossy]) & rows["mat"].notna() & (rows["errors"] == 0)]
    timed = any(facts.timed for facts in findings.facts)
    if timed or rivals.empty or len(rows.groupby(["model", "suite"])) > 1:
        return None
    best = with_drafting(rivals).loc[rivals["mat"].idxmax()]
    cost = f"{best['fed']:.1f} tokens fed and {microseconds(best['drafting_us'])} \N{MICRO SIGN}s of drafting a step"
    return ("", "Most tokens a step", f"{label(best['method'], best['variant'])}: MAT {best['mat']:.2f}, for {cost}")


def _lossless(rows: pd.DataFrame, findings: Findings) -> tuple[str, str, str]:
    others = rows[~rows["method"].isin([VANILLA, *findings.lossy])]
    judged = others[others["lossless"].notna()]
    if judged.empty:
        return ("", "Lossless", _unjudged(findings))
    failed = judged[judged["lossless"] < 1]
    if failed.empty:
        equal = float(judged["equal"].min())
        ids = "all" if equal == 1 else f"at least {share(equal)}"
        return ("good", "Lossless", f"every judged case of every method; {ids} have vanilla's very ids")
    names = (f"{label(row.method, row.variant)} {share(row.lossless)}" for row in failed.itertuples())
    return ("bad", "Not lossless", "cases that hold: " + ", ".join(names))


def _unjudged(findings: Findings) -> str:
    if not any(facts.timed for facts in findings.facts):
        return "nothing to judge: the recorded tokens are emitted"
    if all(facts.temperature > 0 for facts in findings.facts):
        return "does not apply when sampling"
    return "not judged in this run"


def _steadiness(findings: Findings) -> tuple[str, str, str] | None:
    if not any(facts.timed for facts in findings.facts):
        return None
    found = [control for control in findings.controls if control is not None]
    if not found:
        return ("warn", "A/A control", "none in this run: how steady the timing was is not known")
    if len(found) == 1:
        tones = {True: "good", False: "bad", None: "warn"}
        return (tones[found[0].steady], "A/A control", found[0].sentence())
    steady = sum(control.steady is True for control in found)
    values = [control.retimed.value for control in found]
    text = f"{steady} of {len(found)} runs steady; vanilla against itself from {min(values):.4f} to {max(values):.4f}"
    return ("good" if steady == len(findings.runs) else "bad", "A/A control", text)


def _errors(rows: pd.DataFrame) -> tuple[str, str, str]:
    failed = rows[rows["errors"] > 0]
    if failed.empty:
        return ("good", "Errors", "no case failed")
    names = (
        f"{label(row.method, row.variant)} {row.errors} of {row.cases + row.errors}" for row in failed.itertuples()
    )
    return ("bad", "Errors", "cases that failed: " + ", ".join(names))


def _tables(findings: Findings) -> list[str]:
    tables = build_tables(findings.summary, findings.facts)
    return [
        _section(_HEADINGS.get(name, name.capitalize()), "".join(_table(table) for table in parts))
        for name, parts in tables.items()
    ]


def _table(table: Table) -> str:
    """The page's head says what was run, so only what the figures mean stands above."""
    kinds = ["name" if column < table.labels else "" for column in range(len(table.header))]
    head = "".join(_tag("th", kind, html.escape(name)) for kind, name in zip(kinds, table.header, strict=True))
    body = ""
    for index, row in enumerate(table.rows):
        cells = (
            _tag("td", kind, _cell(cell, (index, column) in table.best))
            for column, (kind, cell) in enumerate(zip(kinds, row, strict=True))
        )
        body += f"<tr>{''.join(cells)}</tr>\n"
    return (
        f'<p class="soft">{html.escape(table.meaning)}</p>\n<div class="scroll"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def _tag(name: str, kind: str, inner: str) -> str:
    return f'<{name} class="{kind}">{inner}</{name}>' if kind else f"<{name}>{inner}</{name}>"


def _cell(cell: Cell, best: bool) -> str:
    text = re.sub("," if "," in cell.text else "_", r"\g<0><wbr>", html.escape(cell.text))  # long names may break there
    small = f"<small>[{html.escape(cell.interval)}]</small>" if cell.interval else ""
    return (f"<b>{text}</b>" if best else text) + small


def _gallery(plots: Sequence[Path]) -> str:
    """Small pictures, such as the heatmaps of one sweep, stand side by side."""
    return f'<div class="plots">{"".join(map(_figure, plots))}</div>'


def _figure(path: Path) -> str:
    """An image inside the page, all at one scale; its title is in the image."""
    kind, _, rest = path.stem.partition("-")
    name = _PLOTS.get(kind) or kind.replace("_", " ").capitalize()
    title = html.escape(name + (f", {rest}" if rest else ""))
    data = path.read_bytes()
    width = int.from_bytes(data[_PNG_WIDTH], "big") * _SCREEN_DPI // DPI
    source = base64.b64encode(data).decode("ascii")
    return f'<figure><img src="data:image/png;base64,{source}" alt="{title}" width="{width}"></figure>\n'


def _definitions() -> str:
    return (
        "<dl>"
        + "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in DEFINITIONS.items())
        + "</dl>"
    )
