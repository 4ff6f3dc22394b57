"""Trains the bundled models on the bundled corpus: tokenizer, packed batches, the loop, figures of
a result, models.

The chat template ends a prompt with ``<|assistant|>``, a special token. No merge crosses it, so
prompt and answer have the same tokens together and separately. A batch has complete conversations
in sequence. The learning rate warms up, stays, and decays linearly over the last part of the run.
Matrices are trained with Muon, embeddings and norms with AdamW.

``tiny`` and ``tiny_draft`` are small Llamas with a shared tokenizer, trained from random weights.
``tiny_pard`` is ``tiny_draft``, trained further with PARD's loss: the input is the text and, for
each sampled token of it, a chain of masks. A mask sees the text up to its token and the masks
before it, and predicts the text's token at its place (An et al. 2025, section 3.2; the sampling
replaces the paper's dropping of tokens, which also keeps complete chains).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

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
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    stream = islice(documents(seed=1), 20_000)
    tokenizer.train_from_iterator(
        (text for each in stream for text in (*each.turns, *each.answers)), trainer
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=END, pad_token=PAD,
        chat_template=_CHAT_TEMPLATE, model_max_length=CONTEXT, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer so that old and new versions of transformers can read it.

    The class has its former name, and the chat template is in ``tokenizer_config.json``.
    """
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {
        "tokenizer_class": "PreTrainedTokenizerFast"
    }
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

    A sequence has the oldest conversation of a buffer, then the others that still fit, and padding.
    The rare conversation that does not fit a sequence is skipped. The weight of a token is 1 in an
    answer.
    """
    bos, user, assistant, end = tokenizer.convert_tokens_to_ids([BOS, USER, ASSISTANT, END])
    buffer: list[tuple[list[int], list[float]]] = []

    def encode(document: Document) -> tuple[list[int], list[float]]:
        ids, weights = [bos], [0.0]
        for message in document.messages():
            reply = message["role"] == "assistant"
            text = (
                tokenizer(message["content"], add_special_tokens=False)["input_ids"] + [end] * reply
            )
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
    """Return the attention mask (rows, 1, length, length): each token sees those before it in its
    own conversation.
    """
    conversation = (positions == 0).cumsum(dim=-1)
    same = conversation[:, None, :, None] == conversation[:, None, None, :]
    length = positions.shape[-1]
    return same & torch.ones(length, length, dtype=torch.bool).tril()


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a training; the defaults are those of ``tiny``.

    warmup: steps. decay: share of the steps. rows, length: sequences of a batch, and tokens of
    each. prompt_weight: of a prompt's token, an answer's has 1. matrix_rate, rate: learning rates
    of Muon and AdamW; if the first is 0, AdamW trains the matrices too.
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
class HeadTraining(TrainingSettings):
    """The settings that the trainings of heads share. Their loss counts answers only."""

    warmup: int = 20
    decay: float = 0.6
    rows: int = 2
    length: int = 384
    prompt_weight: float = 0.0


@dataclass(frozen=True)
class Trainee:
    """A model or head in training. module: has the parameters; is in evaluation mode when it is not
    trained.

    loss_of: a batch -> the loss, and the figures of the batch that are printed. save: writes the
    files to a folder.
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
    by_muon = [
        weight
        for embeds, weight in named
        if settings.matrix_rate and weight.ndim == 2 and not embeds
    ]
    others = [weight for _, weight in named if not any(weight is each for each in by_muon)]
    steppers: list[tuple[torch.optim.Optimizer, float]] = [
        (
            torch.optim.AdamW(others, settings.rate, betas=(0.9, 0.97), weight_decay=0.0),
            settings.rate,
        )
    ]
    if by_muon:
        muon = torch.optim.Muon(by_muon, settings.matrix_rate, weight_decay=0.01, momentum=0.95)
        steppers.append((muon, settings.matrix_rate))
    decay_steps = max(1, int(settings.steps * settings.decay))
    batches = pack(
        trainee.tokenizer,
        documents(settings.seed),
        settings.length,
        settings.rows,
        settings.prompt_weight,
    )
    start = time.perf_counter()
    for step, batch in zip(range(settings.steps), batches, strict=False):
        factor = min(
            1.0, (step + 1) / settings.warmup, max(0.0, (settings.steps - step) / decay_steps)
        )
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


CHAIN, ANCHORS = 12, 64  # drafted tokens, one more than masks; sampled tokens of a sequence
MASK = 0  # the id of the mask token, which is the padding


def load_target(seed: int) -> tuple[Any, Any]:
    """Load the bundled model, whose weights stay, and its tokenizer; a seed is set for the weights
    of a head.
    """
    target: Any = AutoModelForCausalLM.from_pretrained(ASSETS / "tiny", dtype=torch.float32).eval()
    torch.manual_seed(seed)
    return target.requires_grad_(False), AutoTokenizer.from_pretrained(ASSETS / "tiny")


