"""A run's records as columns with one row per record: plain counts and times, before anything is
averaged.

They are built in one pass over the records, none of which is kept: a record takes about 200 bytes
here, whatever the length of its answer. Which answers passed the tests of a user's sandbox is read
from JSON lines; code is never run.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import StrictBool, TypeAdapter
from typing_extensions import TypedDict

from specbench.input import InputError, numbered_lines, parse_as, read_file
from specbench.records.record import CONTROL, DRAFTER_PHASES, PHASES, CaseRecord, Count
from specbench.report.frames.steps import Turns, open_spool
from specbench.stats import over_rounds

BLANK = float("nan")
AUDITED = {  # share of each turn that a method's own figures state -> what it is a share of
    "in_vocabulary": lambda turn: len(turn.ids),
    "overlap": lambda turn: len(turn.accept),
}
Values = NDArray[Any]
Columns = Mapping[str, Values]
# of a loop: tokens of its period, its repetitions, and its tokens
MOST_PERIOD, LEAST_TIMES, LEAST_LOOP = 64, 4, 32
_COUNTS = (
    "steps",
    "emitted",
    "proposed",
    "drafted_steps",
    "fed",
    "repeated",
    "fresh_steps",
    "fresh_emitted",
)
_SUMMED = ("turns", *_COUNTS, "prefill_s", "violations")
_PHASES = tuple(f"{phase}_s" for phase in PHASES)
_KINDS = {  # array's letter -> columns
    "b": ("ok", "judged", "equal", "within", "drawn", "counted", "checked", "correct", "answered"),
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
        ),
        *(
            "drafted_steps",
            "repeated",
            "fresh_steps",
            "fresh_emitted",
            "violations",
            "positions",
            "ties",
        ),
    ),
    "q": ("proposed", "fed", "state_bytes"),
    "d": (
        *(
            "prefill_s",
            "decode_s",
            "energy_j",
            *_PHASES,
            "drafter_s",
            "cpu_s",
            "wall_s",
            "close_steps",
            "worst_gap",
        ),
        *AUDITED,
    ),
}


@dataclass(frozen=True, slots=True)
class MethodTrials:
    """A method's records. columns: (R,) each, as ``Trials`` lists them. turns: of those that
    count.
    """

    columns: Columns
    turns: Turns

    def __len__(self) -> int:
        """Records that count."""
        return len(self.turns)


@dataclass(frozen=True, slots=True)
class Trials:
    """The records of a run by method. cases, categories: names, which columns give by number.

    record: place in the run. tokens: emitted ids, the prefill's included. emitted: tokens of the
    decode steps. proposed: non-passenger nodes. drafted_steps: steps with a draft. fed: rows fed to
    the target. repeated: tokens in loops (``find_loops``). fresh_steps, fresh_emitted: steps whose
    first token is in no loop, and their tokens. *_s: [s], a phase no turn recorded is NaN. time_s:
    prefills, then decoding; wall_s: the same turn by turn. drafter_s: in its phases. cpu_s: the
    processor time of the turns, NaN if one has none. energy_j: [J], NaN if a turn has none.
    stretch: of a load, shard: of a merged run, -1 without. judged: compared with vanilla. within:
    equal to vanilla, or no id beyond the tolerance. close_steps: NaN if a record does not have
    them. drawn: whole drafts were recorded. counted: its case failed in no round. answered: an
    answer is more than blank text or one token. checked: its answer was compared with a reference's
    number; correct: and has it. in_vocabulary: emitted tokens that the drafter can draft, overlap:
    of the laws, summed over steps; NaN if a turn states none.
    """

    cases: Values
    categories: Values
    methods: Mapping[str, MethodTrials]

    def of(self, method: str) -> MethodTrials:
        """A method's; empty where it has no record."""
        return (
            self.methods[method]
            if method in self.methods
            else MethodTrials(_as_columns(_empty_rows()), Turns(None))
        )

    def columns(self, method: str) -> Columns:
        """A method's columns."""
        return self.of(method).columns

    def contexts(self) -> Counter[int]:
        """Number of tokens in the cache -> the number of steps of all methods with it."""
        found: Counter[int] = Counter()
        for each in self.methods.values():
            found.update(
                {context: count for (context,), count in each.turns.steps.count("context").items()}
            )
        return found


_Rows = dict[str, "array[Any]"]  # a method's columns while they grow


def _empty_rows() -> _Rows:
    return {name: array(kind) for kind, names in _KINDS.items() for name in names}


