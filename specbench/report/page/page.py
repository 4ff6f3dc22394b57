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

from markupsafe import Markup

from specbench.records.store import PAGE, write_atomically
from specbench.report.frames.detail import LOADED, OBJECTIVE
from specbench.report.frames.findings import Findings
from specbench.report.frames.headline import Headline, find_headlines
from specbench.report.frames.load import Load
from specbench.report.label import raise_first
from specbench.report.page.opening import opening
from specbench.report.page.parts import part, templates
from specbench.report.page.sections import (
    environment,
    failures,
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
_SCREEN_DPI = 125
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
    sections["What each number means"] = part("definitions", used).strip()
    about = _describe(findings).removeprefix(f"{where} ")
    return templates().get_template("page.html.j2").render(
        where=where, policy=Markup(policy), style=Markup(style), script=Markup(script), caption=about,
        opening=opening(findings, headlines), sections=sections,
    )  # fmt: skip


def _hash(text: str) -> str:
    """Returns the hash that browsers make of the text between the tags."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _sections(
    findings: Findings, pictures: Markup, headlines: Sequence[Headline], load: Load | None
) -> dict[str, Markup]:
    """Heading -> its section, '' if there is nothing to show. Figures come first, evidence is folded."""
    few = {
        "Warnings": part("list", findings.warnings) if findings.warnings else Markup(""),
        "Environment": environment(findings),
    }
    if findings.summary.empty:  # nothing was decoded yet: no table has a row
        return few
    tables = build_tables(findings.summary, findings.facts, findings.contests)
    marked = findings.summary["time_only_step_ms"].notna()  # accepted lengths were replayed: not to be ranked
    ranked, unranked = findings.summary[~marked], findings.summary[marked]
    timed = build_tables(unranked, [facts for facts in findings.facts if facts.time_only])["overall"]
    board = unranked.empty or len(ranked)
    detail, tails = findings.detail, findings.detail["tails"]
    crossover = [crossover_table(load)] if load else []
    return {
        "Leaderboard": leaderboard(ranked, findings.facts, findings.contests) if board else Markup(""),
        "Under load": to_html(
            [*tables_of.objective_tables(detail[OBJECTIVE]), *tables_of.served_tables(detail[LOADED]), *crossover]
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
        "Acceptance by other definitions": to_html(tables_of.count_tables(detail["accept_definitions"])),
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

    from specbench.report.plots.catalogue import title_of  # matplotlib, which drew them, is slow to import

    pictures: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for path in plots:
        memory = io.BytesIO()
        with Image.open(path) as drawn:  # in 256 colours, a third of the bytes: a page may have hundreds of pictures
            drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(memory, "png")
            width = drawn.width * _SCREEN_DPI // DPI
        look = {"data": base64.b64encode(memory.getvalue()).decode("ascii"), "width": width, "titled": titled}
        folded = path.stem.startswith("radar")  # the bars by category show the same figures, and with intervals
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
        lines.append(f"Created {', '.join(dict.fromkeys(stamp[:16].replace('T', ' ') for stamp in stamps))} UTC.")
    return " ".join(dict.fromkeys(filter(None, lines)))
