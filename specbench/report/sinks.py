"""Sends a written report to places where teams look (report.to): MLflow, and files in the form of
the Hugging Face hub.

The report is complete before. What a place cannot take changes the exit code and nothing else, and
can be sent later. ``SINKS`` has each place by its name.

For the hub there is one file per method, ``.eval_results/*.yaml``, with its speedup and MAT, for a
model's repository. Nothing is uploaded.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
from rich.console import Console

from specbench.input import InputError, refuse_foreign
from specbench.names import file_name, hide_secrets, is_dataset, printable
from specbench.records.record import Sink
from specbench.records.store import EVAL_RESULTS
from specbench.report.build import Report
from specbench.report.frames.cases import overall, without_references
from specbench.report.frames.facts import Facts
from specbench.report.frames.findings import Findings
from specbench.report.frames.headline import find_headlines
from specbench.report.frames.reported import ReportedRun, find_remarks, keys_of, only
from specbench.report.frames.summary import of_place
from specbench.report.label import format_bounded, format_share, label
from specbench.report.writers import to_text, write_texts
from specbench.screen import DONE, FAILED, shorten


class UnsentError(Exception):
    """A report could not be sent: the message names the place and the reason. The report itself is
    complete.
    """


def rows_by_run(findings: Findings) -> Iterator[tuple[ReportedRun, pd.DataFrame]]:
    """Yields each run, also one that has grown once, with the rows of all its cases."""
    for _, entries in itertools.groupby(findings.reported, lambda entry: entry.run.directory):
        parts = list(entries)
        rows = of_place(overall(findings.summary), *parts[0].place)
        yield parts[0], only(rows, keys_of(parts))


# Unless it is set otherwise: MLflow waits minutes for a server that does not answer, and reports
# its own use.
CLIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
HUSHED = {"MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}  # a URL may have a password


def log_to_mlflow(report: Report, dataset: str | None = None) -> str:
    """Log a report to the server or database of MLFLOW_TRACKING_URI; returns where it is, in a
    line.

    Raises UnsentError if that fails.
    """
    before = dict(os.environ)
    os.environ.update(CLIENT | before | HUSHED)
    os.environ.pop("MLFLOW_RUN_ID", None)  # of the caller's own run
    headlines = find_headlines(report.findings, report.load)
    note = "\n".join(
        " ".join((each.lead + each.rest, each.under, *each.remarks)) for each in headlines
    )
    try:
        from specbench.report.mlflow_sink import log_report

        return (
            "mlflow:"
            f" {hide_secrets(log_report([*rows_by_run(report.findings)], report.output, note))}"
        )
    except Exception as error:
        # of MLflow, its server or its database: they have no base of their own
        place = os.environ.get("MLFLOW_TRACKING_URI", "the database in this folder")
        raise UnsentError(hide_secrets(f"{place}: {type(error).__name__}: {error}")) from error
    finally:
        os.environ.clear()
        os.environ.update(before)


# figure, which is the id of its task -> its name in the notes
TASKS = {"speedup": "speedup", "mat": "MAT"}
DIGITS = 4


def dataset_of(config: Mapping[str, Any]) -> str | None:
    """The hub's data set of a run's results: ``report.dataset``, else that of its questions."""
    report, suite = (config.get(group) or {} for group in ("report", "suite"))
    return report.get("dataset") or (suite.get("hub") or {}).get("repo")


def write_eval_results(report: Report, dataset: str | None = None) -> str:
    """Write the files next to the report; returns where, in a line. dataset: instead of the runs'
    own.

    Raises InputError for a file of the same name that specbench did not write.
    """
    texts = {}
    for entry, rows in rows_by_run(report.findings):
        of = dataset or dataset_of(entry.run.about.config.written)
        for row in without_references(rows).to_dict("records"):
            if entries := list(_entries(entry, row, str(of))):
                name = file_name(
                    "-".join(
                        filter(None, (row["model"], row["suite"], row["method"], row["variant"]))
                    )
                )
                texts[f"{name}.yaml"] = yaml.safe_dump(
                    eval_result_entries_to_yaml(entries), sort_keys=False
                )
    folder = report.output / EVAL_RESULTS
    for name in texts:
        refuse_foreign(
            folder / name, b"specbench", "move it, or write into another folder with --output DIR"
        )
    write_texts(folder, texts)
    return f"hub: {len(texts)} files in {folder}, for the model's repository"


def _entries(entry: ReportedRun, row: Mapping[str, Any], dataset: str) -> Iterator[EvalResultEntry]:
    """An entry for each figure that the method has."""
    about = entry.run.about
    for task, title in TASKS.items():
        if math.isnan(row[task]):
            continue
        conditions = " ".join(
            (_conditions(entry.facts, row), "Measured by specbench.", *find_remarks([entry]))
        )
        figure = f"{title} {format_bounded(row[task], row[f'{task}_low'], row[f'{task}_high'])}"
        yield EvalResultEntry(
            dataset_id=dataset,
            task_id=task,
            value=round(row[task], DIGITS),
            date=about.created or None,
            notes=printable(f"{label(row['method'], row['variant'])}: {figure}, {conditions}"),
        )


def _conditions(facts: Facts, row: Mapping[str, Any]) -> str:
    """Returns '21 cases, temperature 0, float32, cpu, lossless 100 %.'."""
    lossless = "lossy" if row["method"] in facts.lossy else ""
    kept = "" if math.isnan(row["lossless"]) else f"lossless {format_share(row['lossless'])}"
    failed = f"{row['errors']} cases failed" if row["errors"] else ""
    parts = (
        f"{row['cases']} cases",
        failed,
        f"temperature {facts.temperature:g}",
        facts.ran_on,
        facts.arrivals,
    )
    return ", ".join(filter(None, (*parts, lossless or kept))) + "."


# (report, data set of the hub) -> where it is
SINKS: Mapping[str, Callable[[Report, str | None], str]] = {
    Sink.MLFLOW: log_to_mlflow,
    Sink.HUB: write_eval_results,
}


def check_sinks(
    to: Iterable[str], configurations: Iterable[Mapping[str, Any]], dataset: str | None = None
) -> None:
    """Raise InputError, before anything is measured or written, if a report cannot be sent.

    configurations: of the runs, as plain values. dataset: of the hub, instead of theirs.
    """
    if Sink.MLFLOW in to and find_spec("mlflow") is None:
        raise InputError(
            "report.to=[mlflow]: mlflow is not installed; pip install 'specbench[mlflow]'"
        )
    if dataset and not is_dataset(dataset):
        raise InputError(f"--dataset {dataset}: expected OWNER/NAME of a data set of the hub")
    for config in configurations if Sink.HUB in to and not dataset else ():
        if dataset_of(config) is None:
            name = config.get("suite", {}).get("name")
            raise InputError(
                f"report.to=[hub]: suite {name} is not a data set of the hub; name the one that the"
                " results are of: report.dataset=OWNER/NAME, or specbench report --dataset"
                " OWNER/NAME"
            )


def send_report(
    report: Report,
    to: Sequence[str],
    console: Console,
    runs: Iterable[str | Path],
    dataset: str | None = None,
) -> int:
    """Send a report to these places and print where it is, or why not; returns the exit code.

    runs: the directories to name in the command that repeats it. dataset: of the hub, instead of
    the runs' own.
    """
    code = DONE
    for name in dict.fromkeys(to):
        try:
            text, style = SINKS[name](report, dataset), ""
        except UnsentError as error:
            own = ("--dataset", dataset) if dataset else ()
            again = shlex.join(["specbench", "report", *map(str, runs), "--to", name, *own])
            text = (
                f"not sent to {name}: {shorten(str(error))}. The results are complete; to send"
                f" them: {again}"
            )
            style, code = "red", FAILED
        console.print(to_text(text, style=style), soft_wrap=True)
    return code
