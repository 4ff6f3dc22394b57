"""What a run decodes on: a loaded model behind an engine, or recorded tokens, with the methods bound to it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specbench.decode.check import check_engine
from specbench.decode.threads import ThreadChoice, choose_threads
from specbench.measure.plan import WARMUP
from specbench.method import Peer, Remote
from specbench.models.choose import TENSOR, make_engine, make_timed
from specbench.models.engine import Engine
from specbench.models.facade import Target
from specbench.models.fast.attention import FastOptions, allow_cudnn_attention
from specbench.models.load import load_model
from specbench.models.replay import ReplayEngine, ServerEngine
from specbench.models.tensor_parallel.start import TeamSettings, start
from specbench.models.timed import TimedEngine, WatchedTarget
from specbench.records.record import VANILLA, EngineKind
from specbench.runs.job import Job
from specbench.runs.material import model_options
from specbench.runs.session import Entry, Turn
from specbench.types import Case, InputError, named

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stage:
    """A loaded target and its engine.

    next_turn: see ``Session``. warmup: cases to decode before the clock counts. note: on the choice of the engine.
    readers: the methods whose drafts come from what the target computes, where it is driven along a record: how much
    of them is accepted says nothing. threads: of the CPU that it decodes on.
    """

    engine: Engine
    target: Target
    next_turn: Callable[[Case, Sequence[str]], Turn]
    warmup: tuple[Case, ...]
    note: str | None = None
    readers: frozenset[str] = frozenset()
    threads: ThreadChoice | None = None


@contextlib.contextmanager
def set_stage(job: Job, threads: int | None = None) -> Iterator[Stage]:
    """The target of a job, loaded, its methods bound; both are closed in the end.

    threads: those of the run that is resumed, if any.
    Raises InputError when the target cannot be driven or a method cannot be served.
    """
    stage = _load(job)
    try:
        if job.way != TENSOR and job.config.engine.kind not in (EngineKind.REPLAY, EngineKind.SERVER):
            log.info("choosing the threads")
            stage = replace(stage, threads=choose_threads(stage.engine, job.config.model.threads, threads))
        readers = frozenset(entry.name for entry in job.entries if _bind(entry, stage))
        if stage.engine.kind == EngineKind.SERVER:
            _require_same_model(job.entries)
        log.info("warming up, %d prompts a method", len(stage.warmup))
        yield replace(stage, readers=readers)
    finally:
        for entry in job.entries:
            entry.method.close()
        stage.engine.close()


def _load(job: Job) -> Stage:
    config = job.config
    allow_cudnn_attention(config.model.cudnn_attention)
    if config.engine.kind == EngineKind.REPLAY:
        replayed = ReplayEngine(job.card.eos, config.engine.max_nodes)
        target = Target(job.card, None, config.engine.max_nodes, None)
        return Stage(replayed, target, _recall(job, replayed), _first_cases(job))
    if config.engine.kind == EngineKind.SERVER:
        return _stage(job, ServerEngine(job.card, config.engine.max_nodes), None)
    log.info("loading the weights of %s", job.card.name)
    seed = config.model.random.seed if config.model.random else 0
    if job.way == TENSOR:
        return _share(job, seed)
    model = load_model(job.card, seed=seed, **model_options(config))
    if config.engine.kind == EngineKind.TIMED:
        return _time(job, model)
    wanted = config.engine
    options = _fast_options(job)
    loaded, reason = make_engine(wanted.kind, model, job.card, wanted.max_nodes, config.model.attention, options)
    reason = (job.why or reason) if wanted.kind == EngineKind.AUTO else None
    return _stage(job, loaded, model, f"engine=auto chose {loaded.kind}: {reason}" if reason else None)


def _fast_options(job: Job) -> FastOptions:
    engine = job.config.engine
    return FastOptions(engine.pack, engine.attention, engine.compiled)


def _share(job: Job, seed: int) -> Stage:
    """A model that several processes hold together."""
    model, wanted = job.config.model, job.config.engine
    settings = TeamSettings(
        card=job.card,
        ranks=model.gpus or 1,
        max_nodes=wanted.max_nodes,
        revision=model.revision,
        safetensors=model.safetensors,
        seed=seed,
        options=_fast_options(job),
        threads=model.threads,
        check=model.check_ranks,
    )
    engine, whole = start(settings)
    try:
        return _stage(job, engine, whole)
    except BaseException:
        engine.close()
        raise


def _stage(job: Job, engine: Engine, model: Any, note: str | None = None) -> Stage:
    """A model that answers the suite's questions, its engine checked."""
    config, prompts = job.config, job.prompts
    assert prompts is not None
    if model is not None:
        log.info("checking the engine")
        check_engine(engine, model)

    def next_turn(case: Case, answers: Sequence[str]) -> Turn:
        return Turn(prompts.ids(case.turns[: len(answers) + 1], answers))

    warmup = tuple(WARMUP[index % len(WARMUP)] for index in range(config.measure.warmup))
    return Stage(
        engine,
        Target(job.card, model, config.engine.max_nodes, job.sampling, config.engine.attention),
        next_turn,
        warmup,
        note,
    )


