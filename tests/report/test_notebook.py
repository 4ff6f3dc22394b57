"""The notebooks run on timed, replayed and loaded runs, import the report alone, and are short."""

import ast
import itertools
import json
import os
import re
from pathlib import Path

import pytest
from report.conftest import build_run, fail
from report.test_golden import ONE, replay, serve

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
READ, WHY, FIGURES, COMPARE, LOAD = NOTEBOOKS


def cells(notebook):
    return json.loads(notebook.read_text("utf-8"))["cells"]


def code(notebook):
    sources = ("".join(cell["source"]) for cell in cells(notebook) if cell["cell_type"] == "code")
    return "\n".join(source.removeprefix("%matplotlib inline\n") for source in sources)


@pytest.fixture(scope="module")
def execute():
    """Run a notebook on these runs, in this folder: its outputs. All in one kernel, emptied before
    each.
    """
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    client = nbclient.NotebookClient(nbformat.v4.new_notebook(), timeout=120, kernel_name="python3")

    def execute(notebook, *runs, folder=FOLDER.parent):
        client.nb = nbformat.read(notebook, as_version=4)
        chosen = {"SPECBENCH_RUN": os.pathsep.join(map(str, runs))}
        begin = f"%reset -f\n__import__('os').environ.update({chosen!r})\n%cd -q {folder}"
        client.nb.cells.insert(0, nbformat.v4.new_code_cell(begin))
        client.execute(cleanup_kc=False)
        return [output for cell in client.nb.cells for output in cell.get("outputs", [])]

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SPECBENCH_PROFILE", raising=False)
        yield execute
        client.nb = nbformat.v4.new_notebook()
        client.execute()  # ends the kernel


def images(outputs):
    return sum("image/png" in output.get("data", {}) for output in outputs)


def words(outputs):
    data = (output.get("data", {}) for output in outputs)
    return "\n".join(
        [
            *(output.get("text", "") for output in outputs),
            *(each.get("text/html", "") for each in data),
        ]
    )


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(notebook):
    found = cells(notebook)
    assert all(
        not cell["outputs"] and cell["execution_count"] is None
        for cell in found
        if "outputs" in cell
    )
    assert 6 <= len(found) <= 20


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_imports_the_report_alone(notebook):
    nodes = list(ast.walk(ast.parse(code(notebook))))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    allowed = {"pathlib", "numpy", "pandas", "specbench"}
    assert {name.split(".")[0] for name in names} <= allowed
    assert {".".join(name.split(".")[:2]) for name in names if name.startswith("specbench")} == {
        "specbench.report"
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("methods", [None, {}])
def test_the_first_runs_on_any_run(execute, make_run, methods):
    run = make_run(
        methods=methods, peers=("hf_assisted",) if methods is None else (), per_category=2
    )
    assert images(execute(READ, run)) == (5 if methods is None else 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("notebook", [WHY, FIGURES, COMPARE], ids=lambda path: path.stem)
@pytest.mark.parametrize("kind", ["no method", "all failed", "no profile"])
def test_the_others_say_what_there_is_nothing_of(execute, make_run, tmp_path, notebook, kind):
    """Outside of a checkout, where no profile is, and on runs that hold little."""

    def edit(manifest, records):
        for each in records:
            if kind == "all failed":
                fail(each, "no")

    run = make_run(methods={} if kind == "no method" else None, per_category=1, edit=edit)
    folder = tmp_path if kind == "no profile" else FOLDER.parent
    message = words(execute(notebook, run, folder=folder))
    expected = {
        (WHY, "no profile"): "name one in SPECBENCH_PROFILE",
        (WHY, "all failed"): "does not apply",
        (COMPARE, "no profile"): "ranked by MAT alone",
        (COMPARE, "no method"): "no method but vanilla",
        (FIGURES, "no method"): "does not apply",
    }
    assert expected.get((notebook, kind), "") in message


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A run of two methods whose target was timed."""
    methods = {"pld": (4.0, 0.35, 4e-4), "token_recycling": (20.0, 0.5, 9e-4)}
    return build_run(tmp_path_factory.mktemp("live"), methods, per_category=2)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Replays with four settings of a method."""
    folder = tmp_path_factory.mktemp("sweep")
    for place, (ngram, count) in enumerate(itertools.product((1, 2), (2, 4))):
        about = {"parameters": {"sam": {"max_ngram": ngram, "num_draft": count}}, "edit": replay}
        about |= {"methods": {"sam": (3.0 + place, 0.4, 4e-6)}, "control": False}
        build_run(folder / f"{ngram}-{count}", per_category=2, seed=place, **about)
    return folder


@pytest.mark.exhaustive
def test_the_second_explains_a_speedup(execute, live):
    from specbench.report import explain, read_findings

    outputs = execute(WHY, live)
    factors = explain(
        read_findings(
            [live], FOLDER.parent / "results/profiles/published/h100-llama-3.1-8b-vllm-0.10.json"
        )
    )
    assert set(zip(factors["method"], factors["basis"], strict=True)) == {
        (method, basis)
        for method in ("pld", "token_recycling")
        for basis in ("measured", "modelled")
    }
    assert images(outputs) == 2 + 1 + 1  # MAT's two plots, MAT against the price, the time split
    assert all(f"{value:.2f}" in words(outputs) for value in factors["speedup"])


@pytest.mark.exhaustive
def test_the_third_draws_a_papers_figures(execute, live, sweep, make_run):
    manifest = {
        "model": {
            "name": "vicuna-7b-v1.3",
            "dtype": "float16",
            "device": "cuda:0",
            "parameters": 10**9,
        },
        "suite": {"name": "spec_bench", "cases": 12, "turns": 14, "sha256": "ab" * 32},
    }
    published = make_run("published", {"pld": (4.0, 0.35, 4e-4)}, per_category=2, manifest=manifest)
    outputs = execute(FIGURES, live, sweep, published)
    for nothing in (
        "does not apply",
        "no two parameters vary",
        "nothing of these runs was published",
    ):
        assert nothing not in words(outputs)
    assert "Spec-Bench" in words(outputs)
    assert images(outputs) >= 3 * 4 + 2  # scenes by plots, and heatmaps


@pytest.mark.exhaustive
def test_the_fifth_says_where_drafting_stops_paying(execute, tmp_path, live):
    runs = [
        build_run(tmp_path / str(n), ONE, edit=serve(n), control=False, per_category=1)
        for n in (2, 4)
    ]
    outputs = execute(LOAD, *runs)
    assert images(outputs) == 2
    assert "2 runs, 4 rows of method and load" in words(outputs)
    assert re.search(
        r"<td>pld</td>\s*<td></td>\s*<td>4</td>\s*<td>NaN</td>\s*<td>1</td>", words(outputs)
    )
    assert "does not apply to these runs, each request ran alone" in words(execute(LOAD, live))


@pytest.mark.exhaustive
def test_the_fourth_ranks_a_sweep(execute, sweep):
    outputs = execute(COMPARE, sweep)
    assert images(outputs) == 1 + 3 + 1  # the front, the heatmaps, the bars
    assert "4 runs; profile: Llama-3.1-8B" in words(outputs)
    assert "of 4 settings are as good" in words(outputs)
