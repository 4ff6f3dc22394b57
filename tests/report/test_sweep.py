"""Heatmaps of a sweep: which cells, in which order, the best one, and the message without any."""

import math
from itertools import pairwise

import pandas as pd
import pytest
from report.conftest import build_run, fail, serve

from builders.profiles import FIT
from specbench.commands.report import main
from specbench.profile import write_profile
from specbench.records.store import RunError
from specbench.report import print_findings, read_findings
from specbench.report.frames.summary import drop_repeated_rows
from specbench.report.frames.sweep import Heatmap, asked_grids, best_settings, default_curves, default_grids
from specbench.report.plots.sweep import _grows_by_factors, draw_curve, draw_heatmap

PAIRS = [(leader, follower) for leader in (1, 2, 10) for follower in (None, 3, 20) if (leader, follower) != (2, 3)]


def write_sweep(folder, settings, method="cacheback", **options):
    """A run for each mapping of the method's parameters."""

    def edit(parameters):
        def change(manifest, records):
            manifest["methods"][method]["parameters"] = parameters

        return change

    options = {"peers": (), "per_category": 1, "categories": ("qa",), **options}
    return [
        build_run(folder / str(n), {method: (3.0 + n, 0.4, 1e-3)}, seed=n, edit=edit(parameters), **options)
        for n, parameters in enumerate(settings)
    ]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    settings = [{"leader": leader, "follower": follower, "k": 5} for leader, follower in PAIRS]
    return read_findings(write_sweep(tmp_path_factory.mktemp("sweep"), settings))


def test_two_parameters_give_a_grid_of_the_summary(sweep):
    grids = default_grids(sweep)
    assert [(grid.metric, grid.method, grid.x, grid.y) for grid in grids] == [
        ("mat", "cacheback", "cacheback.leader", "cacheback.follower"),
        ("tokens_fed", "cacheback", "cacheback.leader", "cacheback.follower"),
        ("speedup", "cacheback", "cacheback.leader", "cacheback.follower"),
    ]
    cells = grids[0].cells
    assert list(cells.columns) == ["1", "2", "10"]  # by size, not by letters
    assert list(cells.index) == ["3", "20", "null"]
    assert cells.isna().sum().sum() == 1
    assert pd.isna(cells.loc["3", "2"])
    fed = grids[1]  # of the same cells, in the same order: the price stands next to what it bought
    assert (list(fed.cells.columns), list(fed.cells.index)) == (list(cells.columns), list(cells.index))
    assert (fed.cells.isna() == cells.isna()).all(axis=None)
    (grid,) = asked_grids(sweep, "mat", "method.cacheback.follower", "cacheback.leader")
    rows = sweep.summary.query("category == 'overall' and method == 'cacheback'").set_index("variant")["mat"]
    for leader, follower in PAIRS:
        value = grid.cells.loc[str(leader), "null" if follower is None else str(follower)]
        follower = "null" if follower is None else follower
        assert value == rows[f"leader={leader},follower={follower}"]
    (place,) = grid.best
    assert grid.cells.iloc[place] == rows.max()
    axes = ("cacheback.leader", "cacheback.follower")
    (grid,) = asked_grids(sweep, "forward_ms", *axes)
    assert all(grid.spell(grid.cells.iloc[place]) == grid.spell(grid.cells.min(axis=None)) for place in grid.best)
    assert asked_grids(sweep, "steps", *axes)[0].best == []


def test_with_a_profile_the_predicted_speedup_has_a_grid_that_names_it(tmp_path):
    settings = [{"leader": leader, "follower": follower} for leader in (1, 2) for follower in (1, 2)]
    findings = read_findings(write_sweep(tmp_path, settings), write_profile(FIT, tmp_path))
    found = {grid.metric: grid.profile for grid in default_grids(findings)}
    assert found == {"mat": "", "tokens_fed": "", "predicted_speedup": FIT.label, "speedup": ""}


