"""The number of nodes of a method's drafts that pays on this machine (``engine.max_nodes=auto``).

More nodes mean more accepted tokens, and a longer step. Before the first case, each method decodes
the beginning of a few of the run's answers at one limit of nodes after the other. Tokens are
counted, steps cost what ``measure_steps`` has measured of their rows, and drafting costs what it
took: the limit with the most tokens a second is the method's for the complete run. Which tokens are
emitted does not depend on it.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from specbench.decode.latency import price_rows
from specbench.measure.environment import spell_busy
from specbench.measure.plan import Block
from specbench.method import Peer
from specbench.records.manifest import Manifest
from specbench.records.record import DRAFTER_PHASES, VANILLA, CaseRecord
from specbench.runs.entry import Entry
from specbench.runs.job import Job
from specbench.runs.session import Session
from specbench.runs.sources import Stage
from specbench.screen import LOADING

SIZES = (1, 2, 3, 5, 8, 16, 32, 64, 128)  # [nodes] tried, below those of whole drafts
FAR = 0.85  # of the best speedup so far: more nodes are not tried
WORTH = 1.02  # by which a limit must be ahead of whole drafts
CASES, TOKENS = 4, 48  # of a trial, the tokens of each turn

loading = logging.getLogger(LOADING)


def limit_nodes(job: Job, stage: Stage, manifest: Manifest, earlier: Manifest) -> dict[str, int]:
    """Method -> the most nodes of its drafts, where the engine's limit is not that of all methods.

    They are given, those of the run that is resumed, or chosen now; the manifest gets them.
    earlier: of that run.
    """
    given, found = job.config.engine.max_nodes, dict[str, int]()
    if isinstance(given, int):
        return found
    for entry in job.entries:
        own, before = manifest.methods[entry.name], earlier.methods.get(entry.name)
        if isinstance(given, Mapping):
            if entry.name in given:
                own.nodes = given[entry.name]
        elif before is not None and before.nodes is not None:
            own.nodes, own.node_speedups = before.nodes, before.node_speedups
        elif entry.name != VANILLA and not isinstance(entry.method, Peer):
            loading.info("choosing the nodes of %s", entry.name)
            own.nodes, own.node_speedups = choose_nodes(job, stage, entry)
        if own.nodes is not None:
            found[entry.name] = own.nodes
    return found


def choose_nodes(job: Job, stage: Stage, entry: Entry) -> tuple[int, dict[str, float]]:
    """As of ``search``, by trials on some of the job's cases."""
    cases = job.source.suite.cases
    few = (
        [cases[place * len(cases) // CASES] for place in range(CASES)]
        if len(cases) > CASES
        else cases
    )
    plan = [Block(place, 0, case, (entry.name,), place) for place, case in enumerate(few)]
    decode = replace(
        job.config.decode, max_new_tokens=min(TOKENS, job.config.decode.max_new_tokens)
    )
    measure = replace(job.config.measure, lossless=False, keep_trees=0)
    short = replace(job, rows=(entry,), config=replace(job.config, decode=decode, measure=measure))

    def try_out(nodes: int) -> Sequence[CaseRecord]:
        session = Session(short, replace(stage, limits={entry.name: nodes}))
        return [record for block in session.run(plan) for record in block]

    assert stage.profile is not None
    step_s, busy = price_rows(stage.profile), bool(spell_busy())
    return search(
        try_out, lambda records: find_speedup(records, step_s, busy), stage.engine.max_nodes
    )


def search(
    try_out: Callable[[int], Sequence[CaseRecord]],
    speedup_of: Callable[[Sequence[CaseRecord]], float],
    most: int,
) -> tuple[int, dict[str, float]]:
    """Try whole drafts, then small limits upwards until one is far behind the best.

    Args:
        try_out: limit [nodes] -> the records of a trial.
        speedup_of: as of ``find_speedup``.
        most: [nodes] the engine's limit.

    Returns:
        The limit [nodes], 0 = not to draft; and for each limit that was tried its modelled speedup.
    """
    records = try_out(most)
    widest = max(
        (nodes for record in records for turn in record.turns for nodes in turn.proposed), default=0
    )
    whole, tried = speedup_of(records), dict[int, float]()
    for nodes in (size for size in SIZES if size < widest):
        tried[nodes] = speedup_of(try_out(nodes))
        if tried[nodes] < FAR * max(tried.values()):
            break
    tried[most] = whole
    best = max(tried, key=tried.__getitem__)
    best = best if tried[best] > WORTH * whole else most
    # A method whose trials failed is not limited, so that its cases fail too, visibly.
    return best if tried[best] > 1 or not tried[best] else 0, {
        str(nodes): round(found, 3) for nodes, found in tried.items()
    }


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
