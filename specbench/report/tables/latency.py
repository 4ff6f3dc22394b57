"""A latency profile as text: T(q) beside what bytes and operations allow, and what judges the measurement."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specbench.profile import Grid, Profile
from specbench.report.text.label import Cell
from specbench.report.text.table import Table, to_markdown


def format_latency(profile: Profile) -> str:
    """The table of a measured profile, and below it its ceilings, host time, share of the bound and A/A control."""
    return to_markdown(latency_table(profile)) + "\n" + "\n".join(_verdicts(profile))


def latency_table(profile: Profile) -> Table:
    """A row a context and tokens fed: ms, spread, T(q)/T(1), the analytic range of it, and the engine's host time."""
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
    meaning = f"Medians of {profile.rounds} interleaved rounds; spread: half the interquartile range over the median."
    return Table("latency", f"{profile.label}.", meaning, header, tuple(rows), frozenset(), labels=2)


def _verdicts(profile: Profile) -> Iterator[str]:
    grid = profile.surface
    assert isinstance(grid, Grid)
    if profile.ceilings:
        found = profile.ceilings
        yield (
            f"ceilings: read {found.read_gb_s:.1f} GB/s, copy {found.copy_gb_s:.1f} GB/s (read and written),"
            f" matmul {found.matmul_gflop_s:.0f} GFLOP/s"
        )
    share = profile.share_of_bound()
    if share is not None:
        each = ", ".join(f"{100 * v:.0f} % at {c:.0f}" for v, c in zip(share, grid.contexts, strict=True))
        yield f"vanilla's share of the bandwidth bound: {each}"
        if (share > 1).any():
            yield "  above 100 %: the weights stay in the processor's caches, and memory is no bound"
    yield f"host time a step of one token: {np.median(grid.host_ms[:, 0]):.3f} ms"
    each = ", ".join(f"{v:.3f} at {c:.0f}" for v, c in zip(profile.control, grid.contexts, strict=True))
    yield f"A/A, one token timed twice: {each}; a difference smaller than that is noise"
