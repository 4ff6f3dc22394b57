"""The contents of a run's manifest, blank where it has none. What tables and captions need of a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.records.record import CONTROL, VANILLA, EngineKind
from specbench.records.store import MANIFEST, Run, RunError
from specbench.report.frames.grown import LATER

TIME_ONLY = "time only: accepted lengths replayed"


@dataclass(frozen=True, slots=True)
class Facts:
    """A run as tables and captions name it.

    methods: vanilla, its control, then the others in the manifest's order.
    lossy: those that do not promise vanilla's output.
    peers: those with a loop of their own, whose drafts and phases are not recorded.
    planned: cases of the suite; parameters: of the target; None = unknown.
    timed: False for a replayed target, whose times are not the model's. trace: what was replayed, in a line.
    price: of an hour of the machine, in any currency.
    profile: the latency profile of the predictions, in a line; '' without one.
    time_only: a model was driven along recorded answers: its times are real, and what was accepted is the record's.
    unaccepted: methods of such a run that draft from what the model computes; only the time of a step is known of them.
    in_prefill: the first draft was verified with the prompt (decode.first_draft=prefill).
    later: its methods came to a run that was there; vanilla ran beside them and is not among them.
    load: the settings of requests that shared forwards; empty where each ran alone.
    rules: who ends a draft and how it is verified, in words, where a run set them.
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
    unaccepted: frozenset[str] = frozenset()
    in_prefill: bool = False
    later: bool = False
    load: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[str, ...] = ()

    @property
    def ran_on(self) -> str:
        """'float32, cpu'; 'replayed' where no model was run; '' where the manifest has neither."""
        if not self.timed:
            return "replayed"
        return ", ".join(filter(None, (self.dtype, self.device, TIME_ONLY if self.time_only else "")))

    @property
    def arrivals(self) -> str:
        """'8 requests at once'; '' where each ran alone."""
        if not self.load:
            return ""
        rate = f", {self.load['rate']:g} a second" if self.load.get("rate") else ""
        least = "" if self.load["kind"] == "closed" else "at most "
        return f"{least}{self.load['requests']} request{'' if self.load['requests'] == 1 else 's'} at once{rate}"


def say_loads(facts: Sequence[Facts]) -> str:
    """'8 requests at once', of several runs 'several loads'; '' where each request ran alone."""
    loads = dict.fromkeys(entry.arrivals for entry in facts)
    return next(iter(loads)) if len(loads) == 1 else "several loads"


def say_decoding(facts: Sequence[Facts]) -> str:
    """'temperature 0', with the rules that all of the runs have: 'temperature 0, drafts ended by adaedl'."""
    heat = " or ".join(dict.fromkeys(f"{entry.temperature:g}" for entry in facts))
    shared = [rule for rule in facts[0].rules if all(rule in entry.rules for entry in facts)]
    return ", ".join([f"temperature {heat}", *shared])


def read_facts(run: Run, seen: Iterable[str] | None = None) -> Facts:
    """The facts of a run. seen: the methods of its records, where they were read before.

    Raises RunError where the manifest lacks what no table can do without.
    """
    about, later = run.about, bool(run.manifest.get(LATER))
    for section, name in (("model", about.model.name), ("suite", about.suite.name)):
        if not name:
            _lacks(run, f"{section}.name")
    if not about.methods:
        _lacks(run, "methods")
    config, model, methods = about.config, about.model, about.methods
    kind, decode = config.engine.kind, config.decode
    rules = ((decode.length, "fixed", "drafts ended by {}"), (decode.verify, "token", "verified by {}"))
    return Facts(
        model=str(model.name),
        suite=str(about.suite.name),
        methods=_ordered(methods, (record.method for record in run.records) if seen is None else seen, later),
        later=later,
        lossy=frozenset(name for name, entry in methods.items() if not entry.lossless),
        peers=frozenset(name for name, entry in methods.items() if entry.peer),
        dtype=model.dtype or "",
        device=model.device or "",
        temperature=(about.temperature if "temperature" in run.manifest else decode.temperature) or 0.0,
        rounds=about.rounds or 1,
        planned=about.suite.cases,
        timed=kind != EngineKind.REPLAY,
        parameters=model.parameters,
        trace=about.trace or "",
        engine=about.engine or kind or "",
        price=config.measure.price_per_hour,
        time_only=kind == EngineKind.TIMED,
        load=run.section("config", "load") if config.load.kind != "one" else {},
        in_prefill=decode.first_draft == "prefill",
        rules=tuple(text.format(value) for value, usual, text in rules if value != usual),
        unaccepted=frozenset(
            name for name, entry in methods.items() if kind == EngineKind.TIMED and entry.reads_target
        ),
    )


def _lacks(run: Run, key: str) -> None:
    raise RunError(
        f"{run.directory / MANIFEST}: `{key}` is missing, expected it as `specbench` writes it; "
        "restore the file or run the command again with measure.fresh=true"
    )


def _ordered(methods: Mapping[str, Any], seen: Iterable[str], later: bool) -> tuple[str, ...]:
    """Vanilla, the control, the manifest's order, then those that only the records have.

    Without the first two where they are those of methods that came ``later``.
    """
    found = dict.fromkeys(seen)
    references = () if later else [name for name in (VANILLA, CONTROL) if name in found or name in methods]
    names = [*references, *(name for name in {**methods, **found} if not later or name not in (VANILLA, CONTROL))]
    return tuple(dict.fromkeys(names))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level of dotted keys; lists stay values."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat
