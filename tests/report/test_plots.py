"""Plots fit for a paper: legible in a column, vectors with their fonts, captions of one line,
intervals shown.
"""

import re
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest import mock

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from report.conftest import build_run

from builders.profiles import FIT, MEASURED
from builders.records import turn
from specbench.input import InputError
from specbench.profile import RowGrid, write_profile
from specbench.records.record import CONTROL, VANILLA
from specbench.records.store import read_run
from specbench.report import build_report, gather, read_findings
from specbench.report.frames.load import model_load
from specbench.report.frames.sweep import Heatmap
from specbench.report.label import display_name
from specbench.report.plots import PAPER, SCREEN, canvas
from specbench.report.plots.bars import draw_groups
from specbench.report.plots.canvas import (
    CAPTIONS,
    COLUMN_INCH,
    SHEET_INCH,
    STYLE,
    drawing,
    save,
    save_all,
)
from specbench.report.plots.catalogue import draw_plots
from specbench.report.plots.latency import draw_latency, draw_rows
from specbench.report.plots.scene import DPI, scenes, style_of
from specbench.report.plots.sweep import draw_heatmap
from specbench.report.table import Table
from specbench.report.writers import to_latex, to_notes

LEAST_PT = 6
METHODS = {f"method_{place}": (2.0 + place, 0.3 + 0.03 * place, 1e-3) for place in range(9)}


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    """A run of ten methods with a category that a sheet does not hold in a row, and a profile to
    predict with.
    """
    folder = tmp_path_factory.mktemp("plots")
    methods = METHODS | {"a_method_with_quite_a_long_name_of_its_own": (9.0, 0.7, 2e-3)}
    run = build_run(folder / "run", methods, per_category=5)
    return read_findings([run], write_profile(FIT, folder))


@pytest.fixture(scope="module")
def figures(findings):
    """Name -> figure, of every kind of plot."""
    rows = RowGrid((1, 4, 16), (1, 4, 10), (100, 500), np.linspace(1, 9, 18).reshape(2, 3, 3))
    under = model_load(findings, (1, 8))
    with drawing():
        drawn = dict(draw_plots(findings, under))
        drawn["a latency profile"], drawn["rows"] = (
            draw_latency(MEASURED),
            draw_rows(replace(MEASURED, rows=rows)),
        )
        drawn["heatmap"], drawn["wide_heatmap"] = (
            draw_heatmap(grid_of(3, 4)),
            draw_heatmap(grid_of(4, 20)),
        )
    return drawn


def save_as(kind, figures, fine_plots, folder, style=SCREEN):
    """Name -> bytes of the file that a user gets."""
    with drawing(style), fine_plots(), mock.patch.object(canvas, "FORMATS", (kind,)):
        return {
            name: save(figure, folder / name)[0].read_bytes() for name, figure in figures.items()
        }


def grid_of(rows, columns):
    values = np.linspace(1, 5, rows * columns).reshape(rows, columns)
    cells = pd.DataFrame(
        values, [str(row) for row in range(rows)], [str(column) for column in range(columns)]
    )
    return Heatmap("mat", "pld", "pld.num_draft", "pld.max_ngram", cells, "tiny", "mini", "", 1)


@pytest.mark.exhaustive
def test_every_text_is_legible_in_a_column(figures, fine_plots, tmp_path):
    saved = save_as("png", figures, fine_plots, tmp_path)
    assert {
        "speedup",
        "speedup_by_category",
        "radar",
        "mat_against_fed",
        "time_split",
    } <= figures.keys()
    assert {"speedup_against_mat", "crossover"} <= figures.keys()
    for name, figure in figures.items():
        width = int.from_bytes(saved[name][16:20], "big") / DPI
        assert width <= SHEET_INCH + 0.02, name
        sizes = {
            text.get_fontsize()
            for text in figure.findobj(Text)
            if text.get_text().strip() and text.get_visible()
        }
        assert min(sizes) * min(1, COLUMN_INCH / width) >= LEAST_PT - 0.01, name


def long_answers(manifest, records):
    """One answer that reaches into the longest bins."""
    manifest["config"]["decode"]["max_new_tokens"] = 4096
    for each in (record for record in records if record.case == records[0].case):
        plain = each.method in (VANILLA, CONTROL)
        steps = ([1] * 2400,) if plain else ([2] * 1200, [3] * 1200)
        each.turns[0] = turn(*steps, prompt_tokens=each.turns[0].prompt_tokens)


def test_names_along_an_axis_do_not_touch(figures, make_run):
    run = make_run(methods={"pld": (4.0, 0.3, 1e-3)}, per_category=2, edit=long_answers)
    with drawing():
        drawn = figures | {
            "by_length of long answers": dict(draw_plots(read_findings([run])))["by_length"]
        }
        for name, figure in drawn.items():
            renderer = FigureCanvasAgg(figure).get_renderer()
            for axes in figure.axes:
                ticks = [
                    tick
                    for tick in axes.get_xticklabels()
                    if tick.get_text() and tick.get_visible()
                ]
                boxes = [tick.get_window_extent(renderer) for tick in ticks]
                spans = sorted((box.x0, box.x1) for box in boxes if axes.name != "polar")
                assert all(left[1] <= right[0] for left, right in pairwise(spans)), (
                    f"{name}: {ticks}"
                )


