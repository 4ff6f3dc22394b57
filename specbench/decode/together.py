"""The decode loop of several requests that share forwards: each proposes, and each learns from its
own outcome.

A request decodes as ``specbench.decode.loop`` decodes it alone: the same walk, the same seeds, the
same method; only its forwards are shared. An exception in one request ends that request and no
other.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any, Protocol

import torch
from torch import Tensor

from specbench.decode.budgets import Budgets, in_whole_draft
from specbench.decode.loop import Entry, Request, Transcript, derive_seed, without_tensors
from specbench.decode.walk import Walk
from specbench.method import Drafter, DraftForward, Drafting, GoesOn, Method, SharedDrafter
from specbench.models.engine import Batch, Outcomes, inferring
from specbench.types import EMPTY, CaseError, Draft, Step


class Question(Protocol):
    """One request of a user to a server. An exception that it raises ends only this request."""

    @property
    def method(self) -> Method:
        """The method that drafts, with its own state or with one that requests share."""

    def request(self) -> Request:
        """Make the request, when it is admitted."""

    def close(self, shared: SharedRequest) -> Question | None:
        """End it: ``shared`` has its transcript or its error. Returns the next question of the same
        user.
        """


@dataclass(slots=True, eq=False)
class SharedRequest:
    """A request that shares forwards with others.

    spent: [s] by phase, of the server when the request's first token came.
    steps: those that it took part in, once it has left, until they are counted. begun: the steps of
    the server's log before them.
    missed: such steps since the last one with its drafter, and their hidden states.
    """

    question: Question
    unread: int = 0  # [tokens] of its prompt that are not fed yet
    done: bool = False
    error: Exception | None = None
    transcript: Transcript = field(default_factory=Transcript)
    handle: Any = None
    request: Request | None = None
    begin: Callable[[], Drafter] | None = None  # makes the drafter, if it is made later
    drafter: Drafter | None = None
    missed: list[tuple[Step, Mapping[int, Tensor]]] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    end: int = 0
    steps: Sequence[LoggedStep] = ()
    begun: int = 0
    spent: dict[str, float] = field(default_factory=dict)

    def fail(self, error: Exception) -> None:
        """End it with an error for its record."""
        self.error, self.done, self.unread = error, True, 0

    def count(self) -> None:
        """Enter the figures of its steps, which are released."""
        if self.error is None and self.steps:
            with boundary(self):
                self.transcript.count(self._log(), self.question.method.sources)
        self.steps = ()

    def _log(self) -> list[Entry]:
        """As in the loop of one request."""
        found: list[Entry] = []
        group, number = None, 0
        for own, drafts, outcomes in self.steps:
            if own is not group:
                group, number = own, own.requests.index(self)
            draft = drafts[number]
            found.append((draft, outcomes[number], 1 + len(draft.tokens)))
        return found


class Group:
    """The requests of one or several steps in sequence, and what every step reads of them.

    Between two steps a forward fills the caches, so that it takes long to look at an object of each
    request.

    requests: they do not change. drafters: None for those that have missed steps, or have no
    drafter yet. sharing: whether the drafter yields its forwards. observing: whether it reads
    steps.
    """

    def __init__(self, requests: Sequence[SharedRequest]) -> None:
        self.requests = [*requests]
        self.methods = [shared.question.method for shared in requests]
        self.handles = [shared.handle for shared in requests]
        self.contexts = [shared.context for shared in requests]
        self.pauses = [method.pauses for method in self.methods]
        self.concurrent = [
            number for number, method in enumerate(self.methods) if method.needs.concurrent
        ]
        self.drafters: list[Drafter | None] = [None] * len(requests)
        self.sharing, self.observing = [False] * len(requests), [True] * len(requests)

    def select(self, numbers: Sequence[int]) -> Group:
        """Return the group of some of its requests."""
        found = Group([self.requests[number] for number in numbers])
        found.drafters = [self.drafters[number] for number in numbers]
        found.sharing = [self.sharing[number] for number in numbers]
        found.observing = [self.observing[number] for number in numbers]
        return found

    def find(self, number: int, goes_on: GoesOn | None) -> Drafter:
        """Return the drafter of a request, once it has observed all earlier steps."""
        found = self.drafters[number] = find_drafter(self.requests[number])
        found.goes_on = goes_on
        self.sharing[number] = isinstance(found, SharedDrafter)
        self.observing[number] = type(found).observe is not Drafter.observe
        return found


LoggedStep = tuple[Group, Sequence[Draft], Outcomes]  # of all requests, without tensors
# drafts in the log of a server after which those of requests that left are counted
MOST_LOGGED = 1 << 16


@contextlib.contextmanager
def boundary(*requests: SharedRequest) -> Iterator[None]:
    """An exception inside it ends these requests. Loops over requests at every step have a cheaper
    ``try``.
    """
    try:
        yield
    except Exception as error:
        for shared in requests:
            shared.fail(error)


def draft_on(
    asked: Sequence[tuple[int, Drafting, Any]],
    requests: Sequence[SharedRequest],
    drafts: list[Draft],
) -> list[tuple[int, Drafting, Any]]:
    """Resume each drafting with its last outcome; returns those that ran another forward, and its
    outcome.

    asked: with the number of the request. drafts: of each request, where drafts that are complete
    are entered.
    """
    waiting: dict[int, list[tuple[int, Drafting, DraftForward]]] = defaultdict(list)
    for number, drafting, outcome in asked:
        try:
            forward = drafting.send(outcome)
            waiting[id(forward.owner)].append((number, drafting, forward))
        except StopIteration as end:
            drafts[number] = end.value
        except Exception as error:
            requests[number].fail(error)
    found: list[tuple[int, Drafting, Any]] = []
    for those in waiting.values():
        with boundary(*(requests[number] for number, _, _ in those)):
            forwards = [forward for _, _, forward in those]
            outcomes = (
                forwards[0].owner.run_together(forwards) if len(those) > 1 else [forwards[0].run()]
            )
            found += [(*each[:2], outcome) for each, outcome in zip(those, outcomes, strict=True)]
    return found


def find_drafter(shared: SharedRequest) -> Drafter:
    """Return the request's drafter, once it has observed all earlier steps.

    It observes the steps that it missed as one step: without a draft, or, if it reads hidden
    states, with a chain of that length.
    """
    if shared.drafter is None:
        assert shared.begin is not None
        shared.drafter = shared.begin()
    if missed := shared.missed:
        emitted = tuple(step.emitted[0] for step, _ in missed)
        hidden = {
            layer: torch.cat([states[layer] for _, states in missed]) for layer in missed[0][1]
        }
        shared.missed = []
        shared.drafter.propose(shared.context[: -len(emitted)], 0)
        path = range(len(emitted) - 1) if hidden else ()
        shared.drafter.observe(
            Step(missed[0][0].root, emitted, tuple(path), done=False, hidden=hidden)
        )
    return shared.drafter


def finish(shared: SharedRequest, spent: Mapping[str, float], eos: frozenset[int]) -> None:
    """Fill in the transcript, except the figures of its steps and the times that the schedule
    measures.
    """
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
    out.phases_s = {
        phase: spent[phase] - shared.spent.get(phase, 0.0) for phase in spent if phase != "idle"
    }


class SharedLaps:
    """The time of all requests by phase; a GPU's is read at the end of a step, when its picks are
    on the host.
    """

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to ``phase``."""
        now = time.perf_counter()
        self.spent[phase] += now - self._last
        self._last = now


