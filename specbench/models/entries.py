"""Numbers of a model's configuration that are read or checked before the model is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from specbench.input import InputError, parse_as, read_file

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)


class _Text(TypedDict, total=False):
    vocab_size: Annotated[int, Field(ge=1, le=1 << 31)] | None


class _Served(_Text, total=False):
    """The entries that are read of the config of a model that runs elsewhere, whose family need not
    be known.
    """

    text_config: _Text | None


def refuse_entries(text: Any, key: str) -> None:
    """Raise InputError for a number with which no forward makes sense. text: the configuration of a
    language model.
    """
    for name in (*_SIZES, "rms_norm_eps"):
        low, high = (0, 0.1) if name == "rms_norm_eps" else (1, float("inf"))
        value = getattr(text, name, None)
        if isinstance(value, int | float) and not low <= value <= high:
            raise InputError(f"{key}: {name} is {value}; expected from {low} to {high}")


def read_vocab_size(path: Path) -> int:
    """Return the vocabulary of a ``config.json``, padding included; 0 if it names none. Raises
    InputError.
    """
    fix = "expected the model's own config.json next to its tokenizer, or none"
    found = parse_as(_Served, read_file(path, "model.tokenizer=", fix), str(path), fix)
    return found.get("vocab_size") or (found.get("text_config") or {}).get("vocab_size") or 0
