"""What a head's configuration says of its decoder layers."""

from __future__ import annotations

from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import LlamaConfig

from methods.parts.heads.head_file import HeadFile
from specbench.types import InputError

MASK = ("mask_token_id", "ptd_token_id", "pard_token")  # what writers call the mask token


def layer_config(file: HeadFile, target: Any) -> LlamaConfig:
    """The head's own layers; a random one has the target's shape. Raises InputError."""
    raw = {"num_hidden_layers": 1, **file.layer}
    if file.random:
        names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                 "vocab_size", "rms_norm_eps", "max_position_embeddings")  # fmt: skip
        raw |= {name: getattr(target, name) for name in names if getattr(target, name, None) is not None}
    for name in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        if not isinstance(raw.get(name), int):
            raise InputError(f"{file.where}: config.json has no {name}; expected a {file.format.kind} head's")
    if raw["vocab_size"] != target.vocab_size:
        raise InputError(
            f"{file.where}: made for a vocabulary of {raw['vocab_size']}; expected the target's {target.vocab_size}"
        )
    try:
        return LlamaConfig.from_dict(dict(raw))
    except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
        raise InputError(f"{file.where}: config.json describes no Llama layer ({error})") from error


def biased(file: HeadFile) -> bool:
    return bool(file.layer.get("qkv_bias") or file.layer.get("attention_bias"))


def head_norms(file: HeadFile) -> bool:
    """Whether each attention head's query and key are normed."""
    return file.layer.get("model_type") == "qwen3"


def refuse_window(file: HeadFile) -> None:
    """Raise InputError where a layer has a sliding window."""
    if file.layer.get("use_sliding_window") or "sliding_attention" in (file.layer.get("layer_types") or ()):
        raise InputError(f"{file.where}: its layer has a sliding window; expected full attention")


def mask_token(file: HeadFile, vocab: int, *places: str) -> int:
    """The token that stands for one still to be drafted; 0 for a random head. places: mappings that may hold it.

    Raises InputError where it is missing, or none of a vocabulary of ``vocab`` tokens.
    """
    held = [file.config, *(file.config.get(place) or {} for place in places)]
    found = [each[name] for each in held for name in MASK if each.get(name) is not None]
    token = 0 if file.random else found[0] if found else None
    if type(token) is not int or not 0 <= token < vocab:
        raise InputError(f"{file.where}: config.json has {MASK[0]}={token}; expected a token below {vocab}")
    return token