class SharedServer:
    """A batch behind the schedule's interface (``specbench.serving.scheduler.Server``).

    The steps are logged and counted after the stretch, as no request then waits for it. If the log
    becomes long, the server's clock stops while it is counted.
    """

    def __init__(
        self, batch: Batch, laps: SharedLaps, eos: frozenset[int], max_nodes: int, budgets: Budgets
    ) -> None:
        """laps: also the batch's. eos, max_nodes: of its engine."""
        self._batch, self._laps, self._eos, self._most, self._budgets = (
            batch,
            laps,
            eos,
            max_nodes,
            budgets,
        )
        self._paused = False  # nothing was drafted in the last step
        self._group = Group(())
        self._steps: list[LoggedStep] = []
        self._logged = 0  # drafts in the log
        self._open: list[SharedRequest] = []  # whose prompts are read
        self._left: list[SharedRequest] = []  # whose steps are not counted
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
                    f"prompt of {len(prompt)} tokens; expected fewer than the {self._batch.tokens}"
                    " that a request has room for (leave the case out, or raise load.tokens or"
                    " model.context)"
                )
            limit = min(request.limit, room)
            shared.transcript.finish = "context" if limit < request.limit else "length"
            shared.end = len(prompt) + limit
            walk = Walk(
                request.sampling, derive_seed(request.seed, *request.names, "verify"), request.rule
            )
            shared.handle = self._batch.open(prompt, limit, walk, method.needs)
            shared.unread = len(prompt)
        return shared

    def read(self, shared: SharedRequest, tokens: int) -> float | None:
        """Read the next tokens of a prompt; returns the moment of the first token [s] once the
        prompt is read.
        """
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
                # by the prefill, and lost after it
                shown = needs.hidden or needs.node_topk or needs.prompt_topk
                if self._paused and method.pauses and not shown:
                    shared.begin = partial(method.begin, prompt, prefill, seed)
                else:
                    shared.drafter = method.begin(prompt, prefill, seed)
                self._laps.lap("update")
                shared.context = [*prompt, prefill.token]
                shared.spent = dict(self._laps.spent)
                shared.begun = len(self._steps)
                self._open.append(shared)
                shared.done = len(shared.context) == shared.end or prefill.token in self._eos
        self._laps.lap("prefill")
        return first_s

    @inferring
    def step(self, requests: Sequence[SharedRequest]) -> tuple[int, int, bool]:
        """Draft and verify for all requests; see ``specbench.serving.scheduler.Server``."""
        begun = time.perf_counter()
        self._laps.lap("idle")
        if requests != self._group.requests:
            self._group = Group(requests)
        drafts, kept, paused = self._propose()
        group, lates = self._group, None
        if not group.requests:
            return 0, 0, True
        for number in group.concurrent:
            with boundary(group.requests[number]):
                group.drafters[number].launch()  # type: ignore[union-attr]
        fed: Sequence[Draft | None] = drafts
        if paused:
            fed = [None if number in paused else draft for number, draft in enumerate(drafts)]
        self._batch.forward(group.handles, fed)
        if group.concurrent:
            lates = self._join()
        outcomes = self._batch.settle(lates)
        emitted = outcomes.enter(group.contexts)
        ended = self._learn(drafts, kept, paused, outcomes)
        for number in ended:  # an error that is not of its forward
            if number not in outcomes.errors and group.requests[number].error is not None:
                emitted -= outcomes.count_tokens(number)
        self._laps.lap("update")
        self._paused = len(paused) == len(group.requests)
        self._budgets.observe(drafts, outcomes, self._batch.fed, time.perf_counter() - begun)
        for number, step in enumerate(outcomes.steps):
            if isinstance(step, Step):
                drafts[number], outcomes.steps[number] = without_tensors(drafts[number], step)
        self._steps.append((group, drafts, outcomes))
        self._logged += len(drafts)
        return self._batch.fed, emitted, bool(ended) or len(group.requests) < len(requests)

    def _join(self) -> list[Draft | None]:
        """Return the late draft of each request."""
        group = self._group
        lates: list[Draft | None] = [None] * len(group.requests)
        for number in group.concurrent:
            shared, drafter = group.requests[number], group.drafters[number]
            if shared.error is None and drafter is not None:
                with boundary(shared):
                    lates[number] = drafter.join()
        self._laps.lap("draft")
        return lates

    def _learn(
        self,
        drafts: Sequence[Draft],
        kept: Sequence[Sequence[int] | None] | None,
        paused: Collection[int],
        outcomes: Outcomes,
    ) -> set[int]:
        """Enter the outcomes; a drafter sees the path in its complete draft. Returns the requests
        that ended.
        """
        group = self._group
        ended = {number for number in group.concurrent if group.requests[number].error is not None}
        for number, error in outcomes.errors.items():
            if number not in ended:
                group.requests[number].fail(error)
        for number in outcomes.ended:
            group.requests[number].done = True
        ended.update(outcomes.errors)
        for number in compress(range(len(group.observing)), group.observing):
            if number in ended:
                continue
            step = outcomes[number]
            try:
                if number in paused:
                    states = {layer: states.clone() for layer, states in step.hidden.items()}
                    group.requests[number].missed.append(
                        (without_tensors(drafts[number], step)[1], states)
                    )
                else:
                    drafter = group.drafters[number]
                    assert drafter is not None  # it has drafted
                    drafter.observe(step if kept is None else in_whole_draft(step, kept[number]))
            except Exception as error:
                group.requests[number].fail(error)
                ended.add(number)
        return ended.union(outcomes.ended)

    def _propose(
        self,
    ) -> tuple[list[Draft], Sequence[Sequence[int] | None] | None, Collection[int]]:
        """Return the drafts of the requests that did not fail, which are then the group.

        Also, of each, its nodes' numbers in the complete draft, None if no draft was cut; and who
        does not draft.
        """
        group, budgets = self._group, self._budgets
        shares = budgets.share(group.methods, self._most)
        drafts, paused = [EMPTY] * len(shares), set[int]()
        asked: list[tuple[int, Drafting, Any]] = []
        failed = False
        for number, (share, own, context) in enumerate(
            zip(shares, group.drafters, group.contexts, strict=True)
        ):
            if not share and group.pauses[number]:
                paused.add(number)
                group.drafters[number], group.observing[number] = None, True
                continue
            try:
                if own is None:
                    own = group.find(number, budgets.goes_on)
                if group.sharing[number]:
                    asked.append((number, own.drafting(context, share), None))  # type: ignore[attr-defined]
                else:
                    drafts[number] = own.propose(context, share)
            except Exception as error:
                group.requests[number].fail(error)
                failed = True
        failed = failed or bool(asked)  # perhaps
        while asked:
            asked = draft_on(asked, group.requests, drafts)
        if failed and any(shared.done for shared in group.requests):
            left = [number for number, shared in enumerate(group.requests) if not shared.done]
            drafts, shares = (
                [drafts[number] for number in left],
                [shares[number] for number in left],
            )
            paused = {place for place, number in enumerate(left) if number in paused}
            self._group = group.select(left)
        kept = None
        if budgets.cuts and drafts:
            drafts, kept = map(
                list, zip(*budgets.trim(self._group.methods, drafts, shares), strict=True)
            )
        self._laps.lap("draft")
        return drafts, kept, paused

    def leave(self, shared: SharedRequest) -> Question | None:
        """Free a request's place and fill in its transcript; returns the next question of the same
        user.
        """
        if shared.handle is not None:
            self._batch.close(shared.handle)
        if shared in self._open:
            self._open.remove(shared)
        if shared.error is None:
            shared.steps = self._steps[shared.begun :]
            self._left.append(shared)
        with boundary(shared):
            finish(shared, self._laps.spent, self._eos)
        follow = shared.question.close(shared)
        if self._logged > MOST_LOGGED:
            self._count()
        return follow

    def _count(self) -> None:
        """Count the steps of the requests that left, and keep those of the others; takes no time of
        the server.
        """
        begun_s = self.now()
        for shared in self._left:
            shared.count()
        self._left.clear()
        first = min((shared.begun for shared in self._open), default=len(self._steps))
        del self._steps[:first]
        for shared in self._open:
            shared.begun -= first
        self._logged = sum(len(drafts) for _, drafts, _ in self._steps)
        self._laps.lap("idle")
        self._start += self.now() - begun_s