@pytest.mark.parametrize("metric", ["cost_per_million", "joules_per_token", "tokens_fed", "errors"])
def test_the_cheapest_cell_is_the_best(metric):
    cells = pd.DataFrame([[3.0, 1.0], [2.0, 4.0]])
    assert Heatmap(metric, "m", "x", "y", cells, "model", "suite", "", 1).best == [(0, 1)]


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("mat", [[1.504, 2.0], [2.004, 1.0]], [(0, 1), (1, 0)]),  # both read 2.00
        ("mat", [[1.5, 2.0], [2.006, 1.0]], [(1, 0)]),
        ("acceptance_rate", [[0.5, 0.5], [0.5, math.nan]], []),
        ("mat", [[1.001, 1.002]], []),
        ("forward_ms", [[3.0, 2.0, math.nan, 2.0]], [(0, 1), (0, 3)]),
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
        (("matt", "cacheback.leader", "cacheback.follower"), "no such figure; expected one of cases"),
        (("mat", "cacheback.leader", "cacheback.k"), "cacheback.k does not vary"),
        (("mat", "cacheback.leader", "cacheback.leader"), "two different"),
    ],
)
def test_errors_say_what_there_is(sweep, asked, named):
    with pytest.raises(RunError, match=named):
        asked_grids(sweep, *asked)


def test_parameters_of_two_methods_share_no_grid(tmp_path):
    def edit(number):
        def change(manifest, records):
            manifest["methods"]["pld"]["parameters"] = {"n": number}
            manifest["methods"]["cacheback"]["parameters"] = {"k": number}

        return change

    methods = {"pld": (3.0, 0.4, 1e-3), "cacheback": (3.0, 0.4, 1e-3)}
    runs = [build_run(tmp_path / str(n), methods, peers=(), per_category=1, edit=edit(n)) for n in (1, 2)]
    findings = read_findings(runs)
    assert default_grids(findings) == []
    with pytest.raises(RunError, match="no method has both"):
        asked_grids(findings, "mat", "pld.n", "cacheback.k")


def test_a_third_parameter_gives_a_grid_each_and_a_repetition_a_mean(tmp_path):
    settings = [{"a": a, "b": b, "rule": rule} for a in (1, 2) for b in (1, 2) for rule in ("x", "y")]
    findings = read_findings(write_sweep(tmp_path, [*settings, settings[0]]))
    assert default_grids(findings) == []
    grids = asked_grids(findings, "mat", "cacheback.a", "cacheback.b")
    assert [(grid.rest, grid.runs) for grid in grids] == [("cacheback.rule=x", 2), ("cacheback.rule=y", 1)]
    assert grids[0].cells.notna().all(axis=None)


@pytest.mark.exhaustive
def test_command_draws_them(tmp_path, capsys):
    settings = [{"leader": leader, "a_long_parameter_name": text} for leader in (1, 2) for text in ("so", "$other$")]
    write_sweep(tmp_path / "sweep", settings)
    asked = ["--heatmap", "tokens_fed", "cacheback.a_long_parameter_name", "cacheback.leader"]
    assert main([str(tmp_path / "sweep"), *asked]) == 0
    report = tmp_path / "sweep/report"
    found = {path.name for path in report.glob("*/heatmap*")}
    pair = "a_long_parameter_name-leader"
    names = [f"heatmap_{name}-cacheback-{pair}" for name in ("mat", "tokens_fed", "speedup")]
    assert found == {f"{name}.{kind}" for name in names for kind in ("csv", "png")}
    wide = pd.read_csv(report / f"tables/{names[1]}.csv")
    assert list(wide.columns)[:2] == ["cacheback.leader", "cacheback.a_long_parameter_name"]  # as it was requested
    assert main([str(tmp_path / "sweep")]) == 0  # without the request the names are the same
    assert {path.name for path in report.glob("*/heatmap*")} == found
    assert "Heatmap" in (report / "report.html").read_text(encoding="utf-8")
    assert main([str(tmp_path / "sweep"), "--heatmap", "mat", "a", "b"]) == 2
    assert "expected two of: cacheback.a_long_parameter_name, cacheback.leader" in capsys.readouterr().err
    assert main([str(tmp_path / "sweep"), *asked, "--no-plots"]) == 2


def test_a_load_is_no_setting_so_each_has_its_best(tmp_path):
    def under(number, requests):
        def edit(manifest, records):
            manifest["methods"]["cacheback"]["parameters"] = {"n": number}
            serve(manifest, records, requests)

        return edit

    drafts = {(1, 1): (1.0, 0.5, 1e-4), (2, 1): (8.0, 0.9, 1e-4), (1, 8): (6.0, 0.7, 1e-4), (2, 8): (1.0, 0.3, 1e-4)}
    runs = [
        build_run(tmp_path / f"{n}-{load}", {"cacheback": each}, peers=(), per_category=2, edit=under(n, load))
        for (n, load), each in drafts.items()
    ]
    findings = read_findings(runs)
    (place,) = {entry.place for entry in findings.reported}
    found = best_settings(findings, "mat", place)
    assert [[(changed, row["variant"]) for changed, row in each] for each in found] == [
        [("", "n=2,load.requests=1"), ("n=1", "n=1,load.requests=1")],
        [("", "n=1,load.requests=8"), ("n=2", "n=2,load.requests=8")],
    ]


