"""Closed loops that were measured, beside what a model of load and a simulated server say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from specbench.input import InputError
from specbench.profile import Profile
from specbench.records.record import CONTROL, VANILLA
from specbench.records.store import read_run
from specbench.report.frames.findings import gather
from specbench.serving.scheduler import Stretch
from specbench.serving.simulate import SimulatedAnswer, read_figures, recorded_answers, simulate


def read_answers(path: Path, drafting: bool) -> dict[str, list[SimulatedAnswer]]:
    """Vanilla and the methods of a run -> their turns. drafting: with the time of their drafters.

    Raises InputError for a run of several requests at once, whose times are those of all of them, and for one without a
    good record of a method.
    """
    run = read_run(path)
    load = run.manifest["config"].get("load", {})
    if load.get("kind", "one") != "one" and load.get("requests") != 1:
        raise InputError(f"run {path}: its times are of {load['requests']} requests together; expected one at once")
    names = dict.fromkeys((VANILLA, *(record.method for record in run.records if record.method != CONTROL)))
    answers = {
        name: recorded_answers([each for each in run.records if each.method == name], drafting) for name in names
    }
    if lacking := [name for name, own in answers.items() if not own]:
        raise InputError(f"run {path}: {lacking[0]} has no good record; expected a run with answers of all methods")
    return answers


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
