"""What a run would do, without doing it: ``specbench --dry-run``. Nothing is loaded but what a job needs, and nothing
is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.measure.plan import plan_rest
from specbench.records.record import CaseRecord
from specbench.records.store import MANIFEST, RECORDS, parse_lines, read_manifest
from specbench.runs.growth import before_failed, blocks_of
from specbench.runs.job import Job
from specbench.serving.settings import find_last_arrival
from specbench.types import InputError

GB, MB, MINUTE = 1e9, 1e6, 60.0


def preview(job: Job, directory: Path) -> list[tuple[str, str]]:
    """(what, how much) of a run of ``job`` in ``directory``, a line each."""
    records = list(_records_of(directory))
    if job.config.run.retry:
        records = before_failed(records)
    kept, rest = plan_rest(job.plan, blocks_of(records), {row.name: row.reset for row in job.rows})
    turns = sum(len(case.turns) * len(block.order) for block in rest for case in block.cases)
    lines = [
        ("run", f"{directory}: {_say_done(kept, len(rest))}"),
        ("model", f"{job.card.name}, {job.card.dtype}, {_say_memory(job)}"),
        ("methods", ", ".join(row.name for row in job.rows)),
        (
            "cases",
            f"{len(job.suite.cases)} of {job.suite.name}, rounds: {job.config.measure.rounds}, blocks: {len(job.plan)}",
        ),
        ("requests", f"{turns} left, of at most {job.config.decode.max_new_tokens} tokens each"),
    ]
    stretches = sum(len(block.order) for block in rest)
    if arriving_s := stretches * find_last_arrival(job.config.load)[1]:
        lines.append(("load", f"about {max(1, round(arriving_s / MINUTE))} min of arrivals in {stretches} stretches"))
    return [*lines, *_estimate(job, directory, records, turns)] if turns else lines


def _say_done(kept: int, left: int) -> str:
    return "new" if not kept else f"{kept} blocks are there, {left} are left" if left else "complete"


def _say_size(size: float) -> str:
    return f"{size / GB:.1f} GB" if size >= GB else f"{size / MB:.1f} MB"


def _say_memory(job: Job) -> str:
    """Of the weights' files, and of the keys and values of one request."""
    path, text = Path(job.card.path), job.card.config.get_text_config()
    if not hasattr(text, "hidden_size"):
        return "recorded answers, no weights"
    files = [*path.glob("*.safetensors"), *path.glob("*.bin")] if path.is_dir() else []
    weights = f"{_say_size(sum(file.stat().st_size for file in files))} of weights" if files else "weights not here"
    weights = "random weights" if job.card.path == "random" else weights
    heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", 0)
    size = getattr(text, "head_dim", None) or text.hidden_size // max(1, getattr(text, "num_attention_heads", 1))
    cache = 2 * text.num_hidden_layers * heads * size * job.card.context * (4 if job.card.dtype == "float32" else 2)
    return f"{weights}, {_say_size(cache)} of keys and values for {job.card.context} tokens"


def _estimate(job: Job, directory: Path, records: Sequence[CaseRecord], turns: int) -> list[tuple[str, str]]:
    """Time and size of the files, from what is done of this run or from the newest run of the same model beside it."""
    source = directory
    if not records:
        for source in _runs_beside(job, directory):
            if records := list(_records_of(source)):
                break
    spent = [turn.wall_s for record in records for turn in record.turns]
    if not spent or not sum(spent):
        return [("time", "unknown: there is no earlier run of this model here")]
    each_s, each_bytes = sum(spent) / len(spent), (source / RECORDS).stat().st_size / len(spent)
    answers = f"as in {source.name}, {len(spent)} requests"
    return [
        ("time", f"about {max(1, round(turns * each_s / MINUTE))} min ({answers})"),
        ("files", f"about {_say_size(turns * each_bytes)} of records"),
    ]


def _records_of(directory: Path) -> Iterator[CaseRecord]:
    if (directory / RECORDS).is_file():
        yield from (record for record, _ in parse_lines(directory / RECORDS))


def _runs_beside(job: Job, directory: Path) -> Iterator[Path]:
    """Of the same model, type and engine, the newest first."""
    wanted = (job.card.name, job.card.dtype)
    found: list[tuple[str, Path]] = []
    for path in directory.parent.glob(f"*/{MANIFEST}"):
        try:
            manifest: Mapping[str, Any] = read_manifest(path.parent)
        except (InputError, json.JSONDecodeError):
            continue
        model = manifest.get("model", {})
        if not path.parent.is_symlink() and (model.get("name"), model.get("dtype")) == wanted:
            found.append((str(manifest.get("created", "")), path.parent))
    yield from (path for _, path in sorted(found, reverse=True))
