"""Every file of a report, from run directories; written next to the run or into a given folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from specbench.input import refuse_foreign
from specbench.records.store import Run, RunError, open_run, remove_partials
from specbench.report.frames.detail import AUDIT, LOADED, OBJECTIVE, QUALITY
from specbench.report.frames.facts import choose_profiles, read_facts, split_grown
from specbench.report.frames.findings import Findings, gather
from specbench.report.frames.headline import find_headlines
from specbench.report.frames.load import Load, model_load
from specbench.report.frames.sweep import asked_grids, default_curves, default_grids
from specbench.report.frames.trials import Tally, Trials, read_passed, read_trials, with_passed
from specbench.report.page.page import write_page
from specbench.report.page.tokens import keep_pieces
from specbench.report.plots import SCREEN, check_style
from specbench.report.tables.detail import (
    audit_tables,
    objective_tables,
    quality_tables,
    served_tables,
    shards_tables,
)
from specbench.report.tables.modelled import crossover_table
from specbench.report.tables.pairs import pair_frame
from specbench.report.tables.summary import caption, write_details, write_summary
from specbench.report.writers import make_folder, to_csv, write_tables, write_texts

# of files that a report replaces
MARKS = {"summary.csv": b"model,suite,", "report.html": b"| specbench</title>"}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """The findings, the folder and the files of a report. load: None without a latency profile."""

    findings: Findings
    output: Path
    files: tuple[Path, ...]
    load: Load | None = None

    @property
    def summary(self) -> pd.DataFrame:
        """The rows of ``summary.csv``."""
        return self.findings.summary

    @property
    def warnings(self) -> tuple[str, ...]:
        """The limits of the figures."""
        return self.findings.warnings


def build_report(
    run_directories: Sequence[Path],
    output: Path | None = None,
    *,
    plots: bool = True,
    heatmaps: Sequence[tuple[str, str, str]] = (),
    profile: Path | None = None,
    concurrency: Sequence[int] = (),
    style: str = SCREEN,
    passed: Sequence[Path] = (),
) -> Report:
    """Write summary.csv, tables/, plots/ and report.html of one run or of several together.

    Args:
        run_directories: of the runs; each is read once.
        output: the folder; default the run's own directory, for several runs ``report`` next to the
            first.
        plots: whether plots are drawn.
        heatmaps: (metric, x, y), in addition to those that a sweep of two parameters gets without
            them.
        profile: a latency profile to predict speedups with; default the one of the run's own
            machine if there is one.
        concurrency: requests at once to model; default the usual ones where there is a profile.
        style: of the plots: screen, paper or a style file of matplotlib.
        passed: results of a sandbox for code, JSON lines (``frames.trials.read_passed``).

    Raises:
        RunError: A directory contains no run, or a heatmap or a load cannot be made.
        InputError: Rows of ``passed`` do not fit the run.
    """
    check_style(style)
    log.info("reading the records")
    findings = read_findings(run_directories, profile, passed)
    log.info("tables")
    under = model_load(findings, concurrency)
    output = output or default_output(findings)
    grids = [grid for wanted in heatmaps for grid in asked_grids(findings, *wanted)]
    output.mkdir(parents=True, exist_ok=True)
    for name, mark in MARKS.items():
        refuse_foreign(
            output / name, mark, "move it, or write into another folder with --output DIR"
        )
    remove_partials(output)
    files = write_summary(findings, output)
    where = caption(findings.facts, findings.summary)
    files += write_details(findings.detail, output, where)
    files += write_tables(output, LOADED, served_tables(findings.detail[LOADED], where))
    files += write_tables(output, OBJECTIVE, objective_tables(findings.detail[OBJECTIVE], where))
    files += write_tables(output, QUALITY, quality_tables(findings, where))
    files += write_tables(output, AUDIT, audit_tables(findings, where))
    files += write_tables(output, "shards", shards_tables(findings))
    grids += default_grids(findings)
    if plots:
        # it reports a home that cannot be written
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        # matplotlib is slow to import and not always wanted
        from specbench.report.plots.catalogue import write_plots
        from specbench.report.plots.sweep import write_curves, write_heatmaps

        log.info("plots")
        files += write_curves(default_curves(findings), output, style)
        files += write_plots(findings, output, under, style)
        files += write_heatmaps(grids, output, style)
    if under is not None:
        frames = {
            "crossover": under.speedups.merge(under.pays),
            "crossover_break_even": under.break_even,
        }
        files += write_tables(output, "crossover", [crossover_table(under)], **frames)
    files += keep_pieces(findings, output)
    files += write_texts(
        output / "tables", {"pairs.csv": to_csv(pair_frame(findings, find_headlines(findings)))}
    )
    log.info("page")
    pictures = [path for path in files if path.suffix == ".png"]
    files.append(write_page(findings, pictures, output, under, style != SCREEN))
    return Report(findings, output, tuple(files), under)


def read_findings(
    run_directories: Sequence[Path], profile: Path | None = None, passed: Sequence[Path] = ()
) -> Findings:
    """Read and check the runs of these directories, each once; profile, passed, errors: see
    ``build_report``.
    """
    directories = list(dict.fromkeys(Path(directory).resolve() for directory in run_directories))
    if not directories:
        raise RunError(
            "no run was given; expected at least one directory that `specbench` wrote (see"
            " results/latest)"
        )
    if passed and len(directories) > 1:
        raise RunError(
            f"--passed: got {len(directories)} runs; expected the one whose answers were tested"
        )
    opened = [each for directory in directories for each in _open(directory)]
    runs, trials = [run for run, _ in opened], [each for _, each in opened]
    trials = with_passed(trials, read_passed(passed)) if passed else trials
    facts = [read_facts(run, each.methods) for run, each in opened]
    return gather(runs, choose_profiles(runs, facts, profile), facts, trials)


def _open(directory: Path) -> list[tuple[Run, Trials]]:
    """A run and its trials; of one that has grown, those of each group of methods."""
    tally = Tally()
    run = open_run(directory, tally.add)
    parts = split_grown(run)
    return (
        [(part, read_trials(part.records)) for part in parts]
        if len(parts) > 1
        else [(run, tally.end(run.records))]
    )


def default_output(findings: Findings) -> Path:
    """One run's own directory; for several, ``report`` next to the first. Raises RunError if it is
    a link.
    """
    first = findings.runs[0].directory
    alone = len({run.directory for run in findings.runs}) == 1
    make_folder(found := first if alone else first.parent / "report")
    return found
