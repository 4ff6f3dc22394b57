"""A request among others that share forwards: what it asks, drafts, learns and leaves behind.

It decodes as ``specbench.decode.loop`` decodes it alone. What raises in it ends it and no other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from specbench.decode.loop import Entry, Request, Transcript, without_tensors
from specbench.decode.trimming import in_whole_draft
from specbench.method import Drafter, DraftForward, Drafting, Method
from specbench.types import EMPTY, CaseError, Draft, Needs, Step


class Question(Protocol):
    """What is asked of a server; everything that it raises is its own request's failure."""

    @property
    def method(self) -> Method:
        """Whose state no other request has, or a shared one."""

    def request(self) -> Request:
        """The request, made when it is admitted."""

    def close(self, shared: SharedRequest) -> Question | None:
        """It has ended: ``shared`` has its transcript or its error. Returns what the same user asks next."""


@dataclass(slots=True)
class SharedRequest:
    """A request among others. unread: [tokens] of its prompt. emitted: tokens of its last forward.

    spent: [s] by phase, of the server when its first token came. log: as in the loop of one request.
    begin: makes the drafter, where that waits. pauses, concurrent: of its method. paused: this step is none of its
    drafter's. missed: such steps since its last one, and their hidden states.
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
    draft: Draft = EMPTY
    pauses: bool = False
    concurrent: bool = False
    paused: bool = False
    missed: list[tuple[Step, Mapping[int, Tensor]]] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    end: int = 0
    log: list[Entry] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)


class boundary:
    """What is raised inside ends these requests, and is kept for their records.

    A class, since a context manager that is a generator takes thrice as long, twice a step of each request.
    """

    __slots__ = ("_requests",)

    def __init__(self, *requests: SharedRequest) -> None:
        self._requests = requests

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        for shared in self._requests:
            shared.error, shared.done, shared.unread, shared.emitted = error, True, 0, 0
        return True


def draft_on(
    asked: Sequence[tuple[SharedRequest, Drafting, Any]],
) -> list[tuple[SharedRequest, Drafting, Any]]:
    """Each goes on, with the outcome of its last forward, to the next one; those that wait, and what they wait for."""
    waiting: dict[int, list[tuple[SharedRequest, Drafting, DraftForward]]] = defaultdict(list)
    for shared, drafting, outcome in asked:
        with boundary(shared):
            try:
                forward = drafting.send(outcome)
                waiting[id(forward.owner)].append((shared, drafting, forward))
            except StopIteration as end:
                shared.draft = end.value
    found: list[tuple[SharedRequest, Drafting, Any]] = []
    for those in waiting.values():
        with boundary(*(shared for shared, _, _ in those)):
            forwards = [forward for _, _, forward in those]
            outcomes = forwards[0].owner.run_together(forwards) if len(those) > 1 else [forwards[0].run()]
            found += [(*each[:2], outcome) for each, outcome in zip(those, outcomes, strict=True)]
    return found


def join_late(shared: SharedRequest) -> Draft | None:
    """What a concurrent drafter has drafted meanwhile."""
    late = None
    if shared.error is None and shared.drafter is not None and shared.concurrent:
        with boundary(shared):
            late = shared.drafter.join()
    return late


def learn(shared: SharedRequest, draft: Draft, kept: Sequence[int] | None, step: Step | CaseError) -> None:
    """Enter one forward's outcome; the drafter sees the path in its whole draft."""
    if isinstance(step, CaseError):
        raise step
    shared.context.extend(step.emitted)
    shared.emitted, shared.done = len(step.emitted), step.done
    bare = without_tensors(draft, step)
    if shared.paused:
        shared.missed.append((bare[1], {layer: states.clone() for layer, states in step.hidden.items()}))
    else:
        find_drafter(shared).observe(in_whole_draft(step, kept))
    shared.log.append((*bare, 1 + len(draft)))


def begins_from_tokens(needs: Needs) -> bool:
    """Whether a request's drafter can be made later, when what its prefill showed is gone."""
    return not (needs.hidden or needs.node_topk or needs.prompt_topk)


def find_drafter(shared: SharedRequest) -> Drafter:
    """The request's drafter, which has seen all steps but those of this moment.

    It takes those that it missed for one: that nothing was drafted in, or, where their hidden states are read, that
    took a chain as long.
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
    out.stats = method.figures(shared.drafter, out.ids) if shared.drafter is not None else {}
    out.phases_s = {phase: spent[phase] - shared.spent.get(phase, 0.0) for phase in spent if phase != "idle"}
