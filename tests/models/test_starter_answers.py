"""The bundled answers of a real model: they are its greedy answers, and replay without its
tokenizer.
"""

import gzip
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from builders.runs import execute_job
from builders.suites import suite_with
from specbench.kept import PLACE
from specbench.models.load import read_card
from specbench.models.packaged import MODELS, PACKAGED
from specbench.names import ASSETS
from specbench.records.store import read_manifest
from specbench.suite.prompt import PromptBuilder

FOLDER = ASSETS / "starter"
PACKED = FOLDER / "records.jsonl.gz"
RECORDS = [json.loads(line) for line in gzip.decompress(PACKED.read_bytes()).splitlines()]


def test_they_answer_every_turn_of_the_suite():
    cases = suite_with("starter").cases
    assert [record["case"] for record in RECORDS] == [case.id for case in cases]
    for record, case in zip(RECORDS, cases, strict=True):
        assert (record["category"], record.get("subcategory", "")) == (
            case.category,
            case.subcategory,
        )
        assert len(record["turns"]) == len(case.turns)
        for turn in record["turns"]:
            assert 0 < len(turn["ids"]) <= 256
            assert (turn["finish"] == "length") == (len(turn["ids"]) == 256)
    assert PACKED.stat().st_size < 300_000
    [model] = MODELS.values()
    assert read_manifest(FOLDER).model.gguf["sha256"] == model.sha256


def test_they_replay_by_ids_alone(tmp_path):
    """A step of vanilla is a token; drafts that repeat the context are accepted; texts are the
    recorded ones.
    """
    records = execute_job(tmp_path, "model=replay", "method=[pld]", "suite.limit=1")
    known = {record["case"]: record["turns"] for record in RECORDS}
    assert len(records) == 12
    for record in records:
        for turn, wanted in zip(record.turns, known[record.case], strict=True):
            assert (turn.ids, turn.text) == (wanted["ids"], wanted["text"])
            assert sum(turn.accept) == len(turn.ids) - 1
    pld = [turn for each in records if each.method == "pld" for turn in each.turns]
    assert sum(map(len, (turn.accept for turn in pld))) < 0.8 * sum(len(turn.ids) for turn in pld)
    assert read_manifest(tmp_path).warnings == [
        text for text in read_manifest(tmp_path).warnings if "tokenizer" not in text
    ]


@pytest.mark.slow
def test_they_are_the_models_own(monkeypatch):
    """By transformers' own loop, from the prompts that the suite and the file's template give."""
    monkeypatch.setenv(PLACE, str(Path.home() / ".cache" / "specbench"))
    [name] = MODELS
    try:
        card = read_card(path=PACKAGED + name)
    except Exception as error:
        pytest.skip(f"{error}")
    model = AutoModelForCausalLM.from_pretrained(card.path, dtype=torch.float32)
    prompts = PromptBuilder(card.tokenizer, None, None, None)
    for record, case in list(zip(RECORDS, suite_with("starter").cases, strict=True))[:13:4]:
        answers = list[str]()
        for turn in record["turns"]:
            assert prompts.prompt(case, answers) == turn["prompt_ids"]
            given = torch.tensor([turn["prompt_ids"]])
            found = model.generate(given, max_new_tokens=64, do_sample=False)[0, given.shape[1] :]
            assert found.tolist() == turn["ids"][:64]
            answers.append(turn["text"])
