"""The published figures as files: kept as printed, named as here, refused when broken, found when installed."""

from __future__ import annotations

import csv
import re
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from specbench.records.store import RunError
from specbench.report import published
from specbench.report.published import TRACE, read_published

ROOT = Path(__file__).resolve().parents[2]
MODEL = "vicuna-7b-v1.3"
RENAMED = {"eagle3_figures.csv": "eagle_figures.csv"}  # the original -> ours


def test_originals_are_kept_to_the_figure(data):
    """Every cell of the originals that is no label stands here as printed, as often as there."""
    for original in sorted((data / "published").glob("*.csv")):
        cells: Counter[str] = Counter()
        header, *rows = csv.reader(original.open())
        for row in ([cell for name, cell in zip(header, row, strict=True) if name != "hardware"] for row in rows):
            parts = [part.strip() for cell in row for part in (cell.split(" / ") if " / " in cell else [cell])]
            cells.update(part for part in parts if re.fullmatch(r"[\d.]+(±[\d.]+)?|\d+x\d+ \(\d+\)", part))
        ours = list(csv.DictReader((ROOT / "results/published" / RENAMED.get(original.name, original.name)).open()))
        found = Counter(row["printed"] for row in ours)
        if original.name == "card_k_sweep_from_logs.csv":  # K is a setting there, not a figure
            found.update(row["setting"].partition("=")[2] for row in ours if row["metric"] == "mat")
        assert found == cells, original.name


def test_names_are_this_harnesss():
    """Methods and suites that are named exist; models that can be run are spelled as conf/model/ does."""
    methods = {path.stem for path in (ROOT / "conf/method").glob("*.yaml")}
    models = {OmegaConf.load(path).get("name") for path in (ROOT / "conf/model").glob("*.yaml")}
    figures = read_published()
    assert {found.method for found in figures} <= {*methods, ""}
    assert {found.category for found in figures if found.method and found.model} <= {
        *("overall", "multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")
    }
    assert {MODEL, "mistral-7b-instruct-v0.2", "llama-2-70b-chat"} <= {found.model for found in figures} & models
    trace = [found for found in figures if found.needs == TRACE]
    assert {(found.model, found.metric) for found in trace} == {(MODEL, "mat")}
    assert all(found.value == 1 for found in figures if found.needs == "definition")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("value", "fast"), "line 2.*fast"),
        (("value", "nan"), "line 2.*value='nan'.*finite"),
        (("needs", "luck"), "line 2.*needs='luck'.*trace"),
        (("setting", "k"), "line 2.*'k'.*KEY=VALUE"),
        (None, "columns.*expected source"),
    ],
)
def test_a_broken_file_is_named(tmp_path, change, said):
    row = dict.fromkeys(published.COLUMNS, "") | {"value": "1", "needs": "trace"}
    if change:
        row[change[0]] = change[1]
    else:
        del row["url"]
    with (tmp_path / "own.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerow(row)
    with pytest.raises(RunError, match=f"own.csv.*{said}"):
        read_published(tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"," * (len(published.COLUMNS) - 6), "line 2: has not 18 cells"),
        (b"," * len(published.COLUMNS), "line 2: has not 18 cells"),
        (b"\xff\xfe", "not UTF-8"),
    ],
    ids=["cut short", "an unquoted comma", "binary"],
)
def test_a_broken_line_is_named(tmp_path, line, said):
    (tmp_path / "own.csv").write_bytes(",".join(published.COLUMNS).encode() + b"\n" + line + b"\n")
    with pytest.raises(RunError, match=f"own.csv.*{said}"):
        read_published(tmp_path)


def test_a_wheel_holds_what_is_needed_and_nothing_else(tmp_path):
    """Packages, configuration, published figures and profiles, where the code looks for them."""
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    [built] = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = {name for name in zipfile.ZipFile(built).namelist() if ".dist-info/" not in name}
    moved = {"conf": "specbench/conf", "results/published": "specbench/published"}
    moved |= {
        "results/profiles/published": "specbench/published/profiles",
        "specbench": "specbench",
        "methods": "methods",
    }
    files = {to: [path for path in (ROOT / place).rglob("*") if path.is_file()] for place, to in moved.items()}
    wanted = {f"{to}/{path.relative_to(ROOT / place).as_posix()}" for place, to in moved.items() for path in files[to]}
    assert names == {name for name in wanted if "__pycache__" not in name}


def test_an_installation_looks_inside_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "PACKAGE", tmp_path / "specbench")
    assert published.published_dir() == tmp_path / "results/published"
    (tmp_path / "specbench/published").mkdir(parents=True)
    assert published.published_dir() == tmp_path / "specbench/published"
