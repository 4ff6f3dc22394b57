"""The one decode loop, for vanilla and every method: propose, forward, settle, observe.

Vanilla is this loop with an empty draft. A peer has its own loop, but its tokens are counted in the
same way.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from specbench.decode.budgets import Budgets, in_whole_draft
from specbench.decode.sampling import Sampling
from specbench.decode.walk import Walk
from specbench.measure.clock import Clock
from specbench.method import Drafter, Method, Peer, Remote, Settled
from specbench.models.engine import Engine
from specbench.models.verify import cut
from specbench.records.record import PREFIX
from specbench.types import CaseError, Draft, Lossy, Step


def derive_seed(base: int, *names: object) -> int:
    """Derive a 63-bit seed from the run's seed and names: case id, turn, round and role ("verify"
    or "draft").

    The method is not among the names, so all methods of a block draw the same numbers.
    """
    text = "\x1f".join(str(name) for name in (base, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


Entry = tuple[Draft, Step, int]  # and the rows fed
DIGITS = 7  # of a second, that a record keeps


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to decode."""

    prompt: Sequence[int]
    limit: int  # the most tokens to emit
    sampling: Sampling | None
    seed: int  # of the run
    rule: Lossy | None = None  # of acceptance, None is exact
    names: tuple[object, ...] = ()  # case id, turn, round
    keep_trees: bool = False
    # the first draft hangs below the prompt's last token, and is verified with it
    in_prefill: bool = False
    budgets: Budgets | None = None  # of drafts
    kept: int = 0  # [tokens] of the prompt that the last request left in the engine's cache
    # of the prompt, for a server that writes it itself
    conversation: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Transcript:
    """The record of one request; its lists have an entry per decode step
    (``specbench.records.record.TurnRecord``).
    """

    ids: list[int] = field(default_factory=list)
    finish: str = "length"
    accept: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    sources: dict[str, list[int]] = field(default_factory=dict)
    stats: dict[str, float] = field(default_factory=dict)
    trees: list[dict[str, Any]] | None = None
    prefill_s: float = 0.0
    decode_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    cpu_s: float | None = None

    def end(self, eos: frozenset[int], cut_short: bool) -> None:
        """Enter why the request ended. cut_short: the context had no capacity for its limit."""
        self.finish = (
            "eos" if self.ids and self.ids[-1] in eos else "context" if cut_short else self.finish
        )

    def enter(self, settled: Settled, eos: frozenset[int], limit: int) -> None:
        """Enter the ids and steps that a server reports at the end; step times are kept if their
        number fits.
        """
        self.ids = cut(settled.ids, eos, limit)[0]
        self.accept = [emitted for emitted, _ in settled.steps]
        self.proposed = [proposed for _, proposed in settled.steps]
        self.depth, self.fed = self.proposed, [1 + proposed for proposed in self.proposed]
        self.stats = dict(settled.stats)
        self.finish = (
            "context" if len(self.ids) < limit and "text_only" not in self.stats else self.finish
        )
        self.step_s = self.step_s if len(self.step_s) == len(self.accept) else []

    def count(self, log: Sequence[Entry], names: Sequence[str]) -> None:
        """Enter the steps' figures; called once the clock has stopped."""
        drafted: Counter[int] = Counter()
        accepted: Counter[int] = Counter()
        for draft, step, fed in log:
            proposed, depth = _size(draft)
            self.accept.append(len(step.emitted))
            self.fed.append(fed)
            self.proposed.append(proposed)
            self.depth.append(depth)
            if draft.source is not None:
                source = _sources_of_verifiable(draft, draft.source)
                for number in set(source):
                    drafted[int(number)] += source.count(number)
                accepted.update(int(draft.source[node]) for node in step.path)
            if self.trees is not None:
                self.trees.append(_tree(draft, step, names))
        self.sources = {
            names[number]: [count, accepted[number]] for number, count in sorted(drafted.items())
        }


