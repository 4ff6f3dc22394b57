"""``specbench report RUN...``: write the report of one run, or of several together.

Some options do something else instead: they show figures of others next to a run's, or write a run
in others' files.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from specbench.commands import make_parser
from specbench.input import InputError, counts, file_path
from specbench.names import Plain, printable
from specbench.records.record import Sink
from specbench.records.store import RunError, read_manifest
from specbench.report.build import build_report, default_output, read_findings
from specbench.report.exchange import spec_bench
from specbench.report.exchange.formats import FORMATS, SAMPLES, export_run, show_imported
from specbench.report.locate import DEFAULT_RUN, find_runs
from specbench.report.plots import SCREEN
from specbench.report.published import (
    compare,
    describe_unmatched,
    published_tables,
    read_published,
    summarise_verdicts,
    write_published,
)
from specbench.report.sinks import check_sinks, send_report
from specbench.report.table import Table
from specbench.report.tables.modelled import crossover_table, prediction_table
from specbench.report.tables.terminal import (
    open_console,
    print_findings,
    print_page,
    print_table,
    print_warnings,
)
from specbench.screen import (
    DISK_FAULTS,
    DONE,
    FAILED,
    INTERRUPTED,
    USAGE,
    ending_as_interrupts,
    name_unwritten,
    shorten,
    showing,
)

_WRONG = {
    errno.EEXIST: "is a file; expected a folder",
    errno.EISDIR: "is a folder; expected a file",
}


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 1 the disk is full or the report is not sent, 2 wrong options or runs, 130
    interrupted.
    """
    options = _parser().parse_intermixed_args(argv)
    logging.basicConfig(level=logging.INFO)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(Plain("%(message)s"))
    try:
        with ending_as_interrupts():
            _check(options)
            instead = [INSTEAD[name] for name in INSTEAD if getattr(options, name)]
            for act in instead:
                act(options)
            return DONE if instead else _report(options)
    except KeyboardInterrupt:
        code, message = INTERRUPTED, "interrupted; the same command writes every file again"
    except InputError as error:
        code, message = USAGE, f"error: {error}"
    except OSError as error:
        code = FAILED if error.errno in DISK_FAULTS else USAGE
        wrong = _WRONG.get(error.errno or 0, f"cannot be used ({error.strerror or error})")
        option = "--export-answers" if options.export_answers else "--output"
        file = name_unwritten(error)
        advice = f"{wrong}; change that, or write into another folder with {option} DIR"
        message = f"error: {file}{advice if error.filename else error.strerror or error}"
    with contextlib.suppress(OSError):  # the terminal may have gone
        print(printable(f"specbench report: {shorten(message)}"), file=sys.stderr)
    return code


def _check(options: argparse.Namespace) -> None:
    """Raises RunError for options that do not go together."""
    if options.answers and (options.runs or options.compat or options.export_answers):
        raise RunError(
            "--answers: reads answer files alone; expected no RUN, --compat or --export-answers"
            " with it"
        )
    if options.answers and len(options.answers) < 2:
        raise RunError("--answers: got one file; expected the baseline's and at least one method's")
    instead = [name for name in INSTEAD if getattr(options, name)]
    if instead and (
        options.profile or options.concurrency or options.heatmaps or options.passed or options.to
    ):
        named = ", ".join(f"--{name.replace('_', '-')}" for name in instead)
        raise RunError(
            "--profile, --passed, --to, --concurrency and --heatmap belong to the report; give"
            f" them without {named}"
        )
    if options.tokenizer and not (options.answers or options.compat or options.export == SAMPLES):
        raise RunError(
            "--tokenizer: counts tokens of texts; expected --answers, --compat or --export"
            f" {SAMPLES} with it"
        )
    if options.published and options.answers:
        raise RunError("--published: compares runs; expected no --answers with it")
    if options.dataset and Sink.HUB not in options.to:
        raise RunError("--dataset: of the results for the hub; expected --to hub with it")
    if options.heatmaps and not options.plots:
        raise RunError("--heatmap is a plot; leave out --no-plots")


