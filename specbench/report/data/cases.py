"""A case's figures under one method, its rounds folded into one: what every mean and interval of a table is made of."""

from __future__ import annotations

import pandas as pd

from specbench.record import PHASES
from specbench.stats import over_rounds

_SUMMED = ("turns", "steps", "emitted", "proposed", "drafted_steps", "fed", "prefill_s", "violations")
_PHASES = tuple(f"{phase}_s" for phase in PHASES)


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
    folded["energy_j"] = groups["energy_j"].sum().where(groups["energy_j"].count() == groups.size())
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
