"""One run of a report with what is read from it once, its A/A control, its warnings, and remarks on
several runs.

The A/A control is vanilla timed against itself: the speedup that a machine shows although nothing
differs. A merged run has a control for each of its shards, with the machine and the speed of
vanilla on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench import stats
from specbench.records.record import CONTROL, VANILLA, CaseRecord
from specbench.records.store import Run
from specbench.report.frames.cases import overall
from specbench.report.frames.facts import TIME_ONLY, Facts, read_device
from specbench.report.frames.predict import Prediction, describe_leads, processor_share
from specbench.report.frames.trials import Columns, Trials, ratio
from specbench.report.label import format_rate, format_share, label

# the columns of records that a control is read from
BLOCK = ("case", "round", "stretch", "ok", "time_s", "tokens")
OWN_PROCESSOR = 0.9  # of the wall time, that a thread has a processor if no other process competes
MAX_WIDTH = 0.01  # a re-timing interval wider than this hides differences of a percent


@dataclass(frozen=True, slots=True)
class Control:
    """retimed: vanilla over its repetition, a re-timing interval (``stats.retiming``), not one over
    prompts.

    unit: what it is over: blocks, or under load stretches, whose requests slow each other.
    """

    retimed: stats.Estimate
    unit: str = "blocks"

    @property
    def steady(self) -> bool | None:
        """Whether the interval contains 1 and is narrower than 1 %; None with too few units for an
        interval.
        """
        low, high = self.retimed.low, self.retimed.high
        if low is None or high is None:
            return None
        return low <= 1.0 <= high and high - low < MAX_WIDTH

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 1: something but the method changed the times."""
        low, high = self.retimed.low, self.retimed.high
        return low is not None and high is not None and not low <= 1.0 <= high

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
            return (
                f"{text} over {found.count} {self.unit}, too few for an interval (at least"
                f" {stats.MIN_CASES})"
            )
        text += (
            f", 95 % of re-timings in [{found.low:.4f}, {found.high:.4f}], {found.count}"
            f" {self.unit}"
        )
        if self.steady:
            return f"{text}: steady"
        reason = "it should contain 1" if self.differs else "it should be narrower than 1 %"
        return f"{text}: unsteady ({reason})"


def read_control(first: Columns, again: Columns) -> Control | None:
    """The control of vanilla's records and its repetition's, paired by block, or by stretch; None
    without a pair.
    """
    one, other = first["ok"], again["ok"]
    keys, ours, theirs = np.intersect1d(
        _numbers(first, "case")[one],
        _numbers(again, "case")[other],
        assume_unique=True,
        return_indices=True,
    )
    if not len(keys):
        return None
    order = np.argsort(ours)
    pairs = [
        (first, np.flatnonzero(one)[ours[order]]),
        (again, np.flatnonzero(other)[theirs[order]]),
    ]
    columns = [rows[name][places] for rows, places in pairs for name in ("time_s", "tokens")]
    own, places = pairs[0]
    if (own["stretch"][places] < 0).any():
        return Control(stats.retiming(*columns))
    _, stretches = np.unique(_numbers(own, "stretch")[places], return_inverse=True)
    return Control(
        stats.retiming(*(np.bincount(stretches, column) for column in columns)), "stretches"
    )


def _numbers(rows: Columns, unit: str) -> NDArray[np.int64]:
    """(R,) a number for each case, or stretch, and round."""
    return np.asarray(rows[unit].astype(np.int64) << 32 | rows["round"])


@dataclass(frozen=True, slots=True)
class MeasuredShard:
    """A shard of a merged run. part: ``k/n``. machine: as a latency profile names it.

    per_token_s: vanilla's time of a token [s], None if no model was timed. control: None without an
    A/A pair.
    """

    part: str
    machine: str
    cases: int
    per_token_s: stats.Estimate | None
    control: Control | None


