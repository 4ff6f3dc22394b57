"""A method in a run: made from its configuration, whose ``_target_`` names a class and whose other
keys its arguments.

The constructor of a method is the schema of its settings. Only modules that may contain methods are
imported.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_type_hints

import pydantic

from specbench.method import Method
from specbench.models.facade import ModelCard
from specbench.names import near
from specbench.types import InputError, named

# keys of a method's configuration that are not arguments of its constructor
RESERVED = ("_target_", "reset")
# our own package; the group of a plugin's entry point
METHODS, PLUGINS = "methods", "specbench.methods"
ANY_CLASS = pydantic.ConfigDict(arbitrary_types_allowed=True)


@dataclass(frozen=True, slots=True)
class Entry:
    """A method in a run. name: of its rows. reset: what it may remember. parameters: its settings,
    for the manifest.
    """

    name: str
    method: Method
    reset: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def check_model(self, card: ModelCard) -> None:
        """Raise InputError for a model that the method cannot draft for."""
        with named(f"method.{self.name}."):
            self.method.check(card)


def make_entry(name: str, node: Mapping[str, Any]) -> Entry:
    """One method from its configuration; its constructor is its schema. Raises InputError."""
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise InputError(
            f"method.{name}: has no _target_; choose it with method=[{name}] before setting its"
            " parameters"
        )
    kind = _method_class(f"method.{name}._target_={node['_target_']}", str(node["_target_"]))
    parameters = {key: value for key, value in node.items() if key not in RESERVED}
    arguments = {key: _with_members(f"{name}.{key}", value) for key, value in parameters.items()}
    _check_parameters(name, kind, arguments)
    with named(f"method.{name}."):
        method = kind(**arguments)
    return Entry(name, method, node.get("reset", "case"), parameters)


def _method_class(key: str, target: str) -> type[Method]:
    """The class that a ``_target_`` names. No other package is imported, and nothing is called."""
    package = re.split("[.:]", target)[0]
    if not _is_plugin(package):
        raise InputError(
            f"{key}: {package} contains no methods; expected a class of {METHODS}, of a package"
            f" with an entry point in the group {PLUGINS}, or of a module in the working directory"
            " or a folder of PYTHONPATH"
        )
    try:
        kind = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{key}: cannot be imported ({error})") from error
    if not (isinstance(kind, type) and issubclass(kind, Method)) or inspect.isabstract(kind):
        raise InputError(
            f"{key}: expected a subclass of specbench.method.Method with all that it requires"
        )
    return kind


def _is_plugin(package: str) -> bool:
    """Returns whether a package may contain methods, without importing it."""
    if package == METHODS or package in {
        point.module.partition(".")[0] for point in entry_points(group=PLUGINS)
    }:
        return True
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return True  # the import reports what is missing
    places = spec.submodule_search_locations or ([str(spec.origin)] if spec.has_location else [])
    own = {
        Path(folder).resolve()
        for folder in (".", *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    }
    return any(Path(place).resolve().parent in own for place in places)


def _with_members(name: str, value: Any) -> Any:
    """A mapping of configured methods, which a method may be composed of, as methods; anything else
    unchanged.
    """
    if not isinstance(value, Mapping) or not any(
        isinstance(part, Mapping) and "_target_" in part for part in value.values()
    ):
        return value
    return {key: make_entry(f"{name}.{key}", part).method for key, part in value.items()}


def _check_parameters(name: str, kind: type, parameters: Mapping[str, Any]) -> None:
    """Names and types against the constructor's signature."""
    signature = inspect.signature(kind)
    own = vars(kind)  # the fields of a dataclass are resolved where they are declared
    hints = get_type_hints(kind if "__dataclass_fields__" in own else own.get("__init__", object))
    for key, value in parameters.items():
        if key not in signature.parameters:
            raise InputError(
                f"method.{name}.{key}: no such parameter; {near(key, list(signature.parameters))}"
            )
        if key not in hints:
            continue
        try:
            pydantic.TypeAdapter(hints[key], config=ANY_CLASS).validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            raise InputError(f"method.{name}.{key}={value}: {error.errors()[0]['msg']}") from error
    required = [key for key, each in signature.parameters.items() if each.default is each.empty]
    if missing := [key for key in required if key not in parameters]:
        raise InputError(
            f"method.{name}: lacks {', '.join(missing)}; set them with"
            f" method.{name}.{missing[0]}=..."
        )
