"""Count what each method costs per step in addition to the target's forward, on a 32-layer Llama with random weights.

    python -m scripts.lab overhead pld token_recycling cacheback --engine eager, or --transfers

Columns, per decode step: operations of the forward; operations outside it (launches on a GPU), including a draft
model's; of these the cache compaction; synchronisations; host time outside the forward, the median over requests. The
counts are deterministic, while wall time on a shared machine is noise: on a GPU every operation is a kernel launch, and
every synchronisation empties the queue. With --transfers: copies between host and device per step that wait for the
device, counted on tensors labelled cuda:0.
"""

from __future__ import annotations

import contextlib
import statistics
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scripts.lab.fake_cuda import DEVICE, READ, UPLOAD, FakeCuda
from scripts.lab.materials import print_table
from specbench.decode.loop import Request, Transcript, decode
from specbench.decode.sampling import Sampling
from specbench.measure.clock import Clock
from specbench.method import Method, Peer
from specbench.models.choose import make_engine
from specbench.models.facade import ModelCard, Target
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.graphs import Buckets
from specbench.models.load import load_model
from specbench.records.record import EngineKind

SHAPE = ["model=random", "model.draft=bundled:tiny_draft", "+model.frozen_table=bundled:tiny/frozen_table.safetensors",
         "+model.datastore=bundled:tiny/datastore.safetensors",
         *(f"model.heads.{name}=random" for name in ("eagle", "eagle3", "p_eagle", "dflash", "mtp", "medusa", "hydra")),
         *(f"model.random.config.{size}" for size in ("hidden_size=64", "intermediate_size=128",
                                                      "vocab_size=2048"))]  # fmt: skip
DEFAULT = ["pld", "speculative_sampling", "token_recycling", "cacheback", "hf_generate", "hf_prompt_lookup"]
READ_BACKS = ("tolist", "numpy")  # these do not pass the dispatcher
# item(), bool(), int(), float(): inference mode shows the first, other modes the second, of which it is made
SCALARS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal")
FREE = ("aten::detach_",)


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print one row per method."""
    from specbench.runs.job import job_of  # here, as a GPU day counts operations without Hydra

    parser.add_argument("methods", nargs="*", default=DEFAULT)
    parser.add_argument("--engine", choices=(EngineKind.FAST, EngineKind.EAGER), default=EngineKind.FAST)
    parser.add_argument("--transfers", action="store_true")
    given = parser.parse_intermixed_args(arguments)
    torch.set_num_threads(1)
    layers = f"model.random.config.num_hidden_layers={2 if given.transfers else 32}"  # transfers do not depend on them
    job = job_of([*SHAPE, layers, f"method=[{','.join(given.methods)}]", "suite.categories=[rag]", "suite.limit=5"])
    card = replace(job.source.card, eos=frozenset())
    assert job.source.prompts is not None
    prompts = [job.source.prompts.ids(case.turns[:1], []) for case in job.source.suite.cases]
    if given.transfers:
        return print_transfers({entry.name: entry.method for entry in job.entries}, card, prompts[0])
    model = load_model(job.source.card)

    def rows() -> Iterator[list[str]]:
        for entry in job.entries:
            engine = make_engine(given.engine, model, card, 256, "sdpa", FastOptions(compiled=False))[0]
            entry.method.bind(Target(job.source.card, model, 256, None))
            entry.method.reset()
            yield [entry.name, *count_operations(entry.method, engine, model, prompts)]

    print_table(("method", "forward ops", "other ops", "of these compaction", "syncs", "host us"), rows())


def count_operations(
    method: Method, engine: Any, model: Any, prompts: Sequence[Sequence[int]], tokens: int = 48
) -> list[str]:
    """Count one method's operations, as cells of the table.

    The loop of a peer cannot be divided: its prefill counts as a step, and its host time is blank.
    """
    clock, counter = Clock(engine.device), OpCounter()
    outs = [decode(engine, method, Request(prompt, tokens, None, 0), clock) for prompt in prompts]
    times = [1e6 * (sum(each.values()) - each["forward"]) / len(out.accept) for out in outs if (each := out.phases_s)]
    fast = engine.kind == EngineKind.FAST
    ours = fast and not isinstance(method, Peer)
    watched = {"forward": (engine, "compute") if ours else (model, "forward")}
    watched |= {"compaction": (engine.cache, "move" if fast else "keep"), "prefill": (engine, "start")}
    for section, (owner, call) in watched.items():
        setattr(owner, call, counter.within(section, getattr(owner, call)))
    with counter.counting():
        out = decode(engine, method, Request(prompts[0], tokens, None, 0), clock)
    for owner, call in watched.values():
        delattr(owner, call)  # the class's own again
    steps, moved = len(out.accept) + isinstance(method, Peer), counter.ops["compaction"]
    forwards = len(out.accept) + (not ours)  # the eager engine reads the prompt in the same forward
    cells = [f"{count / steps:.1f}" for count in (counter.ops["rest"] + moved, moved, counter.syncs["rest"])]
    cells += [f"{statistics.median(times):.0f}" if times else ""]
    return [f"{counter.ops['forward'] / forwards:.0f}", *cells]


class OpCounter(TorchDispatchMode):
    """Counts operations that are not views, and synchronisations, in ``ops`` and ``syncs`` by section.

    Sections nest, and the innermost counts; the name outside every ``section`` block is ``rest``.
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

        stand_ins: dict[str, Any] = {name: watched(getattr(torch.Tensor, name)) for name in READ_BACKS}
        with mock.patch.multiple(torch.Tensor, **stand_ins), self:
            yield self


