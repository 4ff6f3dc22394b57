"""Count what each method costs per step in addition to the target's forward.

    python -m scripts.lab overhead pld token_recycling cacheback --engine eager

The target is a 32-layer Llama with random weights. Columns, per decode step: operations of the
forward; operations outside it (launches on a GPU), including a draft model's; of these the cache
compaction; synchronisations; host time outside the forward, the median over requests. The counts
are deterministic, while wall time on a shared machine is noise: on a GPU every operation is a
kernel launch, and every synchronisation empties the queue.
"""

from __future__ import annotations

import contextlib
import statistics
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scripts.lab.bench import print_table
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.method import Method, Peer
from specbench.models.choose import make_engine
from specbench.models.facade import Target
from specbench.models.fast.attention import FastOptions
from specbench.models.load import load_model
from specbench.records.record import EngineKind
from specbench.runs.job import job_of

SIZES = ("num_hidden_layers=32", "hidden_size=64", "intermediate_size=128", "vocab_size=2048")
SETTINGS = [f"model.random.config.{size}" for size in SIZES]
SETTINGS += ["model=random", "model.draft=bundled:tiny_draft"]
SETTINGS += ["+model.frozen_table=bundled:tiny/frozen_table.safetensors"]
SETTINGS += ["+model.datastore=bundled:tiny/datastore.safetensors"]
HEADS = ("eagle", "eagle3", "p_eagle", "dflash", "mtp", "medusa", "hydra")
SETTINGS += [f"model.heads.{name}=random" for name in HEADS]
DEFAULT = ["pld", "speculative_sampling", "token_recycling", "cacheback"]
DEFAULT += ["hf_generate", "hf_prompt_lookup"]
TOKENS = 48  # of an answer
Prompts = Sequence[Sequence[int]]
READ_BACKS = ("tolist", "numpy")  # these do not pass the dispatcher
# item(), bool(), int(), float(): inference mode shows the first, other modes the second
SCALARS = {"aten::item", "aten::_local_scalar_dense"}
SCALARS |= {"aten::nonzero", "aten::is_nonzero", "aten::equal"}
FREE = ("aten::detach_",)


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print one row per method."""
    parser.add_argument("methods", nargs="*", default=DEFAULT)
    parser.add_argument(
        "--engine", choices=(EngineKind.FAST, EngineKind.EAGER), default=EngineKind.FAST
    )
    given = parser.parse_intermixed_args(arguments)
    torch.set_num_threads(1)
    methods = f"method=[{','.join(given.methods)}]"
    job = job_of([*SETTINGS, methods, "suite.categories=[rag]", "suite.limit=5"])
    card = replace(job.source.card, eos=frozenset())
    assert job.source.prompts is not None
    prompts = [job.source.prompts.ids(case.turns[:1], []) for case in job.source.suite.cases]
    model, options = load_model(job.source.card), FastOptions(compiled=False)

    def rows() -> Iterator[list[str]]:
        for entry in job.entries:
            engine = make_engine(given.engine, model, card, 256, "sdpa", options)[0]
            entry.method.bind(Target(job.source.card, model, 256, None))
            entry.method.reset()
            yield [entry.name, *count_operations(entry.method, engine, model, prompts)]

    columns = ("method", "forward ops", "other ops", "of these compaction", "syncs", "host us")
    print_table(columns, rows())


def count_operations(method: Method, engine: Any, model: Any, prompts: Prompts) -> list[str]:
    """Count one method's operations, as cells of the table.

    The loop of a peer cannot be divided: its prefill counts as a step, and its host time is blank.
    """
    clock, counter, times = Clock(engine.device), OpCounter(), []
    for prompt in prompts:
        out = decode(engine, method, Request(prompt, TOKENS, None, 0), clock)
        if phases := out.phases_s:
            times.append(1e6 * (sum(phases.values()) - phases["forward"]) / len(out.accept))
    fast = engine.kind == EngineKind.FAST
    ours = fast and not isinstance(method, Peer)
    watched = {"forward": (engine, "compute") if ours else (model, "forward")}
    watched |= {
        "compaction": (engine.cache, "move" if fast else "keep"),
        "prefill": (engine, "start"),
    }
    for section, (owner, call) in watched.items():
        setattr(owner, call, counter.within(section, getattr(owner, call)))
    with counter.counting():
        out = decode(engine, method, Request(prompts[0], TOKENS, None, 0), clock)
    for owner, call in watched.values():
        delattr(owner, call)  # the class's own again
    steps, moved = len(out.accept) + isinstance(method, Peer), counter.ops["compaction"]
    forwards = len(out.accept) + (not ours)  # the eager engine reads the prompt in the same forward
    counts = (counter.ops["rest"] + moved, moved, counter.syncs["rest"])
    cells = [f"{count / steps:.1f}" for count in counts]
    host = f"{statistics.median(times):.0f}" if times else ""
    return [f"{counter.ops['forward'] / forwards:.0f}", *cells, host]


class OpCounter(TorchDispatchMode):
    """Counts operations that are not views, and synchronisations, in ``ops`` and ``syncs``.

    Both are by section. Sections nest, and the innermost counts; outside all of them it is
    ``rest``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()
        self._section = "rest"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name in SCALARS:
            self.syncs[self._section] += 1
        elif name not in FREE and not (func.is_view and _shares(out, args[0])):
            self.ops[self._section] += 1
        return out

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Count under ``name`` inside the block."""
        outer, self._section = self._section, name
        try:
            yield
        finally:
            self._section = outer

    def within(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, counted under ``name``."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.section(name):
                return call(*args, **kwargs)

        return counted

    @contextlib.contextmanager
    def counting(self) -> Iterator[OpCounter]:
        """Count everything inside the block, read-backs of complete tensors included."""

        def watched(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                self.syncs[self._section] += 1
                return original(tensor, *args, **kwargs)

            return call

        stand_ins: Any = {name: watched(getattr(torch.Tensor, name)) for name in READ_BACKS}
        with mock.patch.multiple(torch.Tensor, **stand_ins), self:
            yield self


def _shares(out: Any, source: Any) -> bool:
    """Return whether nothing was computed: ``to`` and others copy only if they must."""
    if not isinstance(out, torch.Tensor) or not isinstance(source, torch.Tensor):
        return True
    return out.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
