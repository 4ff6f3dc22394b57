"""CARD (Zhou et al. 2025, "query-and-correct"): the draft model fills a cache of continuations
while the target runs.

The target takes one chain out of the cache, the heaviest, and verifies it; meanwhile the draft
model reads ``ratio`` more layers. Where the cache holds the target's own token below what the
target accepted (a hit), the cache is corrected to follow from that token and continues to serve;
otherwise (a miss) it starts again. The target's draft is a chain, whatever the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from methods.parts.draft_lm import DraftLM, TreeRequest
from methods.parts.draft_method import TargetTraits
from methods.parts.parallel_draft import (
    DraftActor,
    ParallelDraft,
    ParallelDrafter,
    mark,
    measure_forward_s,
    seconds_between,
)
from methods.parts.parameters import count
from methods.parts.port import Ticket
from specbench.method import Drafter
from specbench.models.facade import Target
from specbench.types import ROOT, Draft, InputError, Prefill, Step


@dataclass(slots=True)
class TreeLayer:
    """Nodes of one depth, the likeliest first. ids are ascending.

    ids, tokens, parents: (n,) parents are ids. weights: (n,) log-probability of the path from the
    cache's base. best: (n, k) tokens of the secondary cache, likeliest first, and chances: (n, k)
    their log-probabilities given the path; None until the draft model has read the layer.
    """

    ids: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray
    weights: np.ndarray
    best: np.ndarray | None = None
    chances: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, keep: np.ndarray) -> TreeLayer:
        """Only the nodes of a (n,) bool mask."""
        best = None if self.best is None else self.best[keep]
        chances = None if self.chances is None else self.chances[keep]
        return TreeLayer(
            self.ids[keep], self.tokens[keep], self.parents[keep], self.weights[keep], best, chances
        )


class DraftCache:
    """The cache of likeliest continuations.

    width: nodes a layer (K). children: of a node in the secondary cache (k). eos: tokens nothing
    follows.
    """

    def __init__(self, width: int, children: int, eos: frozenset[int]) -> None:
        self._width, self.children = width, children
        self._eos = np.array(sorted(eos), dtype=np.int64)
        self._next = 0
        self.restart()

    def restart(self) -> None:
        """Forget everything; a new root that the draft model has not read yet."""
        self._base = TreeLayer(self._new_ids(1), np.zeros(1, np.int64), np.full(1, -1), np.zeros(1))
        self.root = int(self._base.ids[0])
        self.layers: list[TreeLayer] = []
        # layers before this one are the verified path's, kept only where nothing is pruned
        self._head = 0

    def _new_ids(self, count: int) -> np.ndarray:
        self._next += count
        return np.arange(self._next - count, self._next, dtype=np.int64)

    @property
    def ahead(self) -> int:
        """Layers after the root."""
        return len(self.layers) - self._head

    @property
    def frontier(self) -> TreeLayer:
        """The deepest nodes: the last layer, or the base alone."""
        return self.layers[-1] if self.layers else self._base

    @property
    def unread(self) -> bool:
        """True if the draft model has not read the frontier yet; otherwise nothing follows from
        it.
        """
        return self.frontier.best is None

    def read(self) -> np.ndarray:
        """(n,) ids of the layers' nodes that the draft model has read, parents before children."""
        return np.concatenate(
            [np.empty(0, np.int64), *(layer.ids for layer in self.layers if layer.best is not None)]
        )

    def grow(self, best: np.ndarray, chances: np.ndarray) -> None:
        """The draft model has read the frontier: keep each node's children (n, k), choose the next
        layer.
        """
        self.frontier.best, self.frontier.chances = best, chances
        self._add_layer()

    def _add_layer(self) -> None:
        """The ``width`` likeliest children of the last layer, from the secondary cache; none if
        there are none.
        """
        above = self.frontier
        assert above.best is not None
        assert above.chances is not None
        chances = np.where(np.isin(above.tokens, self._eos)[:, None], -np.inf, above.chances)
        if above is self._base:
            chances = above.chances
        weights = (above.weights[:, None] + chances).ravel()
        count = min(self._width, int(np.isfinite(weights).sum()))
        if not count:
            return
        likeliest = np.argpartition(-weights, count - 1)[:count]
        # equal ones: the first stays the first
        order = likeliest[np.lexsort((likeliest, -weights[likeliest]))]
        parents = above.ids[order // above.best.shape[1]]
        self.layers.append(
            TreeLayer(self._new_ids(count), above.best.ravel()[order], parents, weights[order])
        )

    def query(self, limit: int) -> tuple[list[int], list[int]]:
        """(ids, tokens) of the chain from the root: the heaviest child, its heaviest child and so
        on.
        """
        ids: list[int] = []
        tokens: list[int] = []
        node = self.root
        for layer in self.layers[self._head : self._head + limit]:
            below = np.flatnonzero(layer.parents == node)
            if not len(below):
                break
            node = int(layer.ids[below[0]])
            ids.append(node)
            tokens.append(int(layer.tokens[below[0]]))
        return ids, tokens

    def find(self, path: Sequence[int], token: int) -> int | None:
        """The node that holds ``token`` below the accepted ``path`` of ids; None is a miss.

        Raises ValueError when the path does not lead down from the root.
        """
        parent = self.root
        for depth, node in enumerate(path):
            layer = self._layer(depth)
            if layer is None or not ((layer.ids == node) & (layer.parents == parent)).any():
                raise ValueError(f"accepted nodes {list(path)} are no path below root {self.root}")
            parent = node
        layer = self._layer(len(path))
        if layer is None:
            return None
        at = np.flatnonzero((layer.parents == parent) & (layer.tokens == token))
        return int(layer.ids[at[0]]) if len(at) else None

    def _layer(self, depth: int) -> TreeLayer | None:
        place = self._head + depth
        return self.layers[place] if place < len(self.layers) else None

    def move(self, node: int, depth: int) -> None:
        """``node``, ``depth`` layers below the root, is the root now, and nothing is pruned."""
        self._head += depth
        self.root = node

    def correct(self, node: int, depth: int) -> bool:
        """``node`` is the root now: only what follows from it stays. True if a layer had to be
        chosen again.

        Weights count from the new root. Where no node of a layer follows from it, the tree is cut
        there and the layer is filled from the secondary cache of the layer above.
        """
        own = self.layers[self._head + depth - 1]
        self._base = own.where(own.ids == node)
        base = self._base.weights.copy()
        self._base.weights -= base
        kept: list[TreeLayer] = []
        above = self._base
        for layer in self.layers[self._head + depth :]:
            layer = layer.where(np.isin(layer.parents, above.ids))
            if not len(layer):
                break
            layer.weights -= base
            kept.append(layer)
            above = layer
        self.layers, self._head, self.root = kept, 0, node
        if self.unread:
            return False
        self._add_layer()
        return True


class CardSession:
    """One request's cache, and the draft model's tree that it is read from."""

    def __init__(self, actor: DraftActor, context: list[int]) -> None:
        options = actor.options
        self._lm, self._context, self._options = actor.lm, context, options
        self.tree = TreeRequest(actor.lm, actor.vocab)
        self.store = DraftCache(
            options["nodes_per_layer"], min(options["children"], actor.vocab), actor.eos
        )
        self._nodes: dict[int, int] = {}  # id in the store -> node in the draft model's tree
        self._trail: list[int] = []  # verified ids after the tree's root, where nothing is pruned
        # (ids, their first place in the context) to be committed
        self._due: tuple[list[int], int] | None = None

    def grow(self) -> float:
        """Read the deepest nodes in one forward and choose the next layer; [s] of the forward."""
        before = mark(self._lm.device)
        if self.store.layers:
            layer = self.store.frontier
            start, ids = len(self.tree), layer.ids.tolist()
            parents = [self._nodes.get(parent, ROOT) for parent in layer.parents.tolist()]
            rows = self.tree.expand(layer.tokens.tolist(), parents)
            self._nodes.update(zip(ids, range(start, start + len(ids)), strict=True))
        else:
            self._nodes.clear()
            rows = self.tree.feed(self._context, self.tree.cached)[None]
        chances, best = rows.log_softmax(
            -1, dtype=torch.promote_types(rows.dtype, torch.float32)
        ).topk(self.store.children)
        read = torch.stack([chances.double(), best.double()])
        after = mark(self._lm.device)
        # the forward's only read-back, and the second mark has been passed
        found = read.cpu().numpy()
        self.store.grow(found[1].astype(np.int64), found[0])
        return seconds_between(before, after)

    def expand(self, rounds: int) -> list[float]:
        """Up to ``rounds`` forwards; fewer if nothing can follow or there are ``max_depth`` layers.
        [s] of each.
        """
        self._tidy()
        seconds: list[float] = []
        while (
            len(seconds) < rounds
            and self.store.unread
            and len(self.store.layers) < self._options["max_depth"]
        ):
            seconds.append(self.grow())
        return seconds

    def correct(self, path: list[int], emitted: Sequence[int]) -> dict[str, Any]:
        """The target accepted the ids of ``path`` and emitted those tokens with its own last:
        follow from there.
        """
        self._tidy()
        node = self.store.find(path, emitted[-1])
        self._context += emitted
        refilled = False
        if node is None:
            self._restart([*self._trail, *path], len(self._context) - 1)
        elif self._options["correct"]:
            refilled = self.store.correct(node, len(path) + 1)
            self._due = ([*path, node], len(self._context))
        else:  # the ablation: the root moves, and the cache stays unchanged until it is full
            self.store.move(node, len(path) + 1)
            self._trail += [*path, node]
            if len(self.store.layers) >= self._options["max_depth"]:
                self._restart(self._trail, len(self._context))
        seconds = self.expand(1) if node is None and self._options["wait"] else []
        return {"hit": node is not None, "refilled": refilled, "seconds": seconds, **self.chain()}

    def _restart(self, verified: list[int], end: int) -> None:
        """Empty the cache; the verified ids, which end at ``end`` of the context, stay in the draft
        model's.
        """
        self.store.restart()
        self._due, self._trail = (verified, end), []

    def _tidy(self) -> None:
        """Apply a correction to the draft model's cache: during the target's forward, not before
        it.
        """
        if self._due is None:
            return
        verified, end = self._due
        self._due = None
        start = end - len(verified)
        # the last one may not have been read
        known = [node for node in verified if node in self._nodes]
        kept = self.store.read().tolist()
        tokens = self._context[start : start + len(known)]
        self.tree.commit(
            [self._nodes[node] for node in known], tokens, [self._nodes[node] for node in kept]
        )
        self._nodes = {node: place for place, node in enumerate(kept)}

    def chain(self) -> dict[str, Any]:
        """Returns ids and tokens of the heaviest chain and the number of layers, which the target
        may request.
        """
        ids, tokens = self.store.query(self._options["max_depth"])
        return {"ids": ids, "tokens": tokens, "layers": self.store.ahead}


class CardActor(DraftActor):
    """The draft model that fills caches."""

    def __init__(self, lm: DraftLM, traits: TargetTraits, options: dict[str, Any]) -> None:
        """See ``DraftActor``; layers are recorded, after any number of earlier ones."""
        super().__init__(lm, traits, options)
        nodes = options["nodes_per_layer"]
        lm.prepare((nodes, layers * nodes, nodes) for layers in range(1, options["max_depth"] + 1))

    def session(self, context: list[int], seed: int) -> CardSession:
        """A session after ``context``; nothing is drawn, so the seed is not used."""
        return CardSession(self, context)

    def first_answer(self, session: CardSession) -> dict[str, Any]:
        seconds = session.expand(1) if self.options["wait"] else []
        return {"seconds": seconds, **session.chain()}

    def probe(self) -> float:
        """[s] of a forward over one layer."""
        tree = TreeRequest(self.lm, self.vocab)
        tree.feed([0], 0)
        nodes = self.options["nodes_per_layer"]

        def forward() -> None:
            tree.expand([0] * nodes, [ROOT] * nodes)
            tree.prune(())

        return measure_forward_s(forward, self.lm.device)


class _Card(ParallelDrafter):
    def __init__(self, method: Card, seed: int) -> None:
        super().__init__(method, seed)
        self._ratio = method.forwards
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
        self._expansion = self.port.post("tell", self.number, "expand", self._ratio)
        self.times.note_launch()

    def join(self) -> None:
        self.times.note_join()
        assert self._expansion is not None
        self._seconds = self.port.take(self._expansion)

    def observe(self, step: Step) -> None:
        self.end_round(len(step.emitted), self._seconds)
        if not step.done:
            path = self._ids[: len(step.path)]
            self._correction = self.port.post(
                "tell", self.number, "correct", path, list(step.emitted)
            )

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


@dataclass(eq=False)
class Card(ParallelDraft):
    """CARD; conf/method/card.yaml describes the parameters."""

    kind = CardActor

    nodes_per_layer: int = count(50)
    children: int | None = count(None)
    ratio: int | None = count(5)
    max_depth: int = count(50)
    correct: bool = True
    wait: bool = False

    def options(self) -> dict[str, Any]:
        names = ("nodes_per_layer", "max_depth", "correct", "wait")
        return {name: getattr(self, name) for name in names} | {
            "children": self.children or self.nodes_per_layer
        }

    def bind(self, target: Target) -> None:
        """Start the partner; measure the ratio unless it is given."""
        if self.ratio is None and target.model is None:
            raise InputError(
                "ratio=null: a replay has no target to measure; expected a whole number"
            )
        super().bind(target)
        self.forwards = self.ratio or self.measure_ratio(target)

    def adopt(self, lm: DraftLM, traits: TargetTraits) -> None:
        super().adopt(lm, traits)
        self.forwards = self.ratio or 1

    def measure_ratio(self, target: Target) -> int:
        """The draft forwards that one forward of the target leaves time for, at least 1."""
        ids = torch.zeros(1, 1, dtype=torch.long, device=target.device)
        target_s = measure_forward_s(lambda: target.logits(ids), target.device)
        return max(1, math.ceil(target_s / self.partner.ask("probe")))

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The draft model reads the prompt during the first forward."""
        return _Card(self, seed)
