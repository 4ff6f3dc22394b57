"""Chooses the engine that runs a loaded model, and how GPUs share it: by tensor parallelism or
layer after layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from specbench.models.eager.engine import EagerEngine
from specbench.models.engine import Engine
from specbench.models.facade import ModelCard
from specbench.models.family import find_head_size, find_windows
from specbench.models.fast.attention import (
    FUSED,
    OURS,
    SDPA,
    FastOptions,
    explain_unusable,
    require_attention,
)
from specbench.models.fast.compact import explain_unfit, explain_unsupported
from specbench.models.fast.core import STANDARD
from specbench.models.fast.engine import STANDING, FastEngine
from specbench.models.replay import TimedEager, TimedFast
from specbench.models.tensor_parallel.share import explain_uneven
from specbench.records.record import EngineKind
from specbench.types import InputError

AUTO, TENSOR, PIPELINE = "auto", "tensor", "pipeline"
WAYS = (AUTO, TENSOR, PIPELINE)
# after the context, of the trees that draft models are checked with: more than the rows of a
# forward
NODES = 100
SHARED = (EngineKind.AUTO, EngineKind.FAST)  # engines that can run on several ranks


def make_engine(
    kind: str,
    model: Any,
    card: ModelCard,
    max_nodes: int,
    attention: str,
    options: FastOptions = STANDARD,
) -> tuple[Engine, str | None, str | None]:
    """Make the engine; returns it, the reason if it is not fast and ``eager`` was not requested,
    and a note.

    The note: see ``choose_attention``.
    kind: auto, fast, eager or timed. attention: ``model.attention``. options: of the fast engine.
    Raises InputError if kind is fast and the fast engine cannot run the model, or if the chosen
    engine lacks the attention of the options.
    """
    timed = kind == EngineKind.TIMED
    reason = None if kind == EngineKind.EAGER else _explain_unfit(model, attention)
    if kind == EngineKind.FAST and reason:
        raise InputError(
            f"engine.kind=fast: cannot drive model={card.name}, {reason}; expected engine=eager or"
            " auto"
        )
    if options.attention not in (AUTO, SDPA) and reason and not timed:
        raise InputError(
            f"engine.attention={options.attention}: is the fast engine's, which cannot drive"
            f" model={card.name}, {reason}; expected engine.attention=sdpa"
        )
    given = model, card.context, card.eos, max_nodes
    if kind == EngineKind.EAGER or reason:
        return (TimedEager if timed else EagerEngine)(*given), reason, None
    options, note = choose_attention(options, card, max_nodes, model)
    return (TimedFast if timed else FastEngine)(*given, options=options), None, note


def choose_attention(
    options: FastOptions, card: ModelCard, max_nodes: int, model: Any = None
) -> tuple[FastOptions, str | None]:
    """Return options of the fast engine with an attention instead of ``auto``, and a note if a GPU
    has SDPA.

    On a GPU it is ``fused`` if our kernels pass their check on the model's shapes. model: None =
    shared by ranks, each of which checks its share, so that ``auto`` stays.
    """
    if options.attention != AUTO:
        return options, None
    if not card.device.startswith("cuda"):
        return replace(options, attention=SDPA), None
    return (
        take_fused(options, explain_unfused(model, card.context, max_nodes + 1))
        if model
        else (options, None)
    )


def take_fused(options: FastOptions, reason: str | None) -> tuple[FastOptions, str | None]:
    """Return options with ``fused``, or with SDPA and a note if there is a reason against
    ``fused``.
    """
    if reason:
        return replace(options, attention=SDPA), f"engine.attention=auto chose {SDPA}: {reason}"
    return replace(options, attention=FUSED), None


def choose_for_draft(attention: str, model: Any, context: int, rows: int) -> tuple[str, str | None]:
    """Return the attention of a draft model, and a note if it is SDPA although the target has our
    kernels.

    attention: of the target. The rest: see ``explain_unfused``.
    """
    if attention not in OURS:
        return SDPA, None
    reason = explain_unfused(model, context, rows, NODES)
    return (
        SDPA if reason else attention,
        reason and f"the draft model has engine.attention={SDPA}: {reason}",
    )


def explain_unfused(model: Any, context: int, rows: int, columns: int | None = None) -> str | None:
    """Explain why ``fused`` is not for a loaded model, or a rank's share of one; None = the kernels
    pass their check.

    context: [tokens]. rows: of the largest forward. columns: nodes of a draft model's tree, see
    ``AttentionCase``.
    """
    weight, text, layer = (
        model.get_input_embeddings().weight,
        model.config.get_text_config(),
        model.model.layers[0],
    )
    size, heads, key_heads = (
        find_head_size(text),
        text.num_attention_heads,
        text.num_key_value_heads,
    )
    if reason := explain_unusable(
        FUSED, weight.device.type, str(weight.dtype).removeprefix("torch."), size
    ):
        return reason
    from specbench.models.fast.kernels import judge  # needs Triton, which may not be installed

    windows = [
        window if window and window < context else None
        for window in find_windows(model.config).values()
    ]
    cases = judge.list_few(
        weight.dtype, key_heads, heads // key_heads, size, windows,
        [n for n in (1, 8, 64) if n <= rows], text.hidden_size, layer.mlp.down_proj.weight.shape[1],
        min(STANDING, context) + rows + 1, len(model.get_output_embeddings().weight),
        any(name.endswith("bias") for name in layer.self_attn.state_dict()), columns,
    )  # fmt: skip
    try:
        with torch.inference_mode():
            fault = judge.find_fault_once(cases, weight.device)
    except Exception as error:
        # of the compiler or the driver: no reason to end a run that did not ask for kernels
        if weight.is_cuda:
            # ends it if the error has ended the GPU's context
            torch.cuda.synchronize(weight.device)
        first, *_ = f"{type(error).__name__}: {error}".splitlines()
        return f"the check of the kernels failed, {first}"
    return fault and f"the kernels are wrong here, {fault}"


def check_attention(way: str, engine: str, card: ModelCard) -> None:
    """Raise InputError if the run's engine does not have this attention (``engine.attention``)."""
    if way == AUTO:
        return
    if way != SDPA and engine in (EngineKind.EAGER, EngineKind.REPLAY):
        raise InputError(
            f"engine.attention={way}: is the fast engine's, got engine.kind={engine}; expected"
            " engine=fast, or engine.attention=sdpa"
        )
    require_attention(way, card.device, card.dtype)