@torch.no_grad()
def read_states(target: Any, batch: PackedBatch) -> Any:
    """Return the target's L + 1 states of a batch, (rows, length, D) each."""
    seen = {"position_ids": batch.positions, "attention_mask": separate(batch.positions)}
    return target.model(batch.ids, **seen, use_cache=False, output_hidden_states=True).hidden_states


def new_model(shape: Mapping[str, int], settings: TrainingSettings) -> Trainee:
    """Make an untrained model of a shape, compiled for its training, with the bundled tokenizer."""
    tokenizer: Any = AutoTokenizer.from_pretrained(ASSETS / "tiny")
    torch.manual_seed(settings.seed)
    ends: dict[str, Any] = {
        name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": CONTEXT,
        **shape,
    }
    # tied to keep the model small
    model = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **ends, **sizes))
    model.generation_config.update(**ends)
    forward = torch.compile(model)

    def loss_of(batch: PackedBatch) -> tuple[Tensor, list[float]]:
        """Weighted cross entropy of the next token, as the loss and as its figure."""
        seen = separate(batch.positions)
        with torch.autocast("cpu", torch.bfloat16):
            logits = forward(
                input_ids=batch.ids,
                position_ids=batch.positions,
                attention_mask=seen,
                use_cache=False,
            ).logits
        losses = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), batch.ids[:, 1:].flatten(), reduction="none"
        )
        weights = batch.weights[:, 1:].flatten()
        loss = (losses * weights).sum() / weights.sum()
        return loss, [loss.item()]

    return Trainee(settings, tokenizer, model, loss_of, partial(save_half, model, tokenizer))


def save_half(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model in half precision, with its tokenizer."""
    model.half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, folder)


def with_masks(batch: PackedBatch) -> tuple[PackedBatch, Tensor, Tensor]:
    """Append chains of masks to a batch.

    Returns the longer batch, the attention mask (rows, 1, length, length), and labels (rows,
    length), -100 for tokens that do not count.
    """
    rows, text = batch.ids.shape
    depth = torch.arange(1, CHAIN)
    anchors = torch.stack([torch.randperm(text - CHAIN)[:ANCHORS] for _ in range(rows)])
    places = (anchors[..., None] + depth).flatten(1)
    last = anchors.repeat_interleave(len(depth), 1)
    labels = torch.cat(
        [
            torch.arange(1, text).expand(rows, -1),
            torch.zeros(rows, 1, dtype=torch.long),
            places + 1,
        ],
        1,
    )
    meant, weight = batch.ids.gather(1, labels), batch.weights.gather(1, labels)
    inside = (
        batch.positions.gather(1, labels[:, text:])
        == batch.positions.gather(1, last) + (places - last) + 1
    )
    weight[:, text - 1] = 0.0
    weight[:, text:] *= inside
    seen = torch.zeros(rows, 1, text + places.shape[1], text + places.shape[1], dtype=torch.bool)
    seen[:, :, :text, :text] = separate(batch.positions)
    seen[:, 0, text:, :text] = seen[:, 0, :text, :text].gather(
        1, last[..., None].expand(-1, -1, text)
    )
    chain = torch.ones(len(depth), len(depth), dtype=torch.bool).tril()
    seen[:, :, text:, text:] = torch.block_diag(*[chain] * ANCHORS).bool()
    masks = torch.full_like(places, MASK)
    positions = torch.cat([batch.positions, batch.positions.gather(1, last) + places - last], 1)
    whole = PackedBatch(torch.cat([batch.ids, masks], 1), weight, positions)
    return whole, seen, meant.masked_fill(weight == 0, -100)


def pard_loss(model: Any, batch: PackedBatch) -> tuple[Tensor, list[float]]:
    """Return the loss of a batch, and for each place of a chain the share of answer tokens that are
    ranked first.
    """
    whole, seen, labels = with_masks(batch)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(
            input_ids=whole.ids, position_ids=whole.positions, attention_mask=seen, use_cache=False
        ).logits.float()
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    text, right = batch.ids.shape[1], logits.argmax(-1) == labels
    parts = [(right[:, :text], labels[:, :text])]
    parts += [(right[:, text + at :: CHAIN - 1], labels[:, text + at :: CHAIN - 1])
              for at in range(CHAIN - 1)]  # fmt: skip
    return loss, [found[wanted >= 0].float().mean().item() for found, wanted in parts]


def new_pard(settings: TrainingSettings) -> Trainee:
    """Load the bundled draft model, to continue its training."""
    folder = ASSETS / "tiny_draft"
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    model.config.pard_token = MASK
    torch.manual_seed(settings.seed)
    return Trainee(
        settings, tokenizer, model, partial(pard_loss, model), partial(save_half, model, tokenizer)
    )
