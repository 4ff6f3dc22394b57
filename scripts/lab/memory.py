"""Compare the peak host memory of one long request, above that of the loaded model, with its bound.

    python -m scripts.lab memory model=tiny 'model.overrides={max_position_embeddings: 32768}' --context 16384 32768
    python -m scripts.lab memory model=random_110m model.random.config.max_position_embeddings=32768

The first arguments are those of ``specbench``. The resident memory is the high-water mark that
Linux counts, reset before the decoding and before the lossless check; the prompt is made of phrases
that repeat. If a peak exceeds the bound (``RequestBound``), the exit code is 1.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from scripts.lab.bench import add_overrides, load_engine, print_table, repeating_tokens
from specbench.decode.latency import shape_of
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.models import tree
from specbench.models.facade import Target
from specbench.models.family import find_windows
from specbench.models.fast.cache import GROWTH
from specbench.profile import ModelShape

NODES, MIB = 256, 1 << 20
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_HOST = 512  # [bytes] of a token in lists and in a drafter's index
_SLACK = 32 << 20  # [bytes] of libraries: threads' scratch, code, what an allocator keeps


def run(parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Print one row per engine, method and context; returns 1 if a peak exceeds its bound."""
    add_overrides(parser)
    contexts = [16384, 32768]
    parser.add_argument("--context", type=int, nargs="+", default=contexts, help="and the answer")
    parser.add_argument("--tokens", type=int, default=32, help="of the answer")
    parser.add_argument("--engine", nargs="+", default=["eager", "fast"])
    given = parser.parse_intermixed_args(arguments)
    shares = []

    def rows() -> Iterator[list[object]]:
        for kind in given.engine:
            settings = [*given.overrides, f"engine={kind}", "suite.limit=1"]
            job, model, engine = load_engine(["method=[pld,token_recycling]", *settings], NODES)
            card, methods = job.source.card, {entry.name: entry.method for entry in job.entries}
            shape, base, clock = shape_of(model), 0, Clock(engine.device)
            masked = kind == "eager" or any(find_windows(model.config).values())
            short = Request(repeating_tokens(64, card.vocab_size), 8, None, 0)
            for method in methods.values():
                method.bind(Target(card, model, NODES, None))
                _, base = measure_peak(partial(decode, engine, method, short, clock))
            for count, (name, method) in product(sorted(given.context), methods.items()):
                prompt = repeating_tokens(count - given.tokens, card.vocab_size)
                request = Request(prompt, given.tokens, None, 0)
                out, decoded = measure_peak(partial(decode, engine, method, request, clock))
                _, checked = measure_peak(partial(engine.gaps, prompt, out.ids))
                logits = count if method.needs.prompt_topk else max(given.tokens, NODES + 1)
                bound = RequestBound.of(shape, logits, NODES, masked)
                shares.append((max(decoded, checked) - base) / bound.at(count))
                sizes = (decoded - base, checked - base, bound.at(count))
                cells = [f"{size / MIB:.0f}" for size in sizes]
                yield [kind, name, count, *cells, bound.token_bytes, f"{shares[-1]:.2f}"]
            for method in methods.values():
                method.close()
            engine.close()

    columns = ("engine", "method", "context", "decoded, MiB", "checked, MiB", "bound, MiB")
    print_table((*columns, "bytes a token", "larger / bound"), rows(), left=(0, 1))
    if (worst := max(shares)) > 1:
        print(f"memory is {worst:.2f} of its bound", file=sys.stderr)
    return int(worst > 1)


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
        token = kept + shared + 2 * shape.hidden * shape.value_bytes + _HOST
        turned = (shape.heads + 2 * shape.kv_heads) * shape.head_dim  # queries, keys and values
        row = max(6 * turned, 2 * turned + 4 * shape.inner) + 6 * shape.hidden
        chunk = min(tree.CHUNK, logits) * 2 * shape.vocab + tree.CHUNK * row
        rest = shape.value_bytes * chunk
        mask = tree.CELLS * (shape.value_bytes + 2) if masked else 0  # as numbers, and twice as bits
        return cls(token, rest + mask + (nodes + GROWTH) * kept + _SLACK)

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
