"""The hub: the same cases as from the file, with ``datasets.load_dataset`` replaced by rows in the hub's schema."""

import gzip
import hashlib
import json
import sys

import pytest
from omegaconf import OmegaConf

from compose import composed
from specbench.suite import Shots, load_suite
from specbench.suite.formats import LANGUAGES
from specbench.types import InputError

datasets = pytest.importorskip("datasets")
HUB = {"repo": "someone/problems", "configs": ["main"], "split": "test"}


def jsonl(path):
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    return [json.loads(line) for line in text.split("\n") if line]


def mt_bench_rows(folder):
    """As the hub's copy says it was made: turns renamed, the id a hash of the text, no reference an empty list."""
    for row in jsonl(folder / "mt_bench" / "question.jsonl"):
        digest = int(hashlib.sha256("".join(row["turns"]).encode()).hexdigest(), 16) % 10**8
        reference = row.get("reference", [])
        yield {"prompt": row["turns"], "prompt_id": digest, "category": row["category"], "reference": reference}


def mgsm_rows(folder, language):
    for line in (folder / "mgsm" / f"mgsm_{language}.tsv").read_text(encoding="utf-8").split("\n")[:-1]:
        question, answer = line.split("\t")
        number = int(answer.replace(",", ""))
        yield {"question": question, "answer": None, "answer_number": number, "equation_solution": None}


def hub_rows(folder, repo, config, split):
    """The rows of a data set of the hub, built from the files."""
    if repo == "HuggingFaceH4/mt_bench_prompts":
        return list(mt_bench_rows(folder))
    if repo == "juletxara/mgsm":
        return list(mgsm_rows(folder, config))
    if repo == "google-research-datasets/mbpp":
        assert config == "full"
        return [row for row in jsonl(folder / "mbpp" / "mbpp.jsonl") if 11 <= row["task_id"] <= 510]
    if repo == "openai/gsm8k":
        assert config == "main"
        return jsonl(folder / "gsm8k" / f"{split}.jsonl")
    assert repo == "openai/openai_humaneval"
    return jsonl(folder / "humaneval" / "HumanEval.jsonl.gz")


def suite_options(name):
    """What conf/suite/<name>.yaml says about where the suite is and how it is read."""
    config = OmegaConf.to_container(composed("model=tiny", f"suite={name}").suite)
    keys = ("name", "relative", "hub", "format", "form", "expected", "sha256")
    shots = Shots(config["shots"], config["shots_seed"], config["shots_from"])
    return {**{key: config[key] for key in keys}, "shots": shots}


@pytest.mark.parametrize("name", ["mt_bench", "humaneval", "mbpp", "gsm8k", "gsm8k_8shot", "mgsm"])
def test_the_hub_gives_the_same_cases_as_the_files(data, monkeypatch, name):
    asked = []

    def load_dataset(repo, config=None, *, split, revision):
        asked.append((repo, config, split))
        return datasets.Dataset.from_list(hub_rows(data / "suites", repo, config, split))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    options = suite_options(name)
    local = load_suite(**options)
    assert not asked
    monkeypatch.delenv("SPECBENCH_DATA")
    remote = load_suite(**options)
    assert asked
    assert remote.cases == local.cases
    assert remote.warnings == local.warnings == ()
    assert remote.origin.endswith("on the hub")
    assert remote.sha256 != local.sha256


def mock(monkeypatch, tables):
    """Let ``load_dataset`` give these rows by configuration, or raise."""
    monkeypatch.setattr("specbench.suite.sources.refuse_network", lambda: "")
    monkeypatch.delenv("SPECBENCH_DATA", raising=False)

    def load_dataset(repo, config=None, *, split, revision):
        if isinstance(tables, Exception):
            raise tables
        return tables[config]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


def test_a_bad_row_of_a_data_set_is_named_with_configuration_split_and_number(monkeypatch):
    mock(monkeypatch, {"main": [{"question": "?"}, {"question": ""}]})
    with pytest.raises(InputError, match=r"someone/problems \(main, test\), row 1: question is an empty string"):
        load_suite("gsm8k", format="gsm8k", hub=HUB)


def test_languages_are_told_by_their_configuration(monkeypatch):
    row = {"question": "?", "answer": None, "answer_number": 2125}
    mock(monkeypatch, {language: [row] for language in LANGUAGES})
    suite = load_suite("mgsm", format="mgsm", hub={**HUB, "configs": LANGUAGES})
    assert [case.id for case in suite.cases] == [f"mgsm/{language}/0" for language in LANGUAGES]
    assert {case.references for case in suite.cases} == {("2125",)}


def test_the_hash_of_a_data_set_is_of_its_rows_and_never_held_against_a_files(monkeypatch):
    mock(monkeypatch, {"main": [{"question": "?"}]})
    one = load_suite("gsm8k", format="gsm8k", hub=HUB, sha256="ab12")
    mock(monkeypatch, {"main": [{"question": "!"}]})
    other = load_suite("gsm8k", format="gsm8k", hub=HUB, expected=2)
    assert one.sha256 != other.sha256
    assert one.warnings == ()
    assert other.warnings == (
        "Suite gsm8k: someone/problems (test) on the hub has 1 questions, the official file has 2.",
    )


def test_rows_of_mt_bench_out_of_their_order_are_refused_because_their_ids_cannot_be_told(monkeypatch):
    row = {"prompt": ["?", "And?"], "prompt_id": 7, "category": "writing", "reference": []}
    hub = {"repo": "someone/mt_bench", "split": "train"}
    mock(monkeypatch, {None: [row] * 10})
    assert [case.id for case in load_suite("mt", format="mt_bench", hub=hub).cases] == [str(n) for n in range(81, 91)]
    mock(monkeypatch, {None: [row] * 11})
    with pytest.raises(InputError, match=r"row 10: category is writing, expected roleplay: .* not in MT-Bench's order"):
        load_suite("mt", format="mt_bench", hub=hub)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("no route\nto host"),
        RuntimeError("no route, scripts are no longer supported"),
        ValueError("no route"),
        datasets.exceptions.DatasetGenerationError("no route"),
    ],
)
def test_a_data_set_that_cannot_be_loaded_is_one_line_of_the_error(monkeypatch, error):
    mock(monkeypatch, error)
    with pytest.raises(
        InputError, match=r"3\. the Hugging Face hub \(data set someone/problems could not be .*no route"
    ):
        load_suite("gsm8k", format="gsm8k", hub=HUB)


def test_a_data_set_without_the_package_names_the_package(monkeypatch):
    monkeypatch.delenv("SPECBENCH_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"someone/problems on the hub needs .* pip install datasets"):
        load_suite("gsm8k", format="gsm8k", hub=HUB)


@pytest.mark.parametrize("hub", [{"repo": "a/b"}, {"split": "test"}, {"repo": "a/b", "file": "f", "split": "test"}])
def test_an_address_is_a_file_or_a_split_of_a_repository(monkeypatch, hub):
    monkeypatch.delenv("SPECBENCH_DATA", raising=False)
    with pytest.raises(InputError, match=r"expected both repo and file, .* or both repo and split"):
        load_suite("gsm8k", format="gsm8k", hub=hub)
