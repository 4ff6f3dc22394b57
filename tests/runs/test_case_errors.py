"""A fault during a run becomes an error row with its traceback; the run continues and the figures
exclude it.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from builders.runs import by_case, execute_job, job_for
from methods.pld import PromptLookup, _Lookup
from specbench.models.fast.engine import FastEngine
from specbench.runs import sources
from specbench.runs.launch import run_job
from specbench.screen import FAILED
from specbench.types import Draft

OPTIONS = ("method=[pld]", "decode.max_new_tokens=12", "measure=quick", "measure.warmup=0")


def records_of(folder, *overrides):
    return by_case(execute_job(folder, *OPTIONS, *overrides))


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "question.jsonl"
    rows = [
        {"question_id": 1, "category": "qa", "turns": ["short"]},
        {"question_id": 2, "category": "qa", "turns": ["word " * 5000]},
        {"question_id": 3, "category": "qa", "turns": ["short again"]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"suite.path={path}"


def test_prompt_longer_than_the_context(tmp_path, suite):
    records = records_of(tmp_path / "r", "suite=spec_bench", suite)
    for method in ("vanilla", "pld"):
        assert [records[method, case].status for case in "123"] == ["ok", "error", "ok"]
        error = records[method, "2"].error
        assert "context of 4096" in error["message"]
        assert "CaseError" in error["traceback"]


def test_nan_logits(tmp_path, suite, monkeypatch):
    load = sources.load_model

    def broken(*args, **kwargs):
        model = load(*args, **kwargs)
        model.lm_head.weight.data[7, 0] = float("nan")
        return model

    monkeypatch.setattr(sources, "load_model", broken)
    monkeypatch.setattr(sources, "check_engine", lambda *_: None)  # it refuses such weights
    records = records_of(tmp_path / "r", "suite=spec_bench", suite, "suite.ids=[1,3]")
    assert {record.status for record in records.values()} == {"error"}
    assert "NaN or infinite" in records["vanilla", "1"].error["message"]


def raising(error):
    def broken(*_, **__):
        raise error

    return broken


@pytest.mark.parametrize(
    ("owner", "name", "broken", "message"),
    [
        (
            PromptLookup,
            "begin",
            raising(torch.OutOfMemoryError("CUDA out of memory")),
            "CUDA out of memory",
        ),
        (_Lookup, "propose", lambda *_: Draft([1, 2], [1, -1]), "parent of node 0 is 1"),
        *(
            (_Lookup, "stats", lambda _, value=value: {"hits": value}, "")
            for value in (np.nan, "many")
        ),
    ],
)
def test_what_one_method_raises_leaves_the_others(
    tmp_path, suite, monkeypatch, owner, name, broken, message
):
    """Also figures that cannot be written."""
    monkeypatch.setattr(owner, name, broken)
    records = records_of(tmp_path / "r", "suite=spec_bench", suite, "suite.ids=[1,3]")
    for case in "13":
        assert records["vanilla", case].status == "ok"
        assert records["pld", case].status == "error"
        assert message in records["pld", case].error["message"]


def test_two_turns_feed_the_methods_own_answer(tmp_path):
    records = records_of(tmp_path / "r", "suite.categories=[multi-turn]", "suite.limit=2")
    for record in records.values():
        assert len(record.turns) == 2
        assert (
            record.turns[1].prompt_tokens
            > record.turns[0].prompt_tokens + len(record.turns[0].ids) - 3
        )
    vanilla = next(record for (method, _), record in records.items() if method == "vanilla")
    first, second = vanilla.turns
    assert second.prompt_ids[: first.prompt_tokens] == first.prompt_ids


def test_drafts_of_numpy_numbers_are_written(tmp_path, suite, monkeypatch):
    monkeypatch.setattr(
        _Lookup, "propose", lambda self, context, budget: Draft.chain(np.array(context[:4]))
    )
    records = records_of(
        tmp_path / "r", "suite=spec_bench", suite, "suite.ids=[1]", "measure.keep_trees=1"
    )
    assert records["pld", "1"].status == "ok", records["pld", "1"].error


def test_a_case_that_cannot_be_judged_stays(tmp_path, suite, monkeypatch):
    monkeypatch.setattr(FastEngine, "gaps", raising(torch.OutOfMemoryError("judge")))
    records = records_of(tmp_path / "r", "suite=spec_bench", suite, "suite.ids=[1]")
    assert records["pld", "1"].status == "ok"
    assert records["pld", "1"].lossless is None


def test_a_run_without_one_good_case_fails(tmp_path, suite, monkeypatch):
    monkeypatch.setattr(PromptLookup, "begin", raising(ValueError("broken")))
    job = job_for(*OPTIONS, "suite=spec_bench", suite, "suite.ids=[1,3]", "report.plots=false")
    assert run_job(job, tmp_path / "r") == FAILED
