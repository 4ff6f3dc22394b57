"""DFlash and DSpark (2026, arXiv 2602.06036; 2607.05147): a small model fills a block of mask tokens in one forward.

Every layer reads the target's fused hidden states as keys and values of the committed tokens; the block, the root and
mask tokens behind it, attends to these and to itself in both directions. Nothing is kept of a block, so what a forward
costs does not grow with its length. DSpark adds a bias of low rank by the token before, so that tokens of a block
know each other. Names and shapes are those of z-lab, DeepSpec and the speculators library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from methods.dflash.markov import KINDS, SURE, VANILLA, W1, ConfidenceHead, MarkovHead, confidence_shapes, markov_shapes
from methods.parts.heads.draft_layer import DraftLayers, layer_shapes
from methods.parts.heads.head_file import EMBEDDED, HEAD, OFFSETS, HeadFile, HeadFormat, TensorShape
from methods.parts.heads.head_method import TargetEnds
from methods.parts.heads.layer_config import MASK, biased, drafted_tokens, layer_numbers, mask_token, require_known
from methods.parts.heads.tree_head import EMBEDDING, TreeHead, require_width, target_ids
from specbench.types import InputError

NESTED = ("dflash_config", "dspark_config")
BLOCK, LAYERS, STATES, ANCHOR = "block_size", "target_layer_ids", "aux_hidden_state_layer_ids", "sample_from_anchor"
RANK, KIND, CONFIDENT, WITH = "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"
KNOWN = {"sliding_window_non_causal", RANK, BLOCK, LAYERS, STATES, ANCHOR, *MASK}
# Of heads with further parts (Domino), whose size says nothing where the part is not there; and of training.
IDLE = {"pure_draft_prefix_len", "emb_dim", "gru_hidden_dim", "lambda_base_start", "lambda_base_decay_ratio", "auf",
        "num_anchors", "ce_loss_alpha", "l1_loss_alpha", "confidence_head_alpha", "loss_decay_gamma"}  # fmt: skip
ONLY = {"speculators_model_type": ("dflash", "dspark"), "projector_type": ("dflash",), "input_embedding_scale": (1.0,),
        "output_multiplier": (1.0,), "final_logit_softcapping": (0,), KIND: KINDS, CONFIDENT: (True, False),
        WITH: (True, False), ANCHOR: (True, False)}  # fmt: skip


def setting(file: HeadFile, name: str) -> Any:
    """A value of the configuration, or of what is nested in it; None where it is not set."""
    held = (part.get(name) for part in (file.config, *map(file.nested, NESTED)))
    return next((value for value in held if value is not None), None)


def is_spark(file: HeadFile) -> bool:
    """Whether it is DSpark's."""
    return file.config.get("speculators_model_type") == "dspark" or "DSpark" in str(file.config.get("architectures"))


def anchored(file: HeadFile) -> bool:
    """Whether the first row of a block drafts too, as in DSpark unless it is said."""
    said = setting(file, ANCHOR)
    return is_spark(file) if said is None else bool(said)


def markov_rank(file: HeadFile) -> int:
    """Of DSpark's Markov head, 0 = it has none. Raises InputError."""
    rank = setting(file, RANK) or 0
    if type(rank) is not int or rank < 0:
        raise InputError(f"{file.where}: config.json has {RANK}={rank!r}; expected a whole number")
    return rank


def is_confident(file: HeadFile) -> bool:
    """Whether it has a confidence head; where nothing is said, its tensors say it, or unread, that it is DSpark's."""
    said, shapes = setting(file, CONFIDENT), file.shapes()
    there = is_spark(file) and not file.random if shapes is None else f"{SURE}.weight" in shapes
    return there if said is None else bool(said)


def reads_markov(file: HeadFile) -> bool:
    """Whether the confidence head reads the token before. Raises InputError where nothing embeds it."""
    said, rank = setting(file, WITH), markov_rank(file)
    if said and not rank and is_confident(file):
        raise InputError(f"{file.where}: config.json has {WITH}=True and {RANK}=0; expected a Markov head")
    return rank > 0 if said is None else bool(said)


