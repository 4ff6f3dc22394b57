"""A name that a script does not know is an error that says what there is, before any weights."""

import sys
from importlib import util
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("count_overhead", ["pdl"], "there is no method/pdl; did you mean pld?"),
        ("benchmark_drafters", ["pld", "pdl"], "there is no method/pdl; did you mean pld?"),
        ("compare_peers", ["model=tny"], "there is no model/tny; did you mean tiny?"),
        ("benchmark_replay", ["suite=mni"], "there is no suite/mni; did you mean mini?"),
    ],
)
def test_an_unknown_name_is_an_error(monkeypatch, capsys, script, arguments, said):
    spec = util.spec_from_file_location(f"{script}_script", SCRIPTS / f"{script}.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    monkeypatch.setattr(module, "load_model", None, raising=False)
    assert module.main() == 2
    assert said in capsys.readouterr().err
