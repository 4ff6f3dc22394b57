"""Runs a draft language model on tokens behind those in its cache.

Two ways of running one, chosen by the model: the compact forward for the Llama family, the library's for all others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from specbench.target.eager.cache import SlotCache
from specbench.target.family import find_windows
from specbench.target.fast.compact import CompactModel, ForwardInput, explain_unfit
from specbench.target.fast.linear import can_pack
from specbench.target.fast.static_kv import StaticKV
from specbench.target.transfer import upload
from specbench.target.tree import build_causal_mask

Mask = Tensor | Mapping[str, Tensor] | None


class HeldCache(Protocol):
    """Keys and values of a context, and behind it of a tree; the first ``length`` slots are held."""

    length: int
    capacity: int

    def truncate(self, length: int) -> None:
        """Forget every token from ``length`` on."""

    def keep(self, start: int, slots: Sequence[int]) -> None:
        """Of the tokens from ``start`` on keep those in ``slots`` (absolute, in path order), moved together."""

    def grow(self, slots: int) -> None:
        """Make room for ``slots``; what is held stays."""


class Runner(ABC):
    """One loaded model. device, dtype: of its weights. rows: of its embedding. windows: see ``family.find_windows``."""

    def __init__(self, model: Any) -> None:
        embedding = model.get_input_embeddings().weight
        self.device: torch.device = embedding.device
        self.dtype: torch.dtype = embedding.dtype
        self.rows: int = embedding.shape[0]
        self.windows = find_windows(model.config)

    @abstractmethod
    def new_cache(self) -> Any:
        """An empty ``HeldCache``."""

    @abstractmethod
    def run(self, cache: Any, ids: Tensor, places: Sequence[int], mask: Mask, wanted: int) -> Tensor:
        """Read (m,) ids at positions ``places`` behind what the cache holds -> (wanted, V) logits of the last rows.

        mask: additive (1, 1, m, held + m), or one by kind of layer; None = causal over everything. The cache has room.
        """


class LibraryRunner(Runner):
    """The library's own forward."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._model = model

    def new_cache(self) -> SlotCache:
        """See ``Runner.new_cache``."""
        return SlotCache.for_model(self._model)

    def run(self, cache: SlotCache, ids: Tensor, places: Sequence[int], mask: Mask, wanted: int) -> Tensor:
        """See ``Runner.run``."""
        output = self._model(
            input_ids=ids[None],
            attention_mask=mask,
            position_ids=upload([places], self.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=wanted,
        )
        return output.logits[0]


class HeldKV(StaticKV):
    """A ``StaticKV`` with the number of held slots."""

    length = 0

    def truncate(self, length: int) -> None:
        """See ``HeldCache.truncate``."""
        self.length = length

    def keep(self, start: int, slots: Sequence[int]) -> None:
        """See ``HeldCache.keep``."""
        if any(slot != start + place for place, slot in enumerate(slots)):
            source = upload(slots, self._all.device)
            self.move(source, torch.arange(start, start + len(slots), device=self._all.device))
        self.length = start + len(slots)

    def grow(self, slots: int) -> None:
        """See ``HeldCache.grow``."""
        held, self.length = self.length, 0
        self.reserve(slots, held)
        self.length = held


class CompactRunner(Runner):
    """The compact forward, uncaptured."""

    def __init__(self, model: Any, context: int) -> None:
        super().__init__(model)
        with torch.no_grad():
            self._model = CompactModel(model, context, context, can_pack(self.dtype, self.device))
        self._places = torch.arange(context, device=self.device)

    def new_cache(self) -> HeldKV:
        """See ``Runner.new_cache``."""
        body = self._model
        return HeldKV(len(body.layers), body.key_heads, body.size, body.dtype, body.device)

    def run(self, cache: HeldKV, ids: Tensor, places: Sequence[int], mask: Mask, wanted: int) -> Tensor:
        """See ``Runner.run``."""
        start, count = cache.length, len(ids)
        cache.length = start + count
        prompt = start == 0 and mask is None
        at = self._places[places[0] : places[0] + count] if _consecutive(places) else self._at(places)
        slots = torch.arange(start, start + count, device=self.device)
        rows = ForwardInput(ids, at, slots, start + count, self._masks(start, count, mask, prompt), prompt)
        states, _ = self._model(rows, cache)
        return self._model.head(states[-wanted:])

    def _at(self, places: Sequence[int]) -> Tensor:
        return upload(places, self.device)

    def _masks(self, start: int, count: int, mask: Mask, prompt: bool) -> dict[str, Tensor | None]:
        found: dict[str, Tensor | None] = {}
        for kind, window in self.windows.items():
            if mask is not None:
                found[kind] = self._shared(mask[kind] if isinstance(mask, Mapping) else mask)
            elif (window is None or window >= start + count) and (prompt or count == 1):
                found[kind] = None
            else:
                rows = build_causal_mask(start + count, window, self.dtype, start)
                causal = upload(rows, self.device, self.dtype)
                found[kind] = causal[0, 0] if prompt else self._shared(causal)
        return found

    def _shared(self, mask: Tensor) -> Tensor:
        """(1, 1, m, keys) -> (groups * m, keys): see ``ForwardInput``."""
        return mask[0, 0] if self._model.groups == 1 else mask[0, 0].repeat(self._model.groups, 1)


def _consecutive(places: Sequence[int]) -> bool:
    return isinstance(places, range) or places[-1] - places[0] == len(places) - 1 == 0


def make_runner(model: Any, context: int) -> Runner:
    """context: [tokens] of the model; positions beyond it are the caller's to clamp."""
    single = len({parameter.device for parameter in model.parameters()}) == 1
    if single and explain_unfit(model) is None and model.config._attn_implementation == "sdpa":
        return CompactRunner(model, context)
    return LibraryRunner(model)
