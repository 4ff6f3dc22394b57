"""Peak host memory of one long request, decoded and then judged, above that of the loaded model, against its bound.

    python -m scripts.lab memory model=tiny 'model.overrides={max_position_embeddings: 32768}' --context 16384 32768
    python -m scripts.lab memory model=random_110m model.random.config.max_position_embeddings=32768

The first arguments are those of ``specbench``. The resident memory is the high-water mark that Linux counts, reset
before each part; the prompt is made of phrases that repeat. Above the bound (``RequestBound``) the exit code is 1.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scripts.lab.materials import MIB, load_engine, print_head, print_row, repeating_tokens
from specbench.advise.latency import shape_of
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.method import Method
from specbench.models import tree
from specbench.models.engine import Engine
from specbench.models.facade import Target
from specbench.models.family import find_windows
from specbench.models.fast.cache import GROWTH
from specbench.profile import ModelShape

NODES = 256
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_HOST = 512  # [bytes] of a token in lists and in a drafter's index
_SLACK = 32 << 20  # [bytes] of libraries: threads' scratch, code, what an allocator keeps


def add_options(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("overrides", nargs="*", help="of specbench: model=..., method=...")
    parser.add_argument("--context", type=int, nargs="+", default=[16384, 32768], help="[tokens], the answer included")
    parser.add_argument("--tokens", type=int, default=32, help="of the answer")
    parser.add_argument("--engine", nargs="+", default=["eager", "fast"])


def run(given: Namespace) -> int:
    """Print a row an engine, method and context; returns 1 above the bound."""
    worst = 0.0
    print_head("engine", "method", "context", "decoded, MiB", "judged, MiB", "bound, MiB", "bytes a token",
               "larger / bound", left=(0, 1))  # fmt: skip
    for kind in given.engine:
        settings = ["method=[pld,token_recycling]", *given.overrides, f"engine={kind}", "suite.limit=1"]
        job, model, engine = load_engine(settings, NODES)
        shape, base, masked = ModelShape(**shape_of(model)), 0, any(find_windows(model.config).values())
        for entry in job.entries:
            entry.method.bind(Target(job.source.card, model, NODES, None))
            short = repeating_tokens(64, job.source.card.vocab_size)
            _, base = measure_peak(partial(_decode, engine, entry.method, short, 8))
        for count in sorted(given.context):
            prompt = repeating_tokens(count - given.tokens, job.source.card.vocab_size)
            for entry in job.entries:
                ids, decoded = measure_peak(partial(_decode, engine, entry.method, prompt, given.tokens))
                _, judged = measure_peak(partial(engine.gaps, prompt, ids))
                rows = count if entry.method.needs.prompt_topk else max(given.tokens, NODES + 1)
                bound = RequestBound.of(shape, rows, NODES, masked or kind == "eager")
                share = (max(decoded, judged) - base) / bound.at(count)
                sizes = [f"{size / MIB:.0f}" for size in (decoded - base, judged - base, bound.at(count))]
                print_row(kind, entry.name, count, *sizes, bound.token_bytes, f"{share:.2f}")
                worst = max(worst, share)
        for entry in job.entries:
            entry.method.close()
        engine.close()
    if worst > 1:
        print(f"memory is {worst:.2f} of its bound", file=sys.stderr)
    return int(worst > 1)


def _decode(engine: Engine, method: Method, prompt: list[int], tokens: int) -> list[int]:
    return decode(engine, method, Request(prompt, tokens, None, 0), Clock(engine.device)).ids


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
        """Compute the bound of a model.

        Args:
            shape: of the model.
            logits: the most rows of logits at once.
            nodes: of the largest draft.
            masked: whether prompts take masks.
        """
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
        """Return the bound [bytes] at ``context`` tokens, prompt and answer."""
        return self.token_bytes * context + self.rest_bytes


def measure_peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return a call's result, and the most memory [bytes] of this process during it: VmHWM, which Linux counts."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that glibc keeps would count (malloc_trim(3))
    _CLEAR.write_text("5")  # resets the mark to the present memory (proc(5))
    found = call()
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return found, 1024 * int(line.split()[1])
