"""A run that grows: a command with more methods, cases or rounds adds what is missing to what is there.

What is done is read from the records. A method that comes later runs with vanilla again beside it, because two figures
are paired within a block only; the manifest says so (``grown``), and a report pairs it with that vanilla.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from specbench.input import InputError
from specbench.measure import environment
from specbench.measure.identity import hide_identity
from specbench.measure.plan import Block, Held, plan_rest
from specbench.names import printable
from specbench.records.record import CaseRecord
from specbench.records.store import MANIFEST, RECORDS, parse_lines, read_manifest
from specbench.runs.digest import find_difference, fixed, of_methods
from specbench.runs.job import Job

LOCK = ".lock"


def blocks_of(records: Iterable[CaseRecord]) -> list[Held]:
    """Every block, in file order."""
    found: dict[int, tuple[set[str], int, set[str]]] = {}
    for record in records:
        cases, _, names = found.setdefault(record.block, (set(), record.round, set()))
        cases.add(record.case)
        names.add(record.method)
    return [((frozenset(cases), turn), frozenset(names)) for cases, turn, names in found.values()]


def before_failed(records: list[CaseRecord]) -> list[CaseRecord]:
    """Those of the blocks before the first one with a failed case."""
    first = min((record.block for record in records if record.error), default=None)
    return records if first is None else [record for record in records if record.block < first]


def refuse_settings(job: Job, manifest: Mapping[str, Any], directory: Path) -> None:
    """Raise InputError where the run of ``manifest`` has other settings than this job, or a method with others."""
    if manifest.get("config_hash") == job.digest:
        return
    there, here = (hide_identity(config) for config in (manifest.get("config", {}), job.resolved))
    one, two = of_methods(there), of_methods(here)
    kept, asked = ({name: each[name] for name in one if name in two} for each in (one, two))
    key, old, new = find_difference({"method": kept}, {"method": asked})
    if old == new:
        key, old, new = find_difference(fixed(there), fixed(here))
    if old != new or not there:
        what = f"{key}={old!r}, here {new!r}" if there else "its settings are not known"
        raise InputError(
            f"results directory {directory}: holds a run of another configuration ({what}); choose another with"
            " hydra.run.dir=..., or keep it aside with measure.fresh=true"
        )


def check_growth(job: Job, manifest: Mapping[str, Any], held: Sequence[Held], keep: int, directory: Path) -> None:
    """Raise InputError unless this job has all that the run has, and more. keep: blocks of ``held`` that stay."""
    if manifest.get("config_hash") == job.digest:
        return
    planned = {block.key for block in job.plan}
    absent = [name for name in manifest.get("methods", {}) if name not in {entry.name for entry in job.entries}]
    left_out = [(min(cases), turn) for (cases, turn), _ in held if (cases, turn) not in planned]
    fault = ""
    if absent:
        fault = f"it has method {absent[0]}, and this command has not; expected method=[...] with all of its methods"
    elif left_out:
        case, turn = left_out[0]
        fault = f"it has case {case} in round {turn}, and this command has not; expected all of its cases and rounds"
    elif keep < len(held):
        fault = "a method of it learns across cases (reset), so that more cases make other figures; expected a new run"
    if fault:
        raise InputError(
            f"results directory {directory}: holds a run of another configuration, which cannot grow into this one:"
            f" {fault}, hydra.run.dir=..., or measure.fresh=true"
        )


def growths(job: Job, earlier: Mapping[str, Any], rest: Sequence[Block]) -> list[dict[str, Any]]:
    """The manifest's ``grown``: what each later command has added to the run.

    block: its first one. methods: new ones. cases, rounds: how many more. again: blocks in which vanilla runs again.
    """
    found = list(earlier.get("grown", []))
    if not earlier or earlier.get("config_hash") == job.digest:
        return found
    rows = len(job.rows)
    entry = {
        "block": rest[0].index,
        "methods": [each.name for each in job.entries if each.name not in earlier.get("methods", {})],
        "cases": len(job.suite.cases) - int(earlier.get("suite", {}).get("cases") or 0),
        "rounds": job.config.measure.rounds - int(earlier.get("rounds") or 1),
        "again": sum(len(block.order) < rows for block in rest),
    }
    return [*found, entry]


def find_grown(job: Job, directory: Path) -> Path:
    """The run beside ``directory`` that lacks the least to be this job's; ``directory`` where there is none.

    Raises InputError where several workers are to add to it.
    """
    if job.config.measure.fresh or (directory / MANIFEST).exists():
        return directory
    _, found = min(_smaller_runs(job, directory), default=(0, directory))
    if found != directory and job.config.run.shards != 1:
        raise InputError(
            f"run.shards={job.config.run.shards}: {found} has a part of this run, and a run grows in one process;"
            " expected run.shards=1, which runs what is missing, or measure.fresh=true, which runs all of it"
        )
    if found != directory:
        print(printable(f"specbench: goes on with {found}, which has a part of this; measure.fresh=true begins anew"))
    return found


def _smaller_runs(job: Job, directory: Path) -> Iterator[tuple[int, Path]]:
    """(blocks that are missing, where) of each run on this hardware that may grow into this job's."""
    stem, resets = directory.name.rpartition("-")[0], {row.name: row.reset for row in job.rows}
    for path in sorted(directory.parent.glob(f"{stem}-*/{MANIFEST}")):
        run = path.parent
        if run.is_symlink() or ".old" in run.name:
            continue
        try:
            manifest = read_manifest(run)
            refuse_settings(job, manifest, run)
            with FileLock(run / LOCK, blocking=False):
                held = blocks_of(record for record, _ in parse_lines(run / RECORDS))
            keep, rest = plan_rest(job.plan, held, resets)
            check_growth(job, manifest, held, keep, run)
        except (InputError, Timeout, OSError):  # a run of another kind, or one that is being made
            continue
        if held and _hardware(manifest.get("machine", {})) == _hardware(hide_identity(environment.machine())):
            yield len(rest), run


def _hardware(machine: Mapping[str, Any]) -> list[Any]:
    return [machine.get("cpu"), *(gpu.get("name") for gpu in machine.get("gpus", []))]
