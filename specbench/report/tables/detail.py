"""Tables of the frames of detail: waiting times, contexts, thinking, audit, quality, load and
shards.
"""

from __future__ import annotations

import functools
import math

import pandas as pd

from specbench.records.record import OVERALL, VANILLA
from specbench.report.columns import COLUMN
from specbench.report.frames.cases import overall, without_references
from specbench.report.frames.counting import DEFINITIONS
from specbench.report.frames.detail import AUDIT, MIN_VALUES, PERCENTILES, QUALITY, WAITS
from specbench.report.frames.findings import Findings
from specbench.report.frames.served import SHARES, WAITED, fewest
from specbench.report.frames.summary import unite_vanilla
from specbench.report.label import (
    BLANK,
    Cell,
    format_bounded,
    format_count,
    format_interval,
    format_milliseconds,
    format_number,
    format_rate,
    format_share,
)
from specbench.report.table import (
    INTERVALS,
    KEYS,
    MEANINGS,
    ROW,
    Heading,
    Table,
    method_table,
    widen,
    without_blanks,
)
from specbench.stats import MIN_CASES

_TAILS = [
    Heading(f"{title} p{share}", f"{wait}_p{share}_ms")
    for wait, title in zip(
        WAITS, ("Time to first token", "Inter-token latency", "Time per token"), strict=True
    )
    for share in PERCENTILES
]
_THINKING = {
    "share": ("Share", format_share),
    "mat": ("MAT", format_number),
    "speedup": ("Speedup", format_number),
}
_LENGTHS_COUNTED = "Acceptance length of the same steps, as each engine or harness counts it: "
_RATES_COUNTED = "Acceptance rate, likewise: "


def tails_table(frame: pd.DataFrame, where: str) -> Table:
    """The figures as printed, one row per method. where: what was run."""
    return method_table(
        "tails", (where, MEANINGS["tails"].format(values=MIN_VALUES)), frame, _TAILS
    )


def lengths_tables(frame: pd.DataFrame, where: str = "") -> list[Table]:
    """A row a method; none without speedups, or where all contexts lie in one bin. frame: the
    detail ``by_length``.
    """
    return _binned_tables("by_length", frame[frame["axis"] == "context"], "from", where)


def turns_tables(frame: pd.DataFrame) -> list[Table]:
    """A row a method; none without a recorded trajectory whose prefix was kept. frame: the detail
    ``by_turn``.
    """
    return _binned_tables("by_turn", frame, "turn") if (frame["prefix_tokens"] > 0).any() else []


def _binned_tables(name: str, frame: pd.DataFrame, across: str, where: str = "") -> list[Table]:
    """A row a method that drafts, with its speedup and MAT in each bin; none without speedups, or
    with one bin.
    """
    frame = without_references(frame)
    if frame[across].nunique() < 2 or frame["speedup"].isna().all():
        return []
    figures = {"speedup": "Speedup", "mat": "MAT"}
    edges = sorted(frame[across].unique())
    columns = [
        Heading(f"{title} {edge:,}", f"{edge} {figure}")
        for edge in edges
        for figure, title in figures.items()
    ]
    wide = widen(frame, across, ("speedup", "speedup_low", "speedup_high", "mat"))
    return [method_table(name, (where, MEANINGS[name]), wide, columns)]


def thinking_tables(frame: pd.DataFrame) -> list[Table]:
    """A row a method with both parts side by side; no row if no answer thinks. frame: the detail
    ``thinking``.
    """
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
    return [
        method_table(
            "thinking", ("", MEANINGS["thinking"]), widen(frame, "part", list(_THINKING)), columns
        )
    ]


def count_tables(frame: pd.DataFrame) -> tuple[Table, ...]:
    """Lengths, then rates; none without a method that drafts. frame: of ``accept_definitions``."""
    if frame.empty:
        return ()
    wide = widen(frame, "counted_as", ("length", "rate"))
    tables = []
    for figure, begin in (("length", _LENGTHS_COUNTED), ("rate", _RATES_COUNTED)):
        meanings = {
            name: getattr(each, f"{figure}_is")
            for name, each in DEFINITIONS.items()
            if getattr(each, figure)
        }
        write = format_share if figure == "rate" else functools.partial(format_number, decimals=3)
        columns = [Heading(name, f"{name} {figure}", write) for name in meanings]
        meaning = begin + "; ".join(f"{name}: {text}" for name, text in meanings.items())
        tables.append(method_table("counts", ("", f"{meaning}."), wide, columns))
    return tuple(tables)


_AUDIT = (
    COLUMN["mat"],
    COLUMN["tokens_fed"],
    Heading("Draft \N{MICRO SIGN}s", "draft_ms", lambda value: format_number(1e3 * value, 1)),
    COLUMN["speedup"],
    COLUMN["predicted_speedup"],
    Heading("First accepted", "first_accepted", format_share),
    Heading("Acceptance rate", "acceptance_rate", format_share),
    Heading("In vocabulary", "in_vocabulary", format_share),
    Heading("Overlap", "overlap"),
    Heading("Drafted token \N{MICRO SIGN}s", "drafted_us", lambda value: format_number(value, 1)),
    Heading("MAT to win", "break_even_mat"),
    Heading("Draft ms to win", "break_even_draft_ms", format_milliseconds),
    Heading("As run", "as_run"),
    Heading("Oracle", "oracle"),
)


def audit_tables(findings: Findings, where: str = "") -> list[Table]:
    """One row per method, of all cases; none without a method that drafts. The csv has the
    categories.
    """
    frame = findings.detail[AUDIT]
    whole = overall(frame)
    if whole.empty:
        return []
    shown = [column for column in findings.summary if column not in frame or column in KEYS]
    rows = whole.merge(findings.summary[shown], on=list(KEYS), how="left")
    return [method_table(AUDIT, (where, f"{MEANINGS['audit']} {INTERVALS}"), rows, _AUDIT)]


