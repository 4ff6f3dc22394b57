"""The checkpoint of a trained head: found by folder, hub id or bundled name, checked by names,
shapes and settings.

A tensor that is missing, unexpected or of another shape is the user's error and is named, and so is
a setting that is unknown: a head that is loaded in part, or with another forward than it was
trained with, drafts nonsense without an error. ``random`` stands for seeded random weights of the
right shapes, to test and to time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config
from transformers.activations import ACT2FN

from specbench.input import read_file
from specbench.models.entries import refuse_entries
from specbench.models.facade import ModelCard
from specbench.models.family import FULL, ONE_WINDOW
from specbench.models.load import UNREADABLE, explain, locate
from specbench.models.widen import Widening
from specbench.types import InputError

EAGLE_4 = "LlamaForCausalLMEagle4"
_FIX = "expected the folder of a head, as its authors saved it"
RANDOM = "random"
SAFE, INDEX = ".safetensors", ".json"
BUFFERS = (r".*rotary_emb\.inv_freq",)  # older libraries wrote these constants with the weights
NAMED_AT_MOST = 12

TensorShape = tuple[int, ...]

HEAD = "lm_head.weight"  # an output head of its own, or a copy of the target's
EMBEDDED = "embed_tokens.weight"
# a smaller vocabulary's offsets to the target's ids: the one tensor of whole numbers
OFFSETS = "d2t"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True)
class HeadFormat:
    """The file names of one kind of head: weights as safetensors, and as torch files.

    config: whether ``config.json`` is needed, read if it exists, or unused.
    """

    kind: str
    safe: tuple[str, ...] = ("model.safetensors",)
    torch: tuple[str, ...] = ("pytorch_model.bin",)
    config: Literal["needed", "read", "unused"] = "needed"

    def names(self, safetensors: bool) -> tuple[str, ...]:
        """The file names to look for, in order of preference. safetensors: leave out the names of
        pickled files.
        """
        return self.safe if safetensors else (*self.safe, *self.torch)


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A head that was found. path: as recorded. weights: on this machine, None = on the hub, or
    random.

    safetensors: torch files are not read. prefix: of the names of its tensors, where the files hold
    others too. widening: of the target, which the tensors follow.
    """

    path: str
    config: dict[str, Any]
    format: HeadFormat
    safetensors: bool
    weights: Path | None
    prefix: str = ""
    widening: Widening | None = None

    @property
    def random(self) -> bool:
        """Weights are drawn, not read."""
        return self.path == RANDOM

    @property
    def layer(self) -> Mapping[str, Any]:
        """The part of its configuration that describes the layers, nested or not. Raises
        InputError.
        """
        return self.nested("transformer_layer_config") or self.config

    @property
    def where(self) -> str:
        """For messages."""
        return f"head={self.path}" + (f" ({self.prefix}*)" if self.prefix else "")

    def refusal(self, found: str, expected: str) -> InputError:
        """The error for a configuration that has one thing where another is expected."""
        return InputError(f"{self.where}: config.json has {found}; expected {expected}")

    def nested(self, name: str) -> Mapping[str, Any]:
        """A part of the configuration; empty where it has none. Raises InputError."""
        found = self.config.get(name)
        if found is not None and not isinstance(found, Mapping):
            raise self.refusal(f"{name}={found!r}", "a mapping")
        return found or {}

    def shapes(self) -> dict[str, TensorShape] | None:
        """Name -> shape, from the files' headers; None where that would mean reading or fetching
        the weights.
        """
        if self.weights is None or self.weights.suffix not in (SAFE, INDEX) or self.widening:
            return None
        return self._read(self.weights, lambda file, name: tuple(file.get_slice(name).get_shape()))

    def load(self) -> dict[str, Tensor]:
        """Every tensor, on the host. Raises InputError."""
        return self.widening.widen_head(self._load()) if self.widening else self._load()

    def _load(self) -> dict[str, Tensor]:
        names = self.format.names(self.safetensors)
        file = self.weights or next(
            filter(None, (_from_hub(self.path, name) for name in names)), None
        )
        if file is None:
            raise InputError(
                f"{self.where}: holds none of {', '.join(names)}; {_other_kind(self.safetensors)}"
            )
        if file.suffix in (SAFE, INDEX):
            return self._read(file, lambda file, name: file.get_tensor(name))
        try:
            return dict(torch.load(file, map_location="cpu", weights_only=True))
        except Exception as error:  # the library's reader raises many kinds
            raise InputError(
                f"{self.where}: {file.name} cannot be read as a state dict ({error})"
            ) from error

    def _read(self, file: Path, value: Callable[[Any, str], Any]) -> dict[str, Any]:
        """The value of each tensor, by its name without the prefix."""
        found: dict[str, Any] = {}
        for part in self._parts(file):
            try:
                with safe_open(part, framework="pt") as opened:
                    names = [name for name in opened.keys() if name.startswith(self.prefix)]  # noqa: SIM118
                    found |= {name.removeprefix(self.prefix): value(opened, name) for name in names}
            except (SafetensorError, OSError) as error:
                raise InputError(f"{self.where}: {part.name} cannot be read ({error})") from error
        return found

    def _parts(self, file: Path) -> list[Path]:
        """The files of weights that hold the head's tensors."""
        if file.suffix != INDEX:
            return [file]
        try:
            placed = json.loads(read_file(file, f"{self.where}: ", _FIX))["weight_map"].items()
            names = sorted(
                {
                    part
                    for name, part in placed
                    if name.startswith(self.prefix) and Path(part).name == part
                }
            )
        except InputError:
            raise
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise InputError(
                f"{self.where}: {file.name} is not an index of weights ({error!r})"
            ) from error
        if self.weights is not None:
            return [file.parent / name for name in names]
        return [part for name in names if (part := _from_hub(self.path, name)) is not None]


