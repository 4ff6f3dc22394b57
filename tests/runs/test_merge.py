"""Parts of a run, merged: the run that all cases at once would have been, or a refusal that says
what does not fit.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from builders.resumed import counted, cut_records, edit_manifest, replay_of
from builders.runs import job_for
from specbench.commands.merge import main
from specbench.records.store import MANIFEST, RECORDS, RunError, read_run
from specbench.report import read_findings
from specbench.runs.execution import execute
from specbench.runs.parts import merge, require_parts, split_part

METHODS = ("vanilla", "vanilla_aa", "pld")
CASES = 7
SETTINGS = (
    "method=[pld]",
    "measure.control=true",
    "measure.rounds=2",
    "measure.keep_trees=3",
    "suite.order=shuffled",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """``whole``, and its parts ``1`` to ``3``."""
    folder = tmp_path_factory.mktemp("runs")
    given = (*replay_of(folder, CASES), *SETTINGS)
    for name in ("whole", "1", "2", "3"):
        part = () if name == "whole" else (f"suite.part={name}/3",)
        execute(job_for(*given, *part), folder / name, lambda *_: None)
    return folder


@pytest.fixture
def parts(runs, tmp_path) -> list[Path]:
    """Copies to be changed."""
    return [Path(shutil.copytree(runs / str(part), tmp_path / str(part))) for part in (1, 2, 3)]


def test_the_merged_run_is_the_single_run(runs, parts, tmp_path, capsys):
    """Whatever the order in which its parts are named; also what a report of it counts."""
    assert main([*map(str, (parts[1], parts[2], parts[0])), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "latest").resolve() == tmp_path / "out"
    assert "7 cases of 3 parts" in capsys.readouterr().out
    whole, merged = read_run(runs / "whole"), read_run(tmp_path / "out")
    assert counted(tmp_path / "out") == counted(runs / "whole")
    assert {record.shard for record in merged.records} == {0, 1, 2}
    assert len(merged.records) == 2 * CASES * len(METHODS)
    assert sum(record.turns[0].trees is not None for record in merged.records) == 3 * len(METHODS)
    for key in ("config_hash", "suite", "methods", "rounds"):
        assert merged.manifest[key] == whole.manifest[key], key
    assert merged.manifest["config"] == whole.manifest["config"]
    assert [each["part"] for each in merged.manifest["shards"]] == ["2/3", "3/3", "1/3"]
    counts = ["method", "category", "cases", "mat", "acceptance_rate", "tokens_fed", "errors"]
    one, two = (read_findings([runs / "whole"]), read_findings([tmp_path / "out"]))
    assert one.summary[counts].equals(two.summary[counts])
    assert len(two.reported[0].shards) == 3


@pytest.mark.parametrize(
    ("parts", "whole", "missing"),
    [
        (["1/4", "3/4"], "1/2", ""),
        (["1/2", "2/4", "4/4"], None, ""),
        (split_part("2/3", 4), "2/3", ""),
        (["1/4", "3/4"], None, "2/4, 4/4"),  # evenly spread, they make a part and not the run
        (["1/4"], "1/2", "3/4"),
    ],
)
def test_parts_make_a_part_or_lack_others(parts, whole, missing):
    refused = pytest.raises(RunError, match=f": {missing} missing")
    with refused if missing else nullcontext():
        require_parts(parts, whole)


def test_one_of_several_parts_is_not_the_run(runs, tmp_path, capsys):
    assert main([str(runs / "1"), "--out", str(tmp_path / "out")]) == 2
    assert "2/3, 3/3 missing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_merge_that_was_killed_is_repeated(runs, tmp_path, monkeypatch):
    """Before each rename, and after the last; nobody's partial files go."""
    given = [*(str(runs / name) for name in "123"), "--out", str(tmp_path / "out")]
    rename, renamed = os.replace, []

    def rename_some(most, *paths):
        if len(renamed) == most:
            raise SystemExit
        renamed.append(rename(*paths))

    monkeypatch.setattr(os, "unlink", lambda *_: None)
    for number in range(3):
        monkeypatch.setattr(os, "replace", functools.partial(rename_some, number))
        with pytest.raises(SystemExit):
            main(given)
        renamed.clear()
        for path in (tmp_path / "out").glob(f".*.{os.getpid()}.partial"):
            path.rename(path.with_name(path.name.replace(str(os.getpid()), "999999999")))
    monkeypatch.undo()
    assert (tmp_path / "out" / RECORDS).exists()
    assert not (tmp_path / "latest").exists()
    before = (tmp_path / "out" / RECORDS).stat()
    assert main(given) == 0
    assert (tmp_path / "latest").resolve() == tmp_path / "out"
    assert (tmp_path / "out" / RECORDS).stat().st_ino == before.st_ino
    assert {path.name for path in (tmp_path / "out").iterdir()} == {RECORDS, MANIFEST}


