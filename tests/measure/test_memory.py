"""The bound of a long request's memory, against what the system counts."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from builders.models import BASE
from specbench.decode.walk import Walk
from specbench.models import tree
from specbench.models.eager.engine import EagerEngine
from specbench.models.engine import SILENT
from specbench.models.fast.engine import FastEngine
from specbench.types import Needs

LENGTH, CHUNK, NODES = 3072, 256, 4
SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": LENGTH + 1,
}
KEPT = LENGTH * 2 * 4 * 4 * 32 * 4  # [bytes] of keys and values: layers, heads, size, number
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure_peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return a call's result, and the most memory [bytes] of this process during it (VmHWM)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that glibc keeps would count (malloc_trim(3))
    _CLEAR.write_text("5")  # resets the mark to the present memory (proc(5))
    found = call()
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return found, 1024 * int(line.split()[1])


def measure_rise(kind, chunk, cells):
    """The most memory [bytes] of one request in chunks of this size, above a short one's."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tree.CHUNK, tree.CELLS = chunk, cells
    config = AutoConfig.for_model("llama", **BASE | SHAPE)
    model = AutoModelForCausalLM.from_config(config).eval()
    prompt = [5 + token * token % 97 for token in range(LENGTH)]
    engine = kind(model, LENGTH + 1, frozenset(), NODES)
    _, base = measure_peak(partial(engine.start, prompt[:8], 1, Walk(None, 0), Needs(), SILENT))
    _, peak = measure_peak(partial(engine.start, prompt, 1, Walk(None, 0), Needs(), SILENT))
    return peak - base


@pytest.mark.parametrize(
    "kind", [pytest.param(EagerEngine, marks=pytest.mark.exhaustive), FastEngine]
)
def test_a_long_request_stays_within_its_bound_and_larger_chunks_do_not(kind):
    """Twice its keys and values, and 40 MB for a chunk's mask, results and logits."""
    found = []
    for chunk, cells in ((CHUNK, CHUNK * 1024), (LENGTH, LENGTH * LENGTH)):
        # earlier memory of the process would count
        with ProcessPoolExecutor(1, get_context("forkserver")) as fresh:
            found.append(fresh.submit(measure_rise, kind, chunk, cells).result())
    in_chunks, at_once = found
    assert KEPT < in_chunks < 2 * KEPT + (40 << 20) < at_once
