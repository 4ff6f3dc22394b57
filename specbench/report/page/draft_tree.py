"""One case in detail: what a method drafted in a step, and which of it the target took. To be read, not counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from specbench.record import CaseRecord, TreeRecord, TurnRecord
from specbench.report.data.facts import read_facts
from specbench.report.text.tokenizer import find_tokenizer, read_tokenizer
from specbench.store import Run, RunError

MOST_LINES = 24
_MARKS = str.maketrans({"\u2581": " ", "\u0120": " ", "\u010a": "\n"})  # how vocabularies write space and newline
_TAKEN, _LEFT, _INDENT = "+", " ", "  "


def make_speller(run: Run) -> Callable[[int], str]:
    """id -> its text in quotes, or '<id>' where the run's tokenizer is not on this machine."""
    try:
        tokenizer = read_tokenizer(find_tokenizer(run))
    except RunError:
        return lambda token: f"<{token}>"
    return lambda token: repr(str(tokenizer.id_to_token(token)).translate(_MARKS))


def find_record(run: Run, method: str, case: str | None = None) -> CaseRecord:
    """A method's record of a case; without a case, its first with recorded trees, else its first. Raises RunError."""
    records = [record for record in run.records if record.method == method and record.status == "ok" and record.turns]
    if not records:
        done = {record.method for record in run.records if record.status == "ok" and record.turns}
        known = ", ".join(name for name in read_facts(run).methods if name in done)
        fix = f"expected one of {known}" if known else "nor has any other method, see run.log and the page's errors"
        raise RunError(f"run {run.directory}: {method} has no finished case; {fix}")
    if case is not None:
        chosen = [record for record in records if record.case == case]
        if not chosen:
            known = ", ".join(dict.fromkeys(record.case for record in records[:MOST_LINES]))
            raise RunError(f"run {run.directory}: {method} has no finished case {case}; expected one of {known} ...")
        return chosen[0]
    drawn = [record for record in records if any(any(t["tokens"] for t in turn.trees or ()) for turn in record.turns)]
    return (drawn or records)[0]


def show_step(turn: TurnRecord, step: int, spell: Callable[[int], str]) -> str:
    """A step's draft as an indented tree, '+' before what was accepted; siblings beyond the room are counted.

    Without a recorded tree (measure.keep_trees) the step's counts alone.
    """
    start = len(turn.ids) - sum(turn.accept[step:])
    emitted = turn.ids[start : start + turn.accept[step]]
    root = spell(turn.ids[start - 1]) if start else "the prompt's last token"
    lines = [f"step {step}: root {root}, emitted {' '.join(map(spell, emitted))}"]
    if turn.trees and turn.trees[step].get("late"):
        lines[0] += ", the last drafted late, while the target ran"
    if not turn.trees:
        return f"{lines[0]}; {turn.proposed[step]} nodes drafted, no tree recorded (measure.keep_trees=1)"
    tree = turn.trees[step]
    nodes = list(_walk(tree, spell))
    taken = set(tree["path"])
    kept = [line for node, line in nodes if node in taken]
    room = max(MOST_LINES - len(kept), 0)
    for node, line in nodes:
        if node in taken or room > 0:
            lines.append(line)
            room -= node not in taken
    hidden = 1 + len(nodes) - len(lines)
    return "\n".join([*lines, *([f"  ... and {hidden} more nodes"] if hidden else [])])


def _walk(tree: TreeRecord, spell: Callable[[int], str]) -> Iterator[tuple[int, str]]:
    """(node, line) depth first, siblings in trial order."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree["parents"]):
        children.setdefault(parent, []).append(node)
    taken = set(tree["path"])
    open_nodes = [(node, 1) for node in reversed(children.get(-1, []))]
    while open_nodes:
        node, depth = open_nodes.pop()
        mark = _TAKEN if node in taken else _LEFT
        yield node, f"{mark} {_INDENT * depth}{spell(int(tree['tokens'][node]))}"
        open_nodes += [(child, depth + 1) for child in reversed(children.get(node, []))]


def best_step(turn: TurnRecord) -> int:
    """The step that emitted most; the first of equals."""
    return max(range(len(turn.accept)), key=lambda step: turn.accept[step], default=0)
