"""Every file of a report: there, whole, safe to open, and made without torch."""

from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from report.conftest import printed

from specbench.report import build_report, read_findings
from specbench.report.columns import COLUMNS
from specbench.report.plots import bars
from specbench.report.plots.bars import draw_radar
from specbench.report.plots.scene import scenes
from specbench.report.tables import terminal

VOID = {"meta", "img", "wbr"}


class Outline(HTMLParser):
    """Checks that tags nest, and gathers tags and what they load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def outline(page: Path) -> Outline:
    parser = Outline()
    parser.feed(page.read_text("utf-8"))
    parser.close()
    assert parser.open == []
    return parser


def test_files_are_whole_and_the_page_holds_everything_itself(built):
    assert all(path.stat().st_size > 40 for path in built.files)
    assert not list(built.output.rglob("*.partial"))
    frame = pd.read_csv(built.output / "summary.csv")
    assert tuple(frame.columns) == COLUMNS
    assert len(frame) == 7 * 5
    for path in (built.output / "plots").iterdir():
        start = path.read_bytes()[:5]
        assert start == (b"%PDF-" if path.suffix == ".pdf" else b"\x89PNG\r"), path
    found = outline(built.output / "report.html")
    assert found.tags.count("img") == sum(path.suffix == ".png" for path in built.files) > 0
    assert all(source.startswith(("data:image/png;base64,", "#")) for source in found.loads)
    assert "url(" not in (built.output / "report.html").read_text("utf-8")


@pytest.mark.exhaustive
def test_building_twice_gives_the_same(built, fine_plots, tmp_path):
    before = {path.relative_to(built.output): path.read_bytes() for path in built.files}
    with fine_plots():
        again = build_report([built.output], tmp_path)
    assert before == {path.relative_to(tmp_path): path.read_bytes() for path in again.files}


@pytest.mark.parametrize("count", [1, 12])
def test_a_terminal_has_whole_figures_within_its_width(make_run, count):
    """Whatever a width leaves for the last column."""
    methods = {f"a_rather_long_method_name_{number}": (4.0, 0.3, 1e-3) for number in range(count)}
    categories = tuple(f"category_number_{number}" for number in range(11))
    findings = read_findings([make_run(methods=methods, categories=categories, per_category=2)])
    for width in range(80, 121, 5):
        text = printed(findings, width)
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text
        assert "…" not in text


def test_very_many_categories_stay_in_the_tables(built, monkeypatch):
    monkeypatch.setattr(terminal, "_MOST_CATEGORIES", 5)
    text = printed(built.findings)
    assert "6 categories, at most 5 are printed; summary.csv has them" in text
    assert "multi-turn" not in text
    monkeypatch.setattr(bars, "MOST_CATEGORIES", 2)
    scene = next(scenes(built.findings))
    message = f"{len(scene.categories)} categories, at most 2 are drawn; summary.csv has them"
    assert [bars.draw_groups(scene, figure) for figure in ("speedup", "mat")] == [message, message]
    assert draw_radar(scene) == message
