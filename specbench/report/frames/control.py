"""The A/A control: vanilla timed against itself, the apparent speedup of a machine without a change.

A merged run has a control for each of its shards, with the machine and the speed of vanilla on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specbench import stats
from specbench.records.record import CONTROL, VANILLA
from specbench.records.store import Run
from specbench.report.frames.facts import Facts, read_device
from specbench.report.frames.trials import Columns, Trials

BLOCK = ("case", "round", "stretch", "ok", "time_s", "tokens")  # the columns of records that a control is read from
MAX_WIDTH = 0.01  # a re-timing interval wider than this hides differences of a percent


@dataclass(frozen=True, slots=True)
class Control:
    """retimed: vanilla over its repetition, a re-timing interval (``stats.retiming``), not one over prompts.

    unit: what it is over: blocks, or under load stretches, whose requests slow each other.
    """

    retimed: stats.Estimate
    unit: str = "blocks"

    @property
    def steady(self) -> bool | None:
        """The interval holds 1 and is narrower than 1 %; None with too few units for an interval."""
        low, high = self.retimed.low, self.retimed.high
        if low is None or high is None:
            return None
        return low <= 1.0 <= high and high - low < MAX_WIDTH

    @property
    def noise(self) -> float:
        """The largest distance from 1 that the re-timings allow."""
        bounds = (self.retimed.value, self.retimed.low, self.retimed.high)
        return max(abs(bound - 1) for bound in bounds if bound is not None)

    def sentence(self) -> str:
        """The verdict in words, figures included."""
        found = self.retimed
        text = f"vanilla against itself: {found.value:.4f}"
        if found.low is None or found.high is None:
            return f"{text} over {found.count} {self.unit}, too few for an interval (at least {stats.MIN_CASES})"
        text += f", 95 % of re-timings in [{found.low:.4f}, {found.high:.4f}], {found.count} {self.unit}"
        if self.steady:
            return f"{text}: steady"
        reason = "it should hold 1" if not found.low <= 1.0 <= found.high else "it should be narrower than 1 %"
        return f"{text}: unsteady ({reason})"


def read_control(first: Columns, again: Columns) -> Control | None:
    """The control of vanilla's records and its repetition's, paired by block, or by stretch; None without a pair."""
    one, other = first["ok"], again["ok"]
    keys, ours, theirs = np.intersect1d(
        _numbers(first, "case")[one], _numbers(again, "case")[other], assume_unique=True, return_indices=True
    )
    if not len(keys):
        return None
    order = np.argsort(ours)
    pairs = [(first, np.flatnonzero(one)[ours[order]]), (again, np.flatnonzero(other)[theirs[order]])]
    columns = [rows[name][places] for rows, places in pairs for name in ("time_s", "tokens")]
    own, places = pairs[0]
    if (own["stretch"][places] < 0).any():
        return Control(stats.retiming(*columns))
    _, stretches = np.unique(_numbers(own, "stretch")[places], return_inverse=True)
    return Control(stats.retiming(*(np.bincount(stretches, column) for column in columns)), "stretches")


def _numbers(rows: Columns, unit: str) -> NDArray[np.int64]:
    """(R,) a number for each case, or stretch, and round."""
    return np.asarray(rows[unit].astype(np.int64) << 32 | rows["round"])


@dataclass(frozen=True, slots=True)
class MeasuredShard:
    """A shard of a merged run. part: ``k/n``. machine: as a latency profile names it.

    per_token_s: vanilla's time of a token [s], None where no model was timed. control: None without an A/A pair.
    """

    part: str
    machine: str
    cases: int
    per_token_s: stats.Estimate | None
    control: Control | None


def read_shards(run: Run, facts: Facts, trials: Trials) -> tuple[MeasuredShard, ...]:
    """The shards of a merged run, in the order of its manifest; none of any other."""
    machines = {process.get("shard"): process.get("machine", {}) for process in run.manifest.get("processes", [])}
    shards = run.manifest.get("shards", [])

    def of_shard(method: str, number: int) -> Columns:
        rows = trials.columns(method)
        return {name: rows[name][rows["shard"] == number] for name in (*BLOCK, "wall_s")}

    vanilla, again = ([of_shard(name, number) for number in range(len(shards))] for name in (VANILLA, CONTROL))
    times = [(rows["wall_s"][rows["ok"]], rows["tokens"][rows["ok"]]) for rows in vanilla]
    speeds = stats.estimates(times) if facts.timed else [None] * len(shards)
    found = []
    for number, (shard, speed) in enumerate(zip(shards, speeds, strict=True)):
        own = replace(run, manifest=run.manifest | {"machine": machines.get(number, {})})
        control = read_control(vanilla[number], again[number]) if facts.timed else None
        found.append(MeasuredShard(shard["part"], read_device(own, facts), shard["cases"], speed, control))
    return tuple(found)


def doubt_shards(shards: Sequence[MeasuredShard]) -> Iterator[str]:
    """Warnings: shards whose own control is unsteady, and machines that differ in speed beyond their controls."""
    for shard in shards:
        if shard.control is not None and shard.control.steady is False:
            yield f"A/A control of part {shard.part}, {shard.control.sentence()}"
    timed = [(shard.per_token_s, shard) for shard in shards if shard.per_token_s and shard.per_token_s.value > 0]
    if len(timed) < 2:
        return
    fast, slow = (choose(timed, key=lambda each: each[0].value) for choose in (min, max))
    known = [shard.control.noise for shard in shards if shard.control]
    noise = max([MAX_WIDTH, *known])
    beyond = f"beyond {100 * noise:.2g} % of noise" if known else "how much of it is noise is unknown (no A/A control)"
    apart = fast[0].high is None or slow[0].low is None or fast[0].high < slow[0].low
    if apart and slow[0].value / fast[0].value > 1 + noise:
        yield (
            f"the shards differ in speed: vanilla {1 / fast[0].value:.1f} tokens/s in part {fast[1].part}"
            f" ({fast[1].machine}), {1 / slow[0].value:.1f} in {slow[1].part} ({slow[1].machine}),"
            f" {beyond}: speedups hold, as methods are paired within a block; times and tokens/s"
            " mix machines"
        )
