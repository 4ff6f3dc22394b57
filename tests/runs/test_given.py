"""Settings that were given and have no effect; ``tests/test_bad_input.py`` has their messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

import specbench
from builders.resumed import replay_of
from builders.runs import watch_job
from specbench import commands
from specbench.commands import run as run_command
from specbench.input import InputError
from specbench.records.store import RECORDS
from specbench.runs import given, sweep
from specbench.runs.config import Config
from specbench.runs.job import job_at
from specbench.screen import DONE, USAGE

# The settings that always have an effect.
ALWAYS = {
    *("method", "engine.kind", "load.kind", "run.shards", "decode.first_draft"),
    *(f"model.{key}" for key in ("name", "tokenizer", "trust_remote_code")),
    *(
        f"suite.{key}"
        for key in ("format", "categories", "limit", "sample", "first", "part", "ids", "order")
    ),
    *(f"decode.{key}" for key in ("max_new_tokens", "temperature", "seed")),
    *(f"measure.{key}" for key in ("rounds", "control", "warmup", "lossless", "fresh")),
    *(f"report.{key}" for key in ("plots", "progress", "identify", "to")),
}


def leaves(kind: Any = Config, path: str = "") -> Iterator[str]:
    """The dotted path of every setting of the schema."""
    for each in fields(kind):
        inner = get_type_hints(kind)[each.name]
        group = next((part for part in (inner, *get_args(inner)) if is_dataclass(part)), None)
        yield from leaves(group, f"{path}{each.name}.") if group else [f"{path}{each.name}"]


def test_every_setting_has_a_condition_or_always_counts():
    without = {path for path in leaves() if not list(given._conditions(path.split(".")))}
    assert without == ALWAYS


@pytest.mark.parametrize(
    "overrides",
    [
        "load=closed load.requests=5 load.chunk=8 load.slo.ttft_ms=5",
        # of the search's closed loop
        "load=poisson load.find=slo load.slo.ttft_ms=5 load.seconds=2 load.block=8",
        "load.requests=1 load.block=16 decode.top_p=1.0 model.draft=null",  # the defaults
        "decode=sample decode.top_p=0.9 decode.verify=block",
        "model.draft=bundled:tiny_draft",  # of the default list, speculative_sampling uses it
        "run.shards=2 hydra/launcher=joblib suite.limit=2 method=[pld]",
        "model=random model.random.seed=3 method=[pld]",
        "model.gpus=2 model.device=cpu engine=fast model.check_ranks=true method=[pld]",
    ],
)
def test_a_setting_that_counts_is_taken(overrides):
    job_at(overrides.split())


@pytest.fixture
def swept(tmp_path, monkeypatch, capsys):
    """Arguments of a sweep -> its exit code and its message; no job runs."""
    begun: list[str] = []
    monkeypatch.setattr(
        sweep, "run_one", lambda cfg, **_: begun.append("") or sweep.Ended((), None, DONE)
    )

    def run(*arguments: str) -> tuple[int, str]:
        code = run_command.main(
            ["-m", "method=[pld]", f"hydra.sweep.dir={tmp_path / 'jobs'}", *arguments]
        )
        assert bool(begun) is (code == DONE)
        return code, capsys.readouterr().err

    return run


@pytest.mark.exhaustive
def test_a_setting_that_counts_in_one_job_of_a_sweep_is_taken(swept):
    assert swept("decode.temperature=0,0.7", "decode.top_p=0.9") == (DONE, "")
    assert swept("load=one,closed", "load.requests=2,4") == (DONE, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("suite.limit=1,2", "decode.top_p=0.9"),
            "decode.top_p=0.9: has no effect with decode.temperature=0.0",
        ),
        (
            ("suite.limit=1,2", "hydra.run.dir=r"),
            "hydra.run.dir=r: has no effect with hydra.mode=MULTIRUN",
        ),
        (
            ("suite.limit=range(0,200)", "decode.seed=range(0,200)"),
            "suite.limit of 200 times decode.seed of 200 values",
        ),
        (
            ("decode.length=fixed,price", "decode.length_profile=no/such.json"),
            "profile no/such.json: no such file",
        ),
        (("suite.limit=range(5,5)",), "suite.limit of 0 values"),
        (("suite.limit=1,2", "hydra.sweep.dir=/"), "hydra.sweep.dir=/: contains other things"),
    ],
)
def test_a_sweep_that_is_refused_before_its_first_job(swept, tmp_path, arguments, message):
    code, shown = swept(*arguments)
    assert (code, message in shown) == (USAGE, True), shown
    assert not (tmp_path / "jobs").exists()


def test_a_run_grows_by_a_method_and_its_draft_model(tmp_path):
    """The draft model is no setting of the methods that the run has, and could not be given
    before.
    """
    settings = (
        "suite.limit=1",
        "suite.first=2",
        "decode.max_new_tokens=4",
        "measure=quick",
        "measure.lossless=false",
    )
    watch_job(tmp_path / "run", *settings, "method=[pld]")
    before = (tmp_path / "run" / RECORDS).read_bytes()
    more = ("method=[pld,speculative_sampling]", "model.draft=bundled:tiny")
    watch_job(tmp_path / "run", *settings, *more)
    assert (tmp_path / "run" / RECORDS).read_bytes().startswith(before)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: specbench.run(3), r"run\(3\): expected settings, each a text"),
        (lambda: specbench.load(3.5), r"load\(3\.5\): expected the directory of a run"),
    ],
)
def test_python_calls_with_what_is_no_setting_and_no_path(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_working_directory_that_was_deleted_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert commands.main(["--dry-run", "suite.limit=1"]) == USAGE
    assert "the working directory was deleted" in capsys.readouterr().err


def test_a_folder_of_an_earlier_run_or_an_empty_one_is_taken(tmp_path):
    settings, run = (*replay_of(tmp_path, 2), "method=[pld]"), tmp_path / "run"
    run.mkdir()
    for _ in range(2):
        watch_job(run, *settings)
        (run / "notes.txt").write_text("mine")
