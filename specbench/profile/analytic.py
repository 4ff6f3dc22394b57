"""Latency profiles of common pairs of GPU and model, from datasheets: what a forward must read and
compute.

    T = (bytes / bandwidth + operations / peak) / EFFICIENCY + all-reduces

Reading and computing are added, not overlapped, and both reach the same share of the datasheet, as
in the one published fit at hand (Llama-3.1-8B on an H100); ``error_of`` computes the distance to
it. For any other pair the error is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from specbench.input import InputError
from specbench.profile.profile import ANALYTIC, Fit, Floats, ModelShape, Profile

EFFICIENCY = 0.75  # of bandwidth and of peak
HOST_MS = 1.2  # a step's, as in the published fit
FULL = 0.85  # of the memory, that weights may take
MOST_GPUS = 8
VALUE_BYTES = 2
_SPAN, _CONTEXT = 128, 1000  # tokens over which the slopes are taken
_PAIR = re.compile(r"(?P<gpu>[\w.]+?)(?:x(?P<count>[1248]))?[-/](?P<model>[\w.]+)")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its datasheet. memory_gb; gb_s: of memory; tflop_s: dense, 16 bit; link_gb_s,
    link_us: of an all-reduce.

    link_us is not from a datasheet: it is about what NCCL takes for a few KB, over NVLink and over
    PCIe.
    """

    name: str
    memory_gb: float
    gb_s: float
    tflop_s: float
    link_gb_s: float
    link_us: float


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "rtx4090": Gpu("RTX 4090", 24, 1008, 165.2, 32, 20),
        "a10": Gpu("A10", 24, 600, 125, 32, 20),
        "l4": Gpu("L4", 24, 300, 121, 32, 20),
        "a100": Gpu("A100 80GB SXM", 80, 2039, 312, 300, 10),
        "h100": Gpu("H100 SXM", 80, 3350, 989, 450, 10),
        "h200": Gpu("H200 SXM", 141, 4800, 989, 450, 10),
    }
)
# Name, hidden, inner, vocab, layers, heads, kv_heads, head_dim, and whether head and embedding are
# one matrix.
MODELS: Mapping[str, tuple[str, int, int, int, int, int, int, int, bool]] = MappingProxyType(
    {
        "1b": ("Llama-3.2-1B", 2048, 8192, 128256, 16, 32, 8, 64, True),
        "8b": ("Llama-3.1-8B", 4096, 14336, 128256, 32, 32, 8, 128, False),
        "32b": ("Qwen2.5-32B", 5120, 27648, 152064, 64, 40, 8, 128, False),
        "70b": ("Llama-3.1-70B", 8192, 28672, 128256, 80, 64, 8, 128, False),
    }
)


def shape_of(model: str) -> tuple[str, ModelShape, int]:
    """Name, shape and number of parameters of one of ``MODELS``."""
    name, hidden, inner, vocab, layers, heads, kv_heads, head_dim, tied = MODELS[model]
    attention = 2 * hidden * head_dim * (heads + kv_heads)
    streamed = layers * (attention + 3 * hidden * inner + 2 * hidden) + vocab * hidden + hidden
    shape = ModelShape(
        streamed, hidden, inner, vocab, layers, heads, kv_heads, head_dim, VALUE_BYTES
    )
    return name, shape, streamed + (0 if tied else vocab * hidden)


def gpus_needed(gpu: str, model: str) -> int:
    """The fewest that hold the weights, a power of two. Raises InputError where ``MOST_GPUS`` do
    not.
    """
    weights_gb = VALUE_BYTES * shape_of(model)[2] / 1e9
    count = 1
    while weights_gb > FULL * count * GPUS[gpu].memory_gb:
        count *= 2
    if count > MOST_GPUS:
        raise InputError(
            f"{gpu}-{model}: {weights_gb:.0f} GB of weights need more than {MOST_GPUS} of {gpu}"
        )
    return count


def analytic_profile(gpu: str, model: str, count: int | None = None) -> Profile:
    """The profile of a pair. count: of GPUs, by tensor parallelism; default the fewest that hold
    it.

    Raises InputError for one that is not in the tables, or too few GPUs.
    """
    for key, known, given in (("gpu", GPUS, gpu), ("model", MODELS, model)):
        if given not in known:
            raise InputError(
                f"{key} {given}: no such {key} in the table; expected one of {', '.join(known)}"
            )
    needed = gpus_needed(gpu, model)
    count = count or needed
    if count < needed:
        raise InputError(
            f"{gpu}-{model}: {count} do not hold the weights; expected at least {needed}"
        )
    card, (name, shape, parameters) = GPUS[gpu], shape_of(model)
    base, fed, context = _forward_ms(
        card, shape, count, np.array([0.0, _SPAN, 0]), np.array([0.0, 0, _CONTEXT])
    )
    fit = Fit(
        float(base),
        float(fed - base) * 1e3 / _SPAN,
        float(context - base) * 1e3 / _CONTEXT,
        HOST_MS,
    )
    source = (
        f"datasheet: {card.gb_s:g} GB/s and {card.tflop_s:g} TFLOP/s at {EFFICIENCY:.0%}, no"
        f" overlap; host {HOST_MS} ms"
    )
    shared = f", {count} by tensor" if count > 1 else ""
    return Profile(
        card.name + shared, name, "analytic", "bfloat16", ANALYTIC, fit, "", source, parameters
    )


def find_pair(text: str) -> Profile | None:
    """The profile that 'h100-8b' or 'h100x2-70b' names; None if the text has another form."""
    found = _PAIR.fullmatch(text.lower())
    if not found or found["gpu"] not in GPUS or found["model"] not in MODELS:
        return None
    return analytic_profile(
        found["gpu"], found["model"], int(found["count"]) if found["count"] else None
    )


def error_of(profile: Profile, other: Profile, fed: float, context: float) -> float:
    """One profile's step over another's at a point, less 1."""
    return float(profile.step_ms([fed], [context])[0] / other.step_ms([fed], [context])[0]) - 1


def _forward_ms(card: Gpu, shape: ModelShape, count: int, fed: Floats, context: Floats) -> Floats:
    """[ms] (S,) of a forward on ``count`` of a GPU: two all-reduces per layer, of the tokens
    fed.
    """
    reading = shape.bytes_read(fed, context) / (card.gb_s * 1e9 * count)
    computing = shape.operations(fed, context) / (card.tflop_s * 1e12 * count)
    sent = 2 * (count - 1) / count * fed * shape.hidden * VALUE_BYTES / (card.link_gb_s * 1e9)
    reducing = 2 * shape.layers * (card.link_us * 1e-6 + sent) if count > 1 else 0.0
    return np.asarray(1e3 * ((reading + computing) / EFFICIENCY + reducing))
