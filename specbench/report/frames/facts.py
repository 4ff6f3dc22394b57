"""The facts about a run: those in its manifest, what distinguishes it from other runs, and its
latency profile.

A run that has grown by methods is split into one run for all methods that were measured in the same
blocks, so each method is paired with the vanilla that was measured with it; only the first of these
runs shows vanilla itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specbench.input import InputError
from specbench.profile import Profile, device_name, find_profile, open_profile
from specbench.profile.profile import MEASURED
from specbench.records.manifest import differing, flatten, spell_value
from specbench.records.record import CONTROL, VANILLA, EngineKind
from specbench.records.store import MANIFEST, Run, RunError

LATER = "added_later"  # of the manifest of a run whose vanilla is not shown


def split_grown(run: Run) -> list[Run]:
    """The run itself, unless it has grown by methods; then those that came first, and the
    others.
    """
    if not run.manifest.get("grown"):
        return [run]
    blocks: dict[str, set[int]] = {}
    for record in run.records:
        blocks.setdefault(record.method, set()).add(record.block)
    groups: dict[frozenset[int], list[str]] = {}
    for name in run.manifest["methods"]:
        if name != VANILLA:
            groups.setdefault(frozenset(blocks.get(name, ())), []).append(name)
    if len(groups) < 2:
        return [run]
    found: list[Run] = []
    for own in sorted(groups, key=lambda group: min(group, default=len(run.records))):
        names = {VANILLA, CONTROL, *groups[own]}
        methods = {name: entry for name, entry in run.manifest["methods"].items() if name in names}
        records = [each for each in run.records if each.block in own and each.method in names]
        manifest = run.manifest | {"methods": methods, LATER: bool(found)}
        found.append(replace(run, manifest=manifest, records=records))
    return found


TIME_ONLY = "time only: accepted lengths replayed"


@dataclass(frozen=True, slots=True)
class Facts:
    """A run as tables and captions name it.

    methods: vanilla, its control, then the others in the manifest's order.
    lossy: those that do not promise vanilla's output.
    peers: those with their own loop, whose drafts and phases are not recorded.
    planned: cases of the suite; parameters: of the target; None = unknown.
    timed: False for a replayed target, whose times are not the model's. trace: what was replayed,
    in a line. price: of an hour of the machine, in any currency. profile: the latency profile of
    the predictions, in a line; '' without one. time_only: a model was driven along recorded
    answers: its times are real, and what was accepted is the record's. synthetic: what acceptance
    was drawn from, '' if a model decided it; such a run is time_only. unaccepted: methods of such a
    run that draft from what the model computes; only the time of a step is known of them.
    in_prefill: the first draft was verified with the prompt (decode.first_draft=prefill). later:
    its methods were added to an existing run; vanilla was measured with them but is not among them.
    load: the settings of requests that shared forwards; empty if each ran alone. rules: who ends a
    draft, how it is verified, and which part or parts of a suite it has, where a run sets them.
    nodes: method -> the most nodes of its drafts, where it has a limit of its own.
    """

    model: str
    suite: str
    methods: tuple[str, ...]
    lossy: frozenset[str]
    peers: frozenset[str]
    dtype: str
    device: str
    temperature: float
    rounds: int
    planned: int | None
    timed: bool
    parameters: int | None = None
    trace: str = ""
    engine: str = ""
    price: float | None = None
    profile: str = ""
    time_only: bool = False
    synthetic: str = ""
    unaccepted: frozenset[str] = frozenset()
    in_prefill: bool = False
    later: bool = False
    load: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)

    @property
    def drafters(self) -> list[str]:
        """The methods whose drafts are recorded, with what was accepted of them."""
        silent = {VANILLA, CONTROL, *self.peers, *self.unaccepted}
        return [name for name in self.methods if name not in silent]

    @property
    def time_note(self) -> str:
        """Why only times are results; '' if other figures are too."""
        drawn = f"time only: acceptance drawn from a table ({self.synthetic})"
        return drawn if self.synthetic else TIME_ONLY if self.time_only else ""

    @property
    def ran_on(self) -> str:
        """'float32, cpu'; 'replayed' if no model was run; '' if the manifest has neither."""
        if not self.timed:
            return "replayed"
        return ", ".join(filter(None, (self.dtype, self.device, self.time_note)))

    @property
    def saturated(self) -> bool:
        """Whether requests follow each other: at given arrivals the tokens/s of a server are those
        that arrive.
        """
        return self.load.get("kind") == "closed"

    @property
    def arrivals(self) -> str:
        """'8 requests at once'; '' if each ran alone."""
        if not self.load:
            return ""
        rate = f", {self.load['rate']:g} a second" if self.load.get("rate") else ""
        least = "" if self.load["kind"] == "closed" else "at most "
        return (
            f"{least}{self.load['requests']} request{'' if self.load['requests'] == 1 else 's'} at"
            f" once{rate}"
        )


def describe_loads(facts: Sequence[Facts]) -> str:
    """'8 requests at once', of several runs 'several loads'; '' if each request ran alone."""
    loads = dict.fromkeys(entry.arrivals for entry in facts)
    return next(iter(loads)) if len(loads) == 1 else "several loads"


def describe_decoding(facts: Sequence[Facts]) -> str:
    """'temperature 0', with the rules that all of the runs have: 'temperature 0, drafts ended by
    adaedl'.
    """
    heat = " or ".join(dict.fromkeys(f"{entry.temperature:g}" for entry in facts))
    shared = [rule for rule in facts[0].rules if all(rule in entry.rules for entry in facts)]
    return ", ".join([f"temperature {heat}", *shared])


def read_facts(run: Run, seen: Iterable[str] | None = None) -> Facts:
    """The facts of a run. seen: the methods of its records, if they were read before.

    Raises RunError if the manifest lacks what no table can do without.
    """
    about, later = run.about, bool(run.manifest.get(LATER))
    config, model, methods = about.config, about.model, about.methods
    for key, found in (
        ("model.name", model.name),
        ("suite.name", about.suite.name),
        ("methods", methods),
    ):
        if not found:
            raise RunError(
                f"{run.directory / MANIFEST}: `{key}` is missing, expected it as `specbench` writes"
                " it; restore the file or run the command again with measure.fresh=true"
            )
    kind, decode = config.engine.kind, config.decode
    seen = dict.fromkeys((record.method for record in run.records) if seen is None else seen)
    # Methods that came later are shown without the references of the run that was there.
    references = (
        () if later else [name for name in (VANILLA, CONTROL) if name in seen or name in methods]
    )
    others = (name for name in {**methods, **seen} if not later or name not in (VANILLA, CONTROL))
    drawn = dict.fromkeys(
        f"{name}: {entry.synthetic}" for name, entry in methods.items() if entry.synthetic
    )
    curve = config.engine.acceptance if kind == EngineKind.TIMED else None
    synthetic = f"engine.acceptance={spell_value(curve)}" if curve is not None else "; ".join(drawn)
    rules = (
        (decode.length, "fixed", "drafts ended by {}"),
        (decode.verify, "token", "verified by {}"),
        (config.suite.get("part"), None, "part {} of the suite"),
        (len(about.shards), 0, "merged from {} parts (tokens/s are pooled over them)"),
    )
    return Facts(
        model=str(model.name),
        suite=str(about.suite.name),
        methods=tuple(dict.fromkeys([*references, *others])),
        later=later,
        lossy=frozenset(name for name, entry in methods.items() if not entry.lossless),
        peers=frozenset(name for name, entry in methods.items() if entry.peer),
        nodes={name: entry.nodes for name, entry in methods.items() if entry.nodes is not None},
        dtype=model.dtype or "",
        device=model.device or "",
        temperature=(about.temperature if "temperature" in run.manifest else decode.temperature)
        or 0.0,
        rounds=about.rounds or 1,
        planned=about.suite.cases,
        timed=kind != EngineKind.REPLAY,
        parameters=model.parameters,
        trace=about.trace or "",
        engine=about.engine or kind or "",
        price=config.measure.price_per_hour,
        time_only=kind == EngineKind.TIMED or bool(synthetic),
        synthetic=synthetic,
        load=run.section("config", "load") if config.load.kind != "one" else {},
        in_prefill=decode.first_draft == "prefill",
        rules=tuple(text.format(value) for value, usual, text in rules if value != usual),
        unaccepted=frozenset(
            name
            for name, entry in methods.items()
            if kind == EngineKind.TIMED and entry.reads_target and not synthetic
        ),
    )


def name_variants(runs: Sequence[Run], facts: Sequence[Facts]) -> list[dict[str, str]]:
    """For each run: method -> variant, '' if there is one run of it.

    Runs of the same model and suite are compared. A variant lists the method's own parameters that
    differ ('k=v,...'), then the run's settings that differ ('decode.temperature=1'). Where rows
    still read alike, because two runs repeat the same thing, the run's directory is added: a row is
    always one run's, since pairs live in one process.
    """
    names: list[dict[str, str]] = [{} for _ in runs]
    groups: dict[tuple[str, str], list[int]] = {}
    for index, fact in enumerate(facts):
        groups.setdefault((fact.model, fact.suite), []).append(index)
    for members in groups.values():
        loads = _LOAD if all(facts[index].load for index in members) else _LOAD_OR_ONE
        settings = differing([read_settings(runs[index], facts[index], loads) for index in members])
        for method in dict.fromkeys(name for index in members for name in facts[index].methods):
            holders = [
                place for place, index in enumerate(members) if method in facts[index].methods
            ]
            own = _differing_words(
                differing([read_parameters(runs[members[place]], method) for place in holders])
            )
            differ = [own[rank] | settings[place] for rank, place in enumerate(holders)]
            labels = [
                ",".join(f"{key}={_spell_short(value)}" for key, value in each.items())
                for each in differ
            ]
            for place, label in zip(
                holders, _distinct(labels, [runs[members[p]] for p in holders]), strict=True
            ):
                names[members[place]][method] = label
    return names


def _differing_words(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the parameters; commands of equal length keep the words that differ, each with the
    flag before it.
    """
    commands = [each.get("command") for each in choices]
    words: list[Any] = [each.split() if isinstance(each, str) else each for each in commands]
    if not all(isinstance(own, list) and len(own) == len(words[0]) for own in words):
        return choices
    columns = [[str(word) for word in column] for column in zip(*words, strict=True)]
    differ = {place for place, column in enumerate(columns) if len(set(column)) > 1}
    if not differ:  # but the spaces
        return choices
    differ |= {place - 1 for place in differ if place and columns[place - 1][0].startswith("-")}
    return [
        each | {"command": " ".join(_spell_short(columns[place][rank]) for place in sorted(differ))}
        for rank, each in enumerate(choices)
    ]