def read_shards(run: Run, facts: Facts, trials: Trials) -> tuple[MeasuredShard, ...]:
    """The shards of a merged run, in the order of its manifest; none of any other."""
    machines = {
        process.get("shard"): process.get("machine", {})
        for process in run.manifest.get("processes", [])
    }
    shards = run.manifest.get("shards", [])

    def of_shard(method: str, number: int) -> Columns:
        rows = trials.columns(method)
        return {name: rows[name][rows["shard"] == number] for name in (*BLOCK, "wall_s")}

    vanilla, again = (
        [of_shard(name, number) for number in range(len(shards))] for name in (VANILLA, CONTROL)
    )
    times = [(rows["wall_s"][rows["ok"]], rows["tokens"][rows["ok"]]) for rows in vanilla]
    speeds = stats.estimates(times) if facts.timed else [None] * len(shards)
    found = []
    for number, (shard, speed) in enumerate(zip(shards, speeds, strict=True)):
        own = replace(run, manifest=run.manifest | {"machine": machines.get(number, {})})
        control = read_control(vanilla[number], again[number]) if facts.timed else None
        found.append(
            MeasuredShard(shard["part"], read_device(own, facts), shard["cases"], speed, control)
        )
    return tuple(found)


def doubt_shards(shards: Sequence[MeasuredShard]) -> Iterator[str]:
    """Warnings: shards whose own control is unsteady, and machines that differ in speed beyond
    their controls.
    """
    for shard in shards:
        if shard.control is not None and shard.control.steady is False:
            yield f"A/A control of part {shard.part}, {shard.control.sentence()}"
    timed = [
        (shard.per_token_s, shard)
        for shard in shards
        if shard.per_token_s and shard.per_token_s.value > 0
    ]
    if len(timed) < 2:
        return
    fast, slow = (choose(timed, key=lambda each: each[0].value) for choose in (min, max))
    known = [shard.control.noise for shard in shards if shard.control]
    noise = max([MAX_WIDTH, *known])
    beyond = (
        f"beyond {100 * noise:.2g} % of noise"
        if known
        else "how much of it is noise is unknown (no A/A control)"
    )
    apart = fast[0].high is None or slow[0].low is None or fast[0].high < slow[0].low
    if apart and slow[0].value / fast[0].value > 1 + noise:
        yield (
            f"the shards differ in speed: vanilla {1 / fast[0].value:.1f} tokens/s in part"
            f" {fast[1].part} ({fast[1].machine}), {1 / slow[0].value:.1f} in {slow[1].part}"
            f" ({slow[1].machine}), {beyond}: speedups hold, as methods are paired within a block;"
            " times and tokens/s mix machines"
        )


Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """variants: method -> what distinguishes it from the same method in the other runs.

    control: None without an A/A pair. prediction: None if no latency profile was given or found.
    shards: of a merged run.
    """

    run: Run
    trials: Trials
    facts: Facts
    variants: Mapping[str, str]
    control: Control | None = None
    prediction: Prediction | None = None
    shards: tuple[MeasuredShard, ...] = ()

    @property
    def place(self) -> tuple[str, str]:
        """Model and suite."""
        return self.facts.model, self.facts.suite

    def key(self, method: str) -> Key:
        """Model, suite, method and variant: the names of the method's rows in every table."""
        return (*self.place, method, self.variants.get(method, ""))

    def records(self, method: str) -> Iterator[CaseRecord]:
        """The method's records, read again where the run does not keep them in memory."""
        return (self.run.records[place] for place in self.trials.columns(method)["record"].tolist())

    def succeeded(self, method: str) -> list[CaseRecord]:
        """The method's records of cases that failed in no round, as in every other figure."""
        counted = self.trials.columns(method)["counted"]
        return [record for record, good in zip(self.records(method), counted, strict=True) if good]


def of_least_load(entries: Sequence[ReportedRun], place: tuple[str, str]) -> list[ReportedRun]:
    """The runs with the least load of a model and suite: methods are compared with each other under
    one load.
    """
    here = [entry for entry in entries if entry.place == place]
    loads = [
        (entry.facts.load.get("requests", 1), entry.facts.load.get("rate") or 0) for entry in here
    ]
    return [entry for entry, load in zip(here, loads, strict=True) if load == min(loads)]


def keys_of(entries: Sequence[ReportedRun]) -> set[tuple[str, str]]:
    """(method, variant) of the runs."""
    return {
        (name, entry.variants.get(name, "")) for entry in entries for name in entry.facts.methods
    }


def only(frame: pd.DataFrame, keys: set[tuple[str, str]]) -> pd.DataFrame:
    """A frame's rows of these methods; the whole frame if it does not say which row is whose."""
    if not {"method", "variant"} <= set(frame.columns):
        return frame
    named = zip(frame["method"], frame["variant"], strict=True)
    return frame[np.fromiter((key in keys for key in named), bool, len(frame))]


