"""Shared parts of the lab's commands: loaded engines, random models, generated tokens, turns, and Markdown tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.decode.loop import Request
from specbench.decode.together import SharedRequest
from specbench.method import Method
from specbench.models.choose import make_engine
from specbench.models.engine import Engine
from specbench.models.load import load_model

if TYPE_CHECKING:
    from specbench.runs.job import Job

MIB = 1 << 20
Result = TypeVar("Result")


def load_target(overrides: Sequence[str]) -> tuple[Job, Any]:
    """Return the checked job of settings as ``specbench`` takes them, and its model; sets the number of threads."""
    from specbench.runs.job import job_of  # here, as a GPU day uses the other functions without Hydra
    from specbench.runs.sources import model_options

    job = job_of(overrides)
    torch.set_num_threads(job.config.model.threads or torch.get_num_threads())
    return job, load_model(job.source.card, **model_options(job.config))


def load_engine(overrides: Sequence[str], max_nodes: int) -> tuple[Job, Any, Engine]:
    """Return the job and the model of settings, and its engine for drafts of at most ``max_nodes``."""
    job, model = load_target(overrides)
    return (
        job,
        model,
        make_engine(job.config.engine.kind, model, job.source.card, max_nodes, job.config.model.attention)[0],
    )


def random_model(family: str, sizes: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> Any:
    """Make a seeded causal LM with random weights directly on the device."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **sizes)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


def take_turns(calls: Sequence[Callable[[], Result]], rounds: int, turned: bool = False) -> list[list[Result]]:
    """Make all calls in every round, in an order by which a drift of the machine affects them alike.

    Two calls are made in the order A B, B A, B A, A B, and so on: in every two rounds, forwards and backwards.

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


def timed(call: Callable[[], Result]) -> tuple[Result, float, float]:
    """Return the result of a call, its wall time, and the processor time of all threads of this process [s]."""
    start, start_cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - start, time.process_time() - start_cpu


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the shared server (``specbench.decode.together.Question``)."""

    method: Method
    asked: Request

    def request(self) -> Request:
        """Return the request."""
        return self.asked

    def close(self, shared: SharedRequest) -> None:
        """End it; raises the request's error."""
        if shared.error is not None:
            raise shared.error


def repeating_tokens(count: int, vocab: int, seed: int = 0) -> list[int]:
    """Return (count,) ids that repeat as text does: new tokens by Zipf's law, and phrases copied from earlier text.

    A phrase has 8 tokens on average (geometric); three of five are copied, half of those from the last 1000 tokens.
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


def table_lines(columns: Sequence[str], rows: Iterable[Iterable[object]], left: Collection[int]) -> Iterable[str]:
    """Yield the lines of a Markdown table. left: the numbers of the columns of text, which are aligned to the left."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'|'.join('---' if place in left else '--:' for place in range(len(columns)))}|"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def print_table(columns: Sequence[str], rows: Iterable[Iterable[object]], left: Collection[int] = (0,)) -> None:
    """Print a Markdown table row by row, while ``rows`` is still being computed."""
    for line in table_lines(columns, rows, left):
        print(line, flush=True)
