"""From a configuration to a checked job: all that can be checked without weights is checked here.

``prepare`` raises InputError, which names the key, its value, what was expected and the fix.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import pkgutil
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_type_hints

import pydantic

from specbench.decode.lengths import Limit, make_limit
from specbench.decode.sampling import Sampling, make_sampling
from specbench.measure.plan import RESETS, Block, make_plan, plan_stretches
from specbench.method import Method, Peer, Remote
from specbench.models.choose import check_attention, choose_parallelism
from specbench.models.facade import ModelCard
from specbench.names import near
from specbench.records.record import CONTROL, VANILLA, EngineKind
from specbench.runs.config import Config, DecodeConfig, refuse_numbers
from specbench.runs.digest import digest
from specbench.runs.material import Material, gather
from specbench.runs.session import Entry
from specbench.serving.settings import ONE, check_load
from specbench.suite import Suite
from specbench.suite.prompt import PromptBuilder
from specbench.trace import Trace
from specbench.types import InputError, named

MOST_BLOCKS = 1_000_000
RESERVED = ("_target_", "reset")  # keys of a method's configuration that are no parameters of its constructor
METHODS, PLUGINS = "methods", "specbench.methods"  # our own package; the group of a plugin's entry point
ANY_CLASS = pydantic.ConfigDict(arbitrary_types_allowed=True)


@dataclass(frozen=True, slots=True)
class Job:
    """A run that has passed every check that needs no weights. resolved: the configuration as plain values.

    entries: the methods; rows: the same with the A/A control, if there is one. prompts: None where a trace is
    replayed, whose prompts are recorded. way, why: see ``choose_parallelism``; (None, None) where no model is loaded.
    whole: the digest that it has without ``suite.part``. launch: the command that asked for it, None = this process.
    left_out: method of the default list -> why it cannot run here; it is in none of the others. limit: of drafts.
    """

    config: Config
    resolved: dict[str, Any]
    digest: str
    entries: tuple[Entry, ...]
    rows: tuple[Entry, ...]
    suite: Suite
    card: ModelCard
    prompts: PromptBuilder | None
    trace: Trace | None
    plan: tuple[Block, ...]
    sampling: Sampling | None
    limit: Limit
    way: str | None
    why: str | None
    whole: str
    launch: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


def prepare(config: Config, resolved: dict[str, Any], optional: Collection[str] = (), like: Job | None = None) -> Job:
    """Check a configuration and read everything but weights. Raises InputError.

    optional: methods that are left out where they cannot run, as nobody asked for them by name. like: a job that
    differs in its methods alone, whose material is not read again.
    """
    refuse_numbers(config)
    _check_settings(config)
    entries, left_out = _fitting(_read_methods(resolved["method"]), optional, lambda entry: _check_loop(config, entry))
    material = Material(like.suite, like.card, like.prompts, like.trace) if like else gather(config)
    check_attention(config.engine.attention, config.engine.kind, material.card)
    entries, others = _fitting(entries, optional, lambda entry: _check_model(material.card, entry))
    left_out |= others
    resolved = resolved | {"method": {name: node for name, node in resolved["method"].items() if name not in left_out}}
    way, why = _way_between_gpus(config, material.card, entries)
    decode = config.decode
    rows = list(entries)
    if config.measure.control:  # vanilla's own method under a second name
        rows.append(replace(entries[0], name=CONTROL))
    resets = {row.name: row.reset for row in rows}
    plan = _plan(config, material.suite, resets)
    return Job(
        config=config,
        resolved=resolved,
        digest=digest(resolved),
        entries=tuple(entries),
        rows=tuple(rows),
        suite=material.suite,
        card=material.card,
        prompts=material.prompts,
        trace=material.trace,
        plan=tuple(plan),
        sampling=make_sampling(decode.temperature, decode.top_k, decode.top_p, decode.verify),
        limit=limit_of(decode),
        way=way,
        why=why,
        whole=digest(resolved | {"suite": resolved["suite"] | {"part": None}}),
        left_out=left_out,
    )


def limit_of(decode: DecodeConfig) -> Limit:
    """The policy of draft lengths. Raises InputError."""
    return make_limit(decode.length, decode.length_threshold, decode.length_profile)


def _read_methods(nodes: Mapping[str, Any]) -> list[Entry]:
    """The methods of a configuration, vanilla first. Raises InputError."""
    entries = [make_entry(name, node) for name, node in nodes.items()]
    entries.sort(key=lambda entry: entry.name != VANILLA)
    if VANILLA not in {entry.name for entry in entries}:
        raise InputError(f"method.{VANILLA}: not in the run; expected always, as every speedup is against it")
    for entry in entries:
        if entry.name == CONTROL:
            raise InputError(f"method.{CONTROL}: is the name of measure.control's row; expected another name")
        if entry.reset not in RESETS:
            raise InputError(f"method.{entry.name}.reset={entry.reset}: expected one of {', '.join(RESETS)}")
    return entries


def _fitting(
    entries: Sequence[Entry], optional: Collection[str], check: Callable[[Entry], None]
) -> tuple[list[Entry], dict[str, str]]:
    """The methods that pass ``check``, and why others of ``optional`` do not. Raises the InputError of any other."""
    found, left_out = [], {}
    for entry in entries:
        try:
            check(entry)
            found.append(entry)
        except InputError as error:
            if entry.name not in optional:
                raise
            left_out[entry.name] = str(error)
    return found, left_out


def _check_settings(config: Config) -> None:
    """Raise InputError for values that make no sense, and for what no shared forward serves."""
    chosen = config.decode.first_draft
    if chosen not in ("after", "prefill"):
        raise InputError(f"decode.first_draft={chosen}: expected after or prefill")
    check_load(config.load)
    if config.load.kind == ONE:
        return
    refused = (
        ("decode.first_draft", config.decode.first_draft != "after", "after"),
        ("suite.part", config.suite.part is not None, "the whole suite"),
        ("run.shards", config.run.shards != 1, "1"),
    )
    for key, wrong, expected in refused:
        if wrong:
            raise InputError(f"{key}: expected {expected} with load={config.load.kind}, or load=one")


def _check_loop(config: Config, entry: Entry) -> None:
    """Raise InputError for a method that the loop of this configuration does not drive."""
    peer = isinstance(entry.method, Peer)
    if config.decode.first_draft == "prefill" and peer:
        raise InputError(
            f"method.{entry.name}: has a loop of its own, which decode.first_draft=prefill does not reach; expected"
            " methods of the harness's loop, or decode.first_draft=after"
        )
    if config.load.kind != ONE and peer and not isinstance(entry.method, Remote):
        raise InputError(f"method.{entry.name}: has a loop of its own, for one request; expected load=one")
    if config.load.kind != ONE and entry.reset == "category":
        raise InputError(
            f"method.{entry.name}.reset=category: requests of several categories are in flight at once; expected"
            " turn, case, never or run, or load=one"
        )


def _check_model(card: ModelCard, entry: Entry) -> None:
    with named(f"method.{entry.name}."):
        entry.method.check(card)


def _plan(config: Config, suite: Suite, resets: Mapping[str, str]) -> Sequence[Block]:
    rounds = config.measure.rounds
    _check_blocks(len(suite.cases), rounds)
    if config.load.kind != ONE:
        return plan_stretches(suite.cases, tuple(resets), rounds, config.load.block)
    return make_plan(suite.cases, resets, rounds, config.measure.seed, suite.whole)


def _check_blocks(cases: int, rounds: int) -> None:
    if cases * rounds > MOST_BLOCKS:
        raise InputError(
            f"measure.rounds={rounds}: of {cases} cases are {cases * rounds} blocks; expected at most {MOST_BLOCKS}, so"
            " fewer rounds or cases (suite.limit)"
        )


def _way_between_gpus(config: Config, card: ModelCard, entries: Sequence[Entry]) -> tuple[str | None, str | None]:
    if config.engine.kind in (EngineKind.REPLAY, EngineKind.SERVER):  # no model is loaded
        return None, None
    way, why = choose_parallelism(
        card,
        parallel=config.model.parallel,
        gpus=config.model.gpus,
        engine=config.engine.kind,
        attention=config.model.attention,
        peers=[entry.name for entry in entries if isinstance(entry.method, Peer)],
    )
    return way, why


def make_entry(name: str, node: Mapping[str, Any]) -> Entry:
    """One method from its configuration; its constructor is its schema. Raises InputError."""
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise InputError(
            f"method.{name}: has no _target_; choose it with method=[{name}] before setting its parameters"
        )
    kind = _method_class(f"method.{name}._target_={node['_target_']}", str(node["_target_"]))
    parameters = {key: value for key, value in node.items() if key not in RESERVED}
    arguments = {key: _with_members(f"{name}.{key}", value) for key, value in parameters.items()}
    _check_parameters(name, kind, arguments)
    with named(f"method.{name}."):
        method = kind(**arguments)
    return Entry(name, method, node.get("reset", "case"), parameters)


def _method_class(key: str, target: str) -> type[Method]:
    """The class that a ``_target_`` names. Nothing is imported from elsewhere, and nothing else is called."""
    package = re.split("[.:]", target)[0]
    if not _is_plugin(package):
        raise InputError(
            f"{key}: {package} holds no methods; expected a class of {METHODS}, of a package with an entry point in the"
            f" group {PLUGINS}, or of a module in the working directory or a folder of PYTHONPATH"
        )
    try:
        kind = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{key}: cannot be imported ({error})") from error
    if not (isinstance(kind, type) and issubclass(kind, Method)) or inspect.isabstract(kind):
        raise InputError(f"{key}: expected a subclass of specbench.method.Method with all that it requires")
    return kind


def _is_plugin(package: str) -> bool:
    """Whether a package may hold methods, found out without importing it."""
    if package == METHODS or package in {point.module.partition(".")[0] for point in entry_points(group=PLUGINS)}:
        return True
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return True  # its import says what is missing
    places = spec.submodule_search_locations or ([str(spec.origin)] if spec.has_location else [])
    own = {Path(folder).resolve() for folder in (".", *os.environ.get("PYTHONPATH", "").split(os.pathsep))}
    return any(Path(place).resolve().parent in own for place in places)


def _with_members(name: str, value: Any) -> Any:
    """A mapping of configured methods, which a method may be composed of, as methods; anything else as it is."""
    if not isinstance(value, Mapping) or not any(
        isinstance(part, Mapping) and "_target_" in part for part in value.values()
    ):
        return value
    return {key: make_entry(f"{name}.{key}", part).method for key, part in value.items()}


def _check_parameters(name: str, kind: type, parameters: Mapping[str, Any]) -> None:
    """Names and types against the constructor's signature."""
    signature = inspect.signature(kind)
    hints = get_type_hints(vars(kind).get("__init__", object))
    for key, value in parameters.items():
        if key not in signature.parameters:
            raise InputError(f"method.{name}.{key}: no such parameter; {near(key, list(signature.parameters))}")
        if key not in hints:
            continue
        try:
            pydantic.TypeAdapter(hints[key], config=ANY_CLASS).validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            wanted = error.errors()[0]["msg"]
            raise InputError(f"method.{name}.{key}={value}: {wanted} (declared {hints[key]})") from error
    missing = [
        key
        for key, parameter in signature.parameters.items()
        if parameter.default is parameter.empty and key not in parameters
    ]
    if missing:
        raise InputError(f"method.{name}: lacks {', '.join(missing)}; set them with method.{name}.{missing[0]}=...")
