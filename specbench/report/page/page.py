"""``report.html``: one file that contains everything, so that it can be mailed.

The style sheet and the scripts are files of this package. The page contains them, and allows them by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from specbench.records.record import OVERALL, VANILLA
from specbench.records.store import PAGE, write_atomically
from specbench.report.frames.detail import LOADED
from specbench.report.frames.facts import TIME_ONLY
from specbench.report.frames.findings import Findings
from specbench.report.frames.headline import Headline, find_headlines
from specbench.report.frames.load import Load
from specbench.report.label import format_share, label
from specbench.report.page.parts import part, templates
from specbench.report.page.sections import (
    environment,
    failures,
    headlines_html,
    leaderboard,
    lossless_section,
    why_section,
)
from specbench.report.page.tokens import sample_cases, token_section
from specbench.report.plots.scene import DPI
from specbench.report.tables import detail as tables_of
from specbench.report.tables.modelled import crossover_table
from specbench.report.tables.pairs import pair_tables, settings_tables
from specbench.report.tables.summary import DEFINITIONS, build_tables, caption, steps_table
from specbench.report.writers import to_html

_HERE = Path(__file__).resolve().parent
_SCRIPTS = ("tables.js", "tokens.js", "tree.js", "panes.js")  # in one scope, in this order
_PNG_WIDTH = slice(16, 20)  # the four bytes of a PNG's header that contain its width
_SCREEN_DPI = 125
_GLOSSARY = "What each number means"
_FOLDED = {  # heading -> what is folded below it
    "Waiting": "percentiles of waiting times",
    "A mean step": "sizes of drafts and where the time went",
    "Audit": "how often each drafter agrees, what it costs, and what it would take to win",
    "Acceptance by other definitions": "what engines and other harnesses would print for these steps",
    "Lossless": "verdicts, and where outputs differ",
    _GLOSSARY: "definitions",
    "Environment": "versions, machine and configuration",
}
_HEADINGS = {"speedup_by_category": "Speedup by category", "mat_by_category": "MAT by category"}


def write_page(
    findings: Findings, plots: Sequence[Path], output: Path, load: Load | None = None, titled: bool = False
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


def render_page(findings: Findings, plots: Sequence[Path] = (), load: Load | None = None, titled: bool = False) -> str:
    """Returns the complete document; the arguments are those of ``write_page``."""
    where = "; ".join(dict.fromkeys(f"{facts.model} on {facts.suite}" for facts in findings.facts))
    headlines = find_headlines(findings, load)
    found = _sections(findings, gallery(plots, titled), headlines, load)
    sections = {title: body.strip() for title, body in found.items() if body}
    words = re.sub(r"<script.*?</script>|<[^>]*>", " ", "".join(sections.values()), flags=re.S).lower()
    used = {word: meaning for word, meaning in DEFINITIONS.items() if word.lower() in words}
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    texts = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    script = '"use strict";\n(() => {\n' + texts + "})();\n"  # scripts share names with each other and nothing else
    policy = (  # nothing is loaded, and nothing runs but our own script
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none';"
        " form-action 'none'"
    )
    return templates().get_template("page.html.j2").render(
        where=where, policy=Markup(policy), style=Markup(style), script=Markup(script), caption=_describe(findings),
        headlines=headlines_html(headlines), sections=sections | {_GLOSSARY: part("definitions", used).strip()},
        folded=_FOLDED,
    )  # fmt: skip


def _hash(text: str) -> str:
    """Returns the hash that browsers make of the text between the tags."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _sections(
    findings: Findings, pictures: Markup, headlines: Sequence[Headline], load: Load | None
) -> dict[str, Markup]:
    """Heading -> its section, '' if there is nothing to show. Explanations come first, evidence last."""
    rows = findings.summary[findings.summary["category"] == OVERALL]
    judged = [_lossless(rows, findings), *_steadiness(findings), _errors(rows)]
    if any(facts.time_only for facts in findings.facts):
        text = "accepted lengths were replayed: what a step costs is measured, no speedup is claimed"
        judged.insert(0, ("warn", "Time only", text))
    verdicts = part("verdicts", judged)
    warnings = part("list", findings.warnings) if findings.warnings else Markup("")
    if findings.summary.empty:  # nothing was decoded yet: no table has a row
        return {"Verdicts": verdicts, "Warnings": warnings, "Environment": environment(findings)}
    tables = build_tables(findings.summary, findings.facts, findings.contests)
    marked = findings.summary["time_only_step_ms"].notna()  # accepted lengths were replayed: not to be ranked
    ranked, unranked = findings.summary[~marked], findings.summary[marked]
    timed = build_tables(unranked, [facts for facts in findings.facts if facts.time_only])["overall"]
    board = unranked.empty or len(ranked)
    detail, tails = findings.detail, findings.detail["tails"]
    crossover = [crossover_table(load)] if load else []
    return {
        "Verdicts": verdicts,
        "Warnings": warnings,
        "Why": why_section(findings),
        **{_HEADINGS[name]: to_html(tables[name]) for name in _HEADINGS if name in tables},
        "Under load": to_html([*tables_of.served_tables(detail[LOADED]), *crossover]),
        "Leaderboard": leaderboard(ranked, findings.facts, findings.contests) if board else Markup(""),
        "Answers": to_html(tables_of.quality_tables(findings)),
        "Time only": to_html([] if unranked.empty else timed),
        "Method against method": to_html(pair_tables(findings, headlines)),
        "Best settings": to_html(settings_tables(findings, headlines)),
        "Thinking": to_html(tables_of.thinking_tables(detail["thinking"])),
        "Along the context": to_html(tables_of.lengths_tables(detail["by_length"])),
        "Plots": pictures,
        "Token by token": token_section(sample_cases(findings)),
        "Waiting": to_html([tables_of.tails_table(tails, "")] if len(tails) else []),
        "A mean step": to_html([steps_table(findings.summary)]),
        "Audit": to_html(tables_of.audit_tables(findings)),
        "Acceptance by other definitions": to_html(tables_of.count_tables(detail["accept_definitions"])),
        "Shards": to_html(tables_of.shards_tables(findings)),
        "Lossless": lossless_section(findings),
        "Errors": failures(findings),
        "Environment": environment(findings),
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

    from specbench.report.plots.catalogue import title_of  # matplotlib, which drew them, is slow to import

    pictures: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for path in plots:
        memory = io.BytesIO()
        with Image.open(path) as drawn:  # in 256 colours, a third of the bytes: a page may have hundreds of pictures
            drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(memory, "png")
        data = memory.getvalue()
        width = int.from_bytes(data[_PNG_WIDTH], "big") * _SCREEN_DPI // DPI
        look = {"data": base64.b64encode(data).decode("ascii"), "width": width, "titled": titled}
        folded = path.stem.startswith("radar")  # the bars by category show the same figures, and with intervals
        pictures[folded].append(look | {"title": title_of(path.stem)})
    return part("pictures", pictures[False], pictures[True])


def _describe(findings: Findings) -> str:
    """The settings of the runs, what was replayed, and when the runs were created, in UTC."""
    lines = [caption(findings.facts, findings.summary)]
    for title, found in (
        ("Replay of", [each for each in findings.facts if not each.timed]),
        (f"{TIME_ONLY.capitalize()},", [each for each in findings.facts if each.time_only]),
    ):
        if traces := dict.fromkeys(each.trace for each in found if each.trace):
            lines.append(f"{title} {'; '.join(traces)}.")
    stamps = [str(run.manifest["created"]) for run in findings.runs if "created" in run.manifest]
    if stamps:
        lines.append(f"Created {', '.join(dict.fromkeys(stamp[:16].replace('T', ' ') for stamp in stamps))} UTC.")
    return " ".join(filter(None, lines))


def _lossless(rows: pd.DataFrame, findings: Findings) -> tuple[str, str, str]:
    """(tone, title, text) of a verdict."""
    others = rows[~rows["method"].isin([VANILLA, *findings.lossy])]
    judged = others[others["lossless"].notna()]
    if judged.empty:
        replayed = all(facts.time_only or not facts.timed for facts in findings.facts)
        sampled = all(facts.temperature > 0 for facts in findings.facts)
        why = "does not apply when sampling" if sampled else "not judged in this run"
        return ("", "Lossless", "nothing to judge: the recorded tokens are emitted" if replayed else why)
    failed = judged[judged["lossless"] < 1]
    if failed.empty:
        equal = float(judged["equal"].min())
        ids = "all" if equal == 1 else f"at least {format_share(equal)}"
        return ("good", "Lossless", f"every judged case of every method; {ids} have exactly vanilla's ids")
    names = (f"{label(row.method, row.variant)} {format_share(row.lossless)}" for row in failed.itertuples())
    return ("bad", "Not lossless", "cases that hold: " + ", ".join(names))


def _steadiness(findings: Findings) -> list[tuple[str, str, str]]:
    if not any(facts.timed for facts in findings.facts):
        return []
    found = [entry.control for entry in findings.reported if entry.control is not None]
    if not found:
        return [("warn", "A/A control", "none: how steady the timing was is not known")]
    if len(found) == 1:
        tones = {True: "good", False: "bad", None: "warn"}
        return [(tones[found[0].steady], "A/A control", found[0].sentence())]
    steady = sum(control.steady is True for control in found)
    values = [control.retimed.value for control in found]
    text = f"{steady} of {len(found)} runs steady; vanilla against itself from {min(values):.4f} to {max(values):.4f}"
    return [("good" if steady == len(findings.runs) else "bad", "A/A control", text)]


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
