"""Whole runs on two processes: the same records as on one; a rank that is lost ends the run, and it
can be resumed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest

import specbench.models.tensor_parallel.start
import specbench.runs.sources
from builders.runs import execute_job, job_for
from methods.pld import PromptLookup
from specbench.models.choose import choose_parallelism
from specbench.models.tensor_parallel.start import start
from specbench.records.manifest import Parallel
from specbench.records.store import read_manifest, read_run
from specbench.runs.execution import execute
from specbench.runs.launch import run_job
from specbench.screen import FAILED
from specbench.types import InputError

METHODS = {  # greedy ones of every kind: tests/methods/test_several_gpus.py
    "greedy": ("pld", "cacheback"),
    "sample": ("pld", "token_recycling", "cacheback", "eagle", "n_grammys", "speculative_sampling"),
    "load": ("pld", "token_recycling", "eagle", "n_grammys", "speculative_sampling"),
}
SETTINGS = {
    "greedy": (),
    "sample": ("decode.temperature=0.8",),
    "load": ("load=closed", "load.requests=2", "load.block=2", "load.ramp=1", "load.tokens=2000"),
}
SHORT = (
    "suite.limit=1",
    "suite.first=2",
    "decode.max_new_tokens=10",
    "measure=quick",
    "measure.warmup=0",
)
TWO = ("model.gpus=2", "model.device=cpu", "engine=fast")


def turns(folder, *overrides):
    records = execute_job(folder, *SHORT, *overrides)
    assert not [record.error for record in records if record.error]
    return {(record.method, record.case): record.turns for record in records}


def compared(one, two):
    assert one.keys() == two.keys()
    for key, expected in one.items():
        for theirs, ours in zip(expected, two[key], strict=True):
            assert ours.ids == theirs.ids, key
            assert (ours.accept, ours.proposed, ours.fed) == (
                theirs.accept,
                theirs.proposed,
                theirs.fed,
            ), key


@pytest.mark.parametrize(
    "kind", ["greedy", *(pytest.param(k, marks=pytest.mark.exhaustive) for k in ("sample", "load"))]
)
def test_methods_on_the_bundled_model(kind, tmp_path):
    """Chains, trees, rows, device tables, hidden states and a draft model of its own; checked after
    every step.
    """
    settings = (f"method=[{','.join(METHODS[kind])}]", *SETTINGS[kind])
    one = turns(tmp_path / "one", *settings, "engine=fast")
    two = turns(tmp_path / "two", *settings, *TWO, "model.check_ranks=true")
    assert len(one) == (1 + len(METHODS[kind])) * 2
    compared(one, two)
    alone, shared = (read_manifest(tmp_path / each) for each in ("one", "two"))
    assert (alone.parallel, shared.parallel) == (None, Parallel(way="tensor", gpus=2))
    assert shared.model.parameters == alone.model.parameters


def test_a_lost_rank_ends_the_run_with_its_name_and_the_same_command_goes_on(
    tmp_path, monkeypatch, capsys
):
    whole = turns(tmp_path / "whole", "method=[pld]", "engine=fast")
    engines, blocks = [], []
    monkeypatch.setattr(
        specbench.runs.sources, "start", lambda terms: engines.append(start(terms)) or engines[-1]
    )
    begin = PromptLookup.begin

    def shoot(self, *given):
        blocks.append(given)
        if len(blocks) == 3:  # in the second case
            os.kill(engines[0][0]._ranks.processes[0].pid, signal.SIGKILL)
            time.sleep(0.3)
        return begin(self, *given)

    settings = (
        *SHORT,
        "method=[pld]",
        *TWO,
        "report.plots=false",
        "report.progress=false",
        "measure.lossless=false",
    )
    monkeypatch.setattr(PromptLookup, "begin", shoot)
    assert run_job(job_for(*settings), tmp_path / "two") == FAILED
    shown = " ".join(capsys.readouterr().out.split())
    assert "the run ends: rank 1 (process" in shown
    assert "ended with exit code -9" in shown
    done = read_run(tmp_path / "two").records
    assert 0 < len(done) < len(whole)
    assert all(record.status == "ok" for record in done)
    monkeypatch.setattr(PromptLookup, "begin", begin)
    compared(whole, turns(tmp_path / "two", "method=[pld]", *TWO, *settings[-3:]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("engine=fast", "model.gpus=2", "method=[hf_generate]"),
            "method.hf_generate decodes with the library's own",
        ),
        (("engine=fast", "model.gpus=3"), "heads do not divide by 3"),
        (
            ("engine=eager", "model.gpus=2", "model.parallel=tensor"),
            "engine=eager cannot run on several ranks",
        ),
        (("engine=fast", "model.gpus=2", "model.parallel=pipeline"), "expected engine=eager"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_weights_are_read(overrides, message):
    with pytest.raises(InputError, match=message):
        job_for("method=[pld]", "model.device=cpu", *overrides)


def test_where_not_all_can_be_shared_auto_takes_the_pipeline():
    """Its reasons are printed; on a CPU there are none."""
    card = job_for("method=[pld]", "model.device=cpu").source.card
    given = {"parallel": "auto", "gpus": 2, "engine": "auto", "attention": "sdpa"}
    assert choose_parallelism(card, **given, peers=()) == ("tensor", None)
    there = replace(card, device="cuda:0")
    way, reason = choose_parallelism(there, **given, peers=["hf_generate"])
    assert (way, "hf_generate" in reason) == ("pipeline", True)
    assert choose_parallelism(there, **{**given, "engine": "eager"}, peers=())[0] == "pipeline"
    assert choose_parallelism(card, **{**given, "gpus": 1}, peers=()) == (None, None)


def test_a_team_that_fails_to_load_leaves_nothing_behind(tmp_path, monkeypatch):
    job = job_for(*SHORT, "method=[pld]", *TWO)

    def broken(*_, **__):
        raise RuntimeError("no room")

    monkeypatch.setattr(specbench.models.tensor_parallel.start, "load_share", broken)
    with pytest.raises(RuntimeError, match="no room"):
        execute(job, tmp_path, lambda *_: None)
    assert not [each for each in multiprocessing.active_children() if each.name.startswith("rank")]