def _chosen_runs(options: argparse.Namespace) -> list[Path]:
    return find_runs(options.runs or [DEFAULT_RUN])


def _print_files(files: Iterable[Path]) -> None:
    open_console().print("\n".join(map(str, files)), markup=False, soft_wrap=True)


def _report(options: argparse.Namespace) -> int:
    names = ("plots", "heatmaps", "profile", "concurrency", "style", "passed")
    console, runs = open_console(), _chosen_runs(options)
    # what is not a run is named before anything is shown
    manifests = [read_manifest(run) for run in runs]
    check_sinks(options.to, [manifest.config.written for manifest in manifests], options.dataset)
    with showing(console, "writing the report", "specbench.report.build"):
        report = build_report(
            runs, options.output, **{name: getattr(options, name) for name in names}
        )
    print_findings(report.findings, console, report.load)
    modelled = [
        prediction_table(report.findings),
        crossover_table(report.load) if report.load else None,
    ]
    for table in filter(None, modelled):
        print_table(table, console)
    console.print(f"\n{len(report.files)} files in {report.output}", markup=False, soft_wrap=True)
    print_page(report.output, console)
    return send_report(report, options.to, console, options.runs or [DEFAULT_RUN], options.dataset)


def _compare_spec_bench(options: argparse.Namespace) -> None:
    findings = read_findings(_chosen_runs(options))
    frame, notes = spec_bench.compare(findings, options.tokenizer)
    table = spec_bench.compare_table(frame, findings)
    files = spec_bench.write_compat(frame, table, options.output or default_output(findings))
    _print_noted(table, notes)
    _print_files(files)


def _score_answers(options: argparse.Namespace) -> None:
    baseline, *methods = options.answers
    frame, notes = spec_bench.score_files(baseline, methods, options.tokenizer)
    table = spec_bench.files_table(frame, baseline)
    _print_noted(table, notes)
    if options.output:
        _print_files(spec_bench.write_compat(frame, table, options.output))


def _print_noted(table: Table, notes: Sequence[str]) -> None:
    print_table(table)
    print_warnings(notes)


def _write_answers(options: argparse.Namespace) -> None:
    findings = read_findings(_chosen_runs(options))
    if (count := len({run.directory for run in findings.runs})) > 1:
        raise RunError(
            f"--export-answers: got {count} runs; expected one, its methods are the files' names"
        )
    runs = list(zip(findings.runs, findings.facts, strict=True))
    files = [
        file
        for run, facts in runs
        for file in spec_bench.export_answers(run, facts, options.export_answers)
    ]
    print_warnings([text for run, facts in runs for text in spec_bench.left_out(run, facts)])
    print("\n".join(map(str, files)))


def _export(options: argparse.Namespace) -> None:
    findings = read_findings(_chosen_runs(options))
    folder = options.output or default_output(findings) / "exchange"
    files, left = export_run(findings, options.export, folder, options.tokenizer)
    print_warnings([f"{text}; it has no file" for text in left])
    print("\n".join(map(str, files)))


def _show_import(options: argparse.Namespace) -> None:
    findings = read_findings(find_runs(options.runs)) if options.runs else None
    output = options.output or (default_output(findings) if findings else None)
    show_imported(getattr(options, "import"), findings, output)


def _compare_published(options: argparse.Namespace) -> None:
    console, figures = open_console(), read_published()
    findings = read_findings(_chosen_runs(options))
    matches = compare(findings, figures)
    if not matches:
        console.print(
            printable("\n".join(describe_unmatched(findings, figures))),
            markup=False,
            soft_wrap=True,
        )
        return
    tables = published_tables(matches, figures)
    print_table(tables[0], console)
    console.print(printable(summarise_verdicts(matches)), markup=False)
    _print_files(write_published(matches, tables, options.output or default_output(findings)))


