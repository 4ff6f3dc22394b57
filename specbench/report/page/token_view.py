"""The token view of a page: what each step of the sampled cases emitted, who drafted it, and what else was drafted."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.report.data.findings import Findings
from specbench.report.page.pieces import UNKNOWN, write_pieces
from specbench.report.page.sample import SampledCase, has_trees, sample_cases
from specbench.report.page.token_data import ids_by_run, token_data

DATA_ID = "token-data"
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
_KEYS = (
    "Left and right arrows move by token, up and down by step, Home and End to the ends. Turns, steps and tokens are "
    "counted from 0, as in records.jsonl; token 0 is the prefill's and belongs to no step."
)


def token_section(cases: Sequence[SampledCase]) -> str:
    """The view's place and its data; '' where no case finished."""
    if not cases:
        return ""
    data = token_data(cases)
    notes = html.escape(" ".join([_KEYS, *_notes(cases, data)]))
    return (
        "<p>Each answer as it was emitted, token by token. A bracket opens each decode step and every second step is "
        "shaded; underlined tokens were drafted and accepted, plain bold ones are the target's own.</p>\n"
        f'<p class="soft">{notes}</p>\n'
        "<noscript><p>This view needs JavaScript; the figures of this page do not.</p></noscript>\n"
        '<div id="token-view"></div>\n'
        f'<script type="application/json" id="{DATA_ID}">{embed(data)}</script>'
    )


def _notes(cases: Sequence[SampledCase], data: Mapping[str, Any]) -> Iterator[str]:
    """What a reader would otherwise look for in vain."""
    if not any(has_trees(answer.record) for case in cases for answer in case.answers):
        yield "No drafts were recorded: run with measure.keep_trees=3 to see them and their sources."
    if data["trees_left_out"]:
        yield f"{data['trees_left_out']} drafts are left out to keep the page small; records.jsonl has them."
    if all(piece == UNKNOWN.format(token) for token, piece in zip(data["ids"], data["pieces"], strict=True)):
        yield "Ids are shown, since the run's tokenizer was not found on this machine."


def embed(data: Mapping[str, Any]) -> str:
    """JSON that no text inside can end: no '<', '>' or '&' is left in it."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)


def keep_pieces(findings: Findings, output: Path) -> list[Path]:
    """Keep the shown tokens' text beside the records of the run that is reported in its own directory, so that its
    page can be made again where its tokenizer is not."""
    shown = ids_by_run(sample_cases(findings))
    written = (write_pieces(run, ids) for run, ids in shown if run.directory.resolve() == output.resolve())
    return [path for path in written if path is not None]