POWERS, SPARSE = (1, 2, 4, 8, 16), (0.1, 0.15, 0.5)


@pytest.mark.parametrize(
    ("values", "order", "scale", "ticks"),
    [
        ((2, 5), ["2", "5"], "linear", ["2", "5"]),
        ((16, 1, 4, 2, 8), ["1", "2", "4", "8", "16"], "log", ["1", "2", "4", "8", "16"]),
        ((1, 2, 5, 10), ["1", "2", "5", "10"], "log", ["1", "2", "5", "10"]),
        ((0, 1, 2, 4), ["0", "1", "2", "4"], "linear", ["0", "1", "2", "4"]),
        (SPARSE, list(map(str, SPARSE)), "linear", ["0.1", "0.15", "0.5"]),
        (range(1, 31), [str(n) for n in range(1, 31)], "linear", None),
        ([2**n for n in range(20)], [str(2**n) for n in range(20)], "log", None),
        (("b", "a"), ["b", "a"], "linear", ["b", "a"]),
        ((None, 20, 3), ["3", "20", "null"], "linear", ["3", "20", "null"]),
        ((True, False), ["True", "False"], "linear", ["True", "False"]),
        ([f"a_long_name_{n}" for n in range(30)], [f"a_long_name_{n}" for n in range(30)], "linear", None),
    ],
)
def test_one_parameter_gives_a_curve_with_it_on_the_axis(tmp_path, values, order, scale, ticks):
    findings = read_findings(write_sweep(tmp_path, [{"n": value, "k": 5} for value in values], per_category=3))
    (curve,) = default_curves(findings)
    assert (curve.x, curve.figures, list(curve.values)) == ("cacheback.n", ("mat", "speedup"), order)
    assert default_grids(findings) == []
    canvas = draw_curve(curve)
    panels = canvas.axes
    assert [axes.get_ylabel() for axes in panels] == ["MAT", "speedup"]
    rows = findings.summary.query("category == 'overall' and method == 'cacheback'").set_index("variant")
    for axes, figure in zip(panels, curve.figures, strict=True):
        line = axes.lines[0]
        assert line.get_linestyle() == ("-" if curve.numbers else "None")
        wanted = [rows.loc[f"n={value}", figure] for value in order]
        assert line.get_ydata().tolist() == wanted
        low, high = axes.get_ylim()
        assert low < 1 < high  # vanilla
        assert low < min(wanted) <= max(wanted) < high
    shown = panels[1].get_xticklabels()
    assert panels[1].get_xscale() == scale
    assert ticks is None or [text.get_text() for text in shown] == ticks
    left, right = panels[1].get_xlim()
    boxes = [text.get_window_extent() for text in shown if left <= text.get_position()[0] <= right]
    assert all(one.x1 <= two.x0 for one, two in pairwise(boxes))


def test_a_wrong_scale_would_show():
    """The cases above distinguish an axis of factors from an even one."""
    assert [_grows_by_factors(values) for values in (POWERS, (1, 2, 4), (2, 4, 6, 8, 16), (0, 1, 8, 64))] == [
        *(True, False, False, False)
    ]


def settings_of(**values):
    """An edit of a run: 'decode__seed' is a setting, load the requests, any other name the method of a parameter n."""

    def change(manifest, records):
        for name, value in values.items():
            group, _, key = name.partition("__")
            if name == "load":
                serve(manifest, records, value)
            elif key:
                manifest["config"].setdefault(group, {})[key] = value
            else:
                manifest["methods"][name]["parameters"] = {"n": value}

    return change


