"""A trained head's checkpoint: found by folder, hub id or bundled name, checked by names and shapes.

A name that is missing, too many or of another shape is the user's error and is named: a head that is loaded in part
drafts nonsense without an error. ``random`` stands for seeded random weights of the right shapes, to test and to time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specbench.models.load import locate
from specbench.types import InputError

RANDOM = "random"
SAFE, INDEX = ".safetensors", ".json"
BUFFERS = (r".*rotary_emb\.inv_freq",)  # older libraries wrote these constants with the weights
NAMED_AT_MOST = 12

TensorShape = tuple[int, ...]

HEAD = "lm_head.weight"  # an output head of its own, or a copy of the target's
EMBEDDED = "embed_tokens.weight"
OFFSETS = "d2t"  # a smaller vocabulary's offsets to the target's ids: the one tensor of whole numbers
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True)
class HeadFormat:
    """What the files of one kind of head are called: weights as safetensors, and as torch files.

    config: whether ``config.json`` is needed, read where it is there, or unused.
    """

    kind: str
    safe: tuple[str, ...]
    torch: tuple[str, ...]
    config: Literal["needed", "read", "unused"] = "needed"

    def names(self, safetensors: bool) -> tuple[str, ...]:
        """What is looked for, in this order. safetensors: nothing else."""
        return self.safe if safetensors else (*self.safe, *self.torch)


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A head that was found. path: as it is recorded. weights: on this machine, None = on the hub, or random.

    safetensors: torch files are not read. prefix: of the names of its tensors, where the files hold others too.
    """

    path: str
    config: dict[str, Any]
    format: HeadFormat
    safetensors: bool
    weights: Path | None
    prefix: str = ""

    @property
    def random(self) -> bool:
        """Weights are drawn, not read."""
        return self.path == RANDOM

    @property
    def layer(self) -> Mapping[str, Any]:
        """The part of its configuration that describes the layers, nested or not. Raises InputError."""
        return self.nested("transformer_layer_config") or self.config

    @property
    def where(self) -> str:
        """For messages."""
        return f"head={self.path}" + (f" ({self.prefix}*)" if self.prefix else "")

    def nested(self, name: str) -> Mapping[str, Any]:
        """A part of the configuration; empty where it has none. Raises InputError."""
        found = self.config.get(name)
        if found is not None and not isinstance(found, Mapping):
            raise InputError(f"{self.where}: config.json has {name}={found!r}; expected a mapping")
        return found or {}

    def shapes(self) -> dict[str, TensorShape] | None:
        """Name -> shape, from the files' headers; None where that would mean reading or fetching the weights."""
        if self.weights is None or self.weights.suffix not in (SAFE, INDEX):
            return None
        return self._read(self.weights, lambda file, name: tuple(file.get_slice(name).get_shape()))

    def load(self) -> dict[str, Tensor]:
        """Every tensor, on the host. Raises InputError."""
        file = self.weights or self._fetch()
        if file.suffix in (SAFE, INDEX):
            return self._read(file, lambda file, name: file.get_tensor(name))
        try:
            return dict(torch.load(file, map_location="cpu", weights_only=True))
        except Exception as error:  # the library's reader raises many kinds
            raise InputError(f"{self.where}: {file.name} cannot be read as a state dict ({error})") from error

    def _read(self, file: Path, value: Callable[[Any, str], Any]) -> dict[str, Any]:
        """The value of each tensor, by its name without the prefix."""
        found: dict[str, Any] = {}
        for part in self._parts(file):
            try:
                with safe_open(part, framework="pt") as held:
                    names = [name for name in held.keys() if name.startswith(self.prefix)]  # noqa: SIM118
                    found |= {name.removeprefix(self.prefix): value(held, name) for name in names}
            except (SafetensorError, OSError) as error:
                raise InputError(f"{self.where}: {part.name} cannot be read ({error})") from error
        return found

    def _parts(self, file: Path) -> list[Path]:
        """The files of weights that hold the head's tensors."""
        if file.suffix != INDEX:
            return [file]
        try:
            placed = json.loads(file.read_text(encoding="utf-8"))["weight_map"].items()
            names = sorted({part for name, part in placed if name.startswith(self.prefix) and Path(part).name == part})
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(f"{self.where}: {file.name} is no index of weights ({error!r})") from error
        if self.weights is not None:
            return [file.parent / name for name in names]
        return [part for name in names if (part := _from_hub(self.path, name)) is not None]

    def _fetch(self) -> Path:
        names = self.format.names(self.safetensors)
        for name in names:
            file = _from_hub(self.path, name)
            if file is not None:
                return file
        raise InputError(f"{self.where}: holds none of {', '.join(names)}; {_other_kind(self.safetensors)}")


