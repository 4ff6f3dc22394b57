"""What a method with a tree needs of a head that continues or reads the target's features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from methods.parts.heads.draft_layer import DraftLayers
from methods.parts.heads.forwards import RowFunction
from methods.parts.heads.head_file import HeadFile, HeadFormat, TensorShape
from methods.parts.heads.head_method import TargetEnds
from specbench.types import InputError

EMBEDDING = r"embed_tokens\.weight"  # the target's is used: it is the same, and some exported heads hold noise there


class DraftVocabulary:
    """What a head drafts. known: (Vd,) the target's ids of its vocabulary, None = all."""

    ends: TargetEnds
    known: Tensor | None = None

    @property
    def vocabulary(self) -> frozenset[int] | None:
        """The target's ids that it can draft; None = all."""
        return None if self.known is None else frozenset(self.known.tolist())

    def ids(self, choice: Tensor) -> Tensor:
        """The head's ids -> the target's."""
        return choice if self.known is None else self.known[choice]

    def spread(self, logits: Tensor) -> Tensor:
        """(rows, Vd) -> (rows, V) over the target's vocabulary, -inf where the head has no token."""
        if self.known is None:
            return logits
        return logits.new_full((len(logits), self.ends.vocab), -torch.inf).index_copy_(1, self.known, logits)


class TreeHead(DraftVocabulary, ABC):
    """What a method and a request need of a head.

    format: of its files. ignored: patterns of tensors that are not used. layers: its decoder layers. eps: of its norms.
    """

    format: HeadFormat
    ignored: tuple[str, ...] = (EMBEDDING,)
    layers: DraftLayers
    eps: float

    @abstractmethod
    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        """state: with the names of ``shapes``, placed by ``ends``. Raises InputError."""

    @staticmethod
    @abstractmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """The target's hidden states that the head continues; layers: of the target. Raises InputError."""

    @classmethod
    @abstractmethod
    def shapes(cls, file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """Names and shapes of the checkpoint. config: of the head's layer. target: its configuration. read: layers.

        Raises InputError where the widths differ.
        """

    @staticmethod
    def own(file: HeadFile) -> tuple[str, ...]:
        """Names of its embedding and output head of the target's size, used where the checkpoint has them."""
        return ()

    @staticmethod
    def narrow(file: HeadFile, layers: int) -> HeadFile:
        """The head's tensors alone, of a file that holds others too; layers: of the target. Raises InputError."""
        return file

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint's names as ``shapes`` has them, of its shapes or tensors."""
        return names

    def normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """(rows, D) behind a norm of this weight."""
        return functional.rms_norm(hidden, weight.shape, weight, self.eps)

    @abstractmethod
    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """Features of committed tokens, (T, D) a layer, as the head continues them: (T, H)."""

    @abstractmethod
    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads of (T,) tokens and the states before them (T, H), and the residual (T, H)."""

    def carry(self, hidden: Tensor) -> Tensor:
        """What the layer wrote (rows, H) -> the states that the next tokens and ``logits`` continue (rows, H)."""
        return hidden

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, H) of ``carry`` -> (rows, Vd) over the head's vocabulary."""

    @cached_property
    def output(self) -> RowFunction:
        """``logits`` of several requests at once."""
        return RowFunction(self.logits)


def require_width(file: HeadFile, config: LlamaConfig, target: Any) -> int:
    """The width of a head's states, which must be the target's. target: its configuration. Raises InputError."""
    hidden = int(config.hidden_size)
    if hidden != target.hidden_size:
        raise InputError(
            f"{file.where}: made for a hidden size of {hidden}; expected the target's {target.hidden_size}"
        )
    return hidden


def target_ids(offsets: Tensor, vocab: int, where: str) -> Tensor:
    """(Vd,) target ids from ``d2t``, which holds offsets: id = place + offset. Raises InputError."""
    ids = torch.arange(len(offsets), device=offsets.device) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab or len(ids.unique()) < len(ids):
        raise InputError(
            f"{where}: d2t leads to ids from {int(ids.min())} to {int(ids.max())}, {len(ids.unique())} different ones"
            f" of {len(ids)}; expected offsets to {len(ids)} different ids below {vocab}"
        )
    return ids