def _sources_of_verifiable(draft: Draft, source: Sequence[int]) -> list[int]:
    """The sources of the nodes that may be accepted."""
    if draft.passenger is None:
        return source if isinstance(source, list) else [int(number) for number in source]
    return [
        int(number)
        for number, passenger in zip(source, draft.passenger, strict=True)
        if not passenger
    ]


def _tree(draft: Draft, step: Step, names: Sequence[str]) -> dict[str, Any]:
    """A whole draft and its accepted path; ``sources``, ``passengers`` and ``late`` only where
    there are any.
    """
    tree: dict[str, Any] = {
        "tokens": [int(token) for token in draft.tokens],
        "parents": [int(parent) for parent in draft.parents],
        "path": [int(node) for node in step.path],
    }
    if draft.source is not None:
        tree["sources"] = {}
        for node, number in enumerate(draft.source):
            tree["sources"].setdefault(names[number], []).append(node)
    if draft.passenger is not None:
        tree["passengers"] = [node for node, passenger in enumerate(draft.passenger) if passenger]
    if step.late:
        tree["late"] = True
    return tree


def _size(draft: Draft) -> tuple[int, int]:
    """(non-passenger nodes, depth of the deepest one)."""
    parents, passengers = draft.parents, draft.passenger
    if isinstance(parents, range) and passengers is None:  # a chain
        return len(parents), len(parents)
    depths = [0]  # of the root, then of the nodes
    for parent in parents:
        depths.append(depths[parent + 1] + 1)
    if passengers is not None:
        depths = [
            0,
            *(
                depth
                for depth, passenger in zip(depths[1:], passengers, strict=True)
                if not passenger
            ),
        ]
    return len(depths) - 1, max(depths)


@torch.inference_mode()
def decode(engine: Engine, method: Method, request: Request, clock: Clock) -> Transcript:
    """Decode one turn. Raises CaseError when the case cannot be decoded."""
    room = engine.context - len(request.prompt)
    if room < 1:
        raise CaseError(
            f"prompt of {len(request.prompt)} tokens; expected fewer than the model's context of"
            f" {engine.context} (leave the case out, or raise model.context if the model allows it)"
        )
    if request.in_prefill and len(request.prompt) < 2:
        raise CaseError("prompt of 1 token; expected 2 or more with decode.first_draft=prefill")
    limit = min(request.limit, room)
    # A drafter that needs every row of the prompt has them only of a prompt that is read as a
    # whole.
    whole = isinstance(method, Peer) or method.needs.prompt_hidden or method.needs.prompt_topk > 0
    kept = engine.keep_prefix(
        0 if whole else max(0, min(request.kept, len(request.prompt) - 1 - request.in_prefill))
    )
    engine.reserve(len(request.prompt) + limit)
    if isinstance(method, Peer):
        transcript = _decode_peer(engine, method, request, limit, clock)
    else:
        transcript = _decode_drafts(engine, method, request, limit, clock)
    transcript.end(engine.eos, cut_short=limit < request.limit)
    if kept:
        transcript.stats[PREFIX] = float(kept)
    return transcript


def _decode_drafts(
    engine: Engine, method: Method, request: Request, limit: int, clock: Clock
) -> Transcript:
    out = Transcript(trees=[] if request.keep_trees else None)
    prompt, given = request.prompt, None
    # the prompt's last token takes the place of the prefill's: the first root, but not emitted
    if request.in_prefill:
        prompt, given, limit = prompt[:-1], prompt[-1], limit + 1
    walk = Walk(
        request.sampling,
        derive_seed(request.seed, *request.names, "verify"),
        request.rule,
        given,
        request.keep_trees,
    )
    clock.start()
    prefill = engine.start(prompt, limit, walk, method.needs, clock)
    if given is not None:
        prefill = replace(prefill, given=True)
    out.prefill_s = clock.elapsed("prefill")
    clock.mark()  # the wait for the second token begins
    context = [*prompt, prefill.token]
    log: list[Entry] = []
    drafter = method.begin(prompt, prefill, derive_seed(request.seed, *request.names, "draft"))
    clock.lap("update")  # what a method learns from the prompt
    if limit > 1 and (prefill.given or prefill.token not in engine.eos):
        log = _steps(engine, method, drafter, context, limit, clock, request.budgets)
    drafter.finish(context)
    out.decode_s = clock.elapsed("update") - out.prefill_s
    out.ids = context[len(request.prompt) :]
    out.cpu_s = clock.processor_s()
    out.step_s = [round(seconds, DIGITS) for seconds in clock.steps()]
    out.count(log, method.sources)
    out.stats = method.figures(drafter, out.ids) | walk.stats()
    out.phases_s = {name: value for name, value in clock.phases().items() if name != "prefill"}
    return out


