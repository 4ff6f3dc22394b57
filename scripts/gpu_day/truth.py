"""Which kernels are chosen and what they cost, whether the fast engine is right here, and what memory does."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from day import Day
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from specbench.bench.ceilings import measure_ceilings
from specbench.bench.engine_check import SMALL, equality, ids_of, random_model, ties
from specbench.bench.goals import Goal
from specbench.target.fast.attention import FLEX, TRITON, TreeMask, find_attention, pack_bits
from specbench.target.load import ASSETS, load_model, read_card
from specbench.types import InputError

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
HEAD = 128  # size of a head of the 7B shape
ROUNDS = 20
FLEX_SHAPES = [(2048, 8), (2048, 64)]  # (keys, rows): each is compiled, in many seconds
PRODUCTS = [(4096, 12288), (4096, 4096), (4096, 22016), (11008, 4096), (4096, 32000)]  # of the 7B shape
Call = Callable[[], Any]


def describe_machine(day: Day) -> dict[str, Any]:
    """What a reader of the other figures must know, and the packages of ``product`` that are missing here."""
    found: dict[str, Any] = {"device": str(day.device), "torch": torch.__version__, "missing": missing_packages()}
    if day.device.type != "cuda":
        return found
    name = torch.cuda.get_device_properties(day.device)
    query = "driver_version,power.limit,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu"
    told = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv"], capture_output=True, text=True,
                          check=False)  # fmt: skip
    return found | {
        "gpu": f"{name.name}, {name.multi_processor_count} SMs, {name.total_memory / 2**30:.1f} GiB",
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "nvidia-smi": told.stdout.strip(),
    }  # fmt: skip


def missing_packages() -> list[str]:
    """What the package depends on and this interpreter has not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [re.split(r"[<>=!\[; ]", line)[0] for line in project["dependencies"]]
    held = {each.metadata["Name"].lower().replace("_", "-") for each in importlib.metadata.distributions()}
    return [name for name in wanted if name not in held]


