"""Long prompts and answers: the largest tensor grows with their length, and never has the logits of
all tokens.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from builders.models import BASE, FAMILIES
from specbench.decode.walk import Walk
from specbench.models import tree
from specbench.models.eager.engine import EagerEngine
from specbench.models.engine import SILENT
from specbench.models.fast.engine import FastEngine
from specbench.models.runner import CompactRunner
from specbench.types import Needs

CHUNK, LONG, CONTEXT, VOCAB = 32, 256, 600, 1024  # a row of logits is larger than one of any layer
NEEDS = Needs(hidden=(1,), prompt_hidden=True, prompt_topk=2, node_topk=2)


class Largest(TorchDispatchMode):
    """nbytes: of the largest tensor that an operation gave."""

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = [
            each.untyped_storage().nbytes() for each in tree_leaves(out) if isinstance(each, Tensor)
        ]
        self.nbytes = max([self.nbytes, *given])
        return out


def read_alone(engine, prompt, needs=NEEDS):
    return engine.start(prompt, 1, Walk(None, 0), needs, SILENT)


def read_only(engine, prompt):
    return read_alone(engine, prompt, Needs())


def judge(engine, prompt):
    half = len(prompt) // 2
    return engine.gaps(prompt[:half], prompt[half:])


def read_in_batch(engine, prompt):
    batch = engine.batch(1, len(prompt) + 1)
    return batch.prefill(batch.open(prompt, 1, Walk(None, 0), NEEDS))


def draft(engine, prompt):
    runner = CompactRunner(engine.model, CONTEXT)
    return runner.run(runner.new_cache(), prompt, range(len(prompt)), None, 1)


CALLS = (read_alone, judge, read_in_batch)
PLACES = [
    (kind, family)
    for kind in (EagerEngine, FastEngine)
    for family in ("llama", "mistral-window", "qwen2-mixed")
]


def prompt_of(count):
    return [5 + token * token % 97 for token in range(count)]


def measure(call, engine, count):
    """[bytes]"""
    with Largest() as found:
        call(engine, prompt_of(count))
    return found.nbytes


def engine_of(kind, family):
    name, extra = FAMILIES[family]
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        name, **{**BASE, **extra, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT}
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    engine = kind(model, CONTEXT, frozenset(), 4)
    engine.model = model
    return engine


@pytest.mark.parametrize(("kind", "family"), PLACES)
def test_memory_grows_with_the_length(kind, family, monkeypatch):
    monkeypatch.setattr(tree, "CHUNK", CHUNK)
    for call in (*CALLS, *([draft] if kind is FastEngine else [])):
        one, two = (measure(call, engine_of(kind, family), count) for count in (LONG, 2 * LONG))
        assert two <= 2.2 * one, call.__name__
        assert two < 4 * LONG * VOCAB, call.__name__  # half of the logits, in float32


@pytest.mark.parametrize("kind", [EagerEngine, FastEngine])
def test_the_measure_sees_masks_and_logits_of_all_tokens(kind, monkeypatch):
    monkeypatch.setattr(tree, "CHUNK", 4 * LONG)
    assert measure(read_alone, engine_of(kind, "llama"), 2 * LONG) >= 4 * 2 * LONG * VOCAB
    one, two = (
        measure(read_only, engine_of(kind, "mistral-window"), count) for count in (LONG, 2 * LONG)
    )
    assert two > 3.5 * one


@pytest.mark.parametrize(("kind", "family"), PLACES)
def test_a_prompt_in_chunks_is_a_prompt_as_a_whole(kind, family, monkeypatch):
    engine, prompt = engine_of(kind, family), prompt_of(75)
    whole, gaps = read_alone(engine, prompt), judge(engine, prompt)
    monkeypatch.setattr(tree, "CHUNK", CHUNK)
    for parts in (read_alone(engine, prompt), read_in_batch(engine, prompt)):
        assert parts.token == whole.token
        assert parts.topk.ids.tolist() == whole.topk.ids.tolist()
        torch.testing.assert_close(parts.topk.logits, whole.topk.logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(parts.hidden[1], whole.hidden[1], rtol=1e-4, atol=1e-4)
    assert judge(engine, prompt) == pytest.approx(gaps, abs=1e-4)


@torch.inference_mode()
def test_a_draft_model_with_a_window_reads_a_prompt_in_chunks(monkeypatch):
    # longer than what compiled code reads
    engine, prompt = engine_of(FastEngine, "qwen2-mixed"), prompt_of(200)
    whole = draft(engine, prompt)
    monkeypatch.setattr(tree, "CHUNK", CHUNK)
    torch.testing.assert_close(draft(engine, prompt), whole, rtol=1e-4, atol=1e-4)
