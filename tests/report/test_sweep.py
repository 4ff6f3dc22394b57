"""Heatmaps of a sweep: which cells, in which order, the best one, and the message without any."""

import math
from functools import partial
from itertools import pairwise

import pandas as pd
import pytest
from report.conftest import build_run, fail, printed, serve

from builders.profiles import FIT
from specbench.profile import write_profile
from specbench.records.store import RunError
from specbench.report import read_findings
from specbench.report.frames.summary import drop_repeated_rows
from specbench.report.frames.sweep import (
    Heatmap,
    asked_grids,
    best_settings,
    default_curves,
    default_grids,
)
from specbench.report.plots.sweep import draw_curve, draw_heatmap

PAIRS = [
    (leader, follower)
    for leader in (1, 2, 10)
    for follower in (None, 3, 20)
    if (leader, follower) != (2, 3)
]
COSTS = ("cost_per_million", "joules_per_token", "tokens_fed", "errors")


def write_sweep(folder, settings, method="cacheback", **options):
    """A run for each mapping of the method's parameters."""
    options = {"per_category": 1, "categories": ("qa",), **options}
    return [
        build_run(
            folder / str(n),
            {method: (3.0 + n, 0.4, 1e-3)},
            seed=n,
            parameters={method: values},
            **options,
        )
        for n, values in enumerate(settings)
    ]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    settings = [{"leader": leader, "follower": follower, "k": 5} for leader, follower in PAIRS]
    return read_findings(write_sweep(tmp_path_factory.mktemp("sweep"), settings))


def test_two_parameters_give_a_grid_of_the_summary(sweep):
    axes = ("cacheback.leader", "cacheback.follower")
    mat, fed, speedup = default_grids(sweep)
    for grid, metric in ((mat, "mat"), (fed, "tokens_fed"), (speedup, "speedup")):
        assert (grid.metric, grid.method, grid.x, grid.y) == (metric, "cacheback", *axes)
    cells = mat.cells
    assert list(cells.columns) == ["1", "2", "10"]  # by size, not by letters
    assert list(cells.index) == ["3", "20", "null"]
    assert cells.isna().sum().sum() == 1
    assert pd.isna(cells.loc["3", "2"])
    # of the same cells, in the same order: the price stands next to what it bought
    assert fed.cells.isna().equals(cells.isna())
    (grid,) = asked_grids(sweep, "mat", "method.cacheback.follower", "cacheback.leader")
    rows = sweep.summary.query("category == 'overall' and method == 'cacheback'").set_index(
        "variant"
    )["mat"]
    for leader, follower in PAIRS:
        name = "null" if follower is None else str(follower)
        assert grid.cells.loc[str(leader), name] == rows[f"leader={leader},follower={name}"]
    (place,) = grid.best
    assert grid.cells.iloc[place] == rows.max()
    (grid,) = asked_grids(sweep, "forward_ms", *axes)
    assert {grid.spell(grid.cells.iloc[place]) for place in grid.best} == {
        grid.spell(grid.cells.min(axis=None))
    }
    assert asked_grids(sweep, "steps", *axes)[0].best == []


