"""The fast engine of a 7B shape: what recording costs, forwards against their bounds, launches, host time, memory."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import Any

import torch
from day import Day
from torch.profiler import ProfilerActivity, profile

from methods.hf_compiled import HFCompiled
from scripts.lab.engine_check import ids_of
from scripts.lab.goals import Goal, against_generate, roofline, steadiness, steps
from specbench.decode.loop import Request, decode
from specbench.decode.walk import Walk
from specbench.measure.clock import Clock
from specbench.models.fast.attention import FLEX, FUSED, SDPA, TRITON
from specbench.models.fast.engine import FastEngine
from specbench.types import EMPTY, Draft, Needs

FED = (1, 2, 4, 8, 16, 64, 96)


def record(day: Day) -> list[Goal]:
    """Recordings of all widths and key lengths: how many, how long, how much memory."""
    return _record(day, day.engine)


def _record(day: Day, engine: FastEngine) -> list[Goal]:
    before = _held(day)
    start = time.perf_counter()
    engine.prepare(Needs(), True)
    seconds = time.perf_counter() - start
    return [
        Goal("recordings", float(len(engine.graphs) + len(engine.acceptances)), 60),
        Goal("recording", seconds, 30, unit="s"),
        Goal("memory of the recordings and their cache", (_held(day) - before) / 2**20, unit="MiB"),
    ]


def _held(day: Day) -> int:
    return torch.cuda.memory_reserved(day.device) if day.device.type == "cuda" else 0


def time_forwards(day: Day) -> list[Goal]:
    """T(tokens fed, context) over the bounds of the same process."""
    return _compare_with_bounds(day, day.engine, [480, 1024, 2000])


def _compare_with_bounds(day: Day, engine: FastEngine, contexts: list[int]) -> list[Goal]:
    if day.rehearse:
        return roofline(engine, day.model, [64], (1, 8), rounds=3, size=day.buffer_bytes)
    return roofline(engine, day.model, contexts, FED)


def try_our_kernels(day: Day, way: str) -> list[Goal]:
    """The engine with another ``engine.attention``: recordings, ids against SDPA's, forwards over the same bounds."""
    if day.device.type != "cuda":  # where our kernels do not run
        way = {TRITON: FLEX, FUSED: SDPA}[way]
    engine = day.make_engine(way)
    requests = [(name, prompt) for name in day.few_methods for prompt in day.prompts[:2]]
    parted = sum(
        ids_of(engine, day.methods[name], prompt, day.device, day.tokens)
        != ids_of(day.engine, day.methods[name], prompt, day.device, day.tokens)
        for name, prompt in requests
    )
    goals = [*_record(day, engine), Goal(f"ids by {way} that part from SDPA's, of {len(requests)}", float(parted))]
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
    return against_generate(day.engine, day.model, methods, day.prompts, day.tokens)


def compare_compiled(day: Day) -> list[Goal]:
    """Tokens/s of the library's compiled loop on a static cache, and of ours, over its plain one."""
    compiled = HFCompiled(compile=not day.rehearse)
    compiled.bind(day.target(day.model))
    methods = {"vanilla": day.methods["vanilla"], "hf_compiled": compiled}
    return against_generate(day.engine, day.model, methods, day.prompts[:3], day.tokens)


def time_the_host(day: Day) -> list[Goal]:
    """Host time a step that the device waits for, blocking reads, phases over the wall."""
    return steps(day.engine, day.methods, day.prompts[0], day.tokens)


def hold_memory(day: Day) -> list[Goal]:
    """Memory from case 10 to the last, and what keeping whole trees costs."""
    cases = 20 if day.rehearse else 400
    return steadiness(day.engine, day.methods["pld"], day.prompts[0][:64], day.tokens, cases)


SECTIONS = [
    ("recordings", record),
    ("forwards", time_forwards),
    (TRITON, partial(try_our_kernels, way=TRITON)),
    (FUSED, partial(try_our_kernels, way=FUSED)),
    ("launches", count_launches),
    ("waiting", forbid_waiting),
    ("loops", compare_loops),
    ("compiled", compare_compiled),
    ("host", time_the_host),
    ("steady", hold_memory),
]
