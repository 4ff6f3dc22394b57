"""Loading a suite: the order of the places where its file may be, and what is said when it is in none of them."""

import functools
import hashlib
import json
import sys
from collections import Counter

import pytest

from compose import composed, job_for
from specbench import input as outside
from specbench.suite import Selection, load_suite, sources
from specbench.types import InputError

SPEC_BENCH_SHA256 = "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04"
HUB = {"repo": "someone/questions", "file": "q.jsonl"}


def write(path, *categories):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"question_id": n, "category": category, "turns": ["Who?"]} for n, category in enumerate(categories)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(autouse=True)
def _no_data_directory(monkeypatch):
    """Real data is reached through the fixtures alone, so that no test finds a file it did not make."""
    monkeypatch.delenv("SPECBENCH_DATA", raising=False)


def test_a_suite_says_what_it_read_and_from_where(tmp_path):
    file = write(tmp_path / "q.jsonl", "qa", "rag", "rag")
    suite = load_suite("mine", path=file, selection=Selection(categories=("rag",)))
    assert (suite.name, suite.origin, suite.warnings) == ("mine", str(file), ())
    assert suite.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert [case.id for case in suite.cases] == ["1", "2"]


def test_a_given_path_goes_before_the_data_directory_and_the_data_directory_before_the_hub(tmp_path, monkeypatch):
    named = write(tmp_path / "named.jsonl", "qa")
    kept = write(tmp_path / "data" / "suites" / "mine" / "question.jsonl", "qa")
    monkeypatch.setenv("SPECBENCH_DATA", str(tmp_path / "data"))
    assert load_suite("mine", path=named, hub=HUB).origin == str(named)
    assert load_suite("mine", hub=HUB).origin == str(kept)


def test_relative_names_another_file_of_the_data_directory(tmp_path, monkeypatch):
    kept = write(tmp_path / "suites" / "mbpp" / "recycling.jsonl", "code")
    monkeypatch.setenv("SPECBENCH_DATA", str(tmp_path))
    assert load_suite("mbpp", relative="mbpp/recycling.jsonl").origin == str(kept)


def test_a_given_path_that_is_missing_is_an_error_even_if_the_data_directory_has_the_suite(tmp_path, monkeypatch):
    write(tmp_path / "suites" / "mine" / "question.jsonl", "qa")
    monkeypatch.setenv("SPECBENCH_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"typo\.jsonl: no such file"):
        load_suite("mine", path=tmp_path / "typo.jsonl")


def test_the_hub_is_asked_last_for_the_file_of_a_data_set(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    file = write(tmp_path / "q.jsonl", "qa")
    asked = []

    def fetch(*args, **kwargs):
        asked.append((args, kwargs))
        return str(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    monkeypatch.setattr(sources, "refuse_network", lambda: "")
    assert load_suite("mine", hub={**HUB, "revision": "v1"}).origin == str(file)
    expected = {"repo_type": "dataset", "revision": "v1", "local_files_only": False}
    assert asked == [(("someone/questions", "q.jsonl"), expected)]


def test_with_the_hub_switched_off_only_the_local_cache_is_looked_at(monkeypatch):
    pytest.importorskip("huggingface_hub")
    with pytest.raises(InputError, match=r"q\.jsonl of someone/questions is not here; HF_HUB_OFFLINE is set"):
        load_suite("mine", hub=HUB)


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
            load_suite("mine", hub=HUB)
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
        load_suite("mine", hub=HUB)


def test_the_hub_without_its_package_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"someone/questions on the hub needs .* pip install huggingface_hub"):
        load_suite("mine", hub=HUB)


def test_a_hub_address_needs_both_halves():
    with pytest.raises(InputError, match="expected both repo and file"):
        load_suite("mine", hub={"repo": "someone/questions", "file": None})


@pytest.mark.parametrize(
    "given", [["suite.hub={repo: a/b, file: q.jsonl}"], ["suite.hub.repo=a/b", "suite.hub.file=q.jsonl"]]
)
def test_an_address_on_the_hub_is_given_on_the_command_line(given, monkeypatch):
    monkeypatch.delenv("SPECBENCH_DATA", raising=False)
    monkeypatch.setattr("specbench.suite.sources._hub_file", lambda *address: f"asked for {address}")
    with pytest.raises(InputError, match=r"asked for \('a/b', 'q.jsonl', None\)"):
        job_for("suite=spec_bench", *given)


def test_a_suite_found_nowhere_names_every_way_to_give_it(tmp_path, monkeypatch):
    with pytest.raises(InputError) as caught:
        load_suite("spec_bench", hub={"repo": None, "file": None}, home=composed("suite=spec_bench").suite.home)
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
        load_suite("spec_bench")


def test_another_number_or_hash_than_the_official_one_is_a_warning_that_states_both(tmp_path):
    file = write(tmp_path / "q.jsonl", "qa", "qa")
    suite = load_suite("mine", path=file, expected=480, sha256="AB12")
    number, digest = suite.warnings
    assert "has 2 questions, the official file has 480" in number
    assert f"has sha256 {suite.sha256}, the official file has ab12" in digest
    assert len(load_suite("mine", path=file, expected=1).warnings) == 1
    assert load_suite("mine", path=file, expected=2, sha256=suite.sha256.upper()).warnings == ()


def test_the_number_expected_is_that_of_the_file_not_of_the_selection(tmp_path):
    file = write(tmp_path / "q.jsonl", "qa", "qa")
    assert load_suite("mine", path=file, expected=2, selection=Selection(first=1)).warnings == ()


def test_the_official_file_of_spec_bench_gives_no_warning(spec_bench_file):
    suite = load_suite("spec_bench", path=spec_bench_file, expected=480, sha256=SPEC_BENCH_SHA256)
    assert (len(suite.cases), suite.warnings) == (480, ())


def test_the_bundled_suite_needs_no_data_directory():
    suite = load_suite("mini")
    expected = {"multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag", "code"}
    assert set(Counter(case.category for case in suite.cases)) == expected
