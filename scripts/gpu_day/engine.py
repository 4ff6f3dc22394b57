"""Measure the fast engine of a 7B shape: recording, forwards and their bounds, launches, host time, batches, energy."""

from __future__ import annotations

import contextlib
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import GenerationConfig

from methods.hf_compiled import HFCompiled
from scripts.gpu_day.call import Section
from scripts.gpu_day.day import Day, Goal, Row
from scripts.gpu_day.truth import MACHINE, list_checks
from scripts.lab.overhead import OpCounter
from specbench.decode.latency import Bench, best_of, measure_ceilings, shape_of
from specbench.decode.loop import Request, Transcript, decode
from specbench.decode.walk import Walk
from specbench.measure.clock import Clock, gpus_in_use, open_meter
from specbench.method import Method
from specbench.models.fast.attention import FUSED, SDPA, TRITON
from specbench.profile.profile import Ceilings, ModelShape
from specbench.types import EMPTY, Draft, Needs

FED = (1, 2, 4, 8, 16, 64, 96)
GOALS = (1, 64)  # of FED, those with a goal of their own
RATIOS = {8: (1.1, None), 64: (1.3, 1.15)}  # goals of T(fed) over T(1)
CONTEXTS = (480, 512, 2000, 2048)
ROUNDS = 15
REQUESTS = (1, 8, 32)  # that share a forward
MOST_NODES = 7  # of their drafts


def measure_engine(day: Day, way: str) -> Iterator[Row]:
    """Measure an ``engine.attention``: its recordings, and T(tokens fed, context) over the bounds of the process.

    A bound is max(bytes / read bandwidth, operations / matmul rate), both measured before and afterwards.
    """
    engine = day.engine if way == SDPA else day.make_engine(way)
    before, start = _count_free(day) + engine.cache.nbytes(), time.perf_counter()
    engine.prepare(Needs(), True)
    day.synchronize()
    seconds, taken = time.perf_counter() - start, before - _count_free(day) - engine.cache.nbytes()
    on_gpu = day.device.type == "cuda"
    yield Goal("recordings", float(len(engine.graphs) + len(engine.acceptances)), 60)
    yield Goal("recording", seconds, 30, unit="s")
    yield Goal("memory of the recordings", taken / 2**20 if on_gpu else None, 1024, unit="MiB")

    fed: Sequence[int] = (1, 8) if day.rehearse else FED
    rounds, contexts = (2, (64,)) if day.rehearse else (ROUNDS, CONTEXTS)
    shape, bench = shape_of(day.model), Bench(engine, day.device, day.model.config.vocab_size)
    drafts = [Draft.chain(bench.ids(count - 1)) if count > 1 else EMPTY for count in fed]
    found = measure_ceilings(day.device, engine.dtype, day.buffer_bytes)
    times: dict[int, np.ndarray] = {}
    for context in contexts:
        milliseconds = np.median(bench.visit(drafts, context, rounds, Needs())[:, :, 0], axis=0)
        times[context] = milliseconds
        yield from (Goal(f"T({count}), context {context}", float(each), unit="ms")
                    for count, each in zip(fed, milliseconds, strict=True))  # fmt: skip
    found = best_of(found, measure_ceilings(day.device, engine.dtype, day.buffer_bytes))
    yield Goal("read bandwidth", found.read_gb_s, unit="GB/s")
    yield Goal("copy bandwidth", found.copy_gb_s, unit="GB/s")
    yield Goal("matmul rate", found.matmul_gflop_s / 1e3, unit="TFLOP/s")
    for context, milliseconds in times.items():
        bounds = _compute_bounds(shape, found, fed, context, context)
        for count, each, bound in zip(fed, milliseconds, bounds, strict=True):
            goals = (1.33, 1.18) if count in GOALS else (None, None)
            yield Goal(f"T({count}) over its bound, context {context}", float(each / bound), *goals)
        _, most = shape.slowdown(fed, context, found.read_gb_s, found.matmul_gflop_s)
        for count, each, expected in zip(fed[1:], milliseconds[1:] / milliseconds[0], most[1:], strict=True):
            if count in RATIOS:
                yield Goal(f"T({count}) over T(1), context {context}", float(each), *RATIOS[count])
            yield Goal(f"T({count}) over T(1) over that of the bounds, context {context}", float(each / expected), 1.1)
    if way != SDPA:
        engine.drop_recordings()


def _compute_bounds(shape: ModelShape, found: Ceilings, fed: Any, context: int, keys: int) -> np.ndarray:
    """[ms] of forwards that feed rows, each behind ``context``, and read ``keys`` slots."""
    reading = shape.bytes_read(fed, keys) / (found.read_gb_s * 1e9)
    return 1e3 * np.maximum(reading, shape.operations(fed, context) / (found.matmul_gflop_s * 1e9))


