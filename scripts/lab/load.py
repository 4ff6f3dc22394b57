"""Serve a run's recorded requests on a simulated clock: any number of them, on a machine that a profile describes.

    python -m scripts.lab load results/latest --profile PROFILE.json --requests 1,8,64,256
    python -m scripts.lab load results/latest --profile PROFILE.json --requests 64 --rate 5,10,20
    python -m scripts.lab load results/latest --profile PROFILE.json --measured RUN_AT_1 RUN_AT_4 RUN_AT_8

The schedule is that of ``specbench load=...``; a step takes the profile's time, and drafting the recorded time. With
--rate requests arrive at random and wait for a place; otherwise a constant number is in flight. --measured takes runs
of closed loops, and prints their speedup as measured, as modelled by ``--concurrency`` and as simulated, with the
errors of the last two. The column "halves" is the throughput of two half batches in turn, one drafting while the other
is verified, as a share of the throughput of one batch.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import pandas as pd

from specbench.input import InputError, whole_numbers
from specbench.profile import Profile, open_profile
from specbench.records.record import CONTROL, VANILLA
from specbench.records.store import read_run
from specbench.report.frames.findings import gather
from specbench.serving.scheduler import Stretch
from specbench.serving.settings import draw_arrivals
from specbench.serving.simulate import SimulatedAnswer, read_figures, recorded_answers, simulate


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print one row per method and load."""
    parser.add_argument("run", type=Path, help="directory of a run")
    parser.add_argument("--profile", type=Path, required=True, help="a latency profile")
    parser.add_argument("--requests", type=whole_numbers, default=[1, 8, 64, 256], help="at once, with --rate at most")
    parser.add_argument("--rate", type=whole_numbers, default=[0], help="arrivals a second; 0 = a closed loop")
    parser.add_argument("--count", type=int, default=10_000, help="requests that are measured")
    parser.add_argument("--chunk", type=int, default=256, help="tokens of prompts read between two forwards; 0 = all")
    parser.add_argument("--measured", type=Path, nargs="+", help="runs with load=closed, to compare with")
    parser.add_argument("--no-drafting", action="store_true", help="drafts take no time")
    given = parser.parse_intermixed_args(arguments)
    profile, answers = open_profile(given.profile), read_answers(given.run, not given.no_drafting)
    print(f"simulated: {profile.label}; {given.count} requests drawn from {given.run}")
    if given.measured:
        frame = compare(given.measured, profile, answers, given.count)
        print(frame.to_string(index=False, float_format="{:.2f}".format))
        print("median error:", frame[["modelled error", "simulated error"]].median().round(3).to_dict())
        return
    rows = []
    for places, rate in product(given.requests, given.rate):
        stretch, base = Stretch(places, places, given.count, given.chunk), 0.0
        for name, own in answers.items():
            figures, halves = (
                read_figures(
                    simulate(profile, own, stretch, draw_arrivals("poisson", rate, 0) if rate else None, halves=each)
                )
                for each in (False, True)
            )
            reached = figures["tokens_per_s"]
            base = base or reached
            rows.append({"at once": places, "rate": rate or "closed", "method": name, **figures,
                         "speedup": reached / base, "halves": halves["tokens_per_s"] / reached})  # fmt: skip
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.2f}".format))


def read_answers(path: Path, drafting: bool) -> dict[str, list[SimulatedAnswer]]:
    """Read the turns of vanilla and of the methods from a run. drafting: with the time of their drafters.

    Raises InputError for a run of several concurrent requests, which share their times, and if a method of the run has
    no successful record.
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
    """Return one row per method and measured closed loop: its speedup as measured, modelled and simulated."""
    rows = []
    for path in runs:
        run = read_run(path)
        load = run.manifest["config"].get("load", {})
        if load.get("kind") != "closed":
            raise InputError(f"run {path}: not of a closed loop; expected one with load=closed")
        stretch = Stretch(load["requests"], load["requests"], count, load["chunk"])
        measured = gather([run], [profile]).detail["load"].set_index("method")
        base = read_figures(simulate(profile, answers[VANILLA], stretch))["tokens_per_s"]
        for name in (name for name in measured.index if name in answers and name != VANILLA):
            simulated = read_figures(simulate(profile, answers[name], stretch))["tokens_per_s"] / base
            found, modelled = (float(measured[key][name]) for key in ("speedup", "modelled_speedup"))
            rows.append({"at once": load["requests"], "method": name, "measured": found, "modelled": modelled,
                         "simulated": simulated, "modelled error": abs(modelled / found - 1),
                         "simulated error": abs(simulated / found - 1)})  # fmt: skip
    return pd.DataFrame(rows)