def _distinct(labels: list[str], runs: list[Run]) -> list[str]:
    """The labels, those that repeat with the last parts of their run's path, as many as make all
    paths differ.
    """
    paths = [run.directory.resolve().parts for run in runs]
    for depth in range(1, max(len(parts) for parts in paths) + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    else:
        names = [f"{'/'.join(parts[-1:])}#{rank}" for rank, parts in enumerate(paths)]
    counts = Counter(labels)
    return [
        ",".join(filter(None, (label, f"run={name}"))) if counts[label] > 1 else label
        for label, name in zip(labels, names, strict=True)
    ]


def without_run(variant: str) -> str:
    """The variant without the name of its run: what rows that repeat each other have in common."""
    return re.sub(r"(^|,)run=.*", "", variant)


_RUN_SECTIONS = ("model", "engine", "decode", "measure")
# of the suite's section
_SELECTION = ("order", "seed", "limit", "first", "sample", "categories", "ids", "shots")
# Two are the model column, one moves nothing, and the last one follows from the rate in a search
# (load.find).
_NOT_NAMED = ("model.name", "model.path", "measure.fresh", "load.patience")
# one request has none of the others
_LOAD, _LOAD_OR_ONE = ("load.",), ("load.kind", "load.requests", "load.rate")
# a parameter of who uses it
_MATERIAL = ("model.draft", "model.heads.", "model.frozen_table", "model.datastore")


def _spell_short(value: Any) -> str:
    """A file by its name alone; two of one name are distinguished by their runs."""
    return (
        Path(value).name
        if isinstance(value, str) and Path(value).is_absolute()
        else spell_value(value)
    )


def read_settings(run: Run, facts: Facts, loads: tuple[str, ...] = _LOAD) -> dict[str, Any]:
    """The run's own settings, flat, without those that have a column or that are a method's. loads:
    kept of load's.
    """
    flat = flatten({key: run.section("config", key) for key in _RUN_SECTIONS})
    chosen = run.section("config", "suite")
    flat |= {f"suite.{key}": chosen[key] for key in _SELECTION if key in chosen}
    flat.setdefault("decode.temperature", facts.temperature)
    load = flatten(facts.load, "load.") or {"load.requests": 1, "load.kind": "one"}
    flat |= {
        key: value for key, value in load.items() if key.startswith(loads) and value is not None
    }
    return {
        key: value
        for key, value in flat.items()
        if key not in _NOT_NAMED and not key.startswith(_MATERIAL)
    }


def read_parameters(run: Run, method: str) -> dict[str, Any]:
    """A method's parameters, flat, its reset policy among them."""
    entry = run.section("methods", method)
    flat = flatten(run.section("methods", method, "parameters"))
    return flat | ({"reset": entry["reset"]} if "reset" in entry else {})


FOLDER = "profiles"


def choose_profiles(
    runs: Sequence[Run], facts: Sequence[Facts], named: Path | None
) -> list[Profile | None]:
    """One profile per run. Raises RunError when the named one cannot be used."""
    if named is None:
        return [_find_nearby(*entry) for entry in zip(runs, facts, strict=True)]
    try:
        return [open_profile(named)] * len(runs)
    except InputError as error:
        raise RunError(f"--profile: {error}") from error


def is_own(run: Run, facts: Facts, profile: Profile) -> bool:
    """Returns whether the run's measurements may be compared with what this profile predicts.

    Models are compared by size, not by name: random weights of a shape take that shape's time.
    """
    there = (profile.kind, profile.device, profile.dtype, profile.parameters)
    here = (MEASURED, read_device(run, facts), facts.dtype, facts.parameters)
    return there == here and profile.engine in _engines(facts)


def _engines(facts: Facts) -> tuple[str, ...]:
    """A model that is driven along a record is driven by one of them."""
    return (
        (EngineKind.FAST, EngineKind.EAGER) if facts.engine == EngineKind.TIMED else (facts.engine,)
    )


def read_device(run: Run, facts: Facts) -> str:
    """The name of the run's device, as a profile has it."""
    shared = run.section("parallel")
    return device_name(run.section("machine"), facts.device, shared.get("way"), shared.get("gpus"))


def _find_nearby(run: Run, facts: Facts) -> Profile | None:
    """The profile of the run's device, model, engine and dtype in ``profiles/`` next to the run or
    its sweep.
    """
    if not facts.timed or not facts.device:
        return None
    folders = [parent / FOLDER for parent in run.directory.resolve().parents[:2]]
    device = read_device(run, facts)
    found = (
        find_profile(folders, device, facts.model, each, facts.dtype, facts.parameters)
        for each in _engines(facts)
    )
    return next((profile for _, profile in filter(None, found)), None)
