"""What requests that shared a server got, as two tables: throughput and speedup, and waiting times."""

from __future__ import annotations

import pandas as pd

from specbench.report.frames.served import SHARES, WAITED, fewest
from specbench.report.tables.columns import Heading, method_table
from specbench.report.tables.detail import waiting_columns
from specbench.report.text.label import BLANK, format_count
from specbench.report.text.table import Table
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
_COLUMNS = (
    Heading("Stretches", "stretches", format_count),
    Heading("Tokens/s", "tokens_per_s"),
    Heading("Speedup", "speedup"),
    Heading("Modelled", "modelled_speedup"),
    Heading("Tokens/s a user", "user_tokens_per_s"),
    Heading("MAT", "mat"),
    Heading("Requests", "mean_requests"),
    Heading("Rows", "mean_rows"),
    Heading("Goodput", "goodput"),
    Heading("Kept", "kept", lambda share: BLANK if pd.isna(share) else f"{100 * share:.0f} %"),
)


def served_tables(frame: pd.DataFrame, where: str = "") -> tuple[Table, ...]:
    """Throughput, and waits where the requests are enough for any percentile; none where no run was under load."""
    if frame.empty:
        return ()
    loads = [] if frame["rate"].notna().all() else [Heading("At once", "requests", format_count)]
    loads += [Heading("A second", "rate")] if frame["rate"].notna().any() else []
    few = "" if frame["stretches"].max() >= MIN_CASES else _FEW
    served = method_table("load", (where, _MEANING + few), frame, _COLUMNS, loads)
    if frame.filter(regex="_p[0-9]+_ms$").isna().all(axis=None):
        return (served,)
    columns = [Heading("Requests", "served", format_count), *waiting_columns(_TITLES, WAITED, SHARES)]
    return served, method_table("load_waits", (where, _WAITS), frame, columns, loads)
