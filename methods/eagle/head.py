"""EAGLE's heads: one decoder layer over pairs of a token's feature and the next token's embedding, then over its own.

EAGLE-1 and -2 (Li et al. 2024) continue the target's last feature and borrow its output head; EAGLE-3 (Li et al. 2025)
fuses three of the target's layers at the committed tokens and has an output head of its own, often over part of the
vocabulary. Names and shapes are the published checkpoints'.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from methods.parts.heads.draft_layer import DraftLayer, layer_shapes
from methods.parts.heads.head_file import HeadFile, HeadFormat, TensorShape
from methods.parts.heads.head_method import TargetEnds
from specbench.types import InputError

EMBEDDING = r"embed_tokens\.weight"  # the target's is used: it is the same, and some exported heads hold noise there


class EagleHead(ABC):
    """What a method and a request need of a head.

    format: of its files. ignored: patterns of tensors that are not used. layer: its decoder layer.
    """

    format: HeadFormat
    ignored: tuple[str, ...] = (EMBEDDING,)
    layer: DraftLayer

    @abstractmethod
    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        """state: with the names of ``shapes``, placed by ``ends``. Raises InputError."""

    @staticmethod
    @abstractmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """The target's hidden states that the head continues; layers: of the target. Raises InputError."""

    @staticmethod
    @abstractmethod
    def shapes(file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """Names and shapes of the checkpoint. config: of the head's layer. target: its configuration. read: layers.

        Raises InputError where the widths differ.
        """

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint's names as ``shapes`` has them."""
        return names

    @abstractmethod
    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """Features of committed tokens, (T, D) a layer, as the head continues them: (T, H)."""

    @abstractmethod
    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads of (T,) tokens and the states before them (T, H), and the residual (T, H)."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, H) -> (rows, Vd) over the head's vocabulary."""

    def ids(self, choice: Tensor) -> Tensor:
        """The head's ids -> the target's."""
        return choice

    def spread(self, logits: Tensor) -> Tensor:
        """(rows, Vd) -> (rows, V) over the target's vocabulary, -inf where the head has no token."""
        return logits


def layer_config(file: HeadFile, target: Any) -> LlamaConfig:
    """The head's own layer; a random one has the target's shape. Raises InputError."""
    raw = file.config.get("transformer_layer_config", file.config)  # speculators nest it
    if file.random:
        names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                 "vocab_size", "rms_norm_eps", "max_position_embeddings")  # fmt: skip
        raw = {name: getattr(target, name) for name in names if getattr(target, name, None) is not None}
    for name in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        if not isinstance(raw.get(name), int):
            raise InputError(f"{file.where}: config.json has no {name}; expected a {file.format.kind} head's")
    if raw["vocab_size"] != target.vocab_size:
        raise InputError(
            f"{file.where}: made for a vocabulary of {raw['vocab_size']}; expected the target's {target.vocab_size}"
        )
    try:
        return LlamaConfig.from_dict(dict(raw))
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{file.where}: config.json describes no Llama layer ({error})") from error


def _biased(file: HeadFile) -> bool:
    raw = file.config.get("transformer_layer_config", file.config)
    return bool(raw.get("qkv_bias") or raw.get("attention_bias"))


