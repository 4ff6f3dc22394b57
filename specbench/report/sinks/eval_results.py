"""Results in the form of the Hugging Face hub, ``.eval_results/*.yaml``: files for a model's repository.

One file per method with its speedup and MAT. Nothing is uploaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

from specbench.input import refuse_foreign
from specbench.names import file_name, printable
from specbench.records.record import CONTROL, VANILLA
from specbench.records.store import EVAL_RESULTS
from specbench.report.build import Report
from specbench.report.frames.facts import Facts
from specbench.report.frames.reported import ReportedRun, find_remarks
from specbench.report.label import format_bounded, format_share, label
from specbench.report.sinks.measured import rows_by_run
from specbench.report.writers import write_texts

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
