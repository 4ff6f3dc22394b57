"""A model's configuration as the library reads it; a family that it lacks, as the one that it equals."""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

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


def given_config(config: Any) -> dict[str, Any]:
    """The argument with which the library loads weights of a family that it lacks; none for others."""
    same = _find_same(config.architectures) == config.model_type
    return {"config": config} if same else {}


def _find_same(architectures: Any) -> str | None:
    return SAME_AS.get(str(architectures[0])) if isinstance(architectures, list) and architectures else None
