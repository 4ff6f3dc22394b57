"""Many requests through the library's forward: one row a request, padded to the longest draft, over a padded cache.

The rows of a forward are the places from the first to the last one that takes part. A place between them that does not,
and the padding behind a short draft, feed any token: they write behind what their place holds, and nobody reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from specbench.models.batch import SlotBatch
from specbench.models.eager.cache import LayerShape
from specbench.models.engine import Laps
from specbench.models.packed import PackedRows
from specbench.models.padded import PaddedRows
from specbench.models.transfer import upload

if TYPE_CHECKING:
    from specbench.models.eager.engine import EagerEngine


class PlaceLayer(CacheLayerMixin):
    """One layer's slots of all places. at: of the next forward, set before it.

    keys, values: (requests, K, room, D) each, views of the cache's stacked buffers.
    """

    is_sliding = False
    is_croppable = False
    keys: Any
    values: Any
    at: tuple[slice, Tensor, Tensor, int]  # places; their numbers (k, 1); slots (k, q) to write; slots to read

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object):
        """Write (k, K, q, D) keys and values; return views of those that are read, (k, K, end, D)."""
        places, numbers, slots, end = self.at
        self.keys[numbers, :, slots] = key_states.transpose(1, 2)
        self.values[numbers, :, slots] = value_states.transpose(1, 2)
        return self.keys[places, :, :end], self.values[places, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(key length, key offset) of the next forward's mask."""
        return self.at[3], 0

    def get_seq_length(self) -> int:
        """Nothing is counted here."""
        return 0

    def get_max_length(self) -> int:
        """[slots] of a place."""
        return int(self.keys.shape[-2])


class EagerBatch(SlotBatch):
    """The eager engine's."""

    engine: EagerEngine

    def __init__(self, engine: EagerEngine, requests: int, tokens: int, laps: Laps) -> None:
        """See ``Batch``."""
        super().__init__(engine, requests, tokens, laps)
        layers: list[Any] = [None] * len(engine.cache.shapes)
        self._stacks: list[Tensor] = []  # (layers, requests, K, room, D)
        for shape, members in _group(engine.cache.shapes).items():
            keys, values = self._allocate(shape, len(members))
            for member, key, value in zip(members, keys, values, strict=True):
                layers[member] = PlaceLayer(key, value)
            self._stacks += [keys, values]
        self._layers, self._cache = layers, Cache(layers=layers)

    def _allocate(self, shape: LayerShape, layers: int) -> tuple[Tensor, Tensor]:
        make: Any = {"dtype": shape.dtype, "device": shape.device}
        front = layers, self.requests
        keys = torch.zeros(*front, shape.key_heads, self.room, shape.key_size, **make)
        return keys, torch.zeros(*front, shape.value_heads, self.room, shape.value_size, **make)

    def nbytes(self) -> int:
        """See ``Batch``."""
        return sum(stack.nbytes for stack in self._stacks)

    def feed(self, rows: PackedRows, taps: Sequence[int], wanted: int) -> tuple[Tensor, Mapping[int, Tensor]]:
        """See ``Batch``."""
        padded = PaddedRows(rows, self.lengths(), self.engine.context)
        for layer in self._layers:
            device = layer.keys.device
            layer.at = padded.places, upload(padded.numbers, device), upload(padded.slots, device), padded.end
        nodes = upload(padded.nodes, self.engine.device)
        ids = rows.ids.new_zeros(padded.slots.size)
        ids[nodes] = rows.ids
        masks = {
            kind: padded.build_mask(window, self.engine.dtype).to(self.engine.device)
            for kind, window in self.engine.windows.items()
        }
        output = self.engine.call_model(
            ids.view(padded.slots.shape),
            upload(padded.positions, self.engine.device),
            next(iter(masks.values())) if len(masks) == 1 else masks,
            self._cache,
            1 if wanted == 1 else 0,
            bool(taps),
        )
        logits = output.logits[0] if wanted == 1 else output.logits.flatten(0, 1)[nodes]
        return logits, {layer: output.hidden_states[layer].flatten(0, 1)[nodes] for layer in taps}

    def move(self, places: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """See ``Batch``."""
        for stack in self._stacks:
            at, source, target = (upload(each, stack.device) for each in (places, sources, targets))
            stack[:, at, :, target] = stack[:, at, :, source]  # copies first: no aliasing

    def wipe(self, place: int) -> None:
        """See ``Batch``."""
        for stack in self._stacks:
            stack[:, place] = 0

    def end(self) -> None:
        """See ``Batch``."""
        self._stacks, self._layers = [], []
        self._cache = Cache(layers=[])


def _group(shapes: Sequence[LayerShape]) -> dict[LayerShape, list[int]]:
    """The layers of each shape."""
    groups: dict[LayerShape, list[int]] = {}
    for layer, shape in enumerate(shapes):
        groups.setdefault(shape, []).append(layer)
    return groups
