"""The number of CPU threads: what is given is taken, else the smallest that no larger one beats by
enough.
"""

from __future__ import annotations

import pytest
import torch

from builders.models import build
from builders.runs import job_for
from specbench.decode import threads
from specbench.decode.threads import (
    ThreadChoice,
    choose_threads,
    list_counts,
    pick_count,
    time_steps,
)
from specbench.models.eager.engine import EagerEngine
from specbench.records.manifest import Threads
from specbench.records.store import read_manifest
from specbench.runs.execution import execute


@pytest.fixture
def engine():
    before = torch.get_num_threads()
    yield EagerEngine(build("llama"), 128, frozenset({2}), 8)
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_counts_double_up_to_all(most, counts):
    assert list_counts(most) == counts


@pytest.mark.parametrize(
    ("times", "count"),
    [
        ({1: 1.0, 2: 1.3}, 1),
        ({1: 1.0, 2: 0.96}, 1),  # not worth a thread
        ({1: 1.0, 2: 0.9, 4: 0.89}, 2),
        ({1: 4.0, 2: 2.0, 4: 1.0}, 4),
    ],
)
def test_a_thread_has_to_be_worth_it(times, count):
    assert pick_count(times) == count


def test_a_given_count_is_taken_unmeasured(engine, monkeypatch):
    monkeypatch.setattr(threads, "time_steps", lambda *_: pytest.fail("measured"))
    assert choose_threads(engine, 3, 2) == ThreadChoice(3, {})
    assert torch.get_num_threads() == 3
    assert choose_threads(engine, None, 2) == ThreadChoice(2, {})
    torch.set_num_threads(1)
    assert choose_threads(engine, None) == ThreadChoice(1, {})


def test_the_fastest_count_is_set_and_its_ratios_are_kept(engine, monkeypatch):
    torch.set_num_threads(2)
    monkeypatch.setattr(
        threads, "time_steps", lambda engine, counts: {each: 3.0 / each for each in counts}
    )
    assert choose_threads(engine, None) == ThreadChoice(2, {"1": 1.0, "2": 0.5})
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("time_of", "times", "order"),
    [
        (lambda seen: len(seen), {1: 1, 2: 2}, [1, 2, 2, 1]),
        (lambda seen: seen[-1] ** 2, {1: 1, 2: 4}, [1, 2]),  # far behind, it is not timed again
    ],
)
def test_every_count_is_timed_in_turn(engine, monkeypatch, time_of, times, order):
    assert 0 < threads._time_in_a_row(engine) < 10
    seen: list[int] = []
    monkeypatch.setattr(
        threads, "_time_in_a_row", lambda _: seen.append(torch.get_num_threads()) or time_of(seen)
    )
    monkeypatch.setattr(threads, "BUDGET_S", 0.0)
    assert time_steps(engine, [1, 2]) == times
    assert seen == order


@pytest.mark.exhaustive
def test_the_manifest_has_the_count_and_a_resumed_run_keeps_it(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "time_steps", lambda engine, counts: {1: 1.0, 2: 2.0})
    torch.set_num_threads(2)
    settings = (
        "method=[]",
        "model.threads=null",
        "measure=quick",
        "measure.warmup=0",
        "suite.limit=1",
        "suite.first=2",
        "decode.max_new_tokens=4",
    )
    execute(job_for(*settings), tmp_path, lambda *_: None)
    chosen = Threads(count=1, ratios={"1": 1.0, "2": 2.0})
    assert read_manifest(tmp_path).threads == chosen
    assert read_manifest(tmp_path).machine.threads == 1
    lines = (tmp_path / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_text(lines[0])
    monkeypatch.setattr(threads, "time_steps", lambda *_: pytest.fail("measured again"))
    execute(job_for(*settings), tmp_path, lambda *_: None)
    manifest = read_manifest(tmp_path)
    assert manifest.threads == chosen
    assert [each.machine.threads for each in manifest.processes] == [1, 1]