def test_with_a_profile_the_predicted_speedup_has_a_grid_that_names_it(tmp_path):
    settings = [{"a": a, "b": b} for a in (1, 2) for b in (1, 2)]
    findings = read_findings(write_sweep(tmp_path, settings), write_profile(FIT, tmp_path))
    found = {grid.metric: grid.profile for grid in default_grids(findings)}
    assert found == {"mat": "", "tokens_fed": "", "predicted_speedup": FIT.label, "speedup": ""}


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("mat", [[1.504, 2.0], [2.004, 1.0]], [(0, 1), (1, 0)]),  # both read 2.00
        ("acceptance_rate", [[0.5, 0.5], [0.5, math.nan]], []),
        ("mat", [[1.001, 1.002]], []),
        ("forward_ms", [[3.0, 2.0, math.nan, 2.0]], [(0, 1), (0, 3)]),
        *((cost, [[3.0, 1.0], [2.0, 4.0]], [(0, 1)]) for cost in COSTS),
    ],
)
def test_cells_that_read_alike_are_all_the_best(metric, values, best):
    cells = pd.DataFrame(values).rename(index=str, columns=str)
    grid = Heatmap(metric, "m", "x", "y", cells, "model", "suite", "", 1)
    assert grid.best == best
    boxes = [patch for patch in draw_heatmap(grid).axes[0].patches if not patch.get_fill()]
    assert [(round(box.get_y() + 0.5), round(box.get_x() + 0.5)) for box in boxes] == best


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (("matt", "leader", "follower"), "matt.* expected one of cases"),
        (("mat", "leader", "k"), "cacheback.k does not vary"),
        (("mat", "leader", "leader"), "two different"),
    ],
)
def test_errors_say_what_there_is(sweep, asked, named):
    metric, *axes = asked
    with pytest.raises(RunError, match=named):
        asked_grids(sweep, metric, *(f"cacheback.{axis}" for axis in axes))


def test_parameters_of_two_methods_share_no_grid(tmp_path):
    runs = [
        build_run(
            tmp_path / str(n), TWO, per_category=1, parameters={"pld": {"n": n}, "sam": {"k": n}}
        )
        for n in (1, 2)
    ]
    findings = read_findings(runs)
    assert default_grids(findings) == []
    with pytest.raises(RunError, match="no method has both"):
        asked_grids(findings, "mat", "pld.n", "sam.k")


def test_a_third_parameter_gives_a_grid_each_and_a_repetition_a_mean(tmp_path):
    """A seed is a repetition."""
    pairs = [{"a": a, "b": b} for a in (1, 2) for b in (1, 2)]
    settings = [pair | {"rule": rule} for pair in pairs for rule in ("x", "y")]
    findings = read_findings(write_sweep(tmp_path / "rules", [*settings, settings[0]]))
    assert default_grids(findings) == []
    grids = asked_grids(findings, "mat", "cacheback.a", "cacheback.b")
    assert [(grid.rest, grid.runs) for grid in grids] == [
        ("cacheback.rule=x", 2),
        ("cacheback.rule=y", 1),
    ]
    assert grids[0].cells.notna().all(axis=None)
    seeds = write_sweep(
        tmp_path / "seeds", [pair | {"seed": seed} for pair in pairs for seed in (0, 1)]
    )
    found = {(grid.x, grid.y, grid.runs) for grid in default_grids(read_findings(seeds))}
    assert found == {("cacheback.a", "cacheback.b", 2)}


@pytest.mark.exhaustive
def test_command_draws_them(tmp_path, output, refused):
    folder = tmp_path / "sweep"
    write_sweep(folder, [{"leader": n, "k": text} for n in (1, 2) for text in ("so", "$")])
    output("report", folder, "--heatmap", "tokens_fed", "cacheback.k", "cacheback.leader")
    names = [f"heatmap_{name}-cacheback-k-leader" for name in ("mat", "tokens_fed", "speedup")]
    found = {path.name for path in (folder / "report").glob("*/heatmap*")}
    assert found == {f"{name}.{kind}" for name in names for kind in ("csv", "png")}
    wide = pd.read_csv(folder / f"report/tables/{names[1]}.csv")
    assert list(wide.columns)[:2] == ["cacheback.leader", "cacheback.k"]
    assert "Heatmap" in (folder / "report/report.html").read_text("utf-8")
    assert "cacheback.leader" in refused("report", folder, "--heatmap", "mat", "a", "b")


