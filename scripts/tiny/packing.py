"""The tokenizer of the bundled models, and packed batches: whole conversations next to each other in one sequence.

The chat template ends a prompt with ``<|assistant|>``, a special token. No merge reaches across it, so prompt and
answer tokenize alike whether together or apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from scripts.tiny.corpus import documents
from scripts.tiny.world import Document

BOS, USER, ASSISTANT, END, PAD = "<|bos|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"
VOCABULARY = 2048
CONTEXT = 4096
_PIECES = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_BUFFER = 64


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer on 20,000 documents and add special tokens and chat template."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    stream = islice(documents(seed=1), 20_000)
    tokenizer.train_from_iterator((text for each in stream for text in (*each.turns, *each.answers)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        chat_template=_CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer so that both old and new versions of transformers can read it.

    The class is written under its long-standing name and the chat template goes into ``tokenizer_config.json``.
    """
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class PackedBatch:
    """The tensors of one training step, each (rows, length).

    ids: int64, tokens.
    weights: float32, the weight of predicting each token from those before it.
    positions: int64, from 0 in each conversation, which also marks the borders.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    positions: torch.Tensor


class Packer:
    """Deterministic batches of one stream of documents."""

    def __init__(
        self, tokenizer: Any, stream: Iterator[Document], length: int, rows: int, prompt_weight: float
    ) -> None:
        self._tokenizer, self._stream = tokenizer, stream
        self._length, self._rows, self._prompt_weight = length, rows, prompt_weight
        self._buffer: list[tuple[list[int], list[float]]] = []

    def _encode(self, document: Document) -> tuple[list[int], list[float]]:
        """Token ids of a conversation, and the weight of each: 1 where the model is to answer with it."""
        bos, user, assistant, end = self._tokenizer.convert_tokens_to_ids([BOS, USER, ASSISTANT, END])
        ids, weights = [bos], [0.0]
        for message in document.messages():
            reply = message["role"] == "assistant"
            text = self._tokenizer(message["content"], add_special_tokens=False)["input_ids"]
            tail = [end] if reply else []
            ids += [assistant if reply else user, *text, *tail]
            weights += [self._prompt_weight, *[1.0 if reply else self._prompt_weight] * (len(text) + len(tail))]
        return ids, weights

    def _row(self) -> list[tuple[list[int], list[float]]]:
        """One sequence: the oldest conversation of the buffer, then whichever still fits, and padding.

        The rare conversation that does not fit a sequence is skipped.
        """
        while len(self._buffer) < _BUFFER:
            encoded = self._encode(next(self._stream))
            if len(encoded[0]) <= self._length:
                self._buffer.append(encoded)
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
        """Yield batches without end."""
        while True:
            rows = [self._row() for _ in range(self._rows)]
            yield PackedBatch(
                torch.tensor([[token for ids, _ in row for token in ids] for row in rows]),
                torch.tensor([[weight for _, weights in row for weight in weights] for row in rows]),
                torch.tensor([[place for ids, _ in row for place in range(len(ids))] for row in rows]),
            )


def separate(positions: torch.Tensor) -> torch.Tensor:
    """Return the attention mask (rows, 1, length, length): each token sees those before it in its own conversation."""
    conversation = (positions == 0).cumsum(dim=-1)
    same = conversation[:, None, :, None] == conversation[:, None, None, :]
    length = positions.shape[-1]
    return same & torch.ones(length, length, dtype=torch.bool).tril()
