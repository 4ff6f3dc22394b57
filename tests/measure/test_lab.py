"""The lab's table of commands: help, unknown names before any weights are loaded, and exit codes."""

import importlib

import pytest

from scripts.lab import __main__ as lab
from specbench.input import InputError


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        lab.main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in lab.COMMANDS)


@pytest.mark.parametrize(
    ("command", "arguments", "reported"),
    [
        ("overhead", ["pdl"], "there is no method/pdl; did you mean pld?"),
    ],
)
def test_an_unknown_name_is_an_error(monkeypatch, capsys, command, arguments, reported):
    monkeypatch.setattr(importlib.import_module(f"scripts.lab.{command}"), "load_model", None, raising=False)
    assert lab.main([command, *arguments]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"{command}: error: ")
    assert reported in printed


@pytest.mark.parametrize(
    ("outcome", "code"), [(1, 1), (None, 0), (InputError("x"), 2)], ids=["differs", "done", "input"]
)
def test_the_exit_code_is_the_commands(monkeypatch, outcome, code):
    def run(parser, arguments):
        if isinstance(outcome, InputError):
            raise outcome
        return outcome

    monkeypatch.setattr("scripts.lab.memory.run", run)
    assert lab.main(["memory"]) == code
