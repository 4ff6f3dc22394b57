"""The memory that something takes, as the system and as Python count it."""

from __future__ import annotations

import ctypes
import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.models import tree
from specbench.models.fast.cache import GROWTH
from specbench.profile import ModelShape

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

_HOST = 512  # [bytes] of a token in lists and in a drafter's index
_SLACK = 32 << 20  # [bytes] of libraries: threads' scratch, code, what an allocator keeps


@dataclass(frozen=True, slots=True)
class RequestBound:
    """The most that one request on a CPU needs above the loaded model [bytes]: a part a token of context, and a rest.

    Prompt, answer and judgement are computed from the shape: keys and values, one layer's once more where query heads
    share them, a state a token; of one chunk the mask, the results of a layer, and the logits.
    """

    token_bytes: int
    rest_bytes: int

    @classmethod
    def of(cls, shape: ModelShape, logits: int, nodes: int, masked: bool) -> RequestBound:
        """logits: rows that are asked for at once at most. nodes: of the largest draft. masked: prompts take masks."""
        pair = 2 * shape.head_dim * shape.value_bytes  # of one head
        shared = pair * shape.heads if shape.kv_heads < shape.heads else 0
        kept = pair * shape.kv_heads * shape.layers
        token = kept + shared + 2 * shape.hidden * shape.value_bytes + _HOST
        turned = (shape.heads + 2 * shape.kv_heads) * shape.head_dim  # queries, keys and values of a token
        row = max(6 * turned, 2 * turned + 4 * shape.inner) + 6 * shape.hidden
        rest = shape.value_bytes * (min(tree.CHUNK, logits) * 2 * shape.vocab + tree.CHUNK * row)
        mask = tree.CELLS * (shape.value_bytes + 2) if masked else 0  # as numbers, and twice as bits
        return cls(token, rest + mask + (nodes + GROWTH) * kept + _SLACK)

    def at(self, context: int) -> int:
        """[bytes] at ``context`` tokens, prompt and answer."""
        return self.token_bytes * context + self.rest_bytes


def measure_peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """What ``call`` gives, and the most memory [bytes] that this process had meanwhile: VmHWM, which Linux counts."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what glibc keeps of memory that was freed would count (malloc_trim(3))
    _CLEAR.write_text("5")  # sets it to what is held now (proc(5))
    given = call()
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return given, 1024 * int(line.split()[1])


def measure_held(call: Callable[[], Any]) -> int:
    """[bytes] of Python's objects and arrays that what ``call`` gives keeps alive; torch's tensors are not counted."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = call()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        del kept
        return held
    finally:
        tracemalloc.stop()
