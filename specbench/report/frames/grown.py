"""A run that has grown by methods, as one run for all methods that were measured in the same blocks.

So each method is paired with the vanilla that ran beside it; only the first of these runs shows vanilla itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specbench.records.record import CONTROL, VANILLA
from specbench.records.store import Run

LATER = "added_later"  # of the manifest of a run whose vanilla is not shown


def split_grown(run: Run) -> list[Run]:
    """The run itself, unless it has grown by methods; then those that came first, and the others."""
    if not run.manifest.get("grown"):
        return [run]
    blocks: dict[str, set[int]] = {}
    for record in run.records:
        blocks.setdefault(record.method, set()).add(record.block)
    groups: dict[frozenset[int], list[str]] = {}
    for name in run.manifest["methods"]:
        if name != VANILLA:
            groups.setdefault(frozenset(blocks.get(name, ())), []).append(name)
    return list(_parts(run, groups)) if len(groups) > 1 else [run]


def _parts(run: Run, groups: dict[frozenset[int], list[str]]) -> Iterator[Run]:
    order = sorted(groups, key=lambda blocks: min(blocks, default=len(run.records)))
    for number, blocks in enumerate(order):
        names = {VANILLA, CONTROL, *groups[blocks]}
        methods = {name: entry for name, entry in run.manifest["methods"].items() if name in names}
        records = [each for each in run.records if each.block in blocks and each.method in names]
        yield replace(run, manifest=run.manifest | {"methods": methods, LATER: number > 0}, records=records)