def test_a_load_is_no_setting_so_each_has_its_best(tmp_path):
    drafts = {
        (1, 1): (1.0, 0.5, 1e-4),
        (2, 1): (8.0, 0.9, 1e-4),
        (1, 8): (6.0, 0.7, 1e-4),
        (2, 8): (1.0, 0.3, 1e-4),
    }
    runs = [
        build_run(
            tmp_path / f"{n}-{load}",
            {"cacheback": each},
            per_category=2,
            edit=partial(serve, requests=load),
            parameters={"cacheback": {"n": n}},
        )
        for (n, load), each in drafts.items()
    ]
    findings = read_findings(runs)
    (place,) = {entry.place for entry in findings.reported}
    found = best_settings(findings, "mat", place)
    assert [[(changed, row["variant"]) for changed, row in each] for each in found] == [
        [("", "n=2,load.requests=1"), ("n=1", "n=1,load.requests=1")],
        [("", "n=1,load.requests=8"), ("n=2", "n=2,load.requests=8")],
    ]


POWERS, NAMES = [1, 2, 4, 8, 16], [f"a_long_name_{n}" for n in range(15)]


@pytest.mark.parametrize(
    ("values", "order", "scale", "ticked"),
    [
        ([2, 5], [2, 5], "linear", True),
        ([16, 1, 4, 2, 8], POWERS, "log", True),
        ([0, 1, 2, 4], [0, 1, 2, 4], "linear", True),
        ([0.1, 0.15, 0.5], [0.1, 0.15, 0.5], "linear", True),
        ([*range(1, 21)], [*range(1, 21)], "linear", False),
        ([None, 20, 3], [3, 20, "null"], "linear", True),
        (NAMES, NAMES, "linear", False),
    ],
)
def test_one_parameter_gives_a_curve_with_it_on_the_axis(tmp_path, values, order, scale, ticked):
    findings = read_findings(
        write_sweep(tmp_path, [{"n": value, "k": 5} for value in values], per_category=2)
    )
    (curve,) = default_curves(findings)
    names = [str(value) for value in order]
    assert (curve.x, curve.figures, list(curve.values)) == (
        "cacheback.n",
        ("mat", "speedup"),
        names,
    )
    assert default_grids(findings) == []
    canvas = draw_curve(curve)
    panels = canvas.axes
    assert [axes.get_ylabel() for axes in panels] == ["MAT", "speedup"]
    rows = findings.summary.query("category == 'overall' and method == 'cacheback'").set_index(
        "variant"
    )
    for axes, figure in zip(panels, curve.figures, strict=True):
        line = axes.lines[0]
        assert line.get_linestyle() == ("-" if curve.numbers else "None")
        wanted = [rows.loc[f"n={name}", figure] for name in names]
        assert line.get_ydata().tolist() == wanted
        low, high = axes.get_ylim()
        assert low < 1 < high  # vanilla
        assert low < min(wanted) <= max(wanted) < high
    shown = panels[1].get_xticklabels()
    assert panels[1].get_xscale() == scale
    assert not ticked or [text.get_text() for text in shown] == names
    left, right = panels[1].get_xlim()
    boxes = [text.get_window_extent() for text in shown if left <= text.get_position()[0] <= right]
    assert all(one.x1 <= two.x0 for one, two in pairwise(boxes))


