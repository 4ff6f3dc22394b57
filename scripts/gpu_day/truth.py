"""Check that the fast engine is right on this machine, which kernels torch chooses, and the use of memory."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch

from scripts.gpu_day.day import Day, Goal, Section, ids_of
from scripts.gpu_day.kernels import compare_kernels, multiply_few_rows, plan_attention
from scripts.lab.materials import random_model
from specbench.decode.check import check_engine
from specbench.decode.walk import Walk
from specbench.measure.clock import Clock
from specbench.measure.environment import machine, versions
from specbench.method import Method
from specbench.models.eager.engine import EagerEngine
from specbench.models.fast.engine import FastEngine
from specbench.models.load import ASSETS, load_model, read_card
from specbench.types import Needs

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "vocab_size": 499, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.4, "pad_token_id": 0,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "mistral, window": ("mistral", {"sliding_window": 12}),
    "qwen2, mixed": ("qwen2", {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "phi3": ("phi3", {"sliding_window": None}),
}
TOKENS = 64


def describe_machine(day: Day) -> dict[str, Any]:
    """Describe the device, the machine and the versions, and list the missing packages of ``product``."""
    return {"device": str(day.device), "missing packages": missing_packages(), **versions(), **machine()}


def missing_packages() -> list[str]:
    """Return the packages that specbench depends on and that are not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [re.split(r"[<>=!\[; ]", line)[0] for line in project["dependencies"]]
    installed = {each.metadata["Name"].lower().replace("_", "-") for each in importlib.metadata.distributions()}
    return [name for name in wanted if name not in installed]


def compare_ids(day: Day) -> list[Goal]:
    """Compare ids and logits of the fast and the eager engine on small models of every family in float32."""
    day.bind(random_model("llama", SMALL, torch.float32, day.device))
    return equality(day.few_methods, day.device, day.cases)


def equality(methods: Mapping[str, Method], device: torch.device, cases: int) -> list[Goal]:
    """Count the requests whose ids differ between the engines, and measure the largest difference of logits.

    cases: requests of each family and method.
    """
    diverged, worst, requests = 0, 0.0, 0
    for family, extra in FAMILIES.values():
        model = random_model(family, {**SMALL, **extra}, torch.float32, device)
        engines = [kind(model, 512, frozenset(), 128) for kind in (EagerEngine, FastEngine)]
        check_engine(engines[1], model)
        eager, fast = (_read_logits(engine) for engine in engines)
        worst = max(worst, float((eager - fast).abs().max() / eager.abs().max()))
        for method, case in product(methods.values(), range(cases)):
            ids, others = (ids_of(engine, method, _prompt(case, 499), TOKENS) for engine in engines)
            diverged += ids != others
            requests += 1
    return [
        Goal(f"float32 ids that differ, of {requests} requests", float(diverged), 0),
        Goal("float32 logits, largest difference over their largest", worst, 1e-5),
    ]


@torch.inference_mode()
def _read_logits(engine: Any) -> torch.Tensor:
    needs = Needs(prompt_topk=499, node_topk=499)
    top = engine.start(_prompt(9, 499), 4, Walk(None, 0), needs, Clock(engine.device)).topk
    return torch.zeros_like(top.logits).scatter_(1, top.ids, top.logits)


def look_at_ties(day: Day) -> list[Goal]:
    """Count the requests whose ids differ between a method and vanilla for the bundled model in bfloat16.

    The gap at the difference is the amount by which the target's own teacher-forced logits prefer another token; it is
    small for a tie.
    """
    card = read_card(path=str(ASSETS / "tiny"), dtype="bfloat16", device=str(day.device))
    model = load_model(card)
    day.bind(model)
    engine = FastEngine(model, 1024, frozenset(), 128)
    diverged, requests, worst = 0, 0, 0.0
    for name, case in product([name for name in day.few_methods if name != "vanilla"], range(2 * day.cases)):
        prompt = _prompt(case, card.vocab_size)
        truth, ids = (ids_of(engine, day.methods[each], prompt, TOKENS) for each in ("vanilla", name))
        requests += 1
        if truth != ids:
            diverged += 1
            worst = max(worst, *engine.gaps(prompt, ids))
    kind = str(engine.dtype).removeprefix("torch.")
    return [
        Goal(f"{kind} ids that differ from vanilla's, of {requests} requests", float(diverged)),
        Goal(f"{kind} largest gap to the argmax where they differ", worst),
    ]


def _prompt(case: int, vocab: int) -> list[int]:
    """A prompt whose words repeat, so that lookups find drafts."""
    words = [[(31 * case + 7 * word + place) % vocab for place in range(5)] for word in range(6)]
    return [token for repeat in range(3) for word in words[repeat:] for token in word]


def grow_and_run_out(day: Day) -> list[Goal]:
    """Compare the ids of a short request before and after a long one, which moved the cache, and a failed one."""
    day.bind(day.model)
    engine, vanilla = day.engine, day.methods["vanilla"]
    short = day.prompts[0][:50]
    first = ids_of(engine, vanilla, short, day.tokens)
    ids_of(engine, vanilla, (day.prompts[0] * 40)[: engine.context - 200], day.tokens)
    after_long = ids_of(engine, vanilla, short, day.tokens)
    context, engine.context = engine.context, 1 << 42
    refused = 0.0
    try:
        engine.reserve(1 << 41)
    except RuntimeError:  # torch's error for memory that is not there
        refused = 1.0
    finally:
        engine.context = context
    after_refusal = ids_of(engine, vanilla, short, day.tokens)
    return [
        Goal("ids that differ after a long request", float(after_long != first), 0),
        Goal("a request without memory is refused", refused, 1, least=True),
        Goal("ids that differ after a request without memory", float(after_refusal != first), 0),
    ]


SECTIONS: list[tuple[str, Section]] = [
    ("machine", describe_machine),
    ("ids", compare_ids),
    ("ties", look_at_ties),
    ("plans", plan_attention),
    ("kernels", compare_kernels),
    ("products", multiply_few_rows),
    ("memory", grow_and_run_out),
]
