"""MAT against what a method remembers: whose records count, what a window holds, which lines are
drawn.
"""

import math

import numpy as np
import pandas as pd
import pytest
from report.conftest import build_run

from builders.records import record, turn
from builders.reports import tried
from specbench.report import read_findings
from specbench.report.frames.detail import CACHED, DETAILS, count_growth
from specbench.report.plots.acceptance import (
    average_windows,
    choose_window,
    draw_growth,
    keep_growing,
)
from specbench.report.plots.canvas import drawing
from specbench.report.plots.scene import scenes

MAT = "mean accepted tokens (MAT)"


def stored(tokens: float, accept: list[int], **changes):
    return turn(accept, stats={CACHED: tokens}, **changes)


def remember(start=0.0):
    """Records of a method that holds 100 tokens more after every case."""

    def change(manifest, records):
        for entry in records:
            if entry.method == "ssd":
                for each in entry.turns:
                    each.stats = {CACHED: start + 100.0 * entry.block}

    return change


def test_one_row_per_case_in_the_order_of_the_run():
    records = [
        record("ssd", "b", [stored(50.0, [2, 2]), stored(70.0, [5])], "rag", block=1),
        record("ssd", "a", [stored(0.0, [1, 3], decode_s=1.5)]),
        record("ssd", "c", [turn([2])], block=2),  # says nothing of its state
    ]
    assert list(count_growth(tried(records), timed=True)) == [
        ("a", "qa", 0, 0.0, 2, 4, 2.0, 5, 2.0),
        ("b", "rag", 0, 50.0, 3, 9, 3.0, 11, 3.0),
    ]
    assert math.isnan(next(count_growth(tried(records), timed=False))[-1])
    (row,) = count_growth(tried([record("ssd", "a", [stored(9.0, [])])]), timed=True)
    assert math.isnan(row[DETAILS["growth"].columns.index("mat")])


def test_running_figures_are_ratios_of_totals_over_a_window_of_cases():
    random = np.random.default_rng(0)
    count = 30
    columns = [
        random.permutation(count) * 10.0,
        random.integers(1, 99, count),
        random.integers(1, 50, count),
    ]
    frame = pd.DataFrame(dict(zip((CACHED, "emitted", "steps"), columns, strict=True)))
    at, mat = average_windows(frame, "emitted", "steps")
    size = choose_window(count)
    rows = np.stack(columns)[:, np.argsort(columns[0])]
    windows = [rows[:, start : start + size].sum(axis=1) for start in range(count - size + 1)]
    assert at == pytest.approx([stored / size for stored, _, _ in windows])
    assert mat == pytest.approx([emitted / steps for _, emitted, steps in windows])
    at, mat = average_windows(frame[:2], "emitted", "steps")
    assert len(at) == len(mat) == 0


def test_only_state_that_grows_is_drawn():
    frame = pd.DataFrame(
        [
            ("m", "s", name, "", f"c{n}", "qa", 0, value, 2, 4, 2.0, 5, 1.0)
            for n in range(9)
            for name, value in (("cold", 0.0), ("warm", 10.0 * n))
        ],
        columns=["model", "suite", "method", "variant", *DETAILS["growth"].columns],
    )
    assert set(keep_growing(frame)["method"]) == {"warm"}
    assert keep_growing(frame[frame["case"] < "c5"]).empty


def panels(findings):
    with drawing():
        figure = draw_growth(next(scenes(findings)))
    return figure, [axes.get_ylabel() for axes in figure.axes]


@pytest.mark.parametrize(("engine", "titles"), [("eager", [MAT, "tokens/s"]), ("replay", [MAT])])
def test_speed_stands_next_to_mat_where_it_was_timed(make_run, engine, titles):
    run = make_run(
        methods={"ssd": (4.0, 0.5, 1e-3)}, per_category=3, edit=remember(), engine=engine
    )
    figure, found = panels(read_findings([run]))
    assert found == titles
    assert [axes.get_xlabel() for axes in figure.axes][-1] == "tokens stored when the case began"


def test_a_line_a_run_in_the_colour_of_its_method(tmp_path):
    methods = {"pld": (4.0, 0.3, 1e-3), "ssd": (4.0, 0.5, 1e-3)}
    starts = {"first": 0.0, "second": 1800.0, "shuffled": 0.0}
    passes = [
        build_run(
            tmp_path / name,
            methods,
            per_category=3,
            seed=seed,
            edit=remember(start),
            engine="replay",
        )
        for seed, (name, start) in enumerate(starts.items())
    ]
    findings = read_findings(passes)
    figure, _ = panels(findings)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        f"ssd [run={name}]" for name in starts
    ]
    lines = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 2]
    looks = next(scenes(findings)).looks
    assert [line.get_color() for line in lines] == [
        looks["ssd", f"run={name}"].colour for name in starts
    ]
    assert min(lines[1].get_xdata()) > 1800
