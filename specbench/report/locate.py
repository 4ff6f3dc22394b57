"""The runs of a report; for a notebook also its profile: named in the environment, or the newest of the checkout."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from specbench.store import MANIFEST, RunError, read_manifest

DEFAULT_RUN = Path("results/latest")
RUN, PROFILE = "SPECBENCH_RUN", "SPECBENCH_PROFILE"
_PUBLISHED = Path("results/profiles/published")
_INSTALLED = Path(__file__).resolve().parents[1] / "published" / "profiles"
_SET_ASIDE = re.compile(r"\.old\d+$")  # what measure.fresh=true kept


def find_runs(directories: Sequence[Path]) -> list[Path]:
    """The directories; one without a manifest, such as a sweep's, is replaced by the runs directly in it."""
    found: list[Path] = []
    for directory in directories:
        inside = [] if (directory / MANIFEST).is_file() else directory.glob(f"*/{MANIFEST}")
        runs = [manifest.parent for manifest in inside if not _SET_ASIDE.search(manifest.parent.name)]
        found += sorted(runs, key=_start) or [directory]
    return found


def _start(run: Path) -> tuple[str, int, str]:
    """The order in which a sweep's jobs ran; of jobs that began together, 2 comes before 10."""
    number = int(run.name) if run.name.isdecimal() else sys.maxsize
    return str(read_manifest(run).get("created", "")), number, run.name


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
    """The latency profile in SPECBENCH_PROFILE, else the first published one of the checkout or the installed package;
    None without.
    """
    if os.environ.get(PROFILE):
        return Path(os.environ[PROFILE])
    folders = [*(folder / _PUBLISHED for folder in _here()), _INSTALLED]
    files = [path for folder in folders for path in sorted(folder.glob("*.json"))]
    return files[0] if files else None


def _here() -> tuple[Path, ...]:
    return (Path.cwd(), *Path.cwd().parents)