def _as_columns(rows: _Rows) -> Columns:
    found = {name: np.asarray(column) for name, column in rows.items()}
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
            self._methods[record.method] = _empty_rows(), Turns(self._spool)
        rows, turns = self._methods[record.method]
        counted = record.status == "ok" and (record.method, record.case) not in self._failed
        about = {
            "record": self._count,
            "case": self._cases.setdefault(record.case, len(self._cases)),
            "category": self._categories.setdefault(record.category, len(self._categories)),
            "counted": counted,
        }
        for name, value in (about | _count(record) | _times(record) | _judgement(record)).items():
            rows[name].append(value)
        if counted:
            turns.add(record)
        self._count += 1

    def end(self, records: Iterable[CaseRecord]) -> Trials:
        """The trials of all records. records: to go through again where a case failed after another
        round counted.
        """
        names = np.array(list(self._cases), dtype=object)
        found = {
            name: MethodTrials(_as_columns(rows), turns)
            for name, (rows, turns) in self._methods.items()
        }
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
    loops = [_find_loops(np.array(turn.ids).tobytes()) for turn in turns]
    starts = [np.cumsum([len(turn.ids) - sum(turn.accept), *turn.accept])[:-1] for turn in turns]
    fresh = [~looped[start] for looped, start in zip(loops, starts, strict=True)]
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
        "repeated": sum(int(looped.sum()) for looped in loops),
        "fresh_steps": sum(int(each.sum()) for each in fresh),
        "fresh_emitted": sum(
            int(np.dot(each, turn.accept)) for each, turn in zip(fresh, turns, strict=True)
        ),
        "state_bytes": record.state_bytes,
        "drawn": any(turn.trees for turn in turns),
        "checked": record.correct is not None,
        "correct": bool(record.correct),
        "answered": any(len(turn.ids) > 1 and turn.text.strip() for turn in turns),
    }


@functools.lru_cache(maxsize=64)  # of a block, all methods have mostly the same ids
def _find_loops(ids: bytes) -> NDArray[np.bool_]:
    return find_loops(np.frombuffer(ids, dtype=np.int64))


