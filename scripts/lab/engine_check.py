"""The fast engine against the eager one on this device: ids, logits, and in half precision where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from scripts.lab.goals import Goal
from specbench.decode.check import check_engine
from specbench.decode.loop import Request, decode
from specbench.decode.walk import Walk
from specbench.measure.clock import Clock
from specbench.method import Method
from specbench.models.eager.engine import EagerEngine
from specbench.models.fast.engine import FastEngine
from specbench.types import Needs

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
TOKENS, CASES = 64, 4


def random_model(family: str, sizes: Mapping[str, Any], dtype: torch.dtype, device: torch.device, seed: int = 0) -> Any:
    """A seeded causal LM, made on the device itself."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **sizes)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


def equality(methods: Mapping[str, Method], device: torch.device, cases: int = CASES) -> list[Goal]:
    """Small models of every family in float32: requests whose ids part, and the logits' largest relative difference.

    cases: requests of each family and method.
    """
    parted, worst, requests = 0, 0.0, 0
    for family, extra in FAMILIES.values():
        model = random_model(family, {**SMALL, **extra}, torch.float32, device)
        engines = [kind(model, 512, frozenset(), 128) for kind in (EagerEngine, FastEngine)]
        check_engine(engines[1], model)
        worst = max(worst, _apart(engines, model))
        for method in methods.values():
            for case in range(cases):
                eager, fast = (ids_of(engine, method, _prompt(case, 499), device) for engine in engines)
                parted += eager != fast
                requests += 1
    return [
        Goal(f"float32 ids that part, of {requests} requests", float(parted), 0),
        Goal("float32 logits, largest difference over their largest", worst, 1e-5),
    ]


@torch.inference_mode()
def _apart(engines: list[Any], model: Any) -> float:
    prompt, needs = _prompt(9, 499), Needs(prompt_topk=499, node_topk=499)
    rows = []
    for engine in engines:
        top = engine.start(prompt, 4, Walk(None, 0), needs, Clock(engine.device)).topk
        rows.append(torch.zeros_like(top.logits).scatter_(1, top.ids, top.logits))
    return float((rows[0] - rows[1]).abs().max() / rows[0].abs().max())


def ties(model: Any, methods: Mapping[str, Method], vocab: int, cases: int = 2 * CASES) -> list[Goal]:
    """A model in half precision: requests whose ids part between a method and vanilla, and the gap where they do.

    The gap is by how much the target's own teacher-forced logits prefer another token: a tie is small.
    cases: requests of each method.
    """
    engine = FastEngine(model, 1024, frozenset(), 128)
    parted, requests, worst = 0, 0, 0.0
    for name in methods:
        for case in range(cases) if name != "vanilla" else ():
            prompt = _prompt(case, vocab)
            truth, ids = (ids_of(engine, methods[each], prompt, engine.device) for each in ("vanilla", name))
            requests += 1
            if truth != ids:
                parted += 1
                worst = max(worst, *engine.gaps(prompt, ids))
    kind = str(engine.dtype).removeprefix("torch.")
    return [
        Goal(f"{kind} ids that part from vanilla's, of {requests} requests", float(parted)),
        Goal(f"{kind} largest gap to the argmax where they part", worst),
    ]


def ids_of(engine: Any, method: Method, prompt: list[int], device: torch.device, tokens: int = TOKENS) -> list[int]:
    """What a method emits for one request, after a reset."""
    method.reset()
    return decode(engine, method, Request(prompt, tokens, None, 0), Clock(device)).ids


def _prompt(case: int, vocab: int) -> list[int]:
    """A prompt whose words repeat, so that lookups find drafts."""
    words = [[(31 * case + 7 * word + place) % vocab for place in range(5)] for word in range(6)]
    return [token for repeat in range(3) for word in words[repeat:] for token in word]
