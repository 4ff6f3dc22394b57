"""The blocks of a run's plan that are done, by its records, and so what a command still has to run.

A run can be stopped and continued, get more methods, cases or rounds, be cut back to its first
failed case, or be previewed (``--dry-run``). All of these ask a ``Ledger``, which reads nothing but
the records, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from specbench.measure.plan import LASTING, Block, Key, starts_span
from specbench.records.record import REFERENCES, CaseRecord
from specbench.serving.scheduler import QueueGrew

# cases and round of each recorded block, and its methods, in file order
Recorded = list[tuple[Key, frozenset[str]]]


class Ledger:
    """The blocks of a plan, compared with those in the records.

    A case that lacks methods runs again with these and with vanilla, because two figures are paired
    within a block only. A method that was stopped while it learned across cases starts its span
    again, and with it every block that was recorded from there on.
    """

    def __init__(
        self,
        plan: Sequence[Block],
        records: Iterable[CaseRecord],
        resets: Mapping[str, str],
        wanted: int | None = None,
    ) -> None:
        """resets: method -> its reset policy. wanted: blocks at the beginning of the plan that run
        now; None = all.
        """
        self._planned, self._plan, self._resets = (
            {block.key for block in plan},
            plan[:wanted],
            resets,
        )
        self._blocks: dict[int, tuple[set[str], int, set[str]]] = {}
        self.failed: int | None = None  # the number of the first block with a failed case
        for record in records:
            cases, _, methods = self._blocks.setdefault(record.block, (set(), record.round, set()))
            cases.add(record.case)
            methods.add(record.method)
            if record.error and not QueueGrew.ended(record):  # which it would again
                self.failed = (
                    record.block if self.failed is None else min(self.failed, record.block)
                )

    @cached_property
    def recorded(self) -> Recorded:
        """The blocks of the records."""
        return [
            ((frozenset(cases), turn), frozenset(methods))
            for cases, turn, methods in self._blocks.values()
        ]

    @cached_property
    def kept(self) -> int:
        """The number of recorded blocks that stay; the blocks after them run again."""
        kept = len(self.recorded)
        while (start := self._start_of_cut_span(kept)) is not None:
            kept = start
        return kept

    @cached_property
    def rest(self) -> list[Block]:
        """The blocks to run, numbered after those that stay, with the methods that are missing and
        the references.

        A failed case counts as done. ``run.retry`` removes the records from the first failed block
        on before a ledger reads them.
        """
        have = _methods_of(self.recorded[: self.kept])
        rest: list[Block] = []
        for block in self._plan:
            done = have.get(block.key, frozenset())
            if not done.issuperset(block.order):
                order = tuple(
                    name for name in block.order if name not in done or name in REFERENCES
                )
                rest.append(replace(block, index=self.kept + len(rest), order=order))
        return rest

    @property
    def unplanned(self) -> list[Key]:
        """The recorded blocks that the plan does not have."""
        return [key for key, _ in self.recorded if key not in self._planned]

    def _start_of_cut_span(self, kept: int) -> int | None:
        """The first recorded block in a span of which a method has done some blocks and not all,
        None without one.
        """
        recorded = self.recorded[:kept]
        have = _methods_of(recorded)
        starts = []
        for name, policy in self._resets.items():
            for span in self._spans(policy) if policy in LASTING else ():
                done = {key for key in span if name in have.get(key, ())}
                if 0 < len(done) < len(span):
                    starts += [
                        at
                        for at, (key, names) in enumerate(recorded)
                        if key in done and name in names
                    ][:1]
        return min(starts, default=None)

    def _spans(self, policy: str) -> list[list[Key]]:
        """The plan's blocks, cut where a method of this policy is reset."""
        spans: list[list[Key]] = []
        for index, block in enumerate(self._plan):
            if starts_span(self._plan, index, policy):
                spans.append([])
            spans[-1].append(block.key)
        return spans


def _methods_of(recorded: Recorded) -> dict[Key, frozenset[str]]:
    """The methods that each block is done with."""
    found: dict[Key, frozenset[str]] = {}
    for key, methods in recorded:
        found[key] = found.get(key, frozenset()) | methods
    return found