def _time(job: Job, model: Any) -> Stage:
    """A model whose answers are those of the trace."""
    wanted = job.config.engine
    engine, reason = make_timed(model, job.card, wanted.max_nodes, job.config.model.attention, _fast_options(job))
    check_engine(engine, model)
    note = f"engine=timed drives the eager forward: {reason}" if reason else None
    target = WatchedTarget(job.card, model, wanted.max_nodes, None, wanted.attention)
    return Stage(engine, target, _recall(job, engine), _first_cases(job), note)


def _first_cases(job: Job) -> tuple[Case, ...]:
    """The warm-up cases, of the trace: only what is recorded can be decoded."""
    assert job.trace is not None
    return tuple(each.case for each in job.trace.conversations[: job.config.measure.warmup])


def _recall(job: Job, engine: ReplayEngine | TimedEngine) -> Callable[[Case, Sequence[str]], Turn]:
    """Turns as they were recorded; the engine loads each before it is decoded."""
    assert job.trace is not None
    turns = {each.case.id: each.turns for each in job.trace.conversations}
    given = int(job.config.decode.first_draft == "prefill")  # tokens of the prompt that the engine emits as an answer's

    def next_turn(case: Case, answers: Sequence[str]) -> Turn:
        turn = turns[case.id][len(answers)]
        prompt, ids = turn.prompt.tolist(), turn.ids.tolist()
        split = len(prompt) - given
        engine.load(prompt[:split], prompt[split:] + ids)
        return Turn(prompt, len(ids), turn.text)

    return next_turn


def _bind(entry: Entry, stage: Stage) -> bool:
    """Bind a method to the target, prepare the engine for its needs; True where the method is one of the ``readers``.

    Raises InputError for a method that cannot be served.
    """
    engine, target = stage.engine, stage.target
    if isinstance(entry.method, Peer) and engine.kind in (EngineKind.REPLAY, EngineKind.TIMED):
        raise InputError(_no_replay(entry.name, "it decodes with the model itself"))
    if engine.kind == EngineKind.SERVER and not isinstance(entry.method, Remote):
        raise InputError(
            f"method.{entry.name}: decodes with a model here, and engine=server has none; expected rows of servers"
            " (methods.server.method.ServerPeer), or a model and engine=auto"
        )
    log.info("loading %s", entry.name)
    watched = target.asked if isinstance(target, WatchedTarget) else []
    watched.clear()
    with named(f"method.{entry.name}."):
        entry.method.bind(target)
    needs = entry.method.needs
    reads = bool(needs.node_topk or needs.prompt_topk or needs.hidden)
    if target.model is None:
        if reads:
            raise InputError(_no_replay(entry.name, "it needs the target's logits or hidden states"))
    elif needs.hidden and max(needs.hidden) > target.layers:
        raise InputError(
            f"method.{entry.name}: needs hidden state {max(needs.hidden)}, the target has 0..{target.layers}"
        )
    if not isinstance(entry.method, Peer):
        engine.prepare(needs, target.sampling is None)
    return engine.kind == EngineKind.TIMED and bool(reads or watched)


def _require_same_model(entries: Sequence[Entry]) -> None:
    """Raise InputError where servers have another model than the baseline's."""
    methods = {entry.name: entry.method for entry in entries if isinstance(entry.method, Remote)}
    for name, method in methods.items():
        if method is not methods[VANILLA]:
            with named(f"method.{name}."):
                method.require_same_model(methods[VANILLA])


def _no_replay(name: str, reason: str) -> str:
    return f"method.{name}: {reason}, and a replay has recorded tokens only; leave it out, or choose a model"
