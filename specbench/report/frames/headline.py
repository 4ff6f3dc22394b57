"""The first sentence of a report: the fastest method, by how much, whether others tie with it, and
the conditions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specbench.records.record import CONTROL, VANILLA
from specbench.report.frames.cases import overall, without_references
from specbench.report.frames.detail import LOADED
from specbench.report.frames.facts import Facts, describe_decoding
from specbench.report.frames.findings import Findings
from specbench.report.frames.load import Load
from specbench.report.frames.pairs import find_contest
from specbench.report.frames.reported import find_remarks, keys_of, of_least_load, only
from specbench.report.frames.served import without_load
from specbench.report.frames.summary import of_place
from specbench.report.label import format_bounded, format_number, label
from specbench.stats import MIN_CASES

Row = dict[str, Any]  # of the summary
_ORDER = ("speedup", "predicted_speedup", "mat")  # what decides, the first that is known
_MOST_NAMED = 3
SMALLER = " Smaller drafts may pay on a processor: engine.max_nodes=auto finds their sizes."


def deciding_figure(rows: pd.DataFrame) -> str:
    """The column by which rows of the summary are ranked: the speedup, else the modelled one, else
    MAT.
    """
    return next((name for name in _ORDER if rows[name].notna().any()), _ORDER[0])


def sort_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the summary in the printed order: vanilla and its control, then the others, the
    fastest first.
    """
    deciding = deciding_figure(rows)
    reference = rows["method"].isin([VANILLA, CONTROL])
    others = rows[~reference].sort_values(
        deciding, ascending=False, kind="stable", na_position="last"
    )
    return pd.concat([rows[reference], others])


@dataclass(frozen=True, slots=True)
class Headline:
    """The headline for one model and suite.

    figure: the column of the summary that decides. ranking: the rows of lossless methods by it, the
    best first. lead: the fastest method; rest: by how much. under: at which load, the least of
    several, temperature, on what. loads: under other loads, measured and modelled. loaded: of a
    closed loop speedups are the server's, and intervals are over stretches; of given arrivals they
    are a request's. remarks: from ``find_remarks``.
    """

    place: tuple[str, str]
    figure: str
    ranking: tuple[Row, ...]
    lead: str
    rest: str
    under: str
    loads: str = ""
    loaded: bool = False
    remarks: tuple[str, ...] = ()


def find_headlines(findings: Findings, load: Load | None = None) -> list[Headline]:
    """A headline for each model and suite, in the order of the summary; none if no method has a
    figure.
    """
    found = (
        _headline(findings, (str(model), str(suite)), rows, load)
        for (model, suite), rows in overall(findings.summary).groupby(
            ["model", "suite"], sort=False
        )
    )
    return [headline for headline in found if headline is not None]


def _headline(
    findings: Findings, place: tuple[str, str], rows: pd.DataFrame, load: Load | None
) -> Headline | None:
    """Times along recorded answers are not ranked, and neither is the MAT of a method with failed
    cases.
    """
    here = of_least_load(findings.reported, place)
    rows = only(rows, keys_of(here))
    rows = without_references(rows[rows["time_only_step_ms"].isna()], *findings.lossy)
    loaded = any(entry.facts.load for entry in here)
    rows = (
        pd.DataFrame([of_server(findings, row) for row in rows.to_dict("records")])
        if loaded and len(rows)
        else rows
    )
    figure = next((name for name in _ORDER if rows[name].notna().any()), None)
    if figure is None:
        return None
    known = rows[rows[figure].notna()]
    known = known[known["errors"] == 0] if figure == "mat" else known
    if known.empty:
        return None
    ranking = known.sort_values(figure, ascending=False, kind="stable").to_dict("records")
    if figure == "speedup" and loaded and "of_request" not in ranking[0]:
        lead, rest = _describe_requests(ranking[0])
    else:
        lead, rest = _describe_best(findings, place, figure, ranking)
    facts = [entry.facts for entry in here]
    whole = any(each.device == "cpu" and each.drafters and not each.nodes for each in facts)
    least = ranking[0][figure if _lacks_interval(ranking[0], figure) else f"{figure}_low"]
    if figure == "speedup" and not loaded and whole and least <= 1:
        rest += SMALLER
    everyone = [entry for entry in findings.reported if entry.place == place]
    modelled = _describe_modelled_loads(load.of_place(*place) if load else None, findings.lossy)
    loads = " ".join(filter(None, (_describe_measured_loads(findings, place), modelled)))
    under = _describe_conditions(figure, facts, ranking)
    return Headline(
        place, figure, tuple(ranking), lead, rest, under, loads, loaded, find_remarks(everyone)
    )