def find_head(
    path: str | None, format: HeadFormat, safetensors: bool, target: ModelCard
) -> HeadFile:
    """The head that the setting ``head`` names; nothing but its configuration is read. Raises
    InputError.
    """
    file = _find_head(path, format, safetensors, target.name)
    if EAGLE_4 in str(file.config.get("architectures")):
        raise InputError(
            f"{file.where}: config.json names {EAGLE_4}, an EAGLE-4 head, which is not implemented;"
            f" expected a head of the kind {format.kind}, or method=[server] with an engine that"
            " runs EAGLE-4"
        )
    if target.widening is None or file.random:
        return file
    return replace(file, config=target.widening.head_config(file.config), widening=target.widening)


def _find_head(path: str | None, format: HeadFormat, safetensors: bool, target: str) -> HeadFile:
    """The head as it was trained. target: the model's name, for messages."""
    if not path:
        raise InputError(
            f"head: not set, and model={target} names none of this kind (model.heads); expected a"
            f" folder or hub id with {format.kind} weights, or {RANDOM}"
        )
    if path == RANDOM:
        return HeadFile(path, {}, format, safetensors, None)
    folder = Path(locate(path, "head"))
    names = format.names(safetensors)
    if not folder.is_dir():
        unused = format.config == "unused"
        config = (
            {} if unused else _read_config(_from_hub(path, "config.json"), format, f"head={path}")
        )
        return HeadFile(path, config, format, safetensors, None)
    config = _read_config(folder / "config.json", format, f"head={path}")
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        raise InputError(
            f"head={path}: holds none of {', '.join(names)}; {_other_kind(safetensors)}"
        )
    return HeadFile(str(folder), config, format, safetensors, found[0])


def _other_kind(safetensors: bool) -> str:
    if safetensors:
        return "torch files are read with weights_only, and only when asked for: safetensors=false"
    return "expected one of them"


def _from_hub(path: str, name: str) -> Path | None:
    """A file of a hub repository; None where the repository has none of that name. Raises
    InputError.
    """
    try:
        return Path(hf_hub_download(path, name))
    except (OSError, ValueError, HfHubHTTPError) as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"head={path}: {name} cannot be fetched ({line}); expected a folder, or a hub id that"
            " this machine can reach or has in its cache"
        ) from error


def _read_config(file: Path | None, format: HeadFormat, where: str) -> dict[str, Any]:
    if file is None or not file.is_file():
        if format.config == "needed":
            raise InputError(
                f"{where}: holds no config.json; expected the folder of a {format.kind} head"
            )
        return {}
    raw = read_file(file, f"{where}: ", _FIX)
    try:
        config = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: config.json is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise InputError(
            f"{where}: config.json holds a {type(config).__name__}; expected a mapping"
        )
    return config


