"""The evidence behind the figures of a page: where outputs differ, what failed, and the environment of each run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from specbench.measure.identity import hide_identity
from specbench.records.record import VANILLA, CaseRecord
from specbench.records.store import Run
from specbench.report.frames.facts import flatten
from specbench.report.frames.findings import Findings
from specbench.report.frames.reported import ReportedRun
from specbench.report.label import BLANK, Cell, format_share, label
from specbench.report.page.elements import escape, table_html
from specbench.report.table import Table

MAX_ROWS = 100  # a page stays readable; records.jsonl has them all
_SECTIONS = (
    "specbench",
    "created",
    "config_hash",
    "model",
    "suite",
    "trace",
    "rounds",
    "temperature",
    "git",
    "versions",
    "machine",
)
_VERDICT_HEADER = (
    "Method",
    "Judged answers",
    "Vanilla's very ids",
    "Ids judged",
    "Ties",
    "Violations",
    "Largest gap",
    "Close steps",
)
_VERDICT_MEANING = (
    "Ids are judged with the whole answer in one forward: a tie is an id within the tolerance of the argmax, a "
    "violation lies beyond it. Vanilla's own ties are the noise floor. The gap is in logits. "
    "In a close step rounding may decide: an id is within one rounding step of its best rival."
)
_VERDICTS = ("record", "equal", "positions", "ties", "violations", "worst_gap", "close_steps")  # of the columns
_HEADER = ("Method", "Case", "Round", "Turn", "Token", "Ties", "Violations", "Largest gap")


def lossless_section(findings: Findings) -> str:
    """What every lossless method's answers held, then where they first leave vanilla's; '' when none was judged."""
    judged = _judged(findings)
    others = judged[judged["method"] != VANILLA]
    return table_html(_verdicts(judged)) + _differences(others, findings) if len(others) else ""


def _judged(findings: Findings) -> pd.DataFrame:
    """A row a judged record of a lossless method, by method; vanilla's too: its ties are the noise floor."""
    ranks = {name: rank for facts in findings.facts for rank, name in enumerate(facts.methods)}
    frames = [pd.DataFrame(columns=["run", "method", "name", *_VERDICTS])]
    for number, reported in enumerate(findings.reported):
        suffix = f" ({reported.run.directory.name})" if len(findings.runs) > 1 else ""
        for method, each in reported.trials.methods.items():
            judged = each.columns["judged"]
            if method not in findings.lossy and judged.any():
                found = pd.DataFrame({name: each.columns[name][judged] for name in _VERDICTS})
                frames.append(found.assign(run=number, method=method, name=label(method) + suffix))
    known = pd.concat(frames[1:] or frames)
    return known.sort_values("method", key=lambda names: names.map(ranks), kind="stable")


def _verdicts(judged: pd.DataFrame) -> Table:
    """A row a method (of each run, where there are several)."""
    groups = judged.groupby("name", sort=False)
    rows = tuple((Cell(str(name)), *map(Cell, _figures(found))) for name, found in groups)
    return Table("lossless", "", _VERDICT_MEANING, _VERDICT_HEADER, rows, frozenset())


def _figures(verdicts: pd.DataFrame) -> Iterator[str]:
    """What was forced is blank where ids were compared only."""
    yield str(len(verdicts))
    yield format_share(int(verdicts["equal"].sum()) / len(verdicts))
    forced = verdicts[verdicts["positions"] > 0]
    if forced.empty:
        yield from [BLANK] * (len(_VERDICT_HEADER) - 3)
        return
    for name in ("positions", "ties", "violations"):
        yield str(int(forced[name].sum()))
    yield f"{forced['worst_gap'].max():.2g}"
    close = forced["close_steps"]
    yield BLANK if close.isna().all() else str(int(close.sum()))


def _differences(judged: pd.DataFrame, findings: Findings) -> str:
    order, falling = ["violations", "worst_gap", "run", "record"], [False, False, True, True]
    parted = judged[~judged["equal"].astype(bool)].sort_values(order, ascending=falling, kind="stable")
    if parted.empty:
        return f"<p>All {len(judged)} judged answers have vanilla's ids.</p>"
    cells = tuple(
        tuple(map(Cell, _difference(row.name, findings.runs[row.run].records[row.record])))
        for row in parted[:MAX_ROWS].itertuples(index=False)
    )
    table = Table("differences", "", "Turns and tokens are counted from 0.", _HEADER, cells, frozenset(), labels=2)
    return (
        f"<p>{len(parted)} of {len(judged)} judged answers differ from vanilla's.{_cut(len(parted))}</p>"
        f"<details><summary>Where each first differs, violations first</summary>{table_html(table)}</details>"
    )


def _difference(name: str, record: CaseRecord) -> Iterator[str]:
    verdict = record.lossless
    assert verdict is not None
    yield from (name, record.case, str(record.round), *map(str, verdict.divergence or (BLANK, BLANK)))
    yield from (str(verdict.ties), str(verdict.violations), f"{verdict.worst_gap:.2g}")


def failures(findings: Findings) -> str:
    """Each failed case with its traceback folded; '' when none failed."""
    failed = [(reported.run, place) for reported in findings.reported for place in _failed(reported)]
    if not failed:
        return ""
    shown = "".join(_failure(run.records[place], run) for run, place in failed[:MAX_ROWS])
    return (
        f"<p>{len(failed)} failed records, each one case under one method in one round.{_cut(len(failed))}</p>\n{shown}"
    )


def _failed(reported: ReportedRun) -> list[int]:
    """The places of failed records."""
    columns = (each.columns for each in reported.trials.methods.values())
    return sorted(int(place) for rows in columns for place in rows["record"][~rows["ok"]])


def _failure(record: CaseRecord, run: Run) -> str:
    error: Mapping[str, Any] = record.error or {}
    if not run.section("config", "report").get("identify"):  # an older run names home directory and user
        error = hide_identity(error)
    title = f"{label(record.method)}, case {record.case}, round {record.round}"
    if error.get("turn") is not None:
        title += f", turn {error['turn']}"
    reason = f"{error.get('type', 'error')}: {error.get('message', 'no message was recorded')}"
    trace = escape(str(error.get("traceback") or "no traceback was recorded"))
    return f"<details><summary>{escape(title)}: {escape(reason)}</summary><pre>{trace}</pre></details>\n"


def _cut(total: int) -> str:
    return f" The first {MAX_ROWS} are listed; records.jsonl holds all." if total > MAX_ROWS else ""


def environment(findings: Findings) -> str:
    """For each run: what it was, on what it ran, its methods' parameters, and its whole configuration folded.

    Several runs are folded themselves.
    """
    return "".join(_run(run, len(findings.runs) > 1) for run in findings.runs)


def _run(run: Run, several: bool) -> str:
    manifest = run.manifest
    found = {key: manifest[key] for key in _SECTIONS if manifest.get(key) not in (None, {}, "")}
    facts = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in _lines(found))
    methods = _folded("Methods and their parameters", manifest.get("methods"))
    text = f"<dl>{facts}</dl>{methods}{_folded('Configuration', manifest.get('config'))}"
    return f"<details><summary>{escape(run.directory.name)}</summary>{text}</details>" if several else text


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in flatten(found).items():
        yield (
            key,
            ", ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value),
        )


def _folded(title: str, value: object) -> str:
    if not value:
        return ""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
