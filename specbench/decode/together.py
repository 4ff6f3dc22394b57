"""The decode loop of several requests that share forwards: each proposes, and each learns from its own outcome.

A request decodes as ``specbench.decode.loop`` decodes it alone: the same walk, the same seeds, the same method; only
its forwards are shared. An exception in one request ends that request and no other.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from specbench.decode.budgets import Budgets, TrimmedDraft, in_whole_draft
from specbench.decode.loop import Entry, Request, Transcript, derive_seed, without_tensors
from specbench.decode.walk import Walk
from specbench.method import Drafter, DraftForward, Drafting, Method, SharedDrafter
from specbench.models.engine import Batch, inferring
from specbench.types import EMPTY, CaseError, Draft, Step


class Question(Protocol):
    """One request of a user to a server. An exception that it raises ends only this request."""

    @property
    def method(self) -> Method:
        """The method that drafts, with its own state or with one that requests share."""

    def request(self) -> Request:
        """Make the request, when it is admitted."""

    def close(self, shared: SharedRequest) -> Question | None:
        """End it: ``shared`` has its transcript or its error. Returns the next question of the same user."""


@dataclass(slots=True)
class SharedRequest:
    """A request that shares forwards with others.

    spent: [s] by phase, of the server when the request's first token came.
    pauses, concurrent: of its method.
    missed: such steps since the last one with its drafter, and their hidden states.
    """

    question: Question
    unread: int = 0  # [tokens] of its prompt that are not fed yet
    emitted: int = 0  # tokens of its last forward
    done: bool = False
    error: Exception | None = None
    transcript: Transcript = field(default_factory=Transcript)
    handle: Any = None
    request: Request | None = None
    begin: Callable[[], Drafter] | None = None  # makes the drafter, if it is made later
    drafter: Drafter | None = None
    draft: Draft = EMPTY
    pauses: bool = False
    concurrent: bool = False
    paused: bool = False  # its drafter takes no part in this step
    missed: list[tuple[Step, Mapping[int, Tensor]]] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    end: int = 0
    log: list[Entry] = field(default_factory=list)  # as in the loop of one request
    spent: dict[str, float] = field(default_factory=dict)

    def fail(self, error: Exception) -> None:
        """End it with an error for its record."""
        self.error, self.done, self.unread, self.emitted = error, True, 0, 0


@contextlib.contextmanager
def boundary(*requests: SharedRequest) -> Iterator[None]:
    """An exception inside it ends these requests. Loops over requests at every step have a cheaper ``try``."""
    try:
        yield
    except Exception as error:
        for shared in requests:
            shared.fail(error)


def draft_on(asked: Sequence[tuple[SharedRequest, Drafting, Any]]) -> list[tuple[SharedRequest, Drafting, Any]]:
    """Resume each drafting with its last outcome; returns those that ran another forward, and its outcome."""
    waiting: dict[int, list[tuple[SharedRequest, Drafting, DraftForward]]] = defaultdict(list)
    for shared, drafting, outcome in asked:
        try:
            forward = drafting.send(outcome)
            waiting[id(forward.owner)].append((shared, drafting, forward))
        except StopIteration as end:
            shared.draft = end.value
        except Exception as error:
            shared.fail(error)
    found: list[tuple[SharedRequest, Drafting, Any]] = []
    for those in waiting.values():
        with boundary(*(shared for shared, _, _ in those)):
            forwards = [forward for _, _, forward in those]
            outcomes = forwards[0].owner.run_together(forwards) if len(those) > 1 else [forwards[0].run()]
            found += [(*each[:2], outcome) for each, outcome in zip(those, outcomes, strict=True)]
    return found


def learn(shared: SharedRequest, draft: Draft, kept: Sequence[int] | None, step: Step | CaseError) -> None:
    """Enter the outcome of one forward; the drafter sees the path in its complete draft."""
    if isinstance(step, CaseError):
        raise step
    shared.context += step.emitted
    shared.emitted, shared.done = len(step.emitted), step.done
    bare = without_tensors(draft, step)
    if shared.paused:
        shared.missed.append((bare[1], {layer: states.clone() for layer, states in step.hidden.items()}))
    else:
        assert shared.drafter is not None  # it has drafted
        shared.drafter.observe(in_whole_draft(step, kept))
    shared.log.append((*bare, 1 + len(draft.tokens)))


def find_drafter(shared: SharedRequest) -> Drafter:
    """Return the request's drafter, once it has observed all earlier steps.

    It observes the steps that it missed as one step: without a draft, or, if it reads hidden states, with a chain of
    that length.
    """
    if shared.drafter is None:
        assert shared.begin is not None
        shared.drafter = shared.begin()
    if missed := shared.missed:
        emitted = tuple(step.emitted[0] for step, _ in missed)
        hidden = {layer: torch.cat([states[layer] for _, states in missed]) for layer in missed[0][1]}
        shared.missed = []
        shared.drafter.propose(shared.context[: -len(emitted)], 0)
        path = range(len(emitted) - 1) if hidden else ()
        shared.drafter.observe(Step(missed[0][0].root, emitted, tuple(path), done=False, hidden=hidden))
    return shared.drafter


def finish(shared: SharedRequest, spent: Mapping[str, float], eos: frozenset[int]) -> None:
    """Fill in the transcript, except the figures of its steps and the times that the schedule measures."""
    if shared.error is not None or not shared.context or shared.request is None:
        return
    if shared.drafter is not None:
        shared.drafter.finish(shared.context)
    out, method = shared.transcript, shared.question.method
    out.ids = shared.context[len(shared.request.prompt) :]
    if out.ids[-1] in eos:
        out.finish = "eos"
    out.trees = [] if shared.request.keep_trees else None
    out.stats = method.figures(shared.drafter, out.ids) if shared.drafter is not None else {}
    out.phases_s = {phase: spent[phase] - shared.spent.get(phase, 0.0) for phase in spent if phase != "idle"}


class SharedLaps:
    """The time of all requests by phase; a GPU's is read at the end of a step, when its picks are on the host."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to ``phase``."""
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
        """[s] since the server was started."""
        return time.perf_counter() - self._start

    def wait(self, until_s: float) -> None:
        """Sleep until this moment, as of ``now``."""
        time.sleep(max(0.0, until_s - self.now()))

    def admit(self, question: Question) -> SharedRequest:
        """Give a question a place in the batch."""
        shared = SharedRequest(question)
        with boundary(shared):
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
            walk = Walk(request.sampling, derive_seed(request.seed, *request.names, "verify"), request.rule)
            shared.handle = self._batch.open(prompt, limit, walk, method.needs)
            shared.pauses, shared.concurrent = method.pauses, method.needs.concurrent
            shared.unread = len(prompt)
        return shared

    def read(self, shared: SharedRequest, tokens: int) -> float | None:
        """Read the next tokens of a prompt; returns the moment of the first token [s] once the prompt is read."""
        first_s = None
        with boundary(shared):
            assert shared.request is not None
            prefill = self._batch.prefill(shared.handle, tokens)
            shared.unread -= tokens
            if prefill is not None:
                self._laps.lap("prefill")
                first_s = self.now()
                prompt, names = shared.request.prompt, (*shared.request.names, "draft")
                method, seed = shared.question.method, derive_seed(shared.request.seed, *names)
                needs = method.needs
                shown = needs.hidden or needs.node_topk or needs.prompt_topk  # by the prefill, and lost after it
                if self._paused and shared.pauses and not shown:
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

    @inferring
    def step(self, requests: Sequence[SharedRequest]) -> int:
        """Draft and verify for all requests; returns the rows fed."""
        begun = time.perf_counter()
        self._laps.lap("idle")
        trimmed = self._propose(requests)
        drafts = [draft for draft, _ in trimmed]
        active = [shared for shared in requests if not shared.done]
        if not active:
            return 0
        lates: list[Draft | None] | None = None
        concurrent = [shared for shared in active if shared.concurrent]
        for shared in concurrent:
            with boundary(shared):
                shared.drafter.launch()  # type: ignore[union-attr]
        fed = [(each.handle, None if each.paused else draft) for each, draft in zip(active, drafts, strict=True)]
        self._batch.forward(fed)
        if concurrent:
            lates = [None] * len(active)
            for place, shared in enumerate(active):
                if shared.error is None and shared.drafter is not None and shared.concurrent:
                    with boundary(shared):
                        lates[place] = shared.drafter.join()
            self._laps.lap("draft")
        steps = self._batch.settle([shared.end - len(shared.context) for shared in active], lates)
        for shared, (draft, kept), step in zip(active, trimmed, steps, strict=True):
            try:
                if shared.error is None:
                    learn(shared, draft, kept, step)
            except Exception as error:
                shared.fail(error)
        self._laps.lap("update")
        self._paused = all(shared.paused for shared in active)
        self._budgets.observe(drafts, steps, self._batch.fed, time.perf_counter() - begun)
        return self._batch.fed

    def _propose(self, requests: Sequence[SharedRequest]) -> Sequence[TrimmedDraft]:
        """Return a draft of each request that did not fail."""
        shares = self._budgets.share([shared.question.method for shared in requests], self._most)
        asked: list[tuple[SharedRequest, Drafting, Any]] = []
        for shared, share in zip(requests, shares, strict=True):
            shared.paused, shared.draft = not share and shared.pauses, EMPTY
            if shared.paused:
                continue
            try:
                drafter = find_drafter(shared)
                drafter.goes_on = self._budgets.goes_on
                if isinstance(drafter, SharedDrafter):
                    asked.append((shared, drafter.drafting(shared.context, share), None))
                else:
                    shared.draft = drafter.propose(shared.context, share)
            except Exception as error:
                shared.fail(error)
        while asked:
            asked = draft_on(asked)
        given = [
            (shared.question.method, shared.draft, share)
            for shared, share in zip(requests, shares, strict=True)
            if not shared.done
        ]
        kept = self._budgets.trim(*zip(*given, strict=True)) if given else []
        self._laps.lap("draft")
        return kept

    def leave(self, shared: SharedRequest) -> Question | None:
        """Free a request's place and fill in its transcript; returns the next question of the same user."""
        if shared.handle is not None:
            self._batch.close(shared.handle)
        with boundary(shared):
            finish(shared, self._laps.spent, self._eos)
        return shared.question.close(shared)
