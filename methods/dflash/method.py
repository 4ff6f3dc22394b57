"""The methods ``dflash``: a request's block, and what a draft takes of it."""

from __future__ import annotations

import torch
from torch import Tensor

from methods.dflash.head import BLOCK, DFlashHead, anchored, setting
from methods.parts.heads.draft_layer import LayerMemory
from methods.parts.heads.forwards import Forwards, RowsCall
from methods.parts.heads.head_method import WIDEST
from methods.parts.heads.tree_method import LevelsMethod, LevelsRun
from methods.parts.trees.tree_shape import TreeShape
from specbench.models.facade import ModelCard
from specbench.types import InputError, require_count

RANDOM_BLOCK, LONGEST = 8, 1024  # the speculators library's default; of any block


class _Block(LevelsRun):
    """A request's place: states (levels, D) of its last block, and the recurrent states of the level before."""

    def root(self) -> Forwards:
        """See ``HeadRun.root``."""
        logits = yield from super().root()
        if self.head.markov:
            self._recurrent = self.head.markov.begin(self._root, self._passed)
        return self._biased(self._root, logits, torch.zeros_like(self._root))

    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        """See ``HeadRun.expand``."""
        return self._biased(ids, (yield from super().expand(ids, rows)), rows)

    def _biased(self, ids: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
        """(w, Vd) a level's logits, behind the tokens (w,) before it."""
        if not self.head.markov:
            return logits
        hidden = self._states[self._level].expand(len(ids), -1)
        bias, self._recurrent = self.head.markov.bias(ids, hidden, self._recurrent[rows])
        return logits + bias

    def chances(self, ids: Tensor | None) -> Tensor | None:
        """See ``HeadRun.chances``."""
        if not self.head.confidence:
            return None
        level, before = (0, self._root) if ids is None else (self._level + 1, ids)
        return self.head.confidence(before, self._states[level].expand(len(before), -1))

    def levels(self) -> Forwards:
        head, memory = self.head, self.memory
        features, following = self.taken()
        self._root = following[-1:]
        head.layers.keep(head.enter(features), memory)
        rows = self.count + head.skipped
        inputs, residual = head.inputs(head.block(self._root, rows), features[0])
        whole = head.layers.like.new_zeros(rows, memory.nodes)
        written = yield head.layers.grow(inputs, residual, memory, 0, slice(0, rows), whole)
        self._passed, self._states = head.carry(written).tensor_split([head.skipped])
        return (yield RowsCall(head.output, self._states))


class DFlash(LevelsMethod):
    """DFlash, DSpark, with the parameters of ``LevelsMethod``. length: null = the head's block."""

    kind, runs = DFlashHead, _Block

    def check(self, model: ModelCard) -> None:
        """The head must be there and fit, and its block must hold the draft."""
        super().check(model)
        assert self._file is not None
        block = RANDOM_BLOCK if self._file.random else setting(self._file, BLOCK)
        if type(block) is not int or not 1 < block <= LONGEST:
            raise InputError(
                f"{self._file.where}: config.json has {BLOCK}={block}; expected a whole number above 1, to {LONGEST}"
            )
        most = block if anchored(self._file) else block - 1
        if self._whole:
            self.shape = TreeShape.from_counts([[1]] * most, WIDEST)
        require_count("length or levels of choices", len(self.shape.levels), high=most)

    def new_memory(self) -> LayerMemory:
        """Committed tokens, and a block."""
        assert isinstance(self.bound, DFlashHead)
        rows = len(self.shape.levels) + self.bound.skipped
        return LayerMemory(self.bound.layers, rows, rows)
