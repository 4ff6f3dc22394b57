"""A speedup as a product, measured and modelled; the ranking of a sweep."""

import numpy as np
import pytest
from profiles import FIT

from specbench.profile import write_profile
from specbench.records.store import RunError
from specbench.report import build_report, explain, rank, read_findings
from specbench.report.frames.findings import FACTORS, MEASURED, MODELLED
from specbench.report.plots.canvas import drawing
from specbench.report.plots.scatter import draw_front
from specbench.report.plots.scene import first_scene, scenes

METHODS = {"pld": (4.0, 0.35, 4e-4), "sam": (20.0, 0.5, 9e-3), "hf_assisted": (5.0, 0.6, 4e-3)}


@pytest.fixture
def findings(make_run, tmp_path):
    run = make_run(methods=METHODS, peers=("hf_assisted",), per_category=3)
    return read_findings([run], write_profile(FIT, tmp_path))


def test_the_factors_multiply_to_the_speedups_of_the_summary(findings):
    rows = explain(findings)
    assert set(zip(rows["method"], rows["basis"], strict=True)) == {
        (method, basis) for method in ("pld", "sam") for basis in (MEASURED, MODELLED)
    }
    assert np.allclose(rows[list(FACTORS)].prod(axis=1), rows["speedup"])
    overall = findings.summary.query("category == 'overall'").set_index("method")
    for _, row in rows.iterrows():
        column = "decode_speedup" if row["basis"] == MEASURED else "predicted_speedup"
        assert row["speedup"] == pytest.approx(overall.loc[row["method"], column])
        assert row["mat"] == pytest.approx(overall.loc[row["method"], "mat"])
    modelled = rows[rows["basis"] == MODELLED]
    assert np.allclose(modelled["remainder"], 1)
    measured = rows[rows["basis"] == MEASURED].set_index("method")
    assert measured.loc["sam", "overhead"] < measured.loc["pld", "overhead"] < 1  # 9 ms of drafting against 0.4
    assert np.allclose(measured["remainder"], 1, atol=0.1)


def test_what_a_forward_costs_is_drawn_beside_the_methods(findings):
    with drawing():
        front = draw_front(next(scenes(findings)))
    (cost,) = [line for line in front.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert cost.get_ydata()[0] == pytest.approx(1.0)
    fed, context = cost.get_xdata()[-1], next(scenes(findings)).priced[1]
    price = FIT.forward_ms([fed], [context])[0] / FIT.forward_ms([1.0], [context])[0]
    assert cost.get_ydata()[-1] == pytest.approx(price)


def test_settings_are_ranked_by_a_figure(findings):
    rows = rank(findings, "predicted_speedup").set_index("method")
    known = rows["predicted_speedup"].dropna()
    assert known.is_monotonic_decreasing
    assert rows.index[-1] == "hf_assisted"  # blank: the last, and never on the front
    assert not rows.loc["hf_assisted", "front"]
    assert rows.iloc[0]["as_good"] is True
    for _, row in rows.iloc[1:2].iterrows():
        assert row["as_good"] == (row["predicted_speedup_high"] >= known.iloc[0])
    cheap, dear = rows.loc["pld"], rows.loc["sam"]
    assert cheap["tokens_fed"] < dear["tokens_fed"]
    assert cheap["front"]
    assert dear["front"] == (dear["mat"] > cheap["mat"])


def test_a_run_without_a_finished_case_has_no_scene(make_run):
    with pytest.raises(RunError, match="no case has finished yet"):
        first_scene(read_findings([make_run(per_category=0)]))


def test_a_profile_brings_its_curve_and_the_crossover(make_run, built, tmp_path):
    """Into every report that has one, a plot a model; none without."""
    options = {"methods": METHODS, "peers": ("hf_assisted",), "per_category": 2}
    big = {"model": {"name": "big", "dtype": "float16", "device": "cuda"}}
    runs = [make_run("one", **options), make_run("two", manifest=big, **options)]
    report = build_report(runs, profile=write_profile(FIT, tmp_path))
    names = {path.name for path in report.files}
    kinds = {f"{kind}-{model}-mini.png" for kind in ("crossover",) for model in ("tiny", "big")}
    assert kinds | {"crossover.csv"} <= names
    assert 'id="under-load"' in (report.output / "report.html").read_text(encoding="utf-8")
    assert not any(path.name.startswith("crossover") for path in built.files)


def test_a_profile_without_a_step_to_price_changes_nothing(make_run, tmp_path):
    report = build_report([make_run(per_category=0)], profile=write_profile(FIT, tmp_path))
    assert report.load is None
    assert not any(path.suffix == ".png" for path in report.files)
