"""Trials and rows of the summary from records that are written by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.profile import Profile
from specbench.records.record import CaseRecord
from specbench.records.store import Run
from specbench.report import gather
from specbench.report.columns import COLUMNS
from specbench.report.frames.findings import Findings
from specbench.report.frames.trials import MethodTrials, read_trials


def tried(records: list[CaseRecord]) -> MethodTrials:
    """The trials of one method."""
    found = read_trials(records)
    return found.of(next(iter(found.methods), ""))


def found_in(
    records: list[CaseRecord], manifest: dict[str, Any], *profiles: Profile, name: str = "r"
) -> Findings:
    """The findings of one run, which no directory holds."""
    return gather([Run(Path(name), manifest, records)], profiles or None)


def rows_of(
    records: list[CaseRecord], manifest: dict[str, Any]
) -> dict[tuple[str, str], dict[str, Any]]:
    """(category, method) -> row of the summary of one run."""
    frame = found_in(records, manifest).summary
    assert tuple(frame.columns) == COLUMNS
    return {(row["category"], row["method"]): row for row in frame.to_dict("records")}


def of_overall(findings: Findings) -> pd.DataFrame:
    """The rows of all cases, by method."""
    return findings.summary.query("category == 'overall'").set_index("method")


def check(row: Mapping[str, Any], *blank: str, **wanted: float) -> None:
    """Figures of a row: those that are blank, and the values of others."""
    wanted |= dict.fromkeys(blank, math.nan)
    assert {name: row[name] for name in wanted} == pytest.approx(wanted, nan_ok=True)
