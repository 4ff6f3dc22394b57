"""Measure what the harness itself costs per step of a replay, on a quarter of the cases and on all of them, in turn.

    python -m scripts.lab replay model=replay model.trace=TRACE.jsonl model.tokenizer=DIR method=[pld]

The figure is CPU time of this process, so that other load on the machine counts little. It covers the time from the end
of the first block to the end of the last, except drafting: decoding, checking, records, writing. The quarter is every
fourth case.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from scripts.lab.materials import print_table
from specbench.records.store import read_run
from specbench.runs.composition import with_own_groups
from specbench.runs.execution import execute
from specbench.runs.job import job_of

PARTS = {"1/4": ["suite.part=1/4"], "all": []}
TURNS = 3


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print one row per part, medians over the turns; on stderr every turn and the highest memory up to then."""
    parser.add_argument("overrides", nargs="*", help="of specbench")
    overrides = [*with_own_groups(parser.parse_intermixed_args(arguments).overrides), "measure.keep_trees=0"]
    found: dict[str, list[tuple[int, float, float]]] = {part: [] for part in PARTS}
    for _ in range(TURNS):
        for part, narrowing in PARTS.items():
            found[part].append(measure([*overrides, *narrowing]))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"# {part}: {found[part][-1][1]:.2f} us a step, {peak:.0f} MiB at most", file=sys.stderr)
    rows, totals = [], []
    for part, turns in found.items():
        harness, drafting = (statistics.median(turn[place] for turn in turns) for place in (1, 2))
        totals.append(statistics.median(turn[1] + turn[2] for turn in turns))
        rows.append([part, turns[0][0], f"{harness:.2f}", f"{drafting:.2f}", f"{1e6 / (harness + drafting):.0f}"])
    print_table(("cases", "steps", "harness us a step", "drafters us a step", "steps per second"), rows)
    print(f"\nCPU time a step, all over 1/4: {totals[1] / totals[0]:.3f}")


def measure(overrides: Sequence[str]) -> tuple[int, float, float]:
    """Replay once; returns the steps, and the CPU time [us] per step of the harness and of the drafters."""
    marks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        execute(job_of(overrides), Path(folder) / "run", lambda *_: marks.append(time.process_time()))
        records = [record for record in read_run(Path(folder) / "run").records if record.block > 0]
    turns = [turn for record in records for turn in record.turns]
    steps = sum(len(turn.accept) for turn in turns)
    drafting = sum(turn.phases_s.get("draft", 0.0) + turn.phases_s.get("update", 0.0) for turn in turns)
    return steps, (marks[-1] - marks[0] - drafting) / steps * 1e6, drafting / steps * 1e6
