"""Configuration against its schema: harness knobs against dataclasses, a method's against its own constructor."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any, get_type_hints

import pydantic

from specbench.explain import near
from specbench.job import Entry
from specbench.types import InputError, named

RESERVED = ("_target_", "reset")
ANY_CLASS = pydantic.ConfigDict(arbitrary_types_allowed=True)


def refuse_extras(values: Mapping[str, Any], schema: Any, prefix: str) -> None:
    """``+key=value`` gets past a typed root: refuse keys that the schema does not have."""
    hints = get_type_hints(schema)
    for key, value in values.items():
        if key not in hints:
            raise InputError(f"{prefix}{key}: no such setting; {near(key, list(hints))}")
        inner = [
            kind for kind in (hints[key], *getattr(hints[key], "__args__", ())) if hasattr(kind, "__dataclass_fields__")
        ]
        if inner and isinstance(value, Mapping):
            refuse_extras(value, inner[0], f"{prefix}{key}.")


def make_entry(name: str, node: Mapping[str, Any]) -> Entry:
    """One method from its configuration; its constructor is its schema. Raises InputError."""
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise InputError(
            f"method.{name}: has no _target_; choose it with method=[{name}] before setting its parameters"
        )
    try:
        kind = pkgutil.resolve_name(node["_target_"])
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"method.{name}._target_={node['_target_']}: cannot be imported ({error})") from error
    parameters = {key: value for key, value in node.items() if key not in RESERVED}
    arguments = {key: _with_members(f"{name}.{key}", value) for key, value in parameters.items()}
    _check_parameters(name, kind, arguments)
    with named(f"method.{name}."):
        method = kind(**arguments)
    return Entry(name, method, node.get("reset", "case"), parameters)


def _with_members(name: str, value: Any) -> Any:
    """A mapping of configured methods, which a method may be composed of, as methods; anything else as it is."""
    if not isinstance(value, Mapping) or not any(
        isinstance(part, Mapping) and "_target_" in part for part in value.values()
    ):
        return value
    return {key: make_entry(f"{name}.{key}", part).method for key, part in value.items()}


def _check_parameters(name: str, kind: type, parameters: Mapping[str, Any]) -> None:
    """Names and types against the constructor's signature."""
    signature = inspect.signature(kind)
    hints = get_type_hints(vars(kind).get("__init__", object))
    for key, value in parameters.items():
        if key not in signature.parameters:
            raise InputError(f"method.{name}.{key}: no such parameter; {near(key, list(signature.parameters))}")
        if key not in hints:
            continue
        try:
            pydantic.TypeAdapter(hints[key], config=ANY_CLASS).validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            wanted = error.errors()[0]["msg"]
            raise InputError(f"method.{name}.{key}={value}: {wanted} (declared {hints[key]})") from error
    missing = [
        key
        for key, parameter in signature.parameters.items()
        if parameter.default is parameter.empty and key not in parameters
    ]
    if missing:
        raise InputError(f"method.{name}: lacks {', '.join(missing)}; set them with method.{name}.{missing[0]}=...")
