"""Properties of model families: attention kinds, sliding windows, and support for explicit masks
and positions.
"""

from __future__ import annotations

from typing import Any

from specbench.types import InputError

LEAST_CONTEXT = 16  # [tokens] the check of an engine before a run reads almost as many
MOST_CONTEXT = 1 << 24  # [tokens] tables of positions are as long
SERVED_KINDS = {"full_attention", "sliding_attention"}
SWITCHING_ROPE = ("longrope", "dynamic")
FULL, SLIDING = "full_attention", "sliding_attention"
# these families have neither windows nor kinds; such entries of a configuration are ignored
NO_WINDOW = ("llama",)
ONE_WINDOW = ("mistral", "phi3")  # these have one window for all layers
# entries of a mixture of experts
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


def list_attention_kinds(config: Any) -> list[str]:
    """Return the (L,) attention kind of each layer, as in the library's model."""
    text = config.get_text_config()
    given = (
        None if text.model_type in (*NO_WINDOW, *ONE_WINDOW) else getattr(text, "layer_types", None)
    )
    return list(given or [FULL] * text.num_hidden_layers)


def find_head_size(text: Any) -> int:
    """Return the size of a head. text: the configuration of the language model."""
    return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)


def has_experts(config: Any) -> bool:
    """Return whether rows are routed to some of several experts."""
    return any(getattr(config.get_text_config(), name, None) for name in EXPERTS)


def find_windows(config: Any) -> dict[str, int | None]:
    """Map attention kind -> sliding window [positions]; a model with several kinds takes one mask
    for each.
    """
    text = config.get_text_config()
    if text.model_type in NO_WINDOW:
        return {FULL: None}
    window = getattr(text, "sliding_window", None)
    if text.model_type in ONE_WINDOW or not getattr(text, "layer_types", None):
        return {FULL: window}
    return {
        kind: window if kind == SLIDING else None
        for kind in sorted(set(list_attention_kinds(config)))
    }


def check_family(config: Any, key: str) -> None:
    """Raise InputError for a family whose layers compute positions or masks in a way that a draft
    tree would break.
    """
    text = config.get_text_config()
    other = set(getattr(text, "layer_types", None) or ()) - SERVED_KINDS
    reason = None
    if other:
        reason = (
            f"has layers of the kind {', '.join(sorted(other))}; expected"
            f" {' or '.join(sorted(SERVED_KINDS))}, whose states can be cut back to the accepted"
            " tokens and whose masks follow positions"
        )
    elif getattr(text, "alibi", False) or text.model_type in ("bloom", "mpt"):
        reason = "takes positions from cache slots (ALiBi); expected explicit positions"
    elif "local" in str(getattr(text, "attention_types", "")):
        reason = "has local attention by cache slots; expected a sliding window or none"
    if reason:
        raise InputError(
            f"{key}: the family {text.model_type} {reason}: draft trees would be verified wrongly"
        )


def find_steady_context(config: Any, limit: int) -> tuple[int, str | None]:
    """Return the context [tokens] in which rotary angles do not depend on neighbours; a warning if
    it is below limit.

    The library switches ``longrope`` and ``dynamic`` scaling for a whole forward by its largest
    position, so a rejected draft node beyond the switch would change the accepted ones.
    """
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [entry for entry in (rope, *rope.values()) if isinstance(entry, dict)]
    for entry in kinds:
        if entry.get("rope_type") in SWITCHING_ROPE:
            own = getattr(config.get_text_config(), "original_max_position_embeddings", None)
            original = int(entry.get("original_max_position_embeddings") or own or limit)
            if original < limit:
                return (
                    original,
                    (
                        f"context limited to {original} of {limit} tokens: {entry['rope_type']}"
                        " scaling changes there for a whole forward at once, and verification"
                        " would not be exact beyond it"
                    ),
                )
    return limit, None


def choose_context(
    config: Any, asked: int | None, fallback: int, key: str
) -> tuple[int, str | None]:
    """Return the limit of a request [tokens], configured or the model's own; and a warning if that
    is reduced.

    fallback: the tokenizer's limit, for a configuration without one.
    """
    own = int(getattr(config.get_text_config(), "max_position_embeddings", 0) or fallback)
    limit, warning = find_steady_context(config, own)
    chosen, most = asked or limit, min(limit, MOST_CONTEXT)
    if most < LEAST_CONTEXT:
        raise InputError(
            f"{key}: the model's own limit is {most} tokens; expected at least {LEAST_CONTEXT}"
        )
    if not LEAST_CONTEXT <= chosen <= most:
        raise InputError(
            f"{key}={chosen}: expected {LEAST_CONTEXT}..{most}, from what the check before a run"
            " reads to the model's own limit"
        )
    return chosen, warning
