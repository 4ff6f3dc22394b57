"""Output for papers: their names of methods, captions of one line, plots without titles and of a given width."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from report.conftest import build_run

from specbench.commands.report import main
from specbench.records.store import RunError, read_run
from specbench.report import build_report, gather
from specbench.report.label import display_name
from specbench.report.plots.canvas import CAPTIONS, COLUMN_INCH, SHEET_INCH, drawing, save_all, take_caption
from specbench.report.plots.catalogue import draw_plots
from specbench.report.table import Table, to_latex, to_notes

METHODS = Path(__file__).parents[2] / "conf/method"
LONG = {"token_recycling": (4.0, 0.35, 4e-4), "my_method": (20.0, 0.5, 9e-4)}


def test_every_method_of_ours_has_a_name_of_its_own():
    ours = {path.stem for path in METHODS.glob("*.yaml")} - {"vanilla"}
    assert all(display_name(name) != name for name in ours)
    assert len({display_name(name) for name in ours}) == len(ours)
    assert [display_name(name) for name in ("pld", "token_recycling", "my_method")] == [
        *("PLD", "Token Recycling", "my_method")
    ]


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    return gather([read_run(build_run(tmp_path_factory.mktemp("paper") / "run", LONG, peers=(), per_category=2))])


def texts_of(figure: Figure) -> str:
    return " ".join(text.get_text().replace("\n", "") for text in figure.findobj(Text))


@pytest.mark.exhaustive
def test_a_paper_has_its_caption_outside_and_fits_its_column(findings, tmp_path):
    inside = {"screen": True, "paper": False}
    narrow = tmp_path / "narrow.mplstyle"
    narrow.write_text("figure.figsize: 2.8, 2\nfont.family: monospace\n")
    for style, width in (("screen", SHEET_INCH), ("paper", COLUMN_INCH), (str(narrow), 2.8)):
        with drawing(style):
            figures = dict(draw_plots(findings, display=style != "screen"))
            figure = figures["speedup"]
            assert "Speedup over vanilla" in texts_of(figure)
            assert ("Token Recycling" in texts_of(figure)) is not inside.get(style, False)
            assert "my_method" in texts_of(figure)
            if style != "screen":
                assert take_caption(figure).startswith("Speedup over vanilla: tiny on mini (float32, cpu), 12 cases;")
            assert ("Speedup over vanilla" in texts_of(figure)) is inside.get(style, False)
            for name, each in figures.items():
                if style != "screen" and each is not figure:
                    take_caption(each)
                if name == "speedup" or (name != "radar" and style in inside):  # a circle has one size
                    assert each.get_tightbbox().width <= width + 0.02, (style, name)


def test_captions_are_beside_the_plots(findings, tmp_path):
    (tmp_path / "plots").mkdir()
    with drawing("paper"):
        figures = [(name, figure) for name, figure in draw_plots(findings, display=True) if name in ("mat", "speedup")]
        save_all(figures[:1], tmp_path / "plots", "paper")
        save_all(figures[1:], tmp_path / "plots", "paper")
    lines = (tmp_path / "plots" / CAPTIONS).read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["speedup", "mat"]


def test_a_caption_is_one_line_and_the_rest_a_note():
    for meaning, short in (
        ("Speedup: time per token. Intervals: 95 %.", "tiny on mini."),
        ("Lossy methods: their output may differ. Speedup: time.", "tiny on mini. Lossy methods."),
        ("Modelled, decode steps only. Measured: without prefills.", "tiny on mini. Modelled, decode steps only."),
    ):
        table = Table("t", "tiny on mini.", meaning, ("Method",), (), frozenset())
        assert f"\\caption{{{short}}}" in to_latex(table)
        assert meaning.replace("%", r"\%") in to_notes([table])


def test_an_unknown_style_is_refused_before_anything_is_read(tmp_path, capsys):
    for style, said in (("papr", "expected screen, paper, or a style file"), ("no.mplstyle", "no such file")):
        with pytest.raises(RunError, match=said):
            build_report([tmp_path], style=style)
        assert main([str(build_run(tmp_path / style, {}, per_category=1)), "--style", style]) == 2
        assert said in capsys.readouterr().err
