"""PEARL (Liu et al. 2025, adaptive draft length): the draft model drafts while the target verifies.

Tokens that were drafted and not verified yet (pending) are the target's draft; meanwhile the draft
model writes the next ``gamma``. The first of those is verified by the same forward: with nothing
pending this is the paper's pre-verify, after an accepted chain its post-verify. So the run of
drafted tokens continues until one is rejected: its length adapts itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from methods.parts.draft_lm import DraftRequest, choose_token
from methods.parts.parallel_draft import (
    DraftActor,
    Mark,
    ParallelDraft,
    ParallelDrafter,
    mark,
    seconds_between,
)
from methods.parts.parameters import count
from methods.parts.port import Ticket
from specbench.method import Drafter
from specbench.models.facade import Target
from specbench.types import Draft, Prefill, Step, require_nodes


class _Session:
    """The draft model of one request: its tokens follow the context without a gap."""

    def __init__(self, actor: DraftActor, context: list[int], seed: int) -> None:
        self._actor, self._tokens = actor, context
        self._request = DraftRequest(actor.lm, actor.vocab)
        self._random = torch.Generator(actor.lm.device).manual_seed(seed)
        self._distribution = actor.distributions if actor.sampling is not None else None
        self._settled = 0
        # each token when it is drafted; a GPU would wait for each
        self._reads = actor.lm.device.type == "cpu"

    def extend(self, keep: int, tail: Sequence[int], count: int) -> dict[str, Any]:
        """Continue after the first ``keep`` tokens and ``tail``: ``count`` more, up to an EOS.

        Returns tokens (m,), the distributions (m, V) they were drawn from (None if chosen), and [s]
        of each forward.
        """
        del self._tokens[keep:]
        self._settled = min(self._settled, keep)
        self._tokens += tail
        device = self._actor.lm.device
        start, ended = len(self._tokens), self._tokens[-1] in self._actor.eos
        drafted: list[Any] = []
        drawn_from: list[Tensor] = []
        marks: list[tuple[Mark, Mark]] = []
        states: list[Tensor] = []  # of the random numbers, after each token
        while len(drafted) < count and not ended:
            before = mark(device)
            row = (
                self._request.step(drafted[-1])
                if drafted
                else self._request.feed(self._tokens, self._settled)
            )
            marks.append((before, mark(device)))
            token = choose_token(row, self._distribution, self._random, drawn_from)
            drafted.append(int(token) if self._reads else token)
            ended = self._reads and drafted[-1] in self._actor.eos
            if drawn_from and not self._reads:
                states.append(self._random.get_state())
        kept = drafted if self._reads or not drafted else self._read(drafted, start, states)
        self._tokens += kept
        if kept:
            self._settled = len(self._tokens) - 1
        probs = torch.stack(drawn_from[: len(kept)]) if drawn_from else None
        return {
            "tokens": kept,
            "probs": probs,
            "seconds": [seconds_between(*pair) for pair in marks],
        }

    def _read(self, drafted: list[Tensor], start: int, states: list[Tensor]) -> list[int]:
        """What was drafted on the device, in one read-back, up to an EOS: what follows it was
        drafted in vain.
        """
        tokens = torch.stack(drafted).tolist()
        self._request.name(start, tokens)
        ends = [place for place, token in enumerate(tokens) if token in self._actor.eos]
        if not ends:
            return tokens
        if states:
            self._random.set_state(states[ends[0]])
        return tokens[: ends[0] + 1]


class PearlActor(DraftActor):
    """Draws at temperature > 0, takes the argmax at 0."""

    def session(self, context: list[int], seed: int) -> _Session:
        return _Session(self, context, seed)


class _Pearl(ParallelDrafter):
    def __init__(self, method: Pearl, seed: int) -> None:
        super().__init__(method, seed)
        self._gamma, self._device = method.gamma, method.target_device
        self._pending: list[int] = []
        self._probs: Tensor | None = None  # (pending, V)
        self._keep, self._tail = 0, list[int]()
        self._proposed = self._base = 0
        self._ticket: Ticket | None = None
        self._seconds: list[float] = []
        self._run = 0
        self._runs: list[int] = []
        self._alone = self._late = 0

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        self.open_session(context)
        if not self._rounds:
            self._keep = len(context)
        self._base = len(context)
        self._proposed = count = min(len(self._pending), budget)
        return Draft.chain(
            self._pending[:count],
            0,
            self._probs[:count] if self._probs is not None and count else None,
        )

    def launch(self) -> None:
        unjudged = len(self._pending) - self._proposed  # only where the budget is below gamma
        count = max(0, self._gamma - unjudged)
        self._ticket = self.port.post("tell", self.number, "extend", self._keep, self._tail, count)
        self.times.note_launch()

    def join(self) -> Draft | None:
        self.times.note_join()
        assert self._ticket is not None
        answer = self.port.take(self._ticket)
        self._seconds = answer["seconds"]
        self._pending += answer["tokens"]
        if answer["probs"] is not None:
            fresh = answer["probs"].to(self._device)
            self._probs = fresh if self._probs is None else torch.cat([self._probs, fresh])
        self._pending = self._pending[self._proposed :]
        if self._probs is not None:
            self._probs = self._probs[self._proposed :]
        return Draft.chain(self._pending, 0, self._probs) if self._pending else None

    def observe(self, step: Step) -> None:
        self.end_round(len(step.emitted), self._seconds)
        self._alone += not self._proposed
        self._late += step.late
        self._run += len(step.path) + step.late
        if step.late:
            self._keep, self._tail = self._base + self._proposed + len(self._pending), []
            self._pending = self._pending[1:]
            self._probs = None if self._probs is None else self._probs[1:]
            return
        self._runs.append(self._run)
        self._run = 0
        self._keep, self._tail = self._base + len(step.path), [step.emitted[-1]]
        self._pending, self._probs = [], None

    def stats(self) -> dict[str, float]:
        runs = [*self._runs, *([self._run] if self._run else [])]
        return {
            **super().stats(),
            "pre_verify_rounds": float(self._alone),
            "late_accepted": float(self._late),
            **({"mean_run": sum(runs) / len(runs)} if runs else {}),
        }


@dataclass(eq=False)
class Pearl(ParallelDraft):
    """PEARL; conf/method/pearl.yaml describes the parameters."""

    kind = PearlActor
    draws = True

    gamma: int = count(4)

    def bind(self, target: Target) -> None:
        require_nodes(f"gamma={self.gamma}", self.gamma - 1, target.max_nodes)
        super().bind(target)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The draft model reads the prompt during the first forward. seed: of the tokens drawn."""
        return _Pearl(self, seed)
