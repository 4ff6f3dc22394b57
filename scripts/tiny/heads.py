"""Heads of EAGLE's and Medusa's kinds for the bundled model: modules with the published names, and
training.

A head of EAGLE's kind is one decoder layer that continues the target's own features. It is unrolled
on its own output: pass d computes the nodes of depth d. A node's ancestors are earlier passes, and
its context is the target's true features (the training-time test of EAGLE-3, Li et al. 2025,
section 3.2). The loss at every unrolled depth compares with the target's distribution and, for a
head in the shape of EAGLE-1, with a small weight also with the target's next feature.

Head d of Medusa's kind reads a token's last state and drafts the token d + 2 places after that one.
The loss compares with the target's distribution, and later heads count less (Medusa, arXiv
2401.10774, section 2.2.1).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from scripts.tiny.corpus import documents
from scripts.tiny.train import (
    HeadTraining,
    PackedBatch,
    Trainee,
    load_target,
    pack,
    read_states,
    separate,
)

FUSED = (1, 3, 4)  # hidden states that an EAGLE-3 head of this five-layer target fuses
REGRESSION = 0.2  # weight of the feature loss
NOISE = 0.1  # half the width of the noise on features


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig, inputs: int) -> None:
        super().__init__()
        self.size = size = int(config.head_dim or 0)
        width, shared = (
            config.num_attention_heads * size,
            int(config.num_key_value_heads or 0) * size,
        )
        self.q_proj = nn.Linear(inputs, width, bias=False)
        self.k_proj = nn.Linear(inputs, shared, bias=False)
        self.v_proj = nn.Linear(inputs, shared, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def project(self, hidden: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (rows, heads, T, size), rotated to their positions."""
        query, key, value = (
            linear(hidden).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *turn)
        return query, key, value


class HeadLayer(nn.Module):
    """A Llama layer without a norm before its attention, as EAGLE's is. inputs: width of what
    attention reads.

    norms: the names of further norms.
    """

    def __init__(self, config: LlamaConfig, inputs: int, norms: Sequence[str] = ()) -> None:
        super().__init__()
        self.self_attn = _Attention(config, inputs)
        self.mlp = LlamaMLP(config)
        for name in ("post_attention_layernorm", *norms):
            setattr(self, name, LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps))


