"""Time our methods against the loops of transformers.

Both sides have the same model, prompts and draft lengths, and run as A B B A on every prompt.

    python -m scripts.lab peers model=tiny
    python -m scripts.lab peers model=random_110m model.threads=2 model.dtype=bfloat16 engine=eager

The table has the peer's time per token over ours; above 1 the peer is slower. cpu: by a prompt's
least processor time, wall: by its median wall time; in brackets 95 % over prompts.

A B B A on one loaded model makes drift affect both sides alike. Each side runs twice in a round,
and the ratio of its first runs to its second ones is its A/A control. The verdict is faster or
slower only if, by both measures, the interval of the ratio excludes 1 and the ratio is further from
1 than the outermost end of the two A/A intervals.
"""

from __future__ import annotations

import math
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from scripts.lab.bench import print_table
from specbench.decode.loop import Request, Transcript, decode
from specbench.measure.clock import Clock, without_collector
from specbench.models.engine import Engine
from specbench.runs.job import job_of
from specbench.runs.session import set_stage
from specbench.stats import MIN_CASES, Estimate, speedup
from specbench.types import InputError

Floats = NDArray[np.float64]

# A method here and the peer of the same idea -> the parameters that have to agree.
PAIRS: Mapping[str, tuple[str, ...]] = {
    "vanilla:hf_generate": (),
    "vanilla:hf_compiled": (),
    "pld:hf_prompt_lookup": ("num_draft", "max_ngram"),
    "speculative_sampling:hf_assisted": ("draft", "length", "schedule"),
}
USUAL = (  # settings, unless others are given
    *("model=tiny", "model.dtype=float32", "engine=fast"),
    *("suite.limit=2", "decode.max_new_tokens=64"),
)
FASTER, SLOWER, NONE = "faster", "slower", "no difference shown"
_SAME = {"constant": "fixed"}  # a value's name in transformers -> its name here


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Time every pair on one loaded model, and print the table."""
    about = "settings of specbench: model=..., engine=..., suite.limit=..."
    parser.add_argument("overrides", nargs="*", help=about)
    parser.add_argument("--pairs", nargs="+", metavar="OURS:PEER", default=[*PAIRS])
    parser.add_argument("--blocks", type=int, default=3, help="rounds of A B B A on every prompt")
    given = parser.parse_intermixed_args(arguments)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    names = sorted({name for pair in given.pairs for name in pair_named(pair)})
    settings = [*USUAL, *given.overrides, f"method=[{','.join(names)}]"]
    job = job_of(settings)
    card, limit = job.source.card, job.config.decode.max_new_tokens
    if job.source.prompts is None:
        raise InputError(f"model={card.name}: recorded tokens have no peer; expected a model")
    read, cases = job.source.prompts.ids, job.source.suite.cases
    prompts = [read(case.turns[:1], []) for case in cases]
    if len(prompts) < MIN_CASES or given.blocks < 1:
        found = f"prompts={len(prompts)}, blocks={given.blocks}"
        raise InputError(f"{found}: expected at least {MIN_CASES} and 1")
    if "hf_compiled" in names:  # without slots that are never used
        length = max(map(len, prompts)) + limit
        job = job_of([*settings, f"method.hf_compiled.length={length}"])
    torch.set_num_threads(job.config.model.threads or torch.get_num_threads())
    methods = {entry.name: entry.method for entry in job.entries}
    for pair in given.pairs:
        require_equal(pair, *(methods[name] for name in pair_named(pair)))
    rows: list[list[str]] = []
    with set_stage(job) as stage:
        device, engine = stage.target.device, stage.engine
        for pair in given.pairs:
            sides = [methods[name] for name in pair_named(pair)]
            ours, peer = time_pair(engine, device, sides, prompts, given.blocks, limit)
            rows += pair_rows(pair.replace(":", ", "), ours, peer)
    threads = torch.get_num_threads()
    print(f"model={card.name} engine={engine.kind} dtype={card.dtype} tokens={limit}", end=" ")
    print(f"prompts={len(prompts)} blocks={given.blocks} threads={threads}\n")
    columns = ("pair", "same ids", "MAT, ours / peer", "peer / ours", "ours A/A", "peer A/A")
    print_table((*columns, "verdict"), rows, left=(0, 6))


def pair_named(text: str) -> tuple[str, str]:
    """Split ``ours:peer``. Raises InputError for an unknown pair."""
    if text not in PAIRS:
        raise InputError(f"pair={text}: expected one of {', '.join(PAIRS)}")
    ours, _, peer = text.partition(":")
    return ours, peer


def require_equal(text: str, ours: Any, peer: Any) -> None:
    """Raise InputError if the two methods of a pair have different parameters. text: the pair's
    name.
    """
    ours_name, peer_name = pair_named(text)
    for name in PAIRS[text]:
        values = (getattr(ours, name), getattr(peer, name))
        wanted, found = (_SAME.get(value, value) for value in values)
        if wanted != found:
            setting = f"method.{peer_name}.{name}={found}"
            raise InputError(f"{setting}: expected {wanted}, as method.{ours_name}.{name} is")


class CpuClock(Clock):
    """A clock that also measures the processor time of the request, of all threads together."""

    wall_s = cpu_s = 0.0

    def start(self) -> None:
        """Reset both clocks; the processor's first, so that the time to read it is in neither."""
        self._cpu_ns = time.process_time_ns()
        super().start()

    def elapsed(self, phase: str = "") -> float:
        """Return the wall time [s] since ``start``; the last reading counts as the request's
        time.
        """
        self.wall_s = super().elapsed(phase)
        self.cpu_s = (time.process_time_ns() - self._cpu_ns) * 1e-9
        return self.wall_s


