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

from scripts.lab.bench import add_overrides, load_target, print_table
from specbench.decode.latency import Bench, measure_ceilings
from specbench.input import whole_numbers
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.engine import FastEngine
from specbench.types import EMPTY, Draft, InputError, Needs

WAYS = (True, False, True)  # compiled, torch's operations, and compiled as the control


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print one row per number of tokens fed."""
    add_overrides(parser)
    fed = [1, 2, 4, 8, 16, 64]
    parser.add_argument("--fed", type=whole_numbers, default=fed, help="tokens a forward, 1 first")
    parser.add_argument("--context", type=int, default=300, help="tokens in the cache")
    parser.add_argument("--blocks", type=int, default=9, help="turns of each way")
    parser.add_argument("--rounds", type=int, default=4, help="forwards of each width in a turn")
    given = parser.parse_intermixed_args(arguments)
    job, model = load_target(["method=[]", *given.overrides])
    card, device, benches = job.source.card, torch.device("cpu"), []
    for way in WAYS:
        options = FastOptions(compiled=way)
        engine = FastEngine(model, card.context, frozenset(), 256, options=options)
        if way and engine.compiled is None:
            reason = engine.describe_forward()
            raise InputError(f"model={card.name}: there is no compiled forward, {reason}")
        benches.append(Bench(engine, device, len(engine.compact.embedding)))
    drafts = [Draft.chain(benches[0].ids(count - 1)) if count > 1 else EMPTY for count in given.fed]

    def time_block(bench: Bench) -> np.ndarray:
        return np.median(bench.visit(drafts, given.context, given.rounds, Needs()), axis=0)[:, 0]

    blocks = [[time_block(bench) for bench in benches] for _ in range(given.blocks)]
    compiled, plain, again = np.median(blocks, axis=0)
    read = measure_ceilings(device, engine.dtype).read_gb_s
    bound_ms = 1e3 * sum(each.nbytes for each in model.parameters()) / (read * 1e9)
    figures = {
        "torch / compiled": plain / compiled,
        "control": again / compiled,
        "compiled: T(q) / T(1)": compiled / compiled[0],
        "torch: T(q) / T(1)": plain / plain[0],
        "share of the bound": bound_ms / compiled,
    }
    rows = zip(given.fed, *figures.values(), strict=True)
    cells = ([count, *(f"{figure:.2f}" for figure in row)] for count, *row in rows)
    print_table(("tokens fed", *figures), cells, left=())
    about = f"{card.name}, {card.dtype}, {torch.get_num_threads()} threads"
    print(f"{about}, {given.context} tokens of context")
