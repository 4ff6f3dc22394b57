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

from methods.parts.heads.draft_layer import DraftLayers, LayerMemory, layer_shapes
from methods.parts.heads.forwards import Forwards, RowsCall
from methods.parts.heads.head_file import EMBEDDED, HEAD, OFFSETS, HeadFile, HeadFormat, TensorShape
from methods.parts.heads.head_method import WIDEST, TargetEnds
from methods.parts.heads.layer_config import MASK, biased, drafted_tokens, layer_numbers, mask_token, require_known
from methods.parts.heads.tree_head import EMBEDDING, TreeHead, require_width, target_ids
from methods.parts.heads.tree_method import LevelsMethod, LevelsRun
from methods.parts.trees.tree_shape import TreeShape
from specbench.target.facade import ModelCard
from specbench.types import InputError, require_count

NESTED = "dflash_config"
BLOCK, LAYERS, STATES, ANCHOR = "block_size", "target_layer_ids", "aux_hidden_state_layer_ids", "sample_from_anchor"
KNOWN = {"sliding_window_non_causal", "markov_rank", "enable_confidence_head", "confidence_head_with_markov",
         BLOCK, LAYERS, STATES, ANCHOR, NESTED, *MASK}  # fmt: skip
# Of heads with further parts (Domino), whose size says nothing where the part is not there; and of training.
IDLE = {"pure_draft_prefix_len", "emb_dim", "gru_hidden_dim", "lambda_base_start", "lambda_base_decay_ratio", "auf",
        "num_anchors", "ce_loss_alpha", "l1_loss_alpha", "confidence_head_alpha", "loss_decay_gamma"}  # fmt: skip
ONLY = {"speculators_model_type": ("dflash", "dspark"), "projector_type": ("dflash",), "input_embedding_scale": (1.0,),
        "output_multiplier": (1.0,), "final_logit_softcapping": (0,), "markov_head_type": ("vanilla",),
        ANCHOR: (True, False)}  # fmt: skip
W1, W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
RANDOM_BLOCK, LONGEST = 8, 1024  # the speculators library's default; of any block


def setting(file: HeadFile, name: str) -> Any:
    """A value of the configuration, or of what z-lab nests in it."""
    held = file.config.get(name)
    return file.nested(NESTED).get(name) if held is None else held


def is_spark(file: HeadFile) -> bool:
    """Whether it is DSpark's."""
    return file.config.get("speculators_model_type") == "dspark" or "DSpark" in str(file.config.get("architectures"))


def anchored(file: HeadFile) -> bool:
    """Whether the first row of a block drafts too, as in DSpark unless it is said."""
    said = setting(file, ANCHOR)
    return is_spark(file) if said is None else bool(said)


class DFlashHead(TreeHead):
    """The drafter: fused states, layers with norms of queries and keys, embedding and output head of the target."""

    format = HeadFormat("DFlash", ("model.safetensors",), ("pytorch_model.bin",))
    # Copies of the target's, where the vocabulary is whole; and what DSpark cuts drafts by: decode.length does that.
    ignored = (EMBEDDING, r"lm_head\.weight", "d2t", "t2d", r"confidence_head\..*")

    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        self.ends, self.eps = ends, float(config.rms_norm_eps)
        self._fc, self._norms = state["fc.weight"], (state["hidden_norm.weight"], state["norm.weight"])
        prefixes = [f"layers.{place}." for place in range(config.num_hidden_layers)]
        self._first = state[f"{prefixes[0]}input_layernorm.weight"]
        self.layers = DraftLayers(state, prefixes, config, biased(file))
        self._mask = torch.tensor([mask_token(file, ends.vocab, NESTED)], device=ends.device)
        self.skipped = 0 if anchored(file) else 1  # rows of a block that draft nothing: the root's
        self._head, self._embedding = state.get(HEAD), state.get(EMBEDDED)
        self._bias = (state[W1], state[W2]) if W1 in state else None
        if OFFSETS in state:
            self.known = target_ids(state[OFFSETS], ends.vocab, file.where)

    @staticmethod
    def own(file: HeadFile) -> tuple[str, ...]:
        """DeepSpec trains both with DSpark; elsewhere they are copies of the target's, or noise."""
        return (HEAD, EMBEDDED) if is_spark(file) else ()

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """z-lab's ``target_layer_ids`` count blocks, whose outputs are meant; speculators' ids count hidden states."""
        require_known(file, (*KNOWN, *IDLE), ONLY, NESTED)
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
        mask_token(file, config.vocab_size, NESTED)
        shapes: dict[str, TensorShape] = {"fc.weight": (hidden, read * hidden)}
        shapes |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
        for place in range(config.num_hidden_layers):
            shapes |= layer_shapes(config, f"layers.{place}.", hidden, biased(file), normed=True)
            shapes[f"layers.{place}.input_layernorm.weight"] = (hidden,)
        rank = setting(file, "markov_rank") or 0
        if type(rank) is not int or rank < 0:
            raise InputError(f"{file.where}: config.json has markov_rank={rank!r}; expected a whole number")
        if rank:
            shapes |= {W1: (config.vocab_size, rank), W2: (drafted, rank)}
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

    def logits(self, hidden: Tensor) -> Tensor:
        """Its own norm, then its own output head or the target's."""
        normed = self.normed(hidden, self._norms[1])
        return self.ends.logits(normed) if self._head is None else functional.linear(normed, self._head)

    def behind(self, ids: Tensor, logits: Tensor) -> Tensor:
        """(w, Vd) a level's logits -> those behind the target's tokens (w,)."""
        if self._bias is None:
            return logits
        return logits + functional.linear(functional.embedding(ids, self._bias[0]), self._bias[1])


class _Block(LevelsRun):
    def root(self) -> Forwards:
        """See ``HeadRun.root``."""
        logits = yield from super().root()
        return self.head.behind(self._before, logits)

    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        """See ``HeadRun.expand``."""
        return self.head.behind(ids, (yield from super().expand(ids, rows)))

    def levels(self) -> Forwards:
        head, memory = self.head, self.memory
        features, following = self.taken()
        self._before = following[-1:]
        head.layers.keep(head.enter(features), memory)
        rows = self.count + head.skipped
        inputs, residual = head.inputs(head.block(self._before, rows), features[0])
        whole = head.layers.like.new_zeros(rows, memory.nodes)
        written = yield head.layers.grow(inputs, residual, memory, 0, slice(0, rows), whole)
        return (yield RowsCall(head.output, written[head.skipped :]))


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
