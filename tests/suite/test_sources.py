"""Sources of a suite: files, the data directory and the hub, whose data sets are replaced by rows in their schema."""

import functools
import gzip
import hashlib
import json
import sys

import datasets
import pytest
from omegaconf import OmegaConf

from builders.records import write_json_lines
from builders.runs import composed, job_for
from builders.suites import suite_with
from specbench import input as outside
from specbench.suite import sources
from specbench.suite.formats import LANGUAGES
from specbench.types import InputError

HUB = {"repo": "someone/questions", "file": "q.jsonl"}
TABLES = {"repo": "someone/problems", "configs": ["main"], "split": "test"}


def write(path, *categories):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = enumerate(categories)
    return write_json_lines(path, ({"question_id": n, "category": each, "turns": ["Who?"]} for n, each in rows))


@pytest.fixture(autouse=True)
def _no_data_directory(monkeypatch):
    """Real data is reached through the fixtures alone, so that no test finds a file it did not make."""
    monkeypatch.delenv("SPECBENCH_DATA", raising=False)


def test_a_suite_says_what_it_read_and_from_where(tmp_path):
    file = write(tmp_path / "q.jsonl", "qa", "rag", "rag")
    suite = suite_with("mine", path=file, categories=["rag"])
    assert (suite.name, suite.origin, suite.warnings) == ("mine", str(file), ())
    assert suite.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert [case.id for case in suite.cases] == ["1", "2"]


def test_a_given_path_goes_before_the_data_directory_and_the_data_directory_before_the_hub(tmp_path, monkeypatch):
    """``relative`` names another file there; a path that is missing is an error."""
    named = write(tmp_path / "named.jsonl", "qa")
    kept, other = (
        write(tmp_path / "data" / "suites" / "mine" / name, "qa") for name in ("question.jsonl", "other.jsonl")
    )
    monkeypatch.setenv("SPECBENCH_DATA", str(tmp_path / "data"))
    assert suite_with("mine", path=named, hub=HUB).origin == str(named)
    assert suite_with("mine", hub=HUB).origin == str(kept)
    assert suite_with("mine", relative="mine/other.jsonl").origin == str(other)
    with pytest.raises(InputError, match=r"typo\.jsonl: no such file"):
        suite_with("mine", path=tmp_path / "typo.jsonl")


