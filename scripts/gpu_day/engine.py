"""Measure the fast engine of a 7B shape: recording, forwards and their bounds, launches, host time, memory."""

from __future__ import annotations

import contextlib
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import GenerationConfig

from methods.hf_compiled import HFCompiled
from scripts.gpu_day.day import Day, Goal, Section, ids_of
from scripts.lab.overhead import OpCounter
from specbench.advise.latency import Bench, best_of, measure_ceilings, shape_of
from specbench.decode.loop import Request, decode
from specbench.decode.walk import Walk
from specbench.measure.clock import Clock
from specbench.method import Method
from specbench.models.fast.attention import FLEX, FUSED, SDPA, TRITON
from specbench.models.fast.engine import FastEngine
from specbench.types import EMPTY, Draft, Needs

FED = (1, 2, 4, 8, 16, 64, 96)
GOALS = (1, 64)  # of FED, those with a goal
ROUNDS = 15


def record(day: Day, engine: FastEngine | None = None) -> list[Goal]:
    """Record all widths and key lengths: number, time and memory of the recordings. engine: None = the day's."""
    engine = engine or day.engine
    before = _reserved(day)
    start = time.perf_counter()
    engine.prepare(Needs(), True)
    seconds = time.perf_counter() - start
    return [
        Goal("recordings", float(len(engine.graphs) + len(engine.acceptances)), 60),
        Goal("recording", seconds, 30, unit="s"),
        Goal("memory of the recordings and their cache", (_reserved(day) - before) / 2**20, unit="MiB"),
    ]


def _reserved(day: Day) -> int:
    return torch.cuda.memory_reserved(day.device) if day.device.type == "cuda" else 0


def time_forwards(day: Day) -> list[Goal]:
    """Time T(tokens fed, context), and compare it with the bounds of the same process."""
    return _compare_with_bounds(day, day.engine, [480, 1024, 2000])


def _compare_with_bounds(day: Day, engine: FastEngine, contexts: Sequence[int]) -> list[Goal]:
    """Compare with max(bytes / read bandwidth, operations / matmul rate), both measured before and afterwards."""
    fed: Sequence[int] = (1, 8) if day.rehearse else FED
    rounds, contexts = (3, [64]) if day.rehearse else (ROUNDS, contexts)
    dtype, shape = engine.dtype, shape_of(day.model)
    before = measure_ceilings(day.device, dtype, day.buffer_bytes)
    bench = Bench(engine, day.device, shape.vocab)
    drafts = [Draft.chain(bench.ids(count - 1)) if count > 1 else EMPTY for count in fed]
    times = {context: bench.visit(drafts, context, rounds, Needs()) for context in contexts}
    found = best_of(before, measure_ceilings(day.device, dtype, day.buffer_bytes))
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
            bounds = (1.33, 1.18) if count in GOALS else (None, None)
            goals.append(Goal(f"T({count}) over its bound, context {context}", share, *bounds))
    return goals


def try_our_kernels(day: Day, way: str) -> list[Goal]:
    """Measure another ``engine.attention``: recordings, ids compared with SDPA's, forwards over the same bounds."""
    if day.device.type != "cuda":  # where our kernels do not run
        way = {TRITON: FLEX, FUSED: SDPA}[way]
    engine = day.make_engine(way)
    requests = [(name, prompt) for name in day.few_methods for prompt in day.prompts[:2]]
    diverged = sum(
        ids_of(engine, day.methods[name], prompt, day.tokens)
        != ids_of(day.engine, day.methods[name], prompt, day.tokens)
        for name, prompt in requests
    )
    goals = [*record(day, engine), Goal(f"ids by {way} that differ from SDPA's, of {len(requests)}", float(diverged))]
    goals += _compare_with_bounds(day, engine, [480, 2000])
    engine.drop_recordings()
    return goals


