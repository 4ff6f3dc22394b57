"""The tables of the summary: overall, by category and by step; their files, and the definition of
each figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import yaml

from specbench.records.record import CONTROL, OVERALL, VANILLA
from specbench.report.columns import COLUMN, OVERALL_COLUMNS, STEP_COLUMNS
from specbench.report.frames.cases import list_categories, overall
from specbench.report.frames.detail import OPTIONAL, Detail
from specbench.report.frames.facts import Facts, describe_decoding, describe_loads
from specbench.report.frames.findings import Findings
from specbench.report.frames.pairs import Contest, is_alone
from specbench.report.frames.summary import drop_repeated_rows, of_place, with_drafting
from specbench.report.label import raise_first
from specbench.report.table import (
    FEW,
    INTERVALS,
    MEANINGS,
    ROW,
    Heading,
    Row,
    Table,
    method_table,
    widen,
)
from specbench.report.tables.detail import lengths_tables, tails_table
from specbench.report.writers import to_csv, to_markdown, write_tables, write_texts
from specbench.stats import MIN_CASES, RESAMPLES

_GLOSSARY = yaml.safe_load(
    Path(__file__).parents[1].joinpath("glossary.yaml").read_text(encoding="utf-8")
)
DEFINITIONS = {
    term: text.format(resamples=RESAMPLES, least=MIN_CASES) for term, text in _GLOSSARY.items()
}
_BY_CATEGORY = {  # figure -> its explanation
    "speedup": "Speedup over vanilla: time per token, paired by case.",
    "mat": "MAT: mean accepted tokens, tokens per decode step (vanilla = 1).",
}


def caption(facts: Sequence[Facts], rows: pd.DataFrame) -> str:
    """Model, suite, dtype, device, cases and temperature: 'tiny on mini (float32, cpu), 60 cases,
    temperature 0'.
    """
    settings: dict[str, str] = {}
    for fact in facts:
        here = of_place(overall(rows), fact.model, fact.suite)
        counts = here["cases"] + here["errors"]
        where = f"{fact.model} on {fact.suite}" + (f" ({fact.ran_on})" if fact.ran_on else "")
        text = f"{where}, {counts.max() if len(counts) else 0} cases, {describe_decoding([fact])}"
        text += ", first draft in the prefill" if fact.in_prefill else ""
        text += f", {describe_loads(facts)}" if fact.load else ""
        text += f", predicted by the profile {fact.profile}" if fact.profile else ""
        later = (
            f", {', '.join(fact.methods)} added later (its tokens/s are of other blocks)"
            if fact.later
            else ""
        )
        settings[text] = settings.get(text, "") + later
    return "; ".join(text + later for text, later in settings.items()) + "."


def build_tables(
    summary: pd.DataFrame, facts: Sequence[Facts], contests: Sequence[Contest] = ()
) -> dict[str, list[Table]]:
    """Name -> the table of lossless methods, then that of lossy ones if there are any.

    A figure that is blank in every row of the summary has no table. contests: the best of a column
    is bold only if it differs from all others in them.
    """
    wanted = [figure for figure in _BY_CATEGORY if summary.empty or summary[figure].notna().any()]
    tables: dict[str, list[Table]] = {
        name: [] for name in ("overall", *(f"{each}_by_category" for each in wanted))
    }
    where = caption(facts, summary)
    for rows, remark in split_lossy(summary, facts):
        tables["overall"].append(
            _overall("overall", rows, (where, meaning(rows, remark)), OVERALL_COLUMNS, contests)
        )
        for figure in wanted:
            few = f" {FEW}" if (rows["cases"] < MIN_CASES).any() else ""
            text = (where, f"{remark}{_forced(rows, facts)}{_BY_CATEGORY[figure]} {INTERVALS}{few}")
            tables[f"{figure}_by_category"].append(_by_category(figure, rows, text, contests))
    return tables


def split_lossy(rows: pd.DataFrame, facts: Sequence[Facts]) -> list[tuple[pd.DataFrame, str]]:
    """The rows of lossless methods, then those of lossy ones if there are any, each with a
    remark.
    """
    lossy = rows["method"].isin({name for fact in facts for name in fact.lossy})
    others = (
        [(rows[lossy], "Lossy methods: their output may differ from vanilla's. ")]
        if lossy.any()
        else []
    )
    return [(rows[~lossy], ""), *others]


def meaning(rows: pd.DataFrame, remark: str = "") -> str:
    """The explanation of the columns of the overall table that are shown, the speedup's first."""
    figures = with_drafting(overall(rows))
    columns = sorted(OVERALL_COLUMNS, key=lambda column: column.figure != "speedup")
    shown = [
        each.caption
        for each in columns
        if each.caption and (rows.empty or figures[each.figure].notna().any())
    ]
    served = f"{MEANINGS['of_request']} " if (rows["load"].fillna("") != "").any() else ""
    return f"{remark}{served}{' '.join(shown)} {INTERVALS}"


