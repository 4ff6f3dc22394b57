"""A sweep: its curves over one parameter or heatmaps over two in which its runs differ, and its
best settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from specbench.records.manifest import UNSET, differing, spell_value
from specbench.records.record import CONTROL, VANILLA
from specbench.records.store import RunError
from specbench.report.columns import COLUMN, COLUMNS
from specbench.report.frames.cases import overall, without_references
from specbench.report.frames.facts import read_parameters, read_settings
from specbench.report.frames.findings import Findings
from specbench.report.label import format_count, format_number, format_rate, format_share
from specbench.report.table import KEYS, ROW

METRICS = tuple(column for column in COLUMNS if column not in KEYS)
_DEFAULT = ("mat", "tokens_fed", "predicted_speedup", "speedup")  # MAT is bought with tokens fed
_CURVES = ("mat", "speedup", "predicted_speedup", "time_only_speedup")
_MODELLED = ("predicted_speedup", "efficiency")
_SHARES = ("acceptance_rate", "draft_rate", "lossless", "equal")
_COUNTS = ("cases", "tokens", "steps", "state_bytes", "violations", "errors")
Setting = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Heatmap:
    """One metric of one method over two parameters.

    cells: rows are values of y, columns those of x, NaN if no run has the pair. where: what else
    names the grid. runs: the most runs behind one cell, whose mean it is. profile: what a modelled
    figure is modelled with.
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

    def spell(self, value: float) -> str:
        """The figure as a cell has room for it."""
        if self.metric in _SHARES:
            return format_share(value)
        if self.metric in _COUNTS:
            return format_count(value)
        if self.metric.endswith("_per_s"):
            return format_rate(value)
        return f"{value:.3g}" if value >= 100 else format_number(value)

    @property
    def best(self) -> list[tuple[int, int]]:
        """(row, column) of the best cell, and of those that read alike.

        Empty for a figure that is neither good nor bad, and if all cells are blank or read alike.
        """
        # the bounds of an interval
        better = COLUMN[self.metric].better if self.metric in COLUMN else 1
        values = self.cells.to_numpy(dtype=float)
        texts = {
            place: self.spell(values[place])
            for place in zip(*np.isfinite(values).nonzero(), strict=True)
        }
        if not better or len(set(texts.values())) < 2:
            return []
        best = texts[max(texts, key=lambda place: better * float(values[place]))]
        return [(int(row), int(column)) for (row, column), text in texts.items() if text == best]


@dataclass(frozen=True, slots=True)
class Curve:
    """The figures of the methods of one model and suite over the one parameter in which their runs
    differ.

    figures: the columns of the summary that are known. values: of the parameter, as the command
    line takes them, in the order of the axis. numbers: the same as numbers; empty if some are not
    numbers. rows: of the summary, one per run and method, with ``place`` in ``values`` and
    ``lossy``.
    """

    x: str
    model: str
    suite: str
    figures: tuple[str, ...]
    values: tuple[str, ...]
    numbers: tuple[float, ...]
    rows: pd.DataFrame
    profile: str = ""


@dataclass(frozen=True, slots=True)
class _Point:
    """One method in one run. settings: 'cacheback.leader_length' or 'decode.temperature' -> value,
    as far as varied.
    """

    model: str
    suite: str
    method: str
    settings: dict[str, Any]
    row: dict[str, Any]
    profile: str


def default_grids(findings: Findings, metrics: Sequence[str] = _DEFAULT) -> list[Heatmap]:
    """MAT, what it costs, and speedup as predicted and as measured, each over the two parameters
    that vary.

    Of methods that vary in exactly two; runs that differ in a seed are averaged. metrics: columns
    of the summary to show instead.
    """
    grids = []
    for points in map(_without_seeds, _points(findings).values()):
        axes = list(points[0].settings)
        if len(axes) == 2:
            grids += [grid for metric in metrics for grid in _grids(points, metric, *axes)]
    return [grid for grid in grids if grid.cells.notna().any(axis=None)]


