"""The live display of a run: cases done, each method's MAT and tokens/s so far, time left. Quiet off a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from specbench.record import CaseRecord


@dataclass(slots=True)
class _Tally:
    tokens: int = 0
    seconds: float = 0.0
    accepted: int = 0
    steps: int = 0
    errors: int = 0

    def add(self, record: CaseRecord) -> None:
        if record.status != "ok":
            self.errors += 1
            return
        for turn in record.turns:
            self.tokens += len(turn.ids)
            self.seconds += turn.prefill_s + turn.decode_s
            self.accepted += sum(turn.accept)
            self.steps += len(turn.accept)


class Progress:
    """A context manager; call ``observe`` after every block."""

    def __init__(self, console: Console, enabled: bool, timed: bool = True) -> None:
        """timed: show tokens/s, which a replay has none of."""
        self._timed = timed
        self._console = console
        self._live_wanted = enabled and console.is_terminal
        self._tallies: dict[str, _Tally] = {}
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("cases"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console,
        )  # fmt: skip
        self._task = self._bar.add_task("loading", total=None)
        self._live = Live(self._render(), console=console, transient=True, refresh_per_second=4)
        self._spoken = time.monotonic()

    def __enter__(self) -> Progress:
        if self._live_wanted:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live_wanted:
            self._live.stop()

    def observe(self, records: Sequence[CaseRecord], done: int, total: int) -> None:
        """Take in one block (or, on resuming, all earlier ones)."""
        for record in sorted(records, key=lambda record: record.method):
            self._tallies.setdefault(record.method, _Tally()).add(record)
        self._bar.update(self._task, description="decoding", completed=done, total=total)
        if self._live_wanted:
            self._live.update(self._render())
        elif time.monotonic() - self._spoken > 30 or done == total:
            self._spoken = time.monotonic()
            self._console.print(f"{done}/{total} cases", highlight=False)

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False)
        speeds = ("tokens/s",) if self._timed else ()
        for name in ("method", "MAT", *speeds, "errors"):
            table.add_column(name, justify="left" if name == "method" else "right")
        for name, tally in self._tallies.items():
            mat = f"{tally.accepted / tally.steps:.2f}" if tally.steps else ""
            speed = f"{tally.tokens / tally.seconds:.1f}" if tally.seconds else ""
            table.add_row(name, mat, *([speed] if self._timed else []), str(tally.errors) if tally.errors else "")
        return Group(self._bar, table)