_LACKING = (
    "{} of {} turns that think end before their thinking does and have no answer"
    " (decode.max_new_tokens sets how long they may be)"
)


def find_doubts(reported: ReportedRun, rows: pd.DataFrame) -> list[str]:
    """Warnings of one run, the manifest's first. rows: the run's rows of the summary."""
    run, facts = reported.run, reported.facts
    whole = overall(rows)
    turns = [each.turns for each in reported.trials.methods.values()]
    lacking, thought = sum(each.unanswered for each in turns), sum(each.thought for each in turns)
    found = [
        *run.manifest.get("warnings", []),
        *_coverage(len(reported.trials.cases), facts, whole, reported.trials.columns(VANILLA)),
        *_methods(whole, facts),
        *([_LACKING.format(lacking, thought)] if lacking else []),
        *_timing(run, facts, reported.prediction is not None, reported.control),
        *doubt_shards(reported.shards),
        *_predictions(reported),
    ]
    return list(dict.fromkeys(found))


def _coverage(seen: int, facts: Facts, rows: pd.DataFrame, vanilla: Columns) -> Iterator[str]:
    good = vanilla["counted"]
    rate = ratio(vanilla["tokens"][good].sum(), vanilla["time_s"][good].sum())
    again = f" ({format_rate(rate)} tokens/s)" if facts.timed and rate > 0 else ""
    if not seen:
        yield "no records: no case has finished yet"
    elif facts.planned and seen < facts.planned:
        yield (
            f"unfinished: {seen} of {facts.planned} cases are recorded; the same command continues"
            " the run"
        )
    if VANILLA not in set(rows["method"]) and seen and not facts.later:
        yield "vanilla has no records: there is no speedup"
    if facts.later:
        yield (
            f"{', '.join(facts.methods)}: added to the run later; speedups are over vanilla as it"
            f" ran again in the same blocks{again}, so tokens/s are not comparable with those of"
            " the other rows"
        )
    if 0 < seen < stats.MIN_CASES:
        yield (
            f"{seen} case{'s' if seen > 1 else ''}: no intervals are given under {stats.MIN_CASES}"
        )


def _methods(rows: pd.DataFrame, facts: Facts) -> Iterator[str]:
    for row in rows.itertuples():
        name = label(row.method, row.variant)
        total = row.cases + row.errors
        if row.errors:
            yield (
                f"{name}: {row.errors} of {total} cases failed and are in none of its figures (see"
                " Errors)"
            )
        if row.method == VANILLA and row.close_steps > 0:
            yield (
                f"{100 * row.close_steps:.2g} % of vanilla's steps are decided within a rounding"
                f" step of {facts.dtype}: answers and MAT can differ on another engine, device or"
                " version"
            )
        if row.method == VANILLA and row.violations > 0:
            yield (
                f"{name}: {int(row.violations)} ids beyond the tolerance: its own rounding"
                " exceeds it"
            )
        elif row.lossless < 1 and row.method not in facts.lossy:
            beyond = f"{int(row.violations)} ids lie beyond the tolerance of lossless output"
            unjudged = (
                "outputs that differ from vanilla's were not judged (measure.lossless=true judges"
                " them)"
            )
            yield f"{name}: {beyond if int(row.violations) else unjudged}"


def _timing(run: Run, facts: Facts, modelled: bool, control: Control | None) -> Iterator[str]:
    if not facts.timed:
        blank = "its times and every speedup stay blank"
        figures = "its times stay blank and speedups are modelled" if modelled else blank
        yield (
            "replayed target: MAT, acceptance, tokens fed and the drafters' own time are real; no"
            f" model was run, so {figures}"
        )
        return
    if facts.synthetic:
        yield (
            f"{facts.time_note}: neither MAT nor tokens are the model's, and no speedup is claimed"
        )
    elif facts.time_only:
        yield (
            f"{TIME_ONLY}: the model's forwards are real and follow recorded answers, so times hold"
            " for drafts that are accepted as recorded; no speedup is claimed"
        )
    for name in sorted(facts.unaccepted):
        yield (
            f"{label(name)}: it drafts from what the model computes, which is not recorded: the"
            " time of its steps is real, MAT and every figure that needs it stay blank"
        )
    if control is None and run.manifest.get("control"):
        yield (
            "the A/A control has no finished case in common with vanilla: the steadiness of the"
            " timing is unknown"
        )
    elif control is None:
        yield "no A/A control: how steady the timing was is not known (measure.control=true)"
    elif not control.steady:
        yield f"A/A control, {control.sentence()}"


