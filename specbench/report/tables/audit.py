"""What a drafter is worth, as tables: agreement, cost, and what it would take to win."""

from __future__ import annotations

from specbench.records.record import OVERALL
from specbench.report.frames.detail import AUDIT
from specbench.report.frames.findings import Findings
from specbench.report.frames.rows import KEYS
from specbench.report.tables.columns import INTERVALS, Heading, method_table
from specbench.report.text.label import format_milliseconds, format_number, format_share
from specbench.report.text.table import Table

_MEANING = (
    "First accepted: of the steps with a draft, those that accepted its first token or one of its first level."
    " In vocabulary: emitted tokens that the drafter can draft at all. Overlap: 1 less the total variation distance of"
    " the drafter's and the target's distribution behind the root, of cases whose drafts were kept."
    " Drafted token: the drafter's time over its nodes. To win: the MAT at this time a step, or the drafter's time a"
    " step at this MAT, with which the method is as fast as vanilla; below 0 the forward alone is too slow. As run and"
    " oracle: decode speedups by one price of forwards, a latency profile or the run's own mean steps; in each step"
    " the oracle drafts what was accepted, or nothing: no policy of draft lengths can do better on these drafts."
)
_COLUMNS = (
    Heading("MAT", "mat"),
    Heading("Tokens fed", "tokens_fed"),
    Heading("Draft \N{MICRO SIGN}s", "draft_ms", lambda value: format_number(1e3 * value, 1)),
    Heading("Speedup", "speedup"),
    Heading("Predicted (modelled)", "predicted_speedup"),
    Heading("First accepted", "first_accepted", format_share),
    Heading("Acceptance rate", "acceptance_rate", format_share),
    Heading("In vocabulary", "in_vocabulary", format_share),
    Heading("Overlap", "overlap"),
    Heading("Drafted token \N{MICRO SIGN}s", "drafted_us", lambda value: format_number(value, 1)),
    Heading("MAT to win", "break_even_mat"),
    Heading("Draft ms to win", "break_even_draft_ms", format_milliseconds),
    Heading("As run", "as_run"),
    Heading("Oracle", "oracle"),
)


def audit_tables(findings: Findings, where: str = "") -> list[Table]:
    """A row a method, of all cases; none without a method that drafts. The csv has the categories."""
    frame = findings.detail[AUDIT]
    overall = frame[frame["category"] == OVERALL]
    if overall.empty:
        return []
    shown = [column for column in findings.summary if column not in frame or column in KEYS]
    rows = overall.merge(findings.summary[shown], on=list(KEYS), how="left")
    return [method_table(AUDIT, (where, f"{_MEANING} {INTERVALS}"), rows, _COLUMNS)]
