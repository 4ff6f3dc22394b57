"""``specbench schema``: what it prints fits the files of real runs, and refuses what their reader
refuses.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from builders.damage import VALUES, mutants_of, put
from builders.runs import watch_job
from specbench import commands
from specbench.commands.schema import FILES
from specbench.input import InputError
from specbench.records.answers import read_answers
from specbench.records.manifest import Manifest
from specbench.records.record import CaseRecord
from specbench.records.store import MANIFEST, RECORDS
from specbench.trace import read_live

SMALL = (
    "model=tiny",
    "suite.limit=1",
    "suite.categories=[qa]",
    "measure=quick",
    "decode.max_new_tokens=8",
)
RUNS = {
    "one": ("method=[pld]",),
    "load": ("method=[pld]", "load=closed", "load.requests=2"),
}
# What takes the place of an entry: values of other kinds, and numbers that its bounds may exclude.
BEYOND = ("negative", "2^31", "10^30", "1e300")
# Of the configuration in a manifest, the entries that have a type.
TYPED = (
    *("config.engine.kind", "config.suite.part", "config.report.identify"),
    *(f"config.model.{name}" for name in ("path", "tokenizer", "revision", "heads")),
    *(
        f"config.decode.{name}"
        for name in ("max_new_tokens", "temperature", "first_draft", "length", "verify")
    ),
    *(f"config.load.{name}" for name in ("kind", "requests", "rate", "slo", "slo.ttft_ms")),
    "config.measure.price_per_hour",
)
FREE = re.compile(r"config\.\w+\.|methods\.\w+\.parameters\.|(processes\.0\.)?versions\.")
# File -> the kinds of values and the numbers that are taken in these entries all the same.
TAKEN = {
    "records": {
        "null": "turns.0.cpu_s turns.0.trees lossless lossless.close_steps",
        "int float 2^31": "turns.0.energy_j",
        "negative": "block",
        "negative 2^31": "turns.0.stats.cached_tokens",
        "2^31": "state_bytes",
        "2^31 10^30 1e300": "lossless.worst_gap",
    },
    "manifest": {
        "null": (
            "config.model.path config.model.heads config.decode.max_new_tokens config.engine.kind"
            " config.load.requests specbench config_hash threads model.name"
            " model.path model.family model.dtype model.device model.tokenizer model.fingerprint"
            " engine forward parallel parallel.way parallel.gpus suite.name suite.cases suite.turns"
            " suite.origin suite.sha256 rounds baseline git.commit machine.system machine.threads"
        ),
        "null dict": "machine.cpu",
        "null 2^31": "model.parameters temperature",
        "null negative 2^31 10^30": "model.context machine.cores machine.memory_bytes",
        "null negative 2^31 10^30 1e300": "machine.load_1min",
        "str": "config.model.revision config.model.tokenizer config.suite.part trace",
        "int float 2^31": "config.measure.price_per_hour config.load.rate config.load.slo.ttft_ms",
        "null negative 2^31": "config.decode.temperature",
    },
    "answers": {
        "str negative 2^31 10^30": "question_id",
        "negative 2^31": "tstamp",
        "null": "choices.0.decoding_steps",
    },
    "trace": {"null": "turns.0.prompt_ids"},
}
# Values of the right kind that are not among those of the entry, and entries that do not exist.
UNKNOWN = {
    "records": {
        "status": "done",
        "method": "",
        "turns.0.finish": "stop",
        "turns.0.accept.0": 0,
        "turns.0.other": 1,
    },
    "manifest": {
        "schema": 2,
        "methods.pld.reset": "often",
        "config.engine.kind": "quick",
        "model.device": "the first",
    },
}
CHOICE = {
    "turns": ["a"],
    "new_tokens": [2],
    "wall_time": [1.0],
    "decoding_steps": [2],
    "accept_lengths": [1, 1],
}
ANSWER = {
    "question_id": 1,
    "category": "qa",
    "model_id": "m",
    "answer_id": "a",
    "tstamp": 1.0,
    "choices": [CHOICE],
}
LIVE = {
    "case": "1",
    "category": "qa",
    "turns": [{"prompt_ids": [1, 5], "ids": [7, 2], "finish": "eos", "text": "a"}],
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
    return [
        json.loads(line)
        for folder in runs.values()
        for line in (folder / RECORDS).read_bytes().splitlines()
    ]


@pytest.mark.parametrize("file", FILES)
def test_files_of_real_runs_fit(file, runs, capsys):
    validator = printed(capsys, file)
    assert [
        error.message for values in contents(runs, file) for error in validator.iter_errors(values)
    ] == []
    assert validator.schema["$id"] == f"urn:specbench:{file}:1"
    assert {name for values in contents(runs, file) for name in values} <= {
        *validator.schema["properties"]
    }
    assert printed(capsys).schema["title"] == "CaseRecord"


@pytest.mark.parametrize("file", TAKEN)
def test_an_entry_of_another_kind_is_refused_by_its_name_and_does_not_fit(
    file, runs, tmp_path, capsys
):
    """Of every entry of a file, also of those that the commands read beyond a run's: answers and
    recorded ids.
    """
    whole = {"answers": ANSWER, "trace": LIVE}.get(file) or contents(runs, file)[0]
    if file == "records":
        whole = next(each for each in contents(runs, file) if each["turns"][0]["sources"])
        whole["turns"][0]["stats"] = {"cached_tokens": 3.0}
    elif file == "manifest":
        whole |= {
            "parallel": {"way": "tensor", "gpus": 2},
            "machine": whole["machine"] | {"gpus": [{"name": "G"}]},
        }
        del whole["processes"][1:], whole["processes"][0]["git"], whole["processes"][0]["machine"]
    path = tmp_path / "f.jsonl"

    def read_file(read: Callable[[Path], object], text: str) -> object:
        path.write_text(f"{text}\n{json.dumps(whole | {'case': '2', 'question_id': 2})}\n")
        return read(path)

    read = {
        "records": lambda text: CaseRecord.from_json(text),
        "manifest": lambda text: Manifest.parse(text.encode(), "manifest", "restore it"),
        "answers": partial(read_file, read_answers),
        "trace": partial(read_file, read_live),
    }[file]
    read(json.dumps(whole))
    taken, refused, unnamed = defaultdict[str, set[str]](set), dict[str, str](), list[str]()
    for place, fault, wrong, make in mutants_of(whole):
        if not (wrong or fault in BEYOND) or (FREE.match(place) and place not in TYPED):
            continue
        text = make()
        try:
            read(text)
            taken[place].add(fault if fault in BEYOND else VALUES[fault][1])
        except InputError as error:
            if re.findall("[a-z_]+", place)[-1] not in str(error) and "not JSON" not in str(error):
                unnamed.append(f"{place}, {fault}: {error}")
            if "which should be" in str(error):
                refused[place] = text
    for place, value in UNKNOWN.get(file, {}).items():
        path = tuple(int(part) if part.isdigit() else part for part in place.split("."))
        refused[place] = put(whole, path, json.dumps(value))
        with pytest.raises(InputError, match=place):
            read(refused[place])
    assert unnamed == []
    assert taken == {
        place: set(kinds.split())
        for kinds, places in TAKEN[file].items()
        for place in places.split()
    }
    if file in FILES:
        fits = printed(capsys, file).is_valid
        assert [place for place, text in refused.items() if fits(json.loads(text))] == []
        assert len(refused) > 40
