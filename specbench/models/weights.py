"""Checks of weights before they are read: the memory that a configuration needs, and the headers of
files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psutil
import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM
from typing_extensions import TypedDict

from specbench.input import InputError, parse_as, read_file, refuse_repeated_keys
from specbench.models.entries import refuse_entries
from specbench.models.facade import ModelCard

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
TORCH_WEIGHTS = ("*.bin", "*.bin.index.json")
_AUTHORS = "expected the file of the model's authors"
# of the causal LM, not of another tower
_LAYER = re.compile(r"(?:model\.|transformer\.)?(?:layers|h)\.(\d+)\.")
_SAVED = "expected what save_pretrained wrote: copy or download it again"
_GB = 1e9


def refuse_size(config: Any, dtype: str, device: str, gpus: int | None, key: str) -> None:
    """Raise InputError if the weights alone need more memory than the device has."""
    text = config.get_text_config()
    refuse_entries(text, key)
    if (
        isinstance(pad := getattr(text, "pad_token_id", None), int)
        and not -1 <= pad < text.vocab_size
    ):
        raise InputError(
            f"{key}: pad_token_id={pad}; expected from 0 to less than vocab_size={text.vocab_size}"
        )
    heads, shared = (
        getattr(text, name, None) or 1 for name in ("num_attention_heads", "num_key_value_heads")
    )
    if heads % shared:
        raise InputError(
            f"{key}: num_key_value_heads={shared}; expected a divisor of"
            f" num_attention_heads={heads}"
        )
    need = least_parameters(text) * getattr(torch, dtype).itemsize
    room = _total_memory(device, gpus)
    if need > room:
        raise InputError(
            f"{key}: its weights take at least {need / _GB:.0f} GB in {dtype}, {device} has"
            f" {room / _GB:.0f} GB; expected a smaller model, a smaller model.dtype, or another"
            " model.device"
        )


def refuse_tokenizer(tokens: int, config: Any, key: str) -> None:
    """Raise InputError if a tokenizer has more tokens than the model has logits."""
    size = config.get_text_config().vocab_size
    if tokens > size:
        raise InputError(
            f"{key}: has {tokens} tokens, the model's logits {size}; expected the model's own"
            " tokenizer"
        )


def least_parameters(text: Any) -> int:
    """Return a lower bound of a model's parameters: two matrices of attention, two of the MLP,
    embeddings.
    """
    width, layers = (
        int(getattr(text, "hidden_size", 0) or 0),
        int(getattr(text, "num_hidden_layers", 0) or 0),
    )
    heads = int(getattr(text, "num_attention_heads", 0) or 0)
    attention = 2 * width * heads * int(getattr(text, "head_dim", None) or width // max(1, heads))
    inner = getattr(text, "intermediate_size", None)
    return (
        layers * (attention + 2 * width * (inner if isinstance(inner, int) else 0))
        + int(text.vocab_size) * width
    )


def _total_memory(device: str, gpus: int | None) -> int:
    """Return the memory [bytes] of the host, or of ``gpus`` devices."""
    kind = torch.device(device)
    if kind.type != "cuda":
        return int(psutil.virtual_memory().total)
    first = kind.index or 0
    return sum(
        torch.cuda.get_device_properties(each).total_memory
        for each in range(first, first + (gpus or 1))
    )


class _Index(TypedDict):
    metadata: dict[str, Any]
    weight_map: dict[str, str]


def refuse_folder(folder: Path, safetensors: bool, key: str) -> None:
    """Raise InputError for a folder without a model whose weights can be read.

    safetensors: files of torch's own format are not accepted.
    """
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise InputError(
            f"{key}: is a LoRA adapter without its model; expected the folder of both, saved after"
            " peft's merge_and_unload()"
        )
    if not (folder / "config.json").is_file():
        raise InputError(f"{key}: holds no config.json; expected a folder saved by save_pretrained")
    _refuse_broken(folder, key)
    if any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        _refuse_index(folder, "model.safetensors", key)
        return
    if not any(any(folder.glob(pattern)) for pattern in TORCH_WEIGHTS):
        raise InputError(f"{key}: contains no weights; expected *.safetensors next to config.json")
    if safetensors:
        raise InputError(
            f"{key}: holds torch weights only; expected *.safetensors (torch files are read with"
            " weights_only, and only when asked for: model.safetensors=false)"
        )
    _refuse_index(folder, "pytorch_model.bin", key)


def _refuse_index(folder: Path, whole: str, key: str) -> None:
    """Raise InputError if weights are in parts, and a part or the index is missing or broken."""
    path = folder / f"{whole}.index.json"
    if (folder / whole).exists():
        return
    if not path.exists():
        raise InputError(f"{key}: holds neither {whole} nor {path.name}; {_SAVED}")
    index = parse_as(
        TypeAdapter(_Index), read_file(path, f"{key}: ", _SAVED), f"{key}: {path}", _SAVED
    )
    for part in sorted(set(index["weight_map"].values())):
        if Path(part).name != part or not (folder / part).is_file():
            raise InputError(
                f"{key}: {path} names {part}, which is not a file next to it; {_SAVED}"
            )


def _refuse_broken(folder: Path, key: str) -> None:
    """Raise InputError for a configuration that is not valid, or a broken file of weights (only
    headers are read).
    """
    path = folder / "config.json"
    raw = read_file(path, f"{key}: ", _AUTHORS)
    try:
        json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{key}: {path} is not JSON ({error}); {_AUTHORS}") from error
    refuse_repeated_keys(raw, f"{key}: {path}")
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{key}: {path} is not a complete safetensors file ({error}); {_SAVED}"
            ) from error


def empty_model(card: ModelCard) -> Any:
    """The model without memory for its weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(card.config, dtype=getattr(torch, card.dtype))


def refuse_shapes(card: ModelCard, key: str) -> None:
    """Raise InputError if a tensor in a file has another shape than in the configuration."""
    folder = Path(card.path)
    if not folder.is_dir() or getattr(card.config, "quantization_config", None):
        return
    wanted = {name: list(tensor.shape) for name, tensor in empty_model(card).state_dict().items()}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                shape = list(file.get_slice(name).get_shape())
                if wanted.get(name, shape) != shape:
                    raise InputError(
                        f"{key}: {path}, tensor {name}: of shape {shape}, and {wanted[name]} by"
                        f" {folder / 'config.json'}; expected weights and configuration of one"
                        " model"
                    )


def refuse_missing(names: Collection[str], key: str) -> None:
    """Raise InputError for parameters that are in no file: the library would initialise them at
    random.
    """
    if names:
        raise InputError(
            f"{key}: no file holds {len(names)} of its parameters, such as {min(names)}; expected"
            " the weights of the whole causal LM"
        )


def refuse_unused(names: Collection[str], config: Any, key: str) -> None:
    """Raise InputError if unused weights show that it is another model: one with more layers, or
    with biases.

    Layers that predict further tokens (``num_nextn_predict_layers``) come after the others and are
    not used; a quantised file may have biases of zeros.
    """
    text = config.get_text_config()
    layers = text.num_hidden_layers
    known = layers + int(getattr(text, "num_nextn_predict_layers", 0) or 0)
    bias = "-" if getattr(config, "quantization_config", None) else "proj.bias"
    inside = [(name, int(found[1])) for name in names if (found := _LAYER.match(name))]
    if unused := [name for name, layer in inside if layer >= known or name.endswith(bias)]:
        raise InputError(
            f"{key}: a {text.model_type} of num_hidden_layers={layers} leaves {len(unused)} of its"
            f" weights unused, such as {min(unused)}; expected weights and configuration of one"
            " model"
        )
