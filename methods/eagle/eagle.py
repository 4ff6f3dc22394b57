"""EAGLE (Li et al. 2024; 2025): a layer trained to continue the target's hidden features drafts a
tree of tokens.

A draft position takes a feature and the embedding of the token after it, which settles what
features alone leave open; drafted positions take the head's own output instead of the feature.
EAGLE-1 fills a fixed tree, EAGLE-2 and -3 let the head's confidence shape it. EAGLE-1 and -2
continue the target's last feature and use its output head; EAGLE-3 and -3.1 fuse three of the
target's layers and have an output head of their own, often over a part of the vocabulary. P-EAGLE
(2026, arXiv 2602.01469) is an EAGLE-3 head that drafts all levels in one forward: instead of
drafted tokens and its own states it reads a mask token and one learned state, one row a level.

Names and shapes of tensors are those of the published checkpoints; flags of a configuration are
those of the authors, of SpecForge and SGLang, of NVIDIA's ``eagle_config`` and of the speculators
library. An unknown flag that changes the forward is an error: a head that is loaded with another
forward than it was trained with drafts nonsense silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from methods.parts.draft_layer import DraftLayers, Forwards, LayerMemory, RowsCall, layer_shapes
from methods.parts.head_file import (
    EAGLE_CONFIG,
    MASK,
    HeadFile,
    HeadFormat,
    TensorShape,
    biased,
    drafted_tokens,
    head_norms,
    layer_numbers,
    mask_token,
    require_known,
)
from methods.parts.head_method import EAGLE_TREE, TargetEnds
from methods.parts.parameters import count
from methods.parts.tree_method import (
    EMBEDDING,
    HeadRun,
    LevelsMethod,
    LevelsRun,
    TreeHead,
    TreeMethod,
    require_width,
    target_ids,
)
from methods.parts.tree_shape import TreeShape
from specbench.input import parse_json, read_file
from specbench.models.facade import ModelCard
from specbench.models.fast.host.forward import Norm, Product
from specbench.types import InputError, require_count


class FirstHead(TreeHead):
    """EAGLE-1 and -2: the feature is the last state after the final norm; no norm before attention
    or head.
    """

    format = HeadFormat("EAGLE")

    def __init__(
        self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds
    ) -> None:
        self.ends = ends
        self._fc = Product(state["fc.weight"], state.get("fc.bias"))
        self.layers = DraftLayers(state, ["layers.0."], config, biased(file))

    @classmethod
    def shapes(
        cls, file: HeadFile, config: LlamaConfig, target: Any, read: int
    ) -> dict[str, TensorShape]:
        """``fc`` has a bias unless the configuration holds ``"bias": false``. Raises InputError."""
        require_known(file, ("qkv_bias",), {"bias": (True, False)}, EAGLE_CONFIG)
        hidden = require_width(file, config, target)
        shapes: dict[str, TensorShape] = {"fc.weight": (hidden, 2 * hidden)}
        if file.config.get("bias", True):
            shapes["fc.bias"] = (hidden,)
        return {**shapes, **layer_shapes(config, "layers.0.", hidden, biased(file))}

    def enter(self, features: Sequence[Tensor]) -> Tensor:
        return features[0]

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        mixed = self._fc(torch.cat([self.ends.embed(ids), hidden], dim=-1))
        return mixed, mixed

    def confine(self, ids: Sequence[int]) -> None:
        """Draft these ids alone."""
        self.known = torch.tensor(ids, device=self.ends.device)
        self._rows = Product(*self.ends.rows_of(self.known))

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's output head, or its rows of the ids that are drafted."""
        return self.ends.logits(hidden) if self.known is None else self._rows(hidden)


# Flags of a configuration that change the forward, and what each of them does where it is true.
NORM_BEFORE_RESIDUAL = "norm_before_residual"  # the residual is the normed state
NORM_BEFORE_FC = "norm_before_fc"  # one norm over the layers that are fused, input_norm (gpt-oss)
FC_NORM = "fc_norm"  # a norm for each of them, fc_norm.N (EAGLE-3.1)
NORM_OUTPUT = "norm_output"  # the states that are continued are after the last norm (EAGLE-3.1)
OWN_EMBEDDING = "embed_requires_grad"  # the embedding was trained with the head
FLAGS = (NORM_BEFORE_RESIDUAL, NORM_BEFORE_FC, FC_NORM, NORM_OUTPUT, OWN_EMBEDDING)
# Of NVIDIA's eagle_config: what every EAGLE-3 head does.
ALWAYS = ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm")
ONLY = {
    **dict.fromkeys(ALWAYS, (True,)),
    **dict.fromkeys(FLAGS, (True, False)),
    "parallel_draft_step": (0, 1),
}
AUX = "eagle_aux_hidden_state_layer_ids"  # the layers that are fused
# Settled by the names and shapes of the tensors.
SETTLED = (
    "qkv_bias",
    "bias",
    "next_layer_regular",
    "parallel_draft_heads_num_layers",
    "num_aux_hidden_states",
    AUX,
    *MASK,
)


