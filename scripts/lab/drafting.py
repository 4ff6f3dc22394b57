"""What drafting costs without a target: a drafter stepped through a recorded text, its calls timed one by one.

The text stands in for a greedy target: a draft is accepted as far as it is the text's continuation, so a drafter sees
the very steps of a decode loop. Rankings of tokens have the shape that a target's have; their best token is the text's
where it is known, and the others are drawn. It is compared with prompt lookup as its references do it: a scan of the
whole context.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from scripts.lab.memory import measure_held
from specbench.measure.clock import without_collector
from specbench.method import Drafter, Method
from specbench.models.verify import find_accepted_path
from specbench.types import Draft, Needs, Prefill, Step, TopK

COLUMNS = ("request MiB", "prompt ms", "nodes", "tokens a step", "draft us p50", "p95", "update us p50", "p95")


@dataclass(frozen=True, slots=True)
class DraftingCost:
    """Times of one request's calls. draft_us, update_us: (steps,) propose and observe [us].

    intake_ms: begin and the first propose, which read the prompt. nodes, emitted: means a step.
    held_bytes: that the request's drafter, and what its method learned, hold after the prompt.
    """

    draft_us: np.ndarray
    update_us: np.ndarray
    intake_ms: float
    nodes: float
    emitted: float
    held_bytes: int = 0

    @property
    def step_us(self) -> float:
        """Median of propose and observe together [us]."""
        return float(np.median(self.draft_us + self.update_us))

    def cells(self) -> list[str]:
        """Its figures under ``COLUMNS``."""
        times = [f"{np.percentile(part, share):.1f}" for part in (self.draft_us, self.update_us) for share in (50, 95)]
        whole = ((self.held_bytes / 2**20, 1), (self.intake_ms, 0), (self.nodes, 1), (self.emitted, 2))
        return [*(f"{value:.{decimals}f}" for value, decimals in whole), *times]


def cost_at(method: Method, keeps: bool, text: Sequence[int], context: int, tokens: int, budget: int) -> DraftingCost:
    """Times of the last ``tokens`` of ``text``, behind the ``context`` tokens before them.

    A request of the same size in the text's first half comes first: it warms up, and is what a method that ``keeps``
    its state across requests has learned from; others are reset in between.
    """
    method.reset()
    half = len(text) // 2
    replay(method, text[half - context - tokens : half], context, budget)
    if not keeps:
        method.reset()
    return replay(method, text[-context - tokens :], context, budget)


def hold(method: Method, whole: Sequence[int], budget: int) -> int:
    """[bytes] of a drafter that has read ``whole``, and what its method learned, without the list that it was given."""
    prompt, prefill = whole[:-1], Rankings(method.needs, whole).prefill(whole)

    def read() -> Drafter:
        drafter = method.begin(prompt, prefill, 0)
        drafter.propose(whole, budget)
        return drafter

    method.reset()
    return measure_held(read)


def lines_of(
    name: str, method: Method, keeps: bool, text: Sequence[int], scans: Mapping[int, float], tokens: int, budget: int
) -> Iterator[str]:
    """A table's line a context. scans: context -> [us] of a whole ``scan``, for comparison."""
    first = 0.0
    for length, whole in scans.items():
        cost = cost_at(method, keeps, text, length, tokens, budget)
        cost = replace(cost, held_bytes=hold(method, text[-length - 1 :], budget))
        first = first or cost.step_us
        cells = [name, str(length), *cost.cells(), f"{cost.step_us / first:.2f}", f"{whole / cost.step_us:.1f}"]
        yield f"| {' | '.join(cells)} |"


class Rankings:
    """The best tokens of rows that a target would have computed, for a method that needs them."""

    def __init__(self, needs: Needs, text: Sequence[int]) -> None:
        """text: its tokens are the vocabulary."""
        self._count, self._whole = max(needs.node_topk, needs.prompt_topk), needs.prompt_topk > 0
        self._vocab, self._random = max(text) + 1, np.random.default_rng(0)

    def top(self, best: Sequence[int]) -> TopK | None:
        """(rows, k). best: each row's best token, -1 where the text does not say; None where none are needed."""
        if not self._count:
            return None
        ids, known = self._random.integers(self._vocab, size=(len(best), self._count)), np.array(best)
        ids[known >= 0, 0] = known[known >= 0]
        logits = -torch.arange(self._count, dtype=torch.float32).expand(len(best), -1)
        return TopK(torch.from_numpy(ids), logits)

    def prefill(self, whole: Sequence[int]) -> Prefill:
        """Of a prompt; the last of ``whole`` is the first emitted token."""
        return Prefill(whole[-1], topk=self.top(whole[1:] if self._whole else whole[-1:]))

    def step(self, draft: Draft, root: int, emitted: tuple[int, ...], path: tuple[int, ...], done: bool) -> Step:
        """Of a draft: the rows of the root and the accepted nodes are known."""
        if not self._count:
            return Step(root, emitted, path, done)
        best = [-1] * (len(draft) + 1)
        for row, token in zip((-1, *path), emitted, strict=True):
            best[row + 1] = token
        fed = torch.tensor([root, *map(int, draft.tokens)])
        return Step(root, emitted, path, done, fed, self.top(best))


def follow(draft: Draft, future: Sequence[int]) -> list[int]:
    """The nodes that a target which continues with ``future`` accepts, root side first: the longest path."""
    tokens, parents = [int(token) for token in draft.tokens], [int(parent) for parent in draft.parents]
    return find_accepted_path(tokens, parents, draft.passenger, [*future, None], by_depth=True)


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
    """Prompt lookup by comparing every window of ``context`` (1, T) with its suffix: what the index replaces.

    The longest suffix of at most ``max_ngram`` tokens, its earliest occurrence that anything follows.
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
    """[us] of ``scan`` over ``context`` tokens, at each of the last 100 places of ``text``; the tensor is there."""
    whole = torch.tensor([list(text)])
    times: list[int] = []
    for end in range(len(text) - 100, len(text)):
        before = time.perf_counter_ns()
        scan(whole[:, max(0, end - context) : end], max_ngram, num_draft)
        times.append(time.perf_counter_ns() - before)
    return np.array(times) * 1e-3


def repeating_tokens(count: int, vocab: int, seed: int = 0) -> list[int]:
    """(count,) ids that repeat as text does: new tokens by Zipf's law, and phrases copied from what went before.

    A phrase has 8 tokens on average (geometric); three of five are copied, half of those from the last 1000 tokens.
    """
    random = np.random.default_rng(seed)
    law = 1 / np.arange(1, vocab + 1)
    law = np.cumsum(law / law.sum())
    text: list[int] = []
    while len(text) < count:
        span = int(random.geometric(1 / 8))
        if len(text) > span and random.random() < 0.6:
            low = max(0, len(text) - 1000) if random.random() < 0.5 else 0
            start = int(random.integers(low, len(text) - span + 1)) if low < len(text) - span else 0
            text += text[start : start + span]
        else:
            text += np.minimum(np.searchsorted(law, random.random(span)), vocab - 1).tolist()
    return text[:count]
