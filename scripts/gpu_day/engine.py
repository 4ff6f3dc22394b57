"""The fast engine of a 7B shape: what recording costs, forwards against their bounds, launches, host time, memory."""

from __future__ import annotations

import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from specbench.profile import ModelShape
from specbench.types import EMPTY, Draft, Needs

FED = (1, 2, 4, 8, 16, 64, 96)
GOALS = (1, 64)  # of FED, those with a goal
ROUNDS = 15


def record(day: Day) -> list[Goal]:
    """Recordings of all widths and key lengths: how many, how long, how much memory."""
    return _record(day, day.engine)


def _record(day: Day, engine: FastEngine) -> list[Goal]:
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
    """T(tokens fed, context) over the bounds of the same process."""
    return _compare_with_bounds(day, day.engine, [480, 1024, 2000])


def _compare_with_bounds(day: Day, engine: FastEngine, contexts: Sequence[int]) -> list[Goal]:
    """Forwards over max(bytes / read bandwidth, operations / matmul rate), both measured before and afterwards."""
    fed: Sequence[int] = (1, 8) if day.rehearse else FED
    rounds, contexts = (3, [64]) if day.rehearse else (ROUNDS, contexts)
    dtype, shape = engine.dtype, ModelShape(**shape_of(day.model))
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
    """The engine with another ``engine.attention``: recordings, ids against SDPA's, forwards over the same bounds."""
    if day.device.type != "cuda":  # where our kernels do not run
        way = {TRITON: FLEX, FUSED: SDPA}[way]
    engine = day.make_engine(way)
    requests = [(name, prompt) for name in day.few_methods for prompt in day.prompts[:2]]
    diverged = sum(
        ids_of(engine, day.methods[name], prompt, day.tokens)
        != ids_of(day.engine, day.methods[name], prompt, day.tokens)
        for name, prompt in requests
    )
    goals = [*_record(day, engine), Goal(f"ids by {way} that part from SDPA's, of {len(requests)}", float(diverged))]
    goals += _compare_with_bounds(day, engine, [480, 2000])
    engine.drop_recordings()
    return goals


def count_launches(day: Day) -> list[dict[str, Any]]:
    """Kernels a step that a profiler sees, graphs' own included, and the three that there are most of."""
    rows = []
    for name in ("vanilla", "pld", "token_recycling"):
        prompt, whole = _launch(day, name, 1)[0], _launch(day, name, day.tokens)
        kernels, steps = whole[0] - prompt, whole[1]
        longest = ", ".join(kernel[:40] for kernel, _ in kernels.most_common(3))
        rows.append({"method": name, "steps": steps, "kernels a step": kernels.total() / steps, "most": longest})
    return rows


def _launch(day: Day, name: str, tokens: int) -> tuple[Counter[str], int]:
    """Kernels of one request by name, the prompt's too, and its steps."""
    method, clock = day.methods[name], Clock(day.device)
    request = Request(day.prompts[0], tokens, None, 0)
    decode(day.engine, method, request, clock)
    method.reset()
    device = ProfilerActivity.CUDA if day.device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[device]) as seen:
        out = decode(day.engine, method, request, clock)
    kind = getattr(torch.autograd.DeviceType, day.device.type.upper())
    return Counter(event.name for event in seen.events() if event.device_type == kind), len(out.accept)


def forbid_waiting(day: Day) -> list[Goal]:
    """Forwards of a token, a chain and a tree while torch raises at any call that waits for the device."""
    engine = day.engine
    engine.start(day.prompts[0], 32, Walk(None, 0), Needs(), Clock(day.device))
    drafts = [EMPTY, Draft.chain([5, 6, 7]), Draft([5, 6, 7, 8], [-1, -1, 0, 1])]
    for draft in drafts:  # recorded, where nothing was recorded ahead
        engine.forward(draft)
        engine.settle(1)
    waited = 0
    for draft in drafts:
        if day.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            engine.forward(draft)
        except RuntimeError:
            waited += 1
        finally:
            if day.device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        engine.settle(1)
    return [Goal("forwards that wait for the device, of 3", float(waited), 0)]


def compare_loops(day: Day) -> list[Goal]:
    """Tokens/s of our loops over the library's."""
    methods = {name: day.methods[name] for name in ("vanilla", "pld", "token_recycling")}
    return _against_generate(day, methods, day.prompts)


def compare_compiled(day: Day) -> list[Goal]:
    """Tokens/s of the library's compiled loop on a static cache, and of ours, over its plain one."""
    compiled = HFCompiled(compile=not day.rehearse)
    compiled.bind(day.target(day.model))
    return _against_generate(day, {"vanilla": day.methods["vanilla"], "hf_compiled": compiled}, day.prompts[:3])


def _against_generate(day: Day, methods: Mapping[str, Method], prompts: Sequence[Sequence[int]]) -> list[Goal]:
    """Vanilla over the library's ``generate``, each drafter over its prompt lookup: ratios of tokens/s, interleaved."""
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
    """Host time a step that the device waits for, blocking reads a step, and phases over the wall."""
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
    """[s] of the device's own time for a forward of a chain: many enqueued at once, nothing read in between."""
    prompt = day.prompts[0]
    day.engine.start(prompt, 64, Walk(None, 0), Needs(), clock)
    draft = Draft.chain(prompt[:nodes]) if nodes else EMPTY
    best = float("inf")
    for _ in range(3):
        clock.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            day.engine.forward(draft)
        clock.synchronize()
        best = min(best, (time.perf_counter() - start) / 20)
    return best


def _reads(day: Day, method: Method, request: Request, clock: Clock) -> float:
    """Blocking reads of one request's steps: as CUDA reports them, on a CPU as they are called."""
    engine: Any = day.engine
    if not torch.cuda.is_available():
        counter = OpCounter()
        engine.start = counter.within("prefill", engine.start)
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


def keep_memory(day: Day) -> list[Goal]:
    """Memory between case 10 and the last, and what keeping whole trees costs, on and off in turn."""
    cases, clock = 20 if day.rehearse else 400, Clock(day.device)
    method, prompt = day.methods["pld"], day.prompts[0][:64]
    early: int | None = None
    for number in range(cases):
        decode(day.engine, method, Request(prompt, 4, None, number), clock)
        if number == 9:
            early = _allocated()
    late = _allocated()
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(24):
        for kept in (True, False) if number % 2 else (False, True):
            start = time.perf_counter()  # around the whole call: trees are written down once its own clock has stopped
            out = decode(day.engine, method, Request(prompt, day.tokens, None, 0, keep_trees=kept), clock)
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
