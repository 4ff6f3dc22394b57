"""What all plots of one model and suite share: its methods with their looks, and the details behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from specbench.record import CONTROL, OVERALL, VANILLA
from specbench.report.data.detail import Detail, of_place
from specbench.report.data.findings import Findings
from specbench.report.data.rows import category_order
from specbench.report.plots.canvas import slug
from specbench.report.plots.palette import Style, style
from specbench.report.text.label import label
from specbench.store import RunError


@dataclass(frozen=True, slots=True)
class Scene:
    """tag: file name suffix, '' when the report has one scene only. series: methods beside vanilla and its control.

    looks: (method, variant) -> its style in every plot. timed: False where only a replayed target is in it.
    profile: the latency profile that predictions are made with, '' without one. time_only: a model driven along
    recorded answers is in it, and nothing else that was timed.
    """

    model: str
    suite: str
    where: str
    tag: str
    series: tuple[Series, ...]
    categories: tuple[str, ...]
    detail: Detail
    looks: dict[tuple[str, str], Style]
    timed: bool = True
    profile: str = ""
    time_only: bool = False


def first_scene(findings: Findings) -> Scene:
    """The scene of the first model and suite. Raises RunError where no case was decoded."""
    for scene in scenes(findings):
        return scene
    raise RunError(f"run {findings.runs[0].directory}: no case has finished yet; the command that began it goes on")


def scenes(findings: Findings) -> Iterator[Scene]:
    """One scene for each model and suite; a method keeps its style in all of them."""
    summary = findings.summary
    drawn = summary[~summary["method"].isin([VANILLA, CONTROL])]
    keys = dict.fromkeys(zip(drawn["method"], drawn["variant"], strict=True))
    looks = {key: style(place) for place, key in enumerate(keys)}
    groups = summary.groupby(["model", "suite"], sort=False)
    for (model, suite), rows in groups:
        series = [
            Series(
                label(*key) + (" (lossy)" if key[0] in findings.lossy else ""), looks[key], part.set_index("category")
            )
            for key, part in drawn.loc[drawn.index.isin(rows.index)].groupby(["method", "variant"], sort=False)
        ]
        here = [facts for facts in findings.facts if (facts.model, facts.suite) == (model, suite)]
        kinds = "; ".join(dict.fromkeys(facts.ran_on for facts in here if facts.ran_on))
        cases = int((rows["cases"] + rows["errors"]).max())
        yield Scene(
            model=model,
            suite=suite,
            where=f"{model} on {suite}{f' ({kinds})' if kinds else ''}, {cases} cases",
            tag="" if groups.ngroups == 1 else f"-{slug(model)}-{slug(suite)}",
            series=tuple(series),
            categories=tuple(category_order(rows.loc[rows["category"] != OVERALL, "category"])),
            detail=of_place(findings.detail, model, suite),
            looks=looks,
            timed=any(facts.timed for facts in here),
            time_only=all(facts.time_only or not facts.timed for facts in here),
            profile="; ".join(dict.fromkeys(facts.profile for facts in here if facts.profile)),
        )


@dataclass(frozen=True, slots=True)
class Series:
    """One method of one model and suite. rows: its rows of the summary, indexed by category."""

    name: str
    style: Style
    rows: pd.DataFrame
