"""A report as runs of MLflow: the settings as parameters, each method's figures as metrics, the files as artifacts.

MLflow's own client does it in a process of its own (``mlflow_client.py``): its retries may take an hour, so they are
limited, and the process is ended. Repeated, it updates the same runs.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.names import hide_secrets
from specbench.records.record import CONTROL
from specbench.records.settings import flatten
from specbench.records.store import PAGE
from specbench.report.build import Report
from specbench.report.columns import COLUMN
from specbench.report.frames.headline import find_headlines
from specbench.report.frames.reported import ReportedRun
from specbench.report.sinks.measured import UnsentError, rows_by_run

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
        runs.insert(0, {"key": key, "name": report.output.resolve().parent.name, "start_ms": None, "params": {}})
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
