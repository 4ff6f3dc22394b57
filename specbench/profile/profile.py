"""A latency profile: how long a forward takes by tokens fed and context, on which machine, and its
ceilings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BeforeValidator, Field

from specbench.input import InputError
from specbench.names import file_name
from specbench.records.record import EXACT, Amount

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Positive = Annotated[float, Field(gt=0, le=1e18)]


@dataclass(frozen=True, slots=True)
class Grid:
    """Medians of a sweep. fed: (F,) tokens a forward, from 1 up. contexts: (C,) tokens in the
    cache, ascending.

    ms: (C, F) the target's forward. host_ms: (C, F) the rest of the engine's step. spread: (C, F)
    half the interquartile range of ``ms`` over its median.
    """

    fed: Floats
    contexts: Floats
    ms: Floats
    host_ms: Floats
    spread: Floats

    def forward_ms(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """[ms] at (S,) tokens fed and (S,) context; beyond the grid the edge continues
        (``outside``).
        """
        return self._at(self.ms, fed, context)

    def rest_ms(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """[ms] The engine's own time in addition to the forward."""
        return self._at(self.host_ms, fed, context)

    def outside(self, fed: ArrayLike, context: ArrayLike) -> Mask:
        """True if nothing was measured on both sides of the point."""
        rows, columns = np.asarray(context, dtype=np.float64), np.asarray(fed, dtype=np.float64)
        beyond = (columns < self.fed[0]) | (columns > self.fed[-1])
        return np.asarray(beyond | (rows < self.contexts[0]) | (rows > self.contexts[-1]))

    def _at(self, values: Floats, fed: ArrayLike, context: ArrayLike) -> Floats:
        """Interpolate bilinearly; above the grid the last slope continues but never falls, below it
        the edge counts.
        """
        columns = np.maximum(np.asarray(fed, dtype=np.float64), self.fed[0])
        rows = np.maximum(np.asarray(context, dtype=np.float64), self.contexts[0])
        inside = _bilinear(
            values,
            self.contexts,
            self.fed,
            np.minimum(rows, self.contexts[-1]),
            np.minimum(columns, self.fed[-1]),
        )
        return np.maximum(_bilinear(values, self.contexts, self.fed, rows, columns), inside)


