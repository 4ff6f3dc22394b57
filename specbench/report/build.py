"""Runs in, report out: every file of a report, written beside the run or where the caller says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from specbench.report.findings import Findings, gather
from specbench.report.page import write_page
from specbench.report.tables import write_tables
from specbench.store import RunError, read_run


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, where it was written, and the files."""

    findings: Findings
    output: Path
    files: tuple[Path, ...]

    @property
    def summary(self) -> pd.DataFrame:
        """The rows of ``summary.csv``."""
        return self.findings.summary

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before believing the figures."""
        return self.findings.warnings


def build_report(run_directories: Sequence[Path], output: Path | None = None, *, plots: bool = True) -> Report:
    """Write summary.csv, tables/, plots/ and report.html of one run or of several together.

    output: default the run's own directory; for several runs ``report`` beside the first. Raises RunError when a
    directory holds no run.
    """
    directories = list(dict.fromkeys(Path(directory).resolve() for directory in run_directories))
    if not directories:
        raise RunError("no run was given; expected at least one directory that `specbench` wrote (see results/latest)")
    if output is None:
        output = directories[0] if len(directories) == 1 else directories[0].parent / "report"
    findings = gather([read_run(directory) for directory in directories])
    output.mkdir(parents=True, exist_ok=True)
    files = write_tables(findings.summary, findings.facts, output)
    if plots:
        from specbench.report.plots import write_plots  # matplotlib is slow to import and not always wanted

        files += write_plots(findings.summary, findings.facts, output)
    files.append(write_page(findings, [path for path in files if path.suffix == ".png"], output))
    return Report(findings, output, tuple(files))
