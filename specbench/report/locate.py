"""Where a notebook finds its runs and its profile: named in the environment, or the newest of the checkout."""

from __future__ import annotations

import os
from pathlib import Path

from specbench.report.cli import DEFAULT_RUN, find_runs
from specbench.store import RunError

RUN, PROFILE = "SPECBENCH_RUN", "SPECBENCH_PROFILE"
_PUBLISHED = Path("results/profiles/published")


def chosen_runs() -> list[Path]:
    """The runs or sweeps in the environment variable SPECBENCH_RUN, several joined as in PATH; else ``results/latest``.

    Raises RunError where there is neither.
    """
    named = [Path(part) for part in os.environ.get(RUN, "").split(os.pathsep) if part]
    if named:
        return find_runs(named)
    found = [folder / DEFAULT_RUN for folder in _here() if (folder / DEFAULT_RUN).is_dir()]
    if not found:
        raise RunError(f"{RUN} is not set and there is no {DEFAULT_RUN} here or above; run `specbench`, or name a run")
    return find_runs(found[:1])


def chosen_profile() -> Path | None:
    """The latency profile in SPECBENCH_PROFILE, else the first published one of the checkout; None without."""
    if os.environ.get(PROFILE):
        return Path(os.environ[PROFILE])
    files = [path for folder in _here() for path in sorted((folder / _PUBLISHED).glob("*.json"))]
    return files[0] if files else None


def _here() -> tuple[Path, ...]:
    return (Path.cwd(), *Path.cwd().parents)