def find_head(path: str | None, format: HeadFormat, safetensors: bool, target: str) -> HeadFile:
    """The head that the setting ``head`` names; nothing but its configuration is read. Raises InputError.

    target: the model's name, for messages.
    """
    if not path:
        raise InputError(
            f"head: not set, and model={target} names none of this kind (model.heads); expected a folder or hub id"
            f" with {format.kind} weights, or {RANDOM}"
        )
    if path == RANDOM:
        return HeadFile(path, {}, format, safetensors, None)
    folder = Path(locate(path, "head"))
    names = format.names(safetensors)
    if not folder.is_dir():
        return HeadFile(path, _hub_config(path, format), format, safetensors, None)
    config = _read_config(folder / "config.json", format, f"head={path}")
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        raise InputError(f"head={path}: holds none of {', '.join(names)}; {_other_kind(safetensors)}")
    return HeadFile(str(folder), config, format, safetensors, found[0])


def _other_kind(safetensors: bool) -> str:
    if safetensors:
        return "torch files are read with weights_only, and only when asked for: safetensors=false"
    return "expected one of them"


def _hub_config(path: str, format: HeadFormat) -> dict[str, Any]:
    if format.config == "unused":
        return {}
    return _read_config(_from_hub(path, "config.json"), format, f"head={path}")


def _from_hub(path: str, name: str) -> Path | None:
    """A file of a hub repository; None where the repository has none of that name. Raises InputError."""
    try:
        return Path(hf_hub_download(path, name))
    except (OSError, ValueError, HfHubHTTPError) as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        raise InputError(
            f"head={path}: {name} cannot be fetched ({_first_line(error)}); expected a folder, or a hub id that this"
            " machine can reach or has in its cache"
        ) from error


def _read_config(file: Path | None, format: HeadFormat, where: str) -> dict[str, Any]:
    if file is None or not file.is_file():
        if format.config == "needed":
            raise InputError(f"{where}: holds no config.json; expected the folder of a {format.kind} head")
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{where}: config.json is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise InputError(f"{where}: config.json holds a {type(config).__name__}; expected a mapping")
    return config


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def require_shapes(
    shapes: Mapping[str, TensorShape], expected: Mapping[str, TensorShape], ignored: Sequence[str], file: HeadFile
) -> None:
    """Raises InputError naming every tensor that is missing, too many, or of another shape than expected.

    ignored: patterns of names that may be there and are not used.
    """
    surplus = [
        name
        for name in shapes
        if name not in expected and not any(re.fullmatch(pattern, name) for pattern in (*ignored, *BUFFERS))
    ]
    complaints = {
        "lacks": [name for name in expected if name not in shapes],
        "holds unexpected": surplus,
        "differs in shape": [
            f"{name} {list(shapes[name])} (expected {list(shape)})"
            for name, shape in expected.items()
            if name in shapes and tuple(shapes[name]) != shape
        ],
    }
    found = [f"{what} {_listed(names)}" for what, names in complaints.items() if names]
    if found:
        raise InputError(f"{file.where}: no {file.format.kind} head for this target: {'; '.join(found)}")


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - NAMED_AT_MOST
    return ", ".join(sorted(names)[:NAMED_AT_MOST]) + (f" and {rest} more" if rest > 0 else "")


def require_numbers(state: Mapping[str, Tensor], where: str) -> None:
    """Raises InputError where a weight is no plain floating-point number, or ``d2t`` other than whole numbers.

    Quantised weights need scales, which no head here reads; offsets in a float type would be rounded.
    """
    for name, weight in state.items():
        if weight.dtype not in (WHOLE if name == OFFSETS else FLOATS):
            wanted = "whole numbers" if name == OFFSETS else "float16, bfloat16, float32 or float64"
            raise InputError(f"{where}: {name} holds {str(weight.dtype).removeprefix('torch.')}; expected {wanted}")


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, TensorShape]:
    """Name -> shape of tensors that are loaded."""
    return {name: tuple(weight.shape) for name, weight in state.items()}


def random_weights(expected: Mapping[str, TensorShape], seed: int = 0) -> dict[str, Tensor]:
    """Seeded weights of these shapes: norms one, everything else normal with deviation 0.02."""
    random = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape) if "norm" in name else torch.randn(shape, generator=random) * 0.02
        for name, shape in expected.items()
    }