def _explain_unfit(model: Any, attention: str) -> str | None:
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1:
        return f"its layers are on {len(devices)} devices"
    if attention != "sdpa":
        return f"model.attention={attention} asks for the library's own attention"
    return explain_unfit(model)


def choose_parallelism(
    card: ModelCard,
    *,
    parallel: str,
    gpus: int | None,
    engine: str,
    attention: str,
    peers: Sequence[str],
) -> tuple[str | None, str | None]:
    """Return (tensor, pipeline, or None for one device; the reason if ``auto`` did not choose
    tensor).

    peers: names of the run's methods with their own decoding loops. Raises InputError if settings
    contradict.
    """
    if parallel not in WAYS:
        raise InputError(f"model.parallel={parallel}: expected one of {', '.join(WAYS)}")
    ranks = gpus or 1
    if ranks == 1:
        if parallel != AUTO:
            raise InputError(
                f"model.parallel={parallel}: is for several GPUs, model.gpus={gpus}; expected 2"
                " to 4"
            )
        return None, None
    reason = _obstacle(card, ranks, engine, attention, peers)
    if parallel == TENSOR or (parallel == AUTO and engine == EngineKind.FAST):
        if reason:
            raise InputError(f"model.gpus={gpus} by model.parallel=tensor: {reason}")
        return TENSOR, None
    if engine == EngineKind.FAST:
        raise InputError(
            "model.parallel=pipeline with engine=fast: expected engine=eager, or"
            " model.parallel=tensor"
        )
    if parallel == AUTO and reason is None:
        return TENSOR, None
    if card.device == "cpu":
        raise InputError(
            f"model.gpus={gpus} on model.device=cpu: layers are spread over GPUs only, and for"
            f" tensor parallelism {reason or 'model.parallel=tensor is expected'}"
        )
    return PIPELINE, reason


def _obstacle(
    card: ModelCard, ranks: int, engine: str, attention: str, peers: Sequence[str]
) -> str | None:
    """Explain why tensor parallelism is not possible, and the fix; None = it is possible."""
    if engine not in SHARED:
        return f"engine={engine} cannot run on several ranks; expected engine=fast or auto"
    if attention != "sdpa":
        return f"model.attention={attention} asks for the library's own attention; expected sdpa"
    if family := explain_unsupported(card.config):
        return f"{card.name}: {family}; expected model.parallel=pipeline"
    if uneven := explain_uneven(card.config, ranks):
        return f"{card.name}: {uneven}; expected another model.gpus, or model.parallel=pipeline"
    if peers:
        named = ", ".join(f"method.{name}" for name in peers)
        return (
            f"{named} decodes with the library's own model, which no process holds; leave it out"
            " (method=[...])"
        )
    return None
