"""The shards of merged runs as a table: which machine measured what."""

from __future__ import annotations

from specbench.report.frames.findings import Findings
from specbench.report.text.label import BLANK, Cell, format_bounded, format_rate
from specbench.report.text.table import Table, without_blanks

_MEANING = (
    "Shards of merged runs. Tokens/s: vanilla's. A/A: vanilla timed against itself, with 95 % of re-timings. Methods"
    " are paired within a block, so speedups compare nothing across machines."
)
_HEADER = ("Run", "Part", "Machine", "Cases", "Tokens/s", "A/A")


def shards_tables(findings: Findings) -> list[Table]:
    """A row a shard; no table where no run was merged."""
    rows = []
    for entry in findings.reported:
        for shard in entry.shards:
            speed = shard.per_token_s
            figures = (
                str(shard.cases),
                format_rate(1 / speed.value) if speed and speed.value > 0 else BLANK,
                format_bounded(shard.control.retimed.value, *shard.control.retimed.bounds) if shard.control else BLANK,
            )
            rows.append(tuple(map(Cell, (entry.run.directory.name, shard.part, shard.machine, *figures))))
    if not rows:
        return []
    return [without_blanks(Table("shards", "", _MEANING, _HEADER, tuple(rows), frozenset(), 3))]
