"""Several MTP modules in turn (DeepSeek-AI 2024, arXiv 2412.19437, section 2.2): each drafts the token behind the last.

At row i the module k reads what module k - 1 wrote at row i (the first one: the target's state) and token i + k. So the
last k - 1 rows of a module wait for tokens that are only drafted: they are fed with these, and nothing of them is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.parts.heads.draft_layer import LayerMemory
from methods.parts.heads.forwards import Forwards, RowsCall
from methods.parts.heads.tree_head import TreeHead
from methods.parts.heads.tree_method import HeadRun


class ModulesMemory(LayerMemory):
    """A request's keys and values: the first module's, and in ``later`` those of the modules behind it."""

    def __init__(self, heads: Sequence[TreeHead]) -> None:
        super().__init__(heads[0].layers, 0, 1)
        self.later = [LayerMemory(head.layers, 0, 1) for head in heads[1:]]

    def forget(self) -> None:
        """Start a request, in every module."""
        super().forget()
        for memory in self.later:
            memory.forget()


class ModulesRun(HeadRun):
    """One request's place in the modules; behind the last one the chain goes on from its own states."""

    def __init__(self, heads: Sequence[TreeHead], memory: ModulesMemory) -> None:
        super().__init__(heads[0], memory)
        like = heads[0].layers.like
        self._heads, self._memories = heads, [memory, *memory.later]
        self._rows = 0  # committed ones of the first module
        # Of each module, from its first row that is not kept on: the states it reads, and committed tokens beside them.
        self._states = [like.new_empty(0, heads[0].ends.width) for _ in heads]
        self._tokens = [like.new_empty(0, dtype=torch.int64) for _ in heads]
        self._drafted, self._root = self._tokens[0], self._states[0]
        self._written = self._waiting_states = self._root
        self._waiting = self._drafted

    def root(self) -> Forwards:
        """See ``HeadRun.root``."""
        if self.queue:
            features, following = self.taken()
            for place, held in enumerate(self._tokens):  # the first token of module ``place`` is that far on
                self._tokens[place] = torch.cat([held, following[max(0, place - self._rows) :]])
            self._rows += len(following)
            self._states[0] = self.head.enter(features)
            self._written = yield from self._read(0, self._drafted[:0])
            self._root = self._states[1][-1:]
        self._drafted, self._written = self._drafted[:0], self._root[:0]
        return (yield RowsCall(self.head.output, self._root))

    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        """See ``HeadRun.expand``; of a chain."""
        self._drafted, last = torch.cat([self._drafted, ids]), len(self._heads) - 1
        place = min(len(self._drafted), last)
        if place == len(self._drafted):
            self._written = yield from self._read(place, self._drafted[-min(place, self._rows) :])
        else:
            self._waiting = torch.cat([self._waiting, ids])
            self._waiting_states = torch.cat([self._waiting_states, self._written[-1:]])
            self._written = yield from self._feed(place, self._waiting, self._waiting_states, len(self._waiting))
        return (yield RowsCall(self._heads[place].output, self._written[-1:]))

    def _read(self, place: int, drafted: Tensor) -> Forwards:
        """The module at ``place`` reads its new rows, and the n that wait for (n,) drafted tokens: what these write."""
        tokens, held = self._tokens[place], self._states[place]
        new, states = len(tokens), torch.cat([held, self._written]) if place else held
        self._waiting, self._waiting_states = drafted, states[new:]
        written = yield from self._feed(place, torch.cat([tokens, drafted]), states, len(drafted))
        self._tokens[place], self._states[place] = tokens[:0], held[new:].clone()
        if place + 1 == len(self._heads):
            return written
        self._states[place + 1] = torch.cat([self._states[place + 1], written[:new]])
        return written[new:]

    def _feed(self, place: int, ids: Tensor, states: Tensor, passing: int) -> Forwards:
        """What goes on behind the module at ``place``, (rows, H); behind the last one of the passing rows alone.

        passing: the last rows, of which nothing is kept.
        """
        head, outputs = self._heads[place], len(ids) if place + 1 < len(self._heads) else passing
        read = head.layers.read(*head.inputs(ids, states), self._memories[place], outputs, passing)
        return head.carry((yield from read))
