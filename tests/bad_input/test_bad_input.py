"""Everything that a user can get wrong ends with one message and an exit code, before any model is loaded.

A message names the file, line or setting, what was got, what was expected, and the fix. The cases are in ``files``,
``models``, ``runs`` and ``settings``, one a line.
"""

from __future__ import annotations

import pytest
from bad_input.case import Bad
from bad_input.files import FILES
from bad_input.models import MODELS
from bad_input.runs import RUNS
from bad_input.settings import IDLE, MESSAGES, NUMBERS, OPTIONS, PLACES, SETTINGS, TARGETS

from specbench import commands
from specbench.runs import sources

LONGEST = 2_000  # [characters] of a message
CASES = (*FILES, *RUNS, *SETTINGS, *IDLE, *OPTIONS, *PLACES, *TARGETS, *MODELS, *NUMBERS, *MESSAGES)


def end(case: Bad, monkeypatch, capsys) -> tuple[int, str]:
    """Exit code of the command in this process, and what it printed: stderr, then stdout."""

    def loaded(*args, **kwargs):
        raise AssertionError("weights were loaded before the error was found")

    if not case.loads:
        monkeypatch.setattr(sources, "load_model", loaded)
    try:
        code = commands.main(case.command)
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    return code, printed.err + printed.out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPECBENCH_DATA", raising=False)
    case.write(tmp_path)
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*") if not path.is_dir()}
    code, message = end(case, monkeypatch, capsys)
    assert code == case.code, message
    assert "Traceback" not in message
    assert len(message) < LONGEST
    for word in case.words:
        assert word in message, message
    if code == 2:
        assert message.startswith(("specbench: error: ", "specbench report: ")), message
        after = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*") if not path.is_dir()}
        left = {path.relative_to(tmp_path).as_posix() for path in after if after[path] != before.get(path)}
        assert left <= {"run/.lock", *(["run/run.log"] if case.loads else [])}, "something was written"
