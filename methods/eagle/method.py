"""EAGLE (Li et al. 2024; 2025): a layer trained to continue the target's hidden features drafts a tree of tokens.

A draft position takes a feature and the embedding of the token behind it, which settles what features alone
leave open; drafted positions take the head's own output in place of the feature. EAGLE-1 fills a fixed tree,
EAGLE-2 and -3 let the head's confidence shape it; EAGLE-3 reads three of the target's layers.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from methods.eagle.head import FirstHead
from methods.eagle.third import ThirdHead
from methods.parts.heads.draft_layer import LayerMemory
from methods.parts.heads.forwards import Forwards, RowsCall
from methods.parts.heads.frequent import read_frequent
from methods.parts.heads.grown_tree import grow
from methods.parts.heads.head_method import EAGLE, WIDEST
from methods.parts.heads.tree_head import TreeHead
from methods.parts.heads.tree_method import HeadRun, TreeMethod
from methods.parts.trees.tree_shape import TreeShape
from specbench.method import Drafting, GoesOn
from specbench.models.facade import ModelCard, Target
from specbench.types import InputError, require_count


class EagleRun(HeadRun):
    """One request's place: the tree grows below what was read, level by level."""

    def __init__(self, head: Any, memory: LayerMemory) -> None:
        super().__init__(head, memory)
        self._blind = head.layers.like.new_full((1, memory.nodes), -torch.inf)
        self._hidden, self._root, self._seen = self._blind, self._blind, self._blind
        self._fed = self._depth = 0

    def root(self) -> Forwards:
        """See ``HeadRun.root``."""
        if self.queue:
            features, following = self.taken()
            inputs, residual = self.head.inputs(following, self.head.enter(features))
            self._root = self.head.carry((yield from self.head.layers.read(inputs, residual, self.memory)))
        self._hidden, self._seen = self._root, self._blind
        self._fed = self._depth = 0
        return (yield RowsCall(self.head.output, self._root))

    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        """See ``HeadRun.expand``."""
        count = len(ids)
        inputs, residual = self.head.inputs(ids, self._hidden.index_select(0, rows))
        self._seen = self._seen.index_select(0, rows)
        self._seen[:, self._fed : self._fed + count].diagonal().zero_()
        depths = slice(self._depth, self._depth + 1)
        written = yield self.head.layers.grow(inputs, residual, self.memory, self._fed, depths, self._seen)
        self._depth += 1
        self._hidden = self.head.carry(written)
        self._fed += count
        return (yield RowsCall(self.head.output, self._hidden))


class Eagle(TreeMethod):
    """EAGLE-1 and -2. head: folder, hub id, ``bundled:NAME`` or ``random``.

    tree: ``dynamic`` (EAGLE-2): top_k nodes expanded depth times, the best total_tokens - 1 kept (total_tokens counts
    the root). ``static`` (EAGLE-1): a fixed tree, filled with the best tokens or, at temperature > 0 with
    sampling=drawn, drawn without replacement; choices: its child counts level by level, null = the published one.
    safetensors: false reads torch files. vocabulary: a file of the ids that are drafted (FR-Spec), null = all.
    """

    kind: type[TreeHead] = FirstHead

    def __init__(
        self,
        head: str | None,
        tree: Literal["dynamic", "static"] = "dynamic",
        top_k: int = 10,
        depth: int = 5,
        total_tokens: int = 60,
        choices: list[list[int]] | None = None,
        sampling: Literal["top", "drawn"] = "top",
        safetensors: bool = True,
        vocabulary: str | None = None,
    ) -> None:
        require_count("top_k", top_k)
        require_count("depth", depth, low=0)
        require_count("total_tokens", total_tokens, low=2)
        if sampling == "drawn" and tree == "dynamic":
            raise InputError("sampling=drawn: a dynamic tree takes the best tokens; expected top, or tree=static")
        shape = TreeShape.from_counts(EAGLE if choices is None else choices, WIDEST, "choices")
        super().__init__(head, shape, sampling == "drawn", safetensors)
        self.grows = tree == "dynamic"
        self.top_k, self.depth, self.total_tokens = top_k, depth, total_tokens
        if vocabulary is not None and not issubclass(self.kind, FirstHead):
            raise InputError(f"vocabulary={vocabulary}: this head has an output matrix of its own; expected null")
        self._frequent, self._ids = vocabulary, list[int]()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The head's file, and that of the ids."""
        return (*super().inputs, *([self._frequent] if self._frequent else []))

    def check(self, model: ModelCard) -> None:
        """As ``TreeMethod``; the ids must be the target's, and enough for the children of a node."""
        super().check(model)
        if self._frequent:
            self._ids = read_frequent(self._frequent, model.config.get_text_config().vocab_size, self.widest)

    @property
    def widest(self) -> int:
        """See ``TreeMethod.widest``."""
        return self.top_k if self.grows else super().widest

    def bind(self, target: Target) -> None:
        """As ``TreeMethod``, over these ids."""
        super().bind(target)
        if self._ids and isinstance(self.bound, FirstHead):
            self.bound.confine(self._ids)
            self.vocabulary = self.bound.vocabulary

    def grown(self, run: Any, budget: int, goes_on: GoesOn | None) -> Drafting:
        """EAGLE-2's tree."""
        return grow(run, self.top_k, self.depth, min(budget, self.total_tokens - 1), goes_on)

    def new_run(self, head: Any, memory: LayerMemory) -> HeadRun:
        """A request's place in the head."""
        return EagleRun(head, memory)

    def new_memory(self) -> LayerMemory:
        """A request's keys and values."""
        if self.grows:
            return LayerMemory(self.bound.layers, self.depth * self.top_k, self.top_k)
        inner = [len(level.inner) for level in self.shape.levels]
        return LayerMemory(self.bound.layers, sum(inner), max(inner))


class Eagle3(Eagle):
    """EAGLE-3, with the parameters of ``Eagle``: fused features, an output head of its own."""

    kind = ThirdHead