@pytest.mark.parametrize("change", ["records", "manifest", "longer"])
def test_another_run_is_not_taken_for_the_merged_one(parts, tmp_path, change):
    merge(parts, tmp_path / "out")
    path = tmp_path / "out" / RECORDS
    if change == "manifest":
        edit_manifest(
            tmp_path / "out", lambda manifest: manifest.update(created="2020-01-01T00:00:00+00:00")
        )
    else:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines, lines[-1]] if change == "longer" else lines[:-1]))
    before = path.read_bytes()
    with pytest.raises(RunError, match="contains a run"):
        merge(parts, tmp_path / "out")
    assert path.read_bytes() == before


def second(edit) -> Callable[[list[Path]], None]:
    """Changes the manifest of the second part."""
    return lambda parts: edit_manifest(parts[1], edit)


def repeat_block(part: Path) -> None:
    """The last block follows once more, as block 4."""
    lines = (part / RECORDS).read_text().splitlines(keepends=True)
    assert '"block":3,' in lines[-1]
    last = [line.replace('"block":3,', '"block":4,') for line in lines if '"block":3,' in line]
    (part / RECORDS).write_text("".join([*lines, *last]))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda parts: parts.append(parts[0]), "both contain case"),
        (lambda parts: repeat_block(parts[1]), "round 1 a second time"),
        (
            lambda parts: cut_records(parts[1], -1),
            "3 of 4 blocks are done; the command that began it continues",
        ),
        (second(lambda m: m["suite"].update(sha256="x")), "another questions"),
        (second(lambda m: m["versions"].update(torch="0")), "library (torch): '0'"),
        (second(lambda m: m["config"]["decode"].update(seed=1)), "configuration (decode.seed)"),
        (second(lambda m: m.update(part=None)), "is not a part of a run"),
        (second(lambda m: m["methods"]["pld"].update(reset="never")), "learns across cases"),
    ],
)
def test_what_does_not_fit_is_refused(edit, message, parts, tmp_path):
    edit(parts)
    with pytest.raises(RunError) as error:
        merge(parts, tmp_path / "out")
    assert message in str(error.value)
    assert not (tmp_path / "out" / RECORDS).exists()


def test_parts_of_machines_that_keep_their_files_in_other_places(runs, parts, tmp_path):
    """The same questions and answers at another path; at the same path others are refused."""
    moved = "/mnt/other/t.jsonl"

    def move(manifest: dict) -> None:
        manifest["config"]["model"]["trace"] = manifest["model"]["path"] = manifest["suite"][
            "origin"
        ] = moved

    edit_manifest(parts[1], move)
    merge(parts, tmp_path / "out")
    assert counted(tmp_path / "out") == counted(runs / "whole")
    third = "/mnt/third/t.jsonl"  # the setting then names a file whose fingerprint is unknown

    def move_again(manifest: dict) -> None:
        manifest["model"]["path"] = manifest["suite"]["origin"] = third

    edit_manifest(parts[1], move_again)
    with pytest.raises(RunError, match=r"configuration \(model.trace\): '/mnt/other/t.jsonl'"):
        merge(parts, tmp_path / "again")


def test_other_versions_are_a_warning_where_asked(parts, tmp_path):
    edit_manifest(parts[1], lambda manifest: manifest["versions"].update(torch="0"))
    manifest = merge(parts, tmp_path / "out", any_versions=True)
    assert any("several versions" in warning for warning in manifest.warnings)
    assert merge(parts, tmp_path / "out", any_versions=True) == manifest