# Option -> what it does instead of a report.
INSTEAD: dict[str, Callable[[argparse.Namespace], None]] = {
    "answers": _score_answers,
    "compat": _compare_spec_bench,
    "export_answers": _write_answers,
    "export": _export,
    "import": _show_import,
    "published": _compare_published,
}


def _parser() -> argparse.ArgumentParser:
    what = (
        "Write summary.csv, tables/, plots/ and report.html of a run, or of several runs together."
    )
    parser = make_parser("report", what)
    add = parser.add_argument
    add(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help=f"run directory, or a sweep's (default {DEFAULT_RUN})",
    )
    add(
        "--output",
        type=file_path,
        metavar="DIR",
        help="where to write (default: the run's own directory)",
    )
    add(
        "--profile",
        type=file_path,
        metavar="FILE",
        help=(
            "a latency profile, or an analytic one such as h100-8b: predicted speedup of every"
            " method, and efficiency where it was measured (default: that of the run's own device,"
            " model and engine, if profiles/ next to the run has it)"
        ),
    )
    add(
        "--concurrency",
        type=counts,
        default=(),
        metavar="B,B,...",
        help="modelled speedup when so many equal requests share a forward, such as: 1,8,32,128",
    )
    add(
        "--passed",
        nargs="+",
        type=file_path,
        default=(),
        metavar="FILE",
        help=(
            "results of a sandbox for code, JSON lines with task_id, method, passed (and round):"
            f" the share that passed next to the speed. --export {SAMPLES} writes what it tests;"
            " nothing is run here"
        ),
    )
    add("--no-plots", dest="plots", action="store_false", help="tables and page only")
    add(
        "--heatmap",
        dest="heatmaps",
        nargs=3,
        action="append",
        default=[],
        metavar=("METRIC", "X", "Y"),
        help=(
            "a column of summary.csv over two parameters that the runs vary, such as: mat"
            " pld.max_ngram pld.num_draft; may be given again. Where one or two vary, their plots"
            " are drawn anyway"
        ),
    )
    add(
        "--to",
        action="append",
        default=[],
        choices=[*Sink],
        help="send the report: mlflow, hub (results as .eval_results/*.yaml); may be given again",
    )
    add(
        "--dataset",
        metavar="OWNER/NAME",
        help="with --to hub: the data set of the results (default: the suite's)",
    )
    add(
        "--style",
        default=SCREEN,
        metavar="STYLE",
        help=(
            "of the plots: screen, paper (no title inside, papers' names, 3.3 inch wide), or a"
            " style file of matplotlib (*.mplstyle: fonts, and as figure.figsize the width)"
        ),
    )
    add = parser.add_argument_group("instead of a report").add_argument
    add(
        "--compat",
        choices=["spec_bench"],
        help="the run in Spec-Bench's formulas next to ours, and the difference",
    )
    add(
        "--published",
        action="store_true",
        help=(
            "published figures of papers and leaderboards next to the runs': how much and in what"
            " they differ"
        ),
    )
    add(
        "--export-answers",
        type=file_path,
        metavar="DIR",
        help="write Spec-Bench's answer files, one a method",
    )
    add(
        "--export",
        choices=[*FORMATS, SAMPLES],
        metavar="FORMAT",
        help=(
            "write the files of another harness, METHOD/FILE below --output:"
            f" {', '.join([*FORMATS, SAMPLES])}"
        ),
    )
    add(
        "--import",
        nargs="+",
        type=file_path,
        metavar="FILE",
        help=(
            "files of these formats, alone or with the methods of RUN, which are counted in the"
            " same way"
        ),
    )
    add(
        "--answers",
        nargs="+",
        type=file_path,
        metavar="FILE",
        help="Spec-Bench's table from answer files alone, the baseline's first",
    )
    add(
        "--tokenizer",
        type=file_path,
        metavar="DIR",
        help="folder of the model's tokenizer.json, if the run does not name one",
    )
    return parser
