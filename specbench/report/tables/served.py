"""What requests that shared a server got, as two tables: throughput and speedup, and waiting times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pandas as pd

from specbench.report.data.served import SHARES, WAITED, fewest
from specbench.report.text.label import Cell, format_interval, format_number
from specbench.report.text.table import Table, method_table
from specbench.stats import MIN_CASES

_MEANING = (
    "Tokens/s: output tokens of all requests. Speedup: of that, over vanilla under the same load, interval over"
    " stretches. Tokens/s a user: of a request after its first token. Modelled: the speedup that the latency profile"
    " gives a closed loop of equal requests, drafting time not counted. Requests, rows: mean of a forward. Goodput:"
    " requests a second that keep the objective (load.slo); one that fails keeps none. Other tables show each request:"
    " times under load, without the queue."
)
_FEW = f" Speedups of fewer than {MIN_CASES} stretches are without an interval: how far chance moves them is not known."
_TITLES = {
    "queue": "Queue",
    "ttft": "Time to first token",
    "itl": "Inter-token latency",
    "tpot": "Time per token",
}
_WAITS = (
    "Milliseconds. Queue: from the intended arrival until the prompt is read. Time to first token: from the intended"
    " arrival. Inter-token latency: the wait for the next burst. A percentile needs"
    f" {', '.join(f'{fewest(share)} requests (p{share})' for share in SHARES)}, else it is blank."
)


def served_tables(frame: pd.DataFrame, where: str = "") -> tuple[Table, ...]:
    """Throughput, and waits where the requests are enough for any percentile; none where no run was under load."""
    waits = (_waited(frame, where),) if frame.filter(regex="_p[0-9]+_ms$").notna().any(axis=None) else ()
    return (_served(frame, where), *waits) if len(frame) else ()


def _served(frame: pd.DataFrame, where: str) -> Table:
    """A row a method and load."""
    figures = [_cells(row) for row in frame.to_dict("records")]
    first = ("Stretches", "Tokens/s", "Speedup", "Modelled", "Tokens/s a user")
    titles = (*first, "MAT", "Requests", "Rows", "Goodput", "Kept")
    few = "" if frame["stretches"].max() >= MIN_CASES else _FEW
    columns = dict(zip(titles, zip(*figures, strict=True), strict=True))
    return method_table("load", (where, _MEANING + few), frame, columns, _loads(frame))


def _waited(frame: pd.DataFrame, where: str) -> Table:
    """A row a method and load."""
    columns = {"Requests": [Cell(str(count)) for count in frame["served"]]}
    for wait, share in itertools.product(WAITED, SHARES):
        columns[f"{_TITLES[wait]} p{share}"] = [Cell(format_number(value)) for value in frame[f"{wait}_p{share}_ms"]]
    return method_table("load_waits", (where, _WAITS), frame, columns, _loads(frame))


def _loads(frame: pd.DataFrame) -> dict[str, list[Cell]]:
    """How many requests were in flight, or at which rate they came."""
    rates = frame["rate"].notna()
    counts = [Cell(str(int(count))) for count in frame["requests"]]
    found = {"At once": counts} if not rates.all() else {}
    return found | ({"A second": [Cell(format_number(rate)) for rate in frame["rate"]]} if rates.any() else {})


def _cells(row: dict[str, Any]) -> Sequence[Cell]:
    spread = format_interval(row["speedup_low"], row["speedup_high"])
    kept = row["kept"]
    return (
        Cell(str(row["stretches"])),
        Cell(format_number(row["tokens_per_s"])),
        Cell(format_number(row["speedup"]), spread),
        *(Cell(format_number(row[name])) for name in ("modelled_speedup", "user_tokens_per_s", "mat")),
        *(Cell(format_number(row[name])) for name in ("mean_requests", "mean_rows", "goodput")),
        Cell(format_number(kept) if pd.isna(kept) else f"{100 * kept:.0f} %"),
    )
