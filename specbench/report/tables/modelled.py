"""Tables of a latency profile: its own points, predicted speedups next to measured ones, and
speedups under load.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from specbench.profile import Grid, Profile
from specbench.report.columns import COLUMN
from specbench.report.frames.cases import overall
from specbench.report.frames.findings import Findings
from specbench.report.frames.load import FEW, LABELLED, MOST, Load
from specbench.report.label import Cell
from specbench.report.table import MEANINGS, ROW, Heading, Table, method_table, widen
from specbench.report.writers import to_markdown

_COLUMNS = (
    COLUMN["mat"],
    COLUMN["tokens_fed"],
    Heading("Predicted", "predicted_speedup"),
    Heading("Measured", "decode_speedup"),
    COLUMN["efficiency"],
)


def prediction_table(findings: Findings) -> Table | None:
    """One row per method that has a prediction; None without any."""
    rows = overall(findings.summary).dropna(subset="predicted_speedup")
    if rows.empty:
        return None
    rows = rows.assign(decode_speedup=rows["decode_speedup"].where(rows["efficiency"].notna()))
    rows = rows.drop(columns=["mat_low", "mat_high"])  # printed without an interval
    error = (rows["predicted_speedup"] / rows["decode_speedup"] - 1).abs().median()
    median = "" if pd.isna(error) else f" Median absolute error: {100 * error:.1f} %."
    return method_table(
        "predicted", (f"{findings.profiles}.", MEANINGS["predicted"] + median), rows, _COLUMNS
    )


def crossover_table(found: Load) -> Table:
    """Methods down, numbers of requests across; the last column has the most at which it pays."""
    speedups = found.speedups.assign(
        at_load=[
            f"{row['modelled_speedup']:.2f}{'*' if row['outside'] > FEW else ''}"
            f" ({row['with_drafting']:.2f})"
            for row in found.speedups.to_dict("records")
        ]
    )
    counts = sorted(speedups["concurrency"].unique())
    far = (speedups["outside"] > FEW).any()
    star = " *: more than one step in 20 beyond what the profile measured." if far else ""
    meaning = (
        f"{LABELLED}: speedup over vanilla by requests that share a forward, without drafting time;"
        f" in brackets with it, each request's median a step, one request after the other.{star}"
    )
    columns = (
        COLUMN["mat"],
        *(Heading(f"{count} at once", f"{count} at_load", str) for count in counts),
        Heading(
            "Pays up to",
            "pays_to",
            lambda most: f"{MOST} or more" if most >= MOST else str(most or "never"),
        ),
    )
    rows = found.pays.merge(widen(speedups, "concurrency", ["at_load"]), on=list(ROW))
    return method_table("crossover", (f"{found.where}.", meaning), rows, columns)


def format_latency(profile: Profile) -> str:
    """The table of a measured profile, and below it its ceilings, host time, share of the bound and
    A/A control.
    """
    return to_markdown([latency_table(profile)]) + "\n" + "\n".join(_verdicts(profile))


def latency_table(profile: Profile) -> Table:
    """A row a context and tokens fed: ms, spread, T(q)/T(1), the analytic range of it, and the
    engine's host time.
    """
    grid = profile.surface
    assert isinstance(grid, Grid)
    rows = []
    for place, context in enumerate(grid.contexts):
        ratio = grid.ms[place] / grid.ms[place, 0]
        bounds = profile.analytic(grid.fed, context)
        for column, fed in enumerate(grid.fed):
            words = [f"{context:.0f}", f"{fed:.0f}", f"{grid.ms[place, column]:.3f}"]
            words += [f"{100 * grid.spread[place, column]:.1f} %", f"{ratio[column]:.2f}"]
            words += [f"{bounds[0][column]:.2f} to {bounds[1][column]:.2f}"] if bounds else []
            rows.append(tuple(map(Cell, (*words, f"{grid.host_ms[place, column]:.3f}"))))
    limits = ("Analytic",) if profile.shape and profile.ceilings else ()
    header = ("Context", "Fed", "Forward ms", "Spread", "T(q)/T(1)", *limits, "Host ms")
    meaning = (
        f"Medians of {profile.rounds} interleaved rounds; spread: half the interquartile range over"
        " the median."
    )
    return Table("latency", f"{profile.label}.", meaning, header, tuple(rows), labels=2)


def _verdicts(profile: Profile) -> Iterator[str]:
    grid = profile.surface
    assert isinstance(grid, Grid)
    if profile.ceilings:
        found = profile.ceilings
        yield (
            f"ceilings: read {found.read_gb_s:.1f} GB/s, copy {found.copy_gb_s:.1f} GB/s (read and"
            f" written), matmul {found.matmul_gflop_s:.0f} GFLOP/s"
        )
    share = profile.share_of_bound()
    if share is not None:
        each = ", ".join(
            f"{100 * v:.0f} % at {c:.0f}" for v, c in zip(share, grid.contexts, strict=True)
        )
        yield f"vanilla's share of the bandwidth bound: {each}"
        if (share > 1).any():
            yield (
                "  above 100 %: the weights stay in the processor's caches, and memory is not a"
                " bound"
            )
    yield f"host time a step of one token: {np.median(grid.host_ms[:, 0]):.3f} ms"
    each = ", ".join(
        f"{v:.3f} at {c:.0f}" for v, c in zip(profile.control, grid.contexts, strict=True)
    )
    yield f"A/A, one token timed twice: {each}; a difference smaller than that is noise"
