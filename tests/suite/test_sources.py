"""Sources of a suite: files, the data directory and the hub, whose data sets are replaced by rows
in their schema.
"""

import functools
import hashlib

import datasets
import huggingface_hub
import pytest
from huggingface_hub import constants

from builders.records import write_json_lines
from builders.runs import job_for
from builders.suites import suite_with
from specbench import input as outside
from specbench.suite import sources
from specbench.suite.formats import LANGUAGES
from specbench.types import InputError

HUB = {"repo": "someone/questions", "file": "q.jsonl"}
TABLES = {"repo": "someone/problems", "configs": ["main"], "split": "test"}
CLIENTS = (datasets, "load_dataset"), (huggingface_hub, "hf_hub_download")


def write(path, *categories):
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_json_lines(path, [{"question_id": n, "category": each, "turns": ["Who?"]}
                                   for n, each in enumerate(categories)])  # fmt: skip


@pytest.fixture
def reachable(monkeypatch):
    """The hub is asked: set what its client's function gives, or raises."""

    def set_up(owner, name, give):
        def client(*given, **named):
            asked.append((given, named))
            if isinstance(give, Exception):
                raise give
            return give(*given, **named)

        asked = []
        monkeypatch.setattr(sources, "refuse_network", lambda: "")
        monkeypatch.setattr(owner, name, client)
        return asked

    return set_up


@pytest.fixture(autouse=True)
def _no_data_directory(monkeypatch):
    """Real data is reached through the fixtures alone, so that no test finds a file it did not
    make.
    """
    monkeypatch.delenv("SPECBENCH_DATA", raising=False)


def test_a_suite_says_what_it_read_and_from_where(tmp_path):
    file = write(tmp_path / "q.jsonl", "qa", "rag", "rag")
    suite = suite_with("mine", path=file, categories=["rag"])
    assert (suite.name, suite.origin, suite.warnings) == ("mine", str(file), ())
    assert suite.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert [case.id for case in suite.cases] == ["1", "2"]


def test_a_given_path_goes_before_the_data_directory_and_the_data_directory_before_the_hub(
    tmp_path, monkeypatch
):
    """``relative`` names another file there; a path that is missing is an error."""
    named = write(tmp_path / "named.jsonl", "qa")
    kept, other = (
        write(tmp_path / "data" / "suites" / "mine" / name, "qa")
        for name in ("question.jsonl", "other.jsonl")
    )
    monkeypatch.setenv("SPECBENCH_DATA", str(tmp_path / "data"))
    assert suite_with("mine", path=named, hub=HUB).origin == str(named)
    assert suite_with("mine", hub=HUB).origin == str(kept)
    assert suite_with("mine", relative="mine/other.jsonl").origin == str(other)
    with pytest.raises(InputError, match=r"typo\.jsonl: no such file"):
        suite_with("mine", path=tmp_path / "typo.jsonl")


def test_the_hub_is_asked_last_for_the_file_of_a_data_set(tmp_path, reachable):
    file = write(tmp_path / "q.jsonl", "qa")
    asked = reachable(huggingface_hub, "hf_hub_download", lambda *given, **named: str(file))
    assert suite_with("mine", hub={**HUB, "revision": "v1"}).origin == str(file)
    expected = {"repo_type": "dataset", "revision": "v1", "local_files_only": False}
    assert asked == [(("someone/questions", "q.jsonl"), expected)]


def test_a_hub_that_cannot_be_reached_is_asked_once_and_the_fix_named(monkeypatch):
    """Its client would try six times, for 30 s; switched off, only its cache is looked at."""
    with pytest.raises(
        InputError, match=r"q\.jsonl of someone/questions is not here; HF_HUB_OFFLINE is set"
    ):
        suite_with("mine", hub=HUB)
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
        with pytest.raises(
            InputError, match=r"huggingface\.co cannot be reached .*specbench fetch"
        ):
            suite_with("mine", hub=HUB)
    assert tried == [(("huggingface.co", 443), 5)]
    assert constants.HF_HUB_OFFLINE
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(outside, "getproxies", lambda: {"https": "proxy"})
    assert outside.refuse_network.__wrapped__() == ""


GENERATION = datasets.exceptions.DatasetGenerationError


