"""Configurations, jobs and runs in a test, as the command line makes them, and commands that run in
this process.
"""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from builders.records import write_json_lines
from specbench.records.record import CaseRecord
from specbench.records.store import read_run
from specbench.runs import composition
from specbench.runs.config import conf_dir
from specbench.runs.entry import Entry, make_entry
from specbench.runs.execution import execute
from specbench.runs.job import Job, job_of


def composed(*overrides: str):
    """The configuration that ``specbench OVERRIDES`` would run; not to be changed."""
    composition.register()
    return composition.compose_config("config", list(overrides))


@functools.cache
def method_names() -> tuple[str, ...]:
    """Every method in conf/method except ``server``, which needs a running server."""
    names = {path.stem for path in (conf_dir() / "method").glob("*.yaml")}
    return tuple(sorted(names - {"server"}))


def one_of_each_class() -> list[str]:
    """The first method of each class, for comparisons of engines, which do not depend on a method's
    parameters.
    """
    first: dict[type, str] = {}
    for name in method_names():
        first.setdefault(type(entry_of(name).method), name)
    return list(first.values())


def entry_of(name: str) -> Entry:
    """A method as ``specbench method=[NAME]`` makes it: a new one each time."""
    return make_entry(name, settings_of(name))


def settings_of(name: str) -> dict[str, Any]:
    """A method's settings as ``specbench method=[NAME]`` has them; not to be changed."""
    return _settings()[name]


@functools.cache
def _settings() -> dict[str, dict[str, Any]]:
    """The settings of all methods, composed once: a method's settings do not depend on the other
    methods.
    """
    return composition.plain_values(composed(f"method=[{','.join(method_names())}]"))["method"]


def job_for(*overrides: str) -> Job:
    """The checked job of ``specbench OVERRIDES``."""
    return job_of(overrides)


class Stopped(Exception):
    """Ends a run from its observer."""


def watch_job(folder: Path, *overrides: str, stop_after: int | None = None) -> list[list[int]]:
    """Execute ``specbench OVERRIDES`` without a report; returns the blocks of each call of the
    observer.

    stop_after: raise in the observer after so many blocks, those of an earlier process included, as
    an interruption.
    """
    seen: list[list[int]] = []

    def observe(records: Sequence[CaseRecord], done: int, total: int) -> None:
        seen.append(sorted({record.block for record in records}))
        if stop_after is not None and done >= stop_after:
            raise Stopped

    job = job_for(*overrides)
    with contextlib.nullcontext() if stop_after is None else pytest.raises(Stopped):
        execute(job, folder, observe)
    return seen


def execute_job(folder: Path, *overrides: str, stop_after: int | None = None) -> list[CaseRecord]:
    """The records of a run, as ``watch_job`` executes it."""
    watch_job(folder, *overrides, stop_after=stop_after)
    return read_run(folder).records


def by_case(records: Iterable[CaseRecord]) -> dict[tuple[str, str], CaseRecord]:
    """(method, case) -> its record."""
    return {(record.method, record.case): record for record in records}


def replay_settings(path: Path, lines: Iterable[object]) -> tuple[str, ...]:
    """The settings that replay these lines of a trace, which are written to ``path``."""
    return (
        "model=replay",
        f"model.trace={write_json_lines(path, lines)}",
        "model.tokenizer=bundled:tiny",
    )


def repeating_lines(cases: int) -> list[dict[str, Any]]:
    """Lines of a trace of two categories whose answers repeat themselves, later ones longer."""
    return [
        {
            "case": str(case),
            "category": "ab"[case % 2],
            "turns": [
                {
                    "prompt_ids": [1, 5, 6, 7 + case],
                    "ids": [5, 6, 7 + case, 5, 6, 7 + case, 5] * (1 + case),
                }
            ],
        }
        for case in range(cases)
    ]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run_main(main: Callable[[], object], *arguments: object, name: str = "specbench") -> Done:
    """A command's ``main`` with these arguments."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", [name, *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main()
        except SystemExit as end:
            code = end.code
    return Done(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())
