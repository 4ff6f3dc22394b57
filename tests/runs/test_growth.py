"""A run that grows: what is missing runs, what is there stays to the byte, and counts are those of
a run made whole.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from builders.resumed import counted, replay_of
from builders.runs import watch_job
from specbench.commands import run as run_command
from specbench.commands.merge import main as merge
from specbench.records.store import LOCK, RECORDS, read_manifest
from specbench.report import read_findings
from specbench.runs import earlier, launch
from specbench.screen import DONE, USAGE
from specbench.types import InputError

CASES = 6
COUNTS = [
    "method",
    "category",
    "cases",
    "tokens",
    "steps",
    "mat",
    "mat_low",
    "acceptance_rate",
    "tokens_fed",
    "errors",
]


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> tuple[str, ...]:
    return replay_of(tmp_path_factory.mktemp("grown"), CASES)


@pytest.fixture(scope="module")
def grow(settings):
    """Execute in a folder; how many blocks were new. stop_after: see ``watch_job``."""

    def run(folder: Path, *overrides: str, stop_after: int | None = None) -> int:
        return len(watch_job(folder, *settings, *overrides, stop_after=stop_after)) - 1

    return run


@pytest.fixture(scope="module")
def whole(grow, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    grow(folder, "method=[pld,sam]", "measure.rounds=2")
    return folder


def by_place(directory: Path) -> dict:
    """(case, round, method) -> its record without times and without its place in the file;
    vanilla's last.
    """
    records = counted(directory)
    return {
        (each["case"], each["round"], each["method"]): {
            **each,
            "block": 0,
            "position": 0,
            "turns": each["turns"],
        }
        for each in records
    }


def figures(directory: Path):
    """The counts of a report, in the order of methods and categories."""
    summary = read_findings([directory]).summary[COUNTS]
    return summary.sort_values(["method", "category"]).reset_index(drop=True)


@pytest.mark.parametrize("steps", [
    (["method=[pld]", "measure.rounds=2"],),
    (["method=[pld,sam]", "measure.rounds=2", "suite.first=4"],),
    (["method=[pld,sam]"],),
    (["method=[sam]", "suite.first=3"], ["method=[sam]"], ["method=[pld,sam]"]),
], ids=["method", "cases", "rounds", "all"])  # fmt: skip
def test_a_run_that_grew_has_the_counts_of_the_run_made_whole(grow, whole, tmp_path, steps, capsys):
    run = tmp_path / "run"
    for step in steps:
        grow(run, *step)
    before = (run / RECORDS).read_bytes()
    grow(run, "method=[pld,sam]", "measure.rounds=2")
    after = (run / RECORDS).read_bytes()
    assert after.startswith(before)
    assert len(after) > len(before)
    assert by_place(run) == by_place(whole)
    assert figures(run).equals(figures(whole))
    assert read_manifest(run).config_hash == read_manifest(whole).config_hash
    assert grow(run, "method=[pld,sam]", "measure.rounds=2") == 0
    assert "also has" not in capsys.readouterr().out
    assert grow(run, *steps[0]) == 0
    others = {"pld", "sam"} - {*re.findall(r"pld|sam", steps[0][0])}
    assert [f"also has {name}; " in capsys.readouterr().out for name in others] == [True] * len(
        others
    )
    assert (run / RECORDS).read_bytes() == after


def test_old_figures_stay_and_a_new_method_has_its_own_vanilla(grow, tmp_path):
    """To the digit; the manifest says where vanilla ran again."""
    run = tmp_path / "run"
    grow(run, "method=[pld]")
    lines = [json.loads(line) for line in (run / RECORDS).read_text().splitlines()]
    old = read_findings([run]).summary.set_index(["method", "category"])
    assert grow(run, "method=[pld,sam]") == CASES
    found = read_findings([run])
    new = found.summary.set_index(["method", "category"])
    assert new.loc[old.index].equals(old)
    assert read_manifest(run).as_dict()["grown"] == [
        {"block": CASES, "methods": ["sam"], "cases": 0, "rounds": 0, "again": CASES}
    ]
    assert [entry.facts.methods for entry in found.reported] == [("vanilla", "pld"), ("sam",)]
    assert [len(entry.run.records) for entry in found.reported] == [len(lines), 2 * CASES]
    assert {record.block for record in found.runs[1].records} == {*range(CASES, 2 * CASES)}
    assert any("sam: added to the run later" in text for text in found.warnings)


@pytest.mark.parametrize("reset", ["case", "never"])
def test_killed_while_growing(grow, tmp_path, reset):
    """After some blocks, and within a block; a method that learns starts its round again."""
    one, two = tmp_path / "one", tmp_path / "two"
    more = ("method=[pld,sam]", f"method.sam.reset={reset}", "suite.first=5")
    for run in (one, two):
        grow(run, "method=[pld]", "suite.first=3")
    grow(one, *more)
    grow(two, *more, stop_after=5)
    lines = (two / RECORDS).read_bytes().splitlines(keepends=True)
    (two / RECORDS).write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    assert grow(two, *more) == (4 if reset == "case" else 5)
    assert counted(two) == counted(one)
    assert len(read_manifest(two).grown) == 1


@pytest.mark.parametrize(("first", "then", "message"), [
    (["method=[sam]"], ["method=[pld]"], "has method sam, and this command has not"),
    (["suite.ids=['0','1']"], ["suite.ids=['1','2']"], "has case 0 in round 0"),
    (["method.pld.reset=never", "suite.first=2"], ["method.pld.reset=never"],
    "learns across cases"), (["suite.first=2"], ["method.pld.num_draft=2"],
    r"method\.pld\.num_draft=10, here 2"),
])  # fmt: skip
def test_what_cannot_grow_is_refused(grow, tmp_path, first, then, message):
    grow(tmp_path / "run", "method=[pld]", *first)
    before = (tmp_path / "run" / RECORDS).read_bytes()
    with pytest.raises(InputError, match=message):
        grow(tmp_path / "run", "method=[pld]", *then)
    assert (tmp_path / "run" / RECORDS).read_bytes() == before


def test_parts_that_grew_merge(grow, whole, tmp_path):
    """One of them grew by a method, and one was made whole."""
    for part, methods in (("1/2", "[pld]"), ("1/2", "[pld,sam]"), ("2/2", "[pld,sam]")):
        grow(tmp_path / part[0], f"method={methods}", f"suite.part={part}", "measure.rounds=2")
    assert merge([str(tmp_path / "1"), str(tmp_path / "2"), "--out", str(tmp_path / "out")]) == 0
    assert figures(tmp_path / "out").equals(figures(whole))
    assert by_place(tmp_path / "out").keys() == by_place(whole).keys()
    assert read_manifest(tmp_path / "out").grown[0].methods == ["sam"]
    assert grow(tmp_path / "out", "method=[pld,sam]", "measure.rounds=2") == 0
    assert grow(tmp_path / "out", "method=[pld,sam]", "measure.rounds=3") == CASES


def tree_of(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Path -> time of its last change, and content, of everything in a folder."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def test_the_command_finds_the_run_that_it_adds_to(settings, tmp_path, monkeypatch, capsys):
    """Beside its own name; not one of other settings, and none where it is to begin anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "_report", lambda *_: DONE)

    def command(*overrides: str) -> int:
        return run_command.main([*settings, "report.plots=false", *overrides])

    assert command("method=[pld]", "--dry-run") == 0
    assert not (tmp_path / "results").exists()
    assert ": new\n" in capsys.readouterr().out
    assert command("method=[pld]") == 0
    (first,) = tmp_path.glob("results/*-*")
    (first / LOCK).unlink(missing_ok=True)
    before = tree_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(earlier, "FileLock", lambda *_, **__: pytest.fail("a run was locked"))
        assert command("method=[pld,sam]", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert f"{first}: {CASES} blocks are there, {CASES} are left" in printed
    assert f"requests  {2 * CASES} left" in printed  # sam and vanilla
    assert tree_of(tmp_path) == before
    assert command("method=[pld,sam]", "run.shards=2") == USAGE
    assert (
        f"run.shards=2: {first} has a part of this run, and a run grows in one process"
        in capsys.readouterr().err
    )
    assert command("method=[pld,sam]") == 0
    assert "goes on with" in capsys.readouterr().out
    assert [*tmp_path.glob("results/*-*")] == [first]
    assert command("method=[pld,sam]", "decode.seed=1") == 0
    assert command("method=[pld,sam,suffix_decoding]", "measure.fresh=true") == 0
    assert len([*tmp_path.glob("results/*-*")]) == 3