TWO = {"pld": (3.0, 0.4, 1e-3), "sam": (5.0, 0.6, 1e-3)}


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        # two methods at once: a curve each, with the mean of the runs that have the value
        ([{"pld": p, "sam": s} for p in (1, 2) for s in (3, 4, 5)], {"pld.n": (["pld"], 3), "sam.n": (["sam"], 2)}),
        # a seed repeats, a setting of the run has a line for each method, a load has its own plots
        ([{"pld": p, "decode__seed": s} for p in (1, 2) for s in (0, 1)], {"pld.n": (["pld"], 2)}),
        ([{"decode__top_k": k} for k in (1, 2, 3)], {"decode.top_k": (["pld", "sam"], 1)}),
        ([{"load": k} for k in (1, 2)], {}),
        ([{"pld": 1}, {"pld": 1}], {}),
    ],
)
def test_what_repeats_is_averaged(tmp_path, runs, found):
    made = [
        build_run(tmp_path / str(n), TWO, seed=n, peers=(), per_category=1, categories=("qa",), edit=settings_of(**run))
        for n, run in enumerate(runs)
    ]
    curves = {curve.x: curve for curve in default_curves(read_findings(made))}
    shown = {x: (list(dict.fromkeys(curve.rows["method"])), curve) for x, curve in curves.items()}
    assert {x: methods for x, (methods, _) in shown.items()} == {x: methods for x, (methods, _) in found.items()}
    for x, (methods, curve) in shown.items():
        lines = [line for line in draw_curve(curve).axes[0].lines if line.get_linestyle() != "None"]
        for method, line in zip(methods, lines, strict=False):
            rows = curve.rows[curve.rows["method"] == method].groupby("place")["mat"]
            assert rows.size().max() == found[x][1]
            assert line.get_ydata() == pytest.approx(rows.mean().to_numpy())


def test_two_parameters_and_a_seed_give_a_heatmap_of_means(tmp_path):
    settings = [{"a": a, "b": b, "seed": seed} for a in (1, 2) for b in (1, 2) for seed in (0, 1)]
    grids = default_grids(read_findings(write_sweep(tmp_path, settings)))
    assert {(grid.x, grid.y, grid.runs) for grid in grids} == {("cacheback.a", "cacheback.b", 2)}


def test_the_command_draws_the_curve_and_prints_vanilla_once(tmp_path, capsys):
    write_sweep(tmp_path / "sweep", [{"n": n} for n in POWERS], per_category=9)
    assert main([str(tmp_path / "sweep")]) == 0
    report, out = tmp_path / "sweep/report", capsys.readouterr().out
    assert [path.name for path in report.glob("plots/sweep*")] == ["sweep-cacheback.n.png"]
    rows = pd.read_csv(report / "tables/sweep-cacheback.n.csv")
    assert sorted(rows["cacheback.n"]) == list(POWERS)
    assert {"mat", "mat_low", "speedup", "speedup_high"} <= set(rows.columns)
    summary = pd.read_csv(report / "summary.csv").query("category == 'overall' and method == 'vanilla'")
    assert len(summary) == len(POWERS)  # each method is paired with its own
    for text in (out, *((report / name).read_text("utf-8") for name in ("tables/overall.md", "tables/overall.tex"))):
        assert len([line for line in text.splitlines() if line.strip(" |").startswith("vanilla")]) == 1
        assert "mean of 5 runs" in text
    assert f" {summary['tokens_per_s'].mean():.1f} " in out
    assert "Sweep, cacheback.n" in (report / "report.html").read_text("utf-8")


def test_vanilla_that_failed_or_was_set_otherwise_keeps_its_row(tmp_path, capsys):
    def edit(number, heat, failed):
        def change(manifest, records):
            manifest["methods"]["pld"]["parameters"] = {"n": number}
            manifest["config"]["decode"]["temperature"] = manifest["temperature"] = heat
            for each in records[:1] if failed else ():
                assert each.method == "vanilla"
                fail(each, "no")
            for each in records if failed else ():
                each.lossless = None if each.block == records[0].block else each.lossless

        return change

    runs = [(1, 0.0, False), (2, 0.0, False), (1, 1.0, False), (2, 1.0, False), (3, 0.0, True)]
    made = [
        build_run(tmp_path / str(n), {"pld": TWO["pld"]}, peers=(), per_category=2, control=False, edit=edit(*run))
        for n, run in enumerate(runs)
    ]
    findings = read_findings(made)
    rows = drop_repeated_rows(findings.summary.query("category == 'overall'"))
    vanilla = rows[rows["method"] == "vanilla"]
    assert sorted(vanilla["variant"]) == [
        "decode.temperature=0.0, mean of 2 runs",
        "decode.temperature=0.0,run=4",
        "decode.temperature=1.0, mean of 2 runs",
    ]
    assert (rows.dtypes[rows.columns != "variant"] == findings.summary.dtypes[rows.columns != "variant"]).all()
    one = findings.summary.query("category == 'overall'").iloc[:2]
    assert drop_repeated_rows(one[one["method"] == "vanilla"].iloc[:1])["variant"].iloc[0].endswith("run=0")
    print_findings(findings)
    assert "[decode.temperature=1.0, mean" in " ".join(capsys.readouterr().out.split())
