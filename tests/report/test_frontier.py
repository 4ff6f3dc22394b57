"""Methods as points: speedup against MAT, below the frontier by what steps cost, and MAT against
tokens fed.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.conftest import fail, manifest_of, write_run

from builders.profiles import FIT
from builders.records import record, turn
from builders.reports import of_overall
from specbench.profile import write_profile
from specbench.records.record import VANILLA
from specbench.report import read_findings
from specbench.report.frames.sweep import find_undominated
from specbench.report.plots.canvas import drawing
from specbench.report.plots.scatter import draw_front, draw_frontier, find_dots, find_gains
from specbench.report.plots.scene import scenes


def scene_of(directory, profile=None):
    return next(scenes(read_findings([directory], profile)))


def drawn(scene, draw=draw_frontier):
    with drawing():
        return draw(scene)


def lines(axes, colour="#999999"):
    """[(x, y) of both ends] of the lines of equal cost."""
    return [line.get_xydata() for line in axes.get_lines() if line.get_color() == colour]


@pytest.mark.parametrize("cost", [1.0, 1.4, 8.0])
def test_a_point_lies_on_the_line_of_what_its_step_costs(tmp_path, cost):
    """pld emits 2 a step, in steps that cost so many of vanilla's; nothing is spent on a
    prefill.
    """
    plain = {"phases_s": {}, "prefill_s": 0.0}
    vanilla = record(VANILLA, "a", [turn([1] * 8, decode_s=4.0, **plain)])
    pld = record("pld", "a", [turn([2] * 4, [3] * 4, decode_s=2.0 * cost, **plain)])
    scene = scene_of(write_run(tmp_path / "run", manifest_of({"pld": {}}), [vanilla, pld]))
    figure, [gain] = find_gains(scene)
    assert figure == "speedup"
    assert gain.at == (2.0, pytest.approx(2.0 / cost))
    figure = drawn(scene)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [VANILLA, "pld"]
    (axes,) = figure.axes
    costs = [ends[1, 0] / ends[1, 1] for ends in lines(axes)]
    assert costs[0] == 1
    assert costs == sorted(costs)
    assert costs[-1] >= cost
    assert len(costs) == 1 or costs[-2] < cost
    assert "1" in [text.get_text() for text in axes.texts]


def test_both_intervals_are_drawn_and_hold_inside_the_axes(make_run):
    methods = {"pld": (4.0, 0.35, 1e-3), "sam": (20.0, 0.5, 1e-3)}
    findings = read_findings([make_run(methods=methods, per_category=3)])
    scene = next(scenes(findings))
    figure = drawn(scene)
    (axes,) = figure.axes
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for series in scene.series:
        row = of_overall(findings).loc[series.name]
        found = [span for span in lines(axes, series.style.colour) if len(span) == 2]
        assert np.allclose(
            found,
            [
                [(row["mat_low"], row["speedup"]), (row["mat_high"], row["speedup"])],
                [(row["mat"], row["speedup_low"]), (row["mat"], row["speedup_high"])],
            ],
        )
        assert all(left <= x <= right and low <= y <= high for x, y in np.concatenate(found))
    assert any("whiskers: 95" in text.get_text() for text in figure.texts)


def test_without_times_the_prediction_is_drawn_and_named_as_one(make_run, tmp_path):
    directory = make_run(
        methods={"pld": (4.0, 0.35, 1e-3)}, per_category=2, control=False, engine="replay"
    )
    assert find_gains(scene_of(directory)) == ("speedup", [])
    scene = scene_of(directory, write_profile(FIT, tmp_path))
    assert find_gains(scene)[0] == "predicted_speedup"
    figure = drawn(scene)
    assert "predicted" in figure.axes[0].get_ylabel()
    message = " ".join(text.get_text().replace("\n", " ") for text in figure.texts)
    assert "modelled" in message
    assert scene.profile.split(",")[0] in message


COORDINATE = st.integers(1, 9).map(float)


@given(st.lists(st.tuples(COORDINATE, COORDINATE), min_size=1, max_size=12))
def test_the_front_is_what_none_beats(points):
    def beaten(fed, mat):
        return any((f <= fed and m >= mat) and (f, m) != (fed, mat) for f, m in points)

    front = [points[place] for place in find_undominated(points)]
    assert front == sorted({point for point in points if not beaten(*point)})


def test_every_method_is_a_named_point(make_run):
    methods = {"pld": (4.0, 0.35, 1e-3), "sam": (20.0, 0.5, 1e-3), "hf_assisted": (5.0, 0.6, 4e-3)}
    scene = scene_of(make_run(methods=methods, per_category=2))
    # a peer's drafts nobody saw
    assert [entry.name for entry in find_dots(scene, "tokens_fed", "mat")] == ["pld", "sam"]
    figure = drawn(scene, draw_front)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["vanilla", "pld", "sam"]
    assert any("hf_assisted" in text.get_text() for text in figure.texts)  # in the note
    points = {
        tuple(line.get_xydata()[0])
        for line in figure.axes[0].get_lines()
        if len(line.get_xdata()) == 1
    }
    assert len(points) == 3


def test_a_method_with_failed_cases_is_no_part_of_the_front(make_run):
    def edit(manifest, records):
        for each in [each for each in records if each.method == "sam"][2:]:
            fail(each)

    methods = {"pld": (4.0, 0.3, 1e-3), "sam": (9.0, 0.9, 1e-3)}
    scene = scene_of(make_run(methods=methods, per_category=2, edit=edit))
    (front,) = lines(drawn(scene, draw_front).axes[0])
    sam = next(
        entry for entry in find_dots(scene, "tokens_fed", "mat") if entry.series.name == "sam"
    )
    assert sam.name == "sam (2 of 12 cases)"
    assert sam.at[0] not in front[:, 0]
