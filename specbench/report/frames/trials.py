"""One row a record: a run's records as columns of plain counts and times, before anything is averaged.

They are built in one pass over the records, none of which is kept: a record takes about 200 bytes here, whatever the
length of its answer.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench.records.record import PHASES, CaseRecord
from specbench.report.frames.steps import open_spool
from specbench.report.frames.turns import Turns
from specbench.stats import over_rounds

BLANK = float("nan")
AUDITED = {  # share of each turn that a method's own figures state -> what it is a share of
    "in_vocabulary": lambda turn: len(turn.ids),
    "overlap": lambda turn: len(turn.accept),
}
DRAFTER_PHASES = ("draft", "update")  # in which a drafter runs, and nothing else
Column = NDArray[Any]
Columns = Mapping[str, Column]
_SUMMED = ("turns", "steps", "emitted", "proposed", "drafted_steps", "fed", "prefill_s", "violations")
_PHASES = tuple(f"{phase}_s" for phase in PHASES)
_KINDS = {  # array's letter -> columns
    "b": ("ok", "judged", "equal", "held", "drawn", "counted", "checked", "correct"),
    "i": (
        *(
            "record",
            "case",
            "category",
            "round",
            "stretch",
            "shard",
            "turns",
            "tokens",
            "steps",
            "emitted",
            "drafted_steps",
        ),
        *("violations", "positions", "ties"),
    ),
    "q": ("proposed", "fed", "state_bytes"),
    "d": ("prefill_s", "decode_s", "energy_j", *_PHASES, "drafter_s", "wall_s", "close_steps", "worst_gap", *AUDITED),
}


@dataclass(frozen=True, slots=True)
class MethodTrials:
    """A method's records. columns: (R,) each, as ``Trials`` lists them. turns: of those that count."""

    columns: Columns
    turns: Turns

    def __len__(self) -> int:
        """Records that count."""
        return len(self.turns)


@dataclass(frozen=True, slots=True)
class Trials:
    """The records of a run by method. cases, categories: names, which columns give by number.

    record: place in the run. tokens: emitted ids, the prefill's included. emitted: tokens of the decode steps.
    proposed: non-passenger nodes. drafted_steps: steps with a draft. fed: rows fed to the target. *_s: [s], a phase
    no turn recorded is NaN. time_s: prefills, then decoding; wall_s: the same turn by turn. drafter_s: in its phases.
    energy_j: [J], NaN where a turn has none. stretch: of a load, shard: of a merged run, -1 without.
    judged: compared with vanilla. held: equal to vanilla, or no id beyond the tolerance. close_steps: NaN where a
    record does not have them. drawn: whole drafts were recorded. counted: its case failed in no round.
    checked: its answer was compared with a reference's number; correct: and has it. in_vocabulary: emitted tokens that
    the drafter can draft, overlap: of the laws, summed over steps; NaN where a turn states none.
    """

    cases: Column
    categories: Column
    methods: Mapping[str, MethodTrials]

    def of(self, method: str) -> MethodTrials:
        """A method's; empty where it has no record."""
        return self.methods[method] if method in self.methods else MethodTrials(_Rows().arrays(), Turns(None))

    def columns(self, method: str) -> Columns:
        """A method's columns."""
        return self.of(method).columns

    def contexts(self) -> Counter[int]:
        """How many steps of all methods had so many tokens in the cache."""
        found: Counter[int] = Counter()
        for each in self.methods.values():
            found.update({context: count for (context,), count in each.turns.steps.count("context").items()})
        return found


class _Rows:
    """A method's columns while they grow."""

    def __init__(self) -> None:
        self._columns = {name: array(kind) for kind, names in _KINDS.items() for name in names}

    def append(self, row: Mapping[str, Any]) -> None:
        for name, column in self._columns.items():
            column.append(row[name])

    def arrays(self) -> Columns:
        found = {name: np.asarray(column) for name, column in self._columns.items()}
        found |= {name: found[name].view(bool) for name in _KINDS["b"]}
        return found | {"time_s": found["prefill_s"] + found["decode_s"]}


def read_trials(records: Iterable[CaseRecord]) -> Trials:
    """The trials of these records, which may be read twice."""
    tally = Tally()
    for record in records:
        tally.add(record)
    return tally.end(records)


class Tally:
    """The trials of the records so far."""

    def __init__(self, failed: Collection[tuple[str, str]] = ()) -> None:
        """failed: (method, case) that do not count, whatever their other rounds."""
        self._failed = failed
        self._spool = open_spool()
        self._cases: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._methods: dict[str, tuple[_Rows, Turns]] = {}
        self._count = 0

    def add(self, record: CaseRecord) -> None:
        """The next record."""
        if record.method not in self._methods:
            self._methods[record.method] = _Rows(), Turns(self._spool)
        rows, turns = self._methods[record.method]
        counted = record.status == "ok" and (record.method, record.case) not in self._failed
        about = {
            "record": self._count,
            "case": self._cases.setdefault(record.case, len(self._cases)),
            "category": self._categories.setdefault(record.category, len(self._categories)),
            "counted": counted,
        }
        rows.append(about | _count(record) | _times(record) | _judgement(record))
        if counted:
            turns.add(record)
        self._count += 1

    def end(self, records: Iterable[CaseRecord]) -> Trials:
        """The trials of all records. records: to go through again where a case failed after another round counted."""
        names = np.array(list(self._cases), dtype=object)
        found = {name: MethodTrials(rows.arrays(), turns) for name, (rows, turns) in self._methods.items()}
        failed, late = set[tuple[str, str]](), False
        for name, each in found.items():
            cases = each.columns["case"]
            wrong = np.unique(cases[~each.columns["ok"]])
            failed |= {(name, str(case)) for case in names[wrong]}
            late = late or bool((each.columns["counted"] & np.isin(cases, wrong)).any())
        if late:
            again = Tally(failed)
            for record in records:
                again.add(record)
            return again.end(records)
        return Trials(names, np.array(list(self._categories), dtype=object), found)


