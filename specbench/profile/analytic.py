"""What physics allows: bytes and operations of a decoder's forward, and the range of T(q)/T(1) they leave.

A forward that overlaps reading and computing takes max(bytes / bandwidth, operations / rate); one that does not, the
sum. Real kernels lie between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specbench.profile.surface import Floats

_LAYER_STATES = 4  # results of hidden size in a layer: two norms, queries, attention; residuals are added in passing
_MLP_STATES = 3  # gate, up and their product


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder by its sizes. streamed: parameters that every forward reads: all but the embedding, head included.

    hidden D, inner: of the MLP, vocab V, layers L, heads H, kv_heads K, head_dim. value_bytes: of one weight.
    """

    streamed: int
    hidden: int
    inner: int
    vocab: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    value_bytes: int

    def bytes_read(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """(S,) weights once; keys and values of the context and of what is fed, the latter written too; each layer's
        results and the logits, written once and read once.
        """
        rows, past = np.asarray(fed, dtype=np.float64), np.asarray(context, dtype=np.float64)
        pair = 2 * self.layers * self.kv_heads * self.head_dim
        states = 2 * self.layers * (_LAYER_STATES * self.hidden + _MLP_STATES * self.inner) + 2 * self.vocab
        return self.value_bytes * (self.streamed + pair * (past + 2 * rows) + states * rows)

    def operations(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """(S,) two a weight and token, four a pair of query and key and dimension; a query sees half of what is fed."""
        rows, past = np.asarray(fed, dtype=np.float64), np.asarray(context, dtype=np.float64)
        pairs = rows * (past + rows / 2)
        return 2.0 * self.streamed * rows + 4.0 * pairs * self.layers * self.heads * self.head_dim

    def slowdown(
        self, fed: Sequence[float] | Floats, context: float, gb_s: float, gflop_s: float
    ) -> tuple[Floats, Floats]:
        """(low, high) of T(fed) / T(1): with full overlap and with none, the smaller of the two first.

        While reading bounds the forward, overlap is the low end; deep in the compute-bound region it is the high one.
        """
        rows = np.concatenate([[1.0], np.asarray(fed, dtype=np.float64)])
        reading = self.bytes_read(rows, context) / (gb_s * 1e9)
        computing = self.operations(rows, context) / (gflop_s * 1e9)
        ratios = [times[1:] / times[0] for times in (np.maximum(reading, computing), reading + computing)]
        return np.minimum(*ratios), np.maximum(*ratios)
