"""Goals of the runtime as figures: what was measured, what the goal is, whether it is reached; and the speed goals.

The speed goals: forwards against the bounds of the device, measured in the same process; host time; the library's
loops. Every figure is a ratio within one process, or a count. Requests are random tokens, and random weights answer
them in loops, which lookups predict: the acceptance is not that of a real model, only the time of a step is.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

from scripts.lab.ops import OpCounter
from specbench.advise.ceilings import best_of, measure_ceilings
from specbench.advise.latency import Bench, shape_of
from specbench.decode.loop import Request, Transcript, decode
from specbench.decode.walk import Walk
from specbench.measure.clock import Clock
from specbench.method import Method
from specbench.models.engine import Engine
from specbench.profile import ModelShape
from specbench.types import EMPTY, Draft, Needs


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure. bound: the goal; None = only a figure. least: the goal is a lower bound.

    stretch: the harder bound. value: None where it does not apply on this device.
    """

    name: str
    value: float | None
    bound: float | None = None
    stretch: float | None = None
    least: bool = False
    unit: str = ""

    @property
    def verdict(self) -> str:
        """Stretch | met | missed, or empty without a goal."""
        if self.value is None or self.bound is None:
            return ""
        if self.stretch is not None and self._within(self.stretch):
            return "stretch"
        return "met" if self._within(self.bound) else "missed"

    def _within(self, bound: float) -> bool:
        assert self.value is not None
        return self.value >= bound if self.least else self.value <= bound

    def as_dict(self) -> dict[str, Any]:
        """For JSON, verdict included."""
        return {**dataclasses.asdict(self), "verdict": self.verdict}


def goals_text(goals: Sequence[Goal]) -> str:
    """A markdown table."""
    lines = ["| figure | measured | goal | stretch | verdict |", "|---|--:|--:|--:|---|"]
    for goal in goals:
        sign = "\N{GREATER-THAN OR EQUAL TO}" if goal.least else "\N{LESS-THAN OR EQUAL TO}"
        bounds = [f"{sign} {bound:g}" if bound is not None else "" for bound in (goal.bound, goal.stretch)]
        value = "" if goal.value is None else f"{goal.value:.4g} {goal.unit}".strip()
        lines.append(f"| {goal.name} | {value} | {' | '.join(bounds)} | {goal.verdict} |")
    return "\n".join(lines)


FED = (1, 64)
ROUNDS = 15


def roofline(
    engine: Engine,
    model: Any,
    contexts: Sequence[int],
    fed: Sequence[int] = FED,
    rounds: int = ROUNDS,
    size: int | None = None,
) -> list[Goal]:
    """Forwards of ``fed`` tokens over max(bytes / read bandwidth, operations / matmul rate); FED have a goal.

    size: see ``measure_ceilings``.
    """
    embedding = model.get_input_embeddings().weight
    device, shape = embedding.device, ModelShape(**shape_of(model))
    before = measure_ceilings(device, embedding.dtype, size)
    bench = Bench(engine, device, len(embedding))
    drafts = [Draft.chain(bench.ids(count - 1)) if count > 1 else EMPTY for count in fed]
    times = {context: bench.visit(drafts, context, rounds, Needs()) for context in contexts}
    found = best_of(before, measure_ceilings(device, embedding.dtype, size))
    goals = [
        Goal("read bandwidth", found.read_gb_s, unit="GB/s"),
        Goal("copy bandwidth", found.copy_gb_s, unit="GB/s"),
        Goal("matmul rate", found.matmul_gflop_s / 1e3, unit="TFLOP/s"),
    ]
    for context, visits in times.items():
        middle = [statistics.median(column) for column in visits[:, :, 0].T.tolist()]
        for count, milliseconds in zip(fed, middle, strict=True):
            reading = float(shape.bytes_read(count, context)) / (found.read_gb_s * 1e9)
            computing = float(shape.operations(count, context)) / (found.matmul_gflop_s * 1e9)
            share = milliseconds * 1e-3 / max(reading, computing)
            goals.append(Goal(f"T({count}), context {context}", milliseconds, unit="ms"))
            bounds = (1.33, 1.18) if count in FED else (None, None)
            goals.append(Goal(f"T({count}) over its bound, context {context}", share, *bounds))
    return goals


def against_generate(
    engine: Engine, model: Any, methods: Mapping[str, Method], prompts: Sequence[Sequence[int]], tokens: int
) -> list[Goal]:
    """Vanilla over the library's ``generate``, each drafter over its prompt lookup: ratios of tokens/s, interleaved."""
    peers = {"generate": {}, "prompt lookup": {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3}}
    calls: dict[str, Callable[[Sequence[int]], int]] = {
        name: _generator(model, tokens, options) for name, options in peers.items()
    }
    clock = Clock(model.get_input_embeddings().weight.device)
    for name, method in methods.items():
        calls[name] = _decoder(engine, method, tokens, clock)
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for number, prompt in enumerate([prompts[0], *prompts]):  # the first one warms up
        for name in list(calls) if number % 2 else reversed(calls):
            clock.synchronize()
            start = time.perf_counter()
            count = calls[name](prompt)
            clock.synchronize()
            if number:
                rates[name].append(count / (time.perf_counter() - start))
    middle = {name: statistics.median(found) for name, found in rates.items()}
    goals = [Goal(f"{name}, tokens/s", rate) for name, rate in middle.items()]
    for name in methods:
        peer = "generate" if name in ("vanilla", "hf_compiled") else "prompt lookup"
        bound, stretch = (None, None) if name == "hf_compiled" else (3, 5)
        over = middle[name] / middle[peer]
        goals.append(Goal(f"{name} over the library's {peer}", over, bound, stretch, least=True))
    return goals