class EagleModule(nn.Module):
    """The head in the shape of EAGLE-1: continues the last feature, borrows the target's output
    head.

    ids: (Vd,) target ids of its vocabulary, None = the target's own.
    """

    ids: Tensor | None = None

    def __init__(self, config: LlamaConfig, target: Any) -> None:
        """Make a head that returns the feature itself. config: of the layer."""
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([HeadLayer(config, config.hidden_size)])
        self._borrow(config, self.layers[0], target.lm_head)
        with torch.no_grad():
            self.fc.weight[:, config.hidden_size :] += torch.eye(config.hidden_size)

    def _borrow(self, config: LlamaConfig, layer: Any, extra: Any = None) -> None:
        """Keep modules in a list, which does not make them a part of the state, or not a second
        time.
        """
        self._lent: list[Any] = [layer, LlamaRotaryEmbedding(config), extra]

    def enter(self, states: Sequence[Tensor]) -> Tensor:
        """Return the features that the head continues, from the target's L + 1 states of (rows, T,
        D).
        """
        return states[-1]

    def mix(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of attention, and the residual."""
        mixed = self.fc(torch.cat([embedded, features], dim=-1))
        return mixed, mixed

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits (n, Vd) of states (n, D)."""
        return self._lent[2](hidden)

    def unroll(
        self, features: Tensor, embedded: Tensor, positions: Tensor, passes: int
    ) -> list[Tensor]:
        """Return the states (rows, T, D) of each pass: those for (feature i, token i + 1) at depths
        0, 1, 2 ...

        features, embedded: (rows, T, D); embedded[i] belongs to token i + 1. positions: (rows, T),
        0 starts a conversation.
        """
        layer, rotary, _ = self._lent
        turn = rotary(features, positions)
        past: list[tuple[Tensor, Tensor]] = []  # keys and values of each pass
        outputs = []
        for depth in range(passes):
            inputs, hidden = self.mix(embedded, features)
            query, key, value = layer.self_attn.project(inputs, turn)
            past.append((key, value))
            mixed = attend(query, past, visible(positions, depth))
            hidden = hidden + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
            outputs.append(self.carry(hidden + layer.mlp(layer.post_attention_layernorm(hidden))))
            embedded, features = self.deeper(embedded, outputs[-1])
        return outputs

    def carry(self, hidden: Tensor) -> Tensor:
        """Return the layer's output as the next pass and ``logits`` read it."""
        return hidden

    def deeper(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return (embedded, features) of the next pass: the output for token i replaces feature i +
        1.
        """
        return embedded, functional.pad(hidden[:, :-1], (0, 0, 1, 0))


class MtpModule(EagleModule):
    """A module for multi-token prediction in the shape of the speculators package: norms around the
    projection.
    """

    def __init__(self, config: LlamaConfig, target: Any) -> None:
        nn.Module.__init__(self)
        hidden = config.hidden_size
        norms = ("token_layernorm", "hidden_layernorm", "input_layernorm", "final_layernorm")
        block = HeadLayer(config, hidden, norms)
        block.input_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.mtp_layers = nn.ModuleList([block])
        self._borrow(config, block, target.lm_head)
        with torch.no_grad():
            block.input_proj.weight[:, hidden:] += torch.eye(hidden)

    def mix(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        layer = self._lent[0]
        mixed = layer.input_proj(
            torch.cat([layer.token_layernorm(embedded), layer.hidden_layernorm(features)], dim=-1)
        )
        return layer.input_layernorm(mixed), mixed

    def carry(self, hidden: Tensor) -> Tensor:
        return self._lent[0].final_layernorm(hidden)


class Eagle3Module(EagleModule):
    """The head in the shape of EAGLE-3: fused states enter once, its own output head knows part of
    the vocabulary.
    """

    def __init__(self, config: LlamaConfig, target: Any, ids: Tensor) -> None:
        """Make an untrained head. ids: (Vd,) target ids of the head's vocabulary."""
        nn.Module.__init__(self)
        hidden = config.hidden_size
        self.fc = nn.Linear(len(FUSED) * hidden, hidden, bias=False)
        self.midlayer = HeadLayer(config, 2 * hidden, ("hidden_norm", "input_layernorm"))
        self._borrow(config, self.midlayer)
        self.norm = LlamaRMSNorm(hidden, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, len(ids), bias=False)
        self.lm_head.weight.data.copy_(target.lm_head.weight.data[ids])
        self.register_buffer("d2t", ids - torch.arange(len(ids)))
        known = torch.zeros(target.config.vocab_size, dtype=torch.bool)
        self.register_buffer("t2d", known.index_fill_(0, ids, True))
        self.ids = ids

    def enter(self, states: Sequence[Tensor]) -> Tensor:
        return self.fc(torch.cat([states[layer] for layer in FUSED], dim=-1))

    def mix(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        layer = self._lent[0]
        return (
            torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(features)], dim=-1),
            features,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(self.norm(hidden))


class PEagleModule(Eagle3Module):
    """The head in the shape of P-EAGLE: deeper passes read a mask token and a learned state, not
    drafted tokens.
    """

    def __init__(self, config: LlamaConfig, target: Any, ids: Tensor) -> None:
        """Make an untrained head. config: has the id of the mask token, which the target embeds."""
        super().__init__(config, target, ids)
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, len(FUSED) * config.hidden_size))
        self._lent[2] = target.get_input_embeddings().weight[config.mask_token_id].detach()

    def deeper(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same inputs for every place and depth."""
        return self._lent[2].expand_as(embedded), self.fc(self.mask_hidden).expand_as(hidden)


def visible(positions: Tensor, depth: int) -> Tensor:
    """Return the mask (rows, 1, T, T) of pass 0 in pass ``depth``: row i sees its own conversation
    up to i - depth.
    """
    length = positions.shape[-1]
    return separate(positions) & (
        torch.arange(length)[:, None] - torch.arange(length)[None] >= depth
    )


def attend(query: Tensor, past: list[tuple[Tensor, Tensor]], seen: Tensor) -> Tensor:
    """Return the attention (rows, heads, T, size) of pass ``depth = len(past) - 1``.

    Row i sees pass 0 by the mask ``seen``, and of pass m > 0 the one token i - depth + m, its own
    ancestor. Rows with too few tokens before them see zeros instead; no loss counts them.
    """
    depth, groups = len(past) - 1, query.shape[1] // past[0][0].shape[1]
    wide = [tuple(part.repeat_interleave(groups, dim=1) for part in pair) for pair in past]
    near = [
        tuple(functional.pad(part, (0, 0, depth - m, 0))[:, :, : part.shape[2]] for part in wide[m])
        for m in range(1, depth + 1)
    ]
    scores = (query @ wide[0][0].transpose(-1, -2)).masked_fill(~seen, -torch.inf)
    lone = [(query * key).sum(-1, keepdim=True) for key, _ in near]
    weights = (torch.cat([scores, *lone], dim=-1) * query.shape[-1] ** -0.5).softmax(-1)
    length = query.shape[2]
    mixed = weights[..., :length] @ wide[0][1]
    for place, (_, value) in enumerate(near):
        mixed = mixed + weights[..., length + place, None] * value
    return mixed


@dataclass(frozen=True)
class HeadSettings(HeadTraining):
    """The settings of the training of a head of EAGLE's kind; the defaults are those of
    ``tiny_eagle``.

    kind: eagle (the shape of EAGLE-1 and -2) | mtp | eagle3 | p_eagle; the last two have
    ``vocabulary`` tokens in their output head. passes: unrolled depths. intermediate: width of the
    layer's MLP.
    """

    kind: str = "eagle"
    vocabulary: int = 1024
    steps: int = 2300
    matrix_rate: float = 0.02
    rate: float = 0.003
    length: int = 512
    seed: int = 11
    passes: int = 3
    intermediate: int = 512


def head_config(target: Any, settings: HeadSettings) -> LlamaConfig:
    """Return the configuration of one layer in the target's shape, with its own MLP width."""
    values = target.config.to_dict() | {
        "num_hidden_layers": 1,
        "intermediate_size": settings.intermediate,
    }
    if settings.kind == "mtp":
        values |= {"speculators_model_type": "mtp"}
    elif settings.kind != "eagle":
        values |= {
            "draft_vocab_size": settings.vocabulary,
            "eagle_aux_hidden_state_layer_ids": list(FUSED),
        }
    if settings.kind == "p_eagle":
        mask = target.config.pad_token_id
        values |= {
            "speculators_model_type": "peagle",
            "mask_token_id": mask,
            "embed_requires_grad": False,
        }
    return LlamaConfig.from_dict(values)


def new_head(settings: HeadSettings) -> Trainee:
    """Make an untrained head of the bundled model."""
    target, tokenizer = load_target(settings.seed)
    config = head_config(target, settings)
    if settings.kind in ("eagle", "mtp"):
        head = {"eagle": EagleModule, "mtp": MtpModule}[settings.kind](config, target)
    else:  # with the ids that answers use most, in order
        stream = documents(settings.seed + 2)
        batches = islice(
            pack(tokenizer, stream, settings.length, settings.rows, settings.prompt_weight), 100
        )
        used = torch.cat([batch.ids[batch.weights > 0] for batch in batches])
        ranked = used.bincount(minlength=len(tokenizer)).sort(descending=True, stable=True).indices
        ids = ranked[: settings.vocabulary].sort().values
        head = {"eagle3": Eagle3Module, "p_eagle": PEagleModule}[settings.kind](config, target, ids)
    loss = partial(loss_of, head, target, settings=settings)
    return Trainee(settings, tokenizer, head, loss, partial(save_head, head, config))


def loss_of(
    head: EagleModule, target: Any, batch: PackedBatch, settings: HeadSettings
) -> tuple[Tensor, list[float]]:
    """Return the loss of a batch, and for each depth the share of answer tokens that the head ranks
    first.
    """
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        states = read_states(target, batch)
        embedded = functional.pad(target.get_input_embeddings()(batch.ids)[:, 1:], (0, 0, 0, 1))
    truth, ids = states[-1].float(), head.ids
    noise = NOISE if head.training else 0.0
    noisy = [state.float() + (torch.rand(state.shape) * 2 - 1) * noise for state in states]
    total, right = truth.new_zeros(()), []
    with torch.autocast("cpu", torch.bfloat16):
        outputs = head.unroll(head.enter(noisy), embedded, batch.positions, settings.passes)
    for depth, hidden in enumerate(outputs):
        counted = (batch.weights[:, 2:] > 0) & (batch.positions[:, 2:] > depth + 2)
        made, meant = hidden[:, :-2][counted], truth[:, 1:-1][counted]
        with torch.autocast("cpu", torch.bfloat16):
            probs, guess = target.lm_head(meant).float().softmax(-1), head.logits(made).float()
        best, wanted = guess.argmax(-1), probs.argmax(-1)
        right.append(((best if ids is None else ids[best]) == wanted).float().mean().item())
        total = total + functional.cross_entropy(guess, probs if ids is None else probs[:, ids])
        if ids is None:
            total = total + REGRESSION * functional.smooth_l1_loss(made.float(), meant)
    return total / settings.passes, right


def save_weights(head: nn.Module, path: Path) -> None:
    """Write weights in half precision."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = {
        name: weight.detach().half().contiguous() if weight.is_floating_point() else weight
        for name, weight in head.state_dict().items()
    }
    save_file(half, path)
    path.chmod(0o644)


def save_head(head: nn.Module, config: LlamaConfig, folder: Path) -> None:
    """Write weights in half precision and ``config.json``."""
    save_weights(head, folder / "model.safetensors")
    config.to_json_file(folder / "config.json")


FADING = 0.8  # weight of a head's loss, as a part of that of the head before it


@dataclass(frozen=True)
class MedusaSettings(HeadTraining):
    """The settings of the training of ``tiny_medusa``. heads: how many. blocks: of each."""

    heads: int = 4
    blocks: int = 3
    steps: int = 400
    matrix_rate: float = 0.0
    rate: float = 0.004
    seed: int = 23


class MedusaModule(nn.ModuleList):
    """Medusa's heads without output matrices of their own: the target's reads them all. At first
    each adds nothing.
    """

    def __init__(self, target: Any, settings: MedusaSettings) -> None:
        hidden = target.config.hidden_size
        super().__init__(
            nn.ModuleList(
                nn.ModuleDict({"linear": nn.Linear(hidden, hidden)}) for _ in range(settings.blocks)
            )
            for _ in range(settings.heads)
        )
        for weight in self.parameters():
            nn.init.zeros_(weight)
        self._lent = [target.lm_head]

    def guess(self, head: int, state: Tensor) -> Tensor:
        """Return the logits (n, V) of one head from (n, D) states of the target."""
        blocks: Any = self[head]
        for block in blocks:
            state = state + functional.silu(block["linear"](state))
        return self._lent[0](state)


def new_medusa_heads(settings: MedusaSettings) -> Trainee:
    """Make untrained heads of the bundled model."""
    target, tokenizer = load_target(settings.seed)
    module = MedusaModule(target, settings)
    loss = partial(medusa_loss, module, target)
    return Trainee(settings, tokenizer, module, loss, partial(save_medusa, module))


def medusa_loss(
    module: MedusaModule, target: Any, batch: PackedBatch
) -> tuple[Tensor, list[float]]:
    """Return the loss of a batch, and for each head the share of answer tokens that it ranks
    first.
    """
    states = read_states(target, batch)[-1]
    with torch.no_grad():
        probs = target.lm_head(states).softmax(-1)
    total, right = states.new_zeros(()), []
    for head in range(len(module)):
        ahead = head + 2
        same = batch.positions[:, ahead:] == batch.positions[:, :-ahead] + ahead
        rows, at = ((batch.weights[:, ahead:] > 0) & same).nonzero(as_tuple=True)
        wanted, guess = probs[rows, at + ahead - 1], module.guess(head, states[rows, at])
        total = total + FADING**head * functional.cross_entropy(guess, wanted)
        right.append((guess.argmax(-1) == wanted.argmax(-1)).float().mean().item())
    return total, right


def save_medusa(module: MedusaModule, folder: Path) -> None:
    """Write weights in half precision under the published file name, and ``config.json``."""
    save_weights(module, folder / "medusa_lm_head.safetensors")
    blocks: Any = module[0]
    config = {"medusa_num_heads": len(module), "medusa_num_layers": len(blocks)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
