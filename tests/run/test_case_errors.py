"""A fault during a run becomes an error row with its traceback; the run continues and the figures exclude it."""

from __future__ import annotations

import json

import pytest
import torch

from builders.runs import by_case, execute_job, job_for
from methods.pld import PromptLookup
from specbench.runs import sources
from specbench.runs.launch import run_job
from specbench.screen import FAILED

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


def test_out_of_memory_in_one_method_leaves_the_others(tmp_path, suite, monkeypatch):
    real = PromptLookup.begin

    def begin(self, prompt, prefill, seed):
        if len(prompt) < 12:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, prompt, prefill, seed)

    monkeypatch.setattr(PromptLookup, "begin", begin)
    records = records_of(tmp_path / "r", "suite.limit=1", "suite.categories=[qa,rag]")
    assert {record.status for (method, _), record in records.items() if method == "vanilla"} == {"ok"}
    assert all(record.error["type"] == "OutOfMemoryError" for record in records.values() if record.status == "error")


def test_a_draft_that_breaks_the_contract_is_named(tmp_path, suite, monkeypatch):
    from methods import pld
    from specbench.types import Draft

    monkeypatch.setattr(pld._Lookup, "propose", lambda self, context, budget: Draft([1, 2], [1, -1]))
    records = records_of(tmp_path / "r", "suite=spec_bench", suite, "suite.ids=[1]")
    assert records["vanilla", "1"].status == "ok"
    assert "parent of node 0 is 1" in records["pld", "1"].error["message"]


def test_two_turns_feed_the_methods_own_answer(tmp_path):
    records = records_of(tmp_path / "r", "suite.categories=[multi-turn]", "suite.limit=2")
    for record in records.values():
        assert len(record.turns) == 2
        assert record.turns[1].prompt_tokens > record.turns[0].prompt_tokens + len(record.turns[0].ids) - 3
    vanilla = next(record for (method, _), record in records.items() if method == "vanilla")
    first, second = vanilla.turns
    assert second.prompt_ids[: first.prompt_tokens] == first.prompt_ids


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "many"])
def test_figures_that_cannot_be_written_are_this_cases_error(tmp_path, suite, monkeypatch, value):
    from methods import pld

    monkeypatch.setattr(pld._Lookup, "stats", lambda self: {"hits": value})
    records = records_of(tmp_path / "r", "suite=spec_bench", suite, "suite.ids=[1,3]")
    assert {record.status for (method, _), record in records.items() if method == "pld"} == {"error"}
    assert {record.status for (method, _), record in records.items() if method == "vanilla"} == {"ok"}


def test_drafts_of_numpy_numbers_are_written(tmp_path, suite, monkeypatch):
    import numpy as np

    from methods import pld
    from specbench.types import Draft

    def propose(self, context, budget):
        return Draft.chain(np.array(context[:4]))

    monkeypatch.setattr(pld._Lookup, "propose", propose)
    records = records_of(tmp_path / "r", "suite=spec_bench", suite, "suite.ids=[1]", "measure.keep_trees=1")
    assert records["pld", "1"].status == "ok", records["pld", "1"].error


def test_a_case_that_cannot_be_judged_stays(tmp_path, suite, monkeypatch):
    from specbench.models.fast.engine import FastEngine

    def gaps(self, prompt, ids):
        raise torch.OutOfMemoryError("judge")

    monkeypatch.setattr(FastEngine, "gaps", gaps)
    records = records_of(tmp_path / "r", "suite=spec_bench", suite, "suite.ids=[1]")
    assert records["pld", "1"].status == "ok"
    assert records["pld", "1"].lossless is None


def test_a_run_without_one_good_case_fails(tmp_path, suite, monkeypatch):
    monkeypatch.setattr(PromptLookup, "begin", lambda *a: (_ for _ in ()).throw(ValueError("broken")))
    job = job_for(*OPTIONS, "suite=spec_bench", suite, "suite.ids=[1,3]", "report.plots=false")
    assert run_job(job, tmp_path / "r") == FAILED
