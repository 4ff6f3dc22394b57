"""A model's configuration as the library reads it; a family that it lacks, as the one that it equals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from specbench.types import InputError

# Classes of causal LMs that the library lacks, and the family that each is, beside modules that predict further tokens.
SAME_AS = {"MiMoForCausalLM": "qwen2"}


class LibraryConfig:
    """Where the library's ``AutoConfig`` would be asked."""

    @staticmethod
    def from_pretrained(path: str, **options: Any) -> Any:
        """The configuration of a folder or hub id. Raises what the library raises."""
        if not options.get("trust_remote_code"):
            held, _ = PreTrainedConfig.get_config_dict(path, revision=options.get("revision"))
            if family := _find_same(held.get("architectures")):
                plain = {key: value for key, value in held.items() if key not in ("auto_map", "model_type")}
                return CONFIG_MAPPING[family].from_dict(plain)
        return AutoConfig.from_pretrained(path, **options)


def override(config: Any, entries: Any, key: str) -> Any:
    """A configuration with other ``entries``; of one that is a mapping itself, those of its own that are given.

    key: the setting that has them. Raises InputError for an entry that the configuration lacks or refuses.
    """
    if not isinstance(entries, Mapping):
        raise InputError(f"{key}={entries}: expected entries of a config.json, as {{max_position_embeddings: 32768}}")
    held = config.to_dict()
    if unknown := [name for name in entries if name not in held]:
        raise InputError(
            f"{key}.{unknown[0]}: the family {config.model_type} has no such entry; expected one of its config.json,"
            " as max_position_embeddings or rope_parameters"
        )
    for name, value in entries.items():
        inner = isinstance(value, Mapping) and isinstance(held[name], Mapping)
        held[name] = {**held[name], **value} if inner else value
    try:
        return type(config).from_dict(held)
    except (ValueError, TypeError, KeyError, ZeroDivisionError, StrictDataclassError) as error:
        raise InputError(f"{key}: no {config.model_type} has these entries ({error})") from error


def _find_same(architectures: Any) -> str | None:
    return SAME_AS.get(str(architectures[0])) if isinstance(architectures, list) and architectures else None