TWO = {"pld": (3.0, 0.4, 1e-3), "sam": (5.0, 0.6, 1e-3)}


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        # two methods at once: a curve each, with the mean of the runs that have the value
        (
            [{"pld": p, "sam": s} for p in (1, 2) for s in (3, 4, 5)],
            {"pld.n": (["pld"], 3), "sam.n": (["sam"], 2)},
        ),
        # a seed repeats, a setting of the run has a line for each method, a load has its own plots
        ([{"pld": p, "seed": s} for p in (1, 2) for s in (0, 1)], {"pld.n": (["pld"], 2)}),
        ([{"top_k": k} for k in (1, 2, 3)], {"decode.top_k": (["pld", "sam"], 1)}),
        ([{"load": k} for k in (1, 2)], {}),
    ],
)
def test_what_repeats_is_averaged(tmp_path, runs, found):
    """Of the names, seed and top_k are settings of decoding, a method's the parameter n of it."""

    def made(number, run):
        def edit(manifest, records):
            manifest["config"]["decode"] |= {
                name: run[name] for name in ("seed", "top_k") if name in run
            }
            if "load" in run:
                serve(manifest, records, run["load"])

        parameters = {name: {"n": run[name]} for name in TWO if name in run}
        about = {"seed": number, "per_category": 1, "categories": ("qa",), "parameters": parameters}
        return build_run(tmp_path / str(number), TWO, edit=edit, **about)

    findings = read_findings([made(number, run) for number, run in enumerate(runs)])
    curves = {curve.x: curve for curve in default_curves(findings)}
    assert curves.keys() == found.keys()
    for x, (methods, repeats) in found.items():
        assert list(dict.fromkeys(curves[x].rows["method"])) == methods
        lines = [
            line for line in draw_curve(curves[x]).axes[0].lines if line.get_linestyle() != "None"
        ]
        for method, drawn in zip(methods, lines, strict=False):
            own = curves[x].rows["method"] == method
            rows = curves[x].rows[own].groupby("place")["mat"]
            assert rows.size().max() == repeats
            assert drawn.get_ydata() == pytest.approx(rows.mean().to_numpy())


def test_the_command_draws_the_curve_and_prints_vanilla_once(tmp_path, output):
    write_sweep(tmp_path / "sweep", [{"n": n} for n in POWERS], per_category=2)
    out = output("report", tmp_path / "sweep")
    report = tmp_path / "sweep/report"
    assert [path.name for path in report.glob("plots/sweep*")] == ["sweep-cacheback.n.png"]
    rows = pd.read_csv(report / "tables/sweep-cacheback.n.csv")
    assert sorted(rows["cacheback.n"]) == POWERS
    assert {"mat", "mat_low", "speedup", "speedup_high"} <= set(rows.columns)
    summary = pd.read_csv(report / "summary.csv").query(
        "category == 'overall' and method == 'vanilla'"
    )
    assert len(summary) == len(POWERS)  # each method is paired with its own
    for text in (out, (report / "tables/overall.md").read_text("utf-8")):
        starts = [line.strip(" |").partition(" ")[0] for line in text.splitlines()]
        assert starts.count("vanilla") == 1
        assert "mean of 5 runs" in text
    assert f" {summary['tokens_per_s'].mean():.1f} " in out
    assert "Sweep, cacheback.n" in (report / "report.html").read_text("utf-8")


def test_vanilla_that_failed_or_was_set_otherwise_keeps_its_row(tmp_path):
    def made(place, number, heat, failed=False):
        def edit(manifest, records):
            manifest["config"]["decode"]["temperature"] = manifest["temperature"] = heat
            if failed:
                assert records[0].method == "vanilla"
                fail(records[0])
                for each in records:
                    each.lossless = None if each.block == records[0].block else each.lossless

        about = {"per_category": 2, "control": False, "parameters": {"pld": {"n": number}}}
        return build_run(tmp_path / str(place), {"pld": TWO["pld"]}, edit=edit, **about)

    runs = [(1, 0.0), (2, 0.0), (1, 1.0), (2, 1.0), (3, 0.0, True)]
    findings = read_findings([made(place, *run) for place, run in enumerate(runs)])
    whole = findings.summary.query("category == 'overall'")
    rows = drop_repeated_rows(whole)
    assert sorted(rows[rows["method"] == "vanilla"]["variant"]) == [
        "decode.temperature=0.0, mean of 2 runs",
        "decode.temperature=0.0,run=4",
        "decode.temperature=1.0, mean of 2 runs",
    ]
    assert (rows.dtypes[rows.columns != "variant"] == whole.dtypes[rows.columns != "variant"]).all()
    alone = drop_repeated_rows(whole[whole["method"] == "vanilla"].iloc[:1])
    assert alone["variant"].iloc[0].endswith("run=0")
    assert "[decode.temperature=1.0, mean" in " ".join(printed(findings).split())
