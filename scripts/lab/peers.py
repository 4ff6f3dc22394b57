"""Time our methods against the loops of transformers, and of other runtimes that are installed.

Same model, prompts and lengths of drafts, A B B A on every prompt.

    python -m scripts.lab peers model=tiny
    python -m scripts.lab peers model=random_110m model.threads=2 --dtype bfloat16 --engine eager

Above 1 the peer takes longer for a token. cpu: ratio of a prompt's least processor time; wall: of its median time by
the clock. In brackets 95 % over prompts. A/A: the same method's first runs over its second ones; a difference within
their spread does not count. Any setting of ``specbench`` may be given; see conf/model/.

A B B A on one loaded model makes drift affect both sides alike, and each side runs twice in a round, which is its own
A/A control. The verdict is faster or slower only where, by processor time and by the clock alike, the interval of the
ratio excludes 1 and the ratio is further from 1 than the spread: the outermost end of the two A/A intervals.
"""

from __future__ import annotations

import math
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from scripts.lab.materials import print_head, print_row
from specbench.decode.loop import Request, Transcript, decode
from specbench.measure.clock import Clock, without_collector
from specbench.models.engine import Engine
from specbench.records.record import EngineKind
from specbench.runs.job import job_of
from specbench.runs.session import set_stage
from specbench.stats import MIN_CASES, Estimate, speedup
from specbench.types import InputError

Floats = NDArray[np.float64]

# A method here and the library's of the same idea, with the parameters that have to agree.
PAIRS: Mapping[str, tuple[str, ...]] = {
    "vanilla:hf_generate": (),
    "vanilla:hf_compiled": (),
    "pld:hf_prompt_lookup": ("num_draft", "max_ngram"),
    "speculative_sampling:hf_assisted": ("draft", "length", "schedule"),
}
# The same for other runtimes, which an extra installs. With a draft model they have lengths of their own.
_LOOKUP = ("num_draft", "max_ngram")
RUNTIMES: Mapping[str, tuple[str, ...]] = {
    "vanilla:ort_genai": (),
    "vanilla:openvino_genai": (),
    "vanilla:ctranslate2": (),
    "pld:ort_genai_lookup": _LOOKUP,
    "pld:openvino_genai_lookup": _LOOKUP,
    "speculative_sampling:ort_genai_draft": (),
    "speculative_sampling:openvino_genai_draft": (),
}
MODULES = {"ort_genai": "onnxruntime_genai", "openvino_genai": "openvino_genai", "ctranslate2": "ctranslate2"}
_SAME = {"constant": "fixed"}  # the library's name of a value, and the one here


def add_options(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("overrides", nargs="*", default=["model=tiny"])
    parser.add_argument("--pairs", nargs="+", metavar="OURS:PEER", help="other runtimes: on a CPU in float32 only")
    parser.add_argument("--engine", choices=(EngineKind.FAST, EngineKind.EAGER), default=EngineKind.FAST)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=int, default=14, help="of the suite, its tasks in turn")
    parser.add_argument("--blocks", type=int, default=3, help="rounds of A B B A on every prompt")
    parser.add_argument("--tokens", type=int, default=64, help="the most to emit for a prompt")


