"""What a run decodes on: a loaded model behind an engine, or recorded tokens; and how its requests are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.decode.check import check_engine
from specbench.job import Job, way_between_gpus
from specbench.material import REPLAY, model_options
from specbench.measure.plan import WARMUP
from specbench.method import Peer
from specbench.session import Ask, Bound
from specbench.target.choose import TENSOR, make_engine, make_timed, use_threads
from specbench.target.engine import Engine
from specbench.target.facade import Target
from specbench.target.load import load_model
from specbench.target.replay import ReplayEngine
from specbench.target.tensor_parallel.start import TeamSettings, start
from specbench.target.timed import TIMED, TimedEngine, WatchedTarget
from specbench.types import Case, InputError, named


@dataclass(frozen=True, slots=True)
class Stage:
    """warmup: cases to decode before the clock counts. ask: see ``Session``. note: on the choice of the engine.
    way: how several GPUs share the model (``parallel_way``), None = one device.
    """

    engine: Engine
    target: Target
    ask: Callable[[Case, Sequence[str]], Ask]
    warmup: tuple[Case, ...]
    note: str | None = None
    way: str | None = None


def set_stage(job: Job) -> Stage:
    """Load the target of a job. Raises InputError when it cannot be driven."""
    config = job.config
    if config.engine.kind == REPLAY:
        replayed = ReplayEngine(job.card.eos, config.engine.max_nodes)
        target = Target(job.card, None, config.engine.max_nodes, None)
        return Stage(replayed, target, _recall(job, replayed), _first_cases(job))
    seed = config.model.random.seed if config.model.random else 0
    way, why = way_between_gpus(config, job.card, job.entries)
    if way == TENSOR:
        return _share(job, seed)
    model = load_model(job.card, seed=seed, **model_options(config))
    use_threads(model, config.model.threads)
    if config.engine.kind == TIMED:
        return _time(job, model)
    wanted = config.engine
    loaded, reason = make_engine(wanted.kind, model, job.card, wanted.max_nodes, config.model.attention, wanted.pack)
    reason = (why or reason) if wanted.kind == "auto" else None
    return _stage(job, loaded, model, way, f"engine=auto chose {loaded.kind}: {reason}" if reason else None)


def _share(job: Job, seed: int) -> Stage:
    """A model that several processes hold together."""
    model, wanted = job.config.model, job.config.engine
    terms = TeamSettings(
        card=job.card,
        ranks=model.gpus or 1,
        max_nodes=wanted.max_nodes,
        revision=model.revision,
        safetensors=model.safetensors,
        seed=seed,
        pack=wanted.pack,
        threads=model.threads,
        check=model.check_ranks,
    )
    engine, whole = start(terms)
    try:
        return _stage(job, engine, whole, TENSOR)
    except BaseException:
        engine.close()
        raise


def _stage(job: Job, engine: Engine, model: Any, way: str | None, note: str | None = None) -> Stage:
    """A model that answers the suite's questions, once its engine has been found to be right."""
    config, prompts = job.config, job.prompts
    assert prompts is not None
    check_engine(engine, model)

    def ask(case: Case, answers: Sequence[str]) -> Ask:
        return Ask(prompts.ids(case.turns[: len(answers) + 1], answers))

    # Of no suite: what warms kernels, allocators and caches must not have been measured, nor be measured later.
    warmup = tuple(WARMUP[index % len(WARMUP)] for index in range(config.measure.warmup))
    return Stage(engine, Target(job.card, model, config.engine.max_nodes, job.sampling), ask, warmup, note, way)


def _time(job: Job, model: Any) -> Stage:
    """A model that is driven along the trace."""
    wanted = job.config.engine
    engine, reason = make_timed(model, job.card, wanted.max_nodes, job.config.model.attention, wanted.pack)
    check_engine(engine, model)
    note = f"engine=timed drives the eager forward: {reason}" if reason else None
    target = WatchedTarget(job.card, model, wanted.max_nodes, None)
    return Stage(engine, target, _recall(job, engine), _first_cases(job), note)


def _first_cases(job: Job) -> tuple[Case, ...]:
    """Of the trace: only what is recorded can be decoded."""
    assert job.trace is not None
    return tuple(each.case for each in job.trace.conversations[: job.config.measure.warmup])


def _recall(job: Job, engine: ReplayEngine | TimedEngine) -> Callable[[Case, Sequence[str]], Ask]:
    """Requests as they were recorded; each is laid before the engine when it is made."""
    assert job.trace is not None
    turns = {each.case.id: each.turns for each in job.trace.conversations}

    def ask(case: Case, answers: Sequence[str]) -> Ask:
        turn = turns[case.id][len(answers)]
        prompt, ids = turn.prompt.tolist(), turn.ids.tolist()
        engine.load(prompt, ids)
        return Ask(prompt, len(ids), turn.text)

    return ask


def bind(bound: Sequence[Bound], target: Target, engine: Engine) -> frozenset[str]:
    """Let every method meet the target, and the engine its needs.

    Returns, where the target is driven along a record, the methods whose drafts come from what it computes: what is
    accepted of them says nothing. Raises InputError for one that cannot be served.
    """
    readers = set[str]()
    for entry in bound:
        if isinstance(entry.method, Peer) and engine.kind in (REPLAY, TIMED):
            raise InputError(_no_replay(entry.name, "it decodes with the model itself"))
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
        if engine.kind == TIMED and (reads or watched):
            readers.add(entry.name)
        if not isinstance(entry.method, Peer):
            engine.prepare(needs, target.sampling is None)
    return frozenset(readers)


def _no_replay(name: str, reason: str) -> str:
    return f"method.{name}: {reason}, and a replay has recorded tokens only; leave it out, or choose a model"
