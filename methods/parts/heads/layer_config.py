"""What a head's configuration says of its decoder layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import LlamaConfig, Qwen3Config
from transformers.activations import ACT2FN

from methods.parts.heads.head_file import HeadFile
from specbench.types import InputError

EAGLE, LAYER = "eagle_config", "transformer_layer_config"  # where NVIDIA and the speculators library nest settings
# What says nothing of the forward, or is settled by the names and shapes of the tensors.
IDLE = {
    "architectures", "auto_map", "draft_vocab_size", "has_no_defaults_at_init", "model_type", "num_target_layers",
    "rope_scaling", "rope_theta", "speculators_config", "speculators_version", "target_hidden_size",
    "target_model_type", "torch_dtype", "_attn_implementation_autoset", "_name_or_path", LAYER,
}  # fmt: skip
COUNTS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
MORE_COUNTS = ("num_key_value_heads", "head_dim", "max_position_embeddings")
MOST_LAYERS = 1024
MASK = ("mask_token_id", "ptd_token_id", "pard_token")  # what writers call the mask token


def layer_config(file: HeadFile, target: Any) -> LlamaConfig:
    """The head's own layers; a random one has the target's shape. Raises InputError."""
    raw = {"num_hidden_layers": 1, **file.layer}
    if file.random:
        names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                 "vocab_size", "rms_norm_eps", "max_position_embeddings")  # fmt: skip
        raw |= {name: getattr(target, name) for name in names if getattr(target, name, None) is not None}
    for name in (*COUNTS, *(name for name in MORE_COUNTS if raw.get(name) is not None)):
        if name not in raw:
            raise InputError(f"{file.where}: config.json has no {name}; expected a {file.format.kind} head's")
        if type(raw[name]) is not int or raw[name] < 1:
            raise InputError(f"{file.where}: config.json has {name}={raw[name]!r}; expected a whole number above 0")
    if raw["num_hidden_layers"] > MOST_LAYERS:
        raise InputError(f"{file.where}: num_hidden_layers={raw['num_hidden_layers']}; expected at most {MOST_LAYERS}")
    if raw["vocab_size"] != target.vocab_size:
        raise InputError(
            f"{file.where}: made for a vocabulary of {raw['vocab_size']}; expected the target's {target.vocab_size}"
        )
    try:
        config = LlamaConfig.from_dict(dict(raw))
    except (AttributeError, TypeError, ValueError, KeyError, StrictDataclassError) as error:
        raise InputError(f"{file.where}: config.json describes no Llama layer ({error})") from error
    heads, shared = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
    if heads % shared:
        raise InputError(
            f"{file.where}: num_attention_heads={heads} and num_key_value_heads={shared}; expected a multiple"
        )
    if not config.rms_norm_eps > 0:
        raise InputError(f"{file.where}: config.json has rms_norm_eps={config.rms_norm_eps}; expected more than 0")
    if config.hidden_act not in ACT2FN:
        raise InputError(f"{file.where}: hidden_act={config.hidden_act}; expected one that transformers has, as silu")
    return config


def require_known(
    file: HeadFile, known: Collection[str], only: Mapping[str, Sequence[Any]], *nested: str
) -> frozenset[str]:
    """The settings that are true. Raises InputError for every one that is not known and says something.

    A head that is loaded with another forward than it was trained with drafts nonsense without an error.
    known: what is read, or changes nothing; a layer's own settings are. only: values that are expected, a setting.
    nested: parts of the configuration that hold settings too, beside its top and its layer.
    """
    only = {"mlp_bias": (False,), **only}
    parts = [file.config, file.layer, *(file.nested(name) for name in nested)]
    said = [(name, value) for part in parts for name, value in part.items() if value is not None]
    for name, value in said:
        if name in only and not any(_same(value, each) for each in only[name]):
            either = " or ".join(map(str, only[name])) or "none"
            raise InputError(f"{file.where}: config.json has {name}={value}; expected {either}")
    known = {*vars(LlamaConfig()), *vars(Qwen3Config()), *IDLE, *known, *only, *nested}
    if strange := sorted({name for name, value in said if name not in known and value is not False and value != 0}):
        raise InputError(
            f"{file.where}: config.json sets {', '.join(strange)}, unknown here: its forward may differ; expected none"
        )
    refuse_window(file)
    return frozenset(name for name, value in said if value is True)


def _same(value: Any, expected: Any) -> bool:
    """True is not 1 here."""
    return bool(value == expected) and isinstance(value, bool) == isinstance(expected, bool)


def drafted_tokens(file: HeadFile, vocab: int) -> int:
    """Tokens of the head's vocabulary; vocab: the target's. Raises InputError."""
    found = file.config.get("draft_vocab_size")
    if found is not None and (type(found) is not int or not 0 < found <= vocab):
        raise InputError(
            f"{file.where}: config.json has draft_vocab_size={found!r}; expected a whole number from 1 to the target's"
            f" {vocab}"
        )
    return found or vocab


def layer_numbers(file: HeadFile, name: str, found: Any) -> list[int] | None:
    """A list of the target's layers; None where it is not given. Raises InputError."""
    if found is not None and not (isinstance(found, list) and found and all(type(layer) is int for layer in found)):
        raise InputError(f"{file.where}: config.json has {name}={found!r}; expected a list of layers")
    return found


def biased(file: HeadFile) -> bool:
    return bool(file.layer.get("qkv_bias") or file.layer.get("attention_bias"))


def head_norms(file: HeadFile) -> bool:
    """Whether each attention head's query and key are normed."""
    return file.layer.get("model_type") == "qwen3"


def refuse_window(file: HeadFile) -> None:
    """Raise InputError where a layer has a sliding window."""
    if file.layer.get("use_sliding_window") or "sliding_attention" in str(file.layer.get("layer_types")):
        raise InputError(f"{file.where}: its layer has a sliding window; expected full attention")


def mask_token(file: HeadFile, vocab: int, *places: str) -> int:
    """The token that stands for one still to be drafted; 0 for a random head. places: mappings that may hold it.

    Raises InputError where it is missing, or none of a vocabulary of ``vocab`` tokens.
    """
    held = [file.config, *(file.nested(place) for place in places)]
    found = [each[name] for each in held for name in MASK if each.get(name) is not None]
    token = 0 if file.random else found[0] if found else None
    if type(token) is not int or not 0 <= token < vocab:
        raise InputError(f"{file.where}: config.json has {MASK[0]}={token}; expected a token below {vocab}")
    return token
