"""Measure drafters alone, without a target: time per draft and per update at several contexts.

    python -m scripts.lab drafters pld cacheback --corpus news.txt --context 2000 100000

A drafter is stepped through a recorded text, which replaces a greedy target: the part of a draft
that continues the text is accepted, so the steps are those of a decode loop. Methods that read
logits or hidden states are skipped. Without arguments all methods that need no model are measured.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from methods.parts.corpus import read_documents, tokenize
from scripts.lab.bench import print_table, repeating_tokens
from specbench.measure.clock import without_collector
from specbench.method import Method, Peer
from specbench.models.facade import Target
from specbench.models.load import load_model
from specbench.models.verify import find_recorded_path
from specbench.records.record import VANILLA
from specbench.runs.config import conf_dir
from specbench.runs.entry import Entry
from specbench.runs.job import job_of
from specbench.types import Draft, InputError, Prefill, Step

NODES, RESET = 256, ("turn", "case")
COLUMNS = ("prompt ms", "nodes", "tokens a step", "draft us p50", "p95", "update us p50", "p95")


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print one row per method and context, and a line for each method that needs a target."""
    known = sorted(path.stem for path in (conf_dir() / "method").glob("*.yaml"))
    known.remove(VANILLA)
    parser.add_argument("methods", nargs="*", default=known)
    contexts = [2_000, 32_000, 128_000]
    parser.add_argument("--corpus", type=Path, nargs="+", help="text or JSON; default: generated")
    parser.add_argument("--context", type=int, nargs="+", default=contexts, help="[tokens]")
    parser.add_argument("--tokens", type=int, default=2_000, help="decoded at each length")
    parser.add_argument("--set", nargs="+", default=[], help="settings as specbench takes them")
    given = parser.parse_intermixed_args(arguments)
    torch.set_num_threads(1)
    if min(given.tokens, *given.context) < 1:
        raise InputError("--tokens, --context: expected 1 or more")
    if unknown := [f"method=[{name}]" for name in given.methods if name not in known]:
        job_of(unknown[:1])  # an error, not a skipped line
    card = job_of([*given.set, "method=[]", "suite.limit=1"]).source.card
    need = 2 * (max(given.context) + given.tokens)
    if given.corpus:
        documents = tokenize(read_documents(given.corpus), card.tokenizer)
        text = np.concatenate([*documents])[:need].tolist()
    else:
        text = repeating_tokens(need, card.vocab_size)
    if len(text) < need:
        raise InputError(f"--corpus: {len(text)} tokens; expected {need} or a shorter --context")
    target = Target(card, load_model(card), NODES, None)

    def rows() -> Iterator[list[object]]:
        for name in given.methods:
            try:
                entry = job_of([*given.set, f"method=[{name}]", "suite.limit=1"]).entries[-1]
                bind(entry, target)
            except InputError as error:
                print(f"skipped {name}: {error}")
                continue
            keeps = entry.reset not in RESET
            for length in sorted(given.context):
                cost = cost_at(entry.method, keeps, text, length, given.tokens, NODES)
                yield [name, length, *cost.cells()]
            entry.method.close()

    print_table(("method", "context", *COLUMNS), rows())


def bind(entry: Entry, target: Target) -> None:
    """Bind a method. Raises InputError if its drafts need what a model computes."""
    if not isinstance(entry.method, Peer) and "draft" not in entry.parameters:
        entry.method.bind(target)
        needs = entry.method.needs
        if not (needs.hidden or needs.node_topk or needs.prompt_topk):
            return
    raise InputError("needs a target; python -m scripts.lab overhead times it")


@dataclass(frozen=True, slots=True)
class DraftingCost:
    """Times of one request's calls. draft_us, update_us: (steps,) [us] of propose and observe.

    intake_ms: of begin and the first propose, which read the prompt. nodes, emitted: means per
    step.
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

    def cells(self) -> list[str]:
        """Return the cells under ``COLUMNS``."""
        cells = [f"{self.intake_ms:.0f}", f"{self.nodes:.1f}", f"{self.emitted:.2f}"]
        for part in (self.draft_us, self.update_us):
            cells += [f"{np.percentile(part, share):.1f}" for share in (50, 95)]
        return cells


def cost_at(
    method: Method,
    keeps: bool,
    text: Sequence[int],
    context: int,
    tokens: int,
    budget: int,
) -> DraftingCost:
    """Measure the last ``tokens`` of ``text`` after the ``context`` tokens before them.

    A request of the same size in the text's first half precedes it: it warms up, and a method that
    ``keeps`` its state across requests learns from it; others are reset in between.
    """
    method.reset()
    half = len(text) // 2
    replay(method, text[half - context - tokens : half], context, budget)
    if not keeps:
        method.reset()
    return replay(method, text[-context - tokens :], context, budget)


def follow(draft: Draft, future: Sequence[int]) -> list[int]:
    """Return the path that a target with the continuation ``future`` accepts."""
    tokens, parents = [*map(int, draft.tokens)], [*map(int, draft.parents)]
    return find_recorded_path(tokens, parents, draft.passenger, future)


def replay(method: Method, text: Sequence[int], prompt: int, budget: int) -> DraftingCost:
    """Decode ``text`` from its token number ``prompt`` (the prefill's), timing every call."""
    context = list(text[: prompt + 1])
    times: list[tuple[int, int]] = []
    nodes: list[int] = []
    with without_collector():
        start = time.perf_counter_ns()
        drafter = method.begin(context[:-1], Prefill(context[-1]), 0)
        begun = time.perf_counter_ns() - start
        while len(context) < len(text):
            before = time.perf_counter_ns()
            draft = drafter.propose(context, budget)
            drafted = time.perf_counter_ns()
            path = follow(draft, text[len(context) : len(context) + len(draft)])
            path = path[: len(text) - len(context) - 1]
            emitted = tuple(text[len(context) : len(context) + len(path) + 1])
            done = len(context) + len(emitted) == len(text)
            step = Step(context[-1], emitted, tuple(path), done)
            context.extend(emitted)
            middle = time.perf_counter_ns()
            drafter.observe(step)
            times.append((drafted - before, time.perf_counter_ns() - middle))
            nodes.append(len(draft))
        drafter.finish(context)
    draft_us, update_us = np.array(times, dtype=float).T * 1e-3
    intake_ms = 1e-6 * begun + 1e-3 * draft_us[0]
    emitted_mean = (len(text) - prompt - 1) / len(times)
    mean_nodes = float(np.mean(nodes))
    return DraftingCost(draft_us[1:], update_us[1:], intake_ms, mean_nodes, emitted_mean)
