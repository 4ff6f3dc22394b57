"""A KV cache for the models of transformers, in preallocated slots that forwards append to in
place.

The dynamic cache of transformers copies the complete cache once per layer and step; its sliding
cache drops tokens when a rejected branch exceeds the window. Here every layer keeps every token,
``keep`` compacts the accepted path, and the mask implements the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from specbench.models.transfer import upload
from specbench.types import InputError

# slots are reserved in multiples of this, so that requests of like length share one allocation
GROWTH = 256


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of one layer's keys and values: (requests, heads, slots, size) each."""

    key_heads: int
    key_size: int
    value_heads: int
    value_size: int
    dtype: torch.dtype
    device: torch.device


class RowCopies:
    """A copy of one layer's slots for each of k rows, since attention kernels cannot share keys
    between rows.

    A token is copied when the first batch after it is read, so a step copies what the step before
    committed.
    """

    def __init__(self) -> None:
        self._pair: tuple[Tensor, Tensor] | None = None  # keys and values, (k, K, slots, D) each
        self._shared = 0  # [tokens] that are the same in all rows

    def read(
        self, cached: tuple[Tensor, Tensor], length: int, fresh: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Put ``fresh`` (k, K, q, D) behind the ``length`` tokens of ``cached``; views of all (k,
        K, length+q, D).
        """
        rows, end = len(fresh[0]), length + fresh[0].shape[-2]
        if self._pair is None or len(self._pair[0]) < rows:
            self.drop()
            keys, values = cached
            self._pair = (
                keys.new_empty(rows, *keys.shape[1:]),
                values.new_empty(rows, *values.shape[1:]),
            )
        for copies, slots, new in zip(self._pair, cached, fresh, strict=True):
            copies[:, :, self._shared : length] = slots[:, :, self._shared : length]
            copies[:rows, :, length:end] = new
        self._shared = length
        keys, values = self._pair
        return keys[:rows, :, :end], values[:rows, :, :end]

    def row(self, row: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values (1, K, end-start, D) of one row."""
        assert self._pair is not None
        keys, values = self._pair
        return keys[row : row + 1, :, start:end], values[row : row + 1, :, start:end]

    def truncate(self, length: int) -> None:
        """Copy the tokens from ``length`` on again, since they have changed."""
        self._shared = min(self._shared, length)

    def nbytes(self) -> int:
        """Bytes of the copies."""
        return sum(copies.nbytes for copies in self._pair) if self._pair else 0

    def drop(self) -> None:
        """Free the memory."""
        self._pair, self._shared = None, 0


class SlotLayer(CacheLayerMixin):
    """One layer's slots; ``keys`` and ``values``, (requests, K, slots, D), are views of the cache's
    stacked buffers.

    length: [tokens] of the only request.
    at: of the next forward of several requests: places; their numbers (k, 1); slots (k, q); slots
    that are read.
    """

    is_sliding = False
    is_croppable = True
    keys: Any
    values: Any
    at: tuple[slice, Tensor, Tensor, int] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.is_initialized = True
        self.length = 0
        self.copies = RowCopies()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the cache allocates."""

    def get_max_length(self) -> int:
        """[tokens] that fit."""
        return 0 if self.keys is None else self.keys.shape[-2]

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object):
        """Append (1, K, q, D) keys and values; return views of all (1, K, length+q, D).

        A batch of rows, (k, K, q, D), is not appended but waits for ``SlotCache.keep_row``;
        returned are the rows' (k, K, length+q, D). If ``at`` is set, the rows are of k places: they
        are written, and (k, K, end, D) are returned.
        """
        if self.at is not None:
            places, numbers, slots, end = self.at
            self.keys[numbers, :, slots] = key_states.transpose(1, 2)
            self.values[numbers, :, slots] = value_states.transpose(1, 2)
            return self.keys[places, :, :end], self.values[places, :, :end]
        if len(key_states) > 1:
            return self.copies.read(
                (self.keys, self.values), self.length, (key_states, value_states)
            )
        end = self.length + key_states.shape[-2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(key length, key offset) of the mask for the next forward."""
        return self.length + query_length if self.at is None else self.at[3], 0

    def get_seq_length(self) -> int:
        """[tokens] in the cache."""
        return self.length

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last ``-tokens_to_remove`` tokens (the library's sign convention)."""
        self.length += min(tokens_to_remove, 0)


class SlotCache(Cache):
    """All layers of one request, or of several. Layers of the same shape and device share one
    stacked buffer.
    """

    def __init__(self, shapes: Sequence[LayerShape], requests: int = 1) -> None:
        self.shapes, self._requests = shapes, requests
        self.slots = [SlotLayer() for _ in shapes]
        super().__init__(layers=list(self.slots))
        self._stacks: list[Tensor] = []
        self.capacity = 0

    @classmethod
    @torch.inference_mode()
    def for_model(cls, model: Any) -> SlotCache:
        """A cache for ``model``: a forward of one token shows each layer's shape, dtype and device.

        Raises InputError when a layer keeps anything else than keys and values.
        """
        probe = DynamicCache()
        ids = torch.zeros(1, 1, dtype=torch.long, device=model.get_input_embeddings().weight.device)
        try:
            model(input_ids=ids, past_key_values=probe, use_cache=True)
        except (IndexError, ValueError, AttributeError, TypeError):
            probe.layers = []  # the family wants another kind of cache
        layers: Any = probe.layers
        if not layers or any(getattr(layer, "keys", None) is None for layer in layers):
            raise InputError(
                f"model.path: the family {model.config.model_type} keeps other state than keys and"
                " values; expected plain attention in every layer"
            )
        shapes = []
        for layer in layers:
            key, value = layer.keys, layer.values
            shapes.append(
                LayerShape(
                    key.shape[1],
                    key.shape[3],
                    value.shape[1],
                    value.shape[3],
                    key.dtype,
                    key.device,
                )
            )
        return cls(shapes)

    @property
    def length(self) -> int:
        """[tokens] in every layer."""
        return self.slots[0].length

    def reserve(self, slots: int) -> None:
        """Empty the cache and make room for ``slots`` tokens; after an error it has no slots until
        the next call.
        """
        self.truncate(0)
        if slots > self.capacity:
            self.allocate(-(-slots // GROWTH) * GROWTH)

    def allocate(self, capacity: int) -> None:
        """Take zeroed memory of ``capacity`` slots for each request; 0 frees the memory."""
        self.capacity = 0
        self._stacks.clear()
        for layer in self.slots:
            layer.copies.drop()
            layer.keys = layer.values = None  # free the old buffers before the new ones are taken
        groups: dict[LayerShape, list[SlotLayer]] = {}
        for shape, layer in zip(self.shapes, self.slots, strict=True):
            groups.setdefault(shape, []).append(layer)
        for shape, members in groups.items():
            make: Any = {"dtype": shape.dtype, "device": shape.device}
            count = len(members), self._requests
            keys = torch.zeros(*count, shape.key_heads, capacity, shape.key_size, **make)
            values = torch.zeros(*count, shape.value_heads, capacity, shape.value_size, **make)
            self._stacks += [keys, values]
            for layer, own_keys, own_values in zip(members, keys, values, strict=True):
                layer.keys, layer.values = own_keys, own_values
        self.capacity = capacity

    def move(self, places: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy slots (m,) of requests to slots of the same requests, all in one operation; both may
        overlap.
        """
        for stack in self._stacks:
            at, source, target = (upload(each, stack.device) for each in (places, sources, targets))
            stack[:, at, :, target] = stack[:, at, :, source]  # copies first: no aliasing

    def wipe(self, place: int) -> None:
        """Zero the slots of one request."""
        for stack in self._stacks:
            stack[:, place] = 0

    def grow(self, slots: int) -> None:
        """Make room for ``slots`` and keep the cached tokens."""
        if slots <= self.capacity:
            return
        cached = [(layer.keys, layer.values, layer.length) for layer in self.slots]
        self.reserve(slots)
        for layer, (keys, values, length) in zip(self.slots, cached, strict=True):
            if length:
                layer.update(keys[:, :, :length], values[:, :, :length])

    def truncate(self, length: int) -> None:
        """Forget every token from ``length`` on."""
        for layer in self.slots:
            layer.length = length
            layer.copies.truncate(length)

    def keep(self, start: int, slots: Sequence[int]) -> None:
        """Keep only ``slots`` (absolute, in path order) of the tokens from ``start`` on, moved
        together.
        """
        end = start + len(slots)
        if any(slot != start + place for place, slot in enumerate(slots)):
            for stack in self._stacks:
                index = upload(slots, stack.device)
                # copies first: no aliasing
                stack[..., start:end, :] = stack.index_select(-2, index)
        self.truncate(end)

    def keep_row(self, row: int, count: int) -> None:
        """Append the first ``count`` tokens of one of the rows that the last forward read."""
        for layer in self.slots:
            layer.update(*layer.copies.row(row, layer.length, layer.length + count))

    def drop_copies(self) -> None:
        """Free the copies for batches of rows, k times the slots."""
        for layer in self.slots:
            layer.copies.drop()

    def nbytes(self) -> int:
        """Bytes of all buffers, the rows' copies included."""
        return sum(stack.nbytes for stack in self._stacks) + sum(
            layer.copies.nbytes() for layer in self.slots
        )