def default_curves(findings: Findings) -> list[Curve]:
    """MAT and speedup over the parameter that varies, of methods that vary in exactly one besides
    seeds.

    A load is not a parameter: it has its own plots.
    """
    groups: dict[tuple[str, str, str], list[_Point]] = {}
    for points in map(_without_seeds, _points(findings).values()):
        axes = list(points[0].settings)
        if len(axes) == 1 and not axes[0].startswith("load."):
            groups.setdefault((points[0].model, points[0].suite, axes[0]), []).extend(points)
    found = (_curve(x, points, findings.lossy) for (_, _, x), points in groups.items())
    return [curve for curve in found if curve.figures]


def _curve(x: str, points: Sequence[_Point], lossy: Collection[str]) -> Curve:
    values = _ordered(points, x)
    known = {spell_value(point.settings[x]): point.settings[x] for point in points}
    numbers = [float(known[text]) for text in values if _is_number(known[text])]
    rows = pd.DataFrame(
        [point.row | {"place": values.index(spell_value(point.settings[x]))} for point in points]
    )
    rows["lossy"] = rows["method"].isin(lossy)
    figures = tuple(name for name in _CURVES if rows[name].notna().any())
    profiles = dict.fromkeys(point.profile for point in points if "predicted_speedup" in figures)
    whole = tuple(numbers) if len(numbers) == len(values) else ()
    return Curve(
        x,
        points[0].model,
        points[0].suite,
        figures,
        tuple(values),
        whole,
        rows,
        "; ".join(profiles),
    )


def asked_grids(findings: Findings, metric: str, x: str, y: str) -> list[Heatmap]:
    """The heatmaps of a metric over two parameters: one a method, model, suite and choice of the
    others that vary.

    x, y: 'method.parameter' or a setting such as 'decode.temperature'. Raises RunError naming what
    there is.
    """
    if metric not in METRICS:
        raise RunError(f"--heatmap {metric}: no such figure; expected one of {', '.join(METRICS)}")
    x, y = (name.removeprefix("method.") for name in (x, y))
    if x == y:
        raise RunError(
            f"--heatmap {metric} {x} {y}: one parameter twice; expected two different ones"
        )
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
        raise RunError(
            f"--heatmap {metric} {x} {y}: no method has both; expected two parameters of one method"
        )
    return found


def best_settings(findings: Findings, figure: str, place: tuple[str, str]) -> list[list[Setting]]:
    """For each method that a sweep varies and each load its best setting, then that setting's
    neighbours.

    A neighbour is one step away along one parameter. A setting is what differs from the best
    ('parameter=value', '' for the best itself), and its row of the summary.
    """
    groups: dict[tuple[str, ...], list[_Point]] = {}
    for (*where, method), points in _points(findings).items():
        for point in points if tuple(where) == place else ():
            if not pd.isna(point.row[figure]):
                load = (
                    f"{key}={value}"
                    for key, value in point.settings.items()
                    if key.startswith("load.")
                )
                groups.setdefault((method, *load), []).append(point)
    found = []
    for known in (points for points in groups.values() if len(points) > 1):
        best = max(known, key=lambda point: float(point.row[figure]))
        found.append([("", best.row)])
        for name in best.settings:
            values = _ordered(known, name)
            own = values.index(spell_value(best.settings[name]))
            for point in known:
                changed = [
                    key for key in best.settings if point.settings[key] != best.settings[key]
                ]
                value = spell_value(point.settings[name])
                if changed == [name] and value in values[max(0, own - 1) : own + 2]:
                    found[-1].append(
                        (f"{name.removeprefix(f'{point.method}.')}={value}", point.row)
                    )
    return found


def _points(findings: Findings) -> dict[tuple[str, str, str], list[_Point]]:
    """(model, suite, method) -> its runs, if there are several."""
    rows = {
        tuple(row[name] for name in ROW): row
        for row in overall(findings.summary).to_dict("records")
    }
    groups: dict[tuple[str, str, str], list[_Point]] = {}
    for reported in findings.reported:
        run, facts = reported.run, reported.facts
        for method in facts.methods:
            key = (*reported.place, method)
            row = rows.get(reported.key(method))
            if method in (VANILLA, CONTROL) or row is None:
                continue
            own = {
                f"{method}.{name}": value for name, value in read_parameters(run, method).items()
            }
            settings = read_settings(run, facts) | own
            groups.setdefault(key, []).append(_Point(*key, settings, row, facts.profile))
    found = {}
    for key, points in groups.items():
        if len(points) > 1:
            varied = differing([point.settings for point in points])
            found[key] = [
                replace(point, settings=own) for point, own in zip(points, varied, strict=True)
            ]
    return found


