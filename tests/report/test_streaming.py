"""A report of many records: steps in blocks on the disk, records read when asked for, figures as of all at once."""

from __future__ import annotations

import numpy as np
import pytest
from report.conftest import build_run
from report.test_predict import FIT

from specbench.records.store import open_run, read_run
from specbench.report import gather
from specbench.report.frames import steps
from specbench.report.frames.load import model_load
from specbench.report.frames.trials import Tally, read_trials


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return build_run(tmp_path_factory.mktemp("many") / "run", per_category=2, rounds=2)


def test_blocks_change_no_figure(directory, monkeypatch):
    """But for the order in which times are added."""
    run = read_run(directory)
    whole = gather([run], [FIT])
    monkeypatch.setattr(steps, "_PART", 16)
    monkeypatch.setattr(steps, "_BLOCK", 100)
    monkeypatch.setattr(steps, "_MEMORY_BYTES", 1000)
    cut = gather([run], [FIT])
    blocks = list(cut.reported[0].trials.of("pld").turns.steps.blocks())
    assert len(blocks) > 2
    assert whole.summary.equals(cut.summary)
    for name, frame in whole.detail.items():
        inexact = frame.columns.intersection(["step_ms"])
        assert frame.drop(columns=inexact).equals(cut.detail[name].drop(columns=inexact)), name
        assert np.allclose(
            frame[inexact].astype(float), cut.detail[name][inexact].astype(float), rtol=1e-12, equal_nan=True
        )
    one, other = (model_load(found) for found in (whole, cut))
    assert np.allclose(one.speedups["modelled_speedup"], other.speedups["modelled_speedup"], rtol=1e-12)
    assert one.pays.equals(other.pays)


def test_a_median_of_counts_is_that_of_the_values():
    assert steps.median({5: 3, 1: 2, 9: 1}) == np.median([5, 5, 5, 1, 1, 9])


def test_a_streamed_run_has_the_records_of_the_file(directory):
    tally, held = Tally(), read_run(directory)
    run = open_run(directory, tally.add)
    assert len(run.records) == len(held.records)
    assert list(run.records) == held.records
    assert run.records[-1] == held.records[-1]
    assert run.records[2:9:3] == held.records[2:9:3]
    streamed, whole = tally.end(run.records), read_trials(held.records)
    for name, column in whole.columns("pld").items():
        assert np.array_equal(streamed.columns("pld")[name], column, equal_nan=True), name
