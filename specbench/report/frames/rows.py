"""The rows of ``summary.csv``: their columns, their order, and the form in which they are printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from specbench.records.record import CONTROL, OVERALL, PHASES, VANILLA
from specbench.report.frames.trials import DRAFTER_PHASES
from specbench.report.text.label import BLANK
from specbench.stats import MIN_CASES

FEW = f"In brackets: fewer than {MIN_CASES} cases, too few to say how far chance moves the figure."
TASKS = ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")  # Spec-Bench's, in its order
KEYS = ("model", "suite", "category", "method", "variant")
COLUMNS = (
    *KEYS,
    *("cases", "tokens", "steps", "mat", "mat_low", "mat_high", "tokens_per_s", "decode_tokens_per_s"),
    *("speedup", "speedup_low", "speedup_high", "speedup_hf", "decode_speedup", "predicted_speedup"),
    *("predicted_speedup_low", "predicted_speedup_high", "efficiency", "cost_per_million"),
    "joules_per_token",
    *("time_only_speedup", "time_only_speedup_low", "time_only_speedup_high", "time_only_step_ms"),
    *("acceptance_rate", "draft_rate", "mean_draft"),
    *("tokens_fed", "target_compute", *(f"{phase}_ms" for phase in PHASES), "prefill_ms", "state_bytes"),
    *("lossless", "equal", "violations", "close_steps", "errors"),
    "load",
)


def category_order(names: Sequence[str] | pd.Series) -> list[str]:
    """Spec-Bench's tasks in its order, then any others by name."""
    present = set(names)
    return [*(task for task in TASKS if task in present), *sorted(present - set(TASKS))]


def of_place(frame: pd.DataFrame, model: str, suite: str) -> pd.DataFrame:
    """The rows of one model and suite."""
    return frame[(frame["model"] == model) & (frame["suite"] == suite)]


def unite(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Rows of several runs of one model and suite side by side: category by category, methods in first-seen order."""
    frame = pd.concat(frames, ignore_index=True)
    categories = [OVERALL, *category_order(frame.loc[frame["category"] != OVERALL, "category"])]
    methods = [name for name in (VANILLA, CONTROL) if name in set(frame["method"])]
    orders = {
        "model": frame["model"].unique(),
        "suite": frame["suite"].unique(),
        "category": categories,
        "method": dict.fromkeys([*methods, *frame["method"]]),
    }
    ranks = {column: {name: rank for rank, name in enumerate(names)} for column, names in orders.items()}
    order = pd.DataFrame({column: frame[column].map(ranks[column]) for column in orders})
    return frame.loc[order.sort_values(list(orders), kind="stable").index].reset_index(drop=True)


def mark_few(text: str, row: Mapping[str, Any]) -> str:
    """A printed figure of a row of the summary, in brackets where it has too few cases for an interval."""
    return f"({text})" if row.get("cases", MIN_CASES) < MIN_CASES and text != BLANK else text


def replayed(rows: pd.DataFrame) -> pd.Series:
    """True for rows of the summary whose target was replayed: drafters were timed, the target was not."""
    return rows["prefill_ms"].isna() & rows["draft_ms"].notna()


def with_drafting(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the summary with columns for printing: blank but for a replayed target.

    fed: tokens fed a step, of a target that was driven along a record too. draft_us, update_us: [us a step], then blank
    as ms. drafting_us: their sum.
    """
    own = replayed(rows)
    phases = {f"{phase}_us": (1e3 * rows[f"{phase}_ms"]).where(own) for phase in DRAFTER_PHASES}
    cost = sum(phases.values(), start=pd.Series(0.0, index=rows.index))
    blank = {f"{phase}_ms": rows[f"{phase}_ms"].mask(own) for phase in DRAFTER_PHASES}
    return rows.assign(
        fed=rows["tokens_fed"].where(own | rows["time_only_step_ms"].notna()), drafting_us=cost, **phases, **blank
    )


def drop_repeated_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows without repeated ones: the controls of several runs, and replayed vanilla, whose MAT is always 1."""
    control = (rows["method"] == CONTROL) & (rows["variant"] != "")
    plain = (rows["method"] == VANILLA) & replayed(rows)
    again = plain & rows.assign(plain=plain).duplicated(["model", "suite", "category", "plain"])
    return rows.assign(variant=rows["variant"].mask(plain, ""))[~control & ~again]
