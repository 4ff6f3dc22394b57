"""Composing a configuration in a test exactly as the command line does."""

from __future__ import annotations

from specbench import cli


def composed(*overrides: str):
    """The configuration that ``specbench OVERRIDES`` would run."""
    cli.register()
    return cli._compose("config", list(overrides))


def job_for(*overrides: str):
    """The checked job of ``specbench OVERRIDES``."""
    return cli.job_of(overrides)
