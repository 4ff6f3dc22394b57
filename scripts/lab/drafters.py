"""Measure drafters alone, without a target: memory, and time per draft and per update, at several context lengths.

    python -m scripts.lab drafters pld cacheback --corpus news.txt --context 2000 100000

A drafter is stepped through a recorded text, which replaces a greedy target: the part of a draft that continues the
text is accepted, so the steps are those of a decode loop. Rankings of tokens have the shape of a target's; their best
token is the text's if it is known, and the others are random.

request MiB: what a drafter stores after it has read the prompt, without the prompt's own list. growth: time of a step
over that of a step at the shortest context. scan / step: time of a scan of the complete context, as the references of
prompt lookup do it, over that of a step. Without arguments all methods that need no model are measured.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from methods.parts.corpus import read_documents, tokenize
from scripts.lab.materials import print_table, repeating_tokens
from specbench.measure.clock import without_collector
from specbench.method import Method, Peer
from specbench.models.facade import Target
from specbench.models.load import load_model
from specbench.models.verify import find_recorded_path
from specbench.records.record import VANILLA
from specbench.runs.config import conf_dir
from specbench.runs.entry import Entry
from specbench.runs.job import job_of
from specbench.types import Draft, InputError, Needs, Prefill, Step, TopK

NODES, RESET = 256, ("turn", "case")
COLUMNS = ("request MiB", "prompt ms", "nodes", "tokens a step", "draft us p50", "p95", "update us p50", "p95")


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print one row per method and context, and a line for each method that needs a target."""
    known = sorted(path.stem for path in (conf_dir() / "method").glob("*.yaml") if path.stem != VANILLA)
    parser.add_argument("methods", nargs="*", default=known)
    parser.add_argument("--corpus", type=Path, nargs="+", help="text or JSON files; default: generated tokens")
    parser.add_argument("--context", type=int, nargs="+", default=[2_000, 32_000, 128_000], help="[tokens]")
    parser.add_argument("--tokens", type=int, default=2_000, help="decoded at each length")
    parser.add_argument("--set", nargs="+", default=[], help="settings as specbench takes them")
    given = parser.parse_intermixed_args(arguments)
    torch.set_num_threads(1)
    if min(given.tokens, *given.context) < 1:
        raise InputError("--tokens, --context: expected 1 or more")
    job_of([f"method=[{name}]" for name in given.methods if name not in known][:1])  # an error, not a skipped line
    card = job_of([*given.set, "method=[]", "suite.limit=1"]).source.card
    need = 2 * (max(given.context) + given.tokens)
    documents = tokenize(read_documents(given.corpus or []), card.tokenizer)
    text = np.concatenate([*documents])[:need].tolist() if given.corpus else repeating_tokens(need, card.vocab_size)
    if len(text) < need:
        raise InputError(f"--corpus: {len(text)} tokens; expected at least {need}, or a shorter --context")
    target = Target(card, load_model(card), NODES, None)
    scans = {length: float(np.median(time_scan(text, length))) for length in sorted(given.context)}

    def rows() -> Iterator[list[object]]:
        for name in given.methods:
            try:
                entry = job_of([*given.set, f"method=[{name}]", "suite.limit=1"]).entries[-1]
                bind(entry, target)
            except InputError as error:
                print(f"skipped {name}: {error}")
                continue
            first = 0.0
            for length, scan_us in scans.items():
                cost = cost_at(entry.method, entry.reset not in RESET, text, length, given.tokens, NODES)
                kept = count_kept(entry.method, text[-length - 1 :], NODES)
                first = first or cost.step_us
                ratios = (f"{cost.step_us / first:.2f}", f"{scan_us / cost.step_us:.1f}")
                yield [name, length, *cost.cells(kept), *ratios]
            entry.method.close()

    print_table(("method", "context", *COLUMNS, "growth", "scan / step"), rows())
    print("scan [us]:", ", ".join(f"{scan:.0f} at {length}" for length, scan in scans.items()))


def bind(entry: Entry, target: Target) -> None:
    """Bind a method. Raises InputError if a model computes its drafts."""
    if not isinstance(entry.method, Peer) and "draft" not in entry.parameters:
        entry.method.bind(target)
        if not entry.method.needs.hidden:
            return
    raise InputError("needs a target; python -m scripts.lab overhead times it")


@dataclass(frozen=True, slots=True)
class DraftingCost:
    """Times of one request's calls. draft_us, update_us: (steps,) times [us] of propose and observe.

    intake_ms: time of begin and the first propose, which read the prompt. nodes, emitted: means per step.
    """

    draft_us: np.ndarray
    update_us: np.ndarray
    intake_ms: float
    nodes: float
    emitted: float

    @property
    def step_us(self) -> float:
        """The median of propose and observe together [us]."""
        return float(np.median(self.draft_us + self.update_us))

    def cells(self, kept_bytes: int) -> list[str]:
        """Return the cells under ``COLUMNS``. kept_bytes: the memory that ``count_kept`` returns."""
        times = [f"{np.percentile(part, share):.1f}" for part in (self.draft_us, self.update_us) for share in (50, 95)]
        per_request = [f"{kept_bytes / 2**20:.1f}", f"{self.intake_ms:.0f}"]
        return [*per_request, f"{self.nodes:.1f}", f"{self.emitted:.2f}", *times]


