"""A draft language model with its own KV cache, which follows the committed context and drops what
was rejected.

A request drafts a chain, or a tree: then each node is one row of a forward, masked to the context
and its ancestors (tree attention, docs/tree_attention.md). A node keeps its slot in the KV cache
until the tree is committed or pruned, so a node's logits are computed once however long it stays.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.models.facade import ModelCard
from specbench.models.load import load_model, read_card
from specbench.models.runner import DraftCache, Run, Runner, Shape, make_runner
from specbench.models.tree import TreeRows
from specbench.types import ROOT, InputError

# The forwards of a chain: a step; at a draft's start the last drafted token and the one after it,
# or more tokens after steps in which others drafted.
CHAIN = ((1, 1, 1), (2, 2, 1), (16, 16, 1))
UNREAD = -1  # instead of a token that stays on the device
Sampler = Callable[[Tensor], Tensor]  # (m, v) logits -> (m, v) probabilities, or wider


def read_draft_card(
    path: str | None, target: ModelCard, dtype: str | None, device: str | None, same: bool = True
) -> ModelCard:
    """The draft's card. Raises InputError before any weights are read. same: it must have the
    target's vocabulary.
    """
    if not path:
        raise InputError(
            f"draft: not set and model={target.name} names no usual draft; expected"
            " model.draft=FOLDER, or a hub id"
        )
    card = read_card(
        path=path,
        dtype=dtype or target.dtype,
        device=device or target.device,
        widen=target.widening.draft if target.widening else None,
        prefix="",
        path_key="draft",
    )
    ours, theirs = card.tokenizer.get_vocab(), target.tokenizer.get_vocab()
    if same and ours != theirs:
        differing = len(ours.items() ^ theirs.items())
        raise InputError(
            f"draft={path}: has another vocabulary than model={target.name}"
            f" ({len(ours)} against {len(theirs)} tokens, {differing} entries differ);"
            " expected a draft model with the target's own tokenizer, or method=[foreign_draft]"
        )
    return card


def draw_one(probs: Tensor, random: torch.Generator) -> Tensor:
    """(...) a token of each (..., V) distribution, as ``torch.multinomial`` draws it, which tests
    its input twice.
    """
    return (probs / torch.empty_like(probs).exponential_(generator=random)).argmax(-1)


def choose_token(
    row: Tensor, distribution: Sampler | None, random: torch.Generator, probs: list[Tensor]
) -> Tensor:
    """() int64, what follows: the best one, or one drawn from ``distribution``, which is then
    appended to ``probs``.

    row: (v,) logits of a draft. distribution: (1, v) logits -> (1, V) probabilities; None takes the
    best token.
    """
    if distribution is None:
        return row.argmax()
    probs.append(distribution(row[None])[0])
    return draw_one(probs[-1], random)


@dataclass(frozen=True, slots=True, eq=False)
class DraftCall:
    """A call of a draft model for one request (``specbench.method.DraftForward``).

    cut: (wanted, v) the model's logits -> (wanted, V). given: the arguments of ``Runner.run``.
    """

    owner: DraftLM
    cut: Callable[[Tensor], Tensor]
    given: Run

    @torch.inference_mode()
    def run(self) -> Tensor:
        """(wanted, V) logits."""
        return self.cut(self.owner.runner.run(*self.given))


class DraftLM:
    """Holds the weights, and the caches of its requests: a request has one for as long as it
    lives.
    """

    def __init__(
        self, model: Any, context: int, attention: str = "sdpa", runner: Runner | None = None
    ) -> None:
        """Prepare chains. model: a causal LM in eval mode. context: [tokens] its limit. attention:
        of the target.

        runner: of the model; None = chosen.
        """
        self.model, self.context = model, context
        self.runner = runner or make_runner(model, context, attention)
        self.device = self.runner.device
        self._free: list[DraftCache] = []  # allocated once, and recorded on once
        self.prepare(CHAIN)

    @classmethod
    def load(cls, card: ModelCard, attention: str = "sdpa") -> DraftLM:
        """The model of a card, on the card's device. attention: the target's."""
        return cls(load_model(card), card.context, attention)

    @torch.inference_mode()
    def prepare(self, shapes: Iterable[Shape]) -> None:
        """Record forwards on the next request's cache, and on those that concurrent requests add;
        see ``Runner``.
        """
        cache = self._take()
        self._free.append(cache)
        self.runner.empty(cache)
        self.runner.prepare(cache, shapes)

    @torch.inference_mode()
    def lend_cache(self, request: object) -> DraftCache:
        """An empty cache, for as long as ``request`` lives."""
        cache = self._take()
        self.runner.empty(cache)
        weakref.finalize(request, self._free.append, cache).atexit = False
        return cache

    @torch.inference_mode()
    def run_together(self, forwards: Sequence[DraftCall]) -> list[Tensor]:
        """Of each, its logits."""
        found = self.runner.run_together([each.given for each in forwards])
        return [each.cut(rows) for rows, each in zip(found, forwards, strict=True)]

    def _take(self) -> DraftCache:
        if self._free:
            return self._free.pop()
        cache = self.runner.new_cache()
        self.runner.record(cache)
        return cache


class DraftRequest:
    """One request's walk of a draft model after the committed context. Logits are valid until the
    model runs again.
    """

    def __init__(self, lm: DraftLM, vocab: int) -> None:
        """vocab: [tokens] of the target's logits; rows are cut to it, since models of a family
        differ in padding.
        """
        self._lm, self.cache, self._vocab = lm, lm.lend_cache(self), vocab
        # the tokens of the context whose keys and values are in the cache
        self._cached: list[int] = []

    @torch.inference_mode()
    def feed(self, context: Sequence[int], settled: int) -> Tensor:
        """Bring the cache to ``context`` and return the last row's logits (V,).

        settled: [tokens] of the context known to be in the cache unchanged (comparison starts
        there).
        """
        return self.feeding(context, settled).run()[-1]

    def feeding(self, context: Sequence[int], settled: int, masks: Sequence[int] = ()) -> DraftCall:
        """The forward of ``feed``; it is the request's next.

        masks: tokens read after the context and forgotten with the next draft; they have a row of
        logits each.
        """
        common = self.rewind(context, settled)
        fed = [*context[common:], *masks]
        self._cached += [*context[common:], *[UNREAD] * len(masks)]
        return self._forward(fed, range(common, common + len(fed)), None, 1 + len(masks))

    def rewind(self, context: Sequence[int], settled: int) -> int:
        """Keep what ``context`` without its last token begins with; [tokens] of that. settled: as
        in ``feed``.
        """
        most = min(len(self._cached), len(context) - 1)
        common = min(settled, most)
        while common < most and self._cached[common] == context[common]:
            common += 1
        self.cache.truncate(common)
        del self._cached[common:]
        return common

    @torch.inference_mode()
    def step(self, token: int | Tensor) -> Tensor:
        """Append one drafted token; the next row's logits (V,). One on the device, (), is not read:
        see ``name``.
        """
        return self.stepping(token).run()[-1]

    def stepping(self, token: int | Tensor) -> DraftCall:
        """The forward of ``step``; it is the request's next."""
        place = len(self._cached)
        self._cached.append(UNREAD if isinstance(token, Tensor) else token)
        return self._forward(
            token.view(1) if isinstance(token, Tensor) else [token], [place], None, 1
        )

    def name(self, place: int, tokens: Sequence[int]) -> None:
        """Tokens from ``place`` of the context on, drafted on the device, are known now."""
        for at, token in enumerate(tokens, place):
            if at < len(self._cached):
                self._cached[at] = token

    def _forward(
        self, ids: Sequence[int] | Tensor, places: Sequence[int], tree: TreeRows | None, wanted: int
    ) -> DraftCall:
        """One call of the model; see ``Runner.run``."""
        return DraftCall(self._lm, self._cut, (self.cache, ids, places, tree, wanted))

    def _cut(self, rows: Tensor) -> Tensor:
        return rows[:, : self._vocab]


