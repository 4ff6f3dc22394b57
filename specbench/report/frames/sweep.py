"""A sweep: its heatmaps over the two parameters in which its runs differ, and its best settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from specbench.records.record import CONTROL, OVERALL, VANILLA
from specbench.records.store import RunError
from specbench.report.columns import COLUMN, COLUMNS
from specbench.report.frames.facts import UNSET, differing, read_parameters, read_settings, spell_value
from specbench.report.frames.findings import Findings
from specbench.report.table import KEYS, ROW

METRICS = tuple(column for column in COLUMNS if column not in KEYS)
_DEFAULT = ("mat", "tokens_fed", "predicted_speedup", "speedup")  # MAT is bought with tokens fed
_MODELLED = ("predicted_speedup", "efficiency")
Setting = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Heatmap:
    """One metric of one method over two parameters.

    cells: rows are values of y, columns those of x, NaN if no run has the pair. where: what else names the grid.
    runs: the most runs behind one cell, whose mean it is. profile: what a modelled figure is modelled with.
    """

    metric: str
    method: str
    x: str
    y: str
    cells: pd.DataFrame
    model: str
    suite: str
    rest: str
    runs: int
    profile: str = ""

    @property
    def best(self) -> tuple[int, int] | None:
        """(row, column) of the best cell; None for a figure that is neither good nor bad, or where all are blank."""
        better = COLUMN[self.metric].better if self.metric in COLUMN else 1  # the bounds of an interval
        values = better * self.cells.to_numpy(dtype=float)
        finite = values[~pd.isna(values)]
        if not better or finite.size < 2 or finite.min() == finite.max():
            return None
        rows, columns = (values == finite.max()).nonzero()
        return int(rows[0]), int(columns[0])


@dataclass(frozen=True, slots=True)
class _Point:
    """One method in one run. settings: 'cacheback.leader_length' or 'decode.temperature' -> value, as far as varied."""

    model: str
    suite: str
    method: str
    settings: dict[str, Any]
    row: dict[str, Any]
    profile: str


def default_grids(findings: Findings, metrics: Sequence[str] = _DEFAULT) -> list[Heatmap]:
    """MAT, what it costs, and speedup as predicted and as measured, each over the two parameters that vary.

    Of methods that vary in exactly two. metrics: columns of the summary to show instead.
    """
    grids = []
    for points in _points(findings).values():
        axes = list(points[0].settings)
        if len(axes) == 2:
            grids += [grid for metric in metrics for grid in _grids(points, metric, *axes)]
    return [grid for grid in grids if grid.cells.notna().any(axis=None)]


def asked_grids(findings: Findings, metric: str, x: str, y: str) -> list[Heatmap]:
    """The heatmaps of a metric over two parameters: one a method, model, suite and choice of the others that vary.

    x, y: 'method.parameter' or a setting such as 'decode.temperature'. Raises RunError naming what there is.
    """
    if metric not in METRICS:
        raise RunError(f"--heatmap {metric}: no such figure; expected one of {', '.join(METRICS)}")
    x, y = (name.removeprefix("method.") for name in (x, y))
    if x == y:
        raise RunError(f"--heatmap {metric} {x} {y}: one parameter twice; expected two different ones")
    points = _points(findings)
    varied = sorted({name for group in points.values() for name in group[0].settings})
    for name in (x, y):
        if name not in varied:
            raise RunError(
                f"--heatmap {metric} {x} {y}: {name} does not vary over these runs; "
                f"expected two of: {', '.join(varied) or 'none, all runs are set alike'}"
            )
    groups = [group for group in points.values() if {x, y} <= set(group[0].settings)]
    found = [grid for group in groups for grid in _grids(group, metric, x, y)]
    if not found:
        raise RunError(f"--heatmap {metric} {x} {y}: no method has both; expected two parameters of one method")
    return found


def best_settings(findings: Findings, figure: str, place: tuple[str, str]) -> list[list[Setting]]:
    """For each method that a sweep varies and each load its best setting, then that setting's neighbours.

    A neighbour is one step away along one parameter. A setting is what differs from the best
    ('parameter=value', '' for the best itself), and its row of the summary.
    """
    groups: dict[tuple[str, ...], list[_Point]] = {}
    for (*where, method), points in _points(findings).items():
        for point in points if tuple(where) == place else ():
            if not pd.isna(point.row[figure]):
                load = (f"{key}={value}" for key, value in point.settings.items() if key.startswith("load."))
                groups.setdefault((method, *load), []).append(point)
    found = []
    for known in (points for points in groups.values() if len(points) > 1):
        best = max(known, key=lambda point: float(point.row[figure]))
        found.append([("", best.row)])
        for name in best.settings:
            values = _ordered(known, name)
            own = values.index(spell_value(best.settings[name]))
            for point in known:
                changed = [key for key in best.settings if point.settings[key] != best.settings[key]]
                value = spell_value(point.settings[name])
                if changed == [name] and value in values[max(0, own - 1) : own + 2]:
                    found[-1].append((f"{name.removeprefix(f'{point.method}.')}={value}", point.row))
    return found


def _points(findings: Findings) -> dict[tuple[str, str, str], list[_Point]]:
    """(model, suite, method) -> its runs, if there are several."""
    overall = findings.summary[findings.summary["category"] == OVERALL]
    rows = {tuple(row[name] for name in ROW): row for row in overall.to_dict("records")}
    groups: dict[tuple[str, str, str], list[_Point]] = {}
    for reported in findings.reported:
        run, facts = reported.run, reported.facts
        for method in facts.methods:
            key = (*reported.place, method)
            row = rows.get(reported.key(method))
            if method in (VANILLA, CONTROL) or row is None:
                continue
            own = {f"{method}.{name}": value for name, value in read_parameters(run, method).items()}
            settings = read_settings(run, facts) | own
            groups.setdefault(key, []).append(_Point(*key, settings, row, facts.profile))
    found = {}
    for key, points in groups.items():
        if len(points) > 1:
            varied = differing([point.settings for point in points])
            found[key] = [replace(point, settings=own) for point, own in zip(points, varied, strict=True)]
    return found


def _grids(points: Sequence[_Point], metric: str, x: str, y: str) -> Iterator[Heatmap]:
    """One grid for each choice of the other parameters that vary."""
    choices: dict[str, list[_Point]] = {}
    for point in points:
        rest = ", ".join(f"{k}={spell_value(v)}" for k, v in point.settings.items() if k not in (x, y))
        choices.setdefault(rest, []).append(point)
    for rest, members in choices.items():
        table = pd.DataFrame(
            [(spell_value(p.settings[y]), spell_value(p.settings[x]), float(p.row[metric])) for p in members],
            columns=["y", "x", "value"],
        )
        cells = table.pivot_table(index="y", columns="x", values="value", aggfunc="mean", dropna=False, observed=False)
        cells = cells.reindex(index=_ordered(points, y), columns=_ordered(points, x))
        cells.index.name, cells.columns.name = y, x
        most = int(table.groupby(["x", "y"]).size().max())
        first = members[0]
        profiles = dict.fromkeys(point.profile for point in members if metric.startswith(_MODELLED))
        yield Heatmap(metric, first.method, x, y, cells, first.model, first.suite, rest, most, "; ".join(profiles))


def _ordered(points: Sequence[_Point], name: str) -> list[str]:
    """The values of an axis: numbers by size and then other values, else in the order of the runs."""

    def place(value: Any) -> tuple[int, float]:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return (0, value) if number else (1 + (value == UNSET), 0)

    values = {spell_value(point.settings[name]): point.settings[name] for point in points}
    return sorted(values, key=lambda text: place(values[text]))


_KEYS = ["model", "suite"]


def find_undominated(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the (cost, gain) that no other beats, by cost: every other of at most this cost gains less."""
    kept: list[int] = []
    for place in sorted(range(len(points)), key=lambda place: (points[place][0], -points[place][1])):
        if not kept or points[place][1] > points[kept[-1]][1]:
            kept.append(place)
    return kept


