"""Closed loops that were measured, beside what a model of load and a simulated server say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from specbench.input import InputError
from specbench.profile import Profile
from specbench.record import VANILLA
from specbench.report.data.findings import gather
from specbench.serving.scheduler import Stretch
from specbench.serving.simulate import SimulatedAnswer, read_figures, simulate
from specbench.store import read_run


def compare(
    runs: Sequence[Path], profile: Profile, answers: Mapping[str, Sequence[SimulatedAnswer]], count: int
) -> pd.DataFrame:
    """A row a method and measured closed loop: its speedup as measured, modelled and simulated."""
    rows = []
    for path in runs:
        run = read_run(path)
        load = run.manifest["config"].get("load", {})
        if load.get("kind") != "closed":
            raise InputError(f"run {path}: not of a closed loop; expected one with load=closed")
        stretch, rates = Stretch(load["requests"], load["requests"], count, load["chunk"]), {}
        measured = gather([run], [profile]).detail["load"].set_index("method")
        for name in (VANILLA, *(name for name in measured.index if name in answers and name != VANILLA)):
            rates[name] = read_figures(simulate(profile, answers[name], stretch))["tokens_per_s"]
            found, modelled = (float(measured[key][name]) for key in ("speedup", "modelled_speedup"))
            simulated = rates[name] / rates[VANILLA]
            rows.append({"at once": load["requests"], "method": name, "measured": found, "modelled": modelled,
                         "simulated": simulated, "modelled error": abs(modelled / found - 1),
                         "simulated error": abs(simulated / found - 1)})  # fmt: skip
    return pd.DataFrame([row for row in rows if row["method"] != VANILLA])
