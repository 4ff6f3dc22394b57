"""The bound of a long request's memory, against what the system counts."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from models import BASE
from specbench.bench.latency import shape_of
from specbench.bench.memory import RequestBound, measure_peak
from specbench.decode.walk import Walk
from specbench.profile import ModelShape
from specbench.target import chunks
from specbench.target.eager.engine import EagerEngine
from specbench.target.engine import SILENT
from specbench.target.fast.engine import FastEngine
from specbench.types import Needs

LENGTH, CHUNK, NODES = 4096, 256, 4
SHAPE = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 8}


def set_chunks(monkeypatch, chunk, cells):
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    monkeypatch.setattr(chunks, "CELLS", cells)


@pytest.mark.parametrize("kind", [EagerEngine, FastEngine])
def test_a_long_request_stays_within_its_bound_and_larger_chunks_do_not(kind, monkeypatch):
    torch.manual_seed(0)
    rest = {"num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": LENGTH + 1}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **{**BASE, **SHAPE, **rest})).eval()
    set_chunks(monkeypatch, CHUNK, CHUNK * 1024)
    bound = RequestBound.of(ModelShape(**shape_of(model)), 1, NODES, kind is EagerEngine)
    kept = 2 * 4 * 4 * 32 * 4  # keys and values: layers, heads, size, bytes
    assert kept < bound.token_bytes < 2.5 * kept
    prompt = [5 + token * token % 97 for token in range(LENGTH)]

    def peak_of(count):
        found = []
        for _ in range(2):  # what libraries take at their first call stays with the process
            engine = kind(model, LENGTH + 1, frozenset(), NODES)
            _, base = measure_peak(partial(engine.start, prompt[:8], 1, Walk(None, 0), Needs(), SILENT))
            _, peak = measure_peak(partial(engine.start, prompt[:count], 1, Walk(None, 0), Needs(), SILENT))
            found.append(peak - base)
        return min(found)

    assert kept * LENGTH < peak_of(LENGTH) < bound.at(LENGTH)
    set_chunks(monkeypatch, LENGTH // 2, LENGTH * LENGTH)
    assert peak_of(LENGTH) > bound.at(LENGTH)