def find_loops(ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the tokens that only repeat what is before them in a loop; a loop's first period is not
    marked.

    A loop has a period of at most ``MOST_PERIOD`` tokens, ``LEAST_TIMES`` times and at least
    ``LEAST_LOOP`` tokens.

    Args:
        ids: (T,) int64, an answer.

    Returns:
        (T,) bool.
    """
    found = np.zeros(len(ids), dtype=bool)
    for period in range(1, min(MOST_PERIOD, len(ids) // LEAST_TIMES) + 1):
        # tokens that equal the one a period before them
        least = max((LEAST_TIMES - 1) * period, LEAST_LOOP - period)
        alike = ids[period:] == ids[:-period]
        if np.count_nonzero(alike) < least:
            continue
        ends = np.flatnonzero(np.diff(alike, prepend=False, append=False)).reshape(-1, 2)
        for start, end in ends[ends[:, 1] - ends[:, 0] >= least]:
            found[start + period : end + period] = True
    return found


def _times(record: CaseRecord) -> dict[str, float]:
    turns = record.turns
    found = {
        "prefill_s": sum(turn.prefill_s for turn in turns),
        "decode_s": sum(turn.decode_s for turn in turns),
        "wall_s": sum(turn.wall_s for turn in turns),
        "energy_j": sum(BLANK if turn.energy_j is None else turn.energy_j for turn in turns),
        "drafter_s": sum(
            turn.phases_s.get(phase, 0.0) for turn in turns for phase in DRAFTER_PHASES
        ),
        "cpu_s": sum(BLANK if turn.cpu_s is None else turn.cpu_s for turn in turns),
    }
    for phase, column in zip(PHASES, _PHASES, strict=True):
        parts = [turn.phases_s[phase] for turn in turns if phase in turn.phases_s]
        found[column] = sum(parts) if parts else BLANK
    for name, size in AUDITED.items():
        found[name] = sum(turn.stats.get(name, BLANK) * size(turn) for turn in turns)
    return found


def _judgement(record: CaseRecord) -> dict[str, Any]:
    """Ids that differ from vanilla and were never teacher-forced may differ by more than a tie: not
    within.
    """
    verdict = record.lossless
    if verdict is None:
        zeros = ("judged", "equal", "within", "violations", "positions", "ties", "worst_gap")
        return dict.fromkeys(zeros, 0) | {"close_steps": BLANK}
    return {
        "judged": True,
        "equal": verdict.equal,
        "within": verdict.equal or (verdict.positions > 0 and verdict.violations == 0),
        "violations": verdict.violations,
        "close_steps": BLANK if verdict.close_steps is None else verdict.close_steps,
        "positions": verdict.positions,
        "ties": verdict.ties,
        "worst_gap": verdict.worst_gap,
    }


def ratio(part: float, whole: float) -> float:
    """Blank if there is no whole, the part is not known, or the whole is too small to divide by."""
    found = float(part) / float(whole) if whole > 0 else BLANK
    return found if math.isfinite(found) else BLANK


def fold_cases(rows: Columns) -> Columns:
    """One row per case from a method's columns, in the order in which they came.

    Counts, phases and energy are summed over the rounds. time_s: [s] end to end, with tokens the
    median over the rounds (``stats.over_rounds``); decode_time_s with decode_tokens likewise.
    all_tokens: over all rounds. ok: False when any round failed. within, equal: in every judged
    round.
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
    for column in ("within", "equal"):
        folded[column] = judged[column].all().reindex(folded.index).fillna(False).astype(bool)
    folded[["time_s", "tokens"]] = _medians(groups, "time_s", "tokens")
    folded[["decode_time_s", "decode_tokens"]] = _medians(groups, "decode_s", "emitted")
    return {str(name): folded[name].to_numpy() for name in folded} | {
        "case": folded.index.to_numpy()
    }


def _medians(groups: Any, seconds: str, tokens: str) -> pd.DataFrame:
    values = {
        key: over_rounds(group[seconds], group[tokens]) for key, group in groups[[seconds, tokens]]
    }
    return pd.DataFrame.from_dict(values, orient="index")


_EXPECTED = (
    'expected lines such as {"task_id": "HumanEval/0", "method": "pld", "round": 0, "passed": true}'
)
_SHOWN = 5  # answers of an error
Key = tuple[str, str, int]  # method, case, round


class _Line(TypedDict):
    task_id: str | int
    method: str
    passed: StrictBool
    round: NotRequired[Count]


def read_passed(paths: Sequence[Path]) -> dict[Key, bool]:
    """Returns whether each answer passed. Raises InputError naming file and line, also of a second
    row of an answer.
    """
    found: dict[Key, bool] = {}
    schema = TypeAdapter(_Line)
    for path in paths:
        for number, text in numbered_lines(read_file(path, "--passed ", _EXPECTED)):
            where = f"{path}, line {number}"
            line = parse_as(schema, text, where, _EXPECTED)
            key = (line["method"], str(line["task_id"]), line.get("round", 0))
            if key in found:
                raise InputError(
                    f"{where}: {_spell(key)} has a row already; expected one row an answer"
                )
            found[key] = line["passed"]
    if not found:
        raise InputError(f"--passed {', '.join(map(str, paths))}: no rows; {_EXPECTED}")
    return found


def with_passed(trials: Sequence[Trials], passed: Mapping[Key, bool]) -> list[Trials]:
    """The trials with these answers checked. trials: of one run, which may have grown.

    A method that has a row needs one for every finished answer of the categories that have any.
    Raises InputError for a row of no answer, and for an answer without a row.
    """
    every = {
        key: (category, counted) for each in trials for key, category, counted in _answers_of(each)
    }
    such = (
        f"expected its cases and methods, such as {_spell(next(iter(every)))}"
        if every
        else "it has no answer"
    )
    _refuse([key for key in passed if key not in every], "of no answer of the run", such)
    methods, categories = {key[0] for key in passed}, {every[key][0] for key in passed}
    due = [key for key, (category, counted) in every.items() if counted and category in categories]
    lacking = [key for key in due if key[0] in methods and key not in passed]
    _refuse(lacking, "missing", "expected one row an answer, false where the tests did not end")
    return [_with_verdicts(each, passed) for each in trials]


def _answers_of(trials: Trials) -> Iterator[tuple[Key, str, bool]]:
    """(key, category, whether it counts) of every answer."""
    for method, found in trials.methods.items():
        categories = trials.categories[found.columns["category"]]
        answers = zip(_keys(trials, method), categories, found.columns["counted"], strict=True)
        for key, category, counted in answers:
            yield key, str(category), bool(counted) and method != CONTROL


def _keys(trials: Trials, method: str) -> list[Key]:
    columns = trials.columns(method)
    places = zip(trials.cases[columns["case"]], columns["round"], strict=True)
    return [(method, str(case), int(number)) for case, number in places]


def _with_verdicts(trials: Trials, passed: Mapping[Key, bool]) -> Trials:
    methods = {}
    for method, found in trials.methods.items():
        columns = found.columns
        verdicts = [passed.get(key) for key in _keys(trials, method)]
        given = np.array([verdict is not None for verdict in verdicts], dtype=bool)
        correct = np.where(given, np.array(verdicts, dtype=bool), columns["correct"])
        methods[method] = replace(
            found, columns={**columns, "checked": columns["checked"] | given, "correct": correct}
        )
    return replace(trials, methods=methods)


def _refuse(keys: Sequence[Key], what: str, fix: str) -> None:
    if keys:
        more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        raise InputError(
            f"--passed: {len(keys)} rows are {what}: {'; '.join(map(_spell, keys[:_SHOWN]))}{more};"
            f" {fix}"
        )


def _spell(key: Key) -> str:
    method, case, number = key
    return f"{case} of {method}" + (f" in round {number}" if number else "")
