"""Layers on several devices: what all of them take (mask, positions, rotation) is moved to a device once a forward.

The library's hooks move a layer's inputs for each layer anew, which costs several copies a layer; here the first layer
of a device brings them, and the next ones find them there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Hops:
    """The moves of one model's forward."""

    def __init__(self, layers: nn.ModuleList) -> None:
        """layers: those of the model, each with the library's hook, which knows its device."""
        self._moved: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}  # the first keeps the number its own
        for layer in layers:
            layer.register_forward_pre_hook(self._bring, with_kwargs=True)

    @classmethod
    def of(cls, model: Any) -> Hops | None:
        """None where the model is on one device."""
        if len(set(getattr(model, "hf_device_map", {}).values())) < 2:
            return None
        count = model.config.get_text_config().num_hidden_layers
        lists = (each for each in model.modules() if isinstance(each, nn.ModuleList) and len(each) == count)
        layers = next(lists, None)
        return cls(layers) if layers is not None else None

    def forget(self) -> None:
        """A new forward begins."""
        self._moved.clear()

    def _bring(self, layer: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        hook = getattr(layer, "_hf_hook", None)
        place = getattr(hook, "execution_device", None)
        if place is None:
            return args, kwargs
        device = torch.device("cuda", place) if isinstance(place, int) else torch.device(place)
        return args, {name: self._there(value, device) for name, value in kwargs.items()}

    def _there(self, value: Any, device: torch.device) -> Any:
        if isinstance(value, tuple):
            return tuple(self._there(each, device) for each in value)
        if not isinstance(value, Tensor) or value.device == device:
            return value
        key = id(value), device
        if key not in self._moved:
            self._moved[key] = value, value.to(device, non_blocking=True)
        return self._moved[key][1]
