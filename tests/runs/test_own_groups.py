"""A path given alone is a model, or a suite, of its own: nothing of the default one sticks to
it.
"""

from __future__ import annotations

import json

import pytest

from builders.runs import job_for
from specbench.input import InputError
from specbench.runs import composition
from specbench.runs.config import PACKAGE

# of the default methods, those without weights
LEARNED = ["pld", "suffix_decoding", "token_recycling"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["model.path=a"], ["model=hub", "model.path=a"]),
        (["model=tiny", "model.path=a"], ["model=tiny", "model.path=a"]),
        (["suite.path=a"], ["suite=file", "suite.path=a"]),
        (["suite=spec_bench", "suite.path=a"], ["suite=spec_bench", "suite.path=a"]),
        (["suite.name=x", "suite.path=a"], ["suite.name=x", "suite.path=a"]),
        (["method=[pld]"], ["method=[pld]"]),
    ],
)
def test_choice_is_added(given, wanted):
    assert composition.with_own_groups(given) == wanted


def test_a_folder_and_a_file_of_ones_own(tmp_path):
    (tmp_path / "MyModel").mkdir()
    for file in (PACKAGE / "assets" / "tiny").iterdir():
        if file.is_file():
            (tmp_path / "MyModel" / file.name).write_bytes(file.read_bytes())
    questions = tmp_path / "mine.v2.jsonl"
    questions.write_text(json.dumps({"question_id": 1, "category": "qa", "turns": ["a"]}) + "\n")
    given = ["method=[pld]", f"model.path={tmp_path / 'MyModel'}", f"suite.path={questions}"]
    job = job_for(*composition.with_own_groups(given))
    assert (job.source.card.name, job.source.suite.name) == ("mymodel", "mine.v2.jsonl")
    assert job.config.model.draft is None
    assert job.config.model.threads is None
    usual = job_for(*composition.with_own_groups(given[1:]))
    methods = [entry.name for entry in usual.entries]
    assert {*LEARNED, "hybrid", "sam", "hf_generate"} < {*methods}
    assert "model=mymodel names no usual draft" in usual.left_out["speculative_sampling"]
    named = job_for(*composition.with_own_groups([f"method=[{','.join(methods[1:])}]", *given[1:]]))
    assert usual.digest == named.digest
    assert usual.resolved == named.resolved


@pytest.mark.parametrize(
    ("given", "methods"),
    [
        (["model=random"], ["vanilla", *LEARNED, "hf_generate"]),
        (["load=closed"], ["vanilla", *LEARNED, "speculative_sampling", "eagle3"]),
        (["decode.first_draft=prefill"], ["vanilla", *LEARNED, "speculative_sampling", "eagle3"]),
    ],
)
def test_the_default_methods_leave_out_what_cannot_run(given, methods):
    assert [entry.name for entry in job_for(*given).entries] == methods


@pytest.mark.parametrize(
    "named",
    [
        "method=[speculative_sampling]",
        "method.speculative_sampling.length=3",
        "experiment=card_table1",
    ],
)
def test_a_method_that_is_asked_for_by_name_is_refused(named):
    with pytest.raises(InputError, match=r"method\.(speculative_sampling|card)"):
        job_for("model=random", "model.draft=null", "suite=mini", named)


def test_a_mistyped_setting_of_a_method_in_a_folder_of_ones_own_gets_its_name(tmp_path):
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text(
        "# @package method.mine\n_target_: package.Mine\nspan: 4\n"
    )
    given = ["method=mine", "method.mine.spam=3", f"hydra.searchpath=[file://{tmp_path}]"]
    with pytest.raises(
        InputError, match=r"method\.mine\.spam: no such setting; did you mean span\?"
    ):
        composition.plain_settings(given)