@dataclass(frozen=True, slots=True)
class Timed:
    """The requests of one side. wall_s, cpu_s: (P, R, 2) [s] of P prompts, R rounds and two runs.

    cpu_s: of all threads of the process. ids: the emitted tokens, a tuple per prompt. mat: tokens
    per decode step; NaN if no request had a step.
    """

    wall_s: Floats
    cpu_s: Floats
    ids: tuple[tuple[int, ...], ...]
    mat: float

    @property
    def tokens(self) -> Floats:
        """(P,) emitted tokens."""
        return np.array([len(ids) for ids in self.ids], float)


def time_pair(
    engine: Engine,
    device: torch.device,
    sides: Sequence[Any],
    prompts: Sequence[Sequence[int]],
    rounds: int,
    limit: int,
) -> list[Timed]:
    """Time every prompt ``rounds`` times under both methods, first against second.

    A round is A B B A, the next one B A A B. limit: the most tokens to emit. sides: two bound
    methods, which are reset before every request, and decode the longest prompt before the first
    timed one.
    """
    clock = CpuClock(device)

    def decode_once(method: Any, prompt: Sequence[int]) -> tuple[Transcript, float, float]:
        method.reset()
        out = decode(engine, method, Request(prompt, limit, None, 0), clock)
        return out, clock.wall_s, clock.cpu_s

    for method in sides:
        decode_once(method, max(prompts, key=len))
    found = []  # by prompt, turn and side
    for place, prompt in enumerate(prompts):
        calls = [partial(decode_once, method, prompt) for method in sides]
        with without_collector():
            found.append(take_turns(calls, 2 * rounds, bool(place % 2)))
    timed = []
    for side in range(len(sides)):
        outs = [turns[0][side][0] for turns in found]
        times = np.array([[turn[side][1:] for turn in turns] for turns in found])
        wall_s, cpu_s = times.reshape(-1, rounds, 2, 2).transpose(3, 0, 1, 2)
        steps = [count for out in outs for count in out.accept]
        mat = statistics.fmean(steps) if steps else float("nan")
        timed.append(Timed(wall_s, cpu_s, tuple(tuple(out.ids) for out in outs), mat))
    return timed


def take_turns(calls: Sequence[Callable[[], Any]], rounds: int, turned: bool) -> list[list[Any]]:
    """Make all calls in every round, in an order by which a drift affects them alike.

    Two calls are made in the order A B, B A, B A, A B, and so on: forwards and backwards.

    Args:
        calls: A, B, and so on.
        rounds: How often each is made.
        turned: Begin backwards.

    Returns:
        The results: a list per round, in the order of ``calls``.
    """
    found = []
    for number in range(rounds):
        places = list(range(len(calls)))
        backwards = ((number + 1) // 2 + turned) % 2
        results = {place: calls[place]() for place in (places[::-1] if backwards else places)}
        found.append([results[place] for place in places])
    return found


class Ratio(NamedTuple):
    """The peer's time per token over ours. ours, peer: each side's first runs over its second
    (A/A).
    """

    value: Estimate
    ours: Estimate
    peer: Estimate

    @property
    def spread(self) -> float:
        """The largest factor between 1 and an A/A ratio's interval; NaN if one has no interval."""
        ends = [end for each in (self.ours, self.peer) for end in (each.low, each.high)]
        return (
            math.exp(max(abs(math.log(end)) for end in ends if end)) if all(ends) else float("nan")
        )

    @property
    def verdict(self) -> str:
        """The verdict of one measure. faster: the peer takes longer."""
        value, spread = self.value, self.spread
        if value.low is None or value.high is None or math.isnan(spread):
            return NONE
        if value.low > 1 and value.value > spread:
            return FASTER
        return SLOWER if value.high < 1 and value.value < 1 / spread else NONE


def compare(ours: Timed, peer: Timed) -> tuple[dict[str, Ratio], str]:
    """Compare by minima of processor time, and by medians of wall time.

    Returns the ratios by ``cpu`` and ``wall``, and the verdict, which is NONE if they disagree.
    """

    def ratio(ours_s: Floats, peer_s: Floats, pick: Callable[..., Any]) -> Ratio:
        """Pick a prompt's time from its runs. An A/A ratio has half the runs on either side."""
        again = []
        for times, tokens in ((ours_s, ours.tokens), (peer_s, peer.tokens)):
            first, second = pick(times, axis=1).T
            again.append(speedup(first, tokens, second, tokens))
        mine, theirs = pick(ours_s, axis=(1, 2)), pick(peer_s, axis=(1, 2))
        return Ratio(speedup(theirs, peer.tokens, mine, ours.tokens), *again)

    ratios = {
        "cpu": ratio(ours.cpu_s, peer.cpu_s, np.min),
        "wall": ratio(ours.wall_s, peer.wall_s, np.median),
    }
    verdicts = {each.verdict for each in ratios.values()}
    return ratios, verdicts.pop() if len(verdicts) == 1 else NONE


def pair_rows(pair: str, ours: Timed, peer: Timed) -> list[list[str]]:
    """Return the row of each measure; the first one has ids and MAT, the last one the verdict."""

    def cell(one: Estimate) -> str:
        interval = f" [{one.low:.3f}, {one.high:.3f}]" if one.low is not None else ""
        return f"{one.value:.3f}{interval}"

    ratios, verdict = compare(ours, peer)
    rows = [[f"{pair}: {name}", "", "", *map(cell, ratio), ""] for name, ratio in ratios.items()]
    equal = sum(one == other for one, other in zip(ours.ids, peer.ids, strict=True))
    mats = ["" if math.isnan(each.mat) else f"{each.mat:.2f}" for each in (ours, peer)]
    rows[0][1:3] = f"{equal} of {len(ours.ids)}", " / ".join(mats)
    rows[-1][-1] = verdict
    return rows
