"""What the harness itself costs a step of a replay, on a quarter of the cases and on all of them, in turn.

    python -m scripts.lab replay model=replay model.trace=TRACE.jsonl model.tokenizer=DIR method=[pld]

The figure is CPU time of this process, so that other load on the machine counts little: from the end of the first block
to that of the last, everything but drafting: decoding, checking, records, writing. The quarter is every fourth case.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from scripts.lab.materials import print_head, print_row
from specbench.records.store import read_run
from specbench.runs.composition import with_own_groups
from specbench.runs.execution import execute
from specbench.runs.job import job_of

PARTS = {"1/4": ["suite.part=1/4"], "all": []}
TURNS = 3


def add_options(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("overrides", nargs="*", help="of specbench")


def run(given: Namespace) -> None:
    """Print a line a part, medians over the turns; on stderr every turn and the highest memory so far."""
    overrides = [*with_own_groups(given.overrides), "measure.keep_trees=0"]
    found: dict[str, list[tuple[int, float, float]]] = {part: [] for part in PARTS}
    for _ in range(TURNS):
        for part, narrowing in PARTS.items():
            found[part].append(measure([*overrides, *narrowing]))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"# {part}: {found[part][-1][1]:.2f} us a step, {peak:.0f} MiB at most", file=sys.stderr)
    print_head("cases", "steps", "harness us a step", "drafters us a step", "steps per second")
    medians = []
    for part, rows in found.items():
        harness, drafting = (statistics.median(row[place] for row in rows) for place in (1, 2))
        medians.append(statistics.median(row[1] + row[2] for row in rows))
        print_row(part, rows[0][0], f"{harness:.2f}", f"{drafting:.2f}", f"{1e6 / (harness + drafting):.0f}")
    print(f"\nCPU time a step, all over 1/4: {medians[1] / medians[0]:.3f}")


def measure(overrides: Sequence[str]) -> tuple[int, float, float]:
    """Replay once; returns the steps, and CPU microseconds a step of the harness and of the drafters."""
    marks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        execute(job_of(overrides), Path(folder) / "run", lambda *_: marks.append(time.process_time()))
        records = [record for record in read_run(Path(folder) / "run").records if record.block > 0]
    turns = [turn for record in records for turn in record.turns]
    steps = sum(len(turn.accept) for turn in turns)
    drafting = sum(turn.phases_s.get("draft", 0.0) + turn.phases_s.get("update", 0.0) for turn in turns)
    return steps, (marks[-1] - marks[0] - drafting) / steps * 1e6, drafting / steps * 1e6
