"""The tables of a report, made from the summary's rows, and their files: csv with full figures, md and tex to paste."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.record import CONTROL, OVERALL, PHASES, VANILLA
from specbench.report.data.detail import AUDIT, LOADED, MIN_VALUES, PERCENTILES, QUALITY, WAITS, Detail
from specbench.report.data.facts import TIME_ONLY, Facts, say_decoding, say_loads
from specbench.report.data.findings import Findings
from specbench.report.data.pairs import Contest, is_alone
from specbench.report.data.rows import (
    COLUMNS,
    FEW,
    KEYS,
    category_order,
    drop_repeated_rows,
    mark_few,
    with_drafting,
)
from specbench.report.data.trials import DRAFTER_PHASES
from specbench.report.tables.lengths import lengths_tables
from specbench.report.text.label import (
    Cell,
    format_count,
    format_interval,
    format_microseconds,
    format_milliseconds,
    format_number,
    format_rate,
    format_share,
)
from specbench.report.text.table import (
    Table,
    method_table,
    name_columns,
    to_csv,
    to_markdown,
    without_blanks,
    write_tables,
    write_texts,
)
from specbench.stats import MIN_CASES

INTERVALS = f"Intervals: 95 % bootstrap over cases (other prompts of this kind); none under {MIN_CASES} cases."
_OVERALL_MEANINGS = {  # column -> its explanation in the caption, where it is shown
    "speedup": "Speedup: time per token, vanilla over method, paired by case.",
    "mat": "MAT: tokens per decode step.",
    "time_only_speedup": (
        "Speedup (time only): real forwards along recorded answers, whose accepted lengths were replayed; no speedup is"
        " claimed, and a method that drafts from what the model computes has its time a step alone."
    ),
    "predicted_speedup": "Predicted: modelled, decode steps only, from the tokens fed and a latency profile.",
    "efficiency": "Efficiency: measured decode speedup over the one predicted without any host time.",
    "cost_per_million": "Cost: of a million tokens at the price of an hour.",
    "joules_per_token": "Joules per token: of the GPUs in use, prefill and idling included.",
    "fed": "Tokens fed: root and draft, a step.",
    "drafting_us": "Drafting: the drafter's own time a step. The target was replayed and has no times.",
}
_MEANINGS = {
    "speedup_by_category": "Speedup over vanilla: time per token, paired by case.",
    "mat_by_category": "MAT: mean accepted tokens, tokens per decode step (vanilla = 1).",
}
_ROW_KEYS = ("model", "suite", "method", "variant")

Row = dict[str, Any]  # of the summary
# title, column of the summary, format, whether the largest is bold
Columns = tuple[tuple[str, str, Callable[[float], str], bool], ...]
OVERALL_COLUMNS: Columns = (
    ("Cases", "cases", format_count, False),
    ("MAT", "mat", format_number, True),
    ("Tokens/s", "tokens_per_s", format_rate, True),
    ("Decode tokens/s", "decode_tokens_per_s", format_rate, True),
    ("Speedup", "speedup", format_number, True),
    ("Speedup over HF", "speedup_hf", format_number, True),
    ("Speedup (time only)", "time_only_speedup", format_number, True),
    ("Step ms", "time_only_step_ms", format_milliseconds, False),
    ("Predicted (modelled)", "predicted_speedup", format_number, True),
    ("Efficiency", "efficiency", format_number, False),
    ("Cost per million", "cost_per_million", format_number, False),
    ("Joules per token", "joules_per_token", format_number, False),
    ("Acceptance", "acceptance_rate", format_share, True),
    ("Tokens fed", "fed", format_number, False),
    ("Drafting \N{MICRO SIGN}s", "drafting_us", format_microseconds, False),
    ("Lossless", "lossless", format_share, False),
    ("Errors", "errors", format_count, False),
)
_STEPS: Columns = (
    ("Steps", "steps", format_count, False),
    ("Tokens", "tokens", format_count, False),
    ("Draft rate", "draft_rate", format_share, False),
    ("Mean draft", "mean_draft", format_number, False),
    ("Tokens fed", "tokens_fed", format_number, False),
    *((f"{phase.capitalize()} ms", f"{phase}_ms", format_milliseconds, False) for phase in PHASES),
    *((f"{phase.capitalize()} \N{MICRO SIGN}s", f"{phase}_us", format_microseconds, False) for phase in DRAFTER_PHASES),
    ("Prefill ms", "prefill_ms", format_milliseconds, False),
    ("State bytes", "state_bytes", format_count, False),
)


def caption(facts: Sequence[Facts], rows: pd.DataFrame) -> str:
    """Model, suite, dtype, device, cases and temperature: 'tiny on mini (float32, cpu), 60 cases, temperature 0.'"""
    settings: dict[str, None] = {}
    for fact in facts:
        here = rows[(rows["model"] == fact.model) & (rows["suite"] == fact.suite) & (rows["category"] == OVERALL)]
        counts = here["cases"] + here["errors"]
        where = f"{fact.model} on {fact.suite}" + (f" ({fact.ran_on})" if fact.ran_on else "")
        text = f"{where}, {counts.max() if len(counts) else 0} cases, {say_decoding([fact])}"
        text += ", first draft in the prefill" if fact.in_prefill else ""
        text += f", {say_loads(facts)}" if fact.load else ""
        settings[text + (f", predicted by the profile {fact.profile}" if fact.profile else "")] = None
    return "; ".join(settings) + "."


def build_tables(
    summary: pd.DataFrame, facts: Sequence[Facts], contests: Sequence[Contest] = ()
) -> dict[str, list[Table]]:
    """Name -> the table of lossless methods, then that of lossy ones where there are any.

    A figure that is blank in every row of the summary has no table. contests: the best of a column is bold only if it
    is told apart from the others in them.
    """
    lossy = summary["method"].isin({name for fact in facts for name in fact.lossy})
    parts = [(summary[~lossy], "")]
    if lossy.any():
        parts.append((summary[lossy], "Lossy methods: their output may differ from vanilla's. "))
    wanted = [name for name in _MEANINGS if summary.empty or summary[_figure(name)].notna().any()]
    tables: dict[str, list[Table]] = {name: [] for name in ("overall", *wanted)}
    where = caption(facts, summary)
    for rows, remark in parts:
        text = (where, f"{remark}{meaning(rows)} {INTERVALS}")
        tables["overall"].append(_overall("overall", rows, text, OVERALL_COLUMNS, contests))
        for name in wanted:
            few = f" {FEW}" if (rows["cases"] < MIN_CASES).any() else ""
            text = (where, f"{remark}{_forced(rows)}{_MEANINGS[name]} {INTERVALS}{few}")
            tables[name].append(_by_category(name, rows, text, contests))
    return tables


def meaning(rows: pd.DataFrame) -> str:
    """The explanation of the columns of the overall table that are shown."""
    figures = with_drafting(rows[rows["category"] == OVERALL])
    return " ".join(text for column, text in _OVERALL_MEANINGS.items() if rows.empty or figures[column].notna().any())


def _forced(rows: pd.DataFrame) -> str:
    """The remark on a model that was driven along recorded answers."""
    marked = rows["time_only_step_ms"].notna()
    some = "" if marked.all() else " in some rows, of runs with engine.kind=timed"
    return f"{TIME_ONLY.capitalize()}{some}. " if marked.any() else ""


def _figure(name: str) -> str:
    return name.removesuffix("_by_category")


def steps_table(summary: pd.DataFrame) -> Table:
    """What happened in a mean step of each method, lossy ones too: sizes of drafts and where the time went."""
    text = ("", f"{_forced(summary)}Means a decode step (prefill: a turn), over all cases.")
    return _overall("steps", summary, text, _STEPS)


def _overall(
    name: str, rows: pd.DataFrame, text: tuple[str, str], wanted: Columns, contests: Sequence[Contest] = ()
) -> Table:
    rows = with_drafting(drop_repeated_rows(rows[rows["category"] == OVERALL]))  # the csv has them all
    names, entries = name_columns(rows), rows.to_dict("records")
    cells, best = [], set()
    for place, (_, column, write, bold) in enumerate(wanted):
        values = [float(entry[column]) for entry in entries]
        printed = [write(value) for value in values]
        cells.append([Cell(word, interval_of(entry, column)) for word, entry in zip(printed, entries, strict=True)])
        if bold:
            found = best_of(entries, values, printed, partial(is_alone, contests, OVERALL, column))
            best |= {(row, place + len(names)) for row in found}
    header = (*names, *(entry[0] for entry in wanted))
    table = Table(name, *text, header, tuple(zip(*names.values(), *cells, strict=True)), frozenset(best), len(names))
    return without_blanks(table)


def _by_category(name: str, rows: pd.DataFrame, text: tuple[str, str], contests: Sequence[Contest]) -> Table:
    figure = _figure(name)
    rows = drop_repeated_rows(rows)
    keyed = {tuple(row[key] for key in (*_ROW_KEYS, "category")): row for row in rows.to_dict("records")}
    shown = rows.drop_duplicates(list(_ROW_KEYS))
    shown = shown[
        ~shown["method"].isin([VANILLA, CONTROL]) | (shown["variant"] == "")
    ]  # not a row of ones for each run
    names = name_columns(shown)
    cells, best = [], set()
    categories = _categories(rows)
    named = shown.to_dict("records")
    for place, category in enumerate(categories):
        entries = [keyed.get((*(row[key] for key in _ROW_KEYS), category), {}) for row in named]
        values = [float(entry.get(figure, float("nan"))) for entry in entries]
        printed = [mark_few(format_number(value), entry) for value, entry in zip(values, entries, strict=True)]
        cells.append([Cell(word, interval_of(entry, figure)) for word, entry in zip(printed, entries, strict=True)])
        found = best_of(named, values, printed, partial(is_alone, contests, category, figure))
        best |= {(row, place + len(names)) for row in found}
    header = (*names, *categories)
    stacked = tuple(zip(*names.values(), *cells, strict=True))
    return Table(name, *text, header, stacked, frozenset(best), len(names), spread=False)


def _categories(rows: pd.DataFrame) -> list[str]:
    """The categories as columns, overall last."""
    return [*category_order(rows.loc[rows["category"] != OVERALL, "category"]), OVERALL]


def interval_of(row: Row, column: str) -> str:
    low, high = (float(row.get(f"{column}_{side}", float("nan"))) for side in ("low", "high"))
    return format_interval(low, high)


def best_of(
    rows: Sequence[Row], values: Sequence[float], printed: Sequence[str], alone: Callable[[Row], bool]
) -> list[int]:
    """Positions of the best of each model and suite; those that print alike are all best. The control is never best.

    alone: whether the best is told apart from the others; there is none where it is not.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(rows):
        if row["method"] != CONTROL and not math.isnan(values[place]):
            groups.setdefault((row["model"], row["suite"]), []).append(place)
    found: list[int] = []
    for places in groups.values():
        top = max(places, key=values.__getitem__)
        if len(places) > 1 and alone(rows[top]):
            found += [place for place in places if printed[place] == printed[top]]
    return found


