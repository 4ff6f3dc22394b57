"""Training of the two models: one pass over an endless corpus, with a schedule that can be cut short.

The rate warms up, stays, and decays linearly over the last part of the run; a run that has to end early is resumed from
its checkpoint with a smaller number of steps and decays from there. Matrices inside the blocks are trained with Muon,
everything else with AdamW.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tiny.card import write_card
from tiny.corpus import SHARES, documents
from tiny.model import build, size
from tiny.packing import PackedBatch, Packer, separate
from tiny.tokenizer import save_tokenizer

Forward = Callable[..., Any]
LOG_EVERY = 50
HELD_OUT_BATCHES = 12


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a training run."""

    name: str = "tiny"
    steps: int = 4000
    warmup: int = 100
    decay: float = 0.3
    rows: int = 4
    length: int = 768
    prompt_weight: float = 0.1
    matrix_rate: float = 0.008
    rate: float = 1.2e-3
    seed: int = 1
    save_every: int = 300


@dataclass
class TrainingRecord:
    """What a run has done so far; it is saved with the checkpoint, and the model card shows it."""

    steps: int = 0
    tokens: int = 0
    documents: int = 0
    seconds: float = 0.0
    held_out_loss: float = float("nan")
    parameters: int = 0
    stages: list[dict[str, Any]] = field(default_factory=list)


def rate_at(step: int, settings: TrainingSettings) -> float:
    """Factor of the learning rate: warmup, plateau, linear decay."""
    decay_steps = max(1, int(settings.steps * settings.decay))
    return min(1.0, (step + 1) / settings.warmup, max(0.0, (settings.steps - step) / decay_steps))


def optimizers(model: nn.Module, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for embeddings and norms."""
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=settings.rate, betas=(0.9, 0.97), weight_decay=0.0),
    ]


def loss_of(model: Forward, batch: PackedBatch) -> torch.Tensor:
    """Weighted cross entropy of the next token."""
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
    return (losses * weights).sum() / weights.sum()


@torch.no_grad()
def held_out_loss(model: Forward, tokenizer: PreTrainedTokenizerFast, settings: TrainingSettings) -> float:
    """Mean loss on the answers of documents that are held out of every corpus."""
    stream = documents(settings.seed + 1, held_out=True)
    packer = Packer(tokenizer, stream, settings.length, settings.rows, prompt_weight=0.0)
    losses = [loss_of(model, batch).item() for batch in islice(packer, HELD_OUT_BATCHES)]
    return sum(losses) / len(losses)


def export(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, target: Path, record: TrainingRecord, name: str
) -> None:
    """Write model (half precision), tokenizer, record of the training and model card."""
    target.mkdir(parents=True, exist_ok=True)
    half = build(name, tokenizer, seed=0).half()
    half.load_state_dict(model.state_dict())
    half.save_pretrained(target)
    (target / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, target)
    (target / "training.json").write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
    write_card(target, name)


class Training:
    """One training run with its checkpoint in ``work`` and its result in ``target``."""

    def __init__(self, settings: TrainingSettings, tokenizer: PreTrainedTokenizerFast, work: Path, target: Path):
        self.settings, self.tokenizer, self.target = settings, tokenizer, target
        self.checkpoint = work / f"{settings.name}.pt"
        self.model = build(settings.name, tokenizer, settings.seed)
        self.optimizers = optimizers(self.model, settings)
        self.record = TrainingRecord(parameters=size(self.model))

    def resume(self) -> None:
        """Load the checkpoint, if there is one, and record the settings with which the run goes on."""
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.record = TrainingRecord(**state["record"])
        chosen = ("rows", "length", "matrix_rate", "rate", "decay", "prompt_weight")
        self.record.stages.append(
            {
                "from_step": self.record.steps,
                **{name: getattr(self.settings, name) for name in chosen},
                "shares": list(SHARES.values()),
            }
        )

    def save(self) -> None:
        """Write the checkpoint and an export."""
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        self.record.held_out_loss = held_out_loss(self.model, self.tokenizer, self.settings)
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "record": asdict(self.record),
        }
        torch.save(state, self.checkpoint)
        export(self.model, self.tokenizer, self.target, self.record, self.settings.name)
        print(f"step {self.record.steps}: held-out loss {self.record.held_out_loss:.4f}, saved", flush=True)

    def _batches(self) -> Iterator[tuple[PackedBatch, int]]:
        """The batches behind the last document of the record, each with the number of documents drawn so far.

        Counting documents and not batches lets a resumed run go on with another batch size.
        """
        settings, seen = self.settings, self.record.documents
        stream = islice(documents(settings.seed), seen, None)
        packer = Packer(self.tokenizer, stream, settings.length, settings.rows, settings.prompt_weight)
        for batch in islice(packer, settings.steps - self.record.steps):
            yield batch, seen + packer.documents

    def _step(self, forward: Forward, batch: PackedBatch) -> float:
        """One update; returns the loss before it."""
        factor = rate_at(self.record.steps, self.settings)
        for optimizer, rate in zip(self.optimizers, (self.settings.matrix_rate, self.settings.rate), strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
        loss = loss_of(forward, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def train(self, compiled: bool = True) -> TrainingRecord:
        """Train to the last step of the settings."""
        forward: Forward = torch.compile(self.model) if compiled else self.model
        last, losses = time.perf_counter(), []
        for batch, drawn in self._batches():
            losses.append(self._step(forward, batch))
            now = time.perf_counter()
            self.record.seconds, last = self.record.seconds + now - last, now
            self.record.steps += 1
            self.record.tokens += batch.ids.numel()
            self.record.documents = drawn
            if self.record.steps % LOG_EVERY == 0:
                mean, losses = sum(losses) / len(losses), []
                print(
                    f"step {self.record.steps} loss {mean:.4f} tokens {self.record.tokens} "
                    f"seconds {self.record.seconds:.0f}",
                    flush=True,
                )
            if self.record.steps % self.settings.save_every == 0 or self.record.steps == self.settings.steps:
                self.save()
                last = time.perf_counter()
        return self.record
