"""Two methods timed against each other on one loaded model: A B B A on every prompt, so that drift falls on both alike.

Each side runs twice in a round, which is its own A/A control: the noise of the machine.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specbench.decode.loop import Request, Transcript, decode
from specbench.measure.clock import Clock, without_collector
from specbench.target.engine import Engine
from specbench.types import InputError

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]

# A method here and the library's of the same idea, with the parameters that have to agree.
PAIRS: Mapping[str, tuple[str, ...]] = {
    "vanilla:hf_generate": (),
    "vanilla:hf_compiled": (),
    "pld:hf_prompt_lookup": ("num_draft", "max_ngram"),
    "speculative_sampling:hf_assisted": ("draft", "length", "schedule"),
}
_SAME = {"constant": "fixed"}  # the library's name of a value, and the one here


@dataclass(frozen=True, slots=True)
class Timed:
    """One side's requests. wall_s, cpu_s: (P, R, 2) [s] of P prompts in R rounds, its first and its second run.

    cpu_s: of all threads of the process. tokens: (P,) emitted. ids: what was emitted, a tuple a prompt.
    mat: tokens per decode step; NaN where no request had one.
    """

    name: str
    wall_s: Floats
    cpu_s: Floats
    tokens: Floats
    ids: tuple[tuple[int, ...], ...]
    mat: float


class CpuClock(Clock):
    """A clock that also measures the processor time of the request, of all threads together."""

    wall_s = cpu_s = 0.0

    def start(self) -> None:
        """Zero both; the processor's first, so that reading it is in neither."""
        self._cpu_ns = time.process_time_ns()
        super().start()

    def elapsed(self) -> float:
        """[s] wall time since ``start``; the last reading of a request is the request's."""
        self.wall_s = super().elapsed()
        self.cpu_s = (time.process_time_ns() - self._cpu_ns) * 1e-9
        return self.wall_s


def pair_named(text: str) -> tuple[str, str]:
    """``ours:peer``. Raises InputError for a pair that is none."""
    if text not in PAIRS:
        raise InputError(f"pair={text}: expected one of {', '.join(PAIRS)}")
    ours, _, peer = text.partition(":")
    return ours, peer


def in_turn(prompts: Sequence[tuple[str, Sequence[int]]], count: int) -> list[Sequence[int]]:
    """(category, prompt) pairs -> ``count``: one prompt of every category, then a second of each, and so on."""
    seen: Counter[str] = Counter()
    ranked = []
    for category, prompt in prompts:
        seen[category] += 1
        ranked.append((seen[category], prompt))
    return [prompt for _, prompt in sorted(ranked, key=lambda each: each[0])][: max(count, 0)]


def require_equal(text: str, ours: Any, peer: Any) -> None:
    """Raises InputError where the two methods of a pair have different parameters. text: the pair's name."""
    ours_name, peer_name = pair_named(text)
    for name in PAIRS[text]:
        wanted, found = (_SAME.get(value, value) for value in (getattr(ours, name), getattr(peer, name)))
        if wanted != found:
            raise InputError(f"method.{peer_name}.{name}={found}: expected {wanted}, as method.{ours_name}.{name} is")


def time_pair(
    engine: Engine, device: torch.device, sides: Mapping[str, Any], prompts: Sequence[Sequence[int]], rounds: int,
    limit: int,
) -> tuple[Timed, Timed]:  # fmt: skip
    """Every prompt ``rounds`` times under both methods, first against second. sides: two bound methods by name.

    A round is A B B A, the next one B A A B. limit: the most tokens to emit. Both are reset before every request, and
    have decoded the longest prompt before the clock counts.
    """
    names = tuple(sides)
    if len(names) != 2:
        raise InputError(f"sides={list(names)}: expected two methods")
    clock = CpuClock(device)
    wall_s, cpu_s = np.empty((2, 2, len(prompts), rounds, 2))
    outs: dict[str, list[Transcript]] = {name: [] for name in names}

    def once(side: int, prompt: Sequence[int]) -> Transcript:
        method = sides[names[side]]
        method.reset()
        return decode(engine, method, Request(prompt, limit, None, 0), clock)

    for side in (0, 1):
        once(side, max(prompts, key=len))
    for place, prompt in enumerate(prompts):
        with without_collector():
            for number in range(rounds):
                order = (1, 0, 0, 1) if (place + number) % 2 else (0, 1, 1, 0)
                for turn, side in enumerate(order):
                    out = once(side, prompt)
                    wall_s[side, place, number, turn // 2] = clock.wall_s
                    cpu_s[side, place, number, turn // 2] = clock.cpu_s
                    if number == 0 and turn < 2:
                        outs[names[side]].append(out)
    first, second = (_timed(name, wall_s[side], cpu_s[side], outs[name]) for side, name in enumerate(names))
    return first, second


def _timed(name: str, wall_s: Floats, cpu_s: Floats, outs: Sequence[Transcript]) -> Timed:
    steps = [count for out in outs for count in out.accept]
    ids = tuple(tuple(out.ids) for out in outs)
    mat = statistics.fmean(steps) if steps else float("nan")
    return Timed(name, wall_s, cpu_s, np.array([len(each) for each in ids], float), ids, mat)