def write_summary(findings: Findings, output: Path) -> list[Path]:
    """summary.csv, and tables/ as csv, md and tex. Returns the files."""
    summary, facts = findings.summary, findings.facts
    whole = _whole(summary)
    files = write_texts(output, {"summary.csv": to_csv(whole)})
    for name, tables in build_tables(summary, facts, findings.contests).items():
        files += write_tables(output, name, tables, **{name: _raw(name, whole, facts)})
    return files


def write_details(detail: Detail, output: Path, where: str = "") -> list[Path]:
    """The frames behind the step plots, unrounded, as tables/<name>.csv. Returns the files."""
    texts = {
        f"{name}.csv": to_csv(frame)
        for name, frame in detail.items()
        if len(frame) or name not in (LOADED, QUALITY, AUDIT)
    }
    if len(detail["tails"]):
        texts["tails.md"] = to_markdown(tails_table(detail["tails"], where))
    texts |= {f"{table.name}.md": to_markdown(table) for table in lengths_tables(detail["by_length"], where)}
    return write_texts(output / "tables", texts)


def _whole(summary: pd.DataFrame) -> pd.DataFrame:
    """Counts that may be blank as whole numbers: 4096, not 4096.0."""
    return summary.astype({"state_bytes": "Int64", "violations": "Int64"})