def _without_seeds(points: list[_Point]) -> list[_Point]:
    """Return the points without settings named seed, so that runs that differ only in a seed count
    as repetitions.
    """

    def keep(point: _Point) -> _Point:
        return replace(
            point,
            settings={k: v for k, v in point.settings.items() if k.rpartition(".")[2] != "seed"},
        )

    return [keep(point) for point in points]


def _grids(points: Sequence[_Point], metric: str, x: str, y: str) -> Iterator[Heatmap]:
    """One grid for each choice of the other parameters that vary."""
    choices: dict[str, list[_Point]] = {}
    for point in points:
        rest = ", ".join(
            f"{k}={spell_value(v)}" for k, v in point.settings.items() if k not in (x, y)
        )
        choices.setdefault(rest, []).append(point)
    for rest, members in choices.items():
        table = pd.DataFrame(
            [
                (spell_value(p.settings[y]), spell_value(p.settings[x]), float(p.row[metric]))
                for p in members
            ],
            columns=["y", "x", "value"],
        )
        cells = table.pivot_table(
            index="y", columns="x", values="value", aggfunc="mean", dropna=False, observed=False
        )
        cells = cells.reindex(index=_ordered(points, y), columns=_ordered(points, x))
        cells.index.name, cells.columns.name = y, x
        most = int(table.groupby(["x", "y"]).size().max())
        first = members[0]
        profiles = dict.fromkeys(point.profile for point in members if metric.startswith(_MODELLED))
        yield Heatmap(
            metric,
            first.method,
            x,
            y,
            cells,
            first.model,
            first.suite,
            rest,
            most,
            "; ".join(profiles),
        )


def _ordered(points: Sequence[_Point], name: str) -> list[str]:
    """The values of an axis: numbers by size, then other values in the order of the runs."""

    def place(value: Any) -> tuple[int, float]:
        return (0, value) if _is_number(value) else (1 + (value == UNSET), 0)

    values = {spell_value(point.settings[name]): point.settings[name] for point in points}
    return sorted(values, key=lambda text: place(values[text]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_KEYS = ["model", "suite"]


def find_undominated(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the (cost, gain) that no other beats, by cost: every other of at most this cost
    gains less.
    """
    kept: list[int] = []
    for place in sorted(
        range(len(points)), key=lambda place: (points[place][0], -points[place][1])
    ):
        if not kept or points[place][1] > points[kept[-1]][1]:
            kept.append(place)
    return kept


def rank(findings: Findings, metric: str = "predicted_speedup") -> pd.DataFrame:
    """The overall rows of the summary but vanilla's, by model and suite the best by ``metric``
    first.

    Two columns more: ``front``, whether no other of the model and suite has more MAT for as few
    tokens fed, vanilla among them; ``as_good``, whether its interval of ``metric`` reaches the
    best's figure, blank without intervals.
    """
    rows = without_references(overall(findings.summary)).copy()
    rows["front"] = False
    for _, group in rows.groupby(_KEYS, sort=False):
        known = group[group["errors"].eq(0) & group["tokens_fed"].notna() & group["mat"].notna()]
        points = [(1.0, 1.0), *zip(known["tokens_fed"], known["mat"], strict=True)]
        best = [place - 1 for place in find_undominated(points) if place > 0]
        rows.loc[known.index[best], "front"] = True
    rows = rows.sort_values(
        [*_KEYS, metric], ascending=[True, True, False], kind="stable", na_position="last"
    )
    if f"{metric}_high" in rows:
        best_figure = rows.groupby(_KEYS)[metric].transform("max")
        reaches = (rows[f"{metric}_high"] >= best_figure).astype(object)
        rows["as_good"] = reaches.where(
            rows[f"{metric}_high"].notna() | rows[metric].eq(best_figure)
        )
    return rows.reset_index(drop=True)
