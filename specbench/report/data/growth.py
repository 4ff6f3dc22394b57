"""How a method grows with what it remembers: MAT of each case against the tokens held when the case began."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from specbench.record import CaseRecord
from specbench.stats import MIN_CASES

HELD = "cached_tokens"  # of a turn's own figures: tokens in the method's state when the request began
GROWTH = ("case", "category", "round", HELD, "steps", "emitted", "mat", "tokens", "time_s")
_WINDOWS = 12  # a window holds this part of the cases, within the bounds below
_LEAST, _MOST = MIN_CASES, 50
_BLANK = float("nan")


def count_growth(records: Sequence[CaseRecord], timed: bool) -> Iterator[tuple[str | float, ...]]:
    """A row a record whose method says what it holds, in the order in which they ran; time_s blank where not timed."""
    for record in sorted(records, key=lambda record: record.block):
        if not record.turns or HELD not in record.turns[0].stats:
            continue
        steps = sum(len(turn.accept) for turn in record.turns)
        emitted = sum(sum(turn.accept) for turn in record.turns)
        yield (
            *(record.case, record.category, record.round, record.turns[0].stats[HELD], steps, emitted),
            emitted / steps if steps else _BLANK,
            sum(len(turn.ids) for turn in record.turns),
            sum(turn.prefill_s + turn.decode_s for turn in record.turns) if timed else _BLANK,
        )


def window_of(cases: int) -> int:
    """Cases in a window of the running mean."""
    return int(np.clip(cases // _WINDOWS, _LEAST, _MOST))


def running(rows: pd.DataFrame, above: str, below: str) -> tuple[np.ndarray, np.ndarray]:
    """(W,) mean tokens held and (W,) sum of ``above`` over sum of ``below``, a window of cases by tokens held each.

    Empty where there are fewer cases than a window holds.
    """
    rows = rows.sort_values(HELD, kind="stable")
    sums = rows[[HELD, above, below]].rolling(window_of(len(rows))).sum().dropna()
    return sums[HELD].to_numpy() / window_of(len(rows)), (sums[above] / sums[below]).to_numpy()
