"""The methods of one model and suite with their colours, marks and details, which all plots share.

Colours, hatches and markers are safe for colour-blind readers, and a method keeps its own in all
plots of a report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specbench.names import file_name
from specbench.profile import Profile
from specbench.records.store import RunError
from specbench.report.frames.cases import list_categories, without_references
from specbench.report.frames.detail import LOADED, Detail
from specbench.report.frames.facts import describe_loads
from specbench.report.frames.findings import Findings
from specbench.report.frames.load import Load
from specbench.report.frames.reported import ReportedRun, keys_of, of_least_load, only
from specbench.report.frames.steps import median
from specbench.report.frames.summary import of_place
from specbench.report.label import display_name, label

DPI = 200

# Of paper.mplstyle: Okabe and Ito (2008).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
HATCHES = ("", "////", "....", "xxxx")
_LINES = ("-", "--", ":", "-.")
_FILLS = ("full", "none", "left", "bottom")  # of markers
_MARKERS = "osD^vP"


@dataclass(frozen=True, slots=True)
class Style:
    """How one method is drawn: bars by colour and hatch, lines by colour and dash, marks by colour
    and filling.
    """

    colour: str
    hatch: str
    line: str
    marker: str

    @property
    def filling(self) -> Any:
        """The filling of its marker, as matplotlib takes it."""
        return _FILLS[_LINES.index(self.line)]

    @property
    def marks(self) -> dict[str, Any]:
        """The marks of a line, as matplotlib takes them."""
        return {
            "color": self.colour,
            "linestyle": self.line,
            "marker": self.marker,
            "fillstyle": self.filling,
        }

    @property
    def fill(self) -> dict[str, Any]:
        """The filling of a bar, as matplotlib takes it."""
        return {
            "facecolor": self.colour,
            "hatch": self.hatch,
            "edgecolor": "white",
            "linewidth": 0.4,
        }


def style_of(place: int) -> Style:
    """The style of the method at this place in manifest order: neighbours differ in colour, in
    hatch and in dash.

    The first 24 places have different styles.
    """
    colour = place % len(_COLOURS)
    other = (place + place // 12) % len(HATCHES)
    return Style(_COLOURS[colour], HATCHES[other], _LINES[other], _MARKERS[colour])


# The phases of a step, in record.PHASES' order: forward, the target's own work, is the palest and
# plainest.
PARTS = (
    Style(_COLOURS[3], "", "-", "o"),
    Style(_COLOURS[1], "xxxx", "-", "o"),
    Style("#B9CFE0", "", "-", "o"),
    Style(_COLOURS[2], "....", "-", "o"),
    Style(_COLOURS[0], "////", "-", "o"),
)


@dataclass(frozen=True, slots=True)
class Series:
    """One method of one model and suite. key: method and variant. rows: its rows of the summary, by
    category.
    """

    name: str
    key: tuple[str, str]
    style: Style
    rows: pd.DataFrame

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The method's rows of a frame of the same model and suite."""
        method, variant = self.key
        return frame[(frame["method"] == method) & (frame["variant"] == variant)]


@dataclass(frozen=True, slots=True)
class Scene:
    """One model and suite, under the least of several loads; ``detail[LOADED]`` and ``everywhere``
    have all loads.

    where, everywhere: model, suite, device and cases, with that load or with all. tag: file name
    suffix, '' when the report has one scene only. series: methods, without vanilla and its control.
    looks: (method, variant) -> its style in every plot. spell: (method, variant) -> its name in all
    of them. timed: False if only a replayed target is in it. profile: the latency profile that
    predictions are made with, '' without one. time_only: a model driven along recorded answers is
    in it, and nothing else that was timed. priced: the profile itself and the median context of a
    step, None without. load: the modelled speedups of requests that share a forward, None without.
    """

    model: str
    suite: str
    where: str
    everywhere: str
    tag: str
    series: tuple[Series, ...]
    categories: tuple[str, ...]
    detail: Detail
    looks: dict[tuple[str, str], Style]
    spell: Callable[[str, str], str]
    timed: bool = True
    profile: str = ""
    time_only: bool = False
    priced: tuple[Profile, int] | None = None
    load: Load | None = None

    @property
    def loaded(self) -> bool:
        """Whether requests shared forwards in the measurement."""
        return not self.detail[LOADED].empty


def slug(name: str) -> str:
    """Returns a name as a part of a file's name."""
    return re.sub(r"[^\w.]+", "_", file_name(name))


def first_scene(findings: Findings) -> Scene:
    """The scene of the first model and suite. Raises RunError if no case was decoded."""
    for scene in scenes(findings):
        return scene
    raise RunError(
        f"run {findings.runs[0].directory}: no case has finished yet; the same command continues it"
    )


def scenes(findings: Findings, load: Load | None = None, display: bool = False) -> Iterator[Scene]:
    """One scene for each model and suite; a method keeps its style in all of them. load: of all of
    them.

    display: methods have the names that papers give them.
    """
    summary = findings.summary
    least = {
        place: of_least_load(findings.reported, place)
        for place in {one.place for one in findings.reported}
    }
    kept = {key for entries in least.values() for key in keys_of(entries)}
    drawn = only(without_references(summary), kept)
    keys = dict.fromkeys(zip(drawn["method"], drawn["variant"], strict=True))
    looks = {key: style_of(place) for place, key in enumerate(keys)}

    def spell(method: str, variant: str) -> str:
        return label(display_name(method) if display else method, variant)

    groups = summary.groupby(["model", "suite"], sort=False)
    for (model, suite), rows in groups:
        series = [
            Series(spell(*key) + lossy, key, looks[key], part.set_index("category"))
            for key, part in drawn.loc[drawn.index.isin(rows.index)].groupby(
                ["method", "variant"], sort=False
            )
            for lossy in [" (lossy)" if key[0] in findings.lossy else ""]
        ]
        everyone = [entry for entry in findings.reported if entry.place == (model, suite)]
        entries = least[model, suite]
        here = [entry.facts for entry in entries]
        cases = int((rows["cases"] + rows["errors"]).max())
        yield Scene(
            model=model,
            suite=suite,
            where=_say_where(entries, cases),
            everywhere=_say_where(everyone, cases),
            tag="" if groups.ngroups == 1 else f"-{slug(model)}-{slug(suite)}",
            series=tuple(series),
            categories=tuple(list_categories(rows)),
            detail={
                name: found if name == LOADED else only(found, keys_of(entries))
                for name, frame in findings.detail.items()
                for found in [of_place(frame, model, suite)]
            },
            looks=looks,
            spell=spell,
            timed=any(facts.timed for facts in here),
            time_only=all(facts.time_only or not facts.timed for facts in here),
            profile="; ".join(dict.fromkeys(facts.profile for facts in here if facts.profile)),
            priced=_find_price(entries),
            load=load.of_place(model, suite) if load else None,
        )


def _say_where(entries: Sequence[ReportedRun], cases: int) -> str:
    model, suite = entries[0].place
    facts = [entry.facts for entry in entries]
    kinds = [*dict.fromkeys(each.ran_on for each in facts if each.ran_on), describe_loads(facts)]
    details = "; ".join(filter(None, kinds))
    return f"{model} on {suite}{f' ({details})' if details else ''}, {cases} cases"


def _find_price(entries: Sequence[ReportedRun]) -> tuple[Profile, int] | None:
    """The profile of the first run that has one and a decode step, and the median context."""
    for entry in entries:
        if entry.prediction and (contexts := entry.trials.contexts()):
            return entry.prediction.profile, int(median(contexts))
    return None
