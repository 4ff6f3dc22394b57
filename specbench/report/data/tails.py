"""What a mean hides of waiting: percentiles of the time to the first token, between bursts and a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from specbench.record import CaseRecord
from specbench.report.text.label import Cell, number
from specbench.report.text.table import Table, name_columns, without_blanks

PERCENTILES = (50, 95, 99)
MIN_VALUES = 100  # of a 99th percentile: with fewer it is the maximum by another name, and blank
WAITS = ("first_token", "burst", "per_token")
TAILS = ("requests", "steps", *(f"{wait}_p{share}_ms" for wait in WAITS for share in PERCENTILES))
_HEADINGS = {"first_token": "First token", "burst": "Between bursts", "per_token": "Per token"}
MEANING = (
    "First token: from the request to its first token. Between bursts: the wait for the next tokens, one step, however"
    " many it brings. Per token: a request's decode time over its tokens. Percentiles in ms over all requests or steps,"
    f" the 99th from {MIN_VALUES} values on."
)


def count_tails(records: Sequence[CaseRecord]) -> Iterator[tuple[float, ...]]:
    """(TAILS) of one method; nothing where no step was timed."""
    turns = [turn for record in records for turn in record.turns]
    bursts = np.array([seconds for turn in turns for seconds in turn.step_s])
    if not bursts.size:
        return
    first = np.array([turn.prefill_s for turn in turns])
    each = np.array([turn.decode_s / sum(turn.accept) for turn in turns if sum(turn.accept)])
    figures = [percentile(1e3 * values, share) for values in (first, bursts, each) for share in PERCENTILES]
    yield (len(turns), len(bursts), *figures)


def percentile(values: np.ndarray, share: int) -> float:
    """Linear between order statistics; the 99th of too few is blank."""
    if not values.size or (share == 99 and values.size < MIN_VALUES):
        return float("nan")
    return float(np.percentile(values, share))


def tails_table(frame: pd.DataFrame, where: str) -> Table:
    """The figures as printed, a row a method. where: what was run."""
    names = name_columns(frame)
    header = (*names, *(f"{_HEADINGS[wait]} p{share}" for wait in WAITS for share in PERCENTILES))
    figures = ([Cell(number(value)) for value in frame[name].astype(float)] for name in TAILS[2:])
    rows = tuple(zip(*names.values(), *figures, strict=True))
    return without_blanks(Table("tails", where, MEANING, header, rows, frozenset(), len(names)))
