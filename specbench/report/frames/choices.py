"""The best settings of a sweep: those that no other beats in MAT and tokens fed, and those best by a figure."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from specbench.records.record import CONTROL, OVERALL, VANILLA
from specbench.report.frames.findings import Findings

_KEYS = ["model", "suite"]


def find_undominated(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the (cost, gain) that no other beats, by cost: every other of at most this cost gains less."""
    kept: list[int] = []
    for place in sorted(range(len(points)), key=lambda place: (points[place][0], -points[place][1])):
        if not kept or points[place][1] > points[kept[-1]][1]:
            kept.append(place)
    return kept


def rank(findings: Findings, metric: str = "predicted_speedup") -> pd.DataFrame:
    """The overall rows of the summary but vanilla's, by model and suite the best by ``metric`` first.

    Two columns more: ``front``, whether no other of the model and suite has more MAT for as few tokens fed, vanilla
    among them; ``as_good``, whether its interval of ``metric`` reaches the best's figure, blank without intervals.
    """
    overall = findings.summary[findings.summary["category"] == OVERALL]
    rows = overall[~overall["method"].isin([VANILLA, CONTROL])].copy()
    rows["front"] = False
    for _, group in rows.groupby(_KEYS, sort=False):
        known = group[group["errors"].eq(0) & group["tokens_fed"].notna() & group["mat"].notna()]
        points = [(1.0, 1.0), *zip(known["tokens_fed"], known["mat"], strict=True)]
        best = [place - 1 for place in find_undominated(points) if place > 0]
        rows.loc[known.index[best], "front"] = True
    rows = rows.sort_values([*_KEYS, metric], ascending=[True, True, False], kind="stable", na_position="last")
    if f"{metric}_high" in rows:
        best_figure = rows.groupby(_KEYS)[metric].transform("max")
        reaches = (rows[f"{metric}_high"] >= best_figure).astype(object)
        rows["as_good"] = reaches.where(rows[f"{metric}_high"].notna() | rows[metric].eq(best_figure))
    return rows.reset_index(drop=True)