class DFlashHead(TreeHead):
    """The drafter: fused states, layers with norms of queries and keys, embedding and output head of the target."""

    format = HeadFormat("DFlash", ("model.safetensors",), ("pytorch_model.bin",))
    # Copies of the target's, where the vocabulary is whole; and a confidence head that is switched off.
    ignored = (EMBEDDING, r"lm_head\.weight", "d2t", "t2d", r"confidence_head\..*")

    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        self.ends, self.eps = ends, float(config.rms_norm_eps)
        self._fc, self._norms = state["fc.weight"], (state["hidden_norm.weight"], state["norm.weight"])
        prefixes = [f"layers.{place}." for place in range(config.num_hidden_layers)]
        self._first = state[f"{prefixes[0]}input_layernorm.weight"]
        self.layers = DraftLayers(state, prefixes, config, biased(file))
        self._mask = torch.tensor([mask_token(file, ends.vocab, *NESTED)], device=ends.device)
        self.skipped = 0 if anchored(file) else 1  # rows of a block that draft nothing: the root's
        self._head, self._embedding = state.get(HEAD), state.get(EMBEDDED)
        self.markov = MarkovHead(state) if W1 in state else None
        beside = self.markov if reads_markov(file) else None
        self.confidence = ConfidenceHead(state, beside) if f"{SURE}.weight" in state else None
        if OFFSETS in state:
            self.known = target_ids(state[OFFSETS], ends.vocab, file.where)

    @staticmethod
    def own(file: HeadFile) -> tuple[str, ...]:
        """DeepSpec trains both with DSpark; elsewhere they are copies of the target's, or noise."""
        return (HEAD, EMBEDDED) if is_spark(file) else ()

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """z-lab's ``target_layer_ids`` count blocks, whose outputs are meant; speculators' ids count hidden states."""
        require_known(file, (*KNOWN, *IDLE), ONLY, *NESTED)
        blocks, states = (layer_numbers(file, name, setting(file, name)) for name in (LAYERS, STATES))
        chosen = (1, max(1, layers // 2), layers) if file.random else states or [block + 1 for block in blocks or ()]
        if not chosen or not all(0 <= layer <= layers for layer in chosen):
            raise InputError(
                f"{file.where}: config.json has {LAYERS}={blocks}, {STATES}={states}; expected one of them, in a target"
                f" of {layers} layers"
            )
        return tuple(chosen)

    @classmethod
    def shapes(cls, file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """A smaller vocabulary has ``lm_head`` and ``d2t``. Raises InputError where widths or settings do not fit."""
        hidden = require_width(file, config, target)
        drafted = drafted_tokens(file, config.vocab_size)
        mask_token(file, config.vocab_size, *NESTED)
        shapes: dict[str, TensorShape] = {"fc.weight": (hidden, read * hidden)}
        shapes |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
        for place in range(config.num_hidden_layers):
            shapes |= layer_shapes(config, f"layers.{place}.", hidden, biased(file), normed=True)
            shapes[f"layers.{place}.input_layernorm.weight"] = (hidden,)
        rank = markov_rank(file)
        if rank:
            shapes |= markov_shapes(setting(file, KIND) or VANILLA, config.vocab_size, drafted, rank, hidden)
        if is_confident(file):
            shapes |= confidence_shapes(hidden + (rank if reads_markov(file) else 0))
        return shapes if drafted == config.vocab_size else {
            **shapes, HEAD: (drafted, hidden), OFFSETS: (drafted,)}  # fmt: skip

    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """Fused and normed: what every layer's keys and values are made of."""
        return self.normed(functional.linear(torch.cat(list(features), dim=-1), self._fc), self._norms[0])

    def block(self, root: Tensor, rows: int) -> Tensor:
        """(rows,) ids of a block."""
        return torch.cat([root, self._mask.expand(rows - 1)])

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Of a block's tokens; the target's states do not enter here."""
        embedded = self.ends.embed(ids) if self._embedding is None else functional.embedding(ids, self._embedding)
        return self.normed(embedded, self._first), embedded

    def carry(self, hidden: Tensor) -> Tensor:
        """Behind its own norm."""
        return self.normed(hidden, self._norms[1])

    def logits(self, hidden: Tensor) -> Tensor:
        """By its own output head or the target's."""
        return self.ends.logits(hidden) if self._head is None else functional.linear(hidden, self._head)
