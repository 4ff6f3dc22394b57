"""What rank 0 tells the others before each piece of work: one buffer of a fixed size, whole numbers only.

A follower computes nothing that decides: which tokens are fed, where they stand and what was accepted all come from
here. A prompt's ids follow in a second buffer, whose length is in the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor


class Op(IntEnum):
    """stop: end. reserve: make room for ``size`` tokens. prepare: record graphs. read: a prompt of ``size`` ids.

    step: a root and a draft. logits: ``size`` ids, sequences of ``past`` each, from an empty cache of their own.
    """

    STOP = 0
    RESERVE = 1
    PREPARE = 2
    READ = 3
    STEP = 4
    LOGITS = 5


@dataclass(frozen=True, slots=True)
class Message:
    """past: [tokens] held before the root. width: rows of the frame. taps: hidden states that rank 0 wants.

    flag: rows as a batch (step), greedy (prepare). moves: rows of the last step's frame that were accepted, where they
    have to be moved together. tokens, parents: of the draft, (N,).
    """

    op: Op
    size: int = 0
    past: int = 0
    root: int = 0
    width: int = 0
    flag: bool = False
    taps: tuple[int, ...] = ()
    moves: Sequence[int] = ()
    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()


FIELDS = 9  # numbers before the lists


class MessageFormat:
    """The buffer's layout: the numbers, the taps, then three lists of at most ``max_nodes``."""

    def __init__(self, layers: int, max_nodes: int) -> None:
        """layers: of the model (L)."""
        self._limits = (layers + 1, max_nodes, max_nodes, max_nodes)
        self.size = FIELDS + sum(self._limits)

    def empty(self) -> Tensor:
        """A buffer to receive into, (size,) int64 on the host."""
        return torch.zeros(self.size, dtype=torch.int64)

    def write(self, message: Message, buffer: Tensor) -> None:
        """Enter a message."""
        lists = (message.taps, message.moves, message.tokens, message.parents)
        numbers = (message.op, message.size, message.past, message.root, message.width, int(message.flag))
        values = buffer.numpy()
        values[:FIELDS] = (*numbers, len(message.taps), len(message.moves), len(message.tokens))
        start = FIELDS
        for each, limit in zip(lists, self._limits, strict=True):
            values[start : start + len(each)] = each
            start += limit

    def read(self, buffer: Tensor) -> Message:
        """The message in a buffer."""
        op, size, past, root, width, flag, *counts = buffer[:FIELDS].tolist()
        found: list[list[int]] = []
        start = FIELDS
        for count, limit in zip((*counts, counts[-1]), self._limits, strict=True):
            found.append(buffer[start : start + count].tolist())
            start += limit
        taps, moves, tokens, parents = found
        return Message(Op(op), size, past, root, width, bool(flag), tuple(taps), moves, tokens, parents)
