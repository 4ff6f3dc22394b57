"""MAT against tokens fed: which points none beats, which are drawn, and by which names."""

from hypothesis import given
from hypothesis import strategies as st
from report.conftest import fail

from specbench.report import read_findings
from specbench.report.frames.sweep import find_undominated
from specbench.report.plots.canvas import drawing
from specbench.report.plots.scatter import draw_front, find_prices
from specbench.report.plots.scene import scenes

COORDINATE = st.integers(1, 9).map(float)


@given(st.lists(st.tuples(COORDINATE, COORDINATE), min_size=1, max_size=12))
def test_the_front_is_what_none_beats(points):
    def beaten(fed, mat):
        return any((f <= fed and m >= mat) and (f, m) != (fed, mat) for f, m in points)

    front = [points[place] for place in find_undominated(points)]
    assert front == sorted({point for point in points if not beaten(*point)})


def scene_of(directory):
    return next(scenes(read_findings([directory])))


def test_every_method_is_a_named_point(make_run):
    methods = {"pld": (4.0, 0.35, 1e-3), "sam": (20.0, 0.5, 1e-3), "hf_assisted": (5.0, 0.6, 4e-3)}
    scene = scene_of(make_run(methods=methods, peers=("hf_assisted",), per_category=2))
    assert [entry.name for entry in find_prices(scene)] == ["pld", "sam"]  # a peer's drafts nobody saw
    with drawing():
        figure = draw_front(scene)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["vanilla", "pld", "sam"]
    assert any("hf_assisted" in text.get_text() for text in figure.texts)  # in the note
    points = {
        line.get_xydata()[0].tolist().__repr__() for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 1
    }
    assert len(points) == 3


def test_a_method_with_failed_cases_is_no_part_of_the_front(make_run):
    def edit(manifest, records):
        for record in [record for record in records if record.method == "sam"][2:]:
            fail(record, "no")

    scene = scene_of(
        make_run(methods={"pld": (4.0, 0.3, 1e-3), "sam": (9.0, 0.9, 1e-3)}, peers=(), per_category=2, edit=edit)
    )
    with drawing():
        figure = draw_front(scene)
    (front,) = [line for line in figure.axes[0].get_lines() if line.get_color() == "#999999"]
    sam = next(entry for entry in find_prices(scene) if entry.series.name == "sam")
    assert sam.name == "sam (2 of 12 cases)"
    assert sam.at[0] not in front.get_xdata()
