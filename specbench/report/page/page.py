"""``report.html``: one file that holds everything, so that it can be mailed. Whatever a run recorded is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from specbench.records.record import OVERALL, VANILLA
from specbench.records.store import PAGE, write_atomically
from specbench.report.frames.detail import LOADED
from specbench.report.frames.facts import TIME_ONLY
from specbench.report.frames.findings import Findings
from specbench.report.frames.headline import Headline, find_headlines
from specbench.report.frames.load import Load
from specbench.report.label import format_share, label
from specbench.report.page.elements import escape, gallery, policy, script, style, table_html
from specbench.report.page.evidence import environment, failures, lossless_section
from specbench.report.page.headline import headlines_html
from specbench.report.page.leaderboard import leaderboard
from specbench.report.page.sample import sample_cases
from specbench.report.page.tokens import token_section
from specbench.report.page.why import why_section
from specbench.report.table import Table
from specbench.report.tables.detail import (
    audit_tables,
    count_tables,
    lengths_tables,
    quality_tables,
    served_tables,
    shards_tables,
    tails_table,
    thinking_tables,
)
from specbench.report.tables.modelled import crossover_table
from specbench.report.tables.pairs import pair_tables, settings_tables
from specbench.report.tables.summary import DEFINITIONS, build_tables, caption, steps_table

_GLOSSARY = "What each number means"
_FOLDED = {  # heading -> what is folded below it
    "Waiting": "percentiles of waiting times",
    "A mean step": "sizes of drafts and where the time went",
    "Audit": "how often each drafter agrees, what it costs, and what it would take to win",
    "Acceptance elsewhere": "what engines and other harnesses would print for these steps",
    "Lossless": "verdicts, and where outputs differ",
    _GLOSSARY: "definitions",
    "Environment": "versions, machine and configuration",
}
_HEADINGS = {"speedup_by_category": "Speedup by category", "mat_by_category": "MAT by category"}


def write_page(
    findings: Findings, plots: Sequence[Path], output: Path, load: Load | None = None, titled: bool = False
) -> Path:
    """Write the page with its plots inside.

    plots: png files. load: what a profile makes of more requests. titled: the plots have no titles of their own.
    """
    path = output / PAGE
    write_atomically(path, render_page(findings, plots, load, titled))
    return path


def render_page(findings: Findings, plots: Sequence[Path] = (), load: Load | None = None, titled: bool = False) -> str:
    """The whole document."""
    where = "; ".join(dict.fromkeys(f"{facts.model} on {facts.suite}" for facts in findings.facts))
    headlines = find_headlines(findings, load)
    parts = {title: body for title, body in _parts(findings, gallery(plots, titled), headlines, load).items() if body}
    parts |= {_GLOSSARY: _definitions("".join(parts.values()))}
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(where)} | specbench</title>\n<style>{style()}</style>\n</head>\n<body>\n"
        f"<header>{_head(findings, where, headlines)}\n{_contents(parts)}</header>\n<main>\n"
        + "\n".join(_section(title, body) for title, body in parts.items())
        + f"\n</main>\n<script>{script()}</script>\n</body>\n</html>\n"
    )


def _parts(findings: Findings, pictures: str, headlines: Sequence[Headline], load: Load | None) -> dict[str, str]:
    """Heading -> the HTML below it, '' where there is none. Why, where and load come first, evidence last."""
    if findings.summary.empty:  # nothing was decoded yet: no table has a row
        parts = {"Verdicts": _verdicts(findings), "Warnings": _list(findings.warnings)}
        return {**parts, "Environment": environment(findings)}
    tables = build_tables(findings.summary, findings.facts, findings.contests)
    ranked, unranked = _ranked(findings.summary)
    timed = build_tables(unranked, [facts for facts in findings.facts if facts.time_only])["overall"]
    board = unranked.empty or len(ranked)
    tails = findings.detail["tails"]
    return {
        "Verdicts": _verdicts(findings),
        "Warnings": _list(findings.warnings) if findings.warnings else "",
        "Why": why_section(findings),
        **{_HEADINGS[name]: _join(tables[name], shaded=True) for name in _HEADINGS if name in tables},
        "Under load": _join([*served_tables(findings.detail[LOADED]), *([crossover_table(load)] if load else [])]),
        "Leaderboard": leaderboard(ranked, findings.facts, findings.contests) if board else "",
        "Answers": _join(quality_tables(findings)),
        "Time only": "" if unranked.empty else _join(timed),
        "Method against method": _join(pair_tables(findings, headlines)),
        "Best settings": _join(settings_tables(findings, headlines)),
        "Thinking": _join(thinking_tables(findings.detail["thinking"])),
        "Along the context": _join(lengths_tables(findings.detail["by_length"])),
        "Plots": pictures,
        "Token by token": token_section(sample_cases(findings)),
        "Waiting": table_html(tails_table(tails, "")) if len(tails) else "",
        "A mean step": table_html(steps_table(findings.summary)),
        "Audit": _join(audit_tables(findings)),
        "Acceptance elsewhere": _join(count_tables(findings.detail["accept_definitions"])),
        "Shards": _join(shards_tables(findings)),
        "Lossless": lossless_section(findings),
        "Errors": failures(findings),
        "Environment": environment(findings),
    }


def _join(tables: Iterable[Table], shaded: bool = False) -> str:
    return "".join(table_html(table, shaded) for table in tables)


def _ranked(summary: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows that a leaderboard may rank, and those whose accepted lengths were replayed."""
    unranked = summary["time_only_step_ms"].notna()
    return summary[~unranked], summary[unranked]


