"""The tables of the summary: overall, by category and by step; their files, and the definition of each figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from specbench.records.record import CONTROL, OVERALL, PHASES, VANILLA
from specbench.report.frames.detail import AUDIT, LOADED, QUALITY, Detail
from specbench.report.frames.facts import TIME_ONLY, Facts, say_decoding, say_loads
from specbench.report.frames.findings import Findings
from specbench.report.frames.pairs import Contest, is_alone
from specbench.report.frames.summary import COLUMNS, category_order, drop_repeated_rows, of_place, with_drafting
from specbench.report.frames.trials import DRAFTER_PHASES
from specbench.report.label import (
    BLANK,
    format_count,
    format_microseconds,
    format_milliseconds,
    format_rate,
    format_share,
)
from specbench.report.table import (
    FEW,
    INTERVALS,
    ROW,
    Heading,
    Row,
    Table,
    method_table,
    to_csv,
    to_markdown,
    widen,
    write_tables,
    write_texts,
)
from specbench.report.tables.detail import lengths_tables, tails_table
from specbench.stats import MIN_CASES, RESAMPLES

DEFINITIONS: dict[str, str] = {
    "Tokens": "Ids that were emitted, the prefill's included, up to and including the first end-of-sequence token. The "
    "harness counts them for every method alike; text is never tokenised again.",
    "Decode step": "One forward of the target after the prefill.",
    "MAT": "Mean accepted tokens: tokens emitted by decode steps over decode steps, all steps of all cases alike. "
    "Vanilla is 1. The prefill's token is in neither.",
    "Tokens/s": "All tokens over all time, prefill included. Decode tokens/s leaves out the prefill's time and token.",
    "Speedup": "Time per token of vanilla over time per token of the method, both summed over the cases that both "
    "finished. Each case ran under both in the same process. With several rounds a case's time is the median round.",
    "Speedup over HF": "The same against the library's own generate loop, the denominator of most papers.",
    "Predicted (modelled)": "Never measured: speedup of the decode steps alone, from the recorded tokens fed, the time "
    "that a latency profile gives a forward of so many at that context, and the drafter's own time.",
    "Speedup (time only)": "Accepted lengths were replayed: a model, maybe of random weights, was driven along "
    "recorded answers, so a step's time is real and what it emits is the record's. No speedup is claimed. A method "
    "that drafts from what the model computes has its time a step (Step ms) alone.",
    "Efficiency": "Measured speedup of the decode steps over what the profile's forwards alone would give: what a "
    "method loses to drafting and host time. Above 1 the profile is worse than what the run saw, or it is noise.",
    "Cost per million": "Of a million tokens, prefills included, at measure.price_per_hour.",
    "Joules per token": "What the GPUs in use took between the start and the end of every request, by the driver's own "
    "counters, over all tokens. Blank where nothing counts it.",
    "Staircase": "The decode speedup as a product: MAT, times vanilla's forward over the method's, times what drafting "
    "and the rest of a step leave of it (overhead), times what is in no phase (remainder).",
    "Tie": "Of two methods: the interval of their ratio, paired by case, holds 1. The best of a column is bold only "
    "where it ties with none.",
    "Time to first token": "From the request to its first token: the prefill.",
    "Inter-token latency": "The wait for the next tokens: one decode step, however many tokens it brings.",
    "Interval": f"95 % percentile bootstrap over cases ({RESAMPLES} resamples): how far the figure would move on other "
    f"prompts of this kind. None is given under {MIN_CASES} cases.",
    "A/A control": "Vanilla timed twice: the median of the blocks' ratios (under load, the stretches'). Its interval "
    "is that of re-timing this very suite; it should hold 1 and be narrower than 1 %. It says nothing about other "
    "prompts.",
    "Acceptance": "Accepted draft nodes over proposed ones. Blank for vanilla and for methods with their own loop.",
    "Position": "Depth in the draft, 1 right after the last emitted token. Accepted of drafted: of the steps whose "
    "draft was that deep. Accepted of reached: of those that had accepted every earlier position.",
    "Source": "The part of a method that a drafted token came from, as the method names it.",
    "Draft rate": "Decode steps with a draft over all decode steps.",
    "Tokens fed": "Mean rows a forward of the target: the last token and every node of the draft.",
    "Drafting": "Of a replayed target: mean microseconds a decode step in the drafter's own code, draft and update "
    "together. Vanilla's is what the loop and the clock cost by themselves. A lower bound: no forward runs in between "
    "and empties the processor's caches.",
    "Phases": "Mean milliseconds a decode step: prepare (masks and positions), draft, forward (the target), verify, "
    "update (cache and the method's own state). Prefill is milliseconds a turn.",
    "State": "The most bytes that the method kept between steps, weights apart.",
    "Lossless": "Cases whose ids equal vanilla's, or where every emitted id, judged with the whole answer in one "
    "forward, was the argmax or tied with it within the tolerance for the dtype. Blank when sampling.",
    "Errors": "Cases that failed. They are left out of the method's figures and of its pairing with vanilla.",
    BLANK: "Does not apply, or was not measured. It is never a zero.",
}


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
_BY_CATEGORY = {  # figure -> its explanation
    "speedup": "Speedup over vanilla: time per token, paired by case.",
    "mat": "MAT: mean accepted tokens, tokens per decode step (vanilla = 1).",
}
OVERALL_COLUMNS = (
    Heading("Cases", "cases", format_count),
    Heading("MAT", "mat", bold=True),
    Heading("Tokens/s", "tokens_per_s", format_rate, bold=True),
    Heading("Decode tokens/s", "decode_tokens_per_s", format_rate, bold=True),
    Heading("Speedup", "speedup", bold=True),
    Heading("Speedup over HF", "speedup_hf", bold=True),
    Heading("Speedup (time only)", "time_only_speedup", bold=True),
    Heading("Step ms", "time_only_step_ms", format_milliseconds),
    Heading("Predicted (modelled)", "predicted_speedup", bold=True),
    Heading("Efficiency", "efficiency"),
    Heading("Cost per million", "cost_per_million"),
    Heading("Joules per token", "joules_per_token"),
    Heading("Acceptance", "acceptance_rate", format_share, bold=True),
    Heading("Tokens fed", "fed"),
    Heading("Drafting \N{MICRO SIGN}s", "drafting_us", format_microseconds),
    Heading("Lossless", "lossless", format_share),
    Heading("Errors", "errors", format_count),
)
_STEPS = (
    Heading("Steps", "steps", format_count),
    Heading("Tokens", "tokens", format_count),
    Heading("Draft rate", "draft_rate", format_share),
    Heading("Mean draft", "mean_draft"),
    Heading("Tokens fed", "tokens_fed"),
    *(Heading(f"{phase.capitalize()} ms", f"{phase}_ms", format_milliseconds) for phase in PHASES),
    *(Heading(f"{name.capitalize()} \N{MICRO SIGN}s", f"{name}_us", format_microseconds) for name in DRAFTER_PHASES),
    Heading("Prefill ms", "prefill_ms", format_milliseconds),
    Heading("State bytes", "state_bytes", format_count),
)


def caption(facts: Sequence[Facts], rows: pd.DataFrame) -> str:
    """Model, suite, dtype, device, cases and temperature: 'tiny on mini (float32, cpu), 60 cases, temperature 0'."""
    settings: dict[str, None] = {}
    for fact in facts:
        here = of_place(rows[rows["category"] == OVERALL], fact.model, fact.suite)
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
    wanted = [figure for figure in _BY_CATEGORY if summary.empty or summary[figure].notna().any()]
    tables: dict[str, list[Table]] = {name: [] for name in ("overall", *map(_name, wanted))}
    where = caption(facts, summary)
    for rows, remark in split_lossy(summary, facts):
        tables["overall"].append(_overall("overall", rows, (where, meaning(rows, remark)), OVERALL_COLUMNS, contests))
        for figure in wanted:
            few = f" {FEW}" if (rows["cases"] < MIN_CASES).any() else ""
            text = (where, f"{remark}{_forced(rows)}{_BY_CATEGORY[figure]} {INTERVALS}{few}")
            tables[_name(figure)].append(_by_category(figure, rows, text, contests))
    return tables


def split_lossy(rows: pd.DataFrame, facts: Sequence[Facts]) -> list[tuple[pd.DataFrame, str]]:
    """The rows of lossless methods, then those of lossy ones where there are any, each with what to say of them."""
    lossy = rows["method"].isin({name for fact in facts for name in fact.lossy})
    others = [(rows[lossy], "Lossy methods: their output may differ from vanilla's. ")] if lossy.any() else []
    return [(rows[~lossy], ""), *others]


def meaning(rows: pd.DataFrame, remark: str = "") -> str:
    """The explanation of the columns of the overall table that are shown."""
    figures = with_drafting(rows[rows["category"] == OVERALL])
    shown = [text for column, text in _OVERALL_MEANINGS.items() if rows.empty or figures[column].notna().any()]
    return f"{remark}{' '.join(shown)} {INTERVALS}"


def _forced(rows: pd.DataFrame) -> str:
    """The remark on a model that was driven along recorded answers."""
    marked = rows["time_only_step_ms"].notna()
    some = "" if marked.all() else " in some rows, of runs with engine.kind=timed"
    return f"{TIME_ONLY.capitalize()}{some}. " if marked.any() else ""


def _name(figure: str) -> str:
    return f"{figure}_by_category"


def steps_table(summary: pd.DataFrame) -> Table:
    """What happened in a mean step of each method, lossy ones too: sizes of drafts and where the time went."""
    text = ("", f"{_forced(summary)}Means a decode step (prefill: a turn), over all cases.")
    return _overall("steps", summary, text, _STEPS)


def _overall(
    name: str,
    rows: pd.DataFrame,
    text: tuple[str, str],
    columns: Sequence[Heading],
    contests: Sequence[Contest] = (),
) -> Table:
    rows = with_drafting(drop_repeated_rows(rows[rows["category"] == OVERALL]))  # the csv has them all
    return method_table(name, text, rows, columns, alone=lambda *best: is_alone(contests, OVERALL, *best))


def _by_category(figure: str, rows: pd.DataFrame, text: tuple[str, str], contests: Sequence[Contest]) -> Table:
    rows = drop_repeated_rows(rows)
    wide = widen(rows, "category", (*_bounded(figure), "cases"))
    wide = wide[~wide["method"].isin([VANILLA, CONTROL]) | (wide["variant"] == "")]  # not a row of ones for each run
    columns = [Heading(name, f"{name} {figure}", bold=True, few=f"{name} cases") for name in _categories(rows)]

    def alone(column: str, best: Row) -> bool:
        return is_alone(contests, column.removesuffix(f" {figure}"), figure, best)

    return replace(method_table(_name(figure), text, wide, columns, alone=alone), spread=False)


def _bounded(figure: str) -> list[str]:
    return [figure, f"{figure}_low", f"{figure}_high"]


def _categories(rows: pd.DataFrame) -> list[str]:
    """The categories as columns, overall last."""
    return [*category_order(rows.loc[rows["category"] != OVERALL, "category"]), OVERALL]


def write_summary(findings: Findings, output: Path) -> list[Path]:
    """summary.csv, and tables/ as csv, md and tex. Returns the files."""
    summary, facts = findings.summary, findings.facts
    whole = summary.astype({"state_bytes": "Int64", "violations": "Int64"})  # whole numbers, also where some are blank
    files = write_texts(output, {"summary.csv": to_csv(whole)})
    for name, tables in build_tables(summary, facts, findings.contests).items():
        raw = _raw_overall(whole) if name == "overall" else _raw_by_category(name.removesuffix("_by_category"), whole)
        raw = raw.assign(lossy=raw["method"].isin(findings.lossy))
        files += write_tables(output, name, tables, **{name: raw})
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


def _raw_overall(summary: pd.DataFrame) -> pd.DataFrame:
    """The figures behind the table, unrounded."""
    return summary.loc[summary["category"] == OVERALL, [column for column in COLUMNS if column != "category"]]


def _raw_by_category(figure: str, summary: pd.DataFrame) -> pd.DataFrame:
    wide = widen(summary, "category", _bounded(figure))
    names = {
        f"{category} {part}": category + part.removeprefix(figure)
        for category in _categories(summary)
        for part in _bounded(figure)
    }
    return wide.reindex(columns=[*ROW, *names]).rename(columns=names)
