"""Who may import whom, and how long a file may be: the architecture, held by a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALL = {
    "cli",
    "config",
    "decode",
    "job",
    "launch",
    "lossless",
    "manifest",
    "material",
    "measure",
    "method",
    "profile",
    "record",
    "report",
    "run",
    "session",
    "stage",
    "stats",
    "store",
    "suite",
    "target",
    "tiny",
    "trace",
    "tune",
    "types",
    "answers",
}
ALLOWED = {
    "types": set(),
    "record": set(),
    "stats": set(),
    "config": {"types"},
    "method": {"types", "target"},  # target for annotations only
    "target": {"types"},
    "decode": {"types", "method", "target"},
    "suite": {"types", "record", "answers"},
    "profile": {"store"},
    "measure": {"types", "record", "method", "target", "decode", "profile"},
    "lossless": {"types", "record"},
    "store": {"record"},
    "answers": {"store"},
    "trace": {"types", "record", "store", "suite", "answers"},
    "session": ALL - {"cli", "launch", "report", "run", "job", "manifest", "tiny", "tune"},
    "job": ALL - {"cli", "launch", "report", "run", "tiny", "tune"},
    "manifest": ALL - {"cli", "launch", "report", "run", "tiny", "tune"},
    "run": ALL - {"cli", "launch", "report", "tiny", "tune"},
    "report": {"record", "store", "stats", "answers", "profile"},
    "tune": ALL - {"cli", "launch", "tiny"},
    "launch": ALL - {"cli", "tiny"},
    "cli": ALL - {"tiny"},
    "tiny": ALL - {"cli", "report"},
}
FORBIDDEN = {
    "report": {"torch", "hydra", "transformers", "datasets"},
    "stats": {"torch"},
    "store": {"torch"},
    "record": {"torch"},
    "profile": {"torch"},
}
SOURCES = sorted([*(ROOT / "specbench").rglob("*.py"), *(ROOT / "methods").rglob("*.py")])


def imports(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it, as dotted names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(path: Path) -> str:
    parts = path.relative_to(ROOT / "specbench").parts
    return parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports(path):
    names = imports(path)
    hydra_free = path.name != "cli.py" or path.parent.name == "report"
    if hydra_free:
        assert not {name for name in names if name.split(".")[0] == "hydra"}
    if path.is_relative_to(ROOT / "methods"):
        own = path.relative_to(ROOT / "methods").parts[0].removesuffix(".py")
        others = {name.split(".")[1] for name in names if name.startswith("methods.")}
        assert others <= {"parts", own}
        assert not {name for name in names if name.startswith(("specbench.session", "specbench.measure", "omegaconf"))}
        return
    assert not {name for name in names if name.split(".")[0] == "methods"}
    here = room(path)
    ours = {name.split(".")[1] for name in names if name.startswith("specbench.") and name.split(".")[1] in ALL}
    if here in ALLOWED:
        assert ours - {here} <= ALLOWED[here]
    assert not {name.split(".")[0] for name in names} & FORBIDDEN.get(here, set())


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_is_short_and_says_what_it_is(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    assert not text or ast.get_docstring(ast.parse(text))
    assert path.stem not in ("utils", "helpers", "common")


@pytest.mark.parametrize("path", sorted((ROOT / "scripts").glob("*.py")), ids=lambda path: path.name)
def test_script_is_thin(path):
    assert len(path.read_text().splitlines()) <= 80