def test_the_hub_is_asked_last_for_the_file_of_a_data_set(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    file = write(tmp_path / "q.jsonl", "qa")
    asked = []

    def fetch(*args, **kwargs):
        asked.append((args, kwargs))
        return str(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    monkeypatch.setattr(sources, "refuse_network", lambda: "")
    assert suite_with("mine", hub={**HUB, "revision": "v1"}).origin == str(file)
    expected = {"repo_type": "dataset", "revision": "v1", "local_files_only": False}
    assert asked == [(("someone/questions", "q.jsonl"), expected)]


def test_with_the_hub_switched_off_only_the_local_cache_is_looked_at(monkeypatch):
    pytest.importorskip("huggingface_hub")
    with pytest.raises(InputError, match=r"q\.jsonl of someone/questions is not here; HF_HUB_OFFLINE is set"):
        suite_with("mine", hub=HUB)


def test_a_hub_that_cannot_be_reached_is_asked_once_and_the_fix_named(monkeypatch):
    """Its client would try six times, for half a minute."""
    from huggingface_hub import constants

    tried = []

    def refuse(place, seconds):
        tried.append((place, seconds))
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(outside.socket, "create_connection", refuse)
    monkeypatch.setattr(outside, "getproxies", dict)
    asked = functools.cache(outside.refuse_network.__wrapped__)
    monkeypatch.setattr(sources, "refuse_network", asked)
    for _ in range(2):
        with pytest.raises(InputError, match=r"huggingface\.co cannot be reached \(Name .*specbench fetch SETTINGS"):
            suite_with("mine", hub=HUB)
    assert tried == [(("huggingface.co", 443), 5)]
    assert constants.HF_HUB_OFFLINE
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(outside, "getproxies", lambda: {"https": "proxy"})
    assert outside.refuse_network.__wrapped__() == ""


@pytest.mark.parametrize("error", [OSError("no route\nto host"), ValueError("bad repo id")])
def test_a_failed_download_is_one_line_of_the_error(monkeypatch, error):
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    monkeypatch.setattr(sources, "refuse_network", lambda: "")
    with pytest.raises(InputError, match=r"q\.jsonl of data set someone/questions could not be fetched: \w+ \w+"):
        suite_with("mine", hub=HUB)


@pytest.mark.parametrize(
    "given", [["suite.hub={repo: a/b, file: q.jsonl}"], ["suite.hub.repo=a/b", "suite.hub.file=q.jsonl"]]
)
def test_an_address_on_the_hub_is_given_on_the_command_line(given, monkeypatch):
    monkeypatch.delenv("SPECBENCH_DATA", raising=False)
    monkeypatch.setattr("specbench.suite.sources._fetch_file", lambda *address: f"asked for {address}")
    with pytest.raises(InputError, match=r"asked for \('a/b', 'q.jsonl', None\)"):
        job_for("suite=spec_bench", *given)


def test_a_suite_found_nowhere_names_every_way_to_give_it(tmp_path, monkeypatch):
    with pytest.raises(InputError) as caught:
        suite_with("spec_bench", hub={"repo": None, "file": None}, home=composed("suite=spec_bench").suite.home)
    message = str(caught.value)
    for part in (
        "suite.path=<file>",
        "data/spec_bench/question.jsonl in https://github.com/hemingkx/Spec-Bench",
        "SPECBENCH_DATA=<directory>",
        "suites/spec_bench/question.jsonl",
        "$SPECBENCH_DATA is not set",
        "suite.hub.repo",
    ):
        assert part in message
    monkeypatch.setenv("SPECBENCH_DATA", str(tmp_path))
    with pytest.raises(InputError, match=f"looked for {tmp_path}.*which does not exist"):
        suite_with("spec_bench")


def test_another_number_or_hash_than_the_official_one_is_a_warning_that_states_both(tmp_path):
    file = write(tmp_path / "q.jsonl", "qa", "qa")
    suite = suite_with("mine", path=file, expected=480, sha256="AB12")
    number, digest = suite.warnings
    assert "has 2 questions, the official file has 480" in number
    assert f"has sha256 {suite.sha256}, the official file has ab12" in digest
    assert len(suite_with("mine", path=file, expected=1).warnings) == 1
    assert suite_with("mine", path=file, expected=2, sha256=suite.sha256.upper()).warnings == ()
    # the number is that of the file, not of the selection
    assert suite_with("mine", path=file, expected=2, first=1).warnings == ()


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
    """The rows of a data set of the hub, made from the files."""
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
    """The settings in conf/suite/<name>.yaml for the suite's source and format."""
    config = OmegaConf.to_container(composed("model=tiny", f"suite={name}").suite)
    keys = ("name", "relative", "hub", "format", "form", "expected", "sha256", "shots", "shots_seed", "shots_from")
    return {key: config[key] for key in keys}


@pytest.mark.parametrize("name", ["mt_bench", "humaneval", "mbpp", "gsm8k", "gsm8k_8shot", "mgsm"])
def test_the_hub_gives_the_same_cases_as_the_files(data, monkeypatch, name):
    monkeypatch.setenv("SPECBENCH_DATA", str(data))
    asked = []

    def load_dataset(repo, config=None, *, split, revision):
        asked.append((repo, config, split))
        return datasets.Dataset.from_list(hub_rows(data / "suites", repo, config, split))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    options = suite_options(name)
    local = suite_with(**options)
    assert not asked
    monkeypatch.delenv("SPECBENCH_DATA")
    remote = suite_with(**options)
    assert asked
    assert remote.cases == local.cases
    assert remote.warnings == local.warnings == ()
    assert remote.origin.endswith("on the hub")
    assert remote.sha256 != local.sha256


def mock(monkeypatch, tables):
    """Let ``load_dataset`` give these rows by configuration, or raise."""
    monkeypatch.setattr("specbench.suite.sources.refuse_network", lambda: "")

    def load_dataset(repo, config=None, *, split, revision):
        if isinstance(tables, Exception):
            raise tables
        return tables[config]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


def test_a_bad_row_of_a_data_set_is_named_with_configuration_split_and_number(monkeypatch):
    mock(monkeypatch, {"main": [{"question": "?"}, {"question": ""}]})
    with pytest.raises(InputError, match=r"someone/problems \(main, test\), row 1: question is an empty string"):
        suite_with("gsm8k", format="gsm8k", hub=TABLES)


def test_languages_are_known_by_their_configuration(monkeypatch):
    row = {"question": "?", "answer": None, "answer_number": 2125}
    mock(monkeypatch, {language: [row] for language in LANGUAGES})
    suite = suite_with("mgsm", format="mgsm", hub={**TABLES, "configs": LANGUAGES})
    assert [case.id for case in suite.cases] == [f"mgsm/{language}/0" for language in LANGUAGES]
    assert {case.references for case in suite.cases} == {("2125",)}


def test_the_hash_of_a_data_set_is_of_its_rows_and_never_compared_with_a_files(monkeypatch):
    mock(monkeypatch, {"main": [{"question": "?"}]})
    one = suite_with("gsm8k", format="gsm8k", hub=TABLES, sha256="ab12")
    mock(monkeypatch, {"main": [{"question": "!"}]})
    other = suite_with("gsm8k", format="gsm8k", hub=TABLES, expected=2)
    assert one.sha256 != other.sha256
    assert one.warnings == ()
    assert other.warnings == (
        "Suite gsm8k: someone/problems (test) on the hub has 1 questions, the official file has 2.",
    )


def test_rows_of_mt_bench_out_of_their_order_are_refused_because_their_ids_are_unknown(monkeypatch):
    row = {"prompt": ["?", "And?"], "prompt_id": 7, "category": "writing", "reference": []}
    hub = {"repo": "someone/mt_bench", "split": "train"}
    mock(monkeypatch, {None: [row] * 10})
    assert [case.id for case in suite_with("mt", format="mt_bench", hub=hub).cases] == [str(n) for n in range(81, 91)]
    mock(monkeypatch, {None: [row] * 11})
    with pytest.raises(InputError, match=r"row 10: category is writing, expected roleplay: .* not in MT-Bench's order"):
        suite_with("mt", format="mt_bench", hub=hub)


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
        suite_with("gsm8k", format="gsm8k", hub=TABLES)


@pytest.mark.parametrize(("package", "address"), [("datasets", TABLES), ("huggingface_hub", HUB)])
def test_the_hub_without_its_package_names_the_package(monkeypatch, package, address):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"{address['repo']} on the hub needs .* pip install {package}"):
        suite_with("gsm8k", format="gsm8k", hub=address)


@pytest.mark.parametrize(
    "hub",
    [{"repo": "a/b"}, {"repo": "a/b", "file": None}, {"split": "test"}, {"repo": "a/b", "file": "f", "split": "test"}],
)
def test_an_address_is_a_file_or_a_split_of_a_repository(hub):
    with pytest.raises(InputError, match=r"expected both repo and file, .* or both repo and split"):
        suite_with("gsm8k", format="gsm8k", hub=hub)
