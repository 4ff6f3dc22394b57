"""Everything a user can get wrong ends with exit code 2 and a message that names key, value, expectation and fix,
before any model is loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from specbench import cli, stage

BROKEN_SUITES = {
    "empty": ("", "empty"),
    "not json": ('{"question_id": 1, "category": "qa", "turns": ["a"]}\nhello\n', "line 2"),
    "no turns": ('{"question_id": 1, "category": "qa"}\n', "turns"),
    "doubled": ('{"question_id": 1, "category": "qa", "turns": ["a"]}\n' * 2, "question_id"),
}


@pytest.fixture
def fail(monkeypatch, capsys, tmp_path):
    """Run the command; it must exit 2 without loading weights. Returns stderr."""

    def loaded(*args, **kwargs):
        raise AssertionError("weights were loaded before the error was found")

    def call(*overrides: str) -> str:
        monkeypatch.setattr(stage, "load_model", loaded)
        monkeypatch.setattr(sys, "argv", ["specbench", f"hydra.run.dir={tmp_path / 'run'}", *overrides])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        message = capsys.readouterr().err
        assert stop.value.code == 2, message
        assert message.startswith("specbench: error: ")
        assert "Traceback" not in message
        return message

    return call


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["method=[pdl]"], ["method=pdl", "did you mean pld?"]),
        (["model=vicuna_8b"], ["model=vicuna_8b", "did you mean vicuna_7b?"]),
        (["suite=specbench"], ["suite=specbench", "did you mean spec_bench?"]),
        (["method.pld.max_ngrams=3"], ["max_ngrams", "did you mean max_ngram?"]),
        (["+method.pld.max_ngrams=3"], ["method.pld.max_ngrams", "did you mean max_ngram?"]),
        (["method.pld.max_ngram=three"], ["method.pld.max_ngram=three", "integer"]),
        (["method.pld.max_ngram=2.5"], ["method.pld.max_ngram=2.5", "integer"]),
        (["method.pld.max_ngram=0"], ["method.pld.max_ngram=0", "at least 1"]),
        (["method.pld.rule=latest"], ["method.pld.rule=latest", "original"]),
        (["method.pld.reset=often"], ["method.pld.reset=often", "turn, case, category, never"]),
        (["+method.token_recycler.k=3"], ["method.token_recycler", "_target_"]),
        (["experiment=cacheback_table1", "size=small"], ["size", "+size=small"]),
        (["decode.temprature=1"], ["decode.temprature", "did you mean temperature?"]),
        (["+decode.temprature=1"], ["decode.temprature", "did you mean temperature?"]),
        (["+seeed=1"], ["seeed"]),
        (["decode.temperature=hot"], ["decode.temperature=hot", "Float"]),
        (["decode.temperature=-1"], ["decode.temperature=-1.0", "at least 0"]),
        (["decode.temperature=nan"], ["decode.temperature=nan"]),
        (["decode.temperature=1e-40"], ["decode.temperature=1e-40", "at least 0.001"]),
        (["decode.top_p=nan", "decode.temperature=1"], ["decode.top_p=nan"]),
        (["model=random", "model.random.config.num_attention_heads=7"], ["model.random.config"]),
        (["model=random", "model.random.config.hidden_size=abc"], ["model.random.config"]),
        (["decode.top_p=1.5"], ["decode.top_p=1.5", "at most 1"]),
        (["decode.max_new_tokens=0"], ["decode.max_new_tokens=0", "at least 1"]),
        (["decode.max_new_tokens=1.5"], ["max_new_tokens", "1.5"]),
        (["measure.rounds=0"], ["measure.rounds=0"]),
        (["engine.kind=fast2"], ["engine.kind=fast2", "eager"]),
        (["suite.categories=[poetry]"], ["suite.categories", "poetry", "translation"]),
        (["suite.limit=0"], ["suite.limit=0"]),
        (["suite.ids=[nope]"], ["suite.ids", "nope"]),
        (["suite.order=random"], ["suite.order='random'", "shuffled"]),
        (["suite.path=/nowhere/question.jsonl"], ["/nowhere/question.jsonl"]),
        (["model.path=/nowhere/model"], ["model.path=/nowhere/model", "no such folder"]),
        (["model.path=bundled:huge"], ["bundled:huge", "tiny"]),
        (["model.path=no/such-model"], ["model.path=no/such-model"]),
        (["model.dtype=float8"], ["model.dtype=float8", "bfloat16"]),
        (["model.attention=flash"], ["model.attention=flash", "sdpa"]),
        (["model.gpus=4"], ["model.gpus=4", "this machine has 0"]),
        (["model.gpus=5"], ["model.gpus=5", "1 to 4"]),
        (["model.device=cuda:0"], ["model.device=cuda:0", "this machine has 0"]),
        (["model.device=tpu"], ["model.device=tpu", "cpu"]),
        (["model.context=100000"], ["model.context=100000", "4096"]),
        (["model.template=vicuna"], ["vicuna", "vicuna_v1.1"]),
        (["~method.vanilla"], ["method.vanilla", "expected always"]),
        (["model=hub"], ["model.path: not set"]),
        (["suite=file"], ["suite.path: not set"]),
        (["model=random", "model.random.family=lama"], ["model.random.family=lama", "llama"]),
        (["model.threads=0"], ["model.threads=0"]),
        (["method=[speculative_sampling]", "method.speculative_sampling.draft=null"], ["draft", "not set"]),
        (
            ["method=[speculative_sampling]", "method.speculative_sampling.draft=/nowhere/draft"],
            ["method.speculative_sampling.draft=/nowhere/draft", "no such folder"],
        ),
        (
            ["method=[hf_assisted]", "method.hf_assisted.draft=bundled:small"],
            ["method.hf_assisted.draft=bundled:small", "tiny_draft"],
        ),
        (["method=[speculative_sampling]", "method.speculative_sampling.length=0"], ["speculative_sampling.length=0"]),
    ],
    ids=lambda value: " ".join(value) if value and "=" in value[0] else "",
)
def test_message_names_what_is_wrong(fail, overrides, expected):
    message = fail(*(["method=[pld]"] if not overrides[0].startswith("method=") else []), *overrides)
    for part in expected:
        assert part in message, message


@pytest.mark.parametrize("kind", BROKEN_SUITES)
def test_broken_suite_file(fail, tmp_path, kind):
    text, expected = BROKEN_SUITES[kind]
    path = tmp_path / "question.jsonl"
    path.write_text(text)
    message = fail("method=[pld]", "suite=spec_bench", f"suite.path={path}")
    assert expected in message
    assert str(path) in message


def test_a_category_named_as_the_whole(fail, tmp_path):
    path = tmp_path / "question.jsonl"
    path.write_text('{"question_id": 1, "category": "overall", "turns": ["a"]}\n')
    assert "rename it" in fail("method=[pld]", f"suite.path={path}")


def test_records_without_their_manifest(fail, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "records.jsonl").write_text("")
    assert "manifest.json" in fail("method=[pld]")


def test_suite_that_is_nowhere(fail, monkeypatch):
    monkeypatch.delenv("SPECBENCH_DATA", raising=False)
    message = fail("method=[pld]", "suite=spec_bench")
    assert "suite.path" in message
    assert "SPECBENCH_DATA" in message


def copy_tiny(folder: Path, *leave_out: str) -> Path:
    folder.mkdir()
    for file in (cli.PACKAGE / "assets" / "tiny").iterdir():
        if not any(part in file.name for part in leave_out):
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_folder_without_weights(fail, tmp_path):
    folder = copy_tiny(tmp_path / "m", "safetensors")
    message = fail("method=[pld]", f"model.path={folder}")
    assert "holds no weights" in message
    assert "safetensors" in message


def test_folder_with_torch_weights_only(fail, tmp_path):
    folder = copy_tiny(tmp_path / "m", "safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert "model.safetensors=false" in fail("method=[pld]", f"model.path={folder}")


def test_folder_without_tokenizer(fail, tmp_path):
    folder = copy_tiny(tmp_path / "m", "tokenizer")
    assert "tokenizer" in fail("method=[pld]", f"model.path={folder}")


def test_draft_with_another_vocabulary(fail, tmp_path):
    folder = copy_tiny(tmp_path / "m")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    swapped = dict(tokenizer["model"]["vocab"].items())
    first, second = list(swapped)[300:302]
    swapped[first], swapped[second] = swapped[second], swapped[first]
    tokenizer["model"]["vocab"] = swapped
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    message = fail("method=[speculative_sampling]", f"method.speculative_sampling.draft={folder}")
    assert "another vocabulary" in message


def test_results_directory_that_is_a_file(fail, tmp_path):
    (tmp_path / "file").write_text("")
    message = fail("method=[pld]", f"hydra.run.dir={tmp_path / 'file' / 'run'}")
    assert "not writable" in message
    assert "hydra.run.dir" in message


def test_results_directory_of_another_run(fail, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text('{"config_hash": "other"}')
    assert "another configuration" in fail("method=[pld]")
