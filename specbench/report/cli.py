"""The command ``specbench-report RUN...``: rebuild the report of one run, or one report of several."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from specbench.report.build import build_report
from specbench.report.terminal import open_console, print_findings
from specbench.store import MANIFEST, RunError, read_manifest

DEFAULT_RUN = Path("results/latest")
EXIT_OK, EXIT_USAGE = 0, 2
_SET_ASIDE = re.compile(r"\.old\d+$")  # what measure.fresh=true kept


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 written, 2 what was asked for cannot be done."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        report = build_report(find_runs(options.runs), options.output, plots=options.plots)
    except (RunError, OSError) as error:
        print(f"specbench-report: {error}", file=sys.stderr)
        return EXIT_USAGE
    console = open_console()
    print_findings(report.findings, console)
    console.print(f"\n{len(report.files)} files in {report.output}", markup=False, soft_wrap=True)
    return EXIT_OK


def find_runs(directories: Sequence[Path]) -> list[Path]:
    """The directories themselves; one without a manifest, such as a sweep's, stands for the runs directly in it."""
    found: list[Path] = []
    for directory in directories:
        inside = [] if (directory / MANIFEST).is_file() else directory.glob(f"*/{MANIFEST}")
        runs = [manifest.parent for manifest in inside if not _SET_ASIDE.search(manifest.parent.name)]
        found += sorted(runs, key=_start) or [directory]
    return found


def _start(run: Path) -> tuple[str, int, str]:
    """The order in which a sweep's jobs ran; of jobs that began together, 2 comes before 10."""
    number = int(run.name) if run.name.isdecimal() else sys.maxsize
    return str(read_manifest(run).get("created", "")), number, run.name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specbench-report",
        description="Write summary.csv, tables/, plots/ and report.html of a run, or of several runs together.",
    )
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        default=[DEFAULT_RUN],
        metavar="RUN",
        help=f"run directory, or a sweep's (default {DEFAULT_RUN})",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write (default: the run's own directory)")
    parser.add_argument("--no-plots", dest="plots", action="store_false", help="tables and page only")
    return parser
