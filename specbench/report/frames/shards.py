"""Which machine measured what of a merged run: its shards, the speed of vanilla on each, and each one's A/A control."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specbench import stats
from specbench.records.record import CONTROL, VANILLA
from specbench.records.store import Run
from specbench.report.frames.control import BLOCK, MAX_WIDTH, Control, read_control
from specbench.report.frames.facts import Facts
from specbench.report.frames.profiles import read_device
from specbench.report.frames.trials import Column, Columns, Trials


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
    vanilla, again = ([_of_shard(trials.columns(name), n) for n in range(len(shards))] for name in (VANILLA, CONTROL))
    speeds = stats.estimates([_per_token(rows) for rows in vanilla]) if facts.timed else [None] * len(shards)
    found = []
    for number, (shard, speed) in enumerate(zip(shards, speeds, strict=True)):
        own = replace(run, manifest=run.manifest | {"machine": machines.get(number, {})})
        control = read_control(vanilla[number], again[number]) if facts.timed else None
        found.append(MeasuredShard(shard["part"], read_device(own, facts), shard["cases"], speed, control))
    return tuple(found)


def _of_shard(rows: Columns, number: int) -> Columns:
    here = rows["shard"] == number
    return {name: rows[name][here] for name in (*BLOCK, "wall_s")}


def _per_token(vanilla: Columns) -> tuple[Column, Column]:
    """Columns of its time a token."""
    good = vanilla["ok"]
    return vanilla["wall_s"][good], vanilla["tokens"][good]


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
