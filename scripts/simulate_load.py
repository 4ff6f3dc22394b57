"""Serve a run's recorded requests on a simulated clock: any number at once, on a machine that a profile describes.

    python scripts/simulate_load.py results/latest --profile PROFILE.json --requests 1,8,64,256
    python scripts/simulate_load.py results/latest --profile PROFILE.json --requests 64 --rate 5,10,20
    python scripts/simulate_load.py results/latest --profile PROFILE.json --beside RUN_AT_1 RUN_AT_4 RUN_AT_8

The schedule is that of ``specbench load=...``; a step takes the profile's time, and drafting the recorded time. With
--rate requests arrive at random and wait for a place; else so many are always in flight. With --beside, of closed loops
that were measured: the speedup as measured, as ``--concurrency`` models it and as simulated, and their errors. halves:
what two half batches in turn, one drafting while the other is verified, would serve of the tokens/s of one batch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from scripts.lab.loads import compare, read_answers
from specbench.input import whole_numbers
from specbench.profile import open_profile
from specbench.screen import with_exit_code
from specbench.serving.arrivals import draw_poisson
from specbench.serving.scheduler import Stretch
from specbench.serving.simulate import read_figures, simulate


@with_exit_code
def main() -> None:
    """Print a row a method and load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="directory of a run")
    parser.add_argument("--profile", type=Path, required=True, help="a latency profile")
    parser.add_argument("--requests", type=whole_numbers, default=[1, 8, 64, 256], help="at once, with --rate at most")
    parser.add_argument("--rate", type=whole_numbers, default=[0], help="arrivals a second; 0 = a closed loop")
    parser.add_argument("--count", type=int, default=10_000, help="requests that are measured")
    parser.add_argument("--chunk", type=int, default=256, help="tokens of prompts read between two forwards; 0 = whole")
    parser.add_argument("--beside", type=Path, nargs="+", help="runs with load=closed, which are compared with")
    parser.add_argument("--no-drafting", action="store_true", help="drafts take no time")
    options = parser.parse_args()
    profile, answers = open_profile(options.profile), read_answers(options.run, not options.no_drafting)
    print(f"simulated: {profile.label}; {options.count} requests drawn from {options.run}")
    if options.beside:
        frame = compare(options.beside, profile, answers, options.count)
        print(frame.to_string(index=False, float_format="{:.2f}".format))
        print("median error:", frame[["modelled error", "simulated error"]].median().round(3).to_dict())
        return
    rows = []
    for places in options.requests:
        for rate in options.rate:
            stretch = Stretch(places, places, options.count, options.chunk)
            base = 0.0
            for name, own in answers.items():
                figures, halves = (
                    read_figures(simulate(profile, own, stretch, draw_poisson(rate, 0) if rate else None, halves=each))
                    for each in (False, True)
                )
                reached = figures["tokens_per_s"]
                base = base or reached
                rows.append({"at once": places, "rate": rate or "closed", "method": name, **figures,
                             "speedup": reached / base, "halves": halves["tokens_per_s"] / reached})  # fmt: skip
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.2f}".format))


if __name__ == "__main__":
    sys.exit(main())
