"""The shards of a merged run: which machine measured what, and whether their speeds differ by more than noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builders.records import record, turn
from specbench.records.store import Run
from specbench.report.frames.facts import read_facts
from specbench.report.frames.findings import gather
from specbench.report.frames.reported import Control, MeasuredShard, doubt_shards, read_shards
from specbench.report.frames.trials import read_trials
from specbench.report.tables.detail import shards_tables
from specbench.stats import Estimate


def shard(part: str, seconds: float, noise: float = 0.001, width: float = 0.0001) -> MeasuredShard:
    control = Control(Estimate(1.0, 1 - noise, 1 + noise, 50))
    return MeasuredShard(part, f"machine {part}", 50, Estimate(seconds, seconds - width, seconds + width, 50), control)


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        ([shard("1/2", 0.0100), shard("2/2", 0.0110)], ["vanilla 100.0 tokens/s in part 1/2", "90.9 in 2/2"]),
        ([shard("1/2", 0.0100), shard("2/2", 0.01005)], []),  # within 1 %
        ([shard("1/2", 0.0100, noise=0.2), shard("2/2", 0.0110)], ["unsteady"]),  # within its A/A
        ([shard("1/2", 0.0100, width=0.001), shard("2/2", 0.0110)], []),  # other cases alone explain it
        ([shard("1/1", 0.0100)], []),
        (
            [replace(shard("1/2", 0.0100), control=None), replace(shard("2/2", 0.0110), control=None)],
            ["how much of it is noise is unknown"],
        ),
    ],
)
def test_speeds_that_differ_beyond_noise_are_a_warning(shards, said):
    found = list(doubt_shards(shards))
    assert len(found) == bool(said)
    assert all(part in found[0] for part in said)


def test_the_report_says_which_machine_measured_what():
    records = [
        record(method, str(case), [turn([1, 1], prefill_s=case % 2 + 1.0)], block=case, shard=case % 2)
        for case in range(4)
        for method in ("vanilla", "vanilla_aa")
    ]
    manifest = {
        "model": {"name": "m", "device": "cpu"},
        "suite": {"name": "s", "cases": 4},
        "methods": {"vanilla": {}},
        "shards": [{"part": "1/2", "cases": 2}, {"part": "2/2", "cases": 2}],
        "processes": [
            {"shard": 0, "machine": {"cpu": "fast", "threads": 1}},
            {"shard": 1, "machine": {"cpu": "slow", "threads": 1}},
        ],
    }
    run = Run(Path("runs/one"), manifest, records)
    found = read_shards(run, read_facts(run), read_trials(records))
    assert [each.per_token_s.value for each in found] == [2 / 3, 1.0]
    assert [each.control.retimed.value for each in found] == [1.0, 1.0]
    [table] = shards_tables(gather([run]))
    assert [[cell.text for cell in row[1:4]] for row in table.rows] == [
        ["1/2", "fast, 1 thread", "2"],
        ["2/2", "slow, 1 thread", "2"],
    ]
    assert shards_tables(gather([Run(run.directory, {**manifest, "shards": []}, records)])) == []
