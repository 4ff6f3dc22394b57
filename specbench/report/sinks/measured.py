"""What places outside get of a report: the rows of its summary, run by run; and the error if one does not take them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pandas as pd

from specbench.records.record import OVERALL
from specbench.report.frames.findings import Findings
from specbench.report.frames.reported import ReportedRun, keys_of, only


class UnsentError(Exception):
    """A report could not be sent: the message names the place and the reason. The report itself is complete."""


def rows_by_run(findings: Findings) -> Iterator[tuple[ReportedRun, pd.DataFrame]]:
    """Yields each run, also one that has grown once, with the rows of all its cases."""
    for _, entries in itertools.groupby(findings.reported, lambda entry: entry.run.directory):
        parts = list(entries)
        model, suite = parts[0].place
        rows = findings.summary
        rows = rows[(rows["category"] == OVERALL) & (rows["model"] == model) & (rows["suite"] == suite)]
        yield parts[0], only(rows, keys_of(parts))
