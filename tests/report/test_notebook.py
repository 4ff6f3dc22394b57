"""The notebook runs on any run, imports the report alone, and is kept without outputs."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks/01_read_a_run.ipynb"


def cells():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def code():
    sources = ("".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code")
    return "\n".join(source.removeprefix("%matplotlib inline\n") for source in sources)


def test_outputs_are_stripped():
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells() if "outputs" in cell)


def test_it_imports_the_report_alone():
    nodes = list(ast.walk(ast.parse(code())))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    allowed = {"os", "pathlib", "pandas", "matplotlib", "specbench"}
    assert {name.split(".")[0] for name in names} <= allowed
    assert {".".join(name.split(".")[:2]) for name in names if name.startswith("specbench")} == {"specbench.report"}


@pytest.mark.parametrize("methods", [None, {}])
def test_it_runs(make_run, monkeypatch, methods):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    run = make_run(methods=methods, peers=("hf_assisted",) if methods is None else (), per_category=2)
    monkeypatch.setenv("SPECBENCH_RUN", str(run))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(NOTEBOOK.parents[1])}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    images = sum("image/png" in output.get("data", {}) for output in outputs)
    assert images == (5 if methods is None else 0)