def _count(record: CaseRecord) -> dict[str, Any]:
    turns = record.turns
    return {
        "round": record.round,
        "stretch": -1 if record.stretch is None else record.block,
        "shard": -1 if record.shard is None else record.shard,
        "ok": record.status == "ok",
        "turns": len(turns),
        "tokens": sum(len(turn.ids) for turn in turns),
        "steps": sum(len(turn.accept) for turn in turns),
        "emitted": sum(sum(turn.accept) for turn in turns),
        "proposed": sum(sum(turn.proposed) for turn in turns),
        "drafted_steps": sum(len(turn.proposed) - turn.proposed.count(0) for turn in turns),
        "fed": sum(sum(turn.fed) for turn in turns),
        "state_bytes": record.state_bytes,
        "drawn": any(turn.trees for turn in turns),
        "checked": record.correct is not None,
        "correct": bool(record.correct),
    }


def _times(record: CaseRecord) -> dict[str, float]:
    turns = record.turns
    found = {
        "prefill_s": sum(turn.prefill_s for turn in turns),
        "decode_s": sum(turn.decode_s for turn in turns),
        "wall_s": sum(turn.wall_s for turn in turns),
        "energy_j": sum(BLANK if turn.energy_j is None else turn.energy_j for turn in turns),
        "drafter_s": sum(turn.phases_s.get(phase, 0.0) for turn in turns for phase in DRAFTER_PHASES),
    }
    for phase, column in zip(PHASES, _PHASES, strict=True):
        parts = [turn.phases_s[phase] for turn in turns if phase in turn.phases_s]
        found[column] = sum(parts) if parts else BLANK
    for name, size in AUDITED.items():
        found[name] = sum(turn.stats.get(name, BLANK) * size(turn) for turn in turns)
    return found


def _judgement(record: CaseRecord) -> dict[str, Any]:
    """Ids that differ from vanilla and were never teacher-forced may differ by more than a tie: not held."""
    verdict = record.lossless
    if verdict is None:
        return _NOT_JUDGED
    return {
        "judged": True,
        "equal": verdict.equal,
        "held": verdict.equal or (verdict.positions > 0 and verdict.violations == 0),
        "violations": verdict.violations,
        "close_steps": BLANK if verdict.close_steps is None else verdict.close_steps,
        "positions": verdict.positions,
        "ties": verdict.ties,
        "worst_gap": verdict.worst_gap,
    }


_NOT_JUDGED = dict.fromkeys(("judged", "equal", "held", "violations", "positions", "ties", "worst_gap"), 0) | {
    "close_steps": BLANK
}


def ratio(part: float, whole: float) -> float:
    """Blank where there is no whole, the part is not known, or the whole is too small to divide by."""
    found = float(part) / float(whole) if whole > 0 else BLANK
    return found if math.isfinite(found) else BLANK


def fold_cases(rows: Columns) -> Columns:
    """A row a case from a method's columns, in the order in which they came.

    Counts, phases and energy are summed over the rounds. time_s: [s] end to end, with tokens the median over the rounds
    (``stats.over_rounds``); decode_time_s with decode_tokens likewise. all_tokens: over all rounds. ok: False when any
    round failed. held, equal: in every judged round.
    """
    if len(np.unique(rows["case"])) == len(rows["case"]):
        named = {"all_tokens": "tokens", "decode_time_s": "decode_s", "decode_tokens": "emitted"}
        return dict(rows) | {name: rows[column] for name, column in named.items()}
    frame = pd.DataFrame(dict(rows))
    groups = frame.groupby("case", sort=False)
    folded = groups[list(_SUMMED)].sum()
    folded["category"] = groups["category"].first()
    folded["ok"] = groups["ok"].all()
    folded["all_tokens"] = groups["tokens"].sum()
    folded["state_bytes"] = groups["state_bytes"].max()
    folded[list(_PHASES)] = groups[list(_PHASES)].sum(min_count=1)
    for column in ("energy_j", "close_steps"):
        folded[column] = groups[column].sum().where(groups[column].count() == groups.size())
    folded["judged"] = groups["judged"].any()
    judged = frame[frame["judged"]].groupby("case", sort=False)
    for column in ("held", "equal"):
        folded[column] = judged[column].all().reindex(folded.index).fillna(False).astype(bool)
    folded[["time_s", "tokens"]] = _medians(groups, "time_s", "tokens")
    folded[["decode_time_s", "decode_tokens"]] = _medians(groups, "decode_s", "emitted")
    return {str(name): folded[name].to_numpy() for name in folded} | {"case": folded.index.to_numpy()}


def _medians(groups: Any, seconds: str, tokens: str) -> pd.DataFrame:
    values = {key: over_rounds(group[seconds], group[tokens]) for key, group in groups[[seconds, tokens]]}
    return pd.DataFrame.from_dict(values, orient="index")
