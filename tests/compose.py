"""Composing a configuration in a test exactly as the command line does."""

from __future__ import annotations

from hydra import compose, initialize_config_dir

from specbench import cli


def composed(*overrides: str):
    """The configuration that ``specbench OVERRIDES`` would run."""
    cli.register()
    with initialize_config_dir(str(cli.conf_dir()), version_base="1.3"):
        return compose("config", list(overrides), return_hydra_config=True)


def job_for(*overrides: str):
    """The checked job of ``specbench OVERRIDES``."""
    return cli.make_job(composed(*overrides))
