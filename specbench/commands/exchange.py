"""The exchange options of ``specbench report``: figures of others next to a run's, and a run in others' files."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from specbench.names import printable
from specbench.records.store import RunError
from specbench.report.build import default_output, read_findings
from specbench.report.exchange.formats import export_run, show_imported
from specbench.report.exchange.spec_bench import (
    compare,
    compare_table,
    export_answers,
    files_table,
    left_out,
    score_files,
    write_compat,
)
from specbench.report.locate import DEFAULT_RUN, find_runs
from specbench.report.published import compare as find_matches
from specbench.report.published import published_tables, read_published, summarise_verdicts, write_published
from specbench.report.tables.terminal import open_console, print_table, print_warnings


def chosen_runs(options: argparse.Namespace) -> list[Path]:
    """The runs that the options name; by default the latest one. Raises RunError."""
    return find_runs(options.runs or [DEFAULT_RUN])


def compare_spec_bench(options: argparse.Namespace) -> None:
    """``--compat spec_bench``: a run in Spec-Bench's formulas next to ours."""
    findings = read_findings(chosen_runs(options))
    frame, notes = compare(findings, options.tokenizer)
    table = compare_table(frame, findings)
    files = write_compat(frame, table, options.output or default_output(findings))
    console = open_console()
    print_table(table, console)
    print_warnings(notes, console)
    console.print("\n".join(map(str, files)), markup=False, soft_wrap=True)


def write_answers(options: argparse.Namespace) -> None:
    """``--export-answers``: Spec-Bench's answer files of one run."""
    findings = read_findings(chosen_runs(options))
    if (count := len({run.directory for run in findings.runs})) > 1:
        raise RunError(f"--export-answers: got {count} runs; expected one, its methods are the files' names")
    runs = list(zip(findings.runs, findings.facts, strict=True))
    files = [file for run, facts in runs for file in export_answers(run, facts, options.export_answers)]
    print_warnings([text for run, facts in runs for text in left_out(run, facts)])
    print("\n".join(map(str, files)))


def score_answers(options: argparse.Namespace) -> None:
    """``--answers``: Spec-Bench's table from answer files alone."""
    baseline, *methods = options.answers
    frame, notes = score_files(baseline, methods, options.tokenizer)
    table = files_table(frame, baseline)
    console = open_console()
    print_table(table, console)
    print_warnings(notes, console)
    if options.output:
        console.print("\n".join(map(str, write_compat(frame, table, options.output))), markup=False, soft_wrap=True)


def export(options: argparse.Namespace) -> None:
    """``--export``: the files of another harness, one per method."""
    findings = read_findings(chosen_runs(options))
    folder = options.output or default_output(findings) / "exchange"
    files, left = export_run(findings, options.export, folder, options.tokenizer)
    print_warnings([f"{text}; it has no file" for text in left])
    print("\n".join(map(str, files)))


def show_import(options: argparse.Namespace) -> None:
    """``--import``: the files of other harnesses next to the methods of the runs, or alone."""
    findings = read_findings(find_runs(options.runs)) if options.runs else None
    output = options.output or (default_output(findings) if findings else None)
    show_imported(getattr(options, "import"), findings, output)


def compare_published(options: argparse.Namespace) -> None:
    """``--published``: the figures of papers next to those of the runs."""
    console, figures = open_console(), read_published()
    findings = read_findings(chosen_runs(options))
    matches = find_matches(findings, figures)
    if not matches:
        ran = ", ".join(dict.fromkeys(f"{facts.model} on {facts.suite}" for facts in findings.facts))
        suites = ", ".join(dict.fromkeys(figure.suite for figure in figures if figure.model and figure.method))
        text = "No published figure is of these methods, as they were set, on this suite: "
        console.print(printable(f"{text}got {ran}; published are {suites}."), markup=False, soft_wrap=True)
        return
    tables = published_tables(matches, figures)
    for table in tables:
        print_table(table, console)
    console.print(printable(summarise_verdicts(matches)), markup=False)
    files = write_published(matches, tables, options.output or default_output(findings))
    console.print("\n".join(map(str, files)), markup=False, soft_wrap=True)


# Option of ``specbench report`` -> what it does instead of a report.
INSTEAD: dict[str, Callable[[argparse.Namespace], None]] = {
    "answers": score_answers,
    "compat": compare_spec_bench,
    "export_answers": write_answers,
    "export": export,
    "import": show_import,
    "published": compare_published,
}
