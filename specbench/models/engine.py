"""The interface of engines: an engine reads prompts, runs drafts through the target, and commits
the accepted path.

The decode loop uses only this interface: it gives drafts and gets a ``Step``. Logits, masks, caches
and device buffers stay inside it, so that eager, fast, timed and replay are values of one setting.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from specbench.records.record import EngineKind
from specbench.types import CaseError, Draft, InputError, Needs, Prefill, Step

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def inferring(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """Run a function in torch's inference mode, which is entered only if it is off: entering takes
    long.
    """

    @functools.wraps(function)
    def run(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        if torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode():
            return function(*args, **kwargs)

    return run


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification."""

    path: list[int]  # accepted nodes, root side first
    tokens: list[int]  # theirs and one more
    late: bool  # the last token is the late draft's first


class Verifier(Protocol):
    """The interface of the verifier that an engine uses (``specbench.decode.walk.Walk``)."""

    def pick(self, logits: Tensor, depths: Sequence[int] | Tensor) -> Tensor:
        """(rows, V) raw logits -> (rows,) chosen tokens. depths: (rows,) 0 = the root, on the host
        or the device.
        """

    def numbers(self, depths: Sequence[int]) -> list[float] | None:
        """Return the uniform numbers that rows at these depths are drawn by; None if ``pick`` does
        not draw.
        """

    def draw(self, logits: Tensor, numbers: Sequence[float]) -> Tensor:
        """(rows, V) raw logits -> (rows,) tokens drawn by ``numbers``, which may be of several
        requests.
        """

    def follow(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        passenger: Sequence[bool] | None,
        picks: Sequence[int],
    ) -> list[int]:
        """Return the accepted path."""

    @property
    def sampling(self) -> Callable[[Tensor], Tensor] | None:
        """Raw logits -> probabilities; None is greedy."""

    @property
    def picks_best(self) -> bool:
        """True if each pick is the row's argmax at any depth, now and later, so that ``advance``
        changes nothing.
        """

    @property
    def lossy(self) -> bool:
        """True if every draft is passed to ``verify``."""

    def verify(
        self, logits: Tensor, draft: Draft, parents: Sequence[int], fed: Tensor, late: Draft | None
    ) -> Verdict:
        """Verify a drawn draft and the late chain after it, when sampling; or any draft,
        lossily.
        """

    def advance(self, emitted: Sequence[int]) -> None:
        """Note that these tokens were committed."""


class Laps(Protocol):
    """The interface of a clock: the time since the last lap is added to ``phase``."""

    def lap(self, phase: str) -> None:
        """Close a phase."""


class Silent:
    """A clock that measures nothing."""

    def lap(self, phase: str) -> None:
        """Close a phase."""


SILENT = Silent()


class Outcomes(Sequence["Step | CaseError"]):
    """The outcome of each request of a forward: its step, or the error that ends it.

    errors: by the number of the request. ended: the numbers of requests that end with their steps.
    """

    def __init__(self, steps: list[Step | CaseError]) -> None:
        self.steps = steps
        self.errors = {
            number: step for number, step in enumerate(steps) if isinstance(step, CaseError)
        }
        self.ended = [
            number for number, step in enumerate(steps) if isinstance(step, Step) and step.done
        ]

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, number: Any) -> Any:
        return self.steps[number]

    def count_tokens(self, number: int) -> int:
        """Return how many tokens a request emits."""
        step = self.steps[number]
        return len(step.emitted) if isinstance(step, Step) else 0

    def enter(self, contexts: Sequence[list[int]]) -> int:
        """Append the tokens of each request to its context; returns how many there are."""
        for context, step in zip(contexts, self.steps, strict=True):
            if isinstance(step, Step):
                context += step.emitted
        return sum(map(self.count_tokens, range(len(self.steps))))


