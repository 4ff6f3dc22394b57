"""The settings that decide the records of a run: their hash names the run, and decides whether it can be resumed.

A run may get more methods, cases and rounds. So the settings of every method are compared separately, and the rest
without the settings that select cases and rounds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from specbench.runs.config import WidenConfig
from specbench.serving.settings import ALONE

# Settings and parameters of methods that were added later -> the value that equals the earlier behaviour. A run with
# that value keeps its hash.
ADDED: dict[str, dict[str, Any]] = {
    "decode": {
        "first_draft": "after",
        "verify": "token",
        "accept": "exact",
        "accept_threshold": 0.09,
        "accept_alpha": 0.3,
        "accept_top": 10,
        "accept_delta": 0.6,
        "accept_thinking": False,
        "length": "fixed",
        "length_threshold": 0.3,
        "length_profile": None,
    },
    "engine": {"attention": "auto", "compiled": True, "acceptance": None, "keep_prefix": True},
    "model": {"cudnn_attention": False, "thinking": None, "overrides": None, "widen": asdict(WidenConfig())},
    "suite": {"fields": {"prompt": None, "id": None, "category": None, "reference": None}, "frame": None},
    "suite.fields": {"system": None},
    "load": ALONE,
    "methods.eagle.Eagle": {"vocabulary": None},
    "methods.eagle.Mtp": {"modules": None},
    "methods.medusa.Medusa": {"acceptance": "exact", "typical_threshold": 0.09, "typical_alpha": 0.3},  # now of decode
    "methods.ouroboros.Ouroboros": {"overshoot": "kept"},
    "methods.pard.Pard": {"nodes": None, "target_states": True, "safetensors": True},
    "methods.pld.PromptLookup": {"min_ngram": 1},
    "methods.self_speculation.SelfSpeculation": {"search": 0, "window": 32},
    "methods.server.method.ServerPeer": {
        "command": None,
        "endpoint": "completions",
        "start_s": 1800.0,
        "gpu_metrics": None,
    },
    "methods.suffix_decoding.SuffixDecoding": {"ties": "recent"},
}
OUTSIDE = ("report", "run")  # groups that change no record; below, such settings of other groups
OUTSIDE_OF = {"measure": ("fresh", "price_per_hour"), "suite": ("home",), "load": ("slo",)}
# The entries of ``model.heads`` that count. Later methods have the head that they use among their own settings.
HEADS = ("medusa", "hydra", "eagle", "eagle3", "safetensors")
# Of ``model``: a parameter of each method that uses it, with which it is compared.
MATERIAL = ("draft", "heads", "frozen_table", "datastore")
# Settings by which a run may grow without a change of its earlier figures.
GROWS = {"measure": ("rounds",), "suite": ("categories", "first", "ids", "limit", "sample")}


def decisive(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, as plain values, without those that change no record."""
    kept = {group: values for group, values in resolved.items() if group not in OUTSIDE}
    for group, keys in OUTSIDE_OF.items():
        kept[group] = {key: value for key, value in kept.get(group, {}).items() if key not in keys}
    if heads := kept.get("model", {}).get("heads"):
        kept["model"] = {**kept["model"], "heads": {name: heads[name] for name in HEADS if name in heads}}
    return kept


def digest(resolved: Mapping[str, Any]) -> str:
    """The hash of everything that can change a record."""
    kept = settled(resolved)
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def settled(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The decisive settings without those that were added later and have their earlier value."""
    kept = {group: _as_before(values, group) for group, values in decisive(resolved).items()}
    return {group: values for group, values in kept.items() if values or group != "load"}  # one request: as before


def _as_before(node: Any, group: str = "", fill: bool = False) -> Any:
    """The settings of a group or a method without those that were added later and have their earlier value.

    fill: with all of those instead.
    """
    if not isinstance(node, Mapping):
        return node
    name = str(node.get("_target_") or group)
    added = ADDED.get(name, {})
    given = {**node, **{key: value for key, value in added.items() if fill and key not in node}}
    values = {key: _as_before(value, f"{name}.{key}", fill) for key, value in given.items()}
    return {key: value for key, value in values.items() if fill or key not in added or value != added[key]}


def fixed(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that stay the same while a run grows: without its methods, cases and rounds."""
    kept = {group: _as_before(values, group, True) for group, values in decisive(resolved).items() if group != "method"}
    apart = {**GROWS, "model": MATERIAL}
    return kept | {
        group: {k: v for k, v in kept.get(group, {}).items() if k not in keys} for group, keys in apart.items()
    }


def of_methods(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Method -> its settings, which must stay the same while a run grows."""
    return {name: _as_before(node, fill=True) for name, node in resolved.get("method", {}).items()}


def with_outside(resolved: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with those that change no record taken from another command."""
    kept: dict[str, Any] = {**resolved, **{group: other[group] for group in OUTSIDE if group in other}}
    for group, keys in OUTSIDE_OF.items():
        kept[group] = {**kept.get(group, {}), **{key: other[group][key] for key in keys if key in other.get(group, {})}}
    return kept


def find_difference(one: Any, two: Any, path: str = "") -> tuple[str, Any, Any]:
    """The first entry in which two values differ: its dotted path ('' without a difference) and both values."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for key in [*one, *(key for key in two if key not in one)]:
            if one.get(key) != two.get(key):
                return find_difference(one.get(key), two.get(key), f"{path}.{key}".strip("."))
    return path, one, two
