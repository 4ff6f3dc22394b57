"""How far rounding moves the logits of one model: between two shapes of forward, two implementations, and from exact.

Differences are root mean squares over all logits, in units of the logits' spread and of half the dtype's epsilon, so
that dtypes and models can be compared.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from scripts.lab.engine_check import random_model
from specbench.decode.walk import Walk
from specbench.models.engine import Silent
from specbench.models.fast.engine import FastEngine
from specbench.types import Needs

SHAPE = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 512, "initializer_range": 256**-0.5, "pad_token_id": 0,
}  # fmt: skip
TOKENS = 96
ROUNDING_HEAD = "library from exact | fast from exact | steps from all at once | fast from library | its largest"


@dataclass(frozen=True, slots=True)
class Rounding:
    """library, fast: from double precision. steps: the library token by token, from all at once. engines: fast from it.

    worst: the largest single difference of ``engines``.
    """

    library: float
    fast: float
    steps: float
    engines: float
    worst: float

    def row(self) -> str:
        """As cells of a Markdown table."""
        return " | ".join(f"{value:.1f}" for value in astuple(self))


@torch.inference_mode()
def measure_rounding(layers: int, dtype: torch.dtype) -> Rounding:
    """The differences for a seeded random Llama of so many layers."""
    model = random_model("llama", SHAPE | {"num_hidden_layers": layers}, dtype, torch.device("cpu"))
    ids = torch.randint(1, SHAPE["vocab_size"], (TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    exact = _at_once(copy.deepcopy(model).double(), ids)
    library, fast = _at_once(model, ids), _fast(model, ids)
    unit = torch.finfo(dtype).eps / 2 * float(exact.std())

    def apart(one: Tensor, other: Tensor) -> float:
        return float((one - other).square().mean().sqrt()) / unit

    worst = float((fast - library).abs().max()) / unit
    return Rounding(
        apart(library, exact), apart(fast, exact), apart(_by_steps(model, ids), library), apart(fast, library), worst
    )


def _at_once(model: Any, ids: Sequence[int]) -> Tensor:
    """(T, V) double."""
    logits: Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].double()
    return logits


def _by_steps(model: Any, ids: Sequence[int]) -> Tensor:
    """(T, V) double, one token a forward."""
    rows, cache = list[Tensor](), None
    for token in ids:
        out = model(input_ids=torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0, -1].double())
    return torch.stack(rows)


def _fast(model: Any, ids: Sequence[int]) -> Tensor:
    """(T, V) double, of the fast engine."""
    vocab = model.config.vocab_size
    top = FastEngine(model, 2 * TOKENS, frozenset(), 8).start(ids, 1, Walk(None, 0), Needs(prompt_topk=vocab), Silent())
    assert top.topk is not None
    return torch.zeros(len(ids), vocab, dtype=torch.float64).scatter_(1, top.topk.ids, top.topk.logits.double())