def require_shapes(
    shapes: Mapping[str, TensorShape],
    expected: Mapping[str, TensorShape],
    ignored: Sequence[str],
    file: HeadFile,
) -> None:
    """Raises InputError naming every tensor that is missing, too many, or of another shape than
    expected.

    ignored: patterns of names that may be there and are not used.
    """
    surplus = [
        name
        for name in shapes
        if name not in expected
        and not any(re.fullmatch(pattern, name) for pattern in (*ignored, *BUFFERS))
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
    found = []
    for what, names in complaints.items():
        rest = len(names) - NAMED_AT_MOST
        more = f" and {rest} more" if rest > 0 else ""
        found += [f"{what} {', '.join(sorted(names)[:NAMED_AT_MOST])}{more}"] if names else []
    if found:
        raise InputError(
            f"{file.where}: no {file.format.kind} head for this target: {'; '.join(found)}"
        )


def require_numbers(state: Mapping[str, Tensor], where: str) -> None:
    """Raises InputError where a weight is not a plain floating-point number, or ``d2t`` other than
    whole numbers.

    Quantised weights need scales, which no head here reads; offsets in a float type would be
    rounded.
    """
    for name, weight in state.items():
        if weight.dtype not in (WHOLE if name == OFFSETS else FLOATS):
            wanted = "whole numbers" if name == OFFSETS else "float16, bfloat16, float32 or float64"
            raise InputError(
                f"{where}: {name} holds {str(weight.dtype).removeprefix('torch.')}; expected"
                f" {wanted}"
            )


def require_finite(state: Mapping[str, Tensor], where: str) -> None:
    """Raises InputError where a weight is not finite in its type, which may be narrower than the
    file's.
    """
    if broken := sorted(name for name, weight in state.items() if not weight.isfinite().all()):
        dtype = str(state[broken[0]].dtype).removeprefix("torch.")
        raise InputError(
            f"{where}: {', '.join(broken[:4])} not finite in {dtype}; expected numbers"
        )


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, TensorShape]:
    """Name -> shape of tensors that are loaded."""
    return {name: tuple(weight.shape) for name, weight in state.items()}


def random_weights(expected: Mapping[str, TensorShape]) -> dict[str, Tensor]:
    """Seeded weights of these shapes: norms one, everything else normal with deviation 0.02."""
    random = torch.Generator().manual_seed(0)
    return {
        name: torch.ones(shape) if "norm" in name else torch.randn(shape, generator=random) * 0.02
        for name, shape in expected.items()
    }


# nested settings of NVIDIA and of speculators
EAGLE_CONFIG, LAYER = "eagle_config", "transformer_layer_config"
# Settings that do not concern the forward, or that the names and shapes of the tensors settle.
IDLE = {
    "architectures", "auto_map", "draft_vocab_size", "has_no_defaults_at_init", "model_type",
    "num_target_layers", "rope_scaling", "rope_theta", "speculators_config", "speculators_version",
    "target_hidden_size", "target_model_type", "torch_dtype", "_attn_implementation_autoset",
    "_name_or_path", LAYER,
}  # fmt: skip
COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)
MOST_LAYERS = 1024
MORE_COUNTS = ("num_key_value_heads", "head_dim", "max_position_embeddings")
# Families whose layers have Llama's names and shapes, and compute something else: rotary positions
# or norms.
UNLIKE_LLAMA = ("ernie4_5", "gemma", "granite", "helium", "ministral3", "smollm3")
MASK = ("mask_token_id", "ptd_token_id", "pard_token")  # what writers call the mask token


def layer_config(file: HeadFile, target: Any) -> LlamaConfig:
    """The head's own layers; a random one has the target's shape. Raises InputError."""
    raw = {"num_hidden_layers": 1, **file.layer}
    if file.random:
        names = (
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "vocab_size",
            "rms_norm_eps",
            "max_position_embeddings",
        )
        raw |= {
            name: getattr(target, name) for name in names if getattr(target, name, None) is not None
        }
    for name in (*COUNTS, *(name for name in MORE_COUNTS if raw.get(name) is not None)):
        if name not in raw:
            raise file.refusal(f"no {name}", f"a {file.format.kind} head's")
        if type(raw[name]) is not int or raw[name] < 1:
            raise file.refusal(f"{name}={raw[name]!r}", "a whole number above 0")
    if raw["num_hidden_layers"] > MOST_LAYERS:
        raise InputError(
            f"{file.where}: num_hidden_layers={raw['num_hidden_layers']}; expected at most"
            f" {MOST_LAYERS}"
        )
    require_vocabulary(file, raw["vocab_size"], target)
    try:
        config = LlamaConfig.from_dict(dict(raw))
    except UNREADABLE as error:
        raise InputError(
            f"{file.where}: config.json describes no Llama layer ({explain(error)})"
        ) from error
    heads, shared = (
        config.num_attention_heads,
        config.num_key_value_heads or config.num_attention_heads,
    )
    if heads % shared:
        raise InputError(
            f"{file.where}: num_attention_heads={heads} and num_key_value_heads={shared}; expected"
            " a multiple"
        )
    refuse_entries(config, f"{file.where}: config.json")
    if config.hidden_act not in ACT2FN:
        raise InputError(
            f"{file.where}: hidden_act={config.hidden_act}; expected one that transformers has, as"
            " silu"
        )
    return config


