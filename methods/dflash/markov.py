"""What DSpark adds to a block (2026, arXiv 2607.05147): a bias by the token before, and the chance to be accepted.

Names, shapes and formulas are those of the speculators library and of SGLang, which both load DeepSpec's release.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from methods.parts.heads.head_file import TensorShape

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


def confidence_shapes(width: int) -> dict[str, TensorShape]:
    """Names and shapes of the confidence head. width: of what it reads."""
    return {f"{SURE}.weight": (1, width), f"{SURE}.bias": (1,)}


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
