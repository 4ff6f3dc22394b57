"""Sends a written report to places where teams look: ``SINKS`` has each by its name of ``report.to``.

The report is complete before. What a place cannot take changes the exit code and nothing else, and can be sent later.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.input import InputError
from specbench.names import is_dataset
from specbench.records.record import Sink
from specbench.report.build import Report
from specbench.report.sinks.eval_results import dataset_of, write_eval_results
from specbench.report.sinks.measured import UnsentError
from specbench.report.sinks.mlflow_runs import log_to_mlflow
from specbench.report.writers import to_text
from specbench.screen import DONE, FAILED, shorten

SINKS: Mapping[str, Callable[[Report, str | None], str]] = {  # (report, data set of the hub) -> where it is
    Sink.MLFLOW: log_to_mlflow,
    Sink.HUB: write_eval_results,
}


def check_sinks(to: Iterable[str], configurations: Iterable[Mapping[str, Any]], dataset: str | None = None) -> None:
    """Raise InputError, before anything is measured or written, if a report cannot be sent.

    configurations: of the runs, as plain values. dataset: of the hub, instead of theirs.
    """
    if Sink.MLFLOW in to and find_spec("mlflow") is None:
        raise InputError("report.to=[mlflow]: mlflow is not installed; pip install 'specbench[mlflow]'")
    if dataset and not is_dataset(dataset):
        raise InputError(f"--dataset {dataset}: expected OWNER/NAME of a data set of the hub")
    for config in configurations if Sink.HUB in to and not dataset else ():
        if dataset_of(config) is None:
            name = config.get("suite", {}).get("name")
            raise InputError(
                f"report.to=[hub]: suite {name} is not a data set of the hub; name the one that the results are of:"
                " report.dataset=OWNER/NAME, or specbench report --dataset OWNER/NAME"
            )


def send_report(
    report: Report, to: Sequence[str], console: Console, runs: Iterable[str | Path], dataset: str | None = None
) -> int:
    """Send a report to these places and print where it is, or why not; returns the exit code.

    runs: the directories to name in the command that repeats it. dataset: of the hub, instead of the runs' own.
    """
    code = DONE
    for name in dict.fromkeys(to):
        try:
            text, style = SINKS[name](report, dataset), ""
        except UnsentError as error:
            own = ("--dataset", dataset) if dataset else ()
            again = shlex.join(["specbench", "report", *map(str, runs), "--to", name, *own])
            text = f"not sent to {name}: {shorten(str(error))}. The results are complete; to send them: {again}"
            style, code = "red", FAILED
        console.print(to_text(text, style=style), soft_wrap=True)
    return code