def _generator(model: Any, tokens: int, options: Mapping[str, Any]) -> Callable[[Sequence[int]], int]:
    model.generation_config = GenerationConfig()
    config = GenerationConfig(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0, **options)

    def call(prompt: Sequence[int]) -> int:
        ids = torch.tensor([list(prompt)], device=model.device)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return int(out.shape[1]) - len(prompt)

    return call


def _decoder(engine: Engine, method: Method, tokens: int, clock: Clock) -> Callable[[Sequence[int]], int]:
    def call(prompt: Sequence[int]) -> int:
        method.reset()
        return len(decode(engine, method, Request(prompt, tokens, None, 0), clock).ids)

    return call


def steps(engine: Engine, methods: Mapping[str, Method], prompt: Sequence[int], tokens: int) -> list[Goal]:
    """Host time a step that the device waits for, blocking reads a step, and how much of the wall phases explain."""
    device = engine.device
    clock, goals = Clock(device), []
    for name, method in methods.items():
        request = Request(prompt, tokens, None, 0)
        runs = [decode(engine, method, request, clock) for _ in range(4)][1:]
        out = min(runs, key=lambda run: run.decode_s)
        count = len(out.accept)
        if device.type == "cuda":
            busy = _busy(engine, prompt, round(statistics.mean(out.fed)) - 1, clock)
            exposed = (out.decode_s / count - busy) * 1e6
            goals.append(Goal(f"{name}: exposed host time a step", exposed, 100, 60, unit="us"))
        alone = Request(prompt, 1, None, 0)  # the prompt's own reads
        reads = (_reads(engine, method, request, clock) - _reads(engine, method, alone, clock)) / count
        bound = 1.05 if device.type == "cuda" else None  # on a CPU nothing waits: views of the same memory count too
        goals.append(Goal(f"{name}: blocking reads a step", reads, bound))
        goals.append(Goal(f"{name}: phases over the wall", _explained(out), 0.97, least=True))
    return goals


def _explained(out: Transcript) -> float:
    return sum(out.phases_s.values()) / out.decode_s


def _busy(engine: Engine, prompt: Sequence[int], nodes: int, clock: Clock) -> float:
    """[s] of the device's own time for a forward of a chain: many enqueued at once, nothing read in between."""
    engine.start(prompt, 64, Walk(None, 0), Needs(), clock)
    draft = Draft.chain(list(prompt)[:nodes]) if nodes else EMPTY
    best = float("inf")
    for _ in range(3):
        clock.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            engine.forward(draft)
        clock.synchronize()
        best = min(best, (time.perf_counter() - start) / 20)
    return best


def _reads(engine: Engine, method: Method, request: Request, clock: Clock) -> float:
    """Blocking reads of one request's steps: as CUDA reports them, on a CPU as they are called."""
    if not torch.cuda.is_available():
        counter = OpCounter()
        original = engine.start
        engine.start = counter.within("prefill", original)  # type: ignore[method-assign]
        with counter.counting():
            decode(engine, method, request, clock)
        del engine.start
        return counter.syncs["rest"]
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            decode(engine, method, request, clock)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in found)


def steadiness(engine: Engine, method: Method, prompt: Sequence[int], tokens: int, cases: int) -> list[Goal]:
    """Memory between early and late cases, and what keeping whole trees costs, on and off in turn."""
    clock = Clock(engine.device)
    early: int | None = None
    for number in range(cases):
        decode(engine, method, Request(prompt, 4, None, number), clock)
        if number == min(9, cases - 1):
            early = _allocated()
    late = _allocated()
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(24):
        for kept in (True, False) if number % 2 else (False, True):
            start = time.perf_counter()  # around the whole call: trees are written down once its own clock has stopped
            out = decode(engine, method, Request(prompt, tokens, None, 0, keep_trees=kept), clock)
            if number > 1:
                rates[kept].append(len(out.ids) / (time.perf_counter() - start))
    grown = None if early is None or late is None else float(late - early)
    ratio = statistics.median(rates[True]) / statistics.median(rates[False])
    return [
        Goal(f"memory, case {cases} over case 10", grown, 0, unit="bytes"),
        Goal("tokens/s, whole trees kept over not", ratio, 0.995, least=True),
    ]


def _allocated() -> int | None:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else None
