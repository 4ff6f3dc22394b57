"""DFlash and DSpark (2026, arXiv 2602.06036; 2607.05147): a small model fills a block of mask tokens in one forward.

Every layer reads the target's fused hidden states as keys and values of the committed tokens; the block, the root and
mask tokens after it, attends to these and to itself in both directions. Nothing of a block is stored, so the cost of a
forward does not grow with its length. DSpark adds a bias of low rank by the previous token, so that tokens of a block
know each other, and the probability to be accepted. Names and shapes of tensors are those of z-lab, DeepSpec and the
speculators library; the formulas of DSpark's heads are those of the speculators library and of SGLang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from methods.parts.draft_layer import DraftLayers, Forwards, LayerMemory, RowsCall, layer_shapes
from methods.parts.head_file import (
    EMBEDDED,
    HEAD,
    MASK,
    OFFSETS,
    HeadFile,
    HeadFormat,
    TensorShape,
    biased,
    drafted_tokens,
    layer_numbers,
    mask_token,
    require_known,
)
from methods.parts.head_method import WIDEST, TargetEnds
from methods.parts.tree_method import EMBEDDING, LevelsMethod, LevelsRun, TreeHead, require_width, target_ids
from methods.parts.tree_shape import TreeShape
from specbench.models.facade import ModelCard
from specbench.models.fast.host.forward import Product
from specbench.types import InputError, require_count

VANILLA, GATED, RNN = KINDS = ("vanilla", "gated", "rnn")
PREFIX = "markov_head."
W1, W2 = f"{PREFIX}markov_w1.weight", f"{PREFIX}markov_w2.weight"
GATE, JOINT = f"{PREFIX}gate_proj", f"{PREFIX}joint_proj"
SURE = "confidence_head.proj"


def markov_shapes(kind: str, vocab: int, drafted: int, rank: int, hidden: int) -> dict[str, TensorShape]:
    """Names and shapes of the Markov head. drafted: tokens of its vocabulary."""
    shapes: dict[str, TensorShape] = {W1: (vocab, rank), W2: (drafted, rank)}
    if kind == GATED:
        shapes |= {f"{GATE}.weight": (rank, hidden + rank), f"{GATE}.bias": (rank,)}
    if kind == RNN:
        shapes |= {f"{JOINT}.weight": (3 * rank, 2 * rank + hidden), f"{JOINT}.bias": (3 * rank,)}
    return shapes


class MarkovHead:
    """The logits' bias W2 m, by the token before: m = W1[token], or that gated, or what a recurrent cell makes of it.

    rank: r.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._w1, self._w2 = state[W1], state[W2]
        self.rank = self._w1.shape[1]
        self._gate, self._joint = (
            (state[f"{name}.weight"], state[f"{name}.bias"]) if f"{name}.weight" in state else None
            for name in (GATE, JOINT)
        )

    def embed(self, ids: Tensor) -> Tensor:
        """(w,) tokens -> (w, r)."""
        return functional.embedding(ids, self._w1)

    def begin(self, root: Tensor, passed: Tensor) -> Tensor:
        """(1, r) the recurrent state in front of the first place that drafts.

        root: (1,) the token in front of the block. passed: (p, D) normed states of rows that draft nothing, 0 or 1.
        """
        before = self._w1.new_zeros(1, self.rank)
        return self._mix(root, passed, before)[1] if len(passed) else before

    def bias(self, ids: Tensor, hidden: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """The bias (w, Vd) of a level's places, and their recurrent states (w, r).

        ids: (w,) the token before each place.
        hidden: (w, D) the drafter's normed state of the place.
        before: (w, r) the recurrent state of the place before.
        """
        read, before = self._mix(ids, hidden, before)
        return functional.linear(read, self._w2), before

    def _mix(self, ids: Tensor, hidden: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """M (w, r), and the recurrent states (w, r); see ``bias``."""
        read = self.embed(ids)
        if self._gate:
            read = torch.sigmoid(functional.linear(torch.cat([hidden, read], dim=-1), *self._gate)) * read
        elif self._joint:
            mixed = functional.linear(torch.cat([before, read, hidden], dim=-1), *self._joint)
            gate, new, written = mixed.chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            before, read = gate * before + (1 - gate) * torch.tanh(new), torch.tanh(written)
        return read, before


class ConfidenceHead:
    """The chance that a place's token is accepted where those before it are; it does not depend on that token."""

    def __init__(self, state: Mapping[str, Tensor], markov: MarkovHead | None) -> None:
        """markov: whose embedding of the token before is read too."""
        self._weight, self._bias, self._markov = state[f"{SURE}.weight"], state[f"{SURE}.bias"], markov

    def __call__(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """(w,) float32. ids, hidden: as in ``MarkovHead.bias``."""
        read = hidden if self._markov is None else torch.cat([hidden, self._markov.embed(ids)], dim=-1)
        return functional.linear(read, self._weight, self._bias)[:, 0].float().sigmoid()


NESTED = ("dflash_config", "dspark_config")
BLOCK, LAYERS, STATES, ANCHOR = "block_size", "target_layer_ids", "aux_hidden_state_layer_ids", "sample_from_anchor"
RANK, KIND, CONFIDENT, WITH = "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"
KNOWN = {"sliding_window_non_causal", RANK, BLOCK, LAYERS, STATES, ANCHOR, *MASK}
# Settings of further parts (Domino), without meaning where the part is missing, and settings of training.
IDLE = {"pure_draft_prefix_len", "emb_dim", "gru_hidden_dim", "lambda_base_start", "lambda_base_decay_ratio", "auf",
        "num_anchors", "ce_loss_alpha", "l1_loss_alpha", "confidence_head_alpha", "loss_decay_gamma"}  # fmt: skip
ONLY = {"speculators_model_type": ("dflash", "dspark"), "projector_type": ("dflash",), "input_embedding_scale": (1.0,),
        "output_multiplier": (1.0,), "final_logit_softcapping": (0,), KIND: KINDS, CONFIDENT: (True, False),
        WITH: (True, False), ANCHOR: (True, False)}  # fmt: skip


def setting(file: HeadFile, name: str) -> Any:
    """A value of the configuration, or of what is nested in it; None where it is not set."""
    found = (part.get(name) for part in (file.config, *map(file.nested, NESTED)))
    return next((value for value in found if value is not None), None)


def is_spark(file: HeadFile) -> bool:
    """Returns whether the file is a DSpark drafter."""
    return file.config.get("speculators_model_type") == "dspark" or "DSpark" in str(file.config.get("architectures"))


def anchored(file: HeadFile) -> bool:
    """Returns whether the first row of a block drafts too, as in DSpark unless the file has another setting."""
    given = setting(file, ANCHOR)
    return is_spark(file) if given is None else bool(given)


def markov_rank(file: HeadFile) -> int:
    """The rank of DSpark's Markov head, 0 without one. Raises InputError."""
    rank = setting(file, RANK) or 0
    if type(rank) is not int or rank < 0:
        raise InputError(f"{file.where}: config.json has {RANK}={rank!r}; expected a whole number")
    return rank


def is_confident(file: HeadFile) -> bool:
    """Returns whether it has a confidence head: by the configuration, by its tensors, or (unread) if it is DSpark's."""
    given, shapes = setting(file, CONFIDENT), file.shapes()
    there = is_spark(file) and not file.random if shapes is None else f"{SURE}.weight" in shapes
    return there if given is None else bool(given)


def reads_markov(file: HeadFile) -> bool:
    """Returns whether the confidence head reads the token before. Raises InputError if nothing embeds it."""
    given, rank = setting(file, WITH), markov_rank(file)
    if given and not rank and is_confident(file):
        raise InputError(f"{file.where}: config.json has {WITH}=True and {RANK}=0; expected a Markov head")
    return rank > 0 if given is None else bool(given)


class DFlashHead(TreeHead):
    """The drafter: fused states, layers with norms of queries and keys, embedding and output head of the target."""

    format = HeadFormat("DFlash")
    # Copies of the target's, where the vocabulary is whole; and a confidence head that is switched off.
    ignored = (EMBEDDING, r"lm_head\.weight", "d2t", "t2d", r"confidence_head\..*")

    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        self.ends, self.eps = ends, float(config.rms_norm_eps)
        self._fc, self._norms = Product(state["fc.weight"]), (state["hidden_norm.weight"], state["norm.weight"])
        prefixes = [f"layers.{place}." for place in range(config.num_hidden_layers)]
        self._first = state[f"{prefixes[0]}input_layernorm.weight"]
        self.layers = DraftLayers(state, prefixes, config, biased(file))
        self._mask = torch.tensor([mask_token(file, ends.vocab, *NESTED)], device=ends.device)
        self.skipped = 0 if anchored(file) else 1  # rows of a block that draft nothing: the root's
        self._head = Product(state[HEAD]) if HEAD in state else None
        self._embedding = state.get(EMBEDDED)
        self.markov = MarkovHead(state) if W1 in state else None
        markov = self.markov if reads_markov(file) else None
        self.confidence = ConfidenceHead(state, markov) if f"{SURE}.weight" in state else None
        if OFFSETS in state:
            self.known = target_ids(state[OFFSETS], ends.vocab, file.where)

    @staticmethod
    def own(file: HeadFile) -> tuple[str, ...]:
        """DeepSpec trains both with DSpark; in other files they are copies of the target's, or noise."""
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
            width = hidden + (rank if reads_markov(file) else 0)
            shapes |= {f"{SURE}.weight": (1, width), f"{SURE}.bias": (1,)}
        return shapes if drafted == config.vocab_size else {
            **shapes, HEAD: (drafted, hidden), OFFSETS: (drafted,)}  # fmt: skip

    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """Fused and normed: what every layer's keys and values are made of."""
        return self.normed(self._fc(torch.cat(list(features), dim=-1)), self._norms[0])

    def block(self, root: Tensor, rows: int) -> Tensor:
        """(rows,) ids of a block."""
        return torch.cat([root, self._mask.expand(rows - 1)])

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Embed a block's tokens; the target's states do not enter here."""
        embedded = self.ends.embed(ids) if self._embedding is None else functional.embedding(ids, self._embedding)
        return self.normed(embedded, self._first), embedded

    def carry(self, hidden: Tensor) -> Tensor:
        """Apply the head's own norm."""
        return self.normed(hidden, self._norms[1])

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head's own output head, or the target's."""
        return self.ends.logits(hidden) if self._head is None else self._head(hidden)


RANDOM_BLOCK, LONGEST = 8, 1024  # the speculators library's default; of any block


class _Block(LevelsRun):
    """A request's place: states (levels, D) of its last block, and the recurrent states of the level before."""

    def root(self) -> Forwards:
        """Reads the queue, if there is one, and returns the logits (1, Vd) below the root."""
        logits = yield from super().root()
        if self.head.markov:
            self._recurrent = self.head.markov.begin(self._root, self._passed)
        return self._biased(self._root, logits, torch.zeros_like(self._root))

    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        """Returns the logits (w, Vd) below these nodes."""
        return self._biased(ids, (yield from super().expand(ids, rows)), rows)

    def _biased(self, ids: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
        """(w, Vd) a level's logits, after the tokens (w,) before it."""
        if not self.head.markov:
            return logits
        hidden = self._states[self._level].expand(len(ids), -1)
        bias, self._recurrent = self.head.markov.bias(ids, hidden, self._recurrent[rows])
        return logits + bias

    def chances(self, ids: Tensor | None) -> Tensor | None:
        """The confidence head's (w,) chances of the next level."""
        if not self.head.confidence:
            return None
        level, before = (0, self._root) if ids is None else (self._level + 1, ids)
        return self.head.confidence(before, self._states[level].expand(len(before), -1))

    def levels(self) -> Forwards:
        head, memory = self.head, self.memory
        features, following = self.taken()
        self._root = following[-1:]
        head.layers.keep(head.enter(features), memory)
        rows = self.count + head.skipped
        inputs, residual = head.inputs(head.block(self._root, rows), features[0])
        whole = head.layers.like.new_zeros(rows, memory.nodes)
        written = yield head.layers.grow(inputs, residual, memory, 0, slice(0, rows), whole)
        self._passed, self._states = head.carry(written).tensor_split([head.skipped])
        return (yield RowsCall(head.output, self._states))


@dataclass(eq=False)
class DFlash(LevelsMethod):
    """DFlash, DSpark; conf/method/dflash.yaml describes the parameters."""

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
        if self.length is None and self.choices is None:
            self.shape = TreeShape.from_counts([[1]] * most, WIDEST)
        require_count("length or levels of choices", len(self.shape.levels), high=most)

    def new_memory(self) -> LayerMemory:
        """Committed tokens, and a block."""
        assert isinstance(self.bound, DFlashHead)
        rows = len(self.shape.levels) + self.bound.skipped
        return LayerMemory(self.bound.layers, rows, rows)
