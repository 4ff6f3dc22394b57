"""The part of the fast engine that its batches use too: the model's compact forward, its options
and its prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from specbench.models.engine import Engine
from specbench.models.fast.attention import OURS, SDPA, FastOptions, find_attention, find_small_ops
from specbench.models.fast.compact import ForwardInput, list_prompt_inputs
from specbench.models.fast.graphs import EXACT, GRAPHED, Buckets
from specbench.models.fast.host.forward import build_forward

STANDARD = FastOptions()


class FastCore(Engine):
    """One loaded model of the Llama family, and how its forwards are computed.

    prepared: what is recorded: (hidden states, greedy). places: ``RecordedPlaces`` of the last
    batch that ended.
    """

    def __init__(
        self,
        model: Any,
        context: int,
        eos: frozenset[int],
        max_nodes: int,
        buckets: Buckets | None = None,
        options: FastOptions = STANDARD,
    ) -> None:
        """model: the library's, of a supported family (``compact.explain_unsupported``), on one
        device, in eval mode.

        context: [tokens]. max_nodes: the largest draft. buckets: default by device. Raises
        InputError of the options.
        """
        self.context, self.max_nodes, self.eos = context, max_nodes, eos
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.dtype: torch.dtype = model.get_input_embeddings().weight.dtype
        buckets = buckets or (GRAPHED if self.device.type == "cuda" else EXACT)
        attention = self.attention = options.attention
        compiled = options.compiled and attention == SDPA and buckets == EXACT
        self.buckets = replace(buckets, whole=buckets.whole or attention != SDPA)
        self._widest = self.buckets.width(max_nodes + 1)  # grows with the batches of rows that come
        with torch.no_grad():
            table, small = (
                context + self._widest,
                find_small_ops(attention, self.device, self.dtype),
            )
            built = build_forward(
                model, table, context, pack=options.pack, compiled=compiled, small=small
            )
        self.compact, self.compiled, self.uncompiled = built
        self.places: Any = None
        self.prepared: dict[tuple[tuple[int, ...], bool], None] = {}
        self.records_batches = attention in OURS
        self.attend = find_attention(attention, self.device, self.dtype, self.compact.size)
        windows = self.compact.windows.items()  # one that no position leaves is none
        self.windows = {
            kind: window if window and window < context else None for kind, window in windows
        }

    @override
    def describe_forward(self) -> str:
        reason = f", since {self.uncompiled}" if self.uncompiled else ""
        ours = f" and attention={self.attention}" if self.attention != SDPA else ""
        return "compiled code" if self.compiled else f"operations of torch{ours}{reason}"

    def list_prompt_inputs(
        self, ids: Tensor, start: int = 0, past: int = 0
    ) -> Iterator[ForwardInput]:
        """The forwards of a prompt's tokens (n,) after its first ``past``, in slots from ``start``
        on.
        """
        return list_prompt_inputs(ids, self.windows, self.dtype, start, self.context, past)
