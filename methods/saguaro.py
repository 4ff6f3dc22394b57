"""Speculative speculative decoding (Kumar et al. 2026, Saguaro): drafts for the likely outcomes of
a verification.

While the target verifies a chain, the draft model guesses how many tokens will be accepted and
which token of the target follows, and drafts a chain for each such outcome, all of them in the same
forwards. If the outcome is one of these (a hit), its chain is the next draft at once; otherwise (a
miss) the target waits for a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from methods.parts.draft_lm import DraftLM, TreeRequest, draw_one
from methods.parts.draft_method import TargetTraits
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
from specbench.types import ROOT, Draft, InputError, Prefill, Step, require_nodes

WIDEST = 64  # outcomes of one number of accepted tokens


@dataclass(slots=True)
class Lines:
    """Chains that were drafted in the same forwards, one a line.

    first: node of the first line's token above its chain. tokens: of each line, up to an EOS.
    best: of each line, for each of its tokens the likeliest ids in that place.
    probs: of each place (lines, V) distributions that its tokens were drawn from; empty if they
    were chosen.
    """

    first: int
    tokens: list[list[int]]
    best: list[list[list[int]]]
    probs: list[Tensor]

    def nodes(self, line: int) -> list[int]:
        """Nodes of the tokens of a line that were read: all but the last."""
        width = len(self.tokens)
        return [self.first + line + width * place for place in range(1, len(self.tokens[line]))]


class SaguaroSession:
    """The draft model of one request. The tree below the context has the chain, and a line for each
    outcome.
    """

    def __init__(self, actor: DraftActor, context: list[int], seed: int) -> None:
        self._lm, self._eos, self._context = actor.lm, actor.eos, context
        self._length, self._fan_out = actor.options["length"], actor.options["fan_out"]
        self._tree = TreeRequest(actor.lm, actor.vocab)
        self._random = torch.Generator(actor.lm.device).manual_seed(seed)
        self._distribution = actor.distributions if actor.sampling is not None else None
        self._widest = min(actor.vocab, max(self._fan_out) + 1 + len(actor.eos))
        self._marks: list[tuple[Mark, Mark]] = []
        self._chain: list[int] = []
        self._nodes: list[int] = []  # of the chain's tokens that were read
        # likeliest ids after the root, and after each token that was read
        self._best: list[list[int]] = []
        # (accepted tokens, the target's token) -> line
        self._outcomes: dict[tuple[int, int], int] = {}
        self._lines: Lines | None = None

    def draft(self) -> dict[str, Any]:
        """A chain after the context, for which the target waits."""
        rows = self._timed(lambda: self._tree.feed(self._context, self._tree.cached)[None])
        return {"hit": False, **self._take(self._grow(rows, ROOT), 0, range(self._length))}

    def prepare(self, count: int) -> list[float]:
        """The target verifies the first ``count`` tokens: draft for its outcomes; [s] of each
        forward.
        """
        del self._chain[count:], self._nodes[count:], self._best[count + 1 :]
        chain, above = self._chain, [ROOT, *self._nodes]
        if len(self._nodes) < len(chain) and chain[-1] not in self._eos:
            rows = self._expand([chain[-1]], above[-1:])
            above.append(len(self._tree) - 1)
            self._nodes.append(above[-1])
            self._best += self._likeliest(rows).tolist()
        outcomes: list[tuple[int, int]] = []
        for place, best in enumerate(self._best):
            drafted = chain[place : place + 1]
            others = [token for token in best if token not in self._eos and token not in drafted]
            outcomes += [(place, token) for token in others[: self._fan_out[place]]]
        self._outcomes, self._lines = {outcome: line for line, outcome in enumerate(outcomes)}, None
        if outcomes:
            rows = self._expand(
                [token for _, token in outcomes], [above[place] for place, _ in outcomes]
            )
            self._lines = self._grow(rows, len(self._tree) - len(outcomes))
        return self._seconds()

    def follow(self, accepted: int, token: int) -> dict[str, Any]:
        """The target accepted so many tokens and emitted its own ``token`` after them; the next
        chain.
        """
        line = self._outcomes.get((accepted, token))
        path, tokens = self._nodes[:accepted], self._chain[:accepted]
        self._context += [*tokens, token]
        if line is None or self._lines is None:
            self._tree.commit(path, tokens[: len(path)])
            return self.draft()
        kept = self._lines.nodes(line)
        self._tree.commit([*path, self._lines.first + line], [*tokens, token], kept)
        return {"hit": True, **self._take(self._lines, line, range(len(kept)))}

    def _take(self, lines: Lines, line: int, nodes: Sequence[int]) -> dict[str, Any]:
        """Make a line the chain. nodes: of its tokens that were read, in the tree."""
        self._chain, self._best = lines.tokens[line], lines.best[line]
        self._nodes = list(nodes)[: len(self._chain) - 1]
        probs = (
            torch.stack([each[line] for each in lines.probs[: len(self._chain)]])
            if lines.probs
            else None
        )
        return {"tokens": list(self._chain), "probs": probs, "seconds": self._seconds()}

    def _grow(self, rows: Tensor, first: int) -> Lines:
        """Draft ``length`` tokens on each line below rows (lines, v); first: see ``Lines``."""
        width = len(rows)
        above = [ROOT] if first == ROOT else list(range(first, first + width))
        tokens: list[Tensor] = []
        best: list[Tensor] = []
        probs: list[Tensor] = []
        for place in range(self._length):
            if place:
                rows = self._expand(tokens[-1], above)
                above = list(range(len(self._tree) - width, len(self._tree)))
            best.append(self._likeliest(rows))
            if self._distribution is None:
                tokens.append(rows.argmax(-1))
            else:
                probs.append(self._distribution(rows))
                tokens.append(draw_one(probs[-1], self._random))
        read = (
            torch.cat([torch.stack(tokens)[..., None], torch.stack(best)], dim=-1)
            .transpose(0, 1)
            .tolist()
        )
        drafted = [[each[0] for each in line] for line in read]
        ends = [
            next((at + 1 for at, token in enumerate(line) if token in self._eos), None)
            for line in drafted
        ]
        kept = [line[:end] for line, end in zip(drafted, ends, strict=True)]
        return Lines(
            first,
            kept,
            [[each[1:] for each in line[:end]] for line, end in zip(read, ends, strict=True)],
            probs,
        )

    def _likeliest(self, rows: Tensor) -> Tensor:
        return rows.topk(self._widest).indices

    def _expand(self, tokens: Sequence[int] | Tensor, parents: Sequence[int]) -> Tensor:
        return self._timed(lambda: self._tree.expand(tokens, parents))

    def _timed(self, forward: Any) -> Tensor:
        before = mark(self._lm.device)
        rows: Tensor = forward()
        self._marks.append((before, mark(self._lm.device)))
        return rows

    def _seconds(self) -> list[float]:
        """[s] of each forward since the last call."""
        marks, self._marks = self._marks, []
        if marks and self._lm.device.type == "cuda":
            torch.cuda.synchronize(self._lm.device)
        return [seconds_between(*pair) for pair in marks]


class SaguaroActor(DraftActor):
    """Draws at temperature > 0, takes the best token at 0."""

    def __init__(self, lm: DraftLM, traits: TargetTraits, options: dict[str, Any]) -> None:
        """See ``DraftActor``; the forwards of a chain and of as many lines as there can be are
        recorded.
        """
        super().__init__(lm, traits, options)
        length, lines = options["length"], sum(options["fan_out"])
        chain = [(1, nodes, 1) for nodes in range(1, length + 1)]
        lm.prepare(
            [
                *chain,
                *(
                    (lines, length + lines * places, lines)
                    for places in range(1, length + 1)
                    if lines
                ),
            ]
        )

    def session(self, context: list[int], seed: int) -> SaguaroSession:
        return SaguaroSession(self, context, seed)

    def first_answer(self, session: SaguaroSession) -> dict[str, Any]:
        return session.draft()


class _Saguaro(ParallelDrafter):
    def __init__(self, method: Saguaro, seed: int) -> None:
        super().__init__(method, seed)
        self._device = method.target_device
        self._proposed = 0
        self._answer: Ticket | None = None
        self._prepared: Ticket | None = None
        self._seconds: list[float] = []
        self._hits = self._misses = 0

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        answer = self.open_session(context)
        if answer is None:
            assert self._answer is not None
            answer = self.port.take(self._answer)
            self._hits += answer["hit"]
            self._misses += not answer["hit"]
        self.times.before += answer["seconds"]
        tokens, probs = answer["tokens"][:budget], answer["probs"]
        self._proposed = len(tokens)
        return Draft.chain(
            tokens, 0, probs[:budget].to(self._device) if probs is not None and tokens else None
        )

    def launch(self) -> None:
        self._prepared = self.port.post("tell", self.number, "prepare", self._proposed)
        self.times.note_launch()

    def join(self) -> None:
        self.times.note_join()
        assert self._prepared is not None
        self._seconds = self.port.take(self._prepared)

    def observe(self, step: Step) -> None:
        self.end_round(len(step.emitted), self._seconds)
        if not step.done:
            self._answer = self.port.post(
                "tell", self.number, "follow", len(step.path), step.emitted[-1]
            )

    def stats(self) -> dict[str, float]:
        asked = self._hits + self._misses
        rate = {"hit_rate": self._hits / asked} if asked else {}
        return {**super().stats(), **rate, "hits": float(self._hits), "misses": float(self._misses)}


@dataclass(eq=False)
class Saguaro(ParallelDraft):
    """Speculative speculative decoding; conf/method/saguaro.yaml describes the parameters."""

    kind = SaguaroActor
    draws = True

    length: int = count(4)
    fan_out: list[int] = field(default_factory=lambda: [3])

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.fan_out if isinstance(self.fan_out, list) else [self.fan_out]
        if len(given) not in (1, self.length + 1) or not all(
            type(each) is int and 0 <= each <= WIDEST for each in given
        ):
            raise InputError(
                f"fan_out={self.fan_out}: expected one number of outcomes, or one for each of 0 to"
                f" {self.length} accepted tokens, each from 0 to {WIDEST}"
            )
        self._fan_out = given * (self.length + 1) if len(given) == 1 else given

    def options(self) -> dict[str, Any]:
        return {"length": self.length, "fan_out": self._fan_out}

    def bind(self, target: Target) -> None:
        require_nodes(f"length={self.length}", self.length, target.max_nodes)
        super().bind(target)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The draft model reads the prompt for the first draft. seed: of the tokens drawn."""
        return _Saguaro(self, seed)
