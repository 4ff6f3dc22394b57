"""The replay engine: recorded greedy tokens in place of a model.

Greedy decoding is a function of the context: whatever a drafter proposes, the target's picks along the recorded answer
are the recorded tokens, and nodes off that path are never accepted. Every drafter that needs no logits therefore
decodes exactly as with the model, at the cost of a few comparisons a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from specbench.record import EngineKind
from specbench.target.engine import Engine, Laps, Verifier
from specbench.target.verify import ActiveRequest, continues, cut, find_accepted_path
from specbench.types import ROOT, CaseError, Draft, Needs, Prefill, Step


class ReplayEngine(Engine):
    """Replays one recorded answer at a time: ``load`` it, then decode as with any engine."""

    kind = EngineKind.REPLAY
    device = torch.device("cpu")

    def __init__(self, eos: frozenset[int], max_nodes: int) -> None:
        """eos: ids that end an answer. max_nodes: the largest draft."""
        self.eos, self.max_nodes = eos, max_nodes
        self.context = 0
        self.fed = 0
        self._answer: Sequence[int] = ()

    def load(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """The next request's ``prompt`` and the ids that were recorded for it."""
        self.context = len(prompt) + len(answer)
        self._answer = answer

    def reserve(self, tokens: int) -> None:
        """Nothing to make room in."""

    def start(self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps) -> Prefill:
        """The recorded answer's first token."""
        self._request = ActiveRequest(needs, laps)
        self._emitted = 1
        return Prefill(self._answer[0])

    def forward(self, draft: Draft) -> None:
        """Take the draft; there is nothing to compute."""
        request = self._request
        request.take(draft, self.max_nodes)
        self.fed = _count_batch(request.host_parents) if request.needs.rows else len(draft.tokens) + 1
        request.laps.lap("forward")

    def settle(self, left: int, late: Draft | None = None) -> Step:
        """Accept what agrees with the recording; see ``Engine.settle``."""
        draft, parents, start = self._request.draft, self._request.host_parents, self._emitted
        upcoming = self._answer[start : start + min(left, len(draft.tokens) + 1)]
        tokens = cast(Sequence[int], draft.tokens.tolist()) if isinstance(draft.tokens, Tensor) else draft.tokens
        if isinstance(parents, range) and draft.passenger is None:
            path: Sequence[int] = range(_count_agreeing(tokens, upcoming))
        else:
            picks = [*upcoming, None]  # no token equals None: nothing is accepted behind the recording's end
            path = find_accepted_path(tokens, parents, draft.passenger, picks, by_depth=True)
        emitted, done = cut(upcoming[: len(path) + 1], self.eos, left)
        self._emitted = start + len(emitted)
        whole = len(path) == len(tokens) and len(emitted) == len(path) + 1
        step = Step(
            root=self._answer[start - 1],
            emitted=tuple(emitted),
            path=tuple(path[: len(emitted) - 1]),
            done=done or self._emitted == len(self._answer),
            late=int(continues(late, whole, emitted[-1])),
        )
        self._request.laps.lap("verify")
        return step

    def gaps(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Nothing can be judged: there are no logits."""
        raise CaseError("a replay has no logits to compare; expected measure.lossless=false")


def _count_batch(parents: Sequence[int]) -> int:
    """Tokens of the batch that a draft of rows would be: every row as long as the longest, each with the root."""
    if not len(parents):
        return 1
    starts = [node for node, parent in enumerate(parents) if parent == ROOT]
    ends = [*starts[1:], len(parents)]
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    return len(starts) * (longest + 1)


def _count_agreeing(tokens: Sequence[int], upcoming: Sequence[int]) -> int:
    """Tokens of a chain that agree with the recording, from the first on."""
    count = 0
    for token, right in zip(tokens, upcoming, strict=False):
        if token != right:
            break
        count += 1
    return count
