"""One speedup as a product: what a step brings, what its forward costs, and what the rest of the step costs.

With F the forward and S the whole decode step, m a method and v vanilla,

    speedup = MAT  x  F_v / F_m  x  (F_m / S_m) / (F_v / S_v)  x  remainder.

Modelled, F comes from a latency profile at the recorded tokens fed and contexts, F_v / F_m is T(1) / T(q), and there is
no remainder. Measured, F and S are the recorded phases; the remainder is what is in no phase: time between them,
and tokens that a step emitted beyond the end of the answer.
"""

from __future__ import annotations

import pandas as pd

from specbench.records.record import CONTROL, OVERALL, PHASES, VANILLA
from specbench.report.frames.audit import MEASURED, MODELLED
from specbench.report.frames.findings import Findings
from specbench.report.frames.reported import ROW

FACTORS = ("mat", "forward", "overhead", "remainder")
_COLUMNS = (*ROW, "basis", *FACTORS, "speedup")
_PLACE = list(ROW[:2])
_FIGURES = [*FACTORS[:3], "speedup"]


def explain(findings: Findings) -> pd.DataFrame:
    """A row a method and basis, measured and modelled, whose four factors multiply to its decode speedup.

    Methods without recorded phases, and what was not timed or has no profile, have no row.
    """
    rows = pd.concat([_measured(findings), _modelled(findings)], ignore_index=True)
    rows = rows.assign(remainder=rows["speedup"] / (rows["mat"] * rows["forward"] * rows["overhead"]))
    return rows[list(_COLUMNS)]


def _measured(findings: Findings) -> pd.DataFrame:
    rows = findings.summary[findings.summary["category"] == OVERALL]
    rows = rows.assign(step_ms=rows[[f"{phase}_ms" for phase in PHASES]].sum(axis=1))
    vanilla = rows[(rows["method"] == VANILLA) & rows["forward_ms"].notna()].drop_duplicates(_PLACE)
    rows = rows[~rows["method"].isin([VANILLA, CONTROL])].dropna(subset=["mat", "forward_ms", "decode_speedup"])
    rows = rows.merge(vanilla[[*_PLACE, "forward_ms", "step_ms"]], on=_PLACE, suffixes=("", "_vanilla"))
    own, theirs = (rows[f"forward_ms{side}"] / rows[f"step_ms{side}"] for side in ("", "_vanilla"))
    forward = rows["forward_ms_vanilla"] / rows["forward_ms"]
    found = rows.assign(basis=MEASURED, forward=forward, overhead=own / theirs, speedup=rows["decode_speedup"])
    return found[[*ROW, "basis", *_FIGURES]]


def _modelled(findings: Findings) -> pd.DataFrame:
    rows = []
    for reported in findings.reported:
        found = reported.prediction
        for method, cases in (found.cases if found else {}).items():
            total = cases.sum()
            ideal = total["vanilla_ideal_ms"] / total["ideal_ms"]
            mat = total["emitted"] / total["steps"]
            speedup = total["vanilla_ms"] / total["method_ms"]
            rows.append((*reported.key(method), MODELLED, mat, ideal / mat, speedup / ideal, speedup))
    return pd.DataFrame(rows, columns=[*ROW, "basis", *_FIGURES]).astype(dict.fromkeys(_FIGURES, float))