def _shares(out: Any, source: Any) -> bool:
    """Return whether nothing was computed: ``to``, ``reshape`` and similar operations copy only if they must."""
    if not isinstance(out, torch.Tensor) or not isinstance(source, torch.Tensor):
        return True
    return out.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()


class TransferClock(Clock):
    """A clock that counts transfers. steps_of: the (read-backs, uploads) of each step that wait for the device.

    drafting: launches while the method drafts; a recorded call counts as one.
    late: keys of the calls that were recorded while it decoded, not before: of the engine and of a draft model.
    """

    late: frozenset[Any] = frozenset()

    def __init__(self, mode: FakeCuda) -> None:
        self.mode, self.drafting, self._launched = mode, 0, 0
        self.steps_of: list[tuple[int, int]] = []
        super().__init__(torch.device("cpu"))

    def _now(self) -> tuple[int, int]:
        return self.mode.blocking[READ], self.mode.blocking[UPLOAD]

    def start(self) -> None:
        """Begin a request; nothing is counted before the first step."""
        super().start()
        self._open = False

    def lap(self, phase: str) -> None:
        """Count a phase's launches; the steps begin after the first update, in which a method reads the prompt."""
        if phase == "update" and not self._open:
            self._open, self._seen = True, self._now()
        if phase == "draft":
            self.drafting += self.mode.launched - self._launched
        self._launched = self.mode.launched

    def mark(self) -> None:
        if self._open:
            now = self._now()
            self.steps_of.append((now[0] - self._seen[0], now[1] - self._seen[1]))
            self._seen = now


def count_transfers(
    method: Method, card: ModelCard, prompt: Sequence[int], tokens: int, sampling: Sampling | None, max_nodes: int = 256
) -> tuple[Transcript, TransferClock]:
    """Decode one request on the fast engine with labelled tensors; returns the transcript and the counts.

    card: of the target, on the CPU. Raises DeviceMixError if a GPU would refuse an operation.
    """
    model: Any = load_model(card)
    card = replace(card, device=str(DEVICE))
    with FakeCuda() as mode:
        model.to(DEVICE)
        buckets = Buckets((1, 8, 64, max_nodes + 1), (card.context,))  # few: what is prepared is computed
        engine = FastEngine(model, card.context, card.eos, max_nodes, buckets)
        method.check(card)
        method.bind(Target(card, model, max_nodes, sampling))
        engine.prepare(method.needs, sampling is None)
        method.reset()
        clock, prepared = TransferClock(mode), set(mode.recorded)
        out = decode(engine, method, Request(prompt, tokens, sampling, 0), clock)
        method.close()
        clock.late = frozenset(key for _, key in mode.recorded - prepared)
    return out, clock


def print_transfers(methods: Mapping[str, Method], card: ModelCard, prompt: Sequence[int], tokens: int = 24) -> None:
    """Print means over the steps, at temperature 0 and 0.8, without peers, which decode by their library's own loop.

    Launches of drafting are counted at temperature 0, per step and per drafted node; a recorded call counts as one.
    """

    def rows() -> Iterator[list[str]]:
        for name, method in methods.items():
            if not isinstance(method, Peer):
                greedy, clock = count_transfers(method, card, prompt, tokens, None)
                drawn = count_transfers(method, card, prompt, tokens, Sampling(0.8))[1]
                cells = [statistics.mean(each) for run in (clock, drawn) for each in zip(*run.steps_of, strict=True)]
                cells += [clock.drafting / max(1, count) for count in (len(greedy.accept), sum(greedy.proposed))]
                yield [name, *(f"{cell:.1f}" for cell in cells)]

    columns = ("read-backs, T = 0", "uploads", "read-backs, T = 0.8", "uploads", "launches a draft", "a drafted token")
    print_table(("method", *columns), rows())
