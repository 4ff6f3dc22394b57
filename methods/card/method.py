"""CARD (Zhou et al. 2025, "query-and-correct"): the draft model fills a cache of continuations while the target runs.

The target takes one chain out of the cache, the heaviest, and verifies it; meanwhile the draft model reads ``ratio``
more layers. Where the target's own token lies in the cache below what it accepted (a hit), the cache is corrected to
follow from it and goes on to serve; where not (a miss), it starts again. The target's draft is a chain, whatever the
cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from methods.card.draft_cache import DraftCache
from methods.parts.draft_lm.draft_lm import DraftLM
from methods.parts.draft_lm.draft_method import TargetTraits
from methods.parts.draft_lm.forward_time import forwards_per_target, mark, measure_forward_s, seconds_between
from methods.parts.draft_lm.parallel_draft import DraftActor, ParallelDraft, ParallelDrafter
from methods.parts.draft_lm.port import Backend, Ticket
from methods.parts.draft_lm.tree_lm import TreeRequest
from specbench.method import Drafter
from specbench.models.facade import Target
from specbench.types import MOST, ROOT, Draft, InputError, Prefill, Step, require_count


class CardSession:
    """One request's cache, and the draft model's tree that it is read from."""

    def __init__(self, actor: DraftActor, context: list[int]) -> None:
        options = actor.options
        self._lm, self._context, self._options = actor.lm, context, options
        self.tree = TreeRequest(actor.lm, actor.vocab)
        self.store = DraftCache(options["nodes"], min(options["children"], actor.vocab), actor.eos)
        self._nodes: dict[int, int] = {}  # id in the store -> node in the draft model's tree
        self._trail: list[int] = []  # verified ids behind the tree's root, where nothing is pruned
        self._due: tuple[list[int], int] | None = None  # (ids, their first place in the context) to be committed

    def grow(self) -> float:
        """Read the deepest nodes in one forward and choose the next layer; [s] of the forward."""
        before = mark(self._lm.device)
        if self.store.layers:
            layer = self.store.frontier
            rows = self._expand(layer.ids.tolist(), layer.tokens.tolist(), layer.parents.tolist())
        else:
            self._nodes.clear()
            rows = self.tree.feed(self._context, self.tree.held)[None]
        chances, best = rows.log_softmax(-1, dtype=_at_least_single(rows.dtype)).topk(self.store.children)
        read = torch.stack([chances.double(), best.double()])
        after = mark(self._lm.device)
        found = read.cpu().numpy()  # the forward's only read-back, and the second mark has been passed
        self.store.grow(found[1].astype(np.int64), found[0])
        return seconds_between(before, after)

    def _expand(self, ids: list[int], tokens: list[int], parents: list[int]) -> torch.Tensor:
        start = len(self.tree)
        rows = self.tree.expand(tokens, [self._nodes.get(parent, ROOT) for parent in parents])
        self._nodes.update(zip(ids, range(start, start + len(ids)), strict=True))
        return rows

    def expand(self, rounds: int) -> list[float]:
        """Up to ``rounds`` forwards; fewer where nothing can follow or ``depth`` layers are there. [s] of each."""
        self._tidy()
        seconds: list[float] = []
        while len(seconds) < rounds and self.store.unread and len(self.store.layers) < self._options["depth"]:
            seconds.append(self.grow())
        return seconds

    def correct(self, path: list[int], emitted: Sequence[int]) -> dict[str, Any]:
        """The target accepted the ids of ``path`` and emitted those tokens with its own last: follow from there."""
        self._tidy()
        node = self.store.find(path, emitted[-1])
        self._context += emitted
        refilled = False
        if node is None:
            self._restart([*self._trail, *path], len(self._context) - 1)
        elif self._options["correct"]:
            refilled = self.store.correct(node, len(path) + 1)
            self._due = ([*path, node], len(self._context))
        else:
            self._follow([*path, node])
        seconds = self.expand(1) if node is None and self._options["wait"] else []
        return {"hit": node is not None, "refilled": refilled, "seconds": seconds, **self.chain()}

    def _follow(self, path: list[int]) -> None:
        """The ablation: the root moves, and the cache stays as it is until it is full."""
        self.store.move(path[-1], len(path))
        self._trail += path
        if len(self.store.layers) >= self._options["depth"]:
            self._restart(self._trail, len(self._context))

    def _restart(self, verified: list[int], end: int) -> None:
        """Empty the cache; the verified ids, which end at ``end`` of the context, stay in the draft model's."""
        self.store.restart()
        self._due, self._trail = (verified, end), []

    def _tidy(self) -> None:
        """What a correction leaves to do in the draft model's cache: beside the target's forward, not before it."""
        if self._due is None:
            return
        verified, end = self._due
        self._due = None
        start = end - len(verified)
        known = [node for node in verified if node in self._nodes]  # the last one may not have been read
        kept = self.store.read().tolist()
        tokens = self._context[start : start + len(known)]
        self.tree.commit([self._nodes[node] for node in known], tokens, [self._nodes[node] for node in kept])
        self._nodes = {node: place for place, node in enumerate(kept)}

    def chain(self) -> dict[str, Any]:
        """What the target may ask for: ids and tokens of the heaviest chain, and how many layers there are."""
        ids, tokens = self.store.query(self._options["depth"])
        return {"ids": ids, "tokens": tokens, "layers": self.store.ahead}


