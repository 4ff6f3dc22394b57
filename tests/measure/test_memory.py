"""The bound of a long request's memory, against what the system counts."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from builders.models import BASE
from scripts.lab.memory import RequestBound, measure_peak
from specbench.decode.latency import shape_of
from specbench.decode.walk import Walk
from specbench.models import tree
from specbench.models.eager.engine import EagerEngine
from specbench.models.engine import SILENT
from specbench.models.fast.engine import FastEngine
from specbench.types import Needs

LENGTH, CHUNK, NODES = 4096, 256, 4
SHAPE = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 8}


def measure_rise(kind, chunk, cells):
    """The bound per token and of a request in chunks of this size, and the peak of one request [bytes]."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tree.CHUNK, tree.CELLS = chunk, cells
    rest = {"num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": LENGTH + 1}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **{**BASE, **SHAPE, **rest})).eval()
    prompt = [5 + token * token % 97 for token in range(LENGTH)]
    engine = kind(model, LENGTH + 1, frozenset(), NODES)
    _, base = measure_peak(partial(engine.start, prompt[:8], 1, Walk(None, 0), Needs(), SILENT))
    _, peak = measure_peak(partial(engine.start, prompt, 1, Walk(None, 0), Needs(), SILENT))
    bound = RequestBound.of(shape_of(model), 1, NODES, kind is EagerEngine)
    return bound.token_bytes, bound.at(LENGTH), peak - base


@pytest.mark.parametrize("kind", [pytest.param(EagerEngine, marks=pytest.mark.exhaustive), FastEngine])
def test_a_long_request_stays_within_its_bound_and_larger_chunks_do_not(kind):
    found = []
    for chunk, cells in ((CHUNK, CHUNK * 1024), (LENGTH, LENGTH * LENGTH)):
        with ProcessPoolExecutor(1, get_context("forkserver")) as fresh:  # earlier memory of the process would count
            found.append(fresh.submit(measure_rise, kind, chunk, cells).result())
    token_bytes, bound, in_chunks = found[0]
    kept = 2 * 4 * 4 * 32 * 4  # keys and values: layers, heads, size, bytes
    assert kept < token_bytes < 2.5 * kept
    assert kept * LENGTH < in_chunks < bound < found[1][2]