def _count_free(day: Day) -> int:
    """[bytes] of the device that no process has; on a CPU 0."""
    if day.device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(day.device)[0]


def count_launches(day: Day) -> Iterator[Row]:
    """Count the kernels per step that a profiler sees, including those in graphs, and name the three most frequent."""
    clock = Clock(day.device)

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
        yield {"method": name, "steps": steps, "kernels a step": kernels.total() / steps, "most": most}


def forbid_waiting(day: Day) -> Iterator[Row]:
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
    yield Goal("forwards that wait for the device, of 3", float(waited), 0)


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


def compare_loops(day: Day) -> Iterator[Row]:
    """Compare the throughput of our loops with the loops of transformers."""
    methods = {name: day.methods[name] for name in ("vanilla", "pld", "token_recycling")}
    yield from _against_generate(day, methods, day.prompts)


def compare_compiled(day: Day) -> Iterator[Row]:
    """Compare the compiled loop of transformers on a static cache, and ours, with its plain one."""
    compiled = HFCompiled(compile=not day.rehearse)
    compiled.bind(day.target(day.model))
    yield from _against_generate(day, {"vanilla": day.methods["vanilla"], "hf_compiled": compiled}, day.prompts[:2])


def _against_generate(day: Day, methods: Mapping[str, Method], prompts: Sequence[Sequence[int]]) -> Iterator[Goal]:
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
    yield from (Goal(f"{name}, tokens/s", rate) for name, rate in middle.items())
    for name in methods:
        peer = "generate" if name in ("vanilla", "hf_compiled") else "prompt lookup"
        bound, stretch = (None, None) if name == "hf_compiled" else (3, 5)
        over = middle[name] / middle[peer]
        yield Goal(f"{name} over the library's {peer}", over, bound, stretch, least=True)


def time_the_host(day: Day) -> Iterator[Row]:
    """Measure per step the host time that the device waits for and the blocking reads; and the sum of the phases."""
    clock, prompt = Clock(day.device), day.prompts[0]
    on_gpu = day.device.type == "cuda"
    bound_us, stretch_us = (100, 60) if on_gpu else (None, None)
    for name, method in day.methods.items():
        request = Request(prompt, day.tokens, None, 0, keep_trees=True)
        runs = [decode(day.engine, method, request, clock) for _ in range(4)][1:]
        out = min(runs, key=lambda run: run.decode_s)
        count = len(out.accept)
        exposed = (out.decode_s - _time_device(day, method, out, clock)) / count * 1e6
        yield Goal(f"{name}: exposed host time a step", exposed, bound_us, stretch_us, unit="us")
        alone = Request(prompt, 1, None, 0)  # the prompt's own reads
        reads = (_reads(day, method, request, clock) - _reads(day, method, alone, clock)) / count
        bound = 1.05 if on_gpu else None  # on a CPU nothing waits: views of the same memory count too
        yield Goal(f"{name}: blocking reads a step", reads, bound)
        yield Goal(f"{name}: phases over the wall", sum(out.phases_s.values()) / out.decode_s, 0.97, least=True)


@torch.inference_mode()
def _time_device(day: Day, method: Method, out: Transcript, clock: Clock) -> float:
    """The device's own time [s] of a request's steps: their drafts are enqueued again, and nothing is read in between.

    Each step is the forward over its draft, acceptance, compaction, and the copy of the result to pinned memory.
    """
    engine = day.engine
    drafts = [Draft(tree["tokens"], tree["parents"]) for tree in out.trees or ()]
    engine.start(day.prompts[0], day.tokens, Walk(None, 0), method.needs, clock)
    times = []
    for _ in range(3):
        clock.synchronize()
        start = time.perf_counter()
        for draft in drafts:
            engine.forward(draft)
            request = engine.request
            key, given = (request.frame.width, request.moved), (request.logits, request.frame, engine.cache)
            found = engine.acceptances.run(key, partial(engine.accept_rows, *given, request.moved))
            if isinstance(found, torch.Tensor):
                torch.empty_like(found, device="cpu", pin_memory=found.is_cuda).copy_(found, non_blocking=True)
        clock.synchronize()
        times.append(time.perf_counter() - start)
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