def count_launches(day: Day) -> list[dict[str, Any]]:
    """Count the kernels per step that a profiler sees, including those in graphs, and name the three most frequent."""
    clock, rows = Clock(day.device), []

    def launch(method: Method, tokens: int) -> tuple[Counter[str], int]:
        """Kernels of one request by name, with those of its prompt, and its steps."""
        request = Request(day.prompts[0], tokens, None, 0)
        decode(day.engine, method, request, clock)
        method.reset()
        device = ProfilerActivity.CUDA if day.device.type == "cuda" else ProfilerActivity.CPU
        with profile(activities=[device]) as seen:
            out = decode(day.engine, method, request, clock)
        kind = getattr(torch.autograd.DeviceType, day.device.type.upper())
        return Counter(event.name for event in seen.events() if event.device_type == kind), len(out.accept)

    for name in ("vanilla", "pld", "token_recycling"):
        prompt, (kernels, steps) = launch(day.methods[name], 1)[0], launch(day.methods[name], day.tokens)
        kernels -= prompt
        most = ", ".join(kernel[:40] for kernel, _ in kernels.most_common(3))
        rows.append({"method": name, "steps": steps, "kernels a step": kernels.total() / steps, "most": most})
    return rows


def forbid_waiting(day: Day) -> list[Goal]:
    """Run forwards of a token, a chain and a tree while torch raises at any call that waits for the device."""
    engine = day.engine
    engine.start(day.prompts[0], 32, Walk(None, 0), Needs(), Clock(day.device))
    drafts = [EMPTY, Draft.chain([5, 6, 7]), Draft([5, 6, 7, 8], [-1, -1, 0, 1])]
    for draft in drafts:  # the first forward of a width may be recorded
        engine.forward(draft)
        engine.settle(1)
    waited = 0
    for draft in drafts:
        try:
            with _sync_debug(day, "error"):
                engine.forward(draft)
        except RuntimeError:
            waited += 1
        engine.settle(1)
    return [Goal("forwards that wait for the device, of 3", float(waited), 0)]


@contextlib.contextmanager
def _sync_debug(day: Day, mode: str) -> Iterator[None]:
    """Let torch report calls that wait for a GPU; does nothing on a CPU."""
    if day.device.type == "cuda":
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        if day.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def compare_loops(day: Day) -> list[Goal]:
    """Compare the throughput of our loops with the loops of transformers."""
    methods = {name: day.methods[name] for name in ("vanilla", "pld", "token_recycling")}
    return _against_generate(day, methods, day.prompts)


def compare_compiled(day: Day) -> list[Goal]:
    """Compare the compiled loop of transformers on a static cache, and ours, with its plain one."""
    compiled = HFCompiled(compile=not day.rehearse)
    compiled.bind(day.target(day.model))
    return _against_generate(day, {"vanilla": day.methods["vanilla"], "hf_compiled": compiled}, day.prompts[:3])


def _against_generate(day: Day, methods: Mapping[str, Method], prompts: Sequence[Sequence[int]]) -> list[Goal]:
    """Compare vanilla with ``generate`` of transformers, and each drafter with its prompt lookup, interleaved."""
    model, clock, tokens = day.model, Clock(day.device), day.tokens
    model.generation_config = GenerationConfig()

    def generate(options: Mapping[str, int], prompt: Sequence[int]) -> int:
        ids = torch.tensor([list(prompt)], device=model.device)
        config = GenerationConfig(
            max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0, **options
        )
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return int(out.shape[1]) - len(prompt)

    def decoded(method: Method, prompt: Sequence[int]) -> int:
        method.reset()
        return len(decode(day.engine, method, Request(prompt, tokens, None, 0), clock).ids)

    lookup = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3}
    calls: dict[str, Callable[[Sequence[int]], int]] = {
        "generate": partial(generate, {}), "prompt lookup": partial(generate, lookup),
        **{name: partial(decoded, method) for name, method in methods.items()},
    }  # fmt: skip
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