def rank(findings: Findings, metric: str = "predicted_speedup") -> pd.DataFrame:
    """The overall rows of the summary but vanilla's, by model and suite the best by ``metric`` first.

    Two columns more: ``front``, whether no other of the model and suite has more MAT for as few tokens fed, vanilla
    among them; ``as_good``, whether its interval of ``metric`` reaches the best's figure, blank without intervals.
    """
    overall = findings.summary[findings.summary["category"] == OVERALL]
    rows = overall[~overall["method"].isin([VANILLA, CONTROL])].copy()
    rows["front"] = False
    for _, group in rows.groupby(_KEYS, sort=False):
        known = group[group["errors"].eq(0) & group["tokens_fed"].notna() & group["mat"].notna()]
        points = [(1.0, 1.0), *zip(known["tokens_fed"], known["mat"], strict=True)]
        best = [place - 1 for place in find_undominated(points) if place > 0]
        rows.loc[known.index[best], "front"] = True
    rows = rows.sort_values([*_KEYS, metric], ascending=[True, True, False], kind="stable", na_position="last")
    if f"{metric}_high" in rows:
        best_figure = rows.groupby(_KEYS)[metric].transform("max")
        reaches = (rows[f"{metric}_high"] >= best_figure).astype(object)
        rows["as_good"] = reaches.where(rows[f"{metric}_high"].notna() | rows[metric].eq(best_figure))
    return rows.reset_index(drop=True)