@torch.inference_mode()
def share_forwards(day: Day, way: str) -> Iterator[Row]:
    """Time steps of requests that share forwards, and compare them with one forward of as many rows and keys."""
    engine, shape, clock = day.make_engine(way), shape_of(day.model), Clock(day.device)
    context, steps, counts = len(day.prompts[0]), 4 if day.rehearse else 40, REQUESTS[: 1 if day.rehearse else None]
    engine.prepared[(), True] = None  # a batch records its own steps for it; none of a single request is needed
    start = time.perf_counter()
    batch = engine.batch(max(counts), context + (MOST_NODES + 1) * steps)
    day.synchronize()
    yield Goal("recording of batches", time.perf_counter() - start, 30, unit="s")
    found = measure_ceilings(day.device, engine.dtype, day.buffer_bytes)
    for nodes, requests in product((0, MOST_NODES), counts):
        handles = [batch.open(day.prompts[0], batch.tokens - context, Walk(None, 0), Needs()) for _ in range(requests)]
        for handle in handles:
            batch.prefill(handle)
        drafts = [Draft.chain(day.prompts[0][:nodes]) if nodes else EMPTY] * requests
        times = []
        for _ in range(steps):
            clock.start()
            batch.forward(handles, drafts)
            batch.settle()
            times.append(1e3 * clock.elapsed())
        for handle in handles:
            batch.close(handle)
        fed, keys = requests * (nodes + 1), requests * context
        bound = float(_compute_bounds(shape, found, fed, context, keys))
        step = statistics.median(times[steps // 4 :])
        what = f"{requests} requests of {nodes + 1} rows"
        yield Goal(f"{what}: a step by {way}", step, unit="ms")
        yield Goal(f"{what}: a step by {way} over its bound", step / bound, 1.33)
    batch.end()
    places = engine.places  # kept where steps are recorded
    recordings = len(places.graphs) + len(places.acceptances) if places else None
    yield Goal("recordings of batches", recordings, 34)


def measure_energy(day: Day) -> Iterator[Row]:
    """Measure the energy [J] of a token, over seconds, since a counter moves every few tens of milliseconds."""
    meter, clock = open_meter(gpus_in_use(day.device, 1)), Clock(day.device)
    for name in ("vanilla", "pld", "token_recycling"):
        before, start, tokens = meter.joules() if meter else None, time.perf_counter(), 0
        while time.perf_counter() - start < (0.1 if day.rehearse else 4):
            tokens += len(
                decode(day.engine, day.methods[name], Request(day.prompts[0], day.tokens, None, 0), clock).ids
            )
        spent = meter.since(before) if meter else None
        yield Goal(f"{name}: energy a token", None if spent is None else spent / tokens, unit="J")


def keep_memory(day: Day) -> Iterator[Row]:
    """Compare memory after case 10 and after the last, and the throughput with and without keeping complete trees."""
    cases, clock = 20 if day.rehearse else 200, Clock(day.device)
    method, prompt = day.methods["pld"], day.prompts[0][:64]
    allocated: list[int] = []
    for number in range(cases):
        decode(day.engine, method, Request(prompt, 4, None, number), clock)
        if day.device.type == "cuda":
            allocated.append(torch.cuda.memory_allocated())
    grown = float(allocated[-1] - allocated[9]) if allocated else None
    yield Goal(f"memory, case {cases} over case 10", grown, 0, unit="bytes")
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(12):
        for kept in (True, False) if number % 2 else (False, True):
            start = time.perf_counter()  # around the complete call: trees are written after its own clock has stopped
            out = decode(day.engine, method, Request(prompt, day.tokens, None, 0, keep_trees=kept), clock)
            if number > 1:
                rates[kept].append(len(out.ids) / (time.perf_counter() - start))
    ratio = statistics.median(rates[True]) / statistics.median(rates[False])
    yield Goal("tokens/s, whole trees kept over not", ratio, 0.995, least=True)


NEEDS = ("check-triton", "check-fused")
SECTIONS = [
    MACHINE,
    *list_checks(wide=False, estimate_s=35),
    Section(SDPA, partial(measure_engine, way=SDPA), 60),
    Section("host", time_the_host, 30),
    Section("waiting", forbid_waiting, 5),
    Section("energy", measure_energy, 15),
    Section("launches", count_launches, 15),
    Section("loops", compare_loops, 60),
    Section("steady", keep_memory, 15),
    Section(TRITON, partial(measure_engine, way=TRITON), 50, TRITON, NEEDS[:1]),
    Section("batches-triton", partial(share_forwards, way=TRITON), 20, TRITON, NEEDS[:1]),
    Section(FUSED, partial(measure_engine, way=FUSED), 50, FUSED, NEEDS),
    Section("batches-fused", partial(share_forwards, way=FUSED), 20, FUSED, NEEDS),
    Section("compiled", compare_compiled, 100, "compiled"),
]
