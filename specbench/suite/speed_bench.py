"""SPEED-Bench (Abramovich et al. 2026, arXiv 2604.09557), v1.1: parquet whose rows are filled by the authors' script.

Columns: question_id, category, sub_category, turns, source, src_id, difficulty, multiturn. On the hub the turns of most
rows are a placeholder. The script also brings a throughput prompt to its length in o200k tokens: what is longer is cut,
what is shorter gets ``_PADDING`` again and again. The form ``padded`` takes that, ``bare`` takes the padding off.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from specbench.suite.format import Wording
from specbench.suite.own import OWN
from specbench.suite.rows import SourceRow
from specbench.types import Case

_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
_BARE = "bare"
_PADDING = "Answer now please.\n"


def _speed_bench(row: SourceRow, wording: Wording) -> Case | None:
    case = OWN.case(row, wording)
    assert case is not None  # prompts of one's own have no other split
    turns = tuple(_unpadded(turn) for turn in case.turns) if wording.form == _BARE else case.turns
    category = row.text("category", "one of SPEED-Bench's categories such as coding")
    return replace(case, category=category, subcategory=str(row.values.get("sub_category") or ""), turns=turns)


def _unpadded(turn: str) -> str:
    head, _, last = turn.rpartition(_PADDING)
    if not head or not _PADDING.startswith(last):  # the last is cut to the length
        return turn
    return re.sub(rf"(?:{re.escape(_PADDING)})*\Z", "", head)


def _placeholders(rows: Sequence[SourceRow], origin: str) -> str:
    counts = Counter(str(row.values.get("category")) for row in rows if _PLACEHOLDER in str(row.values.get("turns")))
    if not counts:
        return ""
    shown = ", ".join(f"{category} {count}" for category, count in sorted(counts.items()))
    return (
        f"{origin}: {counts.total()} of {len(rows)} rows hold a placeholder in place of their turns ({shown}): their "
        "licences keep them out of the data set. Fill them with prepare_data.py of NVIDIA's Model-Optimizer "
        "(examples/specdec_bench: pip install -r requirements_speed.txt; python prepare_data.py --config NAME), then "
        "give the folder of the parquet files that it writes with suite.path=FOLDER."
    )


SPEED_BENCH = replace(
    OWN,
    case=_speed_bench,
    key="question_id",
    example='{"question_id": "...", "category": "coding", "turns": ["..."]}',
    holds="the parquet file that prepare_data.py wrote, or its folder",
    forms=("padded", _BARE),
    refuse=_placeholders,
)
