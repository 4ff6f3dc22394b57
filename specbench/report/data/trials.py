"""One row a record: a run's records as a frame of plain counts and times, before anything is averaged."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from specbench.record import PHASES, CaseRecord
from specbench.stats import over_rounds

BLANK = float("nan")
DRAFTER_PHASES = ("draft", "update")  # in which a drafter runs, and nothing else
_SUMMED = ("turns", "steps", "emitted", "proposed", "drafted_steps", "fed", "prefill_s", "violations")
_PHASES = tuple(f"{phase}_s" for phase in PHASES)
COLUMNS = (
    *("case", "category", "subcategory", "method", "round", "block", "ok", "turns", "tokens", "steps", "emitted"),
    *("proposed", "drafted_steps", "fed", "prefill_s", "decode_s", "time_s", "energy_j"),
    *(f"{phase}_s" for phase in PHASES),
    *("state_bytes", "judged", "equal", "held", "violations", "close_steps"),
)
_KINDS: dict[tuple[str, ...], type] = {  # all others are float; stated, because a frame without rows has no types
    ("case", "category", "subcategory", "method"): str,
    ("round", "block", "turns", "tokens", "steps", "emitted", "proposed", "drafted_steps", "fed"): int,
    ("state_bytes", "violations"): int,
    ("ok", "judged", "equal", "held"): bool,
}


def trials(records: list[CaseRecord]) -> pd.DataFrame:
    """A row for each record.

    tokens: emitted ids, the prefill's included. emitted: tokens of the decode steps. proposed: non-passenger nodes.
    drafted_steps: steps with a draft. fed: rows fed to the target. *_s: [s], a phase no turn recorded is NaN.
    energy_j: [J], NaN where a turn has none.
    judged: compared with vanilla. held: equal to vanilla, or no id beyond the tolerance. close_steps: NaN where a
    record does not have them.
    """
    frame = pd.DataFrame([_row(record) for record in records], columns=list(COLUMNS))
    kinds = {column: kind for columns, kind in _KINDS.items() for column in columns}
    return frame.astype({column: kinds.get(column, float) for column in COLUMNS})


def _row(record: CaseRecord) -> dict[str, Any]:
    turns = record.turns
    prefill_s = sum(turn.prefill_s for turn in turns)
    decode_s = sum(turn.decode_s for turn in turns)
    return {
        "case": record.case,
        "category": record.category,
        "subcategory": record.subcategory,
        "method": record.method,
        "round": record.round,
        "block": record.block,
        "ok": record.status == "ok",
        "turns": len(turns),
        "tokens": sum(len(turn.ids) for turn in turns),
        "steps": sum(len(turn.accept) for turn in turns),
        "emitted": sum(sum(turn.accept) for turn in turns),
        "proposed": sum(sum(turn.proposed) for turn in turns),
        "drafted_steps": sum(count > 0 for turn in turns for count in turn.proposed),
        "fed": sum(sum(turn.fed) for turn in turns),
        "prefill_s": prefill_s,
        "decode_s": decode_s,
        "time_s": prefill_s + decode_s,
        "energy_j": sum(BLANK if turn.energy_j is None else turn.energy_j for turn in turns),
        "state_bytes": record.state_bytes,
        **_phases(record),
        **_judgement(record),
    }


def _phases(record: CaseRecord) -> dict[str, float]:
    found = {}
    for phase in PHASES:
        parts = [turn.phases_s[phase] for turn in record.turns if phase in turn.phases_s]
        found[f"{phase}_s"] = sum(parts) if parts else BLANK
    return found


def _judgement(record: CaseRecord) -> dict[str, Any]:
    """Ids that differ from vanilla and were never teacher-forced may differ by more than a tie: not held."""
    verdict = record.lossless
    if verdict is None:
        return {"judged": False, "equal": False, "held": False, "violations": 0, "close_steps": BLANK}
    held = verdict.equal or (verdict.positions > 0 and verdict.violations == 0)
    close = BLANK if verdict.close_steps is None else verdict.close_steps
    return {
        "judged": True, "equal": verdict.equal, "held": held, "violations": verdict.violations, "close_steps": close,
    }  # fmt: skip


def ratio(part: float, whole: float) -> float:
    """Blank where there is no whole, the part is not known, or the whole is too small to divide by."""
    found = float(part) / float(whole) if whole > 0 else BLANK
    return found if math.isfinite(found) else BLANK


def fold_cases(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a (method, case), indexed so, from the rows of ``trials``.

    Counts, phases and energy are summed over the rounds. time_s: [s] end to end, with tokens the median over the rounds
    (``stats.over_rounds``); decode_time_s with decode_tokens likewise. all_tokens: over all rounds. ok: False when any
    round failed. held, equal: in every judged round.
    """
    keys = ["method", "case"]
    groups = frame.groupby(keys, sort=False)
    folded = groups[list(_SUMMED)].sum()
    folded["category"] = groups["category"].first()
    folded["ok"] = groups["ok"].all()
    folded["rounds"] = groups["ok"].size()
    folded["all_tokens"] = groups["tokens"].sum()
    folded["state_bytes"] = groups["state_bytes"].max()
    folded[list(_PHASES)] = groups[list(_PHASES)].sum(min_count=1)
    for column in ("energy_j", "close_steps"):
        folded[column] = groups[column].sum().where(groups[column].count() == groups.size())
    folded["judged"] = groups["judged"].any()
    judged = frame[frame["judged"]].groupby(keys, sort=False)
    for column in ("held", "equal"):
        folded[column] = judged[column].all().reindex(folded.index).fillna(False).astype(bool)
    folded[["time_s", "tokens"]] = _medians(frame, "time_s", "tokens")
    folded[["decode_time_s", "decode_tokens"]] = _medians(frame, "decode_s", "emitted")
    return folded


def _medians(frame: pd.DataFrame, seconds: str, tokens: str) -> pd.DataFrame:
    groups = frame.groupby(["method", "case"], sort=False)[[seconds, tokens]]
    if (groups.size() <= 1).all():
        return groups.first().astype(float).set_axis([0, 1], axis=1)
    values = {key: over_rounds(group[seconds], group[tokens]) for key, group in groups}
    return pd.DataFrame.from_dict(values, orient="index")
