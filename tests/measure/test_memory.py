"""The bound of a long request's memory, against what the system counts."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from builders.models import BASE
from specbench.decode.latency import shape_of
from specbench.decode.walk import Walk
from specbench.models import tree
from specbench.models.eager.engine import EagerEngine
from specbench.models.engine import SILENT
from specbench.models.fast.cache import GROWTH
from specbench.models.fast.engine import FastEngine
from specbench.profile import ModelShape
from specbench.types import Needs

LENGTH, CHUNK, NODES = 4096, 256, 4
SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
}
HOST = 512  # [bytes] of a token in lists and in a drafter's index
SLACK = 32 << 20  # [bytes] of libraries: threads' scratch, code, what an allocator keeps
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class RequestBound:
    """The most memory [bytes] that one request on a CPU needs above the loaded model.

    Prompt, answer and lossless check are computed from the model's shape. Per token of context:
    keys and values, those of one layer twice if query heads share them, and a state. Per chunk: the
    mask, the results of a layer, the logits.
    """

    token_bytes: int
    rest_bytes: int

    @classmethod
    def of(cls, shape: ModelShape, logits: int, nodes: int, masked: bool) -> RequestBound:
        """Compute the bound of a model. logits: rows at most. nodes: of the largest draft.

        masked: prompts have masks too.
        """
        pair = 2 * shape.head_dim * shape.value_bytes  # of one head
        shared = pair * shape.heads if shape.kv_heads < shape.heads else 0
        kept = pair * shape.kv_heads * shape.layers
        token = kept + shared + 2 * shape.hidden * shape.value_bytes + HOST
        turned = (shape.heads + 2 * shape.kv_heads) * shape.head_dim  # queries, keys and values
        row = max(6 * turned, 2 * turned + 4 * shape.inner) + 6 * shape.hidden
        chunk = min(tree.CHUNK, logits) * 2 * shape.vocab + tree.CHUNK * row
        rest = shape.value_bytes * chunk
        # as numbers, and twice as bits
        mask = tree.CELLS * (shape.value_bytes + 2) if masked else 0
        return cls(token, rest + mask + (nodes + GROWTH) * kept + SLACK)

    def at(self, context: int) -> int:
        """Return the bound [bytes] at ``context`` tokens, prompt and answer."""
        return self.token_bytes * context + self.rest_bytes


def measure_peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return a call's result, and the most memory [bytes] of this process during it (VmHWM)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that glibc keeps would count (malloc_trim(3))
    _CLEAR.write_text("5")  # resets the mark to the present memory (proc(5))
    found = call()
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return found, 1024 * int(line.split()[1])


def measure_rise(kind, chunk, cells):
    """The bound per token and of a request in chunks of this size, and the peak of one request
    [bytes].
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tree.CHUNK, tree.CELLS = chunk, cells
    rest = {"num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": LENGTH + 1}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", **{**BASE, **SHAPE, **rest})
    ).eval()
    prompt = [5 + token * token % 97 for token in range(LENGTH)]
    engine = kind(model, LENGTH + 1, frozenset(), NODES)
    _, base = measure_peak(partial(engine.start, prompt[:8], 1, Walk(None, 0), Needs(), SILENT))
    _, peak = measure_peak(partial(engine.start, prompt, 1, Walk(None, 0), Needs(), SILENT))
    bound = RequestBound.of(shape_of(model), 1, NODES, kind is EagerEngine)
    return bound.token_bytes, bound.at(LENGTH), peak - base


@pytest.mark.parametrize(
    "kind", [pytest.param(EagerEngine, marks=pytest.mark.exhaustive), FastEngine]
)
def test_a_long_request_stays_within_its_bound_and_larger_chunks_do_not(kind):
    found = []
    for chunk, cells in ((CHUNK, CHUNK * 1024), (LENGTH, LENGTH * LENGTH)):
        # earlier memory of the process would count
        with ProcessPoolExecutor(1, get_context("forkserver")) as fresh:
            found.append(fresh.submit(measure_rise, kind, chunk, cells).result())
    token_bytes, bound, in_chunks = found[0]
    kept = 2 * 4 * 4 * 32 * 4  # keys and values: layers, heads, size, bytes
    assert kept < token_bytes < 2.5 * kept
    assert kept * LENGTH < in_chunks < bound < found[1][2]
