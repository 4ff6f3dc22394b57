"""Every class of methods with drafts decodes on two devices, and on two processes, what it decodes
on one.
"""

from __future__ import annotations

import contextlib

import pytest
from places import Places, spread_layers
from runs.test_parallel_run import compared

import specbench.runs.sources
from builders.runs import execute_job
from specbench.records.record import VANILLA

SUITE = (
    "suite.limit=1",
    "suite.first=1",
    "suite.categories=[summarization,qa,code]",
    "decode.max_new_tokens=7",
    "measure=quick",
    "measure.warmup=0",
)
PIPELINE = "engine=eager"
TENSOR = ("engine=fast", "model.gpus=2", "model.device=cpu", "model.check_ranks=true")

# One of each kind: drafts from the context, logits, rows, hidden states, heads, a draft model, one
# at the same time.
KINDS = ("pld", "token_recycling", "n_grammys", "eagle3", "medusa", "speculative_sampling", "card")


def turns(folder, *overrides):
    records = execute_job(folder, *SUITE, *overrides)
    assert not [record.error["traceback"] for record in records if record.error]
    return {(record.method, record.case): record.turns for record in records}


@contextlib.contextmanager
def two_devices():
    """The model's last layers lie on a device of their own."""
    with pytest.MonkeyPatch.context() as patch, Places() as places:
        load = specbench.runs.sources.load_model
        patch.setattr(
            specbench.runs.sources,
            "load_model",
            lambda card, **given: spread_layers(load(card, **given), 2, patch),
        )
        yield
    assert places.moved["cpu:0", "cpu:1"]


# Lookups share one way to the device, ``pld``'s; the others read logits or states, or have layers
# of their own.
LAYERED = (
    *KINDS,
    "eagle",
    "mtp",
    "p_eagle",
    "dflash",
    "hydra_heads",
    "pard",
    "opt_tree",
    "hybrid",
    "pearl",
    "jacobi",
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in KINDS[:4] else pytest.mark.exhaustive)
        for name in LAYERED
    ],
)
def test_layers_on_two_devices(name, together):
    _, one = together.run(name, *SUITE, PIPELINE)
    _, two = together.run(name, *SUITE, PIPELINE, within=two_devices)
    bad = [
        record.error
        for records in (one, two)
        for record in records.values()
        if record.status != "ok"
    ]
    assert not bad, bad
    compared(*({key: record.turns for key, record in records.items()} for records in (one, two)))


@pytest.mark.parametrize(
    "names",
    [KINDS, [name for name in LAYERED if name not in KINDS]],
    ids=["kinds", "others"],
)
@pytest.mark.slow
# tests/runs/test_parallel_run.py has two processes in every run of the tests
@pytest.mark.exhaustive
def test_two_processes(tmp_path, names):
    methods = f"method=[{','.join(names)}]"
    one = turns(tmp_path / "one", methods, "engine=fast")
    assert {method for method, _ in one} == {VANILLA, *names}
    compared(one, turns(tmp_path / "two", methods, *TENSOR))