@pytest.mark.parametrize(
    "names",
    [
        ("heatmap", "radar", "speedup", "crossover"),
        pytest.param(None, marks=pytest.mark.exhaustive),
    ],
    ids=["of each kind", "all"],
)
def test_the_pdf_is_vectors_with_its_fonts(names, figures, fine_plots, tmp_path):
    """For a paper whole fonts, which publishers ask for."""
    for name, pdf in save_as(
        "pdf", {name: figures[name] for name in names or figures}, fine_plots, tmp_path
    ).items():
        assert b"/Subtype /Image" not in pdf, name
        assert b"/Type3" in pdf, name
    for name, pdf in save_as(
        "pdf", {name: figures[name] for name in names or ()}, fine_plots, tmp_path, PAPER
    ).items():
        assert b"/FontFile2" in pdf, name
        assert b"/Type3" not in pdf, name


@pytest.mark.parametrize("style", [SCREEN, PAPER])
def test_characters_beyond_the_first_page_are_embedded_too(style, fine_plots, tmp_path):
    """A minus sign at an axis, a multiplication sign, a letter of another alphabet."""
    with fine_plots(), drawing(style):
        figure = mpl.figure.Figure()
        axes = figure.add_subplot()
        axes.plot([-4, 4], label="2 × µ − λ, ﬁ")
        axes.legend()
        assert [path.suffix for path in save(figure, tmp_path / "plot")] == [
            f".{kind}" for kind in canvas.FORMATS
        ]


def test_one_style_file_and_the_palette_of_a_page_agree():
    with mpl.rc_context(fname=STYLE):
        cycle = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
        assert [colour.upper() for colour in cycle] == [
            style_of(place).colour.upper() for place in range(6)
        ]
        assert mpl.rcParams["savefig.dpi"] == DPI
        assert mpl.rcParams["pdf.fonttype"] == 42


def test_methods_are_distinguished_without_colours():
    looks = [style_of(place) for place in range(24)]
    assert len({(look.colour, look.hatch) for look in looks}) == len(looks)
    assert len({(look.marker, look.line) for look in looks}) == len(looks)
    assert all(
        one.hatch != other.hatch and one.line != other.line for one, other in pairwise(looks)
    )


def test_intervals_are_shown(figures):
    for name in ("speedup", "mat", "predicted_speedup"):
        (axes,) = figures[name].axes
        (bars,) = [
            container
            for container in axes.containers
            if not isinstance(container, ErrorbarContainer)
        ]
        assert len(bars.errorbar[2][0].get_segments()) == len(METHODS) + 1, name


def test_bars_by_category_stay_wide_enough(findings):
    scene = next(scenes(findings))
    with drawing():
        canvas = draw_groups(scene, "mat")
    assert len(canvas.axes) > 1
    for axes in canvas.axes:
        inch = canvas.get_figwidth() / np.diff(axes.get_xlim())[0]
        bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        assert bars
        assert min(bar.get_width() for bar in bars) * inch > 0.06
    named = [
        text.get_text().replace("\n", "") for axes in canvas.axes for text in axes.get_xticklabels()
    ]
    assert named == [*(f"({name})" for name in scene.categories), "overall"]  # few cases of each


def test_a_heatmap_gives_up_figures_that_do_not_fit_its_cells(figures):
    def written(name):
        return [
            text
            for text in figures[name].axes[0].texts
            if re.fullmatch(r"\d\.\d\d", text.get_text())
        ]

    assert len(written("heatmap")) == 12
    assert not written("wide_heatmap")


LONG = {"token_recycling": (4.0, 0.35, 4e-4), "my_method": (20.0, 0.5, 9e-4)}


def test_names_and_captions_of_a_paper():
    ours = {path.stem for path in (Path(__file__).parents[2] / "conf/method").glob("*.yaml")} - {
        "vanilla"
    }
    shown = {display_name(name) for name in ours}
    assert len(shown - ours) == len(ours)
    assert [display_name(name) for name in ("token_recycling", "my_method")] == [
        "Token Recycling",
        "my_method",
    ]
    for meaning, short in (
        ("Speedup: time per token. Intervals: 95 %.", "tiny on mini."),
        ("Lossy methods: their output may differ. Speedup: time.", "tiny on mini. Lossy methods."),
        (
            "Modelled, decode steps only. Measured: without prefills.",
            "tiny on mini. Modelled, decode steps only.",
        ),
    ):
        table = Table("t", "tiny on mini.", meaning, ("Method",), (), frozenset())
        assert f"\\caption{{T: {short}}}" in to_latex([table])
        assert meaning.replace("%", r"\%") in to_notes([table])


@pytest.fixture(scope="module")
def paper_findings(tmp_path_factory):
    return gather(
        [read_run(build_run(tmp_path_factory.mktemp("paper") / "run", LONG, per_category=2))]
    )


def texts_of(figure: Figure) -> str:
    return " ".join(text.get_text().replace("\n", "") for text in figure.findobj(Text))


def test_captions_are_next_to_the_plots(paper_findings, tmp_path):
    (tmp_path / "plots").mkdir()
    with drawing("paper"):
        figures = dict(draw_plots(paper_findings, display=True))
        text = texts_of(figures["speedup"])
        assert "Token Recycling" in text
        assert "my_method" in text
        drawn = [
            (name, partial(figures.get, name)) for name in ("speedup", "mat", "radar", "nothing")
        ]
        save_all(drawn[:1], tmp_path / "plots", "paper")
        save_all(drawn[1:], tmp_path / "plots", "paper")
        assert figures["speedup"].get_tightbbox().width <= COLUMN_INCH + 0.02
    assert "Speedup over vanilla" not in texts_of(figures["speedup"])
    lines = (tmp_path / "plots" / CAPTIONS).read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["speedup", "mat", "radar"]


def test_an_unknown_style_is_refused_before_anything_is_read(tmp_path):
    for style, message in (
        ("papr", "expected screen, paper, or a style file"),
        ("no.mplstyle", "no such file"),
    ):
        with pytest.raises(InputError, match=message):
            build_report([tmp_path], style=style)
