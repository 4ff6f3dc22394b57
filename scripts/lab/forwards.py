"""Compare two ways to compute a draft's forward on a CPU: compiled code, and torch's operations.

    python -m scripts.lab forwards model=tiny
    python -m scripts.lab forwards model=random_110m model.dtype=bfloat16 --fed 1,8 --blocks 4

The first arguments are those of ``specbench``. Both ways, and the compiled one a second time as the control, take
turns on one loaded model; the figures are medians of the blocks.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

import numpy as np
import torch

from scripts.lab.materials import load_target, print_table
from specbench.decode.latency import Bench, measure_ceilings
from specbench.input import whole_numbers
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.engine import FastEngine
from specbench.types import EMPTY, Draft, InputError, Needs


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print one row per number of tokens fed."""
    parser.add_argument("overrides", nargs="*", help="of specbench: model=..., model.dtype=..., model.threads=...")
    parser.add_argument("--fed", type=whole_numbers, default=[1, 2, 4, 8, 16, 64], help="tokens a forward, 1 first")
    parser.add_argument("--context", type=int, default=300, help="tokens in the cache")
    parser.add_argument("--blocks", type=int, default=9, help="turns of each way")
    parser.add_argument("--rounds", type=int, default=4, help="forwards of each width in a turn")
    given = parser.parse_intermixed_args(arguments)
    job, model = load_target(["method=[]", *given.overrides])
    engines = [FastEngine(model, job.source.card.context, frozenset(), 256, options=FastOptions(compiled=compiled))
               for compiled in (True, False, True)]  # fmt: skip
    if engines[0].compiled is None:
        raise InputError(f"model={job.source.card.name}: there is no compiled forward, {engines[0].describe_forward()}")
    device = torch.device("cpu")
    benches = [Bench(engine, device, len(engine.compact.embedding)) for engine in engines]
    drafts = [Draft.chain(benches[0].ids(fed - 1)) if fed > 1 else EMPTY for fed in given.fed]
    blocks = [[np.median(bench.visit(drafts, given.context, given.rounds, Needs()), axis=0)[:, 0] for bench in benches]
              for _ in range(given.blocks)]  # fmt: skip
    compiled, plain, again = np.median(blocks, axis=0)
    read = measure_ceilings(device, engines[0].dtype).read_gb_s
    bound_ms = 1e3 * sum(each.nbytes for each in model.parameters()) / (read * 1e9)
    columns = ("tokens fed", "torch / compiled", "control", "compiled: T(q) / T(1)", "torch: T(q) / T(1)",
               "share of the bound")  # fmt: skip
    figures = (plain / compiled, again / compiled, compiled / compiled[0], plain / plain[0], bound_ms / compiled)
    rows = ([fed, *(f"{figure:.2f}" for figure in row)] for fed, *row in zip(given.fed, *figures, strict=True))
    print_table(columns, rows, left=())
    about = f"{job.source.card.name}, {job.source.card.dtype}, {torch.get_num_threads()} threads"
    print(f"{about}, {given.context} tokens of context")
