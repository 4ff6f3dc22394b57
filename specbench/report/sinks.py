"""Sends a written report to places where teams look (report.to): MLflow, and files in the form of the Hugging Face hub.

The report is complete before. What a place cannot take changes the exit code and nothing else, and can be sent later.
``SINKS`` has each place by its name.

To MLflow a report is a run: the settings are parameters, each method's figures metrics, the files artifacts. MLflow's
own client logs it in a separate process (``mlflow_client.py``): its retries may take an hour, so they are limited, and
the process is ended. Repeated, it updates the same runs.

For the hub there is one file per method, ``.eval_results/*.yaml``, with its speedup and MAT, for a model's repository.
Nothing is uploaded.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
from rich.console import Console

from specbench.input import InputError, refuse_foreign
from specbench.names import file_name, hide_secrets, is_dataset, printable
from specbench.records.manifest import flatten
from specbench.records.record import CONTROL, OVERALL, VANILLA, Sink
from specbench.records.store import EVAL_RESULTS, PAGE
from specbench.report.build import Report
from specbench.report.columns import COLUMN
from specbench.report.frames.facts import Facts
from specbench.report.frames.findings import Findings
from specbench.report.frames.headline import find_headlines
from specbench.report.frames.reported import ReportedRun, find_remarks, keys_of, only
from specbench.report.label import format_bounded, format_share, label
from specbench.report.writers import to_text, write_texts
from specbench.screen import DONE, FAILED, shorten


class UnsentError(Exception):
    """A report could not be sent: the message names the place and the reason. The report itself is complete."""


def rows_by_run(findings: Findings) -> Iterator[tuple[ReportedRun, pd.DataFrame]]:
    """Yields each run, also one that has grown once, with the rows of all its cases."""
    for _, entries in itertools.groupby(findings.reported, lambda entry: entry.run.directory):
        parts = list(entries)
        model, suite = parts[0].place
        rows = findings.summary
        rows = rows[(rows["category"] == OVERALL) & (rows["model"] == model) & (rows["suite"] == suite)]
        yield parts[0], only(rows, keys_of(parts))


EXPERIMENT = "specbench"  # unless MLFLOW_EXPERIMENT_NAME is set
LONGEST_S = 300  # of one upload
# What is not set otherwise: the client waits minutes for a server that does not answer, and reports its own use.
CLIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
FIGURES = ("speedup", "mat", "tokens_per_s", "lossless", "acceptance_rate", "predicted_speedup", "cases", "errors")
_LONGEST = 500  # characters of a parameter, which every version of MLflow takes
_LEFT_OUT = ("report", "run")  # groups that change no record
_NOT_IN_NAMES = re.compile(r"[^\w .:/-]")
_ERROR = re.compile(r"\n(?=[\w.]*(?:Error|Exception): )")  # before the last line of a traceback
_REPORT = ("summary.csv", PAGE, "tables/*", "plots/*")


def log_to_mlflow(report: Report, dataset: str | None = None) -> str:
    """Log a report to the server or database of MLFLOW_TRACKING_URI; returns where it is, in a line.

    Of several runs each becomes a run of MLflow below one with the report over all. Raises UnsentError if that fails.
    """
    runs = [_describe(entry, rows) for entry, rows in rows_by_run(report.findings)]
    headlines = find_headlines(report.findings, report.load)
    note = "\n".join(" ".join((f"{each.lead}{each.rest}", each.under, *each.remarks)) for each in headlines)
    if len(runs) == 1:
        runs[0]["files"] = _artifacts(report.output, report.files)
    else:
        key = _digest([each["key"] for each in runs])
        over = {"specbench.runs": str(len(runs))}
        files = _artifacts(report.output, report.files)
        folder = Path(os.path.commonpath([run.directory.resolve() for run in report.findings.runs]))
        runs.insert(0, {"key": key, "name": folder.name or EXPERIMENT, "start_ms": None, "params": {}})
        runs[0] |= {"metrics": {}, "tags": over, "files": files}
    runs[0]["tags"]["mlflow.note.content"] = note
    return _run_client({"experiment": os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT), "runs": runs})


def _run_client(given: Mapping[str, Any]) -> str:
    client = [sys.executable, "-P", str(Path(__file__).with_name("mlflow_client.py"))]
    place = os.environ.get("MLFLOW_TRACKING_URI", "the database in this folder")
    try:
        done = subprocess.run(
            client,
            input=json.dumps(given),
            env=CLIENT | os.environ,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnsentError(hide_secrets(f"{place}: no answer within {LONGEST_S} s")) from None
    if done.returncode:
        reason = _ERROR.split(done.stderr)[-1] or f"the client ended with code {done.returncode}"
        raise UnsentError(hide_secrets(f"{place}: {' '.join(reason.split())}"))
    return hide_secrets(f"mlflow: {done.stdout.strip().splitlines()[-1]}")


def _describe(entry: ReportedRun, rows: pd.DataFrame) -> dict[str, Any]:
    """A run as the client takes it. key: the same for the same run and settings, which MLflow does not change."""
    run, about = entry.run, entry.run.about
    settings = {group: values for group, values in about.config.written.items() if group not in _LEFT_OUT}
    given = {name: value for name, value in flatten(settings).items() if value is not None}
    params = {_NOT_IN_NAMES.sub("_", name): str(value)[:_LONGEST] for name, value in given.items()}
    tags = {
        "model": entry.facts.model,
        "suite": entry.facts.suite,
        "dtype": entry.facts.dtype,
        "device": entry.facts.device,
        "engine": entry.facts.engine,
        "directory": run.directory.name,
        "created": about.created,
        "specbench": about.specbench,
        **{f"version.{_NOT_IN_NAMES.sub('_', name)}": value for name, value in about.versions.items()},
        "mlflow.source.git.commit": about.git.commit,
        "git.dirty": about.git.dirty,
    }
    return {
        "key": _digest([about.created, run.directory.name, params]),
        "name": run.directory.name,
        "start_ms": int(1000 * datetime.fromisoformat(about.created).timestamp()) if about.created else None,
        "params": params,
        "metrics": dict(_metrics(rows)),
        "tags": {name: str(value) for name, value in tags.items() if value not in (None, "")},
        "files": _artifacts(run.directory, [path for name in _REPORT for path in sorted(run.directory.glob(name))]),
    }


def _metrics(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """(METHOD/FIGURE, value) of the figures that the run has, with their bounds."""
    names = [name for figure in FIGURES for name in COLUMN[figure].names]
    for row in rows[rows["method"] != CONTROL].to_dict("records"):
        method = _NOT_IN_NAMES.sub("_", row["method"])
        yield from ((f"{method}/{name}", float(row[name])) for name in names if not math.isnan(row[name]))


def _artifacts(folder: Path, files: Sequence[Path]) -> list[tuple[str, str]]:
    """(file, its folder among the artifacts) of a report."""
    inside = [(path, path.resolve().relative_to(folder.resolve()).parent.as_posix()) for path in files]
    return [(str(path), "" if place == "." else place) for path, place in inside]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


TASKS = {"speedup": "speedup", "mat": "MAT"}  # figure, which is the id of its task -> its name in the notes
DIGITS = 4


def dataset_of(config: Mapping[str, Any]) -> str | None:
    """The hub's data set of a run's results: ``report.dataset``, else that of its questions."""
    report, suite = (config.get(group) or {} for group in ("report", "suite"))
    return report.get("dataset") or (suite.get("hub") or {}).get("repo")


def write_eval_results(report: Report, dataset: str | None = None) -> str:
    """Write the files next to the report; returns where, in a line. dataset: instead of the runs' own.

    Raises InputError for a file of the same name that specbench did not write.
    """
    texts = {}
    for entry, rows in rows_by_run(report.findings):
        of = dataset or dataset_of(entry.run.about.config.written)
        for row in rows[~rows["method"].isin([VANILLA, CONTROL])].to_dict("records"):
            if entries := list(_entries(entry, row, str(of))):
                name = file_name("-".join(filter(None, (row["model"], row["suite"], row["method"], row["variant"]))))
                texts[f"{name}.yaml"] = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False)
    folder = report.output / EVAL_RESULTS
    for name in texts:
        refuse_foreign(folder / name, b"specbench", "move it, or write into another folder with --output DIR")
    write_texts(folder, texts)
    return f"hub: {len(texts)} files in {folder}, for the model's repository"


def _entries(entry: ReportedRun, row: Mapping[str, Any], dataset: str) -> Iterator[EvalResultEntry]:
    """An entry for each figure that the method has."""
    about = entry.run.about
    for task, title in TASKS.items():
        if math.isnan(row[task]):
            continue
        conditions = " ".join((_conditions(entry.facts, row), "Measured by specbench.", *find_remarks([entry])))
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
    parts = (f"{row['cases']} cases", failed, f"temperature {facts.temperature:g}", facts.ran_on, facts.arrivals)
    return ", ".join(filter(None, (*parts, lossless or kept))) + "."


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