def quality_tables(findings: Findings, where: str = "") -> list[Table]:
    """One row per method; none if no answer was checked."""
    frame = findings.detail[QUALITY]
    if frame.empty:
        return []
    others = overall(findings.summary)[
        [*ROW, "cases", "speedup", "speedup_low", "speedup_high", "mat"]
    ]
    rows = frame.merge(others, on=list(ROW), how="left", suffixes=("", "_all"))
    rows = unite_vanilla(rows.assign(category=OVERALL, errors=0))
    rows["checked"] = [
        f"{checked} of {cases}"
        for checked, cases in zip(rows["cases"], rows["cases_all"], strict=True)
    ]
    columns = (
        Heading("Checked cases", "checked", str),
        Heading("Correct", "correct", format_share, spread=_points_interval),
        Heading("Less vanilla's", "difference", _points, spread=_points_interval),
        COLUMN["speedup"],
        COLUMN["mat"],
    )
    return [method_table(QUALITY, (where, f"{MEANINGS['quality']} {INTERVALS}"), rows, columns)]


def _points(share: float) -> str:
    return BLANK if math.isnan(share) else f"{100 * share:+.1f}"


def _points_interval(low: float, high: float) -> str:
    return format_interval(100 * low, 100 * high, 1)


def _whole_percent(share: float) -> str:
    return BLANK if pd.isna(share) else f"{100 * share:.0f} %"


_LOAD = (
    Heading("Stretches", "stretches", format_count),
    Heading("Tokens/s", "tokens_per_s"),
    Heading("Speedup", "speedup"),
    Heading("Modelled", "modelled_speedup"),
    Heading("Tokens/s a user", "user_tokens_per_s"),
    Heading("MAT", "mat"),
    Heading("Requests", "mean_requests"),
    Heading("Rows", "mean_rows"),
    Heading("Running", "server_running"),
    Heading("Waiting", "server_waiting"),
    Heading("KV cache", "server_kv_cache", _whole_percent),
    Heading("GPU busy", "gpu_busy", _whole_percent),
    Heading("GPU W", "gpu_power_w"),
    Heading("Goodput", "goodput"),
    Heading("Kept", "kept", _whole_percent),
)


_OBJECTIVE = (
    Heading("Loads", "loads", format_count),
    Heading("Holds at", "holds"),
    Heading("Kept at that load", "holds_kept", format_share, spread=_points_interval),
    Heading("Fails at", "fails"),
    Heading("Kept at that load", "fails_kept", format_share, spread=_points_interval),
    Heading("Overloaded from", "saturated"),
)


def objective_tables(frame: pd.DataFrame, where: str = "") -> list[Table]:
    """The most requests under an objective, one row per method; none without runs of several loads
    with one.
    """
    if frame.empty:
        return []
    first = [Heading("Load", "load", str)]
    if frame["objective"].nunique() > 1:
        first.append(Heading("Objective", "objective", str))
    places = [
        "" if pd.isna(most) else f", at most {most:g} concurrently" for most in frame["requests"]
    ]
    rows = frame.assign(
        load=[kind + most for kind, most in zip(frame["kind"], places, strict=True)]
    )
    meaning = f"{MEANINGS['objective']} Here: {'; '.join(frame['objective'].unique())}."
    return [method_table("objective", (where, meaning), rows, _OBJECTIVE, first)]


def served_tables(frame: pd.DataFrame, where: str = "") -> tuple[Table, ...]:
    """Throughput, and waits where the requests are enough for any percentile; none if no run was
    under load.
    """
    if frame.empty:
        return ()
    loads = [] if frame["rate"].notna().all() else [Heading("At once", "requests", format_count)]
    loads += [Heading("A second", "rate")] if frame["rate"].notna().any() else []
    few = (
        ""
        if frame["stretches"].max() >= MIN_CASES
        else f" {MEANINGS['few_stretches'].format(least=MIN_CASES)}"
    )
    served = method_table("load", (where, MEANINGS["load"] + few), frame, _LOAD, loads)
    if frame.filter(regex="_p[0-9]+_ms$").isna().all(axis=None):
        return (served,)
    titles = ("Queue", "Time to first token", "Inter-token latency", "Time per token")
    waits = [
        (wait, title, share) for wait, title in zip(WAITED, titles, strict=True) for share in SHARES
    ]
    columns = [Heading(f"{title} p{share}", f"{wait}_p{share}_ms") for wait, title, share in waits]
    columns.insert(0, Heading("Requests", "served", format_count))
    fewest_requests = ", ".join(f"{fewest(share)} requests (p{share})" for share in SHARES)
    meaning = MEANINGS["load_waits"].format(waits=fewest_requests)
    return served, method_table("load_waits", (where, meaning), frame, columns, loads)


_SHARDS_HEADER = ("Run", "Part", "Machine", "Cases", "Tokens/s", "A/A")


def shards_tables(findings: Findings) -> list[Table]:
    """One row per shard; no table if no run was merged."""
    rows = []
    for entry in findings.reported:
        for shard in entry.shards:
            speed = shard.per_token_s
            figures = (
                str(shard.cases),
                format_rate(1 / speed.value) if speed and speed.value > 0 else BLANK,
                format_bounded(shard.control.retimed.value, *shard.control.retimed.bounds)
                if shard.control
                else BLANK,
            )
            rows.append(
                tuple(map(Cell, (entry.run.directory.name, shard.part, shard.machine, *figures)))
            )
    if not rows:
        return []
    return [
        without_blanks(
            Table("shards", "", MEANINGS["shards"], _SHARDS_HEADER, tuple(rows), labels=3)
        )
    ]