def time_the_host(day: Day) -> list[Goal]:
    """Measure per step the host time that the device waits for and the blocking reads; and the sum of the phases."""
    clock, goals, prompt = Clock(day.device), [], day.prompts[0]
    on_gpu = day.device.type == "cuda"
    for name, method in day.methods.items():
        request = Request(prompt, day.tokens, None, 0)
        runs = [decode(day.engine, method, request, clock) for _ in range(4)][1:]
        out = min(runs, key=lambda run: run.decode_s)
        count = len(out.accept)
        if on_gpu:
            busy = _busy(day, round(statistics.mean(out.fed)) - 1, clock)
            exposed = (out.decode_s / count - busy) * 1e6
            goals.append(Goal(f"{name}: exposed host time a step", exposed, 100, 60, unit="us"))
        alone = Request(prompt, 1, None, 0)  # the prompt's own reads
        reads = (_reads(day, method, request, clock) - _reads(day, method, alone, clock)) / count
        bound = 1.05 if on_gpu else None  # on a CPU nothing waits: views of the same memory count too
        goals.append(Goal(f"{name}: blocking reads a step", reads, bound))
        goals.append(Goal(f"{name}: phases over the wall", sum(out.phases_s.values()) / out.decode_s, 0.97, least=True))
    return goals


def _busy(day: Day, nodes: int, clock: Clock) -> float:
    """The device's own time [s] of a forward of a chain: many are enqueued, and nothing is read in between."""
    prompt = day.prompts[0]
    day.engine.start(prompt, 64, Walk(None, 0), Needs(), clock)
    draft = Draft.chain(prompt[:nodes]) if nodes else EMPTY
    times = []
    for _ in range(3):
        clock.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            day.engine.forward(draft)
        clock.synchronize()
        times.append((time.perf_counter() - start) / 20)
    return min(times)


def _reads(day: Day, method: Method, request: Request, clock: Clock) -> float:
    """The number of blocking reads in a request's steps: reported by CUDA, or on a CPU counted at their call."""
    engine: Any = day.engine
    if day.device.type != "cuda":
        counter = OpCounter()
        engine.start = counter.within("prefill", engine.start)
        with counter.counting():
            decode(engine, method, request, clock)
        del engine.start
        return counter.syncs["rest"]
    with _sync_debug(day, "warn"), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        decode(engine, method, request, clock)
    return sum("synchroniz" in str(each.message) for each in found)


def keep_memory(day: Day) -> list[Goal]:
    """Compare memory after case 10 and after the last, and the throughput with and without keeping complete trees."""
    cases, clock = 20 if day.rehearse else 400, Clock(day.device)
    method, prompt = day.methods["pld"], day.prompts[0][:64]
    allocated: list[int] = []
    for number in range(cases):
        decode(day.engine, method, Request(prompt, 4, None, number), clock)
        if day.device.type == "cuda":
            allocated.append(torch.cuda.memory_allocated())
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(24):
        for kept in (True, False) if number % 2 else (False, True):
            start = time.perf_counter()  # around the complete call: trees are written after its own clock has stopped
            out = decode(day.engine, method, Request(prompt, day.tokens, None, 0, keep_trees=kept), clock)
            if number > 1:
                rates[kept].append(len(out.ids) / (time.perf_counter() - start))
    grown = float(allocated[-1] - allocated[9]) if allocated else None
    ratio = statistics.median(rates[True]) / statistics.median(rates[False])
    return [
        Goal(f"memory, case {cases} over case 10", grown, 0, unit="bytes"),
        Goal("tokens/s, whole trees kept over not", ratio, 0.995, least=True),
    ]


SECTIONS: list[tuple[str, Section]] = [
    ("recordings", record),
    ("forwards", time_forwards),
    (TRITON, partial(try_our_kernels, way=TRITON)),
    (FUSED, partial(try_our_kernels, way=FUSED)),
    ("launches", count_launches),
    ("waiting", forbid_waiting),
    ("loops", compare_loops),
    ("compiled", compare_compiled),
    ("host", time_the_host),
    ("steady", keep_memory),
]