class FirstHead(EagleHead):
    """EAGLE-1 and -2: the feature is the last state after the final norm; no norm before attention or head."""

    format = HeadFormat("EAGLE", ("model.safetensors",), ("pytorch_model.bin",))

    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        self._ends = ends
        self._fc, self._bias = state["fc.weight"], state.get("fc.bias")
        self.layer = DraftLayer(state, "layers.0.", config, _biased(file))

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """The last one."""
        return (layers,)

    @staticmethod
    def shapes(file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """``fc`` has a bias unless the configuration holds ``"bias": false``."""
        hidden = config.hidden_size
        if hidden != target.hidden_size:
            raise InputError(
                f"{file.where}: made for a hidden size of {hidden}; expected the target's {target.hidden_size}"
            )
        shapes: dict[str, TensorShape] = {"fc.weight": (hidden, 2 * hidden)}
        if file.config.get("bias", True):
            shapes["fc.bias"] = (hidden,)
        return {**shapes, **layer_shapes(config, "layers.0.", hidden, _biased(file))}

    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """The feature itself."""
        return features[0]

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Both from the mixture of embedding and state."""
        mixed = functional.linear(torch.cat([self._ends.embed(ids), hidden], dim=-1), self._fc, self._bias)
        return mixed, mixed

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's output head."""
        return self._ends.logits(hidden)


class ThirdHead(EagleHead):
    """EAGLE-3: fused features enter once; norms before attention and before an output head of its own."""

    format = HeadFormat("EAGLE-3", ("model.safetensors",), ("pytorch_model.bin",))
    ignored = (EMBEDDING, "d2t", "t2d")

    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        self._ends, self._eps = ends, float(config.rms_norm_eps)
        self._fc, self._head, self._norm = state["fc.weight"], state["lm_head.weight"], state["norm.weight"]
        self._before = state["midlayer.input_layernorm.weight"], state["midlayer.hidden_norm.weight"]
        self._normed_residual = bool(file.config.get("norm_before_residual", False))
        own = len(self._fc) != ends.width
        self._embedding = state["embed_tokens.weight"] if own else None
        self.layer = DraftLayer(state, "midlayer.", config, _biased(file))
        self._ids: Tensor | None = None
        if len(self._head) != ends.vocab:
            self._ids = target_ids(state["d2t"], ends.vocab, file.where)

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """Those that the configuration names, else 2, L/2 and L - 3.

        ``eagle_aux_hidden_state_layer_ids`` counts hidden states (i = input of block i); within ``eagle_config`` it
        counts blocks, whose output is meant. A random head in a target too small for that takes the first, middle and
        last one.
        """
        given, nested = file.config.get("eagle_aux_hidden_state_layer_ids"), file.config.get("eagle_config") or {}
        inner = nested.get("eagle_aux_hidden_state_layer_ids")
        chosen = given or ([block + 1 for block in inner] if inner else (2, layers // 2, layers - 3))
        if file.random and not 2 < layers // 2 < layers - 3:
            chosen = (0, layers // 2, layers)
        named = "its configuration names" if given or inner else "without eagle_aux_hidden_state_layer_ids it takes"
        if len(set(chosen)) < len(chosen) or not all(0 <= layer <= layers for layer in chosen):
            raise InputError(
                f"{file.where}: {named} the hidden states {list(chosen)}; expected different ones of 0 to {layers}"
                f" in a target of {layers} layers"
            )
        return tuple(int(layer) for layer in chosen)

    @staticmethod
    def shapes(file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """``fc`` fuses the layers; a smaller vocabulary has ``d2t``; a head of another width has its own embedding."""
        hidden, width = config.hidden_size, int(target.hidden_size)
        drafted = int(file.config.get("draft_vocab_size") or config.vocab_size)
        shapes: dict[str, TensorShape] = {"fc.weight": (hidden, read * width)}
        shapes |= layer_shapes(config, "midlayer.", 2 * hidden, _biased(file))
        shapes |= {f"midlayer.{name}.weight": (hidden,) for name in ("hidden_norm", "input_layernorm")}
        shapes |= {"norm.weight": (hidden,), "lm_head.weight": (drafted, hidden)}
        if drafted != int(target.vocab_size):
            shapes["d2t"] = (drafted,)
        if hidden != width:
            shapes["embed_tokens.weight"] = (config.vocab_size, hidden)
        return shapes

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """The speculators library calls the layer ``layers.0``."""
        old = "layers.0."
        return {f"midlayer.{name[len(old) :]}" if name.startswith(old) else name: held for name, held in names.items()}

    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """Fused by ``fc``; what the head wrote itself is continued as it is."""
        return functional.linear(torch.cat(list(features), dim=-1), self._fc)

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Normed embedding beside normed state; the residual is the state."""
        embedded = self._ends.embed(ids) if self._embedding is None else functional.embedding(ids, self._embedding)
        shape = embedded.shape[-1:]
        normed = functional.rms_norm(hidden, shape, self._before[1], self._eps)
        both = torch.cat([functional.rms_norm(embedded, shape, self._before[0], self._eps), normed], dim=-1)
        return both, normed if self._normed_residual else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Its own norm and output head."""
        return functional.linear(functional.rms_norm(hidden, hidden.shape[-1:], self._norm, self._eps), self._head)

    def ids(self, choice: Tensor) -> Tensor:
        """Through the map of the smaller vocabulary."""
        return choice if self._ids is None else self._ids[choice]

    def spread(self, logits: Tensor) -> Tensor:
        """Tokens outside the smaller vocabulary are impossible."""
        if self._ids is None:
            return logits
        return logits.new_full((len(logits), self._ends.vocab), -torch.inf).index_copy_(1, self._ids, logits)


def target_ids(offsets: Tensor, vocab: int, where: str) -> Tensor:
    """(Vd,) target ids from ``d2t``, which holds offsets: id = place + offset. Raises InputError."""
    ids = torch.arange(len(offsets), device=offsets.device) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab or len(ids.unique()) < len(ids):
        raise InputError(
            f"{where}: d2t leads to ids from {int(ids.min())} to {int(ids.max())}, {len(ids.unique())} different ones"
            f" of {len(ids)}; expected offsets to {len(ids)} different ids below {vocab}"
        )
    return ids
