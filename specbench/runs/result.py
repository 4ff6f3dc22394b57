"""Runs from Python: ``from specbench import run, load``; the same settings, directories and files as the command's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from specbench.records.record import OVERALL, CaseRecord
from specbench.report.build import read_findings
from specbench.report.frames.findings import Findings
from specbench.report.locate import find_runs


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run. path: its directory. findings: all figures of its report, as the notebooks take them.

    code: of the command: 1 where a method failed, or tokens are not the target's; None where it was read.
    """

    path: Path
    findings: Findings
    code: int | None = None

    @property
    def summary(self) -> pd.DataFrame:
        """The rows of ``summary.csv``: one a category and method; ``category`` is ``overall`` for all cases."""
        return self.findings.summary

    @property
    def overall(self) -> pd.DataFrame:
        """One row a method, of all cases."""
        return self.summary[self.summary["category"] == OVERALL].reset_index(drop=True)

    @property
    def cases(self) -> pd.DataFrame:
        """One row a case, method and round: tokens, steps, MAT and seconds; blank where the case failed."""
        return pd.DataFrame([_row(record) for run in self.findings.runs for record in run.records])


def load(path: str | Path) -> Result:
    """Read a run's directory, also one that is not finished. Raises InputError naming what is wrong."""
    return Result(Path(path), read_findings(find_runs([Path(path)])))


def run(*settings: str) -> Result:
    """``specbench run SETTINGS``, with its display and report; goes on where an earlier call stopped.

    Raises InputError for settings that cannot be run; KeyboardInterrupt where the run was interrupted.
    """
    from specbench.runs.cli import job_at
    from specbench.runs.launch import INTERRUPTED, run_job

    job, directory = job_at(settings)
    code = run_job(job, directory)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    found = load(directory)
    return Result(found.path, found.findings, code)


def _row(record: CaseRecord) -> dict[str, object]:
    ok, turns = record.status == "ok", record.turns
    steps, accepted = sum(len(turn.accept) for turn in turns), sum(sum(turn.accept) for turn in turns)
    figures = {
        "tokens": sum(len(turn.ids) for turn in turns),
        "steps": steps,
        "mat": accepted / steps if steps else None,
        "seconds": sum(turn.wall_s for turn in turns),
    }
    named = {"case": record.case, "category": record.category, "method": record.method, "round": record.round}
    return {**named, "ok": ok, **(figures if ok else dict.fromkeys(figures))}
