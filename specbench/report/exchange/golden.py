"""Golden acceptance curves: model, thinking and draft length -> accepted length, as InferenceX keeps them in YAML.

Source: SemiAnalysisAI/InferenceX, ``golden_al_distribution/README.md`` 0c66e11. A length is 1 + accepted draft tokens
/ drafts, counted over all requests together, of SPEED-Bench's category coding, answers of at most 4,096 tokens and the
model's own sampling. A run of anything else is written too, with a comment for each condition that differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from specbench.input import InputError, decode_text, read_file
from specbench.names import comment
from specbench.records.record import CONTROL, VANILLA
from specbench.report.frames.counting import drafted_steps
from specbench.report.frames.findings import Findings
from specbench.report.frames.reported import ReportedRun
from specbench.report.label import Cell, format_count, format_number, label
from specbench.report.table import Table, without_blanks
from specbench.stats import Estimate, estimates

GOLDEN = "golden"
FILE = "golden.yaml"
CATEGORY, TOKENS = "coding", 4096
MARK = "thinking_o"  # that every file has
_THINKING = ("thinking_on", "thinking_off")
_MOST_BYTES, _MOST = 1 << 20, 1 << 16
_FIX = "expected MODEL: {thinking_on: {DRAFT LENGTH: ACCEPTED LENGTH}}, as InferenceX writes it"


@dataclass(frozen=True, slots=True)
class GoldenCell:
    """An accepted length. row: the file, or the method. size: [tokens] of a draft.

    length: of a file without an interval; of a run over cases. drafts, accepted: None of a file.
    differs: conditions of a run that are not the curves'.
    """

    row: str
    model: str
    thinking: str
    size: int
    length: Estimate
    drafts: int | None = None
    accepted: int | None = None
    differs: tuple[str, ...] = ()


def read_golden(path: Path) -> list[GoldenCell]:
    """Read the cells of a file. Raises InputError that names the key which is wrong."""
    text = decode_text(read_file(path, "file to import ", _FIX, _MOST_BYTES), str(path))
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        found = str(getattr(error, "problem", None) or type(error).__name__)
        raise InputError(f"{path}: is not YAML ({found}); {_FIX}") from None
    cells = []
    for model, modes in _entries(root, f"{path}: "):
        for thinking, lengths in _entries(modes, f"{path}: {model}"):
            where = f"{path}: {model}.{thinking}"
            if thinking not in _THINKING:
                raise InputError(f"{where}: unknown key; {_FIX}")
            for size, value in _entries(lengths, where):
                if not re.fullmatch(r"[1-9]\d{0,4}", size) or int(size) > _MOST:
                    raise InputError(f"{where}.{size}: is no draft length from 1 to {_MOST}; {_FIX}")
                shown = value.value if isinstance(value, yaml.ScalarNode) else "no number"
                number = float(shown) if re.fullmatch(r"\d{1,6}(\.\d{1,17})?", shown) else float("nan")
                if not 1 <= number <= int(size) + 1:
                    raise InputError(
                        f"{where}.{size} is {shown[:40]}; expected an accepted length from 1 to {int(size) + 1},"
                        " the target's own token included"
                    )
                cells.append(GoldenCell(path.name, model, thinking, int(size), Estimate(number, None, None, 0)))
    return cells


def _entries(node: yaml.Node | None, where: str) -> Iterator[tuple[str, yaml.Node]]:
    """The keys and values of a mapping. Raises InputError for anything else, for none, and for a repeated key."""
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise InputError(f"{where.rstrip(': ')}: has no entries; {_FIX}")
    seen = set()
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if not name or name in seen:
            raise InputError(
                f"{where.rstrip(': ')}: the key {name[:40] or 'of a list'} is there twice or no text; {_FIX}"
            )
        seen.add(name)
        yield name, value


def measure_golden(findings: Findings) -> tuple[list[GoldenCell], list[str]]:
    """The cells of the methods that draft chains, and what was left out with the reason."""
    cells, left = [], []
    for reported in findings.reported:
        for method in reported.facts.methods:
            if method in (VANILLA, CONTROL):
                continue
            found = _measure(reported, method)
            name = label(method, reported.variants.get(method, ""))
            if isinstance(found, str):
                left.append(f"{name}: {found}")
            else:
                cells.append(replace(found, row=name))
    return cells, left


def _measure(reported: ReportedRun, method: str) -> GoldenCell | str:
    """The cell of a method, or why it has none."""
    facts, every = reported.facts, reported.succeeded(method)
    coding = [record for record in every if record.category == CATEGORY]
    records = coding or every
    turns = [turn for record in records for turn in record.turns]
    if facts.synthetic or method in facts.unaccepted:
        return "its acceptance is not the model's"
    if not any(any(turn.proposed) for turn in turns):
        return "recorded no drafts"
    if any(turn.proposed != turn.depth for turn in turns):
        return "drafts trees, which have no draft length"
    counts: dict[str, list[int]] = {}
    for record in records:
        steps = [step for turn in record.turns for step in drafted_steps(turn)]
        before = counts.setdefault(record.case, [0, 0])
        before[0] += sum(taken for taken, _ in steps)
        before[1] += len(steps)
    accepted, drafts = np.array(list(counts.values()), dtype=float).T
    [found] = estimates([(accepted, drafts)])
    low, high = (None if bound is None else 1 + bound for bound in (found.low, found.high))
    decode = reported.run.section("config", "decode")
    differs = (
        "" if coding else f"category: {', '.join(sorted({record.category for record in records}))}, not {CATEGORY}",
        f"{decode.get('max_new_tokens')} tokens a turn, not {TOKENS}" * (decode.get("max_new_tokens") != TOKENS),
        "temperature 0, not the model's own sampling" * (facts.temperature == 0),
        f"lossy: {method} does not emit the model's tokens" * (method in facts.lossy),
    )
    return GoldenCell(
        row=method,
        model=facts.model,
        thinking=_THINKING[not any(turn.thinking is not None for turn in turns)],
        size=max(max(turn.depth, default=0) for turn in turns),
        length=Estimate(1 + found.value, low, high, found.count),
        drafts=int(drafts.sum()),
        accepted=int(accepted.sum()),
        differs=tuple(filter(None, differs)),
    )


def write_golden(findings: Findings) -> tuple[dict[str, str], list[str]]:
    """Method -> its curve over all runs, such as those of a sweep of the draft length; and what was left out.

    Raises InputError for two cells of one draft length.
    """
    cells, left = measure_golden(findings)
    curves: dict[str, dict[tuple[str, str, int], GoldenCell]] = {}
    for cell in cells:
        own = curves.setdefault(cell.row.partition(" [")[0], {})
        if before := own.get(key := (cell.model, cell.thinking, cell.size)):
            raise InputError(
                f"--export {GOLDEN}: {before.row} and {cell.row} both have drafts of {cell.size} tokens; expected runs"
                " that differ in the draft length"
            )
        own[key] = cell
    return {method: _spell(method, list(own.values())) for method, own in curves.items()}, left


def _spell(method: str, cells: Sequence[GoldenCell]) -> str:
    lines = [f"specbench: {method}, 1 + accepted / drafts over all requests"]
    for cell in cells:
        low, high = cell.length.bounds
        interval = "" if np.isnan(low) else f" [{low:.3f}, {high:.3f}]"
        counts = f"accepted={cell.accepted}; drafts={cell.drafts}; {cell.length.count} cases"
        lines.append(f"{cell.thinking} k={cell.size}: {cell.length.value:.4f}{interval}; {counts}")
    lines += [f"differs from the golden curves: {text}" for text in dict.fromkeys(t for c in cells for t in c.differs)]
    tree: dict[str, dict[str, dict[int, float]]] = {}
    for cell in sorted(cells, key=lambda each: each.size):
        tree.setdefault(cell.model, {}).setdefault(cell.thinking, {})[cell.size] = round(cell.length.value, 2)
    return comment(lines) + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def golden_frame(golden: Sequence[GoldenCell], own: Sequence[GoldenCell]) -> pd.DataFrame:
    """Returns one row per cell of a file and method with its thinking and draft length, and per cell without any."""
    rows = []
    for cell in golden:
        wanted = (cell.thinking, cell.size)
        alike: list[GoldenCell | None] = [each for each in own if (each.thinking, each.size) == wanted]
        for each in alike or [None]:
            low, high = each.length.bounds if each else (np.nan, np.nan)
            value = each.length.value if each else np.nan
            rows.append(
                {
                    "file": cell.row, "model": cell.model, "thinking": cell.thinking, "draft_length": cell.size,
                    "golden": cell.length.value, "method": each.row if each else "",
                    "run_model": each.model if each else "", "length": value, "length_low": low, "length_high": high,
                    "ratio": value / cell.length.value, "drafts": each.drafts if each else np.nan,
                    "agrees": "" if np.isnan(low) else "yes" if low <= cell.length.value <= high else "no",
                    "differs": "; ".join(each.differs) if each else "",
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def golden_table(frame: pd.DataFrame) -> Table:
    """The curves as printed."""
    rows = []
    for row in frame.to_dict("records"):
        inside = "" if np.isnan(row["length_low"]) else f"{row['length_low']:.3f}, {row['length_high']:.3f}"
        texts = (row["file"], row["model"], row["thinking"], format_count(row["draft_length"]))
        figures = (Cell(format_number(row["golden"])), Cell(row["method"]), Cell(row["run_model"]))
        own = (Cell(format_number(row["length"], 3), inside), Cell(format_number(row["ratio"], 3)))
        rows.append((*map(Cell, texts), *figures, *own, Cell(row["agrees"]), Cell(row["differs"])))
    meaning = (
        "Golden curves next to the methods of the runs with the same thinking and draft length. Length: 1 + accepted"
        " draft tokens / drafts over all requests, with the 95 % interval over cases. Agrees: the interval contains the"
        " golden length."
    )
    header = (
        "File",
        "Model",
        "Thinking",
        "K",
        "Golden",
        "Method",
        "Of the run",
        "Length",
        "Ratio",
        "Agrees",
        "Differs",
    )
    return without_blanks(Table(GOLDEN, "", meaning, header, tuple(rows), labels=3))
