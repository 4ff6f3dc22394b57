"""Packing: whole conversations laid side by side in sequences of one length, with masks that keep them apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from tiny.document import Document
from tiny.tokenizer import encode

_BUFFER = 64


@dataclass(frozen=True)
class PackedBatch:
    """Tensors of one step.

    ids: (rows, length) int64 tokens.
    weights: (rows, length) float32 weight of predicting each token from those before it.
    positions: (rows, length) int64, from 0 in each conversation.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    positions: torch.Tensor


class Packer:
    """Deterministic batches of one stream of documents."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        stream: Iterator[Document],
        length: int,
        rows: int,
        prompt_weight: float,
    ):
        self._tokenizer = tokenizer
        self._stream = stream
        self._length, self._rows, self._prompt_weight = length, rows, prompt_weight
        self._buffer: list[tuple[list[int], list[float]]] = []
        self.documents = 0

    def _fill(self) -> None:
        """Keep the buffer full, skipping the rare conversation that does not fit a sequence."""
        while len(self._buffer) < _BUFFER:
            ids, answered = encode(self._tokenizer, next(self._stream))
            self.documents += 1
            if len(ids) <= self._length:
                weights = [1.0 if answer else self._prompt_weight for answer in answered]
                self._buffer.append((ids, [0.0, *weights[1:]]))

    def _row(self) -> list[tuple[list[int], list[float]]]:
        """One sequence: the oldest conversation of the buffer, then whichever still fits, and padding."""
        self._fill()
        row = [self._buffer.pop(0)]
        left, place = self._length - len(row[0][0]), 0
        while place < len(self._buffer):
            if len(self._buffer[place][0]) <= left:
                row.append(self._buffer.pop(place))
                left -= len(row[-1][0])
            else:
                place += 1
        return [*row, ([self._tokenizer.pad_token_id] * left, [0.0] * left)]

    def __iter__(self) -> Iterator[PackedBatch]:
        """Endless batches. Positions begin at zero in each conversation, which also marks the borders."""
        while True:
            rows = [self._row() for _ in range(self._rows)]
            yield PackedBatch(
                torch.tensor([[token for ids, _ in row for token in ids] for row in rows]),
                torch.tensor([[weight for _, weights in row for weight in weights] for row in rows]),
                torch.tensor([[place for ids, _ in row for place in range(len(ids))] for row in rows]),
            )


def separate(positions: torch.Tensor) -> torch.Tensor:
    """Attention mask (rows, 1, length, length): each token sees those before it in its own conversation."""
    conversation = (positions == 0).cumsum(dim=-1)
    same = conversation[:, None, :, None] == conversation[:, None, None, :]
    length = positions.shape[-1]
    return same & torch.ones(length, length, dtype=torch.bool).tril()
