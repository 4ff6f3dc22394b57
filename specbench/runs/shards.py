"""One run on several workers: which parts of it are still to be done, and the merge once all are there.

A part is a run of its own below the run (``shards/k-of-n``), with ``suite.part=k/n`` and all that a run has: a lock, a
manifest, resuming. So a worker needs nothing of the others, and a start does what earlier ones have left.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from specbench.measure.plan import LASTING
from specbench.records.store import RECORDS, SHARDS
from specbench.runs.execution import OURS, set_aside
from specbench.runs.job import Job
from specbench.runs.manifest import shared
from specbench.runs.merge import is_whole, merge
from specbench.runs.part import part_name, split_part
from specbench.types import InputError

MOST = 10_000


def needs_shards(job: Job, directory: Path) -> bool:
    """Whether the run is to be made in shards; one that is merged, or has begun without them, goes on as it is.

    Raises InputError where it cannot be: a number of shards without sense, a method that learns across cases.
    """
    count = job.config.run.shards
    if not 1 <= count <= MOST:
        raise InputError(f"run.shards={count}: expected a number from 1 to {MOST}")
    for row in job.rows:
        if count > 1 and row.reset in LASTING:
            raise InputError(
                f"run.shards={count}: method.{row.name}.reset={row.reset} learns across cases, and a shard does not see"
                f" those of the others; expected run.shards=1, or method.{row.name}.reset=case"
            )
    return count > 1 and (job.config.measure.fresh or not (directory / RECORDS).exists())


def begin_shards(job: Job, directory: Path) -> dict[str, Path]:
    """Part -> directory of each shard, an earlier run set aside with ``measure.fresh``. Raises InputError."""
    if job.config.measure.fresh and any((directory / name).exists() for name in OURS):
        set_aside(directory)
    parts = split_part(job.config.suite.part, min(job.config.run.shards, len(job.suite.cases)))
    found = {part: directory / SHARDS / part_name(part) for part in parts}
    others = {path for path in (directory / SHARDS).glob("*-of-*") if path not in found.values()}
    if others:
        raise InputError(
            f"run.shards={job.config.run.shards}: {directory / SHARDS} has {min(others).name}; expected the number of"
            " shards that the run was begun with, or measure.fresh=true"
        )
    return found


def missing(job: Job, shards: Mapping[str, Path]) -> list[str]:
    """The parts that are not done."""
    return [part for part, directory in shards.items() if not is_whole(directory, job.whole)]


def join_shards(job: Job, shards: Mapping[str, Path], directory: Path) -> None:
    """Merge them into the run."""
    own = shared(job, {"config": job.resolved, "config_hash": job.digest})
    merge(list(shards.values()), directory, own=own)
