"""Every model of conf/model composes; test_fast.py decodes with kinds of configuration."""

from __future__ import annotations

import pytest

from builders.runs import composed
from specbench.models.load import read_card
from specbench.runs.config import conf_dir

NAMES = sorted(path.stem for path in (conf_dir() / "model").glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_composes(name):
    cfg = composed(f"model={name}")
    assert cfg.hydra.run.dir.startswith("results/")
    assert (conf_dir() / "model" / f"{name}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize(
    ("level", "dtype", "warned"),
    [
        ("AVX2", "bfloat16", True),
        ("AVX2", "float16", True),
        ("AVX2", "float32", False),
        ("AVX512", "bfloat16", False),
        ("DEFAULT", "auto", False),
    ],
)
def test_half_precision_on_a_processor_without_its_products_is_named(
    monkeypatch, level, dtype, warned
):
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: level)
    found = read_card(path="bundled:tiny", dtype=dtype).warnings
    assert [f"model.dtype={dtype}" in text for text in found] == [True] * warned
