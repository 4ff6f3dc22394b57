"""The runs and the profile of a notebook: the named ones, else those of the nearest checkout."""

import os

import fsspec
import pytest

from specbench.commands.report import main
from specbench.profile import file as profile_file
from specbench.records.store import RunError
from specbench.report.locate import PROFILE, RUN, chosen_profile, chosen_runs
from specbench.screen import DONE, USAGE


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder two levels below ``tmp_path``, with nothing named in the environment."""
    for name in (RUN, PROFILE):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "one/two"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return tmp_path


def test_named_runs_come_before_the_newest_and_a_sweep_stands_for_its_runs(make_run, elsewhere, monkeypatch):
    newest, single = make_run("results/latest", per_category=1), make_run("single", per_category=1)
    swept = [make_run(f"sweep/{number}", per_category=1) for number in (2, 10)]
    assert chosen_runs() == [newest]
    monkeypatch.setenv(RUN, os.pathsep.join(map(str, (single, swept[0].parent))))
    assert chosen_runs() == [single, *swept]


def test_without_any_run_the_variable_is_named(elsewhere):
    with pytest.raises(RunError, match="SPECBENCH_RUN is not set and there is no results/latest"):
        chosen_runs()


def test_a_profile_is_named_or_the_first_published_one(elsewhere, monkeypatch):
    assert chosen_profile() is None
    installed = elsewhere / "package"
    installed.mkdir()
    (installed / "c.json").write_text("{}")
    monkeypatch.setattr(profile_file, "_INSTALLED", installed)
    assert chosen_profile() == installed / "c.json"
    published = elsewhere / "results/profiles/published"
    published.mkdir(parents=True)
    for name in ("b.json", "a.json"):
        (published / name).write_text("{}")
    assert chosen_profile() == published / "a.json"
    monkeypatch.setenv(PROFILE, "mine.json")
    assert str(chosen_profile()) == "mine.json"


def test_runs_of_an_object_store(make_run, tmp_path, capsys):
    """One run and a sweep, as from a folder; nothing is written there."""
    runs = [make_run(f"sweep/{number}", methods={"pld": (4.0, 0.5, 0.001)}, per_category=1) for number in (1, 2)]
    store = fsspec.filesystem("memory")
    for run in runs:
        for file in run.iterdir():
            store.pipe_file(f"/results/sweep/{run.name}/{file.name}", file.read_bytes())
    before = store.find("/results")
    written = {}
    for place, source in (("here", str(runs[0].parent)), ("there", "memory://results/sweep")):
        assert main([source, "--no-plots", "--output", str(tmp_path / place)]) == DONE
        written[place] = [(tmp_path / place / name).read_bytes() for name in ("summary.csv", "tables/overall.md")]
    assert written["here"] == written["there"]
    assert main([runs[1].as_uri(), "--published", "--output", str(tmp_path / "single")]) == DONE
    assert store.find("/results") == before
    capsys.readouterr()
    for wrong, said in (
        (["memory://results/sweep"], "say where with --output DIR"),
        (["memory://results/none", "--output", str(tmp_path)], "holds no manifest.json"),
        (["nothing://results", "--output", str(tmp_path)], "cannot be read (Protocol not known"),
    ):
        assert main(wrong) == USAGE
        assert said in capsys.readouterr().err
