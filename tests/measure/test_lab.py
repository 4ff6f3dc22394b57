"""The lab's table of commands: help, unknown names before any weights are loaded, and exit
codes.
"""

import pytest

from scripts.lab import __main__ as lab


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        lab.main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in lab.COMMANDS)


def test_an_unknown_name_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr("scripts.lab.overhead.load_model", None, raising=False)
    assert lab.main(["overhead", "pdl"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("overhead: error: ")
    assert "did you mean pld?" in printed
