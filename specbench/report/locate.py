"""Finds the runs of a report: in folders, and for a notebook those that the environment names."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from specbench.profile import published_profiles
from specbench.records.store import MANIFEST, SET_ASIDE, RunError, read_manifest

DEFAULT_RUN = Path("results/latest")
RUN, PROFILE = "SPECBENCH_RUN", "SPECBENCH_PROFILE"


def find_runs(directories: Sequence[Path]) -> list[Path]:
    """The directories; one without a manifest, such as a sweep's, is replaced by the runs directly
    in it, no links.

    Raises RunError if the newest run is wanted and no run exists.
    """
    if DEFAULT_RUN in directories and not DEFAULT_RUN.exists():
        raise RunError(
            f"{DEFAULT_RUN}: there is no run here yet; expected a run's directory; `specbench`"
            " makes one"
        )
    found: list[Path] = []
    for directory in directories:
        inside = (
            []
            if (directory / MANIFEST).is_file()
            else [path.parent for path in directory.glob(f"*/{MANIFEST}")]
        )
        runs = [run for run in inside if not SET_ASIDE.search(run.name) and not run.is_symlink()]
        found += sorted(runs, key=_start) or [directory]
    return found


def _start(run: Path) -> tuple[str, int, str]:
    """The order in which a sweep's jobs ran; of jobs that began together, 2 comes before 10."""
    number = int(run.name) if run.name.isdecimal() else sys.maxsize
    return read_manifest(run).created, number, run.name


def chosen_runs() -> list[Path]:
    """The runs or sweeps in the environment variable SPECBENCH_RUN, several joined as in PATH; else
    ``results/latest``.

    Raises RunError if there is neither.
    """
    named = [Path(part) for part in os.environ.get(RUN, "").split(os.pathsep) if part]
    if named:
        return find_runs(named)
    found = [
        folder / DEFAULT_RUN
        for folder in (Path.cwd(), *Path.cwd().parents)
        if (folder / DEFAULT_RUN).is_dir()
    ]
    if not found:
        raise RunError(
            f"{RUN} is not set and there is no {DEFAULT_RUN} here or above; run `specbench`, or"
            " name a run"
        )
    return find_runs(found[:1])


def chosen_profile() -> Path | None:
    """The latency profile in SPECBENCH_PROFILE, else the first published one that is installed;
    None without any.
    """
    if os.environ.get(PROFILE):
        return Path(os.environ[PROFILE])
    return next(iter(published_profiles()), None)