def _forced(rows: pd.DataFrame, facts: Sequence[Facts]) -> str:
    """The remark on a model whose acceptance was not its own."""
    marked = rows["time_only_step_ms"].notna()
    some = "" if marked.all() else " in some rows, of runs with engine.kind=timed"
    notes = "; ".join(dict.fromkeys(each.time_note for each in facts if each.time_only))
    return f"{raise_first(notes)}{some}. " if marked.any() else ""


def steps_table(summary: pd.DataFrame, facts: Sequence[Facts]) -> Table:
    """The mean step of each method, lossy ones too: sizes of drafts and where the time went."""
    text = ("", f"{_forced(summary, facts)}Means a decode step (prefill: a turn), over all cases.")
    return _overall("steps", summary, text, STEP_COLUMNS)


def _overall(
    name: str,
    rows: pd.DataFrame,
    text: tuple[str, str],
    columns: Sequence[Heading],
    contests: Sequence[Contest] = (),
) -> Table:
    rows = with_drafting(drop_repeated_rows(overall(rows)))  # the csv has them all
    return method_table(
        name, text, rows, columns, alone=lambda *best: is_alone(contests, OVERALL, *best)
    )


def _by_category(
    figure: str, rows: pd.DataFrame, text: tuple[str, str], contests: Sequence[Contest]
) -> Table:
    rows = drop_repeated_rows(rows)
    wide = widen(rows, "category", (*COLUMN[figure].names, "cases"))
    # not a row of ones for each run
    wide = wide[~wide["method"].isin([VANILLA, CONTROL]) | (wide["variant"] == "")]
    names = (*list_categories(rows), OVERALL)
    columns = [Heading(name, f"{name} {figure}", bold=True, few=f"{name} cases") for name in names]

    def alone(column: str, best: Row) -> bool:
        return is_alone(contests, column.removesuffix(f" {figure}"), figure, best)

    return replace(
        method_table(f"{figure}_by_category", text, wide, columns, alone=alone),
        spread=False,
        shaded=True,
    )


def write_summary(findings: Findings, output: Path) -> list[Path]:
    """Write summary.csv, and its tables as csv with full figures, md and tex. Returns the files."""
    summary, facts = findings.summary, findings.facts
    # whole numbers, also where some are blank
    whole = summary.astype({"state_bytes": "Int64", "violations": "Int64"})
    files = write_texts(output, {"summary.csv": to_csv(whole)})
    for name, tables in build_tables(summary, facts, findings.contests).items():
        if name == "overall":
            raw = overall(whole).drop(columns="category")
        else:
            figure = name.removesuffix("_by_category")
            parts = COLUMN[figure].names
            every = (*list_categories(whole), OVERALL)
            names = {
                f"{one} {part}": one + part.removeprefix(figure) for one in every for part in parts
            }
            raw = (
                widen(whole, "category", parts)
                .reindex(columns=[*ROW, *names])
                .rename(columns=names)
            )
        raw = raw.assign(lossy=raw["method"].isin(findings.lossy))
        files += write_tables(output, name, tables, **{name: raw})
    return files


def write_details(detail: Detail, output: Path, where: str = "") -> list[Path]:
    """Write the frames behind the step plots, unrounded, as tables/<name>.csv. Returns the
    files.
    """
    shown = {name: frame for name, frame in detail.items() if len(frame) or name not in OPTIONAL}
    texts = {f"{name}.csv": to_csv(frame) for name, frame in shown.items()}
    if len(detail["tails"]):
        texts["tails.md"] = to_markdown([tails_table(detail["tails"], where)])
    texts |= {
        f"{table.name}.md": to_markdown([table])
        for table in lengths_tables(detail["by_length"], where)
    }
    return write_texts(output / "tables", texts)
