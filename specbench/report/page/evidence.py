"""The evidence behind the figures of a page: where outputs differ, what failed, and the environment of each run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specbench.record import VANILLA, CaseRecord, Lossless
from specbench.report.data.facts import flatten
from specbench.report.data.findings import Findings
from specbench.report.page.elements import escape, table_html
from specbench.report.text.label import BLANK, Cell, format_share, label
from specbench.report.text.table import Table
from specbench.store import Run

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
_Judged = tuple[Run, CaseRecord, Lossless]
_HEADER = ("Method", "Case", "Round", "Turn", "Token", "Ties", "Violations", "Largest gap")


def lossless_section(findings: Findings) -> str:
    """What every lossless method's answers held, then where they first leave vanilla's; '' when none was judged."""
    records = [(run, record) for run in findings.runs for record in run.records if record.method not in findings.lossy]
    judged = [(run, record, record.lossless) for run, record in records if record.lossless is not None]
    others = [entry for entry in judged if entry[1].method != VANILLA]
    if not others:
        return ""
    return table_html(_verdicts(findings, judged)) + _differences(others, len(findings.runs) > 1)


def _verdicts(findings: Findings, judged: Sequence[_Judged]) -> Table:
    """A row a method (of each run, where there are several), vanilla's too: its ties are the noise floor."""
    several = len(findings.runs) > 1
    ranks = {name: rank for facts in findings.facts for rank, name in enumerate(facts.methods)}
    groups: dict[str, list[Lossless]] = {}
    for run, record, verdict in sorted(judged, key=lambda entry: ranks[entry[1].method]):
        groups.setdefault(_name(run, record, several), []).append(verdict)
    rows = tuple((Cell(name), *map(Cell, _figures(verdicts))) for name, verdicts in groups.items())
    return Table("lossless", "", _VERDICT_MEANING, _VERDICT_HEADER, rows, frozenset())


def _figures(verdicts: Sequence[Lossless]) -> Iterator[str]:
    """What was forced is blank where ids were compared only."""
    yield str(len(verdicts))
    yield format_share(sum(verdict.equal for verdict in verdicts) / len(verdicts))
    forced = [verdict for verdict in verdicts if verdict.positions > 0]
    if not forced:
        yield from [BLANK] * (len(_VERDICT_HEADER) - 3)
        return
    yield str(sum(verdict.positions for verdict in forced))
    yield str(sum(verdict.ties for verdict in forced))
    yield str(sum(verdict.violations for verdict in forced))
    yield f"{max(verdict.worst_gap for verdict in forced):.2g}"
    close = [verdict.close_steps for verdict in forced if verdict.close_steps is not None]
    yield str(sum(close)) if close else BLANK


def _name(run: Run, record: CaseRecord, several: bool) -> str:
    return label(record.method) + (f" ({run.directory.name})" if several else "")


def _differences(judged: Sequence[_Judged], several: bool) -> str:
    parted = [entry for entry in judged if not entry[2].equal]
    if not parted:
        return f"<p>All {len(judged)} judged answers have vanilla's ids.</p>"
    parted.sort(key=lambda entry: (-entry[2].violations, -entry[2].worst_gap))
    rows = "".join(_difference(run, record, verdict, several) for run, record, verdict in parted[:MAX_ROWS])
    head = "".join(f'<th class="name">{name}</th>' if name in _HEADER[:2] else f"<th>{name}</th>" for name in _HEADER)
    return (
        f"<p>{len(parted)} of {len(judged)} judged answers differ from vanilla's.{_cut(len(parted))} Turns and tokens "
        "are counted from 0.</p>"
        '<details><summary>Where each first differs, violations first</summary><div class="scroll">'
        f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>'
    )


def _difference(run: Run, record: CaseRecord, verdict: Lossless, several: bool) -> str:
    turn, token = verdict.divergence or (BLANK, BLANK)
    names = (_name(run, record, several), record.case)
    figures = (record.round, turn, token, verdict.ties, verdict.violations, f"{verdict.worst_gap:.2g}")
    cells = "".join(f'<td class="name">{escape(name)}</td>' for name in names)
    return f"<tr>{cells}{''.join(f'<td>{escape(str(figure))}</td>' for figure in figures)}</tr>\n"


def failures(findings: Findings) -> str:
    """Each failed case with its traceback folded; '' when none failed."""
    failed = [(run, record) for run in findings.runs for record in run.records if record.status != "ok"]
    if not failed:
        return ""
    shown = "".join(_failure(record) for _, record in failed[:MAX_ROWS])
    return (
        f"<p>{len(failed)} failed records, each one case under one method in one round.{_cut(len(failed))}</p>\n{shown}"
    )


def _failure(record: CaseRecord) -> str:
    error: Mapping[str, Any] = record.error or {}
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
