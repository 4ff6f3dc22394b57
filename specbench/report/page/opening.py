"""The first screen of a page: the fastest method, by how much, why, where it loses, and whether the
run is sound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from specbench.records.record import OVERALL, VANILLA
from specbench.report.frames.cases import category_order, overall
from specbench.report.frames.findings import Findings
from specbench.report.frames.headline import Headline, name_of
from specbench.report.frames.pairs import find_contest
from specbench.report.frames.reported import doubt_times
from specbench.report.frames.summary import of_place
from specbench.report.label import (
    Cell,
    format_interval,
    format_number,
    format_share,
    label,
    raise_first,
)
from specbench.report.page.parts import part
from specbench.report.plots.scene import first_scene
from specbench.report.table import Row, mark_few
from specbench.stats import MIN_CASES

# further ones are folded, or in the tables
_MOST_HEADLINES, _MOST_BARS, _MOST_MARKS, _MOST_CATEGORIES = 3, 8, 6, 14
_MOST_NAMED = 3
_TICKS = 5  # at most, of the picture by category
_TITLES = {
    "speedup": "Speedup over vanilla",
    "predicted_speedup": "Predicted speedup over vanilla (modelled)",
    "mat": "Mean accepted tokens (MAT)",
}
Verdict = tuple[str, str, str]  # tone (good, warn, bad or none), title, text


def opening(findings: Findings, headlines: Sequence[Headline]) -> Markup:
    """The verdicts, and for each headline its sentence, factors, ranks and picture by category."""
    verdicts = find_verdicts(findings)
    loud = [verdict for verdict in verdicts if verdict[0] in ("warn", "bad")]
    quiet = [verdict for verdict in verdicts if verdict not in loud]
    views = [_view(findings, headline) for headline in headlines]
    return part("opening", views, _MOST_HEADLINES, loud, quiet, len(findings.warnings))


def _view(findings: Findings, headline: Headline) -> dict[str, Any]:
    figure, ranking = headline.figure, headline.ranking
    ends = np.array(
        [[row[figure], row[f"{figure}_low"], row[f"{figure}_high"]] for row in ranking], dtype=float
    )
    none = "no intervals under load" if headline.loaded else "too few cases for intervals"
    bounded = not np.isnan(ends[:, 1]).all()
    bars = [
        {
            "name": Cell(name_of(row)),
            "ends": found,
            "amount": Cell(format_number(found[0]), format_interval(*found[1:])),
        }
        for row, found in zip(ranking, ends.tolist(), strict=True)
    ]
    # places in the plots, which give each its form and colour
    known = list(first_scene(findings).looks)
    everyone = [entry for entry in findings.reported if entry.place == headline.place]
    unsafe = set(doubt_times(everyone))  # one of the verdicts
    return {
        "headline": headline,
        "remarks": [remark for remark in headline.remarks if remark not in unsafe],
        "title": _TITLES[figure],
        "note": f"dashed: vanilla; {'lines: 95 % intervals' if bounded else none}",
        # these are of a request
        "factors": [] if headline.loaded else _factors(ranking[0], figure),
        "bars": bars,
        "most": _MOST_BARS,
        "top": 1.02 * max(1.0, np.nanmax(ends)),
        "places": [known.index((row["method"], row["variant"])) for row in ranking[:_MOST_MARKS]],
        **_by_category(findings, headline),
    }


def _factors(best: Row, figure: str) -> list[tuple[str, Cell, str]]:
    """(sign before it, figure, what it is): the speedup as tokens per step over the cost of a
    step.
    """
    value, mat = best[figure], best["mat"]
    tokens = Cell(format_number(mat), format_interval(best["mat_low"], best["mat_high"]))
    decode = value if figure == "predicted_speedup" else best["decode_speedup"]
    if figure == "mat" or math.isnan(mat) or math.isnan(decode):
        return []
    found = [
        (
            "",
            Cell(
                format_number(value), format_interval(best[f"{figure}_low"], best[f"{figure}_high"])
            ),
            "speedup",
        ),
        ("=", tokens, "tokens per step"),
        ("\N{DIVISION SIGN}", Cell(format_number(mat / decode)), "cost of a step (vanilla: 1)"),
    ]
    prefills = format_number(value / decode)
    return found + (
        [("\N{MULTIPLICATION SIGN}", Cell(prefills), "with prefills")] if prefills != "1.00" else []
    )


def _by_category(findings: Findings, headline: Headline) -> dict[str, Any]:
    """The picture by category, and where the best method loses in words; empty with fewer than two
    categories.
    """
    figure, keys = headline.figure, [(row["method"], row["variant"]) for row in headline.ranking]
    rows = of_place(findings.summary, *headline.place)
    rows = rows[(rows["category"] != OVERALL) & rows[figure].notna()].set_index("category")
    best = rows[(rows["method"] == keys[0][0]) & (rows["variant"] == keys[0][1])].to_dict("index")
    categories = category_order(best)
    if len(categories) < 2 or headline.loaded:
        return {"categories": [], "losses": ""}
    wide = rows.set_index(["method", "variant"], append=True)[figure].unstack("category")
    values = wide.reindex(index=pd.MultiIndex.from_tuples(keys), columns=categories).to_numpy()
    ends = np.array(
        [[best[name][f"{figure}_{end}"] for end in ("low", "high")] for name in categories]
    )
    own = [format_number(best[name][figure]) for name in categories]
    shown = [
        {
            "name": name,
            "marks": [
                (number, value) for number, value in enumerate(column) if not math.isnan(value)
            ],
            "ends": ends[place].tolist(),
            "amount": mark_few(own[place], best[name]),
        }
        for place, (name, column) in enumerate(
            zip(categories[:_MOST_CATEGORIES], values[:_MOST_MARKS].T.tolist(), strict=False)
        )
    ]
    known = np.concatenate([[1.0], values[:_MOST_MARKS].ravel(), ends.ravel()])
    low, high = np.nanmin(known), np.nanmax(known)
    margin = 0.06 * (high - low) or 0.5
    contest = find_contest(findings.contests, headline.place, figure, keys[0])
    ahead = []
    for place, rival in enumerate(np.nanargmax(values, axis=0)):
        most = format_number(values[rival, place])
        if most != own[place]:
            over = (
                contest.over(keys[0], keys[rival], categories[place]).high
                if contest is not None
                else None
            )
            ahead += (
                [f"{categories[place]} ({label(*keys[rival])} {most})"]
                if over is None or over < 1
                else []
            )
    few = all(row["cases"] < MIN_CASES for row in best.values())
    return {
        "categories": shown,
        "left": low - margin,
        "right": high + margin,
        "ticks": _ticks(low - margin, high + margin),
        "hidden": max(0, len(categories) - _MOST_CATEGORIES),
        "losses": _describe_losses(
            pd.Series(values[0], categories), name_of(headline.ranking[0]), figure, ahead, few
        ),
    }


def _describe_losses(
    own: pd.Series, name: str, figure: str, ahead: Sequence[str], few: bool
) -> str:
    """Where the best method loses to vanilla and to others. own: its figure in each category."""
    spelt = [
        f"{category} ({format_number(value)})" for category, value in own.sort_values().items()
    ]
    below = spelt[: int((own < 1).sum())]
    least = f"on all {len(own)} categories, least on {spelt[0]}"
    text = (
        f"Slower than vanilla on {_join(below)}."
        if below
        else f"{name} is faster than vanilla {least}."
    )
    if figure == "mat":
        text = f"Most tokens per step on {spelt[-1]}, fewest on {spelt[0]}."
    text += f" Another method is ahead on {_join(ahead)}." if ahead else ""
    return text + (
        f" Fewer than {MIN_CASES} cases each: chance moves these figures." if few else ""
    )


def _join(names: Sequence[str]) -> str:
    shown = [
        *names[:_MOST_NAMED],
        *([f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []),
    ]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between the two."""
    steps = (base * 10.0**power for power in range(-2, 4) for base in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step <= _TICKS)
    return [
        round(step * number, 2)
        for number in range(math.ceil(low / step), math.floor(high / step) + 1)
    ]