def _steps(
    engine: Engine,
    method: Method,
    drafter: Drafter,
    context: list[int],
    limit: int,
    clock: Clock,
    budgets: Budgets | None,
) -> list[Entry]:
    """Draft and verify until the request ends; ``context`` grows. The log is read after the clock
    has stopped.
    """
    log: list[Entry] = []
    end = len(context) - 1 + limit
    concurrent = method.needs.concurrent
    late: Draft | None = None
    kept: Sequence[int] | None = None
    done, share, begun = False, engine.max_nodes, 0.0
    drafter.goes_on = budgets.goes_on if budgets else None
    while not done:
        if budgets:
            begun = time.perf_counter()
            share = budgets.share([method], engine.max_nodes)[0]
        draft = drafter.propose(context, share)
        if budgets:
            draft, kept = budgets.trim([method], [draft], [share])[0]
        clock.lap("draft")
        if concurrent:
            drafter.launch()
        engine.forward(draft)
        if concurrent:
            late = drafter.join()
            clock.lap("draft")  # the time that the target waited
        step = engine.settle(end - len(context), late)
        context.extend(step.emitted)
        drafter.observe(in_whole_draft(step, kept))
        if budgets:
            budgets.observe([draft], [step], engine.fed, time.perf_counter() - begun)
        clock.lap("update")
        clock.mark()
        log.append((*without_tensors(draft, step), engine.fed))
        done = step.done
    return log


def without_tensors(draft: Draft, step: Step) -> tuple[Draft, Step]:
    """Return a step for the log, without tensors, which would keep device memory allocated."""
    if draft.probs is not None:
        draft = replace(draft, probs=None)
    if step.parents is not None:
        draft = replace(draft, parents=step.parents)
    if step.fed is not None:  # made anew: ``replace`` takes several times as long, at every step
        step = Step(
            step.root, step.emitted, step.path, step.done, late=step.late, parents=step.parents
        )
    return draft, step


def _decode_peer(
    engine: Engine, method: Peer, request: Request, limit: int, clock: Clock
) -> Transcript:
    out = Transcript()

    def emit(ids: Sequence[int]) -> bool:
        kept, done = cut(ids, engine.eos, limit - len(out.ids))
        clock.lap("peer")
        clock.mark()
        if not out.ids:
            out.prefill_s = clock.elapsed()
        else:
            out.accept.append(len(kept))
            out.proposed.append(0)
            out.depth.append(0)
            out.fed.append(1)
        out.ids.extend(kept)
        return done

    if isinstance(method, Remote):
        method.prepare()
    seed = derive_seed(request.seed, *request.names, "verify")
    with method.around(limit, seed):
        clock.start()
        if isinstance(method, Remote):
            method.decode(request.prompt, limit, seed, emit, request.conversation)
        else:
            method.decode(request.prompt, limit, seed, emit)
        out.decode_s = clock.elapsed() - out.prefill_s
    out.step_s = [round(seconds, DIGITS) for seconds in clock.steps()]
    if isinstance(method, Remote):
        out.enter(method.settle(), engine.eos, limit)
    if not out.ids:
        raise CaseError(
            f"{type(method).__name__} emitted nothing; expected at least the prefill's token"
        )
    return out
