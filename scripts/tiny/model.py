"""The two models, ``tiny`` and ``tiny_draft``: small Llamas with a shared tokenizer, trained from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tiny.card import write_card
from tiny.packing import PackedBatch, separate
from tiny.tokenizer import CONTEXT, save_tokenizer
from tiny.train import ASSETS, Trainee, TrainingSettings

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "tiny_draft": {
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
_ABOUT = """{role}

## What it is for

To run the harness end to end on any machine, without a download and without an accelerator: in tests, in examples and
to try out a new method. It is **not** a basis for conclusions about decoding methods: its text is regular, its
vocabulary small, and a forward pass costs next to nothing, so ratios of wall times say nothing about real models.

## Data

All text was composed by the generators in `scripts/tiny/` from word lists of our own: an invented world with sixty
towns, an invented language, and seven tasks named after the categories of Spec-Bench. No foreign text was used; data
and weights are own work under the license of this repository. One conversation in thirty-two, chosen by the hash of its
opening turn, is held out of every corpus, and the question suite `mini` is drawn from those.

## Training
"""
_ROLES = {
    "tiny": "The target model of specbench's bundled pair: a small Llama that knows an invented world.",
    "tiny_draft": "The draft model of specbench's bundled pair: it shares the tokenizer of `tiny` and is far smaller.",
}
_TRAINED = """Byte-level BPE of 2048 entries, chat template in `tokenizer_config.json`. Training sequences have at most
{length} tokens. The model accepts 4096, but nothing longer was trained."""
_DATASTORE = """

## Datastore

`datastore.safetensors` is REST's corpus for this model: 1000 conversations of the same world, none of them from the
held-out part that the suite `mini` is drawn from. Made with

    python scripts/make_tiny_corpus.py corpus corpus.jsonl --count 1000 --seed 2
    specbench build datastore --tokenizer bundled:tiny --field messages.content \\
        --out specbench/assets/tiny/datastore.safetensors corpus.jsonl"""


def build(name: str, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A freshly initialised model of one of the shapes; embeddings are tied to keep it small."""
    torch.manual_seed(seed)
    ends: dict[str, Any] = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=CONTEXT, tie_word_embeddings=True, **ends, **SHAPES[name]
    )
    model = LlamaForCausalLM(config)
    model.generation_config.update(**ends)
    return model


def new_model(settings: TrainingSettings) -> Trainee:
    """An untrained model, with the bundled tokenizer. Compiled for its training."""
    tokenizer: Any = AutoTokenizer.from_pretrained(ASSETS / "tiny")
    model = build(settings.name, tokenizer, settings.seed)
    forward = torch.compile(model)

    def save(folder: Path, seconds: float, figures: list[float]) -> None:
        save_half(model, tokenizer, folder)
        role, more = _ROLES[settings.name], _TRAINED.format(length=settings.length)
        write_card(
            folder, "model", settings, model, seconds, _ABOUT.format(role=role),
            {"loss on held-out answers (nats per token)": f"{figures[0]:.4f}"},
            more + (_DATASTORE if settings.name == "tiny" else ""),
        )  # fmt: skip

    return Trainee(settings, tokenizer, model, lambda batch: loss_of(forward, batch), save)


def loss_of(model: Any, batch: PackedBatch) -> tuple[Tensor, list[float]]:
    """Weighted cross entropy of the next token, twice."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(
            input_ids=batch.ids,
            position_ids=batch.positions,
            attention_mask=separate(batch.positions),
            use_cache=False,
        ).logits
    losses = nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), batch.ids[:, 1:].flatten(), reduction="none"
    )
    weights = batch.weights[:, 1:].flatten()
    loss = (losses * weights).sum() / weights.sum()
    return loss, [loss.item()]


def save_half(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model in half precision, with its tokenizer."""
    model.half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, folder)
