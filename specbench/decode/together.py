"""The decode loop of several requests: each proposes, one forward for all, each learns from its own outcome.

A request decodes as ``specbench.decode.loop`` decodes it alone: the same walk, the same seeds, the same method; only
its forwards are shared. What raises in one request ends that request and no other.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from specbench.decode.loop import derive_seed
from specbench.decode.shared_request import (
    Question,
    SharedRequest,
    begins_from_tokens,
    boundary,
    draft_on,
    find_drafter,
    finish,
    join_late,
    learn,
)
from specbench.decode.trimming import Budgets, TrimmedDraft
from specbench.decode.walk import Walk
from specbench.method import Drafting, SharedDrafter
from specbench.models.engine import Batch
from specbench.types import EMPTY, CaseError


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
            walk = Walk(request.sampling, derive_seed(request.seed, *request.names, "verify"), method.typical)
            shared.handle = self._batch.open(prompt, limit, walk, needs := method.needs)
            shared.pauses, shared.concurrent = method.pauses, needs.concurrent
            shared.unread = len(prompt)
        return shared

    def read(self, shared: SharedRequest, tokens: int) -> float | None:
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
                if self._paused and shared.pauses and begins_from_tokens(method.needs):
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
            with boundary(shared):
                shared.drafter.launch()  # type: ignore[union-attr]
        fed = [(each.handle, None if each.paused else draft) for each, draft in zip(active, drafts, strict=True)]
        self._batch.forward(fed)
        lates = [join_late(shared) for shared in active] if concurrent else None
        if concurrent:
            self._laps.lap("draft")
        steps = self._batch.settle([shared.end - len(shared.context) for shared in active], lates)
        for shared, draft, step in zip(active, trimmed, steps, strict=True):
            if shared.error is None:
                with boundary(shared):
                    learn(shared, *draft, step)
        self._laps.lap("update")
        self._paused = all(shared.paused for shared in active)
        self._budgets.observe(drafts, steps, self._batch.fed, time.perf_counter() - begun)
        return self._batch.fed

    def _propose(self, requests: Sequence[SharedRequest]) -> Sequence[TrimmedDraft]:
        """A draft of each request that did not fail."""
        shares = self._budgets.share([shared.question.method for shared in requests], self._most)
        asked: list[tuple[SharedRequest, Drafting, Any]] = []
        for shared, share in zip(requests, shares, strict=True):
            shared.paused, shared.draft = not share and shared.pauses, EMPTY
            with boundary(shared):
                drafter = None if shared.paused else find_drafter(shared)
                if drafter is not None:
                    drafter.goes_on = self._budgets.goes_on
                if isinstance(drafter, SharedDrafter):
                    asked.append((shared, drafter.drafting(shared.context, share), None))
                elif drafter is not None:
                    shared.draft = drafter.propose(shared.context, share)
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
        if shared.handle is not None:
            self._batch.close(shared.handle)
        with boundary(shared):
            finish(shared, self._laps.spent, self._eos)
        return shared.question.close(shared)