def find_verdicts(findings: Findings) -> list[Verdict]:
    """Whether the output is lossless, the timing steady and every case decoded."""
    rows = overall(findings.summary)
    found = [_lossless(rows, findings), *_steadiness(findings), _errors(rows)]
    notes = dict.fromkeys(facts.time_note for facts in findings.facts if facts.time_only)
    found[:0] = [
        ("", raise_first(note), "what a step costs is measured, no speedup is claimed")
        for note in notes
    ]
    return found


def _lossless(rows: pd.DataFrame, findings: Findings) -> Verdict:
    others = rows[~rows["method"].isin([VANILLA, *findings.lossy])]
    judged = others[others["lossless"].notna()]
    if judged.empty:
        replayed = all(facts.time_only or not facts.timed for facts in findings.facts)
        sampled = all(facts.temperature > 0 for facts in findings.facts)
        why = "does not apply when sampling" if sampled else "not checked in this run"
        return (
            "",
            "Lossless",
            "nothing to check: the recorded tokens are emitted" if replayed else why,
        )
    failed = judged[judged["lossless"] < 1]
    if failed.empty:
        equal = float(judged["equal"].min())
        return (
            "good",
            "Lossless",
            f"{'all' if equal == 1 else f'at least {format_share(equal)}'} ids equal vanilla's",
        )
    names = (
        f"{label(row.method, row.variant)} has vanilla's output in {format_share(row.lossless)} of"
        " its cases"
        for row in failed.itertuples()
    )
    return ("bad", "Not lossless", ", ".join(names))


def _steadiness(findings: Findings) -> list[Verdict]:
    """The A/A control, or why the times are unsafe."""
    controls = [entry.control for entry in findings.reported if entry.control is not None]
    doubts: dict[str, list[str]] = {}  # text -> models and suites
    for place in dict.fromkeys(entry.place for entry in findings.reported):
        for doubt in doubt_times([entry for entry in findings.reported if entry.place == place]):
            doubts.setdefault(doubt, []).append(" on ".join(place))
    if doubts:
        tone = "bad" if any(control.differs for control in controls) else "warn"
        return [
            (tone, "" if len(doubts) == 1 else ", ".join(places), doubt)
            for doubt, places in doubts.items()
        ]
    if not any(facts.timed for facts in findings.facts):
        return []
    if not controls:
        return [("", "A/A control", "none, how steady the timing was is not known")]
    values = sorted(format_number(control.retimed.value, 4) for control in controls)
    steady = all(control.steady for control in controls)
    text = (
        f"{' to '.join(dict.fromkeys((values[0], values[-1])))},"
        f" {'steady' if steady else 'too few for an interval'}"
    )
    return [("good" if steady else "", "A/A control", text)]


def _errors(rows: pd.DataFrame) -> Verdict:
    failed = rows[rows["errors"] > 0]
    if rows.empty:
        return ("warn", "", "No case has finished.")
    if failed.empty:
        return ("good", "Errors", "none")
    names = (
        f"{label(row.method, row.variant)} {row.errors} of {row.cases + row.errors}"
        for row in failed.itertuples()
    )
    return ("bad", "Failed cases", ", ".join(names))
