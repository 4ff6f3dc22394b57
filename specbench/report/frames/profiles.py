"""The latency profile that a run is predicted with: the named one, else that of its own machine, beside the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specbench.input import InputError
from specbench.profile import Profile, device_name, find_profile, open_profile
from specbench.profile.profile import MEASURED
from specbench.records.record import EngineKind
from specbench.records.store import Run, RunError
from specbench.report.frames.facts import Facts

FOLDER = "profiles"


def choose_profiles(runs: Sequence[Run], facts: Sequence[Facts], named: Path | None) -> list[Profile | None]:
    """A profile a run. Raises RunError when the named one cannot be used."""
    if named is None:
        return [_nearby(*entry) for entry in zip(runs, facts, strict=True)]
    try:
        return [open_profile(named)] * len(runs)
    except InputError as error:
        raise RunError(f"--profile: {error}") from error


def is_own(run: Run, facts: Facts, profile: Profile) -> bool:
    """Whether what the run measured may be compared with what this profile predicts.

    Models are compared by size, not by name: random weights of a shape take that shape's time.
    """
    there = (profile.kind, profile.device, profile.dtype, profile.parameters)
    here = (MEASURED, read_device(run, facts), facts.dtype, facts.parameters)
    return there == here and profile.engine in _engines(facts)


def _engines(facts: Facts) -> tuple[str, ...]:
    """A model that is driven along a record is driven by one of them."""
    return (EngineKind.FAST, EngineKind.EAGER) if facts.time_only else (facts.engine,)


def read_device(run: Run, facts: Facts) -> str:
    """The name of the run's device, as a profile has it."""
    shared = run.section("parallel")
    return device_name(run.section("machine"), facts.device, shared.get("way"), shared.get("gpus"))


def _nearby(run: Run, facts: Facts) -> Profile | None:
    """The profile of the run's device, model, engine and dtype in ``profiles/`` beside the run, or beside its sweep."""
    if not facts.timed or not facts.device:
        return None
    where = run.directory.resolve()
    folders = [parent / FOLDER for parent in (where.parent, where.parent.parent)]
    for engine in _engines(facts):
        found = find_profile(folders, read_device(run, facts), facts.model, engine, facts.dtype, facts.parameters)
        if found:
            return found[1]
    return None
