"""Heatmaps of a sweep: which cells, in which order, the best one, and the message if there is none."""

import pandas as pd
import pytest
from report.conftest import build_run

from builders.profiles import FIT
from specbench.commands.report import main
from specbench.profile import write_profile
from specbench.records.store import RunError
from specbench.report import read_findings
from specbench.report.frames.sweep import Heatmap, asked_grids, best_settings, default_grids

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
    fed = grids[1]  # of the same cells, in the same order: the price stands beside what it bought
    assert (list(fed.cells.columns), list(fed.cells.index)) == (list(cells.columns), list(cells.index))
    assert (fed.cells.isna() == cells.isna()).all(axis=None)
    (grid,) = asked_grids(sweep, "mat", "method.cacheback.follower", "cacheback.leader")
    rows = sweep.summary.query("category == 'overall' and method == 'cacheback'").set_index("variant")["mat"]
    for leader, follower in PAIRS:
        value = grid.cells.loc[str(leader), "null" if follower is None else str(follower)]
        follower = "null" if follower is None else follower
        assert value == rows[f"leader={leader},follower={follower}"]
    row, column = grid.best
    assert grid.cells.iloc[row, column] == rows.max()
    axes = ("cacheback.leader", "cacheback.follower")
    (grid,) = asked_grids(sweep, "forward_ms", *axes)
    assert grid.cells.iloc[grid.best] == grid.cells.min(axis=None)
    assert asked_grids(sweep, "steps", *axes)[0].best is None


def test_with_a_profile_the_predicted_speedup_has_a_grid_that_names_it(tmp_path):
    settings = [{"leader": leader, "follower": follower} for leader in (1, 2) for follower in (1, 2)]
    findings = read_findings(write_sweep(tmp_path, settings), write_profile(FIT, tmp_path))
    found = {grid.metric: grid.profile for grid in default_grids(findings)}
    assert found == {"mat": "", "tokens_fed": "", "predicted_speedup": FIT.label, "speedup": ""}


@pytest.mark.parametrize("metric", ["cost_per_million", "joules_per_token", "tokens_fed", "errors"])
def test_the_cheapest_cell_is_the_best(metric):
    cells = pd.DataFrame([[3.0, 1.0], [2.0, 4.0]])
    assert Heatmap(metric, "m", "x", "y", cells, "model", "suite", "", 1).best == (0, 1)


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


def test_command_draws_them(tmp_path, capsys):
    settings = [{"leader": leader, "a_long_parameter_name": text} for leader in (1, 2) for text in ("so", "$other$")]
    write_sweep(tmp_path / "sweep", settings)
    asked = ["--heatmap", "tokens_fed", "cacheback.a_long_parameter_name", "cacheback.leader"]
    assert main([str(tmp_path / "sweep"), *asked]) == 0
    report = tmp_path / "sweep/report"
    found = {path.name for path in report.glob("*/heatmap*")}
    pairs = "-a_long_parameter_name-leader", "-leader-a_long_parameter_name"
    names = [f"heatmap_{name}-cacheback{pairs[1]}" for name in ("mat", "tokens_fed", "speedup")]
    names.append(f"heatmap_tokens_fed-cacheback{pairs[0]}")
    assert found == {f"{name}.{kind}" for name in names for kind in ("csv", "png")}
    assert "Heatmap" in (report / "report.html").read_text(encoding="utf-8")
    assert main([str(tmp_path / "sweep"), "--heatmap", "mat", "a", "b"]) == 2
    assert "expected two of: cacheback.a_long_parameter_name, cacheback.leader" in capsys.readouterr().err
    assert main([str(tmp_path / "sweep"), *asked, "--no-plots"]) == 2


def test_a_load_is_no_setting_so_each_has_its_best(tmp_path):
    def under(number, requests):
        def edit(manifest, records):
            manifest["methods"]["cacheback"]["parameters"] = {"n": number}
            manifest["config"]["load"] = {"kind": "closed", "requests": requests}
            about = {"seconds": 1e4, "tokens": 1 << 20, "forwards": 1, "requests": 1, "rows": 1}
            for record in records:
                seconds = sum(turn.wall_s for turn in record.turns)
                record.stretch = about | {"seconds": seconds}
                for place, turn in enumerate(record.turns):
                    started = sum(each.wall_s for each in record.turns[:place])
                    ones = [1] * len(turn.accept)
                    turn.load = {"arrival_s": started, "queue_s": 0.0, "requests": ones, "rows": ones}

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
