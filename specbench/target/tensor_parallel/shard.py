"""Which part of each weight a rank holds: heads and inner columns are split, everything else is whole (Megatron-LM).

q, k, v, gate and up are split by rows of the weight, out and down by columns, so that a rank computes its heads and its
share of the inner layer alone, and one sum over the ranks closes each half of a layer. Embeddings and norms are on
every rank; the output head is whole on rank 0 alone, which is the only one to choose tokens and the one that lends it
to drafting heads. Shoeybi et al. 2019.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

Range = tuple[int, int]

BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "qkv_proj", "gate_up_proj")
BY_COLUMNS = ("o_proj", "down_proj")
HEAD = "lm_head"


@dataclass(frozen=True, slots=True)
class Cut:
    """ranges: what is kept along ``dim``, in this order; none at all = the parameter is left out."""

    dim: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class ShardShape:
    """What of a configuration decides how its weights are cut. size: of a head."""

    query_heads: int
    key_heads: int
    size: int
    inner: int

    @classmethod
    def of(cls, config: Any) -> ShardShape:
        """Of a supported family (``compact.unsupported``)."""
        text = config.get_text_config()
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        return cls(text.num_attention_heads, text.num_key_value_heads, size, text.intermediate_size)

    def obstacle(self, ranks: int) -> str | None:
        """Why ``ranks`` cannot share the weights; None = they can."""
        counts = (
            (self.query_heads, "query heads"),
            (self.key_heads, "key-value heads"),
            (self.inner, "inner columns (intermediate_size)"),
        )
        for count, what in counts:
            if count % ranks:
                return f"its {count} {what} do not divide by {ranks}"
        return None


def cut_of(name: str, size: tuple[int, ...], shape: ShardShape, rank: int, ranks: int) -> Cut | None:
    """What rank ``rank`` keeps of parameter ``name`` of ``size``; None = all of it."""
    *_, module, kind = name.split(".")
    if module in BY_ROWS:
        return Cut(0, _portions(_sections(module, size[0], shape), rank, ranks))
    if module in BY_COLUMNS and kind == "weight":
        return Cut(1, _portions((size[1],), rank, ranks))
    if module in BY_COLUMNS and rank:
        return Cut(0, ())  # a bias behind a sum is added once
    if module == HEAD and rank:
        return Cut(0, ((0, 1),))  # its logits are never read
    return None


def _sections(module: str, rows: int, shape: ShardShape) -> tuple[int, ...]:
    """Rows of the weights that are stored joined (Phi-3), each of which is split."""
    if module == "qkv_proj":
        return shape.query_heads * shape.size, shape.key_heads * shape.size, shape.key_heads * shape.size
    return (rows // 2, rows // 2) if module == "gate_up_proj" else (rows,)


def _portions(sections: tuple[int, ...], rank: int, ranks: int) -> tuple[Range, ...]:
    found: list[Range] = []
    start = 0
    for count in sections:
        part = count // ranks
        found.append((start + rank * part, start + (rank + 1) * part))
        start += count
    return tuple(found)


def share_of(config: Any, ranks: int) -> Any:
    """The configuration of one rank's share: a model of fewer heads, and of the same width."""
    found = copy.deepcopy(config)
    text, shape = found.get_text_config(), ShardShape.of(config)
    text.head_dim = shape.size
    text.num_attention_heads //= ranks
    text.num_key_value_heads //= ranks
    return found