def _predictions(reported: ReportedRun) -> Iterator[str]:
    found = reported.prediction
    if found is None:
        return
    outside, steps = (
        sum(cases[name].sum() for cases in found.cases.values()) for name in ("outside", "steps")
    )
    share = outside / max(1, steps)
    if share > 0:
        yield (
            f"predicted speedups: {100 * share:.1f} % of the steps lie outside what the profile"
            " measured (fewer or more tokens, shorter or longer contexts); its edges were extended"
        )
    facts = reported.facts
    if facts.timed and not found.own:
        yield (
            f"predicted speedups are those of {found.profile.label}; the run was on"
            f" {read_device(reported.run, facts)} ({facts.model}, {facts.engine}, {facts.dtype}),"
            " so its measured ones cannot be compared with them, and the time of drafting is that"
            " of this machine"
        )


LIKE = 1.5  # sizes of models that differ by less are alike
LOOPED = 1.02  # times the MAT outside loops, from which a MAT is remarked on
_MOST_LOOPED = 3  # methods of a remark
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(b|m)(?![a-z])")
_UNITS = {"b": 1e9, "m": 1e6}
_SILENT = (
    "Every answer is empty or of one token: no figure here is of decoding. Check the model, its"
    " template and model.overrides."
)
_RANDOM = (
    "The weights are random: their answers are not a trained model's, so MAT and speedups say"
    " nothing of one. Their logits are close to each other: several tokens are within the tolerance"
    " of the lossless check, which counts them as ties."
)
_HIDDEN = ("questions", "weights")  # known by hashes, which mean nothing to a reader
# What rows next to each other have in common.
_SHARED: dict[str, Callable[[ReportedRun], Any]] = {
    "weights": lambda entry: entry.run.section("model").get("fingerprint"),
    "questions": lambda entry: entry.run.section("suite").get("sha256"),
    "temperature": lambda entry: f"{entry.facts.temperature:g}",
    "dtype": lambda entry: entry.facts.dtype,
    "engine": lambda entry: entry.facts.engine,
    "device": lambda entry: read_device(entry.run, entry.facts) if entry.facts.timed else None,
    "load": lambda entry: entry.facts.arrivals or "one request at a time",
    "first draft": lambda entry: "in the prefill" if entry.facts.in_prefill else "after it",
    "tokens a turn": lambda entry: entry.run.section("config", "decode").get("max_new_tokens"),
}


def find_remarks(entries: Sequence[ReportedRun]) -> tuple[str, ...]:
    """The remarks on the runs of one model and suite."""
    differ = []
    for what, read in _SHARED.items():
        values = dict.fromkeys(
            str(value) for entry in entries if (value := read(entry)) is not None
        )
        if len(values) > 1:
            differ.append(what if what in _HIDDEN else f"{what} ({', '.join(values)})")
    modelled = {
        label(method, entry.variants.get(method, "")): cases
        for entry in entries
        if entry.prediction is not None and not entry.facts.timed
        for method, cases in entry.prediction.cases.items()
        if method not in entry.facts.lossy
    }
    apart = (
        f"The runs differ in {' and '.join(differ)}: methods of different runs are not compared by"
        " these figures."
    )
    leads = filter(None, [describe_leads(modelled)])
    return tuple(
        dict.fromkeys(
            [*doubt_times(entries), *leads, *_of_each(entries), *([apart] if differ else [])]
        )
    )


def is_busy(run: Run, facts: Facts, trials: Trials) -> bool:
    """Whether other processes competed with a run: by the load when it began, or the processor time
    of a replay.

    Vanilla's replay waits for nothing but a processor; a model may wait for its own threads.
    """
    if any(text.endswith("times are unsafe") for text in run.manifest.get("warnings", [])):
        return True
    rows = trials.columns(VANILLA)
    share = np.median(processor_share(rows)[rows["ok"]]) if rows["ok"].any() else 1.0
    return not facts.timed and bool(share < OWN_PROCESSOR)


