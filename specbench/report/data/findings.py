"""Everything that a report says, before it is said: the figures of one or several runs, and the doubts about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from specbench.profile import Profile
from specbench.report.data.control import Control, read_control
from specbench.report.data.detail import Detail, read_detail
from specbench.report.data.doubts import find_doubts
from specbench.report.data.facts import Facts, read_facts
from specbench.report.data.predict import Prediction, predict
from specbench.report.data.profiles import foreign, is_own
from specbench.report.data.rows import unite
from specbench.report.data.summary import summarise_run
from specbench.report.data.variant import name_variants
from specbench.store import Run


@dataclass(frozen=True, slots=True)
class Findings:
    """runs, facts, controls: one entry a run. summary: the rows of ``summary.csv``. warnings: of all runs.

    variants: a mapping a run, method -> what tells it from the same method in the other runs. predictions: one a run,
    None where no latency profile was given or found.
    """

    runs: tuple[Run, ...]
    facts: tuple[Facts, ...]
    controls: tuple[Control | None, ...]
    summary: pd.DataFrame
    warnings: tuple[str, ...]
    variants: tuple[dict[str, str], ...]
    detail: Detail
    predictions: tuple[Prediction | None, ...] = ()

    @property
    def lossy(self) -> frozenset[str]:
        """Methods that promise no equal output."""
        return frozenset(name for facts in self.facts for name in facts.lossy)


def gather(runs: Sequence[Run], profiles: Sequence[Profile | None] | None = None) -> Findings:
    """Judge the runs. profiles: one a run. Raises RunError where a manifest lacks its model, suite or methods."""
    profiles = profiles or [None] * len(runs)
    facts = [
        replace(read_facts(run), profile=profile.label if profile else "")
        for run, profile in zip(runs, profiles, strict=True)
    ]
    predictions = [
        replace(predict(run, fact.peers | fact.unaccepted, profile), own=is_own(run, fact, profile))
        if profile
        else None
        for run, fact, profile in zip(runs, facts, profiles, strict=True)
    ]
    controls = [read_control(run) for run in runs]
    variants = name_variants(runs)
    frames = [summarise_run(*entry) for entry in zip(runs, variants, predictions, strict=True)]
    doubts = [
        [
            *find_doubts(run, fact, frame, control),
            *([*prediction.doubts(), *foreign(run, fact, prediction.profile)] if prediction else []),
        ]
        for run, fact, frame, control, prediction in zip(runs, facts, frames, controls, predictions, strict=True)
    ]
    summary = unite(frames)
    return Findings(
        runs=tuple(runs),
        facts=tuple(facts),
        controls=tuple(controls),
        summary=summary,
        warnings=tuple(_merge(runs, doubts)),
        variants=tuple(variants),
        detail=read_detail(runs, facts, variants, summary),
        predictions=tuple(predictions),
    )


def _merge(runs: Sequence[Run], doubts: Sequence[Sequence[str]]) -> Iterator[str]:
    """Each warning once, with the runs that it is about where there are several."""
    about: dict[str, list[str]] = {}
    for run, texts in zip(runs, doubts, strict=True):
        for text in texts:
            about.setdefault(text, []).append(run.directory.name)
    for text, names in about.items():
        source = "all runs" if len(names) == len(runs) else ", ".join(names)
        yield f"{source}: {text}" if len(runs) > 1 else text
