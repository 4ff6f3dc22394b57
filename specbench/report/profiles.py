"""Which latency profile a run is predicted with: the one that is named, else its own machine's, where it lies near."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specbench.profile import Profile, ProfileError, device_name, find_profile, read_profile
from specbench.report.facts import read_facts
from specbench.store import Run, RunError

FOLDER = "profiles"


def choose_profiles(runs: Sequence[Run], named: Path | None) -> list[Profile | None]:
    """A profile a run. Raises RunError when the named one cannot be used."""
    if named is None:
        return [_nearby(run) for run in runs]
    try:
        return [read_profile(named)] * len(runs)
    except ProfileError as error:
        raise RunError(f"--profile: {error}") from error


def _nearby(run: Run) -> Profile | None:
    """The profile of the run's device, model, engine and dtype in ``profiles/`` beside the run, or beside its sweep."""
    facts = read_facts(run)
    if not facts.timed or not facts.device:
        return None
    where = run.directory.resolve()
    folders = [parent / FOLDER for parent in (where.parent, where.parent.parent)]
    device = device_name(run.manifest.get("machine") or {}, facts.device)
    found = find_profile(folders, device, facts.model, facts.engine, facts.dtype, facts.parameters)
    return found[1] if found else None
