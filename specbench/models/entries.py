"""The bounds of the numbers in a model's configuration that a run computes with, as a schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from specbench.input import InputError, describe, parse_as, read_file

_Size = Annotated[int, Field(ge=1)]
_Sizes = _Size | list[Any] | None  # some families have one for each layer
# dense members of a family of experts have 0
_Counts = Annotated[int, Field(ge=0)] | list[Any] | None
_Epsilon = Annotated[float, Field(ge=0, le=0.1)] | None
_Scale = Annotated[float, Field(gt=0, le=1e6)] | None
_Share = Annotated[float, Field(gt=0, le=1)] | None
_Scales = list[Annotated[float, Field(gt=0, le=1e6)]] | None


class _Rope(TypedDict, total=False):
    """The scaling of rotary angles."""

    rope_theta: Annotated[float, Field(gt=0, le=1e15)] | None
    factor: Annotated[float, Field(ge=1, le=1e6)] | None
    attention_factor: _Scale
    low_freq_factor: _Scale
    high_freq_factor: _Scale
    beta_fast: _Scale
    beta_slow: _Scale
    mscale: Annotated[float, Field(ge=0, le=1e6)] | None
    mscale_all_dim: Annotated[float, Field(ge=0, le=1e6)] | None
    original_max_position_embeddings: _Size | None
    partial_rotary_factor: _Share
    short_factor: _Scales
    long_factor: _Scales


class _Entries(TypedDict, total=False):
    """The entries of a language model; a family has some of them."""

    vocab_size: _Size
    hidden_size: _Sizes
    intermediate_size: _Sizes
    num_attention_heads: _Sizes
    num_key_value_heads: _Sizes
    head_dim: _Sizes
    num_experts: _Counts
    num_local_experts: _Counts
    num_experts_per_tok: _Counts
    sliding_window: _Counts
    rms_norm_eps: _Epsilon
    layer_norm_eps: _Epsilon
    layer_norm_epsilon: _Epsilon
    norm_eps: _Epsilon
    norm_epsilon: _Epsilon
    attention_multiplier: _Scale
    embedding_multiplier: _Scale
    residual_multiplier: _Scale
    logits_scaling: _Scale
    logit_scale: _Scale
    query_pre_attn_scalar: _Scale
    final_logit_softcapping: _Scale
    attn_logit_softcapping: _Scale
    partial_rotary_factor: _Share
    rotary_pct: _Share


class _Text(TypedDict, total=False):
    vocab_size: Annotated[int, Field(ge=1, le=1 << 31)] | None


class _Served(_Text, total=False):
    """The entries that are read of the config of a model that runs elsewhere, whose family need not
    be known.
    """

    text_config: _Text | None


_ENTRIES, _ROPE = TypeAdapter(_Entries), TypeAdapter(_Rope)


def refuse_entries(text: Any, key: str) -> None:
    """Raise InputError for a number with which no forward makes sense. text: the configuration of a
    language model.
    """
    found = {name: getattr(text, name, None) for name in _Entries.__annotations__}
    rope = getattr(text, "rope_parameters", None) or {}
    own = _Rope.__annotations__
    # of attention
    by_kind = {
        kind: each for kind, each in rope.items() if isinstance(each, dict) and kind not in own
    }
    try:
        path = ""
        _ENTRIES.validate_python(
            {name: value for name, value in found.items() if value is not None}
        )
        for kind, entry in by_kind.items() or [("", rope)]:
            path = f"rope_parameters.{kind}." if kind else "rope_parameters."
            _ROPE.validate_python(entry)
    except ValidationError as error:
        raise InputError(
            f"{key}: {path}{describe(error)}; expected the entries of the model's authors"
        ) from error


def read_vocab_size(path: Path) -> int:
    """Return the vocabulary of a ``config.json``, padding included; 0 if it names none. Raises
    InputError.
    """
    fix = "expected the model's own config.json next to its tokenizer, or none"
    found = parse_as(_Served, read_file(path, "model.tokenizer=", fix), str(path), fix)
    return found.get("vocab_size") or (found.get("text_config") or {}).get("vocab_size") or 0
