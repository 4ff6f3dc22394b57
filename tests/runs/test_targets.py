"""The search for a method's ``_target_``, which imports nothing from other places."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint

import pytest

from specbench.runs import entry
from specbench.types import InputError

MODULE = """
from specbench.method import Method

LOADED = True

class Mine(Method):
    def begin(self, prompt, prefill, seed): ...

class Half(Method): ...
"""


@pytest.fixture
def module(tmp_path, monkeypatch) -> str:
    """A module that can be imported, as one in site-packages can."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "own_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    importlib.invalidate_caches()
    yield "own_module"
    sys.modules.pop("own_module", None)


def make(target: str):
    return entry.make_entry("x", {"_target_": target}).method


NO_METHODS = """
os.system posix.system subprocess.Popen builtins.eval shutil.rmtree runpy.run_path
antigravity.geohash
pkgutil.resolve_name transformers.AutoModelForCausalLM torch.load __main__.main numpy:fromfile
"""


@pytest.mark.parametrize(
    ("target", "words"),
    [
        *((name, "contains no methods.*PYTHONPATH") for name in NO_METHODS.split()),
        ("nowhere.Method", "cannot be imported.*No module named 'nowhere'"),
        ("methods.nowhere.Method", "cannot be imported"),
        ("methods.pld.Nothing", "cannot be imported"),
        ("methods..pld", "cannot be imported"),
        ("methods", r"subclass of specbench\.method\.Method"),
        ("methods.pld.Draft", r"subclass of specbench\.method\.Method"),
        ("methods.pld.Draft.chain", r"subclass of specbench\.method\.Method"),
        ("methods.pld.Method", "with all that it requires"),
    ],
)
def test_what_is_no_method_is_refused(target, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=rf"^method\.x\._target_={target}.*{words}"):
        make(target)


def test_an_installed_module_is_not_imported(module):
    with pytest.raises(InputError, match="own_module contains no methods"):
        make(f"{module}.Mine")
    assert module not in sys.modules


@pytest.mark.parametrize("place", ["PYTHONPATH", "working directory"])
def test_a_module_of_ones_own(module, place, tmp_path, monkeypatch):
    folder = tmp_path / "elsewhere"
    (
        monkeypatch.setenv("PYTHONPATH", str(folder))
        if place == "PYTHONPATH"
        else monkeypatch.chdir(folder)
    )
    assert type(make(f"{module}.Mine")).__name__ == "Mine"
    with pytest.raises(InputError, match="with all that it requires"):
        make(f"{module}.Half")


def test_a_package_with_an_entry_point(module, monkeypatch):
    point = EntryPoint("mine", f"{module}:Mine", entry.PLUGINS)
    monkeypatch.setattr(
        entry, "entry_points", lambda group: (point,) if group == entry.PLUGINS else ()
    )
    assert type(make(f"{module}:Mine")).__name__ == "Mine"
