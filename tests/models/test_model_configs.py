"""Every model of conf/model composes; test_fast.py decodes with kinds of configuration."""

from __future__ import annotations

import pytest

from builders.runs import composed
from specbench.runs.config import conf_dir

NAMES = sorted(path.stem for path in (conf_dir() / "model").glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_composes(name):
    cfg = composed(f"model={name}")
    assert cfg.hydra.run.dir.startswith("results/")
    assert (conf_dir() / "model" / f"{name}.yaml").read_text().startswith("# ")
