"""MAT and speedup of reasoning models, before the thinking's end and after it."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from specbench.record import VANILLA
from specbench.report.data.reported import ROW
from specbench.report.text.label import Cell, format_number, format_share
from specbench.report.text.table import Table, method_table

_MEANING = (
    "Of answers that think: the steps before the thinking's end, and those after it. Share: of the tokens. Speedup: of"
    " decoding, tokens/s over vanilla's in the same part; at a temperature the answers themselves may differ."
)
_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "Share": ("share", format_share),
    "MAT": ("mat", format_number),
    "Speedup": ("speedup", format_number),
}
_PARTS = ("thinking", "answer")


def thinking_tables(frame: pd.DataFrame) -> list[Table]:
    """A row a method with both parts beside each other; none where no answer thinks. frame: the detail ``thinking``."""
    if frame.empty:
        return []
    vanilla = frame[frame["method"] == VANILLA].drop_duplicates([*ROW[:2], "part"])
    place = [*ROW[:2], "part"]
    frame = frame.merge(vanilla[[*place, "tokens_per_s"]], "left", place, suffixes=("", "_vanilla"))
    frame["share"] = frame["emitted"] / frame.groupby(list(ROW))["emitted"].transform("sum")
    frame["speedup"] = frame["tokens_per_s"] / frame["tokens_per_s_vanilla"]
    rows = frame[list(ROW)].drop_duplicates()
    columns: dict[str, list[Cell]] = {}
    for part in _PARTS:
        own = rows.merge(frame[frame["part"] == part], "left", list(ROW))
        for title, (name, write) in _COLUMNS.items():
            columns[f"{title} {part}"] = [Cell(write(float(value))) for value in own[name]]
    return [method_table("thinking", ("", _MEANING), rows, columns)]
