"""A run in shards: several workers share its cases, and their parts merge into the run.

A shard is a part of the run in its own directory below the run's (``shards/k-of-n``), with ``suite.part=k/n`` and
everything that a run has: a lock, a manifest, resuming. So a worker needs nothing of the others, and a second command
does what earlier ones have left.
"""

from __future__ import annotations

import functools
from pathlib import Path

from specbench.measure.plan import LASTING
from specbench.records.store import RECORDS, SHARDS
from specbench.runs.execution import OURS, locked, set_aside, share
from specbench.runs.job import Job
from specbench.runs.launch import print_unwritten, run_job
from specbench.runs.parts import is_whole, merge, part_name, split_part
from specbench.runs.sweep import print_failed, run_jobs, run_one
from specbench.screen import FAILED
from specbench.types import InputError

OF_SHARDS = ("suite.part=", "run.shards=", "measure.fresh=", "report.plots=", "hydra.sweep.dir=", "hydra.sweep.subdir=")


def needs_shards(job: Job, directory: Path) -> bool:
    """Whether the run is to be made in shards; one that is merged, or has begun without them, continues without them.

    Raises:
        InputError: a method learns across cases.
    """
    count = job.config.run.shards
    for row in job.rows:
        if count > 1 and row.reset in LASTING:
            raise InputError(
                f"run.shards={count}: method.{row.name}.reset={row.reset} learns across cases, and a shard does not see"
                f" those of the others; expected run.shards=1, or method.{row.name}.reset=case"
            )
    return count > 1 and (job.config.measure.fresh or not (directory / RECORDS).exists())


def run_shards(job: Job, directory: Path, name: str, overrides: list[str]) -> int:
    """Run the shards that are not done on Hydra's launcher, and merge all of them; returns the exit code."""
    with locked(directory):
        shards = _begin_shards(job, directory)

        def find_missing() -> list[str]:
            return [part for part, shard in shards.items() if not is_whole(shard, job.whole)]

        left = find_missing()
        own = [item for item in overrides if not item.startswith(OF_SHARDS)]
        own += [f"suite.part={','.join(left)}", "run.shards=1", "measure.fresh=false", "report.plots=false"]
        own += [f"hydra.sweep.dir={directory / SHARDS}", "hydra.sweep.subdir=${part_name:}"]
        worker = functools.partial(run_one, launch=str(job.launch), report=False)
        ended = run_jobs(worker, name, own)[0] if left else []
        print_failed(ended)
        if find_missing():
            return max([FAILED, *(job.code for job in ended)])
        about = share({"config": job.resolved, "config_hash": job.digest})
        try:
            merge(list(shards.values()), directory, own=about, part=job.config.suite.part)
        except OSError as error:  # a full disk; the shards are unchanged
            return print_unwritten(error, directory)
    return run_job(job, directory)


def _begin_shards(job: Job, directory: Path) -> dict[str, Path]:
    """Part -> directory of each shard; with ``measure.fresh`` an earlier run is set aside. Raises InputError."""
    if job.config.measure.fresh and any((directory / name).exists() for name in OURS):
        set_aside(directory)
    parts = split_part(job.config.suite.part, min(job.config.run.shards, len(job.source.suite.cases)))
    found = {part: directory / SHARDS / part_name(part) for part in parts}
    others = {path for path in (directory / SHARDS).glob("*-of-*") if path not in found.values()}
    if others:
        raise InputError(
            f"run.shards={job.config.run.shards}: {directory / SHARDS} has {min(others).name}; expected the number of"
            " shards that the run was begun with, or measure.fresh=true"
        )
    return found