def _raw(name: str, summary: pd.DataFrame, facts: Sequence[Facts]) -> pd.DataFrame:
    """The figures behind a table, unrounded; ``lossy`` tells the second table's rows."""
    lossy = {method for fact in facts for method in fact.lossy}
    if name == "overall":
        rows = summary.loc[summary["category"] == OVERALL, [column for column in COLUMNS if column != "category"]]
        return rows.assign(lossy=rows["method"].isin(lossy))
    figure = _figure(name)
    parts = [figure, f"{figure}_low", f"{figure}_high"]
    wide = summary.set_index(list(KEYS))[parts].unstack("category")
    order = pd.MultiIndex.from_frame(summary[list(_ROW_KEYS)].drop_duplicates())
    wide = wide.reindex(order).swaplevel(axis=1)
    wide = wide.reindex(columns=[(category, part) for category in _categories(summary) for part in parts])
    wide.columns = [category + part.removeprefix(figure) for category, part in wide.columns]
    wide = wide.reset_index()
    return wide.assign(lossy=wide["method"].isin(lossy))


_TAILS_HEADINGS = {"first_token": "Time to first token", "burst": "Inter-token latency", "per_token": "Time per token"}
_TAILS_MEANING = (
    "Time to first token: from the request on. Inter-token latency: the wait for the next tokens, one step, however"
    " many it brings. Time per token: a request's decode time over its tokens. Percentiles in ms over all requests or"
    f" steps, the 99th from {MIN_VALUES} values on."
)


def tails_table(frame: pd.DataFrame, where: str) -> Table:
    """The figures as printed, a row a method. where: what was run."""
    columns: dict[str, list[Cell]] = {}
    for wait, share in itertools.product(WAITS, PERCENTILES):
        values = frame[f"{wait}_p{share}_ms"].astype(float)
        columns[f"{_TAILS_HEADINGS[wait]} p{share}"] = [Cell(format_number(value)) for value in values]
    return method_table("tails", (where, _TAILS_MEANING), frame, columns)
