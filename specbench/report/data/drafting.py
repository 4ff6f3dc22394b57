"""What drafting costs where no model was run: of a replayed target only the drafters' own time and what they feed."""

from __future__ import annotations

import pandas as pd

from specbench.record import CONTROL, VANILLA

OWN = ("draft", "update")  # the phases in which a drafter runs, and nothing else


def replayed(rows: pd.DataFrame) -> pd.Series:
    """True for rows of the summary whose target was replayed: drafters were timed, a target was not."""
    return rows["prefill_ms"].isna() & rows["draft_ms"].notna()


def with_drafting(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the summary with columns for printing: blank but for a replayed target.

    fed: tokens fed a step, of a target that was driven along a record too. draft_us, update_us: [us a step], then blank
    as ms. drafting_us: their sum.
    """
    own = replayed(rows)
    phases = {f"{phase}_us": (1e3 * rows[f"{phase}_ms"]).where(own) for phase in OWN}
    cost = sum(phases.values(), start=pd.Series(0.0, index=rows.index))
    blank = {f"{phase}_ms": rows[f"{phase}_ms"].mask(own) for phase in OWN}
    return rows.assign(
        fed=rows["tokens_fed"].where(own | rows["time_only_step_ms"].notna()), drafting_us=cost, **phases, **blank
    )


def told_once(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows without those that say nothing new: several runs' controls, and vanilla replayed again, whose MAT is 1."""
    control = (rows["method"] == CONTROL) & (rows["variant"] != "")
    plain = (rows["method"] == VANILLA) & replayed(rows)
    again = plain & rows.assign(plain=plain).duplicated(["model", "suite", "category", "plain"])
    return rows.assign(variant=rows["variant"].mask(plain, ""))[~control & ~again]
