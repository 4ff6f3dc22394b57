"""What the judge of losslessness can tell: rounding, the ties of sound engines, and which planted faults it finds.

    python scripts/check_judge.py suite.limit=3 decode.max_new_tokens=96 --dtypes float32 bfloat16

The bundled model answers the bundled suite. Prints Markdown tables; docs/measurement.md, section 7, reads them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, product

import torch

from scripts.lab.faults import FAULTS, Fault
from scripts.lab.judge import FOUND_HEAD, RATE_HEAD, SOUND_HEAD, Judged
from scripts.lab.rounding import ROUNDING_HEAD, measure_rounding
from specbench.records.record import CaseRecord
from specbench.runs.cli import job_of
from specbench.runs.session import RequestSettings, Session
from specbench.runs.stage import set_stage
from specbench.screen import with_exit_code


@with_exit_code
def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("settings", nargs="*", help="of the runs of the bundled model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for part in given.parts:
        for line in chain(PARTS[part](given.dtypes, given.settings), [""]):
            print(line, flush=True)


def rounding(dtypes: Sequence[str], _settings: Sequence[str]) -> Iterator[str]:
    """In halves of the dtype's epsilon, times the logits' spread."""
    yield f"dtype | layers | {ROUNDING_HEAD}\n---|---|--:|--:|--:|--:|--:"
    for name, layers in product(dtypes, (2, 8, 32)):
        yield f"{name} | {layers} | {measure_rounding(layers, getattr(torch, name)).row()}"


def sound(dtypes: Sequence[str], settings: Sequence[str]) -> Iterator[str]:
    """What the judge says of engines without a fault."""
    yield f"dtype | engine | {SOUND_HEAD}\n---|---|--:|--:|--:|--:|--:|--:"
    for name, kind in product(dtypes, ("fast", "eager")):
        records, _ = decode(f"engine={kind}", "method=[pld,opt_tree,pearl]", f"model.dtype={name}", *settings)
        yield f"{name} | {kind} | {Judged.of(records).sound_row()}"


def faults(dtypes: Sequence[str], settings: Sequence[str]) -> Iterator[str]:
    """How many answers of an engine with a fault are found, and so how many runs; wrong tokens also by their number."""
    yield f"fault | dtype | {FOUND_HEAD}\n---|---|--:|--:|--:|--:|--:|--:|--:"
    rates = [RATE_HEAD, "---|---|--:|--:|--:|--:|--:"]
    for (title, (method, plant)), name in product(FAULTS.items(), dtypes):
        records, fault = decode("engine=fast", f"method=[{method}]", f"model.dtype={name}", *settings, plant=plant)
        found = Judged.of([record for record in records if record.method == method])
        yield f"{title} | {name} | {found.found_row()}"
        if plant.chance < 1:
            rates.append(f"{title} | {name} | {found.rate_row(fault.strikes)}")
    yield from ("", *rates)


def decode(*settings: str, plant: type[Fault] = Fault) -> tuple[list[CaseRecord], Fault]:
    """The judged records of a run of the bundled model, vanilla's too, and the fault in its engine."""
    job = job_of(["model=tiny", "suite=mini", "measure=quick", *settings])
    with set_stage(job) as stage:
        fault = plant(stage.engine)
        asked = RequestSettings(job.config.decode.max_new_tokens, None, 0, job.card.dtype)
        blocks = Session(stage.engine, stage.target, stage.next_turn, job.rows, asked).run(job.plan)
        return [record for records in blocks for record in records], fault


PARTS = {"rounding": rounding, "sound": sound, "faults": faults}
if __name__ == "__main__":
    sys.exit(main())
