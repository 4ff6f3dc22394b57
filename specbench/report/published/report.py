"""``specbench-report --published``: what was published beside what the runs measured, on the terminal and as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from specbench.report.build import default_output, read_findings
from specbench.report.data.findings import Findings
from specbench.report.published.figures import Figure, read_published
from specbench.report.published.match import Match, compare
from specbench.report.published.table import count_table, published_tables, verdicts, write_published
from specbench.report.tables.terminal import print_table


def show_published(directories: Sequence[Path], output: Path | None, console: Console) -> list[Path]:
    """Print the comparison and write it. Returns the files, none where nothing of the runs was published.

    Raises RunError where a directory holds no run.
    """
    findings = read_findings(directories)
    figures = read_published()
    matches = compare(findings, figures)
    if not matches:
        console.print(_nothing(findings, figures), markup=False, soft_wrap=True)
        return []
    tables = published_tables(matches, figures)
    for table in tables:
        print_table(table, console)
    console.print(verdicts(matches), markup=False)
    return write_published(matches, tables, output or default_output(findings))


def show_count(directories: Sequence[Path], console: Console) -> None:
    """Print how many figures were published and what it takes to measure them again. directories: may be none."""
    figures = read_published()
    matches: list[Match] = compare(read_findings(directories), figures) if directories else []
    print_table(count_table(figures, matches), console)


def _nothing(findings: Findings, figures: Sequence[Figure]) -> str:
    """What the runs have and what was published, where the two do not meet."""
    ran = ", ".join(dict.fromkeys(f"{facts.model} on {facts.suite}" for facts in findings.facts))
    suites = ", ".join(dict.fromkeys(figure.suite for figure in figures if figure.model and figure.method))
    return (
        f"No published figure is of these methods, as they were set, on this suite: got {ran}; published are {suites}."
    )
