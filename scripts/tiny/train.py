"""Trains the bundled models on the bundled corpus: the tokenizer, packed batches, the loop, and figures of the result.

The chat template ends a prompt with ``<|assistant|>``, a special token. No merge crosses it, so prompt and answer have
the same tokens together and separately. A batch has complete conversations in sequence. The learning rate warms up,
stays, and decays linearly over the last part of the run. Matrices are trained with Muon, embeddings and norms with
AdamW.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from scripts.tiny.corpus import documents
from scripts.tiny.world import Document

ASSETS = Path(__file__).resolve().parents[2] / "specbench" / "assets"
BOS, USER, ASSISTANT, END, PAD = "<|bos|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"
VOCABULARY, CONTEXT = 2048, 4096
HELD_OUT_BATCHES = 24
_PIECES = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_BUFFER = 64  # conversations that are considered for a sequence


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer on 20,000 documents and add special tokens and chat template."""
    tokenizer = Tokenizer(models.BPE())
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"), levels]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special, alphabet = [PAD, BOS, USER, ASSISTANT, END], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    stream = islice(documents(seed=1), 20_000)
    tokenizer.train_from_iterator((text for each in stream for text in (*each.turns, *each.answers)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=END, pad_token=PAD, chat_template=_CHAT_TEMPLATE,
        model_max_length=CONTEXT, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer so that old and new versions of transformers can read it.

    The class has its former name, and the chat template is in ``tokenizer_config.json``.
    """
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class PackedBatch:
    """The tensors of one training step, each (rows, length).

    ids: int64, tokens.
    weights: float32, the weight of predicting each token from the tokens before it.
    positions: int64, from 0 in each conversation, which also marks the borders.
    """

    ids: Tensor
    weights: Tensor
    positions: Tensor


def pack(
    tokenizer: Any, stream: Iterator[Document], length: int, rows: int, prompt_weight: float
) -> Iterator[PackedBatch]:
    """Yield the batches of a stream of documents without end.

    A sequence has the oldest conversation of a buffer, then the others that still fit, and padding. The rare
    conversation that does not fit a sequence is skipped. The weight of a token is 1 in an answer.
    """
    bos, user, assistant, end = tokenizer.convert_tokens_to_ids([BOS, USER, ASSISTANT, END])
    buffer: list[tuple[list[int], list[float]]] = []

    def encode(document: Document) -> tuple[list[int], list[float]]:
        ids, weights = [bos], [0.0]
        for message in document.messages():
            reply = message["role"] == "assistant"
            text = tokenizer(message["content"], add_special_tokens=False)["input_ids"] + [end] * reply
            ids += [assistant if reply else user, *text]
            weights += [prompt_weight, *[1.0 if reply else prompt_weight] * len(text)]
        return ids, weights

    def draw_row() -> list[tuple[list[int], list[float]]]:
        while len(buffer) < _BUFFER:
            encoded = encode(next(stream))
            if len(encoded[0]) <= length:
                buffer.append(encoded)
        row, left = [], length
        for each in list(buffer):
            if len(each[0]) <= left:
                buffer.remove(each)
                row.append(each)
                left -= len(each[0])
        return [*row, ([tokenizer.pad_token_id] * left, [0.0] * left)]

    while True:
        batch = [draw_row() for _ in range(rows)]
        yield PackedBatch(
            torch.tensor([[token for ids, _ in row for token in ids] for row in batch]),
            torch.tensor([[weight for _, weights in row for weight in weights] for row in batch]),
            torch.tensor([[place for ids, _ in row for place in range(len(ids))] for row in batch]),
        )


def separate(positions: Tensor) -> Tensor:
    """Return the attention mask (rows, 1, length, length): each token sees those before it in its own conversation."""
    conversation = (positions == 0).cumsum(dim=-1)
    same = conversation[:, None, :, None] == conversation[:, None, None, :]
    length = positions.shape[-1]
    return same & torch.ones(length, length, dtype=torch.bool).tril()


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a training; the defaults are those of ``tiny``.

    warmup: steps. decay: share of the steps. rows, length: sequences of a batch, and tokens of each. prompt_weight: of
    a prompt's token, an answer's has 1. matrix_rate, rate: learning rates of Muon and AdamW; if the first is 0, AdamW
    trains the matrices too.
    """

    steps: int = 4000
    warmup: int = 100
    decay: float = 0.3
    rows: int = 4
    length: int = 768
    prompt_weight: float = 0.1
    matrix_rate: float = 0.008
    rate: float = 1.2e-3
    seed: int = 1


@dataclass(frozen=True)
class Trainee:
    """A model or head in training. module: has the parameters; is in evaluation mode when it is not trained.

    loss_of: a batch -> the loss, and the figures of the batch that are printed. save: writes the files to a folder.
    """

    settings: TrainingSettings
    tokenizer: Any
    module: nn.Module
    loss_of: Callable[[PackedBatch], tuple[Tensor, list[float]]]
    save: Callable[[Path], None]


def train(trainee: Trainee) -> Iterator[tuple[int, float, list[float]]]:
    """Train on the world's training documents; yields (step, seconds, figures of its batch)."""
    settings = trainee.settings
    named = [("embed" in name, weight) for name, weight in trainee.module.named_parameters()]
    by_muon = [weight for embeds, weight in named if settings.matrix_rate and weight.ndim == 2 and not embeds]
    others = [weight for _, weight in named if not any(weight is each for each in by_muon)]
    steppers: list[tuple[torch.optim.Optimizer, float]] = [
        (torch.optim.AdamW(others, settings.rate, betas=(0.9, 0.97), weight_decay=0.0), settings.rate)
    ]
    if by_muon:
        muon = torch.optim.Muon(by_muon, settings.matrix_rate, weight_decay=0.01, momentum=0.95)
        steppers.append((muon, settings.matrix_rate))
    decay_steps = max(1, int(settings.steps * settings.decay))
    batches = pack(trainee.tokenizer, documents(settings.seed), settings.length, settings.rows, settings.prompt_weight)
    start = time.perf_counter()
    for step, batch in zip(range(settings.steps), batches, strict=False):
        factor = min(1.0, (step + 1) / settings.warmup, max(0.0, (settings.steps - step) / decay_steps))
        for stepper, rate in steppers:
            stepper.param_groups[0]["lr"] = rate * factor
        loss, figures = trainee.loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(trainee.module.parameters(), 1.0)
        for stepper, _ in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        yield step + 1, time.perf_counter() - start, figures


@torch.no_grad()
def held_out_figures(trainee: Trainee) -> list[float]:
    """Return each figure, averaged over answers that no model or head was trained on."""
    settings = trainee.settings
    torch.manual_seed(settings.seed)
    trainee.module.eval()
    stream = documents(settings.seed + 1, held_out=True)
    batches = pack(trainee.tokenizer, stream, settings.length, settings.rows, prompt_weight=0.0)
    return means([trainee.loss_of(batch)[1] for batch in islice(batches, HELD_OUT_BATCHES)])


def means(rows: list[list[float]]) -> list[float]:
    """Return the mean of each column."""
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]
