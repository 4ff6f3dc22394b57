"""Which engine drives a loaded model: the fast one where it can, the eager one everywhere."""

from __future__ import annotations

from typing import Any

import torch

from specbench.target.eager.engine import EagerEngine
from specbench.target.engine import Engine
from specbench.target.facade import ModelCard
from specbench.target.fast.compact import unfit
from specbench.target.fast.engine import FastEngine
from specbench.target.timed import TimedEager, TimedEngine, TimedFast
from specbench.types import InputError

SMALL = 32_000_000  # parameters below which more than one CPU thread costs more than it brings


def make_engine(
    kind: str, model: Any, card: ModelCard, max_nodes: int, attention: str, pack: bool = True
) -> tuple[Engine, str | None]:
    """The engine, and why ``auto`` did not choose the fast one where it did not.

    kind: auto | fast | eager. attention: the library's kind that was asked for. pack: see
    ``FastEngine``. Raises InputError where fast cannot.
    """
    reason = None if kind == "eager" else _unsupported(model, attention)
    if kind == "fast" and reason:
        raise InputError(f"engine.kind=fast: cannot drive model={card.name}, {reason}; expected engine=eager or auto")
    if kind == "eager" or reason:
        return EagerEngine(model, card.context, card.eos, max_nodes), reason
    return FastEngine(model, card.context, card.eos, max_nodes, pack=pack), None


def make_timed(
    model: Any, card: ModelCard, max_nodes: int, attention: str, pack: bool = True
) -> tuple[TimedEngine, str | None]:
    """The engine that follows a record, fast where that one can drive the model; and why it is not where it is not."""
    reason = _unsupported(model, attention)
    if reason:
        return TimedEager(model, card.context, card.eos, max_nodes), reason
    return TimedFast(model, card.context, card.eos, max_nodes, pack=pack), None


def _unsupported(model: Any, attention: str) -> str | None:
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1:
        return f"its layers lie on {len(devices)} devices"
    if attention != "sdpa":
        return f"model.attention={attention} asks for the library's own attention"
    return unfit(model)


def threads_for(model: Any) -> int | None:
    """CPU threads to decode with: one for a model so small that waking a second costs more; None = torch's choice."""
    parameters = list(model.parameters())
    if parameters[0].device.type == "cpu" and sum(each.numel() for each in parameters) < SMALL:
        return 1
    return None


def use_threads(model: Any, asked: int | None) -> None:
    """Set torch's thread count for this run; what was asked for has been set already."""
    chosen = threads_for(model) if asked is None else None
    if chosen is not None:
        torch.set_num_threads(chosen)
