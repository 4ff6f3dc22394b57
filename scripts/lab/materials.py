"""What several commands of the lab use: loaded engines, random models, generated tokens, rows of Markdown tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.models.choose import make_engine
from specbench.models.engine import Engine
from specbench.models.load import load_model

if TYPE_CHECKING:
    from specbench.runs.job import Job

MIB = 1 << 20


def load_engine(overrides: Sequence[str], max_nodes: int) -> tuple[Job, Any, Engine]:
    """Load a model and its engine by the settings of ``specbench``, which also set the number of threads.

    Args:
        overrides: settings as the command ``specbench`` takes them.
        max_nodes: the nodes of the largest draft.

    Returns:
        The checked job, the model and its engine.
    """
    from specbench.runs.job import job_of  # here, as a GPU day uses the other functions without Hydra
    from specbench.runs.sources import model_options

    job = job_of(overrides)
    torch.set_num_threads(job.config.model.threads or torch.get_num_threads())
    model = load_model(job.source.card, **model_options(job.config))
    engine, _ = make_engine(job.config.engine.kind, model, job.source.card, max_nodes, job.config.model.attention)
    return job, model, engine


def random_model(family: str, sizes: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> Any:
    """Make a seeded causal LM with random weights on the device itself."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **sizes)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


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


def print_head(*columns: str, left: Collection[int] = (0,)) -> None:
    """Print the first two lines of a Markdown table. left: numbers of the columns of text."""
    marks = ["---" if place in left else "--:" for place in range(len(columns))]
    print(f"| {' | '.join(columns)} |\n|{'|'.join(marks)}|")


def print_row(*cells: object) -> None:
    """Print a line of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
