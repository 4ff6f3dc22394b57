"""``specbench schema``: what it prints fits the files of real runs, and refuses what their reader refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from builders.runs import watch_job
from specbench import commands
from specbench.commands.schema import FILES
from specbench.input import InputError
from specbench.records.manifest import Manifest
from specbench.records.record import CaseRecord
from specbench.records.store import MANIFEST, RECORDS

SMALL = ("model=tiny", "suite.limit=1", "suite.categories=[qa]", "measure=quick", "decode.max_new_tokens=8")
RUNS = {
    "one": ("method=[pld]",),
    "load": ("method=[pld]", "load=closed", "load.requests=2"),
}
# entry -> what the reader and the schema refuse there; ... takes the entry out
OF_RECORDS = {
    "case": (..., 3),
    "round": (-1, "0", 1 << 40),
    "status": ("done",),
    "method": ("",),
    "turns.0.ids": (..., None, [0.5], ["a"]),
    "turns.0.finish": ("stop",),
    "turns.0.accept": ([0],),
    "turns.0.decode_s": (-1, "1"),
    "turns.0.sources": ({"n": [1]},),
    "turns.0.other": (1,),
    "lossless.worst_gap": (-1, None),
    "other": (1,),
}
OF_MANIFEST = {
    "schema": (0, 2, "1"),
    "specbench": (None, 1),
    "config_hash": (None,),
    "processes.0.launch": (None,),
    "methods.pld.reset": ("often",),
    "config.decode.temperature": (None, "0"),
    "config.engine.kind": (None, "quick"),
    "model.device": ("the first",),
    "rounds": (0,),
    "warnings": ([1],),
}
DAMAGES = [
    *(("records", entry, value) for entry, values in OF_RECORDS.items() for value in values),
    *(("manifest", entry, value) for entry, values in OF_MANIFEST.items() for value in values),
]
READERS: dict[str, Callable[[bytes], object]] = {
    "records": lambda text: CaseRecord.from_json(text),
    "manifest": lambda text: Manifest.parse(text, "manifest", "restore it"),
}


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Draft202012Validator:
    assert commands.main(["schema", *words]) == 0
    schema = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) / "run" for name in RUNS}
    for name, folder in folders.items():
        watch_job(folder, *SMALL, *RUNS[name])
    return folders


def contents(runs: dict[str, Path], file: str) -> list[Any]:
    """The JSON values of the runs' files."""
    if file == "manifest":
        return [json.loads((folder / MANIFEST).read_bytes()) for folder in runs.values()]
    return [json.loads(line) for folder in runs.values() for line in (folder / RECORDS).read_bytes().splitlines()]


def damaged(values: Any, entry: str, value: Any) -> Any:
    """A copy of a file's values with another value in one entry."""
    copied = copy.deepcopy(values)
    *path, last = (int(part) if part.isdigit() else part for part in entry.split("."))
    node = copied
    for part in path:
        node = node[part]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return copied


@pytest.mark.parametrize("file", FILES)
def test_files_of_real_runs_fit(file, runs, capsys):
    validator = printed(capsys, file)
    assert [error.message for values in contents(runs, file) for error in validator.iter_errors(values)] == []
    assert validator.schema["$id"] == f"urn:specbench:{file}:1"
    assert {name for values in contents(runs, file) for name in values} <= {*validator.schema["properties"]}
    assert printed(capsys).schema["title"] == "CaseRecord"


@pytest.mark.parametrize(("file", "entry", "value"), DAMAGES, ids=lambda each: None if each is ... else str(each))
def test_a_damaged_file_does_not_fit(file, entry, value, runs, capsys):
    whole = contents(runs, file)[0]
    wrong = damaged(whole, entry, value)
    READERS[file](json.dumps(whole).encode())
    with pytest.raises(InputError):
        READERS[file](json.dumps(wrong).encode())
    assert not printed(capsys, file).is_valid(wrong)
