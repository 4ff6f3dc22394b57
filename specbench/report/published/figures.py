"""The papers' and leaderboards' own figures (``results/published/*.csv``), one a row, as they were printed."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specbench.records.store import RunError

PACKAGE = Path(__file__).resolve().parents[2]
COLUMNS = (
    *("source", "table", "model", "suite", "category", "method", "name", "setting", "metric", "value", "spread"),
    *("printed", "needs", "setup", "corpus", "hardware", "date", "url"),
)
DEFINITION, TRACE, WEIGHTS, HARDWARE = "definition", "trace", "weights", "hardware"
NEEDS = (DEFINITION, TRACE, WEIGHTS, HARDWARE)


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A printed figure; results/published/README.md says what each column means.

    model, suite, category, method, metric: in this harness's names, '' = it has none. name: the row as printed.
    setting: what distinguishes the row from others of the method. setup: how the source measured, where it states it.
    needs: definition | trace | weights | hardware, the most that it takes to measure it again.
    """

    source: str
    table: str
    model: str
    suite: str
    category: str
    method: str
    name: str
    setting: Mapping[str, str]
    metric: str
    value: float
    printed: str
    needs: str
    setup: Mapping[str, str]
    corpus: str
    hardware: str
    date: str
    url: str

    @property
    def place(self) -> tuple[str, str]:
        """Source and table."""
        return self.source, self.table


def published_dir() -> Path:
    """Inside an installed package, or ``results/published`` of a checkout."""
    inside = PACKAGE / "published"
    return inside if inside.is_dir() else PACKAGE.parent / "results" / "published"


def read_published(folder: Path | None = None) -> list[PublishedFigure]:
    """Every figure, file by file. Raises RunError naming the file, the line and what is wrong there."""
    folder = folder or published_dir()
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise RunError(f"{folder}: has no csv; expected the published figures, which are part of an installation")
    return [figure for path in files for figure in _read_file(path)]


def _read_file(path: Path) -> Iterable[PublishedFigure]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: not UTF-8 ({error}); expected a csv file") from error
    with io.StringIO(text, newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise RunError(f"{path}: has the columns {reader.fieldnames}; expected {', '.join(COLUMNS)}")
        for number, row in enumerate(reader, 2):
            try:
                yield _figure(row)
            except ValueError as error:
                raise RunError(f"{path}, line {number}: {error}") from error


def _figure(row: Mapping[str, str]) -> PublishedFigure:
    """Raises ValueError for what is no figure."""
    if None in row or None in row.values():
        raise ValueError(f"has not {len(COLUMNS)} cells; expected one a column, and quotes around what holds a comma")
    value = float(row["value"])
    if not math.isfinite(value):
        raise ValueError(f"value={row['value']!r}; expected a finite number")
    if row["needs"] not in NEEDS:
        raise ValueError(f"needs={row['needs']!r}; expected one of {', '.join(NEEDS)}")
    names = ("source", "table", "model", "suite", "category", "method", "name", "metric", "printed", "needs")
    return PublishedFigure(
        **{name: row[name] for name in (*names, "corpus", "hardware", "date", "url")},
        value=value,
        setting=_pairs(row["setting"]),
        setup=_pairs(row["setup"]),
    )


def _pairs(text: str) -> dict[str, str]:
    """'k=10;w=10' -> {'k': '10', 'w': '10'}. Raises ValueError."""
    entries = [entry.partition("=") for entry in text.split(";") if entry]
    if not all(equals for _, equals, _ in entries):
        raise ValueError(f"{text!r}; expected KEY=VALUE;KEY=VALUE")
    return {key: value for key, _, value in entries}
