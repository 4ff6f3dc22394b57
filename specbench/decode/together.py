"""The decode loop of several requests: each proposes, one forward for all, each learns from its own outcome.

A request decodes as ``specbench.decode.loop`` decodes it alone: the same walk, the same seeds, the same method; only
its forwards are shared. What raises in one request ends that request and no other.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch

from specbench.decode.loop import Entry, Request, Transcript, derive_seed, without_tensors
from specbench.decode.walk import Walk
from specbench.method import Drafter, Method
from specbench.target.engine import Batch
from specbench.types import EMPTY, CaseError, Draft, Needs, Step

TrimmedDraft = tuple[Draft, Sequence[int] | None]  # and which nodes of the whole draft these are, None = all


class Question(Protocol):
    """What is asked of a server; everything that it raises is its own request's failure."""

    @property
    def method(self) -> Method:
        """Whose state no other request has, or a shared one."""

    def request(self) -> Request:
        """The request, made when it is admitted."""

    def close(self, shared: SharedRequest) -> Question | None:
        """It has ended: ``shared`` has its transcript or its error. Returns what the same user asks next."""


class Budgets(Protocol):
    """How many nodes each request may draft."""

    def share(self, requests: Sequence[SharedRequest], most: int) -> Sequence[int]:
        """A number for each; none are asked of a request with 0, where its method ``pauses``. most: of an engine."""

    def trim(
        self, requests: Sequence[SharedRequest], drafts: Sequence[Draft], shares: Sequence[int]
    ) -> Sequence[TrimmedDraft]:
        """What is fed of the drafts."""

    def observe(self, drafts: Sequence[Draft], steps: Sequence[Step | CaseError], rows: int, seconds: float) -> None:
        """A step's outcome."""


@dataclass(slots=True)
class SharedRequest:
    """A request among others. unread: [tokens] of its prompt. emitted: tokens of its last forward.

    spent: [s] by phase, of the server when its first token came. log: as in the loop of one request.
    begin: makes the drafter, where that waits. pauses, concurrent: of its method. paused: this step is none of its
    drafter's. missed: such steps since its last one.
    """

    question: Question
    unread: int = 0
    emitted: int = 0
    done: bool = False
    error: Exception | None = None
    transcript: Transcript = field(default_factory=Transcript)
    handle: Any = None
    request: Request | None = None
    begin: Callable[[], Drafter] | None = None
    drafter: Drafter | None = None
    pauses: bool = False
    concurrent: bool = False
    paused: bool = False
    missed: list[Step] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    end: int = 0
    log: list[Entry] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def boundary(self) -> Iterator[None]:
        """What is raised inside ends this request, and is kept for its record."""
        try:
            yield
        except Exception as error:
            self.error, self.done, self.unread, self.emitted = error, True, 0, 0


class SharedLaps:
    """Time of all requests by phase; a GPU's is read at the end of a step, when its picks are on the host."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """The time since the last lap belongs to ``phase``."""
        now = time.perf_counter()
        self.spent[phase] += now - self._last
        self._last = now


class SharedServer:
    """A batch behind the schedule's interface (``specbench.serving.scheduler.Server``)."""

    def __init__(self, batch: Batch, laps: SharedLaps, eos: frozenset[int], max_nodes: int, budgets: Budgets) -> None:
        """laps: also the batch's. eos, max_nodes: of its engine."""
        self._batch, self._laps, self._eos, self._most, self._budgets = batch, laps, eos, max_nodes, budgets
        self._paused = False  # nothing was drafted in the last step
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def wait(self, until_s: float) -> None:
        time.sleep(max(0.0, until_s - self.now()))

    def admit(self, question: Question) -> SharedRequest:
        shared = SharedRequest(question)
        with shared.boundary():
            shared.request = request = question.request()
            prompt, method = request.prompt, question.method
            room = self._batch.tokens - len(prompt)
            if room < 1:
                raise CaseError(
                    f"prompt of {len(prompt)} tokens; expected fewer than the {self._batch.tokens} that a request has"
                    " room for (leave the case out, or raise load.tokens or model.context)"
                )
            limit = min(request.limit, room)
            shared.transcript.finish = "context" if limit < request.limit else "length"
            shared.end = len(prompt) + limit
            walk = Walk(request.sampling, derive_seed(request.seed, *request.names, "verify"), method.typical)
            shared.handle = self._batch.open(prompt, limit, walk, needs := method.needs)
            shared.pauses, shared.concurrent = method.pauses, needs.concurrent
            shared.unread = len(prompt)
        return shared

    def read(self, shared: SharedRequest, tokens: int) -> float | None:
        first_s = None
        with shared.boundary():
            assert shared.request is not None
            prefill = self._batch.prefill(shared.handle, tokens)
            shared.unread -= tokens
            if prefill is not None:
                self._laps.lap("prefill")
                first_s = self.now()
                prompt, names = shared.request.prompt, (*shared.request.names, "draft")
                method, seed = shared.question.method, derive_seed(shared.request.seed, *names)
                if self._paused and shared.pauses and _begins_from_tokens(method.needs):
                    shared.begin = partial(method.begin, prompt, prefill, seed)
                else:
                    shared.drafter = method.begin(prompt, prefill, seed)
                self._laps.lap("update")
                shared.context = [*prompt, prefill.token]
                shared.spent = dict(self._laps.spent)
                shared.emitted = 1
                shared.done = len(shared.context) == shared.end or prefill.token in self._eos
        self._laps.lap("prefill")
        return first_s

    @torch.inference_mode()
    def step(self, requests: Sequence[SharedRequest]) -> int:
        begun = time.perf_counter()
        self._laps.lap("idle")
        trimmed = self._propose(requests)
        drafts = [draft for draft, _ in trimmed]
        active = [shared for shared in requests if not shared.done]
        if not active:
            return 0
        concurrent = [shared for shared in active if shared.concurrent]
        for shared in concurrent:
            with shared.boundary():
                shared.drafter.launch()  # type: ignore[union-attr]
        fed = [(each.handle, None if each.paused else draft) for each, draft in zip(active, drafts, strict=True)]
        self._batch.forward(fed)
        lates = [_join(shared) for shared in active] if concurrent else None
        if concurrent:
            self._laps.lap("draft")
        steps = self._batch.settle([shared.end - len(shared.context) for shared in active], lates)
        for shared, draft, step in zip(active, trimmed, steps, strict=True):
            if shared.error is None:
                with shared.boundary():
                    _learn(shared, *draft, step)
        self._laps.lap("update")
        self._paused = all(shared.paused for shared in active)
        self._budgets.observe(drafts, steps, self._batch.fed, time.perf_counter() - begun)
        return self._batch.fed

    def _propose(self, requests: Sequence[SharedRequest]) -> Sequence[TrimmedDraft]:
        """A draft of each request that did not fail."""
        drafts: list[Draft] = []
        given: list[int] = []
        for shared, share in zip(requests, self._budgets.share(requests, self._most), strict=True):
            shared.paused = not share and shared.pauses
            with shared.boundary():
                drafts.append(EMPTY if shared.paused else _drafter(shared).propose(shared.context, share))
                given.append(share)
        kept = self._budgets.trim([shared for shared in requests if not shared.done], drafts, given)
        self._laps.lap("draft")
        return kept

    def leave(self, shared: SharedRequest) -> Question | None:
        if shared.handle is not None:
            self._batch.close(shared.handle)
        with shared.boundary():
            _finish(shared, self._laps.spent, self._eos)
        return shared.question.close(shared)


def _join(shared: SharedRequest) -> Draft | None:
    """What a concurrent drafter has drafted meanwhile."""
    late = None
    if shared.error is None and shared.drafter is not None and shared.concurrent:
        with shared.boundary():
            late = shared.drafter.join()
    return late


def _learn(shared: SharedRequest, draft: Draft, kept: Sequence[int] | None, step: Step | CaseError) -> None:
    """Enter one forward's outcome; the drafter sees the path in its whole draft."""
    if isinstance(step, CaseError):
        raise step
    shared.context.extend(step.emitted)
    shared.emitted, shared.done = len(step.emitted), step.done
    if shared.paused:
        hidden = {layer: states.clone() for layer, states in step.hidden.items()}
        shared.missed.append(replace(step, hidden=hidden) if hidden else step)
    else:
        whole = step if kept is None else replace(step, path=tuple(kept[node] for node in step.path))
        _drafter(shared).observe(whole)
    shared.log.append((*without_tensors(draft, step), 1 + len(draft)))


def _begins_from_tokens(needs: Needs) -> bool:
    """Whether a request's drafter can be made later, when what its prefill showed is gone."""
    return not (needs.hidden or needs.node_topk or needs.prompt_topk)


def _drafter(shared: SharedRequest) -> Drafter:
    """The request's drafter, which has seen all steps but those of this moment.

    It takes those that it missed for one: that nothing was drafted in, or, where their hidden states are read, that
    took a chain as long.
    """
    if shared.drafter is None:
        assert shared.begin is not None
        shared.drafter = shared.begin()
    if missed := shared.missed:
        emitted, layers = tuple(step.emitted[0] for step in missed), missed[0].hidden
        hidden = {layer: torch.cat([step.hidden[layer] for step in missed]) for layer in layers}
        shared.missed = []
        shared.drafter.propose(shared.context[: -len(emitted)], 0)
        path = range(len(emitted) - 1) if hidden else ()
        shared.drafter.observe(Step(missed[0].root, emitted, tuple(path), done=False, hidden=hidden))
    return shared.drafter


def _finish(shared: SharedRequest, spent: Mapping[str, float], eos: frozenset[int]) -> None:
    """Fill in the transcript, but for the times that the schedule has."""
    if shared.error is not None or not shared.context or shared.request is None:
        return
    if shared.drafter is not None:
        shared.drafter.finish(shared.context)
    out, method = shared.transcript, shared.question.method
    out.ids = shared.context[len(shared.request.prompt) :]
    if out.ids[-1] in eos:
        out.finish = "eos"
    out.trees = [] if shared.request.keep_trees else None
    out.count(shared.log, method.sources)
    stats = shared.drafter.stats() if shared.drafter is not None else {}
    out.stats = {name: float(value) for name, value in stats.items()}
    out.phases_s = {phase: spent[phase] - shared.spent.get(phase, 0.0) for phase in spent if phase != "idle"}
