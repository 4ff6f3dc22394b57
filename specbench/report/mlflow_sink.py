"""Logs a report to MLflow: parameters, metrics, artifacts; repeated, it updates the same run."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlflow
from pandas import DataFrame

from specbench.records.manifest import flatten
from specbench.records.record import CONTROL
from specbench.report.columns import COLUMN
from specbench.report.frames.reported import ReportedRun

KEY = "specbench.key"  # the tag by which a run is found again
_FIGURES = "speedup", "mat", "tokens_per_s", "lossless", "acceptance_rate", "predicted_speedup"
NAMES = [name for figure in (*_FIGURES, "cases", "errors") for name in COLUMN[figure].names]
OWN = {"mlflow.user": "", "mlflow.source.name": "specbench"}  # instead of the user's name and paths
_FACTS = ("model", "suite", "dtype", "device", "engine")
_LEFT_OUT = ("report", "run")  # groups that change no record
_NOT_IN_NAMES = re.compile(r"[^\w .:/-]")


def log_report(entries: Sequence[tuple[ReportedRun, DataFrame]], output: Path, note: str) -> str:
    """Log the report in ``output`` of runs, each with the rows of its cases; returns where it is.

    Of several runs each is below one with the report over all. note: the description.
    """
    experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "specbench")).name
    tags = {"mlflow.note.content": note}
    if len(entries) == 1:
        found = _log_run(*entries[0], output, tags)
    else:
        key = [(entry.run.directory.name, entry.run.about.created) for entry, _ in entries]
        folder = entries[0][0].run.directory.parent.name
        with _open_run(key, folder, output, tags | {"specbench.runs": len(entries)}) as found:
            for entry, rows in entries:
                _log_run(entry, rows, entry.run.directory, {})
    return f"experiment {experiment}, run {found} in {mlflow.get_tracking_uri()}"


def _log_run(entry: ReportedRun, rows: DataFrame, folder: Path, tags: Mapping[str, Any]) -> str:
    """Log one run, with the report in ``folder``; returns its id in MLflow."""
    about, name = entry.run.about, entry.run.directory.name
    settings = {key: value for key, value in about.config.written.items() if key not in _LEFT_OUT}
    given = {key: value for key, value in flatten(settings).items() if value is not None}
    params = {_NOT_IN_NAMES.sub("_", key): str(value)[:500] for key, value in given.items()}
    known = {key: getattr(entry.facts, key) for key in _FACTS}
    known |= {f"version.{key}": value for key, value in about.versions.items()}
    known |= {"created": about.created, "specbench": about.specbench}
    known |= {"mlflow.source.git.commit": about.git.commit, "git.dirty": about.git.dirty}
    with _open_run([about.created, name, params], name, folder, {**known, **tags}) as found:
        mlflow.log_params(params)
        for row in rows[rows["method"] != CONTROL].to_dict("records"):
            method = _NOT_IN_NAMES.sub("_", row["method"])
            names = [each for each in NAMES if not math.isnan(row[each])]
            mlflow.log_metrics({f"{method}/{each}": float(row[each]) for each in names})
    return found


@contextlib.contextmanager
def _open_run(key: object, name: str, folder: Path, tags: Mapping[str, Any]) -> Iterator[str]:
    """A run that is active in the context, new or known by its key, with a report's files."""
    own = OWN | {KEY: hashlib.sha256(repr(key).encode()).hexdigest()}
    found = mlflow.search_runs(filter_string=f"tags.`{KEY}` = '{own[KEY]}'", output_format="list")
    given = own | {key: str(value) for key, value in tags.items() if value not in (None, "")}
    known = found[0].info.run_id if found else None
    with mlflow.start_run(known, run_name=name, nested=True, tags=given) as run:
        for path in filter(Path.exists, (folder / "summary.csv", folder / "report.html")):
            mlflow.log_artifact(str(path))
        for path in filter(Path.is_dir, (folder / "tables", folder / "plots")):
            mlflow.log_artifacts(str(path), path.name)
        yield run.info.run_id