def run(given: Namespace) -> None:
    """Time pair by pair on one loaded model, print the table."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # On a CPU in float32, which all of them compute in, the pairs of other runtimes too.
    others = given.dtype == "float32" and not torch.cuda.is_available()
    pairs = given.pairs or [*PAIRS, *(list_installed() if others else ())]
    names = sorted({name for pair in pairs for name in pair_named(pair)})
    settings = [*given.overrides, f"engine={given.engine}", f"model.dtype={given.dtype}", f"method=[{','.join(names)}]"]
    job = job_of([*settings, f"decode.max_new_tokens={given.tokens}"])
    if job.source.prompts is None:
        raise InputError(f"model={job.source.card.name}: recorded tokens have no peer; expected a model")
    prompts = in_turn(
        [(case.category, job.source.prompts.ids(case.turns[:1], [])) for case in job.source.suite.cases], given.prompts
    )
    if len(prompts) < MIN_CASES or given.blocks < 1:
        raise InputError(f"prompts={len(prompts)}, blocks={given.blocks}: expected at least {MIN_CASES} and 1")
    if "hf_compiled" in names:  # without slots that are never used
        job = job_of([*settings, f"method.hf_compiled.length={max(map(len, prompts)) + given.tokens}"])
    torch.set_num_threads(job.config.model.threads or torch.get_num_threads())
    methods, found = {entry.name: entry.method for entry in job.entries}, []
    for pair in pairs:
        require_equal(pair, *(methods[name] for name in pair_named(pair)))
    with set_stage(job) as stage:
        for pair in pairs:
            sides = {name: methods[name] for name in pair_named(pair)}
            timed = time_pair(stage.engine, stage.target.device, sides, prompts, given.blocks, given.tokens)
            found.append(compare(*timed, cpu=stage.target.device.type == "cpu"))
    about = {"model": job.source.card.name, "engine": given.engine, "dtype": job.source.card.dtype,
             "tokens": given.tokens, "prompts": len(prompts), "blocks": given.blocks,
             "threads": torch.get_num_threads()}  # fmt: skip
    print(" ".join(f"{key}={value}" for key, value in about.items()) + "\n")
    print_peers(found)


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
        """Reset both; the processor's first, so that reading it is in neither."""
        self._cpu_ns = time.process_time_ns()
        super().start()

    def elapsed(self) -> float:
        """Return the [s] wall time since ``start``; the last reading of a request is the request's."""
        self.wall_s = super().elapsed()
        self.cpu_s = (time.process_time_ns() - self._cpu_ns) * 1e-9
        return self.wall_s


def pair_named(text: str) -> tuple[str, str]:
    """Split ``ours:peer``. Raises InputError for an unknown pair."""
    if text not in PAIRS and text not in RUNTIMES:
        raise InputError(f"pair={text}: expected one of {', '.join((*PAIRS, *RUNTIMES))}")
    ours, _, peer = text.partition(":")
    return ours, peer


def list_installed() -> list[str]:
    """Return the pairs of other runtimes that are installed."""
    here = tuple(name for name, module in MODULES.items() if find_spec(module) is not None)
    return [pair for pair in RUNTIMES if pair.partition(":")[2].startswith(here)]


def in_turn(prompts: Sequence[tuple[str, Sequence[int]]], count: int) -> list[Sequence[int]]:
    """Choose ``count`` of (category, prompt): one prompt of every category, then a second of each, and so on."""
    seen: Counter[str] = Counter()
    ranked = []
    for category, prompt in prompts:
        seen[category] += 1
        ranked.append((seen[category], prompt))
    return [prompt for _, prompt in sorted(ranked, key=lambda each: each[0])][: max(count, 0)]


def require_equal(text: str, ours: Any, peer: Any) -> None:
    """Raise InputError if the two methods of a pair have different parameters. text: the pair's name."""
    ours_name, peer_name = pair_named(text)
    for name in {**PAIRS, **RUNTIMES}[text]:
        wanted, found = (_SAME.get(value, value) for value in (getattr(ours, name), getattr(peer, name)))
        if wanted != found:
            raise InputError(f"method.{peer_name}.{name}={found}: expected {wanted}, as method.{ours_name}.{name} is")


