"""Compare the ways of computing a draft's forward on a CPU: compiled code, and torch's operations.

    python scripts/compare_forwards.py model=tiny
    python scripts/compare_forwards.py model=random_110m model.dtype=bfloat16 --fed 1,8 --blocks 4

The first arguments are those of ``specbench``. Both ways, and the compiled one a second time as the control, take
turns on one loaded model; the figures are medians of the blocks.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

from specbench.advise.ceilings import measure_ceilings
from specbench.advise.latency import Bench
from specbench.input import whole_numbers
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.engine import FastEngine
from specbench.models.load import load_model
from specbench.runs.cli import job_of
from specbench.runs.material import model_options
from specbench.screen import with_exit_code
from specbench.types import EMPTY, Draft, InputError, Needs

COLUMNS = (
    "| tokens fed | torch / compiled | control | compiled: T(q) / T(1) | torch: T(q) / T(1) | share of the bound |"
)


@with_exit_code
def main() -> None:
    """Time and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of specbench: model=..., model.dtype=..., model.threads=...")
    parser.add_argument("--fed", type=whole_numbers, default=[1, 2, 4, 8, 16, 64], help="tokens a forward, 1 first")
    parser.add_argument("--context", type=int, default=300, help="tokens in the cache")
    parser.add_argument("--blocks", type=int, default=9, help="turns of each way")
    parser.add_argument("--rounds", type=int, default=4, help="forwards of each width in a turn")
    given = parser.parse_intermixed_args()
    job = job_of(["method=[]", *given.overrides])
    model = load_model(job.card, **model_options(job.config))
    torch.set_num_threads(job.config.model.threads or torch.get_num_threads())
    engines = [FastEngine(model, job.card.context, frozenset(), 256, options=FastOptions(compiled=compiled))
               for compiled in (True, False, True)]  # fmt: skip
    if engines[0].compiled is None:
        raise InputError(f"model={job.card.name}: there is no compiled forward, {engines[0].describe_forward()}")
    device = torch.device("cpu")
    benches = [Bench(engine, device, len(engine.compact.embedding)) for engine in engines]
    drafts = [Draft.chain(benches[0].ids(fed - 1)) if fed > 1 else EMPTY for fed in given.fed]
    blocks = [[np.median(bench.visit(drafts, given.context, given.rounds, Needs()), axis=0)[:, 0] for bench in benches]
              for _ in range(given.blocks)]  # fmt: skip
    ours, torchs, again = np.median(blocks, axis=0)
    read = measure_ceilings(device, engines[0].dtype).read_gb_s
    bound_ms = 1e3 * sum(each.nbytes for each in model.parameters()) / (read * 1e9)
    lines = [COLUMNS, "|--:" * COLUMNS.count(" | ") + "|--:|"]
    for place, fed in enumerate(given.fed):
        lines.append(
            f"| {fed} | {torchs[place] / ours[place]:.2f} | {again[place] / ours[place]:.2f} |"
            f" {ours[place] / ours[0]:.2f} | {torchs[place] / torchs[0]:.2f} | {bound_ms / ours[place]:.2f} |"
        )
    print(*lines, sep="\n")
    print(f"{job.card.name}, {job.card.dtype}, {torch.get_num_threads()} threads, {given.context} tokens of context")


if __name__ == "__main__":
    sys.exit(main())