def of_server(findings: Findings, row: Row) -> Row:
    """A row of the summary; of a closed loop with the speedup of the server's tokens/s, and its
    stretches.
    """
    served = of_place(findings.detail[LOADED], row["model"], row["suite"])
    key = (row["method"], row["variant"])
    for entry in findings.reported:
        if (
            entry.facts.saturated
            and key in keys_of([entry])
            and entry.place == (row["model"], row["suite"])
        ):
            own = (
                key[0],
                without_load(key[1]),
                *(entry.facts.load.get(name) for name in ("kind", "requests")),
            )
            rate = served["rate"].eq(entry.facts.load.get("rate")) | served["rate"].isna()
            rows = served[
                rate & served[["method", "variant", "kind", "requests"]].eq(list(own)).all(axis=1)
            ]
            names = ("speedup", "speedup_low", "speedup_high", "stretches")
            return {
                **row,
                "of_request": row["speedup"],
                **{name: rows[name].mean() for name in names},
            }
    return row


def _lacks_interval(row: Row, figure: str) -> bool:
    return bool(pd.isna(row[f"{figure}_low"]))


def name_of(row: Row) -> str:
    """The printed name of a row's method."""
    return label(row["method"], row["variant"])


def _describe_best(
    findings: Findings, place: tuple[str, str], figure: str, ranking: Sequence[Row]
) -> tuple[str, str]:
    best, name, amount = ranking[0], name_of(ranking[0]), _amount(ranking[0], figure)
    entrant = (best["method"], best["variant"])
    contest, at = (
        find_contest(findings.contests, place, figure, entrant),
        "at " if figure == "mat" else "",
    )
    if _lacks_interval(best, figure):
        served = "of_request" in best and figure == "speedup"
        units, how = (
            ("stretches", "; a smaller load.block makes more of them") if served else ("cases", "")
        )
        few = f"{best[units]:g} of at least {MIN_CASES} {units}{how}"
        if figure != "mat" and best[figure] <= 1:
            return (
                "No method is faster than vanilla here",
                f": the best, {name}, is {amount}, with {few}.",
            )
        found = f": {name} is {at}{amount} with {few}."
        return (
            f"Too few {units} to call a method {'better' if figure == 'mat' else 'faster'}",
            found,
        )
    if figure != "mat" and not best[f"{figure}_low"] > 1:
        surely = " surely" if best[figure] > 1 else ""
        return f"No method is{surely} faster than vanilla", f": the best, {name}, is {amount}."
    superlative = "brings the most tokens a step" if figure == "mat" else "is fastest"
    if len(ranking) == 1:
        return f"{name} {superlative}", f": {amount}; no other method ran."
    among = set(contest.as_good(entrant)) if contest is not None else set()
    tied = [row for row in ranking if (row["method"], row["variant"]) in among]
    if contest is None or contest.rates().draws is None:
        count = 0 if contest is None else contest.rates().count
        few_cases = (
            f"{count} shared case{'s are' if count != 1 else ' is'} too few to tell whether"
            " others tie"
        )
        return f"{name} {superlative}", f": {amount}; {few_cases} (at least {MIN_CASES})."
    second = tied[0] if tied else ranking[1]
    over = contest.over(entrant, (second["method"], second["variant"]))
    ratio = format_bounded(over.value, *over.bounds)
    if not tied:
        return (
            f"{name} {superlative}",
            f": {amount}, and {ratio} times the next, {name_of(second)}.",
        )
    names = [name, *map(name_of, tied)]
    more = len(names) - _MOST_NAMED
    shown = [*names[:_MOST_NAMED], f"{more} more"] if more > 0 else names
    lead = (
        f"{', '.join(shown[:-1])} and {shown[-1]} tie for"
        f" {'most tokens a step' if figure == 'mat' else 'fastest'}"
    )
    return lead, f": {name} is {at}{amount}, {ratio} times {names[1]}."


def _describe_requests(best: Row) -> tuple[str, str]:
    """The lead and the rest for given arrivals: requests slow each other, so that a speedup has no
    interval.
    """
    name, amount = name_of(best), f"{format_number(best['speedup'])} times as fast as with vanilla"
    why = (
        "; no interval, because requests slow each other, and the server's tokens/s are those that"
        " arrive."
    )
    if best["cases"] < MIN_CASES:
        few = f"{best['cases']:g} of at least {MIN_CASES} cases"
        return (
            "Too few cases to call requests faster",
            f": with {name} they are {amount}, with {few}.",
        )
    if best["speedup"] <= 1:
        return (
            "Requests are not faster than with vanilla",
            f": with the best, {name}, {amount}{why}",
        )
    return f"Requests are fastest with {name}", f": {amount}{why}"