class Batch(ABC):
    """Places for requests that share forwards, and join and leave between steps.

    A step is ``forward``, then ``settle``; ``open``, ``prefill`` and ``close`` come between two
    steps. Tensors of a ``Step`` are valid until the next forward or prefill. A handle is what
    ``open`` returns. requests: number of places. tokens: [tokens] of prompt and answer that each
    place has room for. fed: rows of the last forward.
    """

    requests: int
    tokens: int
    fed: int

    @property
    @abstractmethod
    def free(self) -> int:
        """The number of free places."""

    @abstractmethod
    def open(self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs) -> Any:
        """Give a request a place; computes nothing. Raises CaseError where prompt and ``limit`` do
        not fit.
        """

    @abstractmethod
    def prefill(self, handle: Any, most: int | None = None) -> Prefill | None:
        """Read the next ``most`` tokens of the prompt, None = all; None until its last one is read.

        Raises CaseError where logits are not finite.
        """

    @abstractmethod
    def forward(self, handles: list[Any], drafts: Sequence[Draft | None]) -> None:
        """Enqueue one forward over root and draft of each; a draft that is refused fails in
        ``settle``, alone.

        None: its root alone, as plain decoding feeds it; of ``Needs`` its step has the hidden
        states only.
        """

    @abstractmethod
    def settle(self, lates: Sequence[Draft | None] | None = None) -> Outcomes:
        """Verify each draft of the last forward, cut it at EOS and at the request's limit, and
        commit its path.

        A request that cannot continue has an error instead of a step: close it. The other requests
        are not affected. lates: (B,) see ``Engine.settle``.
        """

    @abstractmethod
    def close(self, handle: Any) -> None:
        """Free the place of a request in any state; a second call does nothing."""

    def nbytes(self) -> int:
        """Bytes of its cache."""
        return 0

    def end(self) -> None:
        """Free the memory."""


def require_place(batch: Batch) -> None:
    """Raise RuntimeError if no place is free: the scheduler counts places."""
    if not batch.free:
        raise RuntimeError(
            f"all of {batch.requests} places are taken; expected a request to be closed first"
        )


class Engine(ABC):
    """One loaded target; it decodes one request at a time, or a batch of requests with their own
    cache.
    """

    kind: EngineKind
    device: torch.device  # where its tensors are
    context: int  # [tokens] the longest prompt and answer together
    max_nodes: int  # the largest draft
    eos: frozenset[int]
    # rows that the last forward fed to the target: root and nodes, or every token of a batch of
    # rows
    fed: int
    attention: str = "sdpa"  # of drafts, as ``engine.attention`` or as ``auto`` chose it

    def describe_forward(self) -> str | None:
        """Describe what computes a draft's forward, and why not compiled code; None if there is
        only one way.
        """
        return None

    def prepare(self, needs: Needs, greedy: bool) -> None:
        """Compile or record, before the first case, what a method with these needs runs."""

    @abstractmethod
    def reserve(self, tokens: int) -> None:
        """Make room for a request of ``tokens`` in all; called before the clock starts, since it
        may allocate.
        """

    def keep_prefix(self, tokens: int) -> int:
        """Keep the first ``tokens`` of the last request, which did not fail: the next prompt begins
        with them.

        ``start`` then reads the rest of that prompt, at least one token. Called before ``reserve``.
        Returns the number of tokens that are kept, which is 0 for an engine that reads every prompt
        as a whole.
        """
        return 0

    @abstractmethod
    def start(
        self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps
    ) -> Prefill:
        """Read the prompt into an empty cache and choose the first token; at most ``limit`` tokens
        will follow.

        The cache has the tokens of ``keep_prefix``. The prompt leaves room in the context. Raises
        CaseError when a logit is not finite.
        """

    @abstractmethod
    def forward(self, draft: Draft) -> None:
        """Enqueue the target's forward over the root and ``draft``."""

    @abstractmethod
    def settle(self, left: int, late: Draft | None = None) -> Step:
        """Walk the draft, cut at EOS and at ``left`` tokens, commit the accepted path's keys and
        values.

        late: what was drafted after a chain meanwhile; see ``Drafter.join``.
        """

    @abstractmethod
    def gaps(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Judge ``ids`` teacher-forced: how far each one's logit is below the best of the others (<
        0: above it).
        """

    def batch(self, requests: int, tokens: int, laps: Laps = SILENT) -> Batch:
        """Make a batch with its own cache. Raises InputError if the engine has no batches.

        requests, tokens: see ``Batch``. laps: the clock of its steps.
        """
        raise InputError(
            f"engine={self.kind.value}: it decodes one request at a time; expected engine=fast or"
            " eager on one process"
        )

    def bound_walk(self, walk: Verifier) -> Verifier:
        """Return the verifier of the next request, given the walk."""
        return walk

    def close(self) -> None:
        """End what outlives the engine, such as processes."""
