"""Several devices on a machine that has none: tensors carry the name of a place, and operations
that mix places fail.

Places are ``cpu:0``, ``cpu:1`` and so on; ``cpu`` is the host. As on GPUs a tensor moves by ``to``,
a copy may cross, an index may come from the host, and so may a number (a tensor without
dimensions).
"""

from __future__ import annotations

from collections import Counter

import accelerate.hooks
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

HOST = torch.device("cpu")
CROSSING = ("copy_", "__setitem__", "_has_compatible_shallow_copy_type")
INDEXING = ("__getitem__", "__setitem__")
MOVING = ("to", "cpu", "cuda")


def place_of(tensor: torch.Tensor) -> torch.device:
    return tensor.__dict__.get("_place", HOST)


def put(module: torch.nn.Module, place: str) -> None:
    """Everything that a module holds lies there from now on."""
    for tensor in (*module.parameters(), *module.buffers()):
        tensor._place = torch.device(place)


class MixedPlaces(RuntimeError):
    """An operation that a GPU would refuse."""


class Places(TorchFunctionMode):
    """While it is entered, places are watched. moved: (from, to) -> tensors that were moved by
    ``to``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved: Counter = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func == torch.Tensor.device.__get__:
            return place_of(args[0])
        if func == torch.Tensor.data.__set__:
            args[0]._place = place_of(args[1])
            return func(*args)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        wanted = self._wanted(name, args, kwargs)
        if name not in CROSSING and name not in MOVING:
            self._require_one(name, tensors[:1] if name in INDEXING else tensors)
        if name in INDEXING:
            self._require_index(args)
        kwargs.pop("device", None)
        if name in MOVING:
            args = tuple(HOST if isinstance(each, torch.device | str) else each for each in args)
            args = ("to", *args)[1:] if name != "cuda" else args[:1]
        found = func(*args, **kwargs)
        there = wanted or self._of(tensors)
        if name in MOVING and place_of(args[0]) != there:
            self.moved[str(place_of(args[0])), str(there)] += 1
            found = found.clone() if found is args[0] else found
        tree_map(
            lambda leaf: self._tag(leaf, there) if isinstance(leaf, torch.Tensor) else None, found
        )
        return found

    @staticmethod
    def _tag(tensor: torch.Tensor, place: torch.device) -> None:
        if "_place" not in tensor.__dict__:
            tensor._place = place

    @staticmethod
    def _wanted(name, args, kwargs) -> torch.device | None:
        """The place that a call names."""
        if kwargs.get("device") is not None:
            return torch.device(kwargs["device"])
        if name == "cpu":
            return HOST
        if name == "to" and len(args) > 1:
            if isinstance(args[1], torch.Tensor):
                return place_of(args[1])
            if isinstance(args[1], torch.device | str):
                return torch.device(args[1])
        return None

    @staticmethod
    def _of(tensors) -> torch.device:
        return next(
            (place_of(each) for each in tensors if each.dim() or place_of(each) != HOST), HOST
        )

    @staticmethod
    def _require_one(name, tensors) -> None:
        places = {place_of(each) for each in tensors if each.dim() or place_of(each) != HOST}
        if len(places) > 1:
            raise MixedPlaces(f"{name}: tensors on {sorted(map(str, places))}")

    @staticmethod
    def _require_index(args) -> None:
        here = place_of(args[0])
        for index in tree_leaves(args[1]):
            if isinstance(index, torch.Tensor) and place_of(index) not in (HOST, here):
                raise MixedPlaces(f"index on {place_of(index)} into a tensor on {here}")


def spread_layers(model, split: int, monkeypatch):
    """A model whose layers from ``split`` on lie on ``cpu:1`` and whose others on ``cpu:0``, by the
    library's hooks.
    """

    def tag(module, name, device, *_, **__):
        owner, _, kind = name.rpartition(".")
        getattr(module.get_submodule(owner), kind)._place = torch.device(device)

    if model.config.tie_word_embeddings:  # what is shared would be in two places
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    monkeypatch.setattr(accelerate.hooks, "set_module_tensor_to_device", tag)
    count = model.config.num_hidden_layers
    where = {f"model.layers.{each}": f"cpu:{int(each >= split)}" for each in range(count)}
    first, last = ("model.embed_tokens", "model.rotary_emb"), ("model.norm", "lm_head")
    where |= dict.fromkeys(first, "cpu:0") | dict.fromkeys(last, "cpu:1")
    # as from_pretrained has it
    options = {"main_device": "cpu:0", "skip_keys": "past_key_values", "force_hooks": True}
    return accelerate.dispatch_model(model, where, **options)
