r"""Find a method's parameters with the best modelled speedup, from recorded answers and a latency
profile.

    specbench tune --profile h100-llama-3.1-8b-vllm-0.10 \
        --grid pld.num_draft=1,3,5,10,16 --grid pld.max_ngram=1,2,3,4 \
        model=replay model.trace=results/live/records.jsonl 'method=[pld]'

Parameters are chosen on one half of the cases (suite.part=1/2) and judged on the other. Every
replay runs the drafter; no model, no GPU. A grid's key stands for method.KEY; a file name may
contain what the method puts in (Cacheback's %LL).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from specbench.commands import make_parser
from specbench.input import InputError, file_path


def grid_of(texts: list[str]) -> dict[str, list[str]]:
    """'pld.num_draft=1,3' -> {'method.pld.num_draft': ['1', '3']}. Raises InputError."""
    found = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not (key and equals and all(values.split(","))):
            raise InputError(f"--grid {text}: expected METHOD.PARAMETER=VALUE,VALUE,...")
        found[f"method.{key}"] = values.split(",")
    return found


def main(argv: Sequence[str]) -> int:
    """Search on one half, measure on the other, print. Raises InputError."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = make_parser("tune", __doc__, formatter_class=kind)
    parser.add_argument(
        "overrides",
        nargs="+",
        help="of specbench: model=replay model.trace=... 'method=[NAME]' ...",
    )
    parser.add_argument(
        "--profile", type=file_path, required=True, help="a latency profile: file, name or pair"
    )
    parser.add_argument(
        "--grid", action="append", required=True, metavar="KEY=V,V,...", help="may be given again"
    )
    parser.add_argument(
        "--load", type=int, default=1, metavar="N", help="requests at once (default 1)"
    )
    given = parser.parse_intermixed_args(argv)
    if given.load < 1:
        raise InputError(f"--load {given.load}: expected the requests at once, 1 or more")
    from specbench.advise.tune import (
        HELD_OUT,
        TUNING,
        Tuner,
        assignments,
        gain_of,
        speedup_of,
        spell,
    )
    from specbench.measure.environment import spell_busy
    from specbench.profile import open_profile

    # these bring torch, which --help does without
    from specbench.runs.job import job_of, refuse_idle_in
    from specbench.stats import MIN_CASES

    profile = open_profile(given.profile)
    overrides = given.overrides
    refuse_idle_in(overrides)
    tuner = Tuner(job_of, overrides, profile, grid_of(given.grid), requests=given.load)
    tuner.check()
    if busy := spell_busy():  # drafters are timed
        print(f"specbench tune: warning: {busy}", file=sys.stderr)
    before = tuner.replay({}, HELD_OUT)  # a trace too short for two halves is found first
    load = "" if given.load == 1 else f", {given.load} requests at once"
    print(f"profile: {profile.label}{load}\ntuning half, {TUNING}, modelled speedup:")
    choice = tuner.climb()
    after = tuner.replay(choice.point, HELD_OUT) if choice.point else before
    print(f"\n{choice.tried} points tried, the best {choice.speedup:.3f}")
    interval = (
        "95 % bootstrap over cases"
        if len(before) >= MIN_CASES
        else f"no interval under {MIN_CASES} cases"
    )
    print(f"held-out half, {HELD_OUT}, {len(before)} cases (modelled; {interval}):")
    print(
        f"  as configured  {spell(speedup_of(before))}\n  tuned          {spell(speedup_of(after))}"
    )
    print(f"  gain           {spell(gain_of(before, after))}")
    print("use:", " ".join(assignments(choice.point)) or "the configuration unchanged")
    return 0
