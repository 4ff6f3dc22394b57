"""Counting what a decode step does besides the model's forward: tensor operations and host synchronisations.

Deterministic counts where wall time on a shared machine is noise. On a GPU every operation is a kernel launch and every
synchronisation empties the queue, so these two numbers bound a method's own overhead.
"""

from __future__ import annotations

import contextlib
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.method import Method, Peer
from specbench.records.record import EngineKind

READ_BACKS = ("tolist", "numpy")  # these do not pass the dispatcher
# item(), bool(), int(), float(); the first is what inference mode shows, the second what it is made of elsewhere
SCALARS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal")
FREE = ("aten::detach_",)


class OpCounter(TorchDispatchMode):
    """Counts operations that are not views, and synchronisations, by section; sections nest, the innermost counts.

    ``ops[section]``, ``syncs[section]``; outside every ``section`` block the name is ``rest``.
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
        """``call``, counted under ``name``."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.section(name):
                return call(*args, **kwargs)

        return counted

    @contextlib.contextmanager
    def counting(self) -> Iterator[OpCounter]:
        """Count everything inside the block, read-backs of whole tensors included."""
        originals = {name: getattr(torch.Tensor, name) for name in READ_BACKS}

        def watched(name: str) -> Callable[..., Any]:
            def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                self.syncs[self._section] += 1
                return originals[name](tensor, *args, **kwargs)

            return call

        for name in READ_BACKS:
            setattr(torch.Tensor, name, watched(name))
        try:
            with self:
                yield self
        finally:
            for name, original in originals.items():
                setattr(torch.Tensor, name, original)


def _shares(out: Any, source: Any) -> bool:
    """True if nothing was computed: ``to``, ``reshape`` and their like are views only when they need not copy."""
    if not isinstance(out, torch.Tensor) or not isinstance(source, torch.Tensor):
        return True
    return out.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()


def describe_overhead(
    name: str, method: Method, engine: Any, model: Any, prompts: Sequence[Sequence[int]], tokens: int = 48
) -> str:
    """One method's line of ``scripts/count_overhead.py``.

    A peer's own loop is one piece: its prefill counts as a step, its host time is blank.
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
    return f"| {name} | {counter.ops['forward'] / forwards:.0f} | {' | '.join(cells)} |"