def cost_at(method: Method, keeps: bool, text: Sequence[int], context: int, tokens: int, budget: int) -> DraftingCost:
    """Measure the last ``tokens`` of ``text`` after the ``context`` tokens before them.

    A request of the same size in the text's first half precedes it: it warms up, and a method that ``keeps`` its state
    across requests learns from it; others are reset in between.
    """
    method.reset()
    half = len(text) // 2
    replay(method, text[half - context - tokens : half], context, budget)
    if not keeps:
        method.reset()
    return replay(method, text[-context - tokens :], context, budget)


def count_kept(method: Method, whole: Sequence[int], budget: int) -> int:
    """Return the memory [bytes] of Python's objects and arrays that a drafter keeps after it has read ``whole``.

    State that its method learned counts; the list of tokens that it was given, and torch's tensors, do not count.
    """
    prompt, prefill = whole[:-1], Rankings(method.needs, whole).prefill(whole)
    method.reset()
    gc.collect()
    tracemalloc.start()
    try:
        drafter = method.begin(prompt, prefill, 0)
        drafter.propose(whole, budget)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


class Rankings:
    """The best tokens of rows that a target would have computed, for a method that needs them."""

    def __init__(self, needs: Needs, text: Sequence[int]) -> None:
        self._count, self._whole = max(needs.node_topk, needs.prompt_topk), needs.prompt_topk > 0
        self._vocab, self._random = max(text) + 1, np.random.default_rng(0)

    def top(self, best: Sequence[int]) -> TopK | None:
        """Return (rows, k) tokens, or None if none are needed. best: each row's best token, -1 where it is unknown."""
        if not self._count:
            return None
        ids, known = self._random.integers(self._vocab, size=(len(best), self._count)), np.array(best)
        ids[known >= 0, 0] = known[known >= 0]
        logits = -torch.arange(self._count, dtype=torch.float32).expand(len(best), -1)
        return TopK(torch.from_numpy(ids), logits)

    def prefill(self, whole: Sequence[int]) -> Prefill:
        """Return the prefill of a prompt; the last of ``whole`` is the first emitted token."""
        return Prefill(whole[-1], topk=self.top(whole[1:] if self._whole else whole[-1:]))

    def step(self, draft: Draft, root: int, emitted: tuple[int, ...], path: tuple[int, ...], done: bool) -> Step:
        """Return the step of a draft: the best tokens of the root and the accepted nodes are known."""
        if not self._count:
            return Step(root, emitted, path, done)
        best = [-1] * (len(draft) + 1)
        for row, token in zip((-1, *path), emitted, strict=True):
            best[row + 1] = token
        fed = torch.tensor([root, *map(int, draft.tokens)])
        return Step(root, emitted, path, done, fed, self.top(best))


def follow(draft: Draft, future: Sequence[int]) -> list[int]:
    """Return the nodes that a target with the continuation ``future`` accepts, root side first: the longest path."""
    tokens, parents = [int(token) for token in draft.tokens], [int(parent) for parent in draft.parents]
    return find_recorded_path(tokens, parents, draft.passenger, future)


def replay(method: Method, text: Sequence[int], prompt: int, budget: int) -> DraftingCost:
    """Decode ``text`` from its token number ``prompt`` on (the prefill's) to its end, timing every call."""
    context = list(text[: prompt + 1])
    times: list[tuple[int, int]] = []
    nodes: list[int] = []
    rankings = Rankings(method.needs, text)
    prefill = rankings.prefill(context)
    with without_collector():
        start = time.perf_counter_ns()
        drafter = method.begin(context[:-1], prefill, 0)
        begun = time.perf_counter_ns() - start
        while len(context) < len(text):
            before = time.perf_counter_ns()
            draft = drafter.propose(context, budget)
            drafted = time.perf_counter_ns()
            path = follow(draft, text[len(context) : len(context) + len(draft)])
            path = path[: len(text) - len(context) - 1]
            emitted = tuple(text[len(context) : len(context) + len(path) + 1])
            done = len(context) + len(emitted) == len(text)
            step = rankings.step(draft, context[-1], emitted, tuple(path), done)
            context.extend(emitted)
            middle = time.perf_counter_ns()
            drafter.observe(step)
            times.append((drafted - before, time.perf_counter_ns() - middle))
            nodes.append(len(draft))
        drafter.finish(context)
    draft_ns, update_ns = np.array(times, dtype=float).T
    emitted_mean = (len(text) - prompt - 1) / len(times)
    intake = (begun + draft_ns[0]) * 1e-6
    return DraftingCost(draft_ns[1:] * 1e-3, update_ns[1:] * 1e-3, intake, float(np.mean(nodes)), emitted_mean)


def scan(context: Tensor, max_ngram: int, num_draft: int) -> Tensor:
    """Look up a draft by comparing every window of ``context`` (1, T) with its suffix, without an index.

    The draft follows the earliest continued occurrence of the longest suffix of at most ``max_ngram`` tokens.
    """
    length = context.shape[1]
    for n in range(min(max_ngram, length - 1), 0, -1):
        same = (context.unfold(1, n, 1) == context[0, -n:]).all(2)
        starts = same[0].nonzero()[:, 0] + n
        for start in starts.tolist():
            if start < length:
                return context[0, start : start + num_draft]
    return context[0, :0]


def time_scan(text: Sequence[int], context: int, max_ngram: int = 3, num_draft: int = 10) -> np.ndarray:
    """Return the [us] of ``scan`` over ``context`` tokens, at each of the last 100 places of ``text``."""
    whole = torch.tensor([list(text)])
    times: list[int] = []
    for end in range(len(text) - 100, len(text)):
        before = time.perf_counter_ns()
        scan(whole[:, max(0, end - context) : end], max_ngram, num_draft)
        times.append(time.perf_counter_ns() - before)
    return np.array(times) * 1e-3