def time_pair(
    engine: Engine, device: torch.device, sides: Mapping[str, Any], prompts: Sequence[Sequence[int]], rounds: int,
    limit: int,
) -> tuple[Timed, Timed]:  # fmt: skip
    """Time every prompt ``rounds`` times under both methods, first against second. sides: two bound methods by name.

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

    def time_round(place: int, number: int) -> None:
        for turn, side in enumerate((1, 0, 0, 1) if (place + number) % 2 else (0, 1, 1, 0)):
            out = once(side, prompts[place])
            wall_s[side, place, number, turn // 2] = clock.wall_s
            cpu_s[side, place, number, turn // 2] = clock.cpu_s
            if number == 0 and turn < 2:
                outs[names[side]].append(out)

    for side in (0, 1):
        once(side, max(prompts, key=len))
    for place in range(len(prompts)):
        with without_collector():
            for number in range(rounds):
                time_round(place, number)
    timed = []
    for side, name in enumerate(names):
        steps = [count for out in outs[name] for count in out.accept]
        ids = tuple(tuple(out.ids) for out in outs[name])
        mat = statistics.fmean(steps) if steps else float("nan")
        tokens = np.array([len(each) for each in ids], float)
        timed.append(Timed(name, wall_s[side], cpu_s[side], tokens, ids, mat))
    return timed[0], timed[1]


FASTER, SLOWER, NONE = "faster", "slower", "no difference shown"
WALL, CPU = "wall", "cpu"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The peer's time per token over ours. ours, peer: each side's first runs over its second (A/A)."""

    value: Estimate
    ours: Estimate
    peer: Estimate

    @property
    def spread(self) -> float:
        """The largest factor between 1 and an A/A ratio's interval; NaN if one has no interval."""
        ends = [end for each in (self.ours, self.peer) for end in (each.low, each.high)]
        return math.exp(max(abs(math.log(end)) for end in ends if end)) if all(ends) else float("nan")

    @property
    def verdict(self) -> str:
        """The verdict of one measure. faster: the peer takes longer."""
        value, spread = self.value, self.spread
        if value.low is None or value.high is None or math.isnan(spread):
            return NONE
        if value.low > 1 and value.value > spread:
            return FASTER
        return SLOWER if value.high < 1 and value.value < 1 / spread else NONE


@dataclass(frozen=True, slots=True)
class Comparison:
    """A compared pair. ratios: by ``cpu`` and ``wall``, or by ``wall`` alone. equal: prompts with the same ids."""

    ours: str
    peer: str
    ratios: dict[str, Ratio]
    equal: int
    prompts: int
    mat: tuple[float, float]

    @property
    def verdict(self) -> str:
        """The verdict of all measures; NONE if they disagree."""
        found = {ratio.verdict for ratio in self.ratios.values()}
        return found.pop() if len(found) == 1 else NONE


def compare(ours: Timed, peer: Timed, cpu: bool = True) -> Comparison:
    """Compare by medians of wall time. cpu: also by minima of processor time, where the work is done on the CPU."""
    ratios = {WALL: _ratio(ours.wall_s, peer.wall_s, ours.tokens, peer.tokens, np.median)}
    if cpu:
        ratios = {CPU: _ratio(ours.cpu_s, peer.cpu_s, ours.tokens, peer.tokens, np.min), **ratios}
    equal = sum(one == other for one, other in zip(ours.ids, peer.ids, strict=True))
    return Comparison(ours.name, peer.name, ratios, equal, len(ours.ids), (ours.mat, peer.mat))


def _ratio(ours_s: Floats, peer_s: Floats, ours_tokens: Floats, peer_tokens: Floats, pick: Callable[..., Any]) -> Ratio:
    """The ratio by one measure. pick: a prompt's time of its runs. An A/A ratio has half the runs on either side."""

    def again(times: Floats, tokens: Floats) -> Estimate:
        first, second = pick(times, axis=1).T
        return speedup(first, tokens, second, tokens)

    mine, theirs = pick(ours_s, axis=(1, 2)), pick(peer_s, axis=(1, 2))
    value = speedup(theirs, peer_tokens, mine, ours_tokens)
    return Ratio(value, again(ours_s, ours_tokens), again(peer_s, peer_tokens))


def print_peers(found: Sequence[Comparison]) -> None:
    """Print a row a pair and measure; the pair's verdict is on its last row."""
    print_head("pair", "same ids", "MAT, ours / peer", "peer / ours", "ours A/A", "peer A/A", "verdict", left=(0, 6))
    for each in found:
        for place, (name, ratio) in enumerate(each.ratios.items()):
            first, last = place == 0, place == len(each.ratios) - 1
            equal = f"{each.equal} of {each.prompts}" if first else ""
            mat = " / ".join("" if math.isnan(value) else f"{value:.2f}" for value in each.mat) if first else ""
            estimates = (
                f"{one.value:.3f}" + (f" [{one.low:.3f}, {one.high:.3f}]" if one.low is not None else "")
                for one in (ratio.value, ratio.ours, ratio.peer)
            )
            print_row(f"{each.ours}, {each.peer}: {name}", equal, mat, *estimates, each.verdict if last else "")
