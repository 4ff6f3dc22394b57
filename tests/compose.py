"""Composing a configuration in a test exactly as the command line does."""

from __future__ import annotations

import functools

from specbench import cli
from specbench.job import make_entry
from specbench.session import Entry


def composed(*overrides: str):
    """The configuration that ``specbench OVERRIDES`` would run; not to be changed."""
    cli.register()
    return cli._compose("config", list(overrides))


@functools.cache
def method_names() -> tuple[str, ...]:
    """Every method in conf/method."""
    return tuple(sorted(path.stem for path in (cli.conf_dir() / "method").glob("*.yaml")))


def entry_of(name: str) -> Entry:
    """A method as ``specbench method=[NAME]`` makes it: a new one each time."""
    return make_entry(name, _settings(name))


@functools.cache
def _settings(name: str):
    return cli._plain(composed(f"method=[{name}]"))["method"][name]


def job_for(*overrides: str):
    """The checked job of ``specbench OVERRIDES``."""
    return cli.job_of(overrides)
