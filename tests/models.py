"""Random models of every family the runtime must serve, small enough to enumerate, and drafters that attack it."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.method import Drafter, Method
from specbench.types import Draft

VOCAB = 199
WINDOW = 12
BASE = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.4,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES = {
    "llama": ("llama", {}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": WINDOW}),
    "phi3": ("phi3", {"sliding_window": None}),
    "phi3-window": ("phi3", {"sliding_window": WINDOW}),
    "qwen2": ("qwen2", {}),
    "qwen2-mixed": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0}),
    "qwen3": ("qwen3", {"head_dim": 16}),
}

# Full attention, a window in every layer, in some: in every run; the others in a run of everything.
EVERY_FAMILY = [
    pytest.param(name, marks=[] if name in ("llama", "mistral-window", "qwen2-mixed") else pytest.mark.exhaustive)
    for name in FAMILIES
]


def build(family: str, dtype: torch.dtype = torch.float32, attention: str = "sdpa", seed: int = 0):
    """A seeded random model of ``family``."""
    kind, extra = FAMILIES[family]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**BASE, **extra})
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention).eval()


_GREEDY: dict[tuple, list[int]] = {}  # of a model and a prompt, as far as it was asked for


@torch.inference_mode()
def plain_greedy(model, prompt: list[int], count: int) -> list[int]:
    """Reference: no cache of keys, no mask of ours, the whole context every time. Computed once for equal weights."""
    weights = tuple((tuple(each.shape), each.dtype, float(each.double().sum())) for each in model.parameters())
    known = _GREEDY.setdefault((model.config.to_json_string(), weights, tuple(prompt)), [])
    while len(known) < count:
        ids = torch.tensor([[*prompt, *known]])
        known.append(int(model(ids, use_cache=False).logits[0, -1].argmax()))
    return known[:count]


class _ScriptedDrafter(Drafter):
    def __init__(self, method: Scripted, prompt_length: int) -> None:
        self.method, self.prompt_length = method, prompt_length
        self.random = random.Random(7)

    def propose(self, context, budget):
        return self.method.script(list(context), len(context) - self.prompt_length, self.random)


class Scripted(Method):
    """A method whose drafts are a function (context, emitted so far, random) -> Draft."""

    sources = ("script", "noise")

    def __init__(self, script) -> None:
        self.script = script

    def begin(self, prompt, prefill, seed):
        return _ScriptedDrafter(self, len(prompt))


def scripts(truth: list[int]) -> dict:
    """Drafters by name; ``truth`` is what the target will emit (long enough to draft past the end)."""

    def upcoming(done, count):
        return truth[done : done + count]

    def wrong(context, done, rng):
        return Draft.chain([(token + 1) % VOCAB for token in upcoming(done, 4)])

    def chain(context, done, rng):
        good = rng.randrange(0, 6)
        return Draft.chain([*upcoming(done, good), *(rng.randrange(VOCAB) for _ in range(2))])

    def oracle(context, done, rng):
        return Draft.chain(upcoming(done, 6))

    def wide(context, done, rng):
        """The true path hidden in a tree whose slots are not in path order; passengers below the root."""
        tokens, parents, last = [], [], -1
        for token in upcoming(done, rng.randrange(0, 5)):
            for _ in range(rng.randrange(0, 4)):
                tokens.append(rng.randrange(VOCAB))
                parents.append(rng.choice([-1, last, *range(len(tokens) - 1)]))
            tokens.append(token)
            parents.append(last)
            last = len(tokens) - 1
        passenger = [rng.random() < 0.1 for _ in tokens]
        return Draft(tokens, parents, passenger=passenger, source=[0] * len(tokens))

    def repeated(context, done, rng):
        """Siblings that repeat the right token; only the last twin carries the right child."""
        one = upcoming(done, 3)
        if len(one) < 3:
            return Draft()
        a, b, c = one
        return Draft([a, a, (b + 1) % VOCAB, b, a, c, b], [-1, -1, 0, 1, -1, 3, 4])

    def empty(context, done, rng):
        return Draft()

    def as_tensors(context, done, rng):
        return Draft(torch.tensor(upcoming(done, 3)), torch.arange(-1, len(upcoming(done, 3)) - 1))

    return {f.__name__: f for f in (empty, wrong, chain, oracle, wide, repeated, as_tensors)}
