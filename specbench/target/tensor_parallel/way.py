"""How several GPUs share a model: tensor (all of them in every layer), or pipeline (layer after layer)."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.target.facade import ModelCard
from specbench.target.fast.compact import unsupported
from specbench.target.tensor_parallel.shard import ShardShape
from specbench.types import InputError

AUTO, TENSOR, PIPELINE = "auto", "tensor", "pipeline"
WAYS = (AUTO, TENSOR, PIPELINE)
FAST = ("auto", "fast")  # engines that tensor parallelism belongs to


def way_of(
    card: ModelCard, *, parallel: str, gpus: int | None, engine: str, attention: str, peers: Sequence[str]
) -> tuple[str | None, str | None]:
    """(tensor, pipeline, or None for one device; why ``auto`` did not choose tensor).

    peers: names of the run's methods with loops of their own. Raises InputError for what cannot be.
    """
    if parallel not in WAYS:
        raise InputError(f"model.parallel={parallel}: expected one of {', '.join(WAYS)}")
    ranks = gpus or 1
    if ranks == 1:
        if parallel != AUTO:
            raise InputError(f"model.parallel={parallel}: is for several GPUs, model.gpus={gpus}; expected 2 to 4")
        return None, None
    reason = _obstacle(card, ranks, engine, attention, peers)
    if parallel == TENSOR or (parallel == AUTO and engine == "fast"):
        if reason:
            raise InputError(f"model.gpus={gpus} by model.parallel=tensor: {reason}")
        return TENSOR, None
    if engine == "fast":
        raise InputError("model.parallel=pipeline with engine=fast: expected engine=eager, or model.parallel=tensor")
    if parallel == AUTO and reason is None:
        return TENSOR, None
    if card.device == "cpu":
        raise InputError(
            f"model.gpus={gpus} on model.device=cpu: layers are spread over GPUs only, and for tensor parallelism"
            f" {reason or 'model.parallel=tensor is expected'}"
        )
    return PIPELINE, reason


def _obstacle(card: ModelCard, ranks: int, engine: str, attention: str, peers: Sequence[str]) -> str | None:
    """Why tensor parallelism is not possible, and what would help; None = it is."""
    if engine not in FAST:
        return f"engine={engine} has no shares; expected engine=fast or auto"
    if attention != "sdpa":
        return f"model.attention={attention} asks for the library's own attention; expected sdpa"
    if family := unsupported(card.config):
        return f"{card.name}: {family}; expected model.parallel=pipeline"
    if uneven := ShardShape.of(card.config).obstacle(ranks):
        return f"{card.name}: {uneven}; expected another model.gpus, or model.parallel=pipeline"
    if peers:
        named = ", ".join(f"method.{name}" for name in peers)
        return f"{named} decodes with the library's own model, which no process holds; leave it out (method=[...])"
    return None
