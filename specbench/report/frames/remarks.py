"""What keeps a figure from meaning what it looks like, in a sentence each, to stand beside it.

Unsafe times, random weights, a latency profile of a model of another size, and runs in one table that are no
comparison.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from specbench.report.frames.profiles import read_device
from specbench.report.frames.reported import ReportedRun

LIKE = 1.5  # sizes of models that differ by less are alike
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(b|m)(?![a-z])")
_UNITS = {"b": 1e9, "m": 1e6}
_RANDOM = "The weights are random: their answers are not a trained model's, so MAT and speedups say nothing of one."
_HIDDEN = ("questions", "weights")  # known by their prints, which tell a reader nothing
# What rows side by side have in common.
_SHARED: dict[str, Callable[[ReportedRun], Any]] = {
    "weights": lambda entry: entry.run.section("model").get("fingerprint"),
    "questions": lambda entry: entry.run.section("suite").get("sha256"),
    "temperature": lambda entry: f"{entry.facts.temperature:g}",
    "dtype": lambda entry: entry.facts.dtype,
    "engine": lambda entry: entry.facts.engine,
    "device": lambda entry: read_device(entry.run, entry.facts) if entry.facts.timed else None,
    "load": lambda entry: entry.facts.arrivals or "one request at a time",
    "first draft": lambda entry: "in the prefill" if entry.facts.in_prefill else "after it",
    "tokens a turn": lambda entry: entry.run.section("config", "decode").get("max_new_tokens"),
}


def find_remarks(entries: Sequence[ReportedRun]) -> tuple[str, ...]:
    """Those of one model and suite."""
    return tuple(dict.fromkeys([*_of_times(entries), *_of_each(entries), *_between(entries)]))


def _of_times(entries: Sequence[ReportedRun]) -> Iterator[str]:
    timed = [entry for entry in entries if entry.facts.timed]
    noise = [entry.control.noise for entry in timed if entry.control and entry.control.steady is False]
    reasons = ["other processes competed for the processor"] if any(map(_is_unsafe, timed)) else []
    if noise:
        some = "" if len(timed) == 1 else f" (unsteady: {len(noise)} of {len(timed)} runs)"
        reasons.append(f"vanilla against itself differs by up to {100 * max(noise):.1f} %{some}")
    if reasons:
        yield f"The times are unsafe: {' and '.join(reasons)}."


def _is_unsafe(entry: ReportedRun) -> bool:
    return any(warning.endswith("times are unsafe") for warning in entry.run.manifest.get("warnings", []))


def _of_each(entries: Sequence[ReportedRun]) -> Iterator[str]:
    for entry in entries:
        if "random" in map(entry.run.section("model").get, ("path", "weights")):
            yield _RANDOM
        if entry.prediction is None:
            continue
        profile, facts = entry.prediction.profile, entry.facts
        there = profile.parameters or read_size(profile.model)
        here = facts.parameters or read_size(facts.model)
        if there and here and not 1 / LIKE < there / here < LIKE:
            yield (
                f"The profile is of a model of another size: {profile.model} has {spell_size(there)} parameters,"
                f" {facts.model} {spell_size(here)}."
            )


def _between(entries: Sequence[ReportedRun]) -> Iterator[str]:
    found = []
    for what, read in _SHARED.items():
        values = dict.fromkeys(str(value) for entry in entries if (value := read(entry)) is not None)
        if len(values) > 1:
            found.append(what if what in _HIDDEN else f"{what} ({', '.join(values)})")
    if found:
        yield f"The runs differ in {' and '.join(found)}: methods of different runs are not compared by these figures."


def read_size(name: str) -> float | None:
    """The number of parameters that a model's name says, as 'vicuna-7b-v1.3'; None where it says none."""
    found = _SIZE.search(name.lower())
    return float(found[1]) * _UNITS[found[2]] if found else None


def spell_size(parameters: float) -> str:
    """'8.0 billion'."""
    unit, name = (1e9, "billion") if parameters >= 1e9 else (1e6, "million")
    return f"{parameters / unit:.1f} {name}"
