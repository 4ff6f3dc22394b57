"""The bench of the labs: models and engines, generated tokens, turns, and Markdown tables."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from specbench.models.choose import make_engine
from specbench.models.engine import Engine
from specbench.models.load import load_model
from specbench.runs.job import Job, job_of
from specbench.runs.sources import model_options

Result = TypeVar("Result")
Calls = Sequence[Callable[[], Result]]
Rows = Iterable[Iterable[object]]


def add_overrides(parser: ArgumentParser, *default: str) -> None:
    """Let a lab take the settings of ``specbench`` as its first arguments."""
    settings = "settings of specbench: model=..., engine=..., model.threads=..."
    parser.add_argument("overrides", nargs="*", default=[*default], help=settings)


def load_target(overrides: Sequence[str]) -> tuple[Job, Any]:
    """Return the checked job of settings of ``specbench`` and its model; sets the threads."""
    job = job_of(overrides)
    torch.set_num_threads(job.config.model.threads or torch.get_num_threads())
    return job, load_model(job.source.card, **model_options(job.config))


def load_engine(overrides: Sequence[str], max_nodes: int) -> tuple[Job, Any, Engine]:
    """Return the job and the model of settings, and its engine for drafts up to ``max_nodes``."""
    job, model = load_target(overrides)
    kind, attention = job.config.engine.kind, job.config.model.attention
    return job, model, make_engine(kind, model, job.source.card, max_nodes, attention)[0]


def take_turns(calls: Calls[Result], rounds: int, turned: bool = False) -> list[list[Result]]:
    """Make all calls in every round, in an order by which a drift affects them alike.

    Two calls are made in the order A B, B A, B A, A B, and so on: forwards and backwards.

    Args:
        calls: A, B, and so on.
        rounds: How often each is made.
        turned: Begin backwards.

    Returns:
        The results: a list per round, in the order of ``calls``.
    """
    found = []
    for number in range(rounds):
        places = list(range(len(calls)))
        backwards = ((number + 1) // 2 + turned) % 2
        results = {place: calls[place]() for place in (places[::-1] if backwards else places)}
        found.append([results[place] for place in places])
    return found


def repeating_tokens(count: int, vocab: int, seed: int = 0) -> list[int]:
    """Return (count,) ids that repeat as text does: tokens by Zipf's law, and copied phrases.

    A phrase has 8 tokens on average (geometric); three of five are copied from earlier text, half
    of those from the last 1000 tokens.
    """
    random = np.random.default_rng(seed)
    law = 1 / np.arange(1, vocab + 1)
    law = np.cumsum(law / law.sum())
    text: list[int] = []
    while len(text) < count:
        span = int(random.geometric(1 / 8))
        if len(text) > span and random.random() < 0.6:
            low = max(0, len(text) - 1000) if random.random() < 0.5 else 0
            start = int(random.integers(low, len(text) - span + 1)) if low < len(text) - span else 0
            text += text[start : start + span]
        else:
            text += np.minimum(np.searchsorted(law, random.random(span)), vocab - 1).tolist()
    return text[:count]


def print_table(columns: Sequence[str], rows: Rows, left: Collection[int] = (0,)) -> None:
    """Print a Markdown table row by row, while ``rows`` is still being computed.

    left: the numbers of the columns of text, which are aligned to the left.
    """
    marks = ("---" if place in left else "--:" for place in range(len(columns)))
    print(f"| {' | '.join(columns)} |\n|{'|'.join(marks)}|")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)
