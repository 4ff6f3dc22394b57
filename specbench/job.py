"""From a configuration to a checked job: everything the user can have got wrong is found here, before any weights.

``prepare`` raises InputError naming key, value, what was expected and the fix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.config import Config
from specbench.decode.sampling import Sampling
from specbench.material import REPLAY, gather
from specbench.measure.plan import RESETS, Block, make_plan
from specbench.method import Method, Peer
from specbench.record import VANILLA
from specbench.session import Bound, with_control
from specbench.suite import Suite
from specbench.suite.prompt import PromptBuilder
from specbench.target.choose import way_of
from specbench.target.facade import ModelCard
from specbench.target.timed import TIMED
from specbench.trace import Trace
from specbench.types import InputError, named

ENGINES = ("auto", "fast", "eager", REPLAY, TIMED)
LOWEST_TEMPERATURE = 1e-3  # below it, logits over temperature leave the range of float32


@dataclass(frozen=True, slots=True)
class Entry:
    """A method of this run before it is bound. parameters: for the manifest."""

    name: str
    method: Method
    reset: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A run that has passed every check that needs no weights. resolved: the configuration as plain values.

    prompts: None where a trace is replayed, whose prompts are recorded.
    """

    config: Config
    resolved: dict[str, Any]
    digest: str
    entries: tuple[Entry, ...]
    suite: Suite
    card: ModelCard
    prompts: PromptBuilder | None
    plan: tuple[Block, ...]
    sampling: Sampling | None
    trace: Trace | None = None


def prepare(config: Config, resolved: dict[str, Any], digest: str, entries: Sequence[Entry]) -> Job:
    """Check a configuration and read everything but weights. Raises InputError."""
    _check_numbers(config)
    if VANILLA not in {entry.name for entry in entries}:
        raise InputError(f"method.{VANILLA}: not in the run; expected always, as every speedup is against it")
    for entry in entries:
        if entry.reset not in RESETS:
            raise InputError(f"method.{entry.name}.reset={entry.reset}: expected one of {', '.join(RESETS)}")
    material = gather(config)
    if config.engine.kind != REPLAY:
        way_between_gpus(config, material.card, entries)
    for entry in entries:
        with named(f"method.{entry.name}."):
            entry.method.check(material.card)
    decode = config.decode
    sampling = Sampling(decode.temperature, decode.top_k, decode.top_p) if decode.temperature > 0 else None
    resets = {bound.name: bound.reset for bound in with_control(unbound(entries), config.measure.control)}
    suite = material.suite
    plan = make_plan(suite.cases, resets, config.measure.rounds, config.measure.seed)
    parts = (suite, material.card, material.prompts, tuple(plan), sampling, material.trace)
    return Job(config, resolved, digest, tuple(entries), *parts)


def way_between_gpus(config: Config, card: ModelCard, entries: Sequence[Entry]) -> tuple[str | None, str | None]:
    """How several GPUs share the model; see ``way_of``."""
    return way_of(
        card,
        parallel=config.model.parallel,
        gpus=config.model.gpus,
        engine=config.engine.kind,
        attention=config.model.attention,
        peers=[entry.name for entry in entries if isinstance(entry.method, Peer)],
    )


def unbound(entries: Sequence[Entry]) -> list[Bound]:
    """The methods as the session knows them."""
    return [Bound(entry.name, entry.method, entry.reset) for entry in entries]


def _check_numbers(config: Config) -> None:
    decode, measure, engine = config.decode, config.measure, config.engine
    if engine.kind not in ENGINES:
        raise InputError(f"engine.kind={engine.kind}: expected one of {', '.join(ENGINES)}")
    limits = (
        ("decode.max_new_tokens", decode.max_new_tokens, 1, None),
        ("decode.temperature", decode.temperature, 0, None),
        ("decode.top_k", decode.top_k, 0, None),
        ("decode.top_p", decode.top_p, 1e-6, 1),
        ("measure.rounds", measure.rounds, 1, None),
        ("measure.warmup", measure.warmup, 0, None),
        ("measure.keep_trees", measure.keep_trees, 0, None),
        ("measure.price_per_hour", measure.price_per_hour, 0, None),
        ("engine.max_nodes", engine.max_nodes, 1, 4096),
        ("model.threads", config.model.threads, 1, None),
    )
    for key, value, low, high in limits:
        if value is not None and not (math.isfinite(value) and low <= value and (high is None or value <= high)):
            upper = f" and at most {high}" if high is not None else ""
            raise InputError(f"{key}={value}: expected at least {low}{upper}")
    if 0 < decode.temperature < LOWEST_TEMPERATURE:
        raise InputError(
            f"decode.temperature={decode.temperature}: expected 0 (greedy) or at least {LOWEST_TEMPERATURE}"
        )
