"""Time plain steps of several requests that share forwards, against steps of one without a batch.

    python -m scripts.lab batches model=tiny
    python -m scripts.lab batches model=random_110m model.threads=2 --requests 1,2,4,8,16 --nodes 7

The first arguments are those of ``specbench``. One request without a batch, the same again as the
control, and each number of requests take turns on one loaded model; the figures are medians of the
ratios of the turns. The bound is that of one request whose forwards feed as many rows: T(1) / T(q)
times the requests.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from scripts.lab.bench import add_overrides, load_engine, print_table, take_turns
from specbench.decode.walk import Walk
from specbench.input import whole_numbers
from specbench.models.engine import SILENT, Batch, Engine
from specbench.types import Draft, Needs

NEEDS = Needs()
COLUMNS = ("requests", "ms a step", "over one without a batch", "tokens/s over it", "bound")


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print one row per number of requests."""
    add_overrides(parser)
    sizes = [1, 2, 4, 8, 16, 64]
    parser.add_argument("--requests", type=whole_numbers, default=sizes, help="in one batch")
    parser.add_argument("--nodes", type=int, default=0, help="of each draft, a chain never right")
    parser.add_argument("--context", type=int, default=100, help="tokens in the cache of each")
    parser.add_argument("--blocks", type=int, default=15, help="turns of each")
    parser.add_argument("--steps", type=int, default=30, help="in a turn")
    given = parser.parse_intermixed_args(arguments)
    job, model, engine = load_engine(["method=[]", *given.overrides], 64)
    vocab = len(model.get_input_embeddings().weight)
    turns = Turns(engine, vocab, given.context, given.steps)
    print_table(COLUMNS, turns.compare(given.requests, given.nodes, given.blocks), left=())
    card, forward = job.source.card, engine.describe_forward()
    about = f"{card.name}, {card.dtype}, engine={engine.kind.value}: {forward}"
    sizes_of = f"{given.context} tokens of context, drafts of {given.nodes} nodes"
    print(f"{about}, {torch.get_num_threads()} threads, {sizes_of}")


class Turns:
    """Turns of steps on one engine. All drafts are wrong: each request emits about one token per step."""

    def __init__(self, engine: Engine, vocab: int, context: int, steps: int) -> None:
        """Draw tokens. vocab: ids to draw from. context: [tokens] of a prompt. steps: in a turn."""
        self._engine, self._steps = engine, steps
        self._ids = np.random.default_rng(0).integers(0, vocab, 1 << 16)
        self._context, self._answer = context, (engine.max_nodes + 1) * steps + 1

    def _draw(self, count: int, start: int = 0) -> list[int]:
        drawn: list[int] = np.roll(self._ids, -start)[:count].tolist()
        return drawn

    def alone(self, nodes: int) -> float:
        """Return the time [s] per step of one request without a batch, with drafts of ``nodes``."""
        engine, draft, limit = self._engine, Draft.chain(self._draw(nodes)), self._answer
        engine.reserve(self._context + limit)
        engine.start(self._draw(self._context), limit, Walk(None, 0), NEEDS, SILENT)
        start = time.perf_counter()
        for _ in range(self._steps):
            engine.forward(draft)
            engine.settle(limit)
        return (time.perf_counter() - start) / self._steps

    def together(self, batch: Batch, nodes: int) -> float:
        """Return the time [s] per step of a batch with all its requests."""
        handles = []
        for number in range(batch.requests):
            prompt = self._draw(self._context, number)
            handles.append(batch.open(prompt, batch.tokens - self._context, Walk(None, 0), NEEDS))
            batch.prefill(handles[-1])
        drafts = [Draft.chain(self._draw(nodes)) for _ in handles]
        start = time.perf_counter()
        for _ in range(self._steps):
            batch.forward(handles, drafts)
            batch.settle()
        seconds = time.perf_counter() - start
        for handle in handles:
            batch.close(handle)
        return seconds / self._steps

    @torch.inference_mode()
    def compare(self, sizes: Sequence[int], nodes: int, blocks: int) -> list[list[object]]:
        """Return the rows of the table."""
        room = min(self._context + self._answer, self._engine.context)
        fed = [min(size * (1 + nodes), self._engine.max_nodes + 1) - 1 for size in sizes]
        calls: list[Callable[[], float]] = []
        calls += [partial(self.alone, count) for count in (nodes, nodes, *fed)]
        calls += [partial(self.together, self._engine.batch(size, room), nodes) for size in sizes]
        own, again, *others = np.array(take_turns(calls, blocks)).T
        rows: list[list[object]] = [
            ["without", f"{1e3 * np.median(own):.3f}", 1, 1, ""],
            ["control", f"{1e3 * np.median(again):.3f}", f"{np.median(again / own):.3f}", "", ""],
        ]
        for place, size in enumerate(sizes):
            wide, steps = others[place], others[len(sizes) + place]
            ratio = np.median(steps / own)
            fits = size * (1 + nodes) == fed[place] + 1
            bound = f"{np.median(size * own / wide):.2f}" if fits else ""
            time_ms = f"{1e3 * np.median(steps):.3f}"
            rows.append([size, time_ms, f"{ratio:.3f}", f"{size / ratio:.2f}", bound])
        return rows
