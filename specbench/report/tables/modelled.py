"""What a latency profile predicts of every method, as tables: speedup beside the measured one, and under load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from specbench.record import OVERALL
from specbench.report.data.findings import Findings
from specbench.report.data.load import FEW, LABELLED, MOST, Load
from specbench.report.data.reported import ROW
from specbench.report.text.label import Cell, format_interval, format_number
from specbench.report.text.table import Table, format_tables, name_columns, to_csv, without_blanks, write_texts

_MEANING = (
    "Modelled, decode steps only, with drafting time, the median a step. Measured: without prefills, as a prediction"
    " is. Efficiency: measured over what the forwards alone would give; both only where the profile is of the run's own"
    " machine."
)


def prediction_table(findings: Findings) -> Table | None:
    """A row a method that has a prediction; None without any."""
    rows = findings.summary
    rows = rows[(rows["category"] == OVERALL) & rows["predicted_speedup"].notna()]
    if rows.empty:
        return None
    names = name_columns(rows)
    header = (*names, "MAT", "Tokens fed", "Predicted", "Measured", "Efficiency")
    figures = zip(*map(_cells, rows.to_dict("records")), strict=True)
    cells = tuple(zip(*names.values(), *figures, strict=True))
    where = f"{findings.profiles}."
    return without_blanks(Table("predicted", where, _MEANING, header, cells, frozenset(), len(names)))


def _cells(row: dict[str, Any]) -> tuple[Cell, ...]:
    spread = format_interval(row["predicted_speedup_low"], row["predicted_speedup_high"])
    measured = row["decode_speedup"] if pd.notna(row["efficiency"]) else float("nan")
    return (
        *(Cell(format_number(row[name])) for name in ("mat", "tokens_fed")),
        Cell(format_number(row["predicted_speedup"]), spread),
        *(Cell(format_number(value)) for value in (measured, row["efficiency"])),
    )


def crossover_table(found: Load) -> Table:
    """Methods down, numbers of requests across; the last column has the most at which it pays."""
    counts = sorted(found.speedups["concurrency"].unique())
    names = name_columns(found.pays)
    rows = []
    for name, entry in zip(zip(*names.values(), strict=True), found.pays.itertuples(index=False), strict=True):
        own = found.speedups
        for column in ROW:
            own = own[own[column] == getattr(entry, column)]
        cells = own.set_index("concurrency")
        words = [_at_load(cells.loc[count]) for count in counts]
        rows.append((*name, *map(Cell, (f"{entry.mat:.2f}", *words, _spell(entry.pays_to)))))
    far = (found.speedups["outside"] > FEW).any()
    star = " *: more than one step in 20 beyond what the profile measured." if far else ""
    meaning = (
        f"{LABELLED}: speedup over vanilla by requests that share a forward, without drafting time; in brackets with"
        f" it, each request's median a step, one request after the other.{star}"
    )
    header = (*names, "MAT", *(f"{count} at once" for count in counts), "Pays up to")
    return Table("crossover", f"{found.where}.", meaning, header, tuple(rows), frozenset(), len(names))


def _at_load(row: pd.Series) -> str:
    star = "*" if row["outside"] > FEW else ""
    return f"{row['modelled_speedup']:.2f}{star} ({row['with_drafting']:.2f})"


def write_load(found: Load, output: Path) -> list[Path]:
    """tables/crossover.{csv,md,tex} and tables/crossover_break_even.csv. Returns the files."""
    table = crossover_table(found)
    texts = {
        "crossover.csv": to_csv(found.speedups.merge(found.pays, on=list(ROW))),
        **{f"crossover.{kind}": text for kind, text in format_tables([table]).items()},
        "crossover_break_even.csv": to_csv(found.break_even),
    }
    return write_texts(output / "tables", texts)


def _spell(pays_to: int) -> str:
    if pays_to == 0:
        return "never"
    return f"{MOST} or more" if pays_to >= MOST else str(pays_to)