@dataclass(frozen=True, slots=True)
class Fit:
    """base_ms + per_fed_us * fed + per_context_us * context, and ``host_ms`` per step in
    addition.
    """

    base_ms: Positive
    per_fed_us: Amount
    per_context_us: Amount
    host_ms: Amount

    def forward_ms(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """[ms] at (S,) tokens fed and (S,) context."""
        work = self.per_fed_us * np.asarray(fed, dtype=np.float64)
        read = self.per_context_us * np.asarray(context, dtype=np.float64)
        return self.base_ms + 1e-3 * (work + read)

    def rest_ms(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """[ms] The same for every step."""
        return np.full(np.broadcast(np.asarray(fed), np.asarray(context)).shape, self.host_ms)

    def outside(self, fed: ArrayLike, context: ArrayLike) -> Mask:
        """False everywhere: a publication does not give the range that it fitted."""
        return np.zeros(np.broadcast(np.asarray(fed), np.asarray(context)).shape, dtype=np.bool_)


def _bilinear(values: Floats, rows: Floats, columns: Floats, row: Floats, column: Floats) -> Floats:
    """values: (R, K) at ``rows`` and ``columns``; an axis of one point is flat."""
    low, share = _place(rows, row)
    left, part = _place(columns, column)
    high, right = np.minimum(low + 1, len(rows) - 1), np.minimum(left + 1, len(columns) - 1)
    below = values[low, left] * (1 - part) + values[low, right] * part
    above = values[high, left] * (1 - part) + values[high, right] * part
    return np.asarray(below * (1 - share) + above * share)


def _place(knots: Floats, at: Floats) -> tuple[NDArray[np.intp], Floats]:
    """(S,) the knot below each point, and how far towards the next one it is (beyond the last: more
    than 1).
    """
    low = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, max(0, len(knots) - 2))
    width = np.diff(knots)[low] if len(knots) > 1 else np.ones(np.shape(at))
    return low, np.where(len(knots) > 1, (at - knots[low]) / width, 0.0)


Whole = BeforeValidator(
    lambda value: int(value) if isinstance(value, float) and value.is_integer() else value
)
Size = Annotated[int, Field(gt=0, le=10**18), Whole]  # a file may have 8e9
# results of hidden size in a layer: two norms, queries, attention; residuals are added in passing
_LAYER_STATES = 4
_MLP_STATES = 3  # gate, up and their product


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder by its sizes. streamed: parameters that every forward reads: all but the embedding,
    head included.

    hidden D, inner: of the MLP, vocab V, layers L, heads H, kv_heads K, head_dim. value_bytes: of
    one weight.
    """

    __pydantic_config__ = EXACT
    streamed: Size
    hidden: Size
    inner: Size
    vocab: Size
    layers: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    value_bytes: Size

    def bytes_read(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """(S,) bytes that a forward reads and writes.

        The weights once; keys and values of the context and of what is fed, the latter written too;
        each layer's results and the logits, written once and read once.
        """
        rows, past = np.asarray(fed, dtype=np.float64), np.asarray(context, dtype=np.float64)
        pair = 2 * self.layers * self.kv_heads * self.head_dim
        states = (
            2 * self.layers * (_LAYER_STATES * self.hidden + _MLP_STATES * self.inner)
            + 2 * self.vocab
        )
        return self.value_bytes * (self.streamed + pair * (past + 2 * rows) + states * rows)

    def operations(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """(S,) two a weight and token, four a pair of query and key and dimension; a query sees
        half of what is fed.
        """
        rows, past = np.asarray(fed, dtype=np.float64), np.asarray(context, dtype=np.float64)
        pairs = rows * (past + rows / 2)
        return 2.0 * self.streamed * rows + 4.0 * pairs * self.layers * self.heads * self.head_dim

    def slowdown(
        self, fed: Sequence[float] | Floats, context: float, gb_s: float, gflop_s: float
    ) -> tuple[Floats, Floats]:
        """(low, high) of T(fed) / T(1): with full overlap and with none, the smaller of the two
        first.

        While reading bounds the forward, overlap is the low end; deep in the compute-bound region
        it is the high one.
        """
        rows = np.concatenate([[1.0], np.asarray(fed, dtype=np.float64)])
        reading = self.bytes_read(rows, context) / (gb_s * 1e9)
        computing = self.operations(rows, context) / (gflop_s * 1e9)
        ratios = [
            times[1:] / times[0] for times in (np.maximum(reading, computing), reading + computing)
        ]
        return np.minimum(*ratios), np.maximum(*ratios)


MEASURED, PUBLISHED, ANALYTIC = "measured", "published", "analytic"


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The rates that the machine sustains, measured in the profile's own process: [GB/s] and
    [GFLOP/s].

    copy_gb_s counts what is read and what is written.
    """

    __pydantic_config__ = EXACT
    read_gb_s: Positive
    copy_gb_s: Positive
    matmul_gflop_s: Positive


@dataclass(frozen=True, slots=True)
class RowGrid:
    """Batches of k rows of w + 1 tokens over one shared prefix. ms: (C, K, W), NaN if no draft has
    that shape.
    """

    k: tuple[int, ...]
    w: tuple[int, ...]
    contexts: tuple[int, ...]
    ms: Floats

    def slowdown(self, context: int) -> Floats:
        """(K, W) over the single row of one token, the first of each."""
        plane = self.ms[self.contexts.index(context)]
        return np.asarray(plane / plane[0, 0])


@dataclass(frozen=True, slots=True)
class Profile:
    """device: the processor's name, with the threads on a CPU. kind: measured | published |
    analytic.

    control: per context, the single token timed as two series, one over the other. buckets: widths
    that the engine rounds ``fed`` up to.
    """

    device: str
    model: str
    engine: str
    dtype: str
    kind: str
    surface: Grid | Fit | Shared
    date: str
    source: str = ""
    parameters: int | None = None
    rounds: int = 0
    control: tuple[float, ...] = ()
    buckets: tuple[int, ...] = ()
    ceilings: Ceilings | None = None
    shape: ModelShape | None = None
    rows: RowGrid | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its file without the suffix: '<device>-<model>-<engine>-<dtype>'."""
        parts = (self.device, self.model, self.engine, self.dtype)
        return "-".join(
            re.sub(r"[^a-z0-9.]+", "-", file_name(part.lower())).strip("-") for part in parts
        )

    @property
    def label(self) -> str:
        """The profile's name in captions."""
        kinds = {PUBLISHED: "published fit", ANALYTIC: f"analytic, {self.source}"}
        kind = kinds.get(self.kind, f"measured {self.date}")
        return f"{self.model} on {self.device}, {self.engine}, {self.dtype} ({kind})"

    def forward_ms(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """[ms] of the target's forward over (S,) tokens fed after (S,) tokens of context."""
        width = self._width(fed)
        found = self.surface.forward_ms(width, context)
        if self.shape is None or self.ceilings is None:
            return found
        # A grid that ends where memory still bounds the forward does not have the slope after it:
        # outside of what was measured a forward takes at least the products of the weights.
        products_ms = 2e-6 * self.shape.streamed * width / self.ceilings.matmul_gflop_s
        return np.maximum(found, np.where(self.surface.outside(width, context), products_ms, 0.0))

    def step_ms(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """[ms] of the forward and of the host time that every step of this engine pays, vanilla's
        too.
        """
        return self.forward_ms(fed, context) + self.surface.rest_ms(self._width(fed), context)

    def shared_ms(self, fed: ArrayLike, context: ArrayLike, requests: int) -> Floats:
        """[ms] of a step that ``requests`` share: (S,) tokens fed in all, (S,) mean context of a
        request.

        It reads the context of each, while a token attends to its own request's, and to no draft of
        another one: in a measured forward of as many tokens all attend to each other.
        """
        fed, context = np.asarray(fed, dtype=np.float64), np.asarray(context, dtype=np.float64)
        whole = self.step_ms(fed, context) + self._longer_ms(1.0, context, requests * context)
        if not isinstance(self.surface, Grid):
            return whole
        longest = context + fed - fed / requests
        attention = self._longer_ms(fed, context, longest) - self._longer_ms(1.0, context, longest)
        return whole - np.maximum(attention, 0.0)

    def _longer_ms(self, fed: ArrayLike, context: ArrayLike, longer: ArrayLike) -> Floats:
        """[ms] that a longer context adds to a forward."""
        return self.forward_ms(fed, longer) - self.forward_ms(fed, context)

    def shared(self, requests: int) -> Profile:
        """The profile of one request of several that share every forward: its steps take
        ``shared_ms``.
        """
        return (
            self
            if requests == 1
            else replace(self, surface=Shared(self, requests), buckets=(), shape=None)
        )

    def outside(self, fed: ArrayLike, context: ArrayLike) -> Mask:
        """True if the time is an extension of what was measured."""
        return self.surface.outside(self._width(fed), context)

    def _width(self, fed: ArrayLike) -> Floats:
        """The engine's width for each number of tokens fed; wider than the widest is unchanged."""
        wanted = np.asarray(fed, dtype=np.float64)
        if not self.buckets:
            return wanted
        widths = np.asarray(self.buckets, dtype=np.float64)
        place = np.searchsorted(widths, wanted)
        return np.where(place < len(widths), widths[np.minimum(place, len(widths) - 1)], wanted)

    def share_of_bound(self) -> Floats | None:
        """(C,) the least time that a single token's bytes take at the read bandwidth, over the time
        it took.
        """
        if self.shape is None or self.ceilings is None or not isinstance(self.surface, Grid):
            return None
        contexts = self.surface.contexts
        least = (
            self.shape.bytes_read(np.ones(len(contexts)), contexts) / self.bandwidth_gb_s() * 1e-6
        )
        return np.asarray(least / self.surface.ms[:, 0])

    def bandwidth_gb_s(self) -> float:
        """The better of the two streams: a forward reads much and writes little. Raises InputError
        without any.
        """
        if self.ceilings is None:
            raise InputError(f"profile {self.name}: has no ceilings; expected a measured profile")
        return max(self.ceilings.read_gb_s, self.ceilings.copy_gb_s)

    def analytic(
        self, fed: Sequence[float] | Floats, context: float
    ) -> tuple[Floats, Floats] | None:
        """(low, high) of T(fed) / T(1) by bytes and operations; None without a shape or
        ceilings.
        """
        if self.shape is None or self.ceilings is None:
            return None
        return self.shape.slowdown(
            fed, context, self.bandwidth_gb_s(), self.ceilings.matmul_gflop_s
        )


def device_name(
    machine: Mapping[str, Any], device: str, way: str | None = None, count: int | None = None
) -> str:
    """The processor of a manifest's ``machine`` and ``device`` ('cpu', 'cuda', 'cuda:1') as
    profiles name it.

    way, count: how many devices share the model, and how; None = one.
    """
    kind, _, index = device.partition(":")
    gpus = machine.get("gpus") or []
    shared = f", {count} by {way}" if way else ""
    if kind == "cuda" and int(index or 0) < len(gpus):
        return str(gpus[int(index or 0)]["name"]) + shared
    threads = machine.get("threads")
    return f"{machine.get('cpu') or kind}, {threads} thread{'' if threads == 1 else 's'}{shared}"


@dataclass(frozen=True, slots=True)
class Shared:
    """The surface of a profile whose forwards are fed for several requests, each with as many
    tokens and as long.
    """

    profile: Profile
    requests: int

    def forward_ms(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """[ms] by one request's tokens fed and context, (S,) each."""
        whole = self.profile.shared_ms(self.requests * np.asarray(fed), context, self.requests)
        return whole - self.rest_ms(fed, context)

    def rest_ms(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """[ms] of the engine's own time."""
        wide = self.requests * np.asarray(fed, dtype=np.float64)
        return self.profile.step_ms(wide, context) - self.profile.forward_ms(wide, context)

    def outside(self, fed: ArrayLike, context: ArrayLike) -> Mask:
        """True if the time is an extension of what was measured."""
        one = np.ones(np.shape(fed))
        wide = self.requests * np.asarray(fed, dtype=np.float64)
        longer = self.requests * np.asarray(context, dtype=np.float64)
        return self.profile.outside(wide, context) | self.profile.outside(one, longer)
