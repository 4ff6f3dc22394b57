"""The tables of the frames of detail: waiting times, figures along the context, thinking, and others' definitions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pandas as pd

from specbench.records.record import CONTROL, VANILLA
from specbench.report.frames.counting import DEFINITIONS
from specbench.report.frames.detail import MIN_VALUES, PERCENTILES, WAITS
from specbench.report.frames.reported import ROW
from specbench.report.tables.columns import Heading, method_table, widen
from specbench.report.text.label import format_number, format_share
from specbench.report.text.table import Table

_TAILS = {"first_token": "Time to first token", "burst": "Inter-token latency", "per_token": "Time per token"}
_TAILS_MEANING = (
    "Time to first token: from the request on. Inter-token latency: the wait for the next tokens, one step, however"
    " many it brings. Time per token: a request's decode time over its tokens. Percentiles in ms over all requests or"
    f" steps, the 99th from {MIN_VALUES} values on."
)
_LENGTHS_MEANING = (
    "By the tokens in the context before a step, in bins from the number on. Speedup: vanilla's time per token of the"
    " decode steps in the bin over the method's, over the cases in which both have some, and its 95 % interval over"
    " cases; MAT: of the method's steps there."
)
_THINKING_MEANING = (
    "Of answers that think: the steps before the thinking's end, and those after it. Share: of the tokens. Speedup: of"
    " decoding, tokens/s over vanilla's in the same part; at a temperature the answers themselves may differ."
)
_THINKING = {"share": ("Share", format_share), "mat": ("MAT", format_number), "speedup": ("Speedup", format_number)}
_LENGTHS_COUNTED = "Acceptance length of the same steps, as each engine or harness counts it: "
_RATES_COUNTED = "Acceptance rate, likewise: "


def waiting_columns(titles: Mapping[str, str], waits: Sequence[str], shares: Sequence[int]) -> list[Heading]:
    """A column a wait and percentile. titles: of the waits."""
    pairs = itertools.product(waits, shares)
    return [Heading(f"{titles[wait]} p{share}", f"{wait}_p{share}_ms") for wait, share in pairs]


def tails_table(frame: pd.DataFrame, where: str) -> Table:
    """The figures as printed, a row a method. where: what was run."""
    return method_table("tails", (where, _TAILS_MEANING), frame, waiting_columns(_TAILS, WAITS, PERCENTILES))


def lengths_tables(frame: pd.DataFrame, where: str = "") -> list[Table]:
    """A row a method; none without speedups, or where all contexts lie in one bin. frame: the detail ``by_length``."""
    frame = frame[(frame["axis"] == "context") & ~frame["method"].isin([VANILLA, CONTROL])]
    if frame["from"].nunique() < 2 or frame["speedup"].isna().all():
        return []
    figures = {"speedup": "Speedup", "mat": "MAT"}
    edges = sorted(frame["from"].unique())
    columns = [Heading(f"{title} {edge:,}", f"{edge} {figure}") for edge in edges for figure, title in figures.items()]
    wide = widen(frame, "from", ("speedup", "speedup_low", "speedup_high", "mat"))
    return [method_table("by_length", (where, _LENGTHS_MEANING), wide, columns)]


def thinking_tables(frame: pd.DataFrame) -> list[Table]:
    """A row a method with both parts beside each other; none where no answer thinks. frame: the detail ``thinking``."""
    if frame.empty:
        return []
    place = [*ROW[:2], "part"]
    vanilla = frame[frame["method"] == VANILLA].drop_duplicates(place)
    frame = frame.merge(vanilla[[*place, "tokens_per_s"]], "left", place, suffixes=("", "_vanilla"))
    frame["share"] = frame["emitted"] / frame.groupby(list(ROW))["emitted"].transform("sum")
    frame["speedup"] = frame["tokens_per_s"] / frame["tokens_per_s_vanilla"]
    columns = [
        Heading(f"{title} {part}", f"{part} {figure}", write)
        for part in ("thinking", "answer")
        for figure, (title, write) in _THINKING.items()
    ]
    return [method_table("thinking", ("", _THINKING_MEANING), widen(frame, "part", list(_THINKING)), columns)]


def count_tables(frame: pd.DataFrame) -> tuple[Table, ...]:
    """Lengths, then rates; none without a method that drafts. frame: of ``accept_definitions``."""
    if frame.empty:
        return ()
    wide = widen(frame, "counted_as", ("length", "rate"))
    lengths = {name: each.length_is for name, each in DEFINITIONS.items()}
    rates = {name: each.rate_is for name, each in DEFINITIONS.items() if each.rate}
    return (
        _counted(wide, "length", _LENGTHS_COUNTED, lengths),
        _counted(wide, "rate", _RATES_COUNTED, rates),
    )


def _counted(wide: pd.DataFrame, figure: str, begin: str, said: Mapping[str, str]) -> Table:
    """said: definition -> what it is, in words."""
    meaning = begin + "; ".join(f"{name}: {text}" for name, text in said.items())
    columns = [
        Heading(name, f"{name} {figure}", format_share if figure == "rate" else lambda value: format_number(value, 3))
        for name in said
    ]
    return method_table("counts", ("", f"{meaning}."), wide, columns)