def _at_least_single(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


class CardActor(DraftActor):
    """The draft model that fills caches."""

    def session(self, context: list[int], seed: int) -> CardSession:
        """Behind ``context``; nothing is drawn, so the seed is not used."""
        return CardSession(self, context)

    def first_answer(self, session: CardSession) -> dict[str, Any]:
        """An empty chain, unless the target waits for one forward."""
        seconds = session.expand(1) if self.options["wait"] else []
        return {"seconds": seconds, **session.chain()}

    def correct(self, number: int, path: list[int], emitted: Sequence[int]) -> dict[str, Any]:
        """See ``CardSession.correct``."""
        return self.sessions[number].correct(path, emitted)

    def expand(self, number: int, rounds: int) -> list[float]:
        """See ``CardSession.expand``."""
        return self.sessions[number].expand(rounds)

    def probe(self) -> float:
        """[s] of a forward over one layer."""
        tree = TreeRequest(self.lm, self.vocab)
        tree.feed([0], 0)
        nodes = self.options["nodes"]

        def forward() -> None:
            tree.expand([0] * nodes, [ROOT] * nodes)
            tree.prune(())

        return measure_forward_s(forward, self.lm.device)


class _Card(ParallelDrafter):
    def __init__(self, method: Card, number: int, ratio: int, seed: int) -> None:
        super().__init__(method, number, seed)
        self._ratio = ratio
        self._ids: list[int] = []
        self._correction: Ticket | None = None
        self._expansion: Ticket | None = None
        self._seconds: list[float] = []
        self._hits = self._misses = self._refills = 0
        self._layers: list[int] = []

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        answer = self.open_session(context)
        if answer is None:
            assert self._correction is not None
            answer = self.port.take(self._correction)
            self._hits += answer["hit"]
            self._misses += not answer["hit"]
            self._refills += answer["refilled"]
        self.times.before += answer["seconds"]
        self._layers.append(answer["layers"])
        self._ids = answer["ids"][:budget]
        return Draft.chain(answer["tokens"][:budget], source=0)

    def launch(self) -> None:
        self._expansion = self.port.post("expand", self.number, self._ratio)
        self.times.note_launch()

    def join(self) -> None:
        self.times.note_join()
        assert self._expansion is not None
        self._seconds = self.port.take(self._expansion)

    def observe(self, step: Step) -> None:
        self.end_round(len(step.emitted), self._seconds)
        if not step.done:
            path = self._ids[: len(step.path)]
            self._correction = self.port.post("correct", self.number, path, list(step.emitted))

    def stats(self) -> dict[str, float]:
        asked = self._hits + self._misses
        return {
            **super().stats(),
            **({"hit_rate": self._hits / asked} if asked else {}),
            "hits": float(self._hits),
            "misses": float(self._misses),
            "refills": float(self._refills),
            **({"mean_layers": sum(self._layers) / len(self._layers)} if self._layers else {}),
            "ratio": float(self._ratio),
        }


class Card(ParallelDraft):
    """draft: hub id or folder of the draft model. nodes_per_layer: K. children: k kept of each node; None = K.

    ratio: draft forwards beside one target forward; None measures ceil(T_target / T_draft) at the start, which makes
    drafts depend on the machine. max_depth: layers. correct: False only queries (the paper's ablation). wait: after a
    miss the target waits for one draft forward. port: inline | thread | process. patience_s: [s] without an answer
    after which the draft model counts as lost. dtype, device: of the draft; default the target's.
    """

    kind = CardActor

    def __init__(
        self,
        draft: str | None,
        nodes_per_layer: int = 50,
        children: int | None = None,
        ratio: int | None = 5,
        max_depth: int = 50,
        correct: bool = True,
        wait: bool = False,
        port: Backend = "inline",
        patience_s: float = 30.0,
        dtype: str | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(draft, port, patience_s, dtype, device)
        given = {"nodes_per_layer": nodes_per_layer, "children": children, "ratio": ratio, "max_depth": max_depth}
        for name, value in given.items():
            if value is not None:
                require_count(name, value, high=MOST)
        self.nodes, self.children = nodes_per_layer, children or nodes_per_layer
        self.ratio, self.depth, self.correct, self.wait = ratio, max_depth, correct, wait

    def options(self) -> dict[str, Any]:
        """Of the actor."""
        return {
            "nodes": self.nodes,
            "children": self.children,
            "depth": self.depth,
            "correct": self.correct,
            "wait": self.wait,
        }

    def bind(self, target: Target) -> None:
        """Start the partner; measure the ratio unless it is given."""
        if self.ratio is None and target.model is None:
            raise InputError("ratio=null: a replay has no target to measure; expected a whole number")
        super().bind(target)
        self.forwards = self.ratio or self._measured(target)

    def adopt(self, lm: DraftLM, traits: TargetTraits) -> None:
        """As ``ParallelDraft.adopt``; the ratio must be given."""
        super().adopt(lm, traits)
        self.forwards = self.ratio or 1

    def _measured(self, target: Target) -> int:
        ids = torch.zeros(1, 1, dtype=torch.long, device=target.device)
        target_s = measure_forward_s(lambda: target.logits(ids), target.device)
        return forwards_per_target(target_s, self.port.ask("probe"))

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The draft model reads the prompt beside the first forward."""
        return self.enter(_Card(self, self.number(), self.forwards, seed))