def doubt_times(entries: Sequence[ReportedRun]) -> Iterator[str]:
    """Why the times of the runs of one model and suite are unsafe."""

    def competed(some: Sequence[ReportedRun]) -> list[str]:
        busy = any(is_busy(entry.run, entry.facts, entry.trials) for entry in some)
        return ["other processes competed for the processor"] if busy else []

    timed = [entry for entry in entries if entry.facts.timed]
    noise = [
        entry.control.noise for entry in timed if entry.control and entry.control.steady is False
    ]
    reasons = competed(timed)
    if noise:
        some = "" if len(timed) == 1 else f" (unsteady: {len(noise)} of {len(timed)} runs)"
        reasons.append(f"vanilla against itself differs by up to {100 * max(noise):.1f} %{some}")
    if reasons:
        yield f"The times are unsafe: {' and '.join(reasons)}."
    for reason in competed([entry for entry in entries if not entry.facts.timed]):
        yield f"The drafting times are unsafe: {reason}."


def _limits(entry: ReportedRun) -> Iterator[str]:
    """The limits of nodes that the methods of a run have, if they have limits of their own."""
    methods = entry.run.section("methods")
    nodes = {
        name: methods[name]["nodes"]
        for name in entry.facts.methods
        if "nodes" in methods.get(name, {})
    }
    if not nodes:
        return
    shown = ", ".join(f"{name} {most or '0 (plain decoding)'}" for name, most in nodes.items())
    setting = ",".join(f"{name}:{most}" for name, most in nodes.items())
    chosen = any("node_speedups" in methods[name] for name in nodes)
    again = f"; engine.max_nodes={{{setting}}} repeats this choice" if chosen else ""
    yield f"Drafts have at most the nodes that {'pay' if chosen else 'are set'}: {shown}{again}."


def _loops(entry: ReportedRun) -> Iterator[str]:
    """The methods whose MAT is larger because of answers that repeat themselves without end."""
    shown, share = [], 0.0
    for method in entry.facts.methods:
        columns = entry.trials.columns(method)
        rows = columns["counted"]
        names = ("emitted", "steps", "fresh_emitted", "fresh_steps", "repeated", "tokens")
        total = {name: columns[name][rows].sum() for name in names}
        mat, outside = (
            ratio(total["emitted"], total["steps"]),
            ratio(total["fresh_emitted"], total["fresh_steps"]),
        )
        share = max(share, ratio(total["repeated"], total["tokens"]))
        if mat > LOOPED * outside and method not in entry.facts.unaccepted:
            shown.append(
                (mat / outside, f"{label(method)} {mat:.2f} ({outside:.2f} outside loops)")
            )
        elif total["steps"] and not total["fresh_steps"]:
            shown.append((mat, f"{label(method)} {mat:.2f} (no step outside loops)"))
    if shown:
        most = ", ".join(text for _, text in sorted(shown, reverse=True)[:_MOST_LOOPED])
        yield (
            f"{format_share(share)} of the tokens are in loops, answers that repeat themselves"
            f" without end, where nearly every draft is accepted: MAT of {most}."
        )


def _of_each(entries: Sequence[ReportedRun]) -> Iterator[str]:
    for entry in entries:
        yield from _limits(entry)
        yield from _loops(entry)
        if "random" in map(entry.run.section("model").get, ("path", "weights")):
            yield _RANDOM
        columns = entry.trials.columns(VANILLA)
        if (counted := columns["counted"]).any() and not columns["answered"][counted].any():
            yield _SILENT
        if entry.prediction is None:
            continue
        profile, facts = entry.prediction.profile, entry.facts
        there = profile.parameters or read_size(profile.model)
        here = facts.parameters or read_size(facts.model)
        if there and here and not 1 / LIKE < there / here < LIKE:
            yield (
                f"The profile is of a model of another size: {profile.model} has"
                f" {spell_size(there)} parameters, {facts.model} {spell_size(here)}."
            )


def read_size(name: str) -> float | None:
    """The number of parameters in a model's name, as in 'vicuna-7b-v1.3'; None without one."""
    found = _SIZE.search(name.lower())
    return float(found[1]) * _UNITS[found[2]] if found else None


def spell_size(parameters: float) -> str:
    """'8.0 billion'."""
    unit, name = (1e9, "billion") if parameters >= 1e9 else (1e6, "million")
    return f"{parameters / unit:.1f} {name}"
