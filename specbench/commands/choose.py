"""The choice of a method and its parameters for a GPU, a model and a load, from recorded steps and
a latency profile.

A suite's name stands for the newest run of it in results/: how much is accepted depends on the
model that answers, so only a run of that model shows it, while the speed of another GPU is the
profile's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from specbench.advise.schedule import ENGINES, export_schedule
from specbench.commands import make_parser
from specbench.commands.runs import find_every_run
from specbench.input import InputError, counts, file_path
from specbench.names import near, printable
from specbench.profile.analytic import GPUS, MODELS
from specbench.records.store import RECORDS, read_manifest
from specbench.runs.config import list_options

RESULTS = Path("results")


def main(argv: Sequence[str]) -> int:
    """Print the answer. Raises InputError."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = make_parser("choose", __doc__, formatter_class=kind)
    add = parser.add_argument
    add(
        "source",
        metavar="TRACE|RUN|SUITE",
        help="recorded answers, a run, a sweep's directory, or a suite's name",
    )
    add(
        "overrides",
        nargs="*",
        default=[],
        help="of specbench, for a trace: model.tokenizer=DIR ...; vanilla is always there",
    )
    add(
        "--gpu",
        default="h100",
        choices=list(GPUS),
        help="with --model: an analytic profile (default h100)",
    )
    add("--model", default="8b", choices=list(MODELS), help="parameters of the model (default 8b)")
    add(
        "--profile",
        type=file_path,
        metavar="FILE",
        help="a latency profile instead of --gpu and --model",
    )
    add(
        "--load",
        type=counts,
        default=(1, 8, 32),
        metavar="B,B,...",
        help="concurrent requests (default 1,8,32)",
    )
    add(
        "--export",
        action="append",
        default=[],
        choices=list(ENGINES),
        help=(
            "write the draft lengths by load as this engine reads them, METHOD/FILE below --output;"
            " again for another"
        ),
    )
    add(
        "--method",
        default="",
        help="with --export: the method (default: the best at the smallest load that pays)",
    )
    add(
        "--output",
        type=file_path,
        metavar="DIR",
        help=(
            "with --export: where to write (default: exchange/ in the run's directory, of a trace"
            " in this one)"
        ),
    )
    options = parser.parse_intermixed_args(argv)
    if (options.method or options.output) and not options.export:
        raise InputError(
            "--method, --output: of the files of --export; expected --export ENGINE with them"
        )
    source = _find_source(options.source)
    from specbench.advise.choose import advise, find_candidates, make_schedule  # brings torch
    from specbench.measure.environment import spell_busy
    from specbench.profile import find_pair, open_profile

    profile = (
        open_profile(options.profile)
        if options.profile
        else find_pair(f"{options.gpu}-{options.model}")
    )
    assert profile is not None  # the options are keys of its tables
    if not source.is_dir() and (busy := spell_busy()):  # drafters are timed
        print(f"specbench choose: warning: {busy}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        found = find_candidates(source, options.overrides, Path(folder))
        print(printable("\n".join(advise(found, profile, options.load))))
        if options.export:
            schedule = make_schedule(found, profile, options.load, options.method)
            for below, above in schedule.gaps:
                print(
                    f"specbench choose: warning: the length changes from {schedule.lengths[below]}"
                    f" to {schedule.lengths[above]} tokens between {below} and {above} requests;"
                    " add loads between them to --load",
                    file=sys.stderr,
                )
            output = options.output or (source if source.is_dir() else Path()) / "exchange"
            engines = list(dict.fromkeys(options.export))
            for path, name in zip(export_schedule(schedule, engines, output), engines, strict=True):
                print(printable(f"{path}: {ENGINES[name].start}"))
    return 0


def _find_source(named: str) -> Path:
    """The run, the trace, or the records of the newest run of a suite. Raises InputError if it does
    not exist.
    """
    suites = list_options("suite")
    if Path(named).exists():
        return Path(named)
    if named not in suites:
        raise InputError(
            f"{named}: no run, trace or suite; expected a path first, or a suite's name;"
            f" {near(named, suites)}"
        )
    found = [
        (manifest.created, run)
        for run in (find_every_run(RESULTS) if RESULTS.is_dir() else [])
        if (manifest := read_manifest(run)).suite.name == named
        and manifest.model.path != "random"
        and manifest.config.engine.kind not in ("replay", "timed")
    ]
    if not found:
        raise InputError(
            f"{named}: there is no run of this suite in {RESULTS}/; how much is accepted depends on"
            f" the model that answers: run `specbench model.path=MODEL suite={named}` first"
        )
    _, run = max(found)
    print(printable(f"answers of {run}"))
    return run / RECORDS
