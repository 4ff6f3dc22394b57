"""The tables of the docs that follow a list in the code. ``python tests/doc_tables.py`` writes
them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from builders.models import EAGER_ONLY, REFUSED
from builders.suites import HAND_MADE
from specbench.records.record import TurnRecord
from specbench.report.frames.counting import DEFINITIONS, Requests, as_requests, count_request
from specbench.report.frames.detail import DETAILS, TIME_SPLIT
from specbench.suite.formats import format_named

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PHASES_ROW = "[ms a step] by phase, and their sum `step_ms`. Peers have no phases, so no row"


def frames() -> str:
    """The frames of detail as a Markdown table."""
    lines = [
        "| file | a row | figures |",
        "|---|---|---|",
        f"| `{TIME_SPLIT}.csv` | method | {PHASES_ROW} |",
    ]
    return "\n".join(
        [
            *lines,
            *(f"| `{each.name}.csv` | {each.row} | {each.meaning} |" for each in DETAILS.values()),
        ]
    )


def turn_of(accept: list[int], proposed: list[int]) -> TurnRecord:
    """A turn with these steps, as chains."""
    ids, fed, times = (
        list(range(1 + sum(accept))),
        [nodes + 1 for nodes in proposed],
        (0.5, 1.0, {"draft": 0.5}),
    )
    return TurnRecord(5, ids, "length", accept, proposed, proposed, fed, *times)


def requests_of(*turns: TurnRecord) -> Requests:
    """Counts of requests of one turn each."""
    return as_requests(
        [count for number, turn in enumerate(turns) for count in count_request(number, turn)]
    )


# SGLang's pull request 13754: 200 tokens, 188 verify steps, 940 draft tokens, 11 of them accepted
SGLANG = requests_of(turn_of([2] * 11 + [1] * 177, [5] * 188))
# Two questions: steps that emit 3, 1, 2 and 1 tokens, of which the second had no draft; and one
# step
SMALL = requests_of(turn_of([3, 1, 2, 1], [4, 0, 4, 2]), turn_of([1], [4]))


def definitions() -> str:
    """The definitions of acceptance length and rate, with what they make of two traces."""
    lines = [
        (
            "| as counted by | acceptance length | acceptance rate | SGLang's request | two"
            " questions | source |"
        ),
        "|---|---|---|--:|--:|---|",
    ]
    for each in DEFINITIONS.values():
        figures = (
            f"{each.length(trace):.4f}" + (f", {each.rate(trace):.4f}" if each.rate else "")
            for trace in (SGLANG, SMALL)
        )
        lines.append(
            f"| {each.name} | {each.length_is} | {each.rate_is} | {' | '.join(figures)} |"
            f" {each.source} |"
        )
    return "\n".join(lines)


def suites() -> str:
    """Every suite's reader, the number of its questions, and the columns or an example of its
    rows.
    """
    lines = ["| `suite=` | `suite.format` | questions | a row of its file |", "|---|---|--:|---|"]
    found: dict[str, dict[str, object]] = {}

    def read(name: str) -> dict[str, object]:
        own = yaml.safe_load((ROOT / f"conf/suite/{name}.yaml").read_text(encoding="utf-8"))
        bases = [read(base) for base in own.pop("defaults", []) if base != "_self_"]
        return (bases[0] if bases else {}) | own

    for path in sorted((ROOT / "conf/suite").glob("*.yaml")):
        if (settings := read(path.stem)).get("name") and settings.get("format") != "trace":
            found[path.stem] = settings
    alike: dict[str, list[str]] = {}  # the rest of a row -> the suites that have it
    for name, settings in found.items():
        reader = str(settings.get("format") or "questions")
        row = (
            ", ".join(HAND_MADE[name][1])
            if name in HAND_MADE
            else f"`{format_named(reader).example}`"
        )
        alike.setdefault(f"{reader} | {settings.get('expected') or '–'} | {row} |", []).append(name)
    for rest, names in alike.items():
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {rest}")
    return "\n".join(lines)


def families() -> str:
    """The families that tests/decode/test_check.py drives by the eager engine, and those that are
    refused.
    """
    lines = ["| layers | families (`model_type`) |", "|---|---|"]
    lines += [f"| {group} | {', '.join(sorted(kinds))} |" for group, kinds in EAGER_ONLY.items()]
    for message, kinds in REFUSED.items():
        named = (
            f"{kind} with {', '.join(extra)}" if extra else kind
            for kind, extra in sorted(kinds.items())
        )
        lines.append(f"| refused: `{message}` | {', '.join(named)} |")
    return "\n".join(lines)


TABLES: dict[str, dict[str, Callable[[], str]]] = {  # page -> name of a table -> what makes it
    "suites.md": {"readers": suites},
    "tree_attention.md": {"families": families},
    "measurement.md": {"frames": frames, "definitions": definitions},
}


def page_with_table(page: str) -> str:
    """The text of a page with its tables in place."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, make in TABLES[page].items():
        begin, end = f"<!-- {name}: written by tests/doc_tables.py -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        assert found, f"docs/{page} lacks {begin}"
        text = f"{before}{begin}\n\n{make()}\n\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    for page in TABLES:
        (DOCS / page).write_text(page_with_table(page), encoding="utf-8")
