"""The replay engine: recorded greedy tokens in place of a model.

Greedy decoding is a function of the context, so whatever a drafter proposes, the target's picks along the recorded
answer are the recorded tokens, and what it would pick off that path cannot be accepted. Every drafter that needs no
logits therefore decodes exactly as it would have behind the model, at the cost of a few comparisons a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from specbench.target.engine import Engine, EngineKind, Laps, Verifier
from specbench.target.tree import path_to
from specbench.target.verify import continues, cut
from specbench.types import EMPTY, ROOT, CaseError, Draft, Needs, Prefill, Step


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
        self._laps, self._needs = laps, needs
        self._draft: Draft = EMPTY
        self._emitted = 1
        return Prefill(self._answer[0])

    def forward(self, draft: Draft) -> None:
        """Take the draft; there is nothing to compute."""
        if len(draft.tokens) != len(draft.parents) or len(draft.tokens) > self.max_nodes:
            raise CaseError(
                f"draft of {len(draft.tokens)} nodes with {len(draft.parents)} parents; expected as many, and at most"
                f" {self.max_nodes} (engine.max_nodes)"
            )
        self._draft = draft
        self.fed = _batched(draft) if self._needs.rows else len(draft.tokens) + 1
        self._laps.lap("forward")

    def settle(self, left: int, late: Draft | None = None) -> Step:
        """Accept what agrees with the recording; see ``Engine.settle``."""
        draft, start = self._draft, self._emitted
        upcoming = self._answer[start : start + min(left, len(draft.tokens) + 1)]
        tokens = _plain(draft.tokens)
        if isinstance(draft.parents, range) and draft.passenger is None:
            path: Sequence[int] = range(_agreed(tokens, upcoming))
        else:
            path = _deepest(tokens, _plain(draft.parents), draft.passenger, upcoming)
        emitted, done = cut(upcoming[: len(path) + 1], self.eos, left)
        self._emitted = start + len(emitted)
        whole = len(path) == len(tokens) and len(emitted) == len(path) + 1
        step = Step(
            root=self._answer[start - 1],
            emitted=tuple(emitted),
            path=tuple(path[: len(emitted) - 1]),
            done=done or self._emitted == len(self._answer),
            late=int(late is not None and continues(late, whole, emitted[-1])),
        )
        self._laps.lap("verify")
        return step

    def gaps(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Nothing can be judged: there are no logits."""
        raise CaseError("a replay has no logits to judge by; expected measure.lossless=false")


def _plain(values: Sequence[int] | Tensor) -> Sequence[int]:
    return cast(Sequence[int], values.tolist()) if isinstance(values, Tensor) else values


def _batched(draft: Draft) -> int:
    """Tokens of the batch that a draft of rows would be: every row as long as the longest, each with the root."""
    if not len(draft.tokens):
        return 1
    starts = [node for node, parent in enumerate(draft.parents) if parent == ROOT]
    ends = [*starts[1:], len(draft.tokens)]
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    return len(starts) * (longest + 1)


def _agreed(tokens: Sequence[int], upcoming: Sequence[int]) -> int:
    """Tokens of a chain that agree with the recording, from the first on."""
    count = 0
    for token, right in zip(tokens, upcoming, strict=False):
        if token != right:
            break
        count += 1
    return count


def _deepest(
    tokens: Sequence[int], parents: Sequence[int], passenger: Sequence[bool] | None, upcoming: Sequence[int]
) -> list[int]:
    """The accepted path, root side first; of equally deep nodes the lowest number, as ``Walk.follow`` has it."""
    wanted = [*upcoming, None]  # None agrees with no token: nothing is accepted behind the recording's end
    level = [0] * len(tokens)  # of each node, 0 = not accepted
    level.append(1)  # the root's place: parents of -1 find it
    best, deepest = ROOT, 1
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        above = level[parent]
        if not above or token != wanted[above - 1] or (passenger is not None and passenger[node]):
            continue
        level[node] = above + 1
        if above + 1 > deepest:
            best, deepest = node, above + 1
    return path_to(best, parents)
