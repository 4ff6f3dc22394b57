"""Composing a configuration in a test exactly as the command line does."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

from methods.parts.runtimes.runtime_peer import RuntimePeer
from specbench.runs import composition, job
from specbench.runs.config import conf_dir
from specbench.runs.entry import Entry, make_entry


def composed(*overrides: str):
    """The configuration that ``specbench OVERRIDES`` would run; not to be changed."""
    composition.register()
    return composition.compose_config("config", list(overrides))


@functools.cache
def method_names() -> tuple[str, ...]:
    """Every method in conf/method that decodes by itself: not a server, which needs one."""
    names = {path.stem for path in (conf_dir() / "method").glob("*.yaml")}
    return tuple(sorted(names - {"server"}))


def one_of_each_class() -> list[str]:
    """The first method of each class: parameters of a table change nothing where engines are compared."""
    first: dict[type, str] = {}
    for name in method_names():
        first.setdefault(type(entry_of(name).method), name)
    return list(first.values())


def entry_of(name: str) -> Entry:
    """A method as ``specbench method=[NAME]`` makes it: a new one each time."""
    return make_entry(name, settings_of(name))


def explain_missing(name: str) -> str | None:
    """The package that a method needs and this environment has not."""
    method = entry_of(name).method
    return method.package if isinstance(method, RuntimePeer) and find_spec(method.module) is None else None


def settings_of(name: str) -> dict[str, Any]:
    """A method's settings as ``specbench method=[NAME]`` has them; not to be changed."""
    return _settings()[name]


@functools.cache
def _settings() -> dict[str, dict[str, Any]]:
    """Of all methods, composed once: alone or beside others, a method has the same settings."""
    return composition.plain_values(composed(f"method=[{','.join(method_names())}]"))["method"]


def job_for(*overrides: str):
    """The checked job of ``specbench OVERRIDES``."""
    return job.job_of(overrides)