def _amount(row: Row, figure: str) -> str:
    text, server = _bounded(row, figure), " in the server's tokens/s" if "of_request" in row else ""
    return f"MAT {text}" if figure == "mat" else f"{text} times vanilla{server}"


def _bounded(row: Row, figure: str) -> str:
    return format_bounded(row[figure], row[f"{figure}_low"], row[f"{figure}_high"])


def _describe_conditions(figure: str, facts: Sequence[Facts], ranking: Sequence[Row]) -> str:
    """The conditions: 'One request at a time, temperature 0, 60 cases'."""
    profiles = "; ".join(dict.fromkeys(entry.profile for entry in facts if entry.profile))
    cases = max(int(row["cases"] + row["errors"]) for row in ranking)
    parts = [describe_decoding(facts), f"{cases} case{'s' if cases != 1 else ''}"]
    if figure == "mat":
        return f"Recorded answers, no speedup without a latency profile; {', '.join(parts)}."
    alone = "One request at a time"
    first = " or ".join(dict.fromkeys((entry.arrivals or alone).capitalize() for entry in facts))
    first = f"Modelled, {alone.lower()}" if figure == "predicted_speedup" else first
    end = f"; {profiles}" if figure == "predicted_speedup" else ""
    each = ranking[0].get("of_request", math.nan) if figure == "speedup" else math.nan
    request = f" Each request is {format_number(each)} times as fast with {name_of(ranking[0])}."
    return f"{first}, {', '.join(parts)}{end}.{'' if math.isnan(each) else request}"


def _describe_measured_loads(findings: Findings, place: tuple[str, str]) -> str:
    """The method that gives the largest throughput at each load that was measured; '' if there is
    one load.
    """
    frame = of_place(findings.detail[LOADED], *place)
    rows = without_references(frame[frame["speedup"].notna()], *findings.lossy)
    if frame.groupby(["requests", "rate"], dropna=False).ngroups < 2 or rows.empty:
        return ""
    best = rows.loc[rows.groupby(["requests", "rate"], dropna=False)["speedup"].idxmax()].to_dict(
        "records"
    )
    rates = frame["rate"].notna().any()
    shown = []
    for row in best:
        pays = (
            f"{name_of(row)} {_bounded(row, 'speedup')}"
            if row["speedup"] > 1
            else "none is faster than vanilla"
        )
        shown.append(
            (f"{row['requests']:g}" + (f" ({row['rate']:g} a second)" if rates else ""), pays)
        )
    return f"The whole server, measured, in tokens/s over vanilla's: {_join_alike(shown)}."


def _join_alike(shown: Sequence[tuple[str, str]]) -> str:
    """'1 at once: pld 1.10; 2 and 4 at once: none ...' of loads and their texts."""
    alike = (
        (text, [count for count, _ in some])
        for text, some in itertools.groupby(shown, key=lambda each: each[1])
    )
    return "; ".join(f"{' and '.join(counts)} at once: {text}" for text, counts in alike)


def _describe_modelled_loads(load: Load | None, lossy: frozenset[str]) -> str:
    """The largest modelled speedup at each load, in brackets with drafting: '... 8 at once: hybrid
    1.70 (pld 1.52)'.
    """
    if load is None:
        return ""
    rows, shown = load.speedups[~load.speedups["method"].isin(lossy)], []
    for count, group in rows.groupby("concurrency"):
        free, paid = (
            group.loc[group[name].idxmax()].to_dict()
            for name in ("modelled_speedup", "with_drafting")
        )
        without, speedup, same = (
            free["modelled_speedup"],
            paid["with_drafting"],
            name_of(free) == name_of(paid),
        )
        with_it = (
            f"{'' if same else f'{name_of(paid)} '}{format_number(speedup)}"
            if speedup > 1
            else "none"
        )
        text = (
            f"{name_of(free)} {format_number(without)} ({with_it})"
            if without > 1
            else "none is faster than vanilla"
        )
        if int(count) > 1 or (without > 1 and not same):  # alone only where drafting decides
            shown.append((str(int(count)), text))
    found = _join_alike(shown)
    where = load.where.partition(",")[0]
    return (
        f"Under load, modelled on {where} without drafting time (in brackets with it): {found}."
        if found
        else ""
    )