def _contents(titles: Iterable[str]) -> str:
    links = "".join(f'<li><a href="#{_slug(title)}">{escape(title)}</a></li>' for title in titles)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")


def _head(findings: Findings, where: str, headlines: Sequence[Headline]) -> str:
    facts = caption(findings.facts, findings.summary)
    created = ", ".join(
        dict.fromkeys(_spell_time(str(run.manifest["created"])) for run in findings.runs if "created" in run.manifest)
    )
    replays = [
        f"{title} {'; '.join(dict.fromkeys(each.trace for each in found if each.trace))}."
        for title, found in (
            ("Replay of", [each for each in findings.facts if not each.timed]),
            (f"{TIME_ONLY.capitalize()},", [each for each in findings.facts if each.time_only]),
        )
        if any(each.trace for each in found)
    ]
    lines = [facts, *replays, f"Created {created} UTC." if created else ""]
    text = escape(" ".join(filter(None, lines)))
    return f'<h1>{escape(where)}</h1>\n{headlines_html(headlines)}<p class="soft">{text}</p>'


def _spell_time(stamp: str) -> str:
    """'2026-11-23 01:26', of a time in UTC, as the index of runs has it."""
    return stamp[:16].replace("T", " ")


def _section(title: str, body: str) -> str:
    if title in _FOLDED:
        body = f'<details class="fold"><summary>{_FOLDED[title]}</summary>\n{body}\n</details>'
    return f'<section id="{_slug(title)}">\n<h2>{escape(title)}</h2>\n{body}\n</section>'


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _verdicts(findings: Findings) -> str:
    rows = findings.summary[findings.summary["category"] == OVERALL]
    cards = [_time_only(findings), _lossless(rows, findings), _steadiness(findings), _errors(rows)]
    items = (
        f'<li class="{tone}"><b>{escape(title)}</b>{escape(text)}</li>' for tone, title, text in filter(None, cards)
    )
    return f'<ul class="verdicts">{"".join(items)}</ul>'


def _time_only(findings: Findings) -> tuple[str, str, str] | None:
    if not any(facts.time_only for facts in findings.facts):
        return None
    return ("warn", "Time only", "accepted lengths were replayed: what a step costs is measured, no speedup is claimed")


def _lossless(rows: pd.DataFrame, findings: Findings) -> tuple[str, str, str]:
    others = rows[~rows["method"].isin([VANILLA, *findings.lossy])]
    judged = others[others["lossless"].notna()]
    if judged.empty:
        return ("", "Lossless", _unjudged(findings))
    failed = judged[judged["lossless"] < 1]
    if failed.empty:
        equal = float(judged["equal"].min())
        ids = "all" if equal == 1 else f"at least {format_share(equal)}"
        return ("good", "Lossless", f"every judged case of every method; {ids} have exactly vanilla's ids")
    names = (f"{label(row.method, row.variant)} {format_share(row.lossless)}" for row in failed.itertuples())
    return ("bad", "Not lossless", "cases that hold: " + ", ".join(names))


def _unjudged(findings: Findings) -> str:
    if all(facts.time_only or not facts.timed for facts in findings.facts):
        return "nothing to judge: the recorded tokens are emitted"
    if all(facts.temperature > 0 for facts in findings.facts):
        return "does not apply when sampling"
    return "not judged in this run"


def _steadiness(findings: Findings) -> tuple[str, str, str] | None:
    if not any(facts.timed for facts in findings.facts):
        return None
    found = [entry.control for entry in findings.reported if entry.control is not None]
    if not found:
        return ("warn", "A/A control", "none: how steady the timing was is not known")
    if len(found) == 1:
        tones = {True: "good", False: "bad", None: "warn"}
        return (tones[found[0].steady], "A/A control", found[0].sentence())
    steady = sum(control.steady is True for control in found)
    values = [control.retimed.value for control in found]
    text = f"{steady} of {len(found)} runs steady; vanilla against itself from {min(values):.4f} to {max(values):.4f}"
    return ("good" if steady == len(findings.runs) else "bad", "A/A control", text)


def _errors(rows: pd.DataFrame) -> tuple[str, str, str]:
    failed = rows[rows["errors"] > 0]
    if rows.empty:
        return ("warn", "Errors", "no case has finished")
    if failed.empty:
        return ("good", "Errors", "no case failed")
    names = (
        f"{label(row.method, row.variant)} {row.errors} of {row.cases + row.errors}" for row in failed.itertuples()
    )
    return ("bad", "Errors", "cases that failed: " + ", ".join(names))


def _definitions(page: str) -> str:
    """The definitions of the words that the page uses."""
    text = re.sub(r"<script.*?</script>|<[^>]*>", " ", page, flags=re.S).lower()
    used = {word: meaning for word, meaning in DEFINITIONS.items() if word.lower() in text}
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in used.items()) + "</dl>"