def require_vocabulary(file: HeadFile, size: Any, target: Any) -> None:
    """Raises InputError if a head's vocabulary has another size than the target's. target: its
    configuration.
    """
    if size != target.vocab_size:
        raise InputError(
            f"{file.where}: made for a vocabulary of {size}; expected the target's"
            f" {target.vocab_size}"
        )


def require_known(
    file: HeadFile,
    known: Collection[str],
    only: Mapping[str, Sequence[Any]],
    *nested: str,
    windowed: bool = False,
) -> frozenset[str]:
    """The settings that are true. Raises InputError for every unknown one that is set.

    A head that is loaded with another forward than it was trained with drafts nonsense without an
    error. known: what is read, or changes nothing; a layer's own settings are. only: values that
    are expected, a setting. nested: parts of the configuration that hold settings too, in addition
    to its top and its layer. windowed: the caller reads the kinds of its layers, which may have a
    sliding window.
    """
    only = {"mlp_bias": (False,), **only}
    parts = [file.config, file.layer, *(file.nested(name) for name in nested)]
    given = [(name, value) for part in parts for name, value in part.items() if value is not None]
    for name, value in given:
        expected = [
            each for each in only.get(name, ()) if isinstance(each, bool) == isinstance(value, bool)
        ]
        if name in only and value not in expected:  # True is not 1 here
            raise file.refusal(f"{name}={value}", " or ".join(map(str, only[name])) or "none")
    known = {*vars(LlamaConfig()), *vars(Qwen3Config()), *IDLE, *known, *only, *nested}
    if strange := sorted(
        {name for name, value in given if name not in known and value is not False and value != 0}
    ):
        raise InputError(
            f"{file.where}: config.json sets {', '.join(strange)}, unknown here: its forward may"
            " differ; expected none"
        )
    family, kinds, window = (
        file.layer.get(name) for name in ("model_type", "layer_types", "sliding_window")
    )
    if family in UNLIKE_LLAMA:
        raise file.refusal(f"model_type={family}", "a family whose layers compute what Llama's do")
    if family in ONE_WINDOW and window:
        raise file.refusal(
            f"model_type={family} and a sliding window of {window}", "full attention"
        )
    if not windowed and (slides := file.layer.get("use_sliding_window")):
        raise file.refusal(f"use_sliding_window={slides}", "full attention")
    if not windowed and kinds and set(re.findall(r"\w+", str(kinds))) != {FULL}:
        raise file.refusal(f"layer_types={kinds}", "full attention")
    return frozenset(name for name, value in given if value is True)


def drafted_tokens(file: HeadFile, vocab: int) -> int:
    """Tokens of the head's vocabulary; vocab: the target's. Raises InputError."""
    found = file.config.get("draft_vocab_size")
    if found is not None and (type(found) is not int or not 0 < found <= vocab):
        raise file.refusal(
            f"draft_vocab_size={found!r}", f"a whole number from 1 to the target's {vocab}"
        )
    return found or vocab


def layer_numbers(file: HeadFile, name: str, found: Any) -> list[int] | None:
    """A list of the target's layers; None where it is not given. Raises InputError."""
    if found is not None and not (
        isinstance(found, list) and found and all(type(layer) is int for layer in found)
    ):
        raise file.refusal(f"{name}={found!r}", "a list of layers")
    return found


def biased(file: HeadFile) -> bool:
    """Returns whether queries, keys and values have a bias."""
    return bool(file.layer.get("qkv_bias") or file.layer.get("attention_bias"))


def head_norms(file: HeadFile) -> bool:
    """Returns whether each attention head's query and key are normed."""
    return file.layer.get("model_type") == "qwen3"


def mask_token(file: HeadFile, vocab: int, *places: str) -> int:
    """The token that marks a position to be drafted; 0 for a random head. places: mappings that may
    hold it.

    Raises InputError where it is missing, or not a token of a vocabulary of ``vocab`` tokens.
    """
    parts = [file.config, *(file.nested(place) for place in places)]
    found = [each[name] for each in parts for name in MASK if each.get(name) is not None]
    token = 0 if file.random else found[0] if found else None
    if type(token) is not int or not 0 <= token < vocab:
        raise file.refusal(f"{MASK[0]}={token}", f"a token below {vocab}")
    return token