def milliseconds(day: Day, call: Call) -> float:
    """Of a call, the median of some rounds after one that does not count."""
    times = []
    for _ in range(3 if day.rehearse else ROUNDS):
        wait(day)
        start = time.perf_counter()
        call()
        wait(day)
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times[1:])[len(times[1:]) // 2]


def wait(day: Day) -> None:
    """For the device."""
    if day.device.type == "cuda":
        torch.cuda.synchronize(day.device)


def attention_inputs(day: Day, rows: int, keys: int, heads: int, masked: bool) -> tuple[Tensor, Tensor, Tensor, Any]:
    """(1, 32, rows, D) queries, (1, heads, keys, D) keys and values, and an additive mask or None."""
    numbers = torch.randn(3, 1, 32, max(rows, keys), HEAD, device=day.device, dtype=day.dtype)
    mask = torch.zeros(1, 1, rows, keys, device=day.device, dtype=day.dtype) if masked else None
    if mask is not None and keys > rows:
        mask[..., -rows:] = torch.full((rows, rows), float("-inf")).triu(1).to(mask)
    return numbers[0, :, :, :rows], numbers[1, :, :heads, :keys], numbers[2, :, :heads, :keys], mask


def plan_attention(day: Day) -> list[dict[str, Any]]:
    """Torch's kernels: the first call of a shape, which plans, against later ones [ms]; '' = does not take it.

    Prompts of lengths next to each other show what a plan of an exact shape costs.
    """
    shapes = [(rows, keys, masked) for rows in (1, 8, 64, 96) for keys in (512, 2048) for masked in (False, True)]
    shapes += [(count, count, True) for count in (401, 402, 403)]
    rows = []
    for backend, kind in BACKENDS.items():
        for count, keys, masked in shapes[:3] if day.rehearse else shapes:
            query, key, value, mask = attention_inputs(day, count, keys, 32, masked)

            def call(query: Tensor = query, key: Tensor = key, value: Tensor = value, mask: Any = mask) -> Tensor:
                return scaled_dot_product_attention(query, key, value, mask)

            row = {"kernel": backend, "rows": count, "keys": keys, "mask": "yes" if masked else "no"}
            rows.append(row | _first_and_later(day, kind, call))
    return rows


def _first_and_later(day: Day, kind: SDPBackend, call: Call) -> dict[str, Any]:
    try:
        with sdpa_kernel(kind):
            wait(day)
            start = time.perf_counter()
            call()
            wait(day)
            first = 1e3 * (time.perf_counter() - start)
            return {"first, ms": first, "later, ms": milliseconds(day, call)}
    except RuntimeError as error:  # torch's word for a kernel that does not take such a call
        return {"first, ms": "", "later, ms": "", "why not": str(error).splitlines()[0][:80]}


def compare_kernels(day: Day) -> list[dict[str, Any]]:
    """Attention of a tree's rows by each kernel [us], over what reading the keys and values once would take."""
    read_s = 1 / (measure_ceilings(day.device, day.dtype, day.buffer).read_gb_s * 1e9)
    rows = []
    for count, keys, heads in _kernel_shapes(day):
        query, key, value, mask = attention_inputs(day, count, keys, heads, count > 1)
        bound = 2 * key.nbytes * read_s
        row: dict[str, Any] = {"rows": count, "keys": keys, "kv heads": heads, "bound, us": 1e6 * bound}
        for backend, kind in BACKENDS.items():

            def call(query: Tensor = query, key: Tensor = key, value: Tensor = value, mask: Any = mask) -> Tensor:
                return scaled_dot_product_attention(query, key, value, mask, enable_gqa=key.shape[1] != query.shape[1])

            later = _first_and_later(day, kind, call)["later, ms"]
            row[f"{backend}, us"] = 1e3 * later if later != "" else ""
        row["triton, us"] = _time_tree(day, TRITON, count, keys, heads)
        if day.rehearse or (keys, count) in FLEX_SHAPES:
            row["flex, us"] = _time_tree(day, FLEX, count, keys, heads)
        rows.append(row)
    return rows


def _time_tree(day: Day, way: str, count: int, keys: int, heads: int) -> float | str:
    """[us] of attention that reads lengths and ancestors on the device; '' where it does not run here."""
    try:
        attend = find_attention(way, day.device, day.dtype, HEAD)
    except InputError:
        return ""
    assert attend is not None
    steps = torch.arange(count, device=day.device)
    bits = torch.from_numpy(pack_bits(np.tri(count, dtype=bool))).to(day.device)
    mask = TreeMask(attend, torch.tensor([keys - count], device=day.device), steps, bits, None)
    query = torch.randn(count, 32, HEAD, device=day.device, dtype=day.dtype)
    held = torch.randn(2, 1, heads, keys, HEAD, device=day.device, dtype=day.dtype)
    return 1e3 * milliseconds(day, lambda: attend(query, held[0], held[1], mask))


def _kernel_shapes(day: Day) -> Iterator[tuple[int, int, int]]:
    """(rows fed, keys read, heads of keys)."""
    wide = ((1, 8), (512,), (32,)) if day.rehearse else ((1, 8, 64, 96), (512, 2048, 8192), (32, 8))
    return ((count, keys, heads) for count in wide[0] for keys in wide[1] for heads in wide[2])


def multiply_few_rows(day: Day) -> list[dict[str, Any]]:
    """The 7B shape's matrix products at few rows [us], over reading the weight once."""
    read_s = 1 / (measure_ceilings(day.device, day.dtype, day.buffer).read_gb_s * 1e9)
    shapes = [(256, 704)] if day.rehearse else PRODUCTS
    rows = []
    for inner, outer in shapes:
        weight = torch.randn(outer, inner, device=day.device, dtype=day.dtype)
        for count in (1, 2, 4, 8, 16, 32, 64, 96):
            given = torch.randn(count, inner, device=day.device, dtype=day.dtype)
            took = 1e3 * milliseconds(day, lambda given=given, weight=weight: torch.nn.functional.linear(given, weight))
            rows.append({"weight": f"{inner} x {outer}", "rows": count, "us": took,
                         "over the bound": took / (1e6 * weight.nbytes * read_s)})  # fmt: skip
    return rows


def compare_ids(day: Day) -> list[Goal]:
    """Small models of every family in float32: the fast engine's ids and logits against the eager one's."""
    day.bind(random_model("llama", SMALL, torch.float32, day.device))
    chosen = list(day.methods)[:2] if day.rehearse else list(day.methods)
    return equality({name: day.methods[name] for name in chosen}, day.device)


def look_at_ties(day: Day) -> list[Goal]:
    """The bundled model in bfloat16: how often ids part from vanilla's, and by what gap at most."""
    card = read_card(path=str(ASSETS / "tiny"), dtype="bfloat16", device=str(day.device))
    model = load_model(card)
    day.bind(model)
    return ties(model, day.methods, card.vocab_size)


def grow_and_run_out(day: Day) -> list[Goal]:
    """Ids of a short request: at first, behind a long one that moved the cache, and behind one without memory."""
    day.bind(day.model)
    engine, vanilla = day.engine, day.methods["vanilla"]
    short = day.prompts[0][:50]
    first = ids_of(engine, vanilla, short, day.device)
    ids_of(engine, vanilla, (day.prompts[0] * 40)[: engine.context - 200], day.device)
    behind_long = ids_of(engine, vanilla, short, day.device)
    context, engine.context = engine.context, 1 << 42
    refused = 0.0
    try:
        engine.reserve(1 << 41)
    except RuntimeError:  # torch's error for memory that is not there
        refused = 1.0
    finally:
        engine.context = context
    behind_none = ids_of(engine, vanilla, short, day.device)
    return [
        Goal("ids that part behind a long request", float(behind_long != first), 0),
        Goal("a request without memory is refused", refused, 1, least=True),
        Goal("ids that part behind a request without memory", float(behind_none != first), 0),
    ]


SECTIONS = [
    ("machine", describe_machine),
    ("ids", compare_ids),
    ("ties", look_at_ties),
    ("plans", plan_attention),
    ("kernels", compare_kernels),
    ("products", multiply_few_rows),
    ("memory", grow_and_run_out),
]
