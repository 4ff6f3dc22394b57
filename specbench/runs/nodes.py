"""The number of nodes of a method's drafts that pays on this machine (``engine.max_nodes=auto``).

More nodes mean more accepted tokens, and a longer step. Vanilla decodes the beginning of a few of
the run's answers once. A method that drafts from the context alone is replayed along them at every
limit, without a forward. A method that reads the target decodes some of them with the few limits
after which the cost of a step rises. Steps cost what ``measure_steps`` has measured of their rows,
drafting what it took. Which tokens are emitted does not depend on the limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import json
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from specbench.decode.latency import price_rows
from specbench.kept import find_place
from specbench.measure.environment import machine, spell_busy, weights_fingerprint
from specbench.measure.plan import Block
from specbench.method import Method, Peer
from specbench.models.replay import ReplayEngine
from specbench.names import VERSION, printable
from specbench.records.manifest import Manifest
from specbench.records.record import DRAFTER_PHASES, VANILLA, CaseRecord
from specbench.records.store import write_atomically
from specbench.runs.entry import Entry
from specbench.runs.job import Job
from specbench.runs.session import Session
from specbench.runs.sources import Stage, Turn
from specbench.screen import LOADING
from specbench.types import Case

SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128)  # [nodes], below whole drafts
WORTH = 1.02  # by which a limit must be ahead of whole drafts
PLAUSIBLE = 3.0  # [tokens a step] that the largest trial must not need to be as fast as vanilla
RISES = 1.05  # the cost of a step, from a limit to the next
POWERS = (2, 4, 8, 16, 32, 64, 128)  # [nodes] of live trials
LIVE_CASES = 2
CASES, TOKENS = 4, 48  # of a trial, the tokens of each turn
LEAST_S, SHARE = 15.0, 0.05  # [s] that choosing may take; of the run's expected time, if longer
_FOLDER = "nodes"  # of earlier choices, in the cache

loading = logging.getLogger(LOADING)
Tried = dict[int, float]  # limit [nodes] -> modelled speedup


def limit_nodes(job: Job, stage: Stage, manifest: Manifest, earlier: Manifest) -> dict[str, int]:
    """Method -> the most nodes of its drafts, where the engine's limit is not that of all methods.

    They are given, those of the run that is resumed, those that an earlier run chose on this
    machine, or chosen now; the manifest gets them. earlier: of the run that is resumed.
    """
    given, found = job.config.engine.max_nodes, dict[str, int]()
    if isinstance(given, int):
        return found
    left = list[Entry]()
    for entry in job.entries:
        own, before = manifest.methods[entry.name], earlier.methods.get(entry.name)
        if isinstance(given, Mapping):
            if entry.name in given:
                own.nodes = given[entry.name]
        elif before is not None and before.nodes is not None:
            own.nodes, own.node_speedups = before.nodes, before.node_speedups
        elif entry.name != VANILLA and not isinstance(entry.method, Peer):
            left.append(entry)
    if left:
        for name, (nodes, tried) in choose_nodes(job, stage, left).items():
            own = manifest.methods[name]
            own.nodes, own.node_speedups = nodes, {str(size): gain for size, gain in tried.items()}
    for name, method in manifest.methods.items():
        if method.nodes is not None:
            found[name] = method.nodes
    return found


def choose_nodes(job: Job, stage: Stage, entries: Sequence[Entry]) -> dict[str, tuple[int, Tried]]:
    """Method -> its limit [nodes], 0 = not to draft, and the speedup of each limit that was tried.

    A choice is kept as soon as it is made. Earlier ones of this machine are taken, unless
    ``measure.fresh`` is set.
    """
    kept = EarlierChoices(job, stage)
    found = {} if job.config.measure.fresh else kept.find(entries)
    if found:
        print(
            printable(
                f"specbench: nodes of {', '.join(found)}: as an earlier run chose them on this"
                " machine; measure.fresh=true chooses anew"
            )
        )
    left = [entry for entry in entries if entry.name not in found]
    search = NodeSearch(job, stage)
    # what drafts from the context costs nothing, and leaves its time to the others
    for place, entry in enumerate(sorted(left, key=search.decodes)):
        loading.info(
            "choosing the nodes of %s, %d of %d, at most %.0f s left",
            *(entry.name, place + 1, len(left), search.left_s()),
        )
        nodes, tried = found[entry.name] = search.choose(entry)
        if all(tried.values()) and search.left_s():  # else a trial failed, or few were made
            kept.add(entry, (nodes, tried))
    return found


def reads_target(method: Method) -> bool:
    """Return true for a method whose drafts come from what the target computes."""
    needs = method.needs
    return bool(needs.node_topk or needs.prompt_topk or needs.hidden)


class NodeSearch:
    """Trials of limits on the beginnings of a few of a job's answers, within a time."""

    def __init__(self, job: Job, stage: Stage) -> None:
        """job: with all of its methods. stage: they are bound to it, and it has a profile."""
        assert stage.profile is not None
        self._stage, self._step_s = stage, price_rows(stage.profile)
        self._busy, self._most = bool(spell_busy()), stage.engine.max_nodes
        cases = job.source.suite.cases
        tokens = job.config.decode.max_new_tokens
        expected_s = len(cases) * tokens * len(job.entries) * self._step_s(1)
        self._end_s = time.perf_counter() + max(LEAST_S, SHARE * expected_s)
        if len(cases) > CASES:
            cases = tuple(cases[place * len(cases) // CASES] for place in range(CASES))
        self._cases = [replace(case, turns=case.turns[:1]) for case in cases]
        decode = replace(job.config.decode, max_new_tokens=min(TOKENS, tokens))
        measure = replace(job.config.measure, lossless=False, keep_trees=0)
        self._job = replace(job, config=replace(job.config, decode=decode, measure=measure))
        self._answers: dict[str, CaseRecord] | None = None  # of vanilla

    def left_s(self) -> float:
        """Return the time that is left [s]."""
        return max(0.0, self._end_s - time.perf_counter())

    def decodes(self, entry: Entry) -> bool:
        """Return true for a method that needs live trials: it reads the target, or its drafts are
        drawn, of which a replay knows only whether they are the recorded tokens.
        """
        warm = self._job.config.decode.temperature > 0
        return reads_target(entry.method) or (warm and bool(getattr(entry.method, "draws", False)))

    def choose(self, entry: Entry) -> tuple[int, Tried]:
        """Return the limit of a method as ``pick_limit``."""
        if self.decodes(entry):
            return self._try_live(entry)
        records = self._replay(entry, self._most)
        tried = {self._most: find_speedup(records, self._step_s, self._busy)}
        for size in SIZES:
            if size >= _widest(records) or not self.left_s():
                break
            tried[size] = find_speedup(self._replay(entry, size), self._step_s, self._busy)
        return pick_limit(tried, self._most)

    def _try_live(self, entry: Entry) -> tuple[int, Tried]:
        """Decode the shortest of the questions with one limit after the other, as ``climb`` chooses
        them.
        """
        shortest = sorted(self._cases, key=lambda case: len(case.turns[0]))[:LIVE_CASES]

        def try_out(nodes: int) -> float:
            records = self._decode(entry, self._stage, nodes, shortest)
            return find_speedup(records, self._step_s, self._busy)

        tried = climb(try_out, list_trials(self._step_s, self._most), lambda: self.left_s() > 0)
        return pick_limit(tried, max(tried) if any(tried.values()) else self._most)

    def _replay(self, entry: Entry, nodes: int) -> list[CaseRecord]:
        """Decode along vanilla's answers, without a forward."""
        if self._answers is None:
            loading.info("decoding %d answers to choose by", len(self._cases))
            [vanilla] = [each for each in self._job.entries if each.name == VANILLA]
            decoded = self._decode(vanilla, self._stage, self._most, self._cases)
            self._answers = {each.case: each for each in decoded if each.status == "ok"}
        answers, stage = self._answers, self._stage
        engine = ReplayEngine(stage.engine.eos, self._most)
        given = int(self._job.config.decode.first_draft == "prefill")

        def next_turn(case: Case, before: Sequence[str]) -> Turn:
            turn = answers[case.id].turns[len(before)]
            prompt = list(turn.prompt_ids or ())
            split = len(prompt) - given
            engine.load(prompt[:split], [*prompt[split:], *turn.ids])
            return Turn(prompt, len(turn.ids), turn.text)

        along = replace(stage, engine=engine, next_turn=next_turn)
        known = [case for case in self._cases if case.id in answers]
        return self._decode(entry, along, nodes, known)

    def _decode(
        self, entry: Entry, stage: Stage, nodes: int, cases: Sequence[Case]
    ) -> list[CaseRecord]:
        """Return the records of a trial: of the first case, and of others as long as there is
        time.
        """
        plan = [Block(place, 0, case, (entry.name,), place) for place, case in enumerate(cases)]
        vanilla = self._job.entries[0]
        rows = (vanilla,) if entry is vanilla else (vanilla, entry)
        session = Session(replace(self._job, rows=rows), replace(stage, limits={entry.name: nodes}))
        found = list[CaseRecord]()
        for records in session.run(plan):
            found += records
            if not self.left_s():
                break
        return found


def pick_limit(tried: Mapping[int, float], most: int) -> tuple[int, Tried]:
    """Return the limit with the largest speedup: 0 if none is above 1, ``most`` unless a smaller
    one is ahead of it by ``WORTH``.

    A method whose trials failed is not limited, so that its cases fail too, visibly.
    """
    best = max(tried, key=tried.__getitem__)
    best = best if tried[best] > WORTH * tried[most] else most
    shown = {nodes: round(found, 3) for nodes, found in sorted(tried.items())}
    return best if tried[best] > 1 or not tried[best] else 0, shown


def list_trials(step_s: Callable[[int], float], most: int) -> list[int]:
    """Return the limits that are worth a live trial: powers of two after which a step costs more,
    as far as ``PLAUSIBLE`` tokens a step pay for it.
    """
    sizes = [*(size for size in POWERS if size < most), most]
    pays = [size for size in sizes if step_s(1 + size) <= PLAUSIBLE * step_s(1)] or sizes[:1]
    rising = [
        size
        for size, larger in itertools.pairwise(pays)
        if step_s(1 + larger) > RISES * step_s(1 + size)
    ]
    return [*rising, pays[-1]]


def climb(
    try_out: Callable[[int], float], sizes: Sequence[int], goes_on: Callable[[], bool]
) -> Tried:
    """Return limit -> speedup of those tried: from the second size upwards as long as it rises,
    downwards if it does not.

    goes_on: False = the time is over; one size is tried always.
    """
    place = min(1, len(sizes) - 1)
    tried = {sizes[place]: try_out(sizes[place])}
    for step in (1, -1):
        best = max(tried, key=tried.__getitem__)
        following = sizes.index(best) + step
        while 0 <= following < len(sizes) and sizes[following] not in tried and goes_on():
            tried[sizes[following]] = try_out(sizes[following])
            if tried[sizes[following]] <= tried[best]:
                break
            best, following = sizes[following], following + step
    return tried


def _widest(records: Sequence[CaseRecord]) -> int:
    """Return the nodes of the largest draft that was proposed."""
    turns = [turn for record in records for turn in record.turns]
    return max((max(turn.proposed, default=0) for turn in turns), default=0)


def find_speedup(
    records: Sequence[CaseRecord], step_s: Callable[[int], float], busy: bool = False
) -> float:
    """Plain decoding's time of the emitted tokens over that of the steps; 0 if no case was decoded.

    Drafting counts as in a prediction: with its median over turns, on a busy machine by the
    processor's time.

    Args:
        records: of a trial.
        step_s: rows of a step -> its time [s].
        busy: other processes compete.
    """
    turns = [
        turn for record in records if record.status == "ok" for turn in record.turns if turn.accept
    ]
    if not turns:
        return 0.0
    drafting_s = [
        (turn.cpu_s / turn.wall_s if busy and turn.cpu_s else 1.0)
        * sum(turn.phases_s[phase] for phase in DRAFTER_PHASES)
        / len(turn.accept)
        for turn in turns
    ]
    rows = [fed for turn in turns for fed in turn.fed]
    spent_s = sum(map(step_s, rows)) + len(rows) * statistics.median(drafting_s)
    return sum(sum(turn.accept) for turn in turns) * step_s(1) / spent_s


@dataclass
class EarlierChoices:
    """The limits that runs have chosen on this machine for one model and engine, in the cache."""

    job: Job
    stage: Stage
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        job, stage = self.job, self.stage
        card, config = job.source.card, job.config
        about = (
            *(VERSION, card.path, weights_fingerprint(card.path), card.dtype, card.device),
            *(
                machine()["cpu"],
                [gpu["name"] for gpu in machine()["gpus"]],
                stage.threads and stage.threads.count,
            ),
            *(stage.engine.kind, stage.engine.describe_forward(), config.decode.first_draft),
            *(
                config.decode.temperature,
                config.decode.length,
                min(TOKENS, config.decode.max_new_tokens),
            ),
            *(job.source.suite.name, min(CASES, len(job.source.suite.cases))),
            # of a profile that is given; else it is this machine's
            job.profile and [price_rows(job.profile)(1 + size) for size in SIZES],
        )
        name = hashlib.sha256(json.dumps(about, default=str).encode()).hexdigest()[:16]
        self.path = find_place().parent / _FOLDER / f"{name}.json"

    def find(self, entries: Sequence[Entry]) -> dict[str, tuple[int, Tried]]:
        """Return the choices for the methods that have these parameters."""
        known, found = self._read(), dict[str, tuple[int, Tried]]()
        for entry in entries:
            match known.get(_key(entry)):
                case [int(nodes), dict(tried)]:
                    found[entry.name] = nodes, {int(size): gain for size, gain in tried.items()}
        return found

    def add(self, entry: Entry, choice: tuple[int, Tried]) -> None:
        """Keep a choice, if the cache can be written."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock"):
                write_atomically(self.path, json.dumps(self._read() | {_key(entry): choice}))

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none yet, or damaged: chosen anew
            return {}
        return found if isinstance(found, dict) else {}


def _key(entry: Entry) -> str:
    target = type(entry.method)
    code = hashlib.sha256(Path(inspect.getfile(target)).read_bytes()).hexdigest()[:16]
    parameters = json.dumps(dict(entry.parameters), sort_keys=True, default=str)
    return f"{target.__module__}.{target.__name__} {code} {entry.reset} {parameters}"