START = 64  # nodes that the bookkeeping has room for at first; it doubles


class TreeRequest(DraftRequest):
    """One request's tree after the committed context. Nodes are numbered in the order in which they
    were fed.

    ``ROOT`` is the context's last token: what ``feed`` returned are the root's logits.
    """

    def __init__(self, lm: DraftLM, vocab: int) -> None:
        super().__init__(lm, vocab)
        self._depths: list[int] = []  # of each node, 1 = child of the root
        # row 0 root, row i + 1: node i and its ancestors
        self._lines = np.zeros((START + 1, START), dtype=bool)

    def __len__(self) -> int:
        """Nodes in the tree."""
        return len(self._depths)

    @property
    def cached(self) -> int:
        """[tokens] of the context in the cache."""
        return len(self._cached)

    def rewind(self, context: Sequence[int], settled: int) -> int:
        """As ``DraftRequest.rewind``; the tree is dropped, and so it is by ``feed``."""
        self._depths.clear()
        return super().rewind(context, settled)

    def step(self, token: int | Tensor) -> Tensor:
        """One more node below the newest one, or below the root; its logits (V,)."""
        return self.expand(
            token.view(1) if isinstance(token, Tensor) else [token], [len(self) - 1]
        )[0]

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int] | Tensor, parents: Sequence[int]) -> Tensor:
        """Feed m new nodes in one forward; see ``expanding``."""
        return self.expanding(tokens, parents).run()

    def expanding(self, tokens: Sequence[int] | Tensor, parents: Sequence[int]) -> DraftCall:
        """The forward over m new nodes, the request's next: logits (m, V) of what follows each of
        them.

        tokens: (m,) ids, on the host or a device.
        parents: (m,) nodes fed before or earlier in this call, or ``ROOT``.
        Raises ValueError when a parent does not stand before its child.
        """
        start = len(self)
        self._enter(parents)
        end = len(self)
        places = [self.cached - 1 + depth for depth in self._depths]
        tree = TreeRows(self._lines[start + 1 : end + 1, :end], places)
        return self._forward(tokens, places[start:], tree, end - start)

    @torch.inference_mode()
    def commit(self, path: Sequence[int], tokens: Sequence[int], kept: Sequence[int] = ()) -> None:
        """The nodes of ``path`` (from a child of the root downwards) join the context; ``tokens``:
        their ids.

        kept: nodes below the path's end that stay in the tree, renumbered 0, 1, ... in this order;
        all others are dropped. Raises ValueError when path and kept do not hang together.
        """
        nodes, depth = [*path, *kept], len(path)
        rows = self._lines[np.asarray(nodes, dtype=int) + 1]
        inside = rows[:, nodes]
        whole = inside.sum(1) == [self._depths[node] for node in nodes]
        below = (
            inside[depth:, :depth].all()
            and (np.tri(depth, dtype=bool) == inside[:depth, :depth]).all()
        )
        if not whole.all() or not below:
            raise ValueError(
                f"nodes {nodes} are no path of {depth}, or a kept node lacks an ancestor"
            )
        base = self.cached
        self.cache.keep(base, [base + node for node in nodes])
        self._cached += tokens
        self._depths = [self._depths[node] - depth for node in kept]
        self._lines[1 : len(kept) + 1] = False
        self._lines[1 : len(kept) + 1, : len(kept)] = inside[depth:, depth:]

    def prune(self, kept: Sequence[int]) -> None:
        """Keep these nodes (each with all its ancestors), renumbered 0, 1, ..., and drop the
        rest.
        """
        self.commit((), (), kept)

    def _enter(self, parents: Sequence[int]) -> None:
        """Record the new nodes' depths and ancestors."""
        start, end = len(self), len(self) + len(parents)
        if end > self._lines.shape[1]:
            size = 2 * end
            grown = np.zeros((size + 1, size), dtype=bool)
            grown[: start + 1, :start] = self._lines[: start + 1, :start]
            self._lines = grown
        self._lines[start + 1 : end + 1] = False
        for node, parent in enumerate(parents, start):
            if not ROOT <= parent < node:
                raise ValueError(
                    f"parent of node {node} is {parent}; expected {ROOT} (root) or a smaller node"
                    " number"
                )
            self._lines[node + 1, :node] = self._lines[parent + 1, :node]
            self._lines[node + 1, node] = True
            self._depths.append(1 if parent == ROOT else self._depths[parent] + 1)
