"""What a run decodes on: a loaded model behind an engine, or recorded tokens; and how its requests are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbench.decode.check import check_engine
from specbench.job import Job
from specbench.material import model_options
from specbench.measure.plan import WARMUP
from specbench.method import Peer
from specbench.session import Ask, Bound
from specbench.target.eager import EagerEngine
from specbench.target.engine import Engine
from specbench.target.facade import Target
from specbench.target.load import load_model
from specbench.target.replay import ReplayEngine
from specbench.types import Case, InputError, named


@dataclass(frozen=True, slots=True)
class Stage:
    """warmup: cases to decode before the clock counts. ask: see ``Session``."""

    engine: Engine
    target: Target
    ask: Callable[[Case, Sequence[str]], Ask]
    warmup: tuple[Case, ...]


def set_stage(job: Job) -> Stage:
    """Load the target of a job. Raises InputError when it cannot be driven."""
    config = job.config
    count = config.measure.warmup
    if job.trace is not None:
        engine = ReplayEngine(job.card.eos, config.engine.max_nodes)
        target = Target(job.card, None, config.engine.max_nodes, None)
        first = [each.case for each in job.trace.conversations[:count]]
        return Stage(engine, target, _recall(job, engine), tuple(first))
    prompts = job.prompts
    assert prompts is not None
    seed = config.model.random.seed if config.model.random else 0
    model = load_model(job.card, seed=seed, **model_options(config))
    loaded = EagerEngine(model, job.card.context, job.card.eos, config.engine.max_nodes)
    check_engine(loaded, model)

    def ask(case: Case, answers: Sequence[str]) -> Ask:
        return Ask(prompts.ids(case.turns[: len(answers) + 1], answers))

    # Of no suite: what warms kernels, allocators and caches must not have been measured, nor be measured later.
    warmup = tuple(WARMUP[index % len(WARMUP)] for index in range(count))
    return Stage(loaded, Target(job.card, model, config.engine.max_nodes, job.law), ask, warmup)


def _recall(job: Job, engine: ReplayEngine) -> Callable[[Case, Sequence[str]], Ask]:
    """Requests as they were recorded; each is laid before the engine when it is made."""
    assert job.trace is not None
    turns = {each.case.id: each.turns for each in job.trace.conversations}

    def ask(case: Case, answers: Sequence[str]) -> Ask:
        turn = turns[case.id][len(answers)]
        prompt, ids = turn.prompt.tolist(), turn.ids.tolist()
        engine.load(prompt, ids)
        return Ask(prompt, len(ids), turn.text)

    return ask


def bind(bound: Sequence[Bound], target: Target) -> None:
    """Let every method meet the target. Raises InputError for one that the stage cannot serve."""
    for entry in bound:
        if target.model is None and isinstance(entry.method, Peer):
            raise InputError(_no_replay(entry.name, "it decodes with the model itself"))
        with named(f"method.{entry.name}."):
            entry.method.bind(target)
        needs = entry.method.needs
        if target.model is None:
            if needs.node_topk or needs.prompt_topk or needs.hidden:
                raise InputError(_no_replay(entry.name, "it needs the target's logits or hidden states"))
        elif needs.hidden and max(needs.hidden) > target.layers:
            raise InputError(
                f"method.{entry.name}: needs hidden state {max(needs.hidden)}, the target has 0..{target.layers}"
            )


def _no_replay(name: str, reason: str) -> str:
    return f"method.{name}: {reason}, and a replay has recorded tokens only; leave it out, or choose a model"
