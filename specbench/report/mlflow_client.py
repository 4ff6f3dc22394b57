"""Logs runs to MLflow: a process that gets them as JSON and prints where they are. It imports MLflow alone."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

KEY = "specbench.key"  # the tag by which a run is found again
MOST = 100  # parameters or tags in one request


def log_run(client: MlflowClient, experiment: str, given: dict[str, Any], parent: str | None) -> str:
    """Log one run, or update it; returns its id. It has the status RUNNING until everything is logged."""
    found = client.search_runs([experiment], filter_string=f"tags.`{KEY}` = '{given['key']}'", max_results=1)
    if found:
        run = found[0].info.run_id
        client.update_run(run, status="RUNNING")
    else:
        tags = {KEY: given["key"]}
        run = client.create_run(experiment, given["start_ms"], tags, given["name"]).info.run_id
    now = int(1000 * time.time())
    tags = given["tags"] | ({"mlflow.parentRunId": parent} if parent else {})
    values: dict[str, list[Any]] = {
        "metrics": [Metric(name, value, now, 0) for name, value in given["metrics"].items()],
        "params": [Param(name, value) for name, value in given["params"].items()],
        "tags": [RunTag(name, value) for name, value in tags.items()],
    }
    for kind, entries in values.items():
        for start in range(0, len(entries), MOST):
            batch: dict[str, Any] = {kind: entries[start : start + MOST]}
            client.log_batch(run, **batch)
    for file, folder in given["files"]:
        client.log_artifact(run, file, folder or None)
    client.set_terminated(run)
    return str(run)


def main() -> None:
    """Log the runs of standard input, the first as the parent of the others."""
    given, client = json.load(sys.stdin), MlflowClient()
    known = client.get_experiment_by_name(given["experiment"])
    experiment = known.experiment_id if known else client.create_experiment(given["experiment"])
    first = None
    for each in given["runs"]:
        run = log_run(client, experiment, each, first)
        first = first or run
    print(f"experiment {given['experiment']}, run {first} in {client.tracking_uri}")


if __name__ == "__main__":
    main()