@pytest.mark.parametrize(
    ("address", "kind"),
    [(HUB, OSError), (TABLES, GENERATION)],
)
def test_a_failed_download_is_one_line_of_the_error(reachable, address, kind):
    reachable(*CLIENTS["file" in address], kind("no route\nto host"))
    with pytest.raises(InputError, match=rf"data set {address['repo']} could not be .*no route"):
        suite_with("gsm8k", format="gsm8k", hub=address)


def test_a_suite_found_nowhere_names_every_way_to_give_it(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"(?s)suite.path=<file>.*SPECBENCH_DATA.*suite.hub.repo"):
        suite_with("spec_bench", hub={"repo": None, "file": None})
    monkeypatch.setenv("SPECBENCH_DATA", str(tmp_path))
    with pytest.raises(InputError, match=f"looked for {tmp_path}.*which does not exist"):
        suite_with("spec_bench")


def test_another_number_or_hash_than_the_official_one_is_a_warning_that_states_both(tmp_path):
    """The number is that of the file, not of the selection."""
    file = write(tmp_path / "q.jsonl", "qa", "qa")
    suite = suite_with("mine", path=file, expected=480, sha256="AB12")
    number, digest = suite.warnings
    assert "has 2 questions, the official file has 480" in number
    assert f"has sha256 {suite.sha256}, the official file has ab12" in digest
    assert (
        suite_with("mine", path=file, expected=2, sha256=suite.sha256.upper(), first=1).warnings
        == ()
    )


@pytest.fixture
def tables(reachable):
    """Set the rows that the hub gives by configuration."""
    return lambda rows: reachable(
        datasets, "load_dataset", lambda repo, config=None, **_: rows[config]
    )


def test_languages_are_known_by_their_configuration(tables):
    row = {"question": "?", "answer": None, "answer_number": 2125}
    tables({language: [row] for language in LANGUAGES})
    suite = suite_with("mgsm", format="mgsm", hub={**TABLES, "configs": LANGUAGES})
    assert [case.id for case in suite.cases] == [f"mgsm/{language}/0" for language in LANGUAGES]
    assert {case.references for case in suite.cases} == {("2125",)}


def test_the_hash_of_a_data_set_is_of_its_rows_and_never_compared_with_a_files(tables):
    found = []
    for text in "?!":
        tables({"main": [{"question": text}]})
        found.append(
            suite_with(
                "gsm8k", format="gsm8k", hub=TABLES, sha256="ab12", expected=1 + (text == "!")
            )
        )
    assert found[0].sha256 != found[1].sha256
    assert found[0].warnings == ()
    (warning,) = found[1].warnings
    assert "someone/problems (test) on the hub has 1 questions, the official file has 2" in warning
    tables({"main": [{"question": "?"}, {"question": ""}]})
    with pytest.raises(
        InputError, match=r"someone/problems \(main, test\), row 1: question is an empty"
    ):
        suite_with("gsm8k", format="gsm8k", hub=TABLES)


def test_rows_of_mt_bench_out_of_their_order_are_refused_because_their_ids_are_unknown(tables):
    row = {"prompt": ["?", "And?"], "prompt_id": 7, "category": "writing", "reference": []}
    hub = {"repo": "someone/mt_bench", "split": "train"}
    tables({None: [row] * 10})
    assert [case.id for case in suite_with("mt", format="mt_bench", hub=hub).cases] == [
        str(n) for n in range(81, 91)
    ]
    tables({None: [row] * 11})
    with pytest.raises(InputError, match="row 10: category is writing, expected roleplay"):
        suite_with("mt", format="mt_bench", hub=hub)


@pytest.mark.parametrize("hub", ["{repo: a/b}", "{repo: a/b, file: f, split: test}"])
def test_an_address_is_a_file_or_a_split_of_a_repository(hub, monkeypatch):
    monkeypatch.setattr(sources, "_fetch_file", lambda *address: f"asked for {address}")
    for given in (
        ["suite.hub={repo: a/b, file: q.jsonl}"],
        ["suite.hub.repo=a/b", "suite.hub.file=q.jsonl"],
    ):
        with pytest.raises(InputError, match=r"asked for \('a/b', 'q.jsonl', None\)"):
            job_for("suite=spec_bench", *given)
    with pytest.raises(InputError, match=r"expected both repo and file, .* or both repo and split"):
        job_for("suite=spec_bench", f"suite.hub={hub}")