class ThirdHead(TreeHead):
    """EAGLE-3: fused features enter once; norms before attention and before an output head of its
    own.

    layout: its ``speculators_model_type``, which may be left out. also: settings that say what
    every such head does.
    """

    format = HeadFormat("EAGLE-3")
    ignored = (EMBEDDING, "d2t", "t2d")
    layout = "eagle3"
    also: tuple[str, ...] = ()

    def __init__(
        self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds
    ) -> None:
        self.ends, eps = ends, float(config.rms_norm_eps)
        self._fc, self._head = Product(state["fc.weight"]), Product(state["lm_head.weight"])
        self._norm = Norm(state["norm.weight"], eps)
        self._before = [
            Norm(state[f"midlayer.{name}.weight"], eps)
            for name in ("input_layernorm", "hidden_norm")
        ]
        self._flags = self.flags(file)
        fused = _fused_norms(self._flags, state["fc.weight"].shape[1] // ends.width)
        self._fused = [Norm(state[name], eps) for name in fused]
        self._embedding = state.get("embed_tokens.weight")
        self.layers = DraftLayers(state, _prefixes(config), config, biased(file))
        if len(state["lm_head.weight"]) != ends.vocab:
            self.known = target_ids(state["d2t"], ends.vocab, file.where)

    @classmethod
    def flags(cls, file: HeadFile) -> frozenset[str]:
        """The flags that a configuration sets. Raises InputError for unknown settings, and for
        another kind of head.
        """
        only = {**ONLY, "speculators_model_type": (cls.layout,)}
        named = require_known(file, (*SETTLED, *cls.also), only, EAGLE_CONFIG)
        if {NORM_BEFORE_FC, FC_NORM} <= named:
            raise InputError(
                f"{file.where}: config.json sets {NORM_BEFORE_FC} and {FC_NORM}; expected one of"
                " them"
            )
        return named & set(FLAGS)

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """Those that the configuration names, else 2, L/2 and L - 3.

        ``eagle_aux_hidden_state_layer_ids`` counts hidden states (i = input of block i); within
        ``eagle_config`` it counts blocks, whose output is meant. A random head in a target too
        small for that takes the first, middle and last one.
        """
        given = layer_numbers(file, AUX, file.config.get(AUX))
        inner = layer_numbers(file, f"{EAGLE_CONFIG}.{AUX}", file.nested(EAGLE_CONFIG).get(AUX))
        chosen = given or (
            [block + 1 for block in inner] if inner else (2, layers // 2, layers - 3)
        )
        if file.random and not 2 < layers // 2 < layers - 3:
            chosen = (0, layers // 2, layers)
        named = (
            "its configuration names"
            if given or inner
            else "without eagle_aux_hidden_state_layer_ids it takes"
        )
        if len(set(chosen)) < len(chosen) or not all(0 <= layer <= layers for layer in chosen):
            raise InputError(
                f"{file.where}: {named} the hidden states {list(chosen)}; expected different ones"
                f" of 0 to {layers} in a target of {layers} layers"
            )
        return tuple(chosen)

    @classmethod
    def shapes(
        cls, file: HeadFile, config: LlamaConfig, target: Any, read: int
    ) -> dict[str, TensorShape]:
        """``fc`` fuses the layers; a smaller vocabulary has ``d2t``; a head of another width has
        its own embedding.
        """
        hidden, width, flags = config.hidden_size, int(target.hidden_size), cls.flags(file)
        drafted = drafted_tokens(file, config.vocab_size)
        shapes: dict[str, TensorShape] = {"fc.weight": (hidden, read * width)}
        for place, prefix in enumerate(_prefixes(config)):
            shapes |= layer_shapes(
                config, prefix, hidden if place else 2 * hidden, biased(file), head_norms(file)
            )
            shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes |= dict.fromkeys(("midlayer.hidden_norm.weight", "norm.weight"), (hidden,))
        shapes["lm_head.weight"] = (drafted, hidden)
        norms = _fused_norms(flags, read)
        shapes |= dict.fromkeys(norms, (read * width // max(1, len(norms)),))
        if drafted != int(target.vocab_size):
            shapes["d2t"] = (drafted,)
        if hidden != width or OWN_EMBEDDING in flags:
            shapes["embed_tokens.weight"] = (config.vocab_size, hidden)
        return shapes

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """The speculators library calls the layer ``layers.0``, others put ``model.`` in front."""
        plain = {name.removeprefix("model."): value for name, value in names.items()}
        return {re.sub(r"^layers\.0\.", "midlayer.", name): value for name, value in plain.items()}

    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """Fused by ``fc``, normed before where the flags say so."""
        if FC_NORM in self._flags:
            features = [norm(each) for norm, each in zip(self._fused, features, strict=True)]
        fused = torch.cat(list(features), dim=-1)
        return self._fc(self._fused[0](fused) if NORM_BEFORE_FC in self._flags else fused)

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Normed embedding and normed state, concatenated; the residual is the state."""
        embedded = (
            self.ends.embed(ids)
            if self._embedding is None
            else functional.embedding(ids, self._embedding)
        )
        normed = self._before[1](hidden)
        both = torch.cat([self._before[0](embedded), normed], dim=-1)
        return both, normed if NORM_BEFORE_RESIDUAL in self._flags else hidden

    def carry(self, hidden: Tensor) -> Tensor:
        return self._norm(hidden) if NORM_OUTPUT in self._flags else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Its own norm, if that is still to come, and output head."""
        return self._head(hidden if NORM_OUTPUT in self._flags else self._norm(hidden))


def _prefixes(config: LlamaConfig) -> list[str]:
    return ["midlayer.", *(f"layers.{place}." for place in range(1, config.num_hidden_layers))]


def _fused_norms(flags: frozenset[str], read: int) -> tuple[str, ...]:
    """Names of the norms before ``fc``; read: layers that are fused."""
    if FC_NORM in flags:
        return tuple(f"fc_norm.{place}.weight" for place in range(read))
    return ("input_norm.weight",) if NORM_BEFORE_FC in flags else ()


_FIX = (
    "expected a list of different ids of the target, as JSON, or as a torch file such as"
    " freq_32768.pt"
)


def read_frequent(named: str, vocab: int, least: int) -> list[int]:
    """The ids of a list, in order of their number. vocab: [tokens] of the target. least: [tokens]
    that a draft needs.

    Raises InputError.
    """
    path, where = Path(named), f"vocabulary={named}"
    raw = read_file(path, "vocabulary=", _FIX)
    if path.suffix == ".json":
        found: Any = parse_json(raw, where, _FIX)
    else:
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # the library's reader raises many kinds
            raise InputError(
                f"{where}: not a torch file of numbers ({type(error).__name__}); {_FIX}"
            ) from error
    ids = found.tolist() if isinstance(found, torch.Tensor) else found
    if not isinstance(ids, list) or not all(
        type(token) is int and 0 <= token < vocab for token in ids
    ):
        raise InputError(f"{where}: contains something that is not an id below {vocab}; {_FIX}")
    if len(set(ids)) < len(ids) or len(ids) < least:
        raise InputError(
            f"{where}: holds {len(set(ids))} different ids of {len(ids)}; {_FIX}, at least {least}"
            " of them"
        )
    return sorted(ids)


class EagleRun(HeadRun):
    """One request's place: the tree grows below what was read, level by level."""

    def __init__(self, head: Any, memory: LayerMemory) -> None:
        super().__init__(head, memory)
        self._blind = head.layers.like.new_full((1, memory.nodes), -torch.inf)
        self._hidden, self._root, self._seen = self._blind, self._blind, self._blind
        self._fed = self._depth = 0

    def root(self) -> Forwards:
        if self.queue:
            features, following = self.taken()
            inputs, residual = self.head.inputs(following, self.head.enter(features))
            self._root = self.head.carry(
                (yield from self.head.layers.read(inputs, residual, self.memory))
            )
        self._hidden, self._seen = self._root, self._blind
        self._fed = self._depth = 0
        return (yield RowsCall(self.head.output, self._root))

    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        count = len(ids)
        inputs, residual = self.head.inputs(ids, self._hidden.index_select(0, rows))
        self._seen = self._seen.index_select(0, rows)
        self._seen[:, self._fed : self._fed + count].diagonal().zero_()
        depths = slice(self._depth, self._depth + 1)
        written = yield self.head.layers.grow(
            inputs, residual, self.memory, self._fed, depths, self._seen
        )
        self._depth += 1
        self._hidden = self.head.carry(written)
        self._fed += count
        return (yield RowsCall(self.head.output, self._hidden))


def static_memory(layers: DraftLayers, shape: TreeShape) -> LayerMemory:
    """A request's keys and values, with slots for the nodes of a fixed tree that have children."""
    inner = [len(level.inner) for level in shape.levels]
    return layers.new_memory(sum(inner), max(inner))


@dataclass(eq=False)
class Eagle(TreeMethod):
    """EAGLE-1, a fixed tree, and EAGLE-2, a dynamic one; conf/method/eagle.yaml describes the
    parameters.
    """

    kind: ClassVar[type[TreeHead]] = FirstHead

    tree: Literal["dynamic", "static"] = "dynamic"
    top_k: int = count(10)
    depth: int = count(5, low=0)
    total_tokens: int = count(60, low=2)
    sampling: Literal["top", "drawn"] = "top"
    vocabulary: str | None = None  # type: ignore[assignment]  # a file's path; of a bound method the ids, as in Method

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tree == "dynamic":
            # each has a place in the head's memory
            require_count("top_k * depth", self.top_k * self.depth, low=0)
            if self.draws:
                raise InputError(
                    "sampling=drawn: a dynamic tree takes the best tokens; expected top, or"
                    " tree=static"
                )
            self.grown, self.widest = (self.top_k, self.depth, self.total_tokens - 1), self.top_k
        self._frequent, self.vocabulary = self.vocabulary, None
        self._ids: list[int] = []
        if self._frequent is not None and not issubclass(self.kind, FirstHead):
            raise InputError(
                f"vocabulary={self._frequent}: this head has an output matrix of its own; expected"
                " null"
            )

    def usual_counts(self) -> Sequence[Sequence[int]]:
        return EAGLE_TREE

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*super().inputs, *([self._frequent] if self._frequent else []))

    def check(self, model: ModelCard) -> None:
        """As ``TreeMethod``; the ids must be the target's, and enough for the children of a
        node.
        """
        super().check(model)
        if self._frequent:
            self._ids = read_frequent(
                self._frequent, model.config.get_text_config().vocab_size, self.widest
            )

    def load_head(self, file: HeadFile, ends: TargetEnds) -> TreeHead:
        """Loads the head, confined to these ids. Raises InputError."""
        head = super().load_head(file, ends)
        if self._ids:
            assert isinstance(head, FirstHead)
            head.confine(self._ids)
        return head

    def new_run(self, head: Any, memory: LayerMemory) -> HeadRun:
        return EagleRun(head, memory)

    def new_memory(self) -> LayerMemory:
        if self.grown:
            top_k, depth, _ = self.grown
            return LayerMemory(self.bound.layers, depth * top_k, top_k)
        return static_memory(self.bound.layers, self.shape)


class Eagle3(Eagle):
    """EAGLE-3, with the parameters of ``Eagle``: fused features, an output head of its own."""

    kind = ThirdHead


STATE = "mask_hidden"


class ParallelHead(ThirdHead):
    """EAGLE-3's head with the learned state, and an embedding of its own unless the configuration
    denies it.
    """

    format = HeadFormat("P-EAGLE")
    layout = "peagle"
    also = ("parallel_drafting",)

    def __init__(
        self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds
    ) -> None:
        super().__init__(state, file, config, ends)
        layers = state[STATE].view(1, -1).split(ends.width, dim=-1)
        self._masked = self.enter(layers)
        self._mask = torch.tensor([mask_token(file, ends.vocab)], device=ends.device)

    @classmethod
    def flags(cls, file: HeadFile) -> frozenset[str]:
        """Has an embedding of its own unless the configuration says otherwise, as in the
        speculators library.
        """
        flags = super().flags(file)
        return flags if file.config.get(OWN_EMBEDDING) is not None else flags | {OWN_EMBEDDING}

    @classmethod
    def shapes(
        cls, file: HeadFile, config: LlamaConfig, target: Any, read: int
    ) -> dict[str, TensorShape]:
        """EAGLE-3's, and the learned state of all layers that are read."""
        mask_token(file, config.vocab_size)
        return {
            **super().shapes(file, config, target, read),
            STATE: (read * int(target.hidden_size),),
        }

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """As EAGLE-3's; some files have the learned state as (1, 3D), others as (1, 1, 3D)."""
        named = ThirdHead.rename(names)
        if isinstance(stored := named.get(STATE), Tensor):
            named[STATE] = stored.flatten()
        elif stored and set(stored[:-1]) <= {1}:
            named[STATE] = stored[-1:]
        return named

    def masked(self, rows: int) -> tuple[Tensor, Tensor]:
        """``inputs`` of so many mask tokens."""
        return self.inputs(self._mask.expand(rows), self._masked.expand(rows, -1))


class _Run(LevelsRun):
    def levels(self) -> Forwards:
        features, following = self.taken()
        read = self.head.inputs(following, self.head.enter(features))
        parts = zip(read, self.head.masked(self.count - 1), strict=True)
        inputs, residual = (torch.cat(pair) for pair in parts)
        written = yield from self.head.layers.read(
            inputs, residual, self.memory, self.count, self.count - 1
        )
        return (yield RowsCall(self.head.output, self.head.carry(written)))


class PEagle(LevelsMethod):
    """P-EAGLE, with the parameters of ``LevelsMethod``."""

    kind, runs = ParallelHead, _Run

    def new_memory(self) -> LayerMemory:
        """Committed tokens only: mask rows stand after them and are written over."""
        return LayerMemory(self.bound.layers, 0, 1)
