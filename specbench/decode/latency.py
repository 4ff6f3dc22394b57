"""Measures T(tokens fed, context) of a loaded target by its engine's own forwards, all points in
turn.

Every round visits all points of a context once, in a random order; all contexts are passed several
times, a few rounds each, and a point's time is its median over the rounds. What counts is a forward
after others of its width, as many as take ``_SETTLING`` ms together: in decoding, too, a step
follows those of its kind, and after a wide one the caches contain other data. A processor's last
cache takes several short forwards until it contains the weights again. The single token is in each
round twice, as two series: the difference of their medians is the noise of this machine (the A/A
control). ``measure_steps`` is the short form, for a run that decides by the times itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import psutil
import torch

from specbench.decode.walk import Walk
from specbench.measure.clock import Clock
from specbench.models.engine import Engine
from specbench.models.tree import RowBatch, compute_depths
from specbench.profile.profile import MEASURED, Ceilings, Floats, Grid, ModelShape, Profile, RowGrid
from specbench.types import EMPTY, ROOT, Draft, InputError, Needs

# [bytes] at most; several times any last-level cache; on a GPU so large that the launch is
# negligible
BYTES = {"cpu": 256 << 20, "cuda": 4 << 30}
_ROUNDS = 9
_SIDES = {"cpu": 1024, "cuda": 8192}  # of the square matrices, at most
_MATRIX_BYTES = 32  # of an entry in all three matrices, as drawn and as multiplied, and a reserve
PASSES = 3  # over the contexts
_WARM = 1  # visits of every point before the clock counts, at the start of each visit of a context
# [ms] and forwards of a width in front of the one that counts: at least one
_SETTLING, _MOST_SETTLING = 12.0, 12
# a forward commits one token; this far around a context, as a share and in tokens
_DRIFT, _LEAST_DRIFT = 0.05, 8


class Bench:
    """One engine at a given context: times the forward and the complete step of any draft. No node
    is ever accepted.
    """

    def __init__(
        self, engine: Engine, device: torch.device, vocab: int, settling: int = _MOST_SETTLING
    ) -> None:
        """Prepare an engine. vocab: prompts and drafts are uniform ids below it. settling: most
        forwards in front.
        """
        self._engine, self._clock, self._settling = engine, Clock(device), settling
        self._vocab, self._random = vocab, np.random.default_rng(0)

    def ids(self, count: int) -> list[int]:
        """Return random tokens."""
        return [int(token) for token in self._random.integers(0, self._vocab, count)]

    @torch.inference_mode()
    def visit(self, drafts: Sequence[Draft], context: int, rounds: int, needs: Needs) -> Floats:
        """Return (rounds, points, 2) [ms] of forward and step for each draft after ``context``
        tokens.
        """
        self._engine.prepare(needs, True)
        times = np.empty((rounds + _WARM, len(drafts), 2))
        cached, (low, high) = 0, self._find_span(drafts, context, needs.rows)
        for number in range(rounds + _WARM):
            for place in self._random.permutation(len(drafts)):
                most = min(self._settling, max(1, high - low - 1))
                if not cached or cached + most + 1 > high:
                    cached = self._read(max(1, min(low, high - most - 1)), high, needs)
                cached += self._settle(drafts[place], most) + 1
                times[number, place] = self._time(drafts[place])
        return times[_WARM:]

    def _find_span(self, drafts: Sequence[Draft], context: int, rows: bool) -> tuple[int, int]:
        """The first context that is read and the end of those that are timed [tokens]: not far from
        ``context``.

        All of them are on the same side of a step of lengths as ``context`` itself.
        """
        far = _drift(context)
        low, high = context - far, context + far
        if buckets := getattr(self._engine, "buckets", None):
            for width in {buckets.width(_count_fed(draft, rows)) for draft in drafts}:
                fewest, most = buckets.reads_alike(context + width)
                low, high = max(low, fewest - width), min(high, most - width + 1)
        return low, high

    def _read(self, tokens: int, end: int, needs: Needs) -> int:
        """Put a prompt of this length into the cache, with capacity up to ``end``."""
        self._engine.reserve(end + 1)
        self._engine.start(self.ids(tokens), end - tokens + 1, Walk(None, 0), needs, self._clock)
        return tokens

    def _settle(self, draft: Draft, most: int) -> int:
        """Run forwards of a draft until the caches contain what it needs; returns how many."""
        count, spent = 0, 0.0
        while count < most and spent < _SETTLING:
            spent += self._time(draft)[1]
            count += 1
        return count

    def _time(self, draft: Draft) -> tuple[float, float]:
        self._clock.start()
        self._engine.forward(draft)
        self._engine.settle(1)  # capacity for one token: no node of the draft is accepted
        step_s = self._clock.elapsed()
        return 1e3 * self._clock.phases()["forward"], 1e3 * step_s


def _count_fed(draft: Draft, rows: bool) -> int:
    """Rows of a forward: the root's and the nodes', or those of a batch of rows."""
    parents: Any = draft.parents if rows else ()
    batch = RowBatch.of(parents, compute_depths(parents))
    return len(draft) + 1 if batch is None else batch.places.numel()


def _drift(context: int) -> int:
    """[tokens] by which the cache may be off a context while its points are timed."""
    return max(_LEAST_DRIFT, int(_DRIFT * context))


def sweep(
    bench: Bench, fed: Sequence[int], contexts: Sequence[int], rounds: int
) -> tuple[Grid, tuple[float, ...]]:
    """Time chains of ``fed`` tokens, the root among them, after each context.

    Returns:
        The grid, and per context the median of the single token's second series over that of its
        first (A/A control).
    """
    drafts = [Draft.chain(bench.ids(count - 1)) if count > 1 else EMPTY for count in (1, *fed)]
    planes, control = [], []
    for times in _passes(bench, drafts, contexts, rounds, Needs()):
        middle = np.median(times, axis=0)
        control.append(float(middle[1, 0] / middle[0, 0]))
        low, high = np.quantile(times[:, :, 0], [0.25, 0.75], axis=0)
        planes.append(
            (middle[1:, 0], middle[1:, 1] - middle[1:, 0], ((high - low) / 2 / middle[:, 0])[1:])
        )
    ms, host_ms, spread = (np.stack(plane) for plane in zip(*planes, strict=True))
    return Grid(np.array(fed, float), np.array(contexts, float), ms, host_ms, spread), tuple(
        control
    )


def sweep_rows(
    bench: Bench, k: Sequence[int], w: Sequence[int], contexts: Sequence[int], rounds: int
) -> RowGrid:
    """Time batches of k rows of w + 1 tokens (N-Grammys, figure 1); other rows without a token are
    blank.
    """
    shapes = [(rows, width) for rows in k for width in w if width or rows == 1]
    drafts = [_rows(bench, rows, width) for rows, width in shapes]
    ms = np.full((len(contexts), len(k), len(w)), np.nan)
    for plane, times in zip(
        ms, _passes(bench, drafts, contexts, rounds, Needs(rows=True)), strict=True
    ):
        for (rows, width), value in zip(shapes, np.median(times[:, :, 0], axis=0), strict=True):
            plane[list(k).index(rows), list(w).index(width)] = value
    return RowGrid(tuple(k), tuple(w), tuple(contexts), ms)


STEP_CONTEXT = 512  # [tokens] at which a run prices a step
STEP_ROWS = (1, 2, 3, 5, 9, 17, 33, 65)  # that it measures: the root, and 0, 1, 2, 4 ... nodes
SETTLING = 3  # forwards of a width in front of the one that counts
# [s] of the processor, within which there are further rounds
BUDGET_S, LEAST_ROUNDS, MOST_ROUNDS = 0.5, 2, 16


def measure_steps(engine: Engine, device: torch.device, vocab: int) -> dict[int, float]:
    """Rows -> time of a step [ms], forward and host, measured in about ``BUDGET_S``, or in few
    rounds of a slow model.

    It is the least time that was seen, of as many rows or more: other processes only make a step
    slower. device, vocab: as of ``Bench``.
    """
    bench = Bench(engine, device, vocab, settling=SETTLING)
    context = max(1, min(STEP_CONTEXT, engine.context // 2 - STEP_ROWS[-1]))
    rows = [count for count in STEP_ROWS if count - 1 <= engine.max_nodes]
    drafts = [Draft.chain(bench.ids(count - 1)) if count > 1 else EMPTY for count in rows]
    begun = time.thread_time()
    times = bench.visit(drafts, context, LEAST_ROUNDS, Needs())
    spent_s = time.thread_time() - begun
    if (
        more := min(
            MOST_ROUNDS, int((BUDGET_S - spent_s) / spent_s * (LEAST_ROUNDS + _WARM)) - _WARM
        )
    ) > 0:
        times = np.concatenate([times, bench.visit(drafts, context, more, Needs())])
    least = np.minimum.accumulate(times[:, :, 1].min(axis=0)[::-1])[::-1]
    return dict(zip(rows, least.round(6).tolist(), strict=True))


def profile_of_steps(step_ms: Mapping[int, float], engine: Engine) -> Profile:
    """The profile that ``measure_steps`` gives of an engine: the same at every context."""
    ms = np.array([[*step_ms.values()]])
    surface = Grid(
        np.array([*step_ms], float),
        np.array([float(STEP_CONTEXT)]),
        ms,
        np.zeros_like(ms),
        np.zeros_like(ms),
    )
    return Profile("", "", engine.kind, "", MEASURED, surface, "", buckets=_buckets_of(engine))


def price_rows(profile: Profile) -> Callable[[int], float]:
    """Returns the function rows -> time of a step [s] after ``STEP_CONTEXT`` tokens; it keeps its
    results.
    """
    return cache(lambda rows: float(profile.step_ms([rows], [STEP_CONTEXT])[0]) / 1e3)


def _passes(
    bench: Bench, drafts: Sequence[Draft], contexts: Sequence[int], rounds: int, needs: Needs
) -> list[Floats]:
    """For each context (rounds, points, 2) [ms] of ``Bench.visit``, collected over the passes."""
    shares = [len(share) for share in np.array_split(np.arange(rounds), min(PASSES, rounds))]
    visits = [
        [bench.visit(drafts, context, share, needs) for context in contexts] for share in shares
    ]
    return [np.concatenate(each) for each in zip(*visits, strict=True)]


def _rows(bench: Bench, rows: int, width: int) -> Draft:
    if not width:
        return EMPTY
    parents = chain.from_iterable(
        (ROOT, *range(row * width, row * width + width - 1)) for row in range(rows)
    )
    return Draft(bench.ids(rows * width), tuple(parents))


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an engine. max_nodes: of a draft. context: [tokens] of the model."""

    max_nodes: int
    context: int

    def check(
        self,
        rounds: int,
        fed: Sequence[int],
        contexts: Sequence[int],
        rows: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Raise InputError for sweeps that exceed the engine's limits, or without the single token.

        rows: k, w and contexts of row batches.
        """
        if rounds < 1:
            raise InputError(f"rounds={rounds}: expected at least 1")
        _check_axis("fed", fed, 1)
        _check_axis("contexts", contexts)
        self._check("fed", fed[-1], "contexts", contexts[-1])
        if rows is not None:
            k, w, behind = rows
            _check_axis("k", k, 1)
            _check_axis("w", w, 0)
            _check_axis("row-contexts", behind)
            self._check("k x w", k[-1] * w[-1] + 1, "row-contexts", behind[-1])

    def _check(self, option: str, widest: int, where: str, context: int) -> None:
        if widest - 1 > self.max_nodes:
            raise InputError(
                f"{option}={widest}: the engine takes {self.max_nodes} nodes and the root; raise"
                " engine.max_nodes"
            )
        most = context + _drift(context) + widest
        if most > self.context:
            raise InputError(
                f"{where}={context}: with {widest} tokens fed and {_drift(context)} committed on"
                f" the way {most} tokens, beyond the model's {self.context}; expected shorter"
                f" --{where}"
            )


def _check_axis(option: str, values: Sequence[int], first: int | None = None) -> None:
    """first: what the axis must begin with, None = anything from 1 up."""
    least = 1 if first is None else first
    if not values or list(values) != sorted(set(values)) or values[0] < least:
        raise InputError(
            f"{option}={list(values)}: expected ascending whole numbers from {least} up"
        )
    if first is not None and values[0] != first:
        raise InputError(
            f"{option}={list(values)}: expected {first} to be the first, as every slowdown is"
            " against one token alone"
        )


def traits_of(engine: Engine, model: Any, shared: bool) -> dict[str, Any]:
    """Return what a profile contains of an engine and its model in addition to times.

    shared: several devices share the weights; one device's ceilings are not a bound then, so the
    shape is left out.
    """
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "shape": None if shared else shape_of(model),
        "buckets": _buckets_of(engine),
    }


def _buckets_of(engine: Engine) -> tuple[int, ...]:
    """The widths that an engine rounds its rows up to."""
    return tuple(getattr(getattr(engine, "buckets", None), "widths", ()))


def shape_of(model: Any) -> ModelShape:
    """The sizes of a causal LM of transformers."""
    text = model.config.get_text_config()
    heads = int(text.num_attention_heads)
    weights = {parameter.data_ptr(): parameter for parameter in model.parameters()}
    total = sum(parameter.numel() for parameter in weights.values())
    head = model.get_output_embeddings().weight
    embedding = model.get_input_embeddings().weight
    tied = head.data_ptr() == embedding.data_ptr()
    return ModelShape(
        streamed=total - (0 if tied else embedding.numel()),
        hidden=int(text.hidden_size),
        inner=int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
        vocab=int(text.vocab_size),
        layers=int(text.num_hidden_layers),
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
        value_bytes=embedding.element_size(),
    )


def measure_ceilings(device: torch.device, dtype: torch.dtype, size: int | None = None) -> Ceilings:
    """Measure how fast a machine reads, copies and multiplies: the best of several repetitions.

    Interference only makes a repetition slower. The matrix product is of the model's dtype, the
    streams of float32.

    Args:
        device: to measure.
        dtype: of the model.
        size: [bytes] of each of two buffers, by default the device's, and at most a quarter of its
            free memory.
    """
    if device.type == "cuda":  # free memory is also what torch keeps and does not use
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + unused
    else:
        free = psutil.virtual_memory().available
    size = min(size or BYTES.get(device.type, BYTES["cpu"]), free // 4)
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    read_s, copy_s = (
        _best(lambda: source.sum(), device),
        _best(lambda: target.copy_(source), device),
    )
    side = min(_SIDES.get(device.type, _SIDES["cpu"]), int((free / _MATRIX_BYTES) ** 0.5))
    left, right = (
        torch.randn(side, side, device=device, dtype=torch.float32).to(dtype) for _ in range(2)
    )
    out = torch.empty_like(left)
    matmul_s = _best(lambda: torch.mm(left, right, out=out), device)
    return Ceilings(size / read_s * 1e-9, 2 * size / copy_s * 1e-9, 2 * side**3 / matmul_s * 1e-9)


def best_of(one: Ceilings, other: Ceilings) -> Ceilings:
    """Return the higher figure of each: measured before and after a sweep, a busy moment lowers
    none.
    """
    pairs = ((getattr(one, name), getattr(other, name)) for name in Ceilings.__slots__)
    return Ceilings(*map(max, pairs))


def _best(work: Callable[[], object], device: torch.device) -> float:
    """The shortest time of ``work`` [s] over the rounds, after one round that does not count."""
    clock, times = Clock(device), []
    for _ in range(_ROUNDS + 1):
        clock.start()
        work()
        times.append(clock.elapsed())
    return min(times[1:])
