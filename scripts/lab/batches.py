"""Time plain steps of several requests that share forwards, against steps of one request without a batch.

    python -m scripts.lab batches model=tiny
    python -m scripts.lab batches model=tiny model.threads=1 --library transformers --requests 1,4,8,16 --blocks 5
    python -m scripts.lab batches model=random_110m model.threads=2 --requests 1,2,4,8,16 --nodes 7
    python -m scripts.lab batches model=tiny model.threads=1 --url http://127.0.0.1:8000 --requests 1,4,8,16

The first arguments are those of ``specbench``. One request without a batch, the same again as the control, and each
number of requests take turns on one loaded model; the figures are medians of the ratios of the turns. The bound is that
of one request whose forwards feed as many rows: T(1) / T(q) times the requests. If the forward is compiled code, the
last columns have the processor's time of a step outside of it: of the batch (layout, acceptance), and of the complete
harness with drafters that compute nothing. With --library or --url, complete answers are timed in turn with another
runtime's batches; the processor's time is the one of this process, and a server that keeps prompts (vLLM without
--no-enable-prefix-caching) reads none after the first turn.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import httpx
import numpy as np
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from methods.openvino_genai import OpenvinoBatches
from scripts.lab.materials import Asked, load_engine, print_table, take_turns, timed
from specbench.decode.budgets import Budgets
from specbench.decode.loop import Request
from specbench.decode.together import SharedLaps, SharedServer
from specbench.decode.walk import Walk
from specbench.input import whole_numbers
from specbench.measure.clock import without_collector
from specbench.method import Drafter, Method
from specbench.models.engine import SILENT, Batch, Engine
from specbench.models.facade import Target
from specbench.models.fast.engine import FastEngine
from specbench.types import Draft, InputError, Needs, Prefill

LIBRARIES = ("transformers", "openvino")
LONGEST_S = 600.0  # of a server's answers
NEEDS = Needs()
Answers = Callable[[Sequence[Sequence[int]], int], list[list[int]]]  # prompts, tokens of each answer -> greedy answers


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print one row per number of requests."""
    parser.add_argument("overrides", nargs="*", help="of specbench: model=..., engine=..., model.threads=...")
    parser.add_argument("--requests", type=whole_numbers, default=[1, 2, 4, 8, 16, 64], help="at once")
    parser.add_argument("--nodes", type=int, default=0, help="of each draft, a chain that is never right")
    parser.add_argument("--context", type=int, default=100, help="tokens in the cache of each request")
    parser.add_argument("--blocks", type=int, default=15, help="turns of each")
    parser.add_argument("--steps", type=int, default=30, help="in a turn")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--library", choices=LIBRARIES, help="complete answers, compared with its continuous batching")
    other.add_argument("--url", help="complete answers, compared with the batches of the vLLM server at this address")
    given = parser.parse_intermixed_args(arguments)
    job, model, engine = load_engine(["method=[]", *given.overrides], 64)
    bench = TogetherBench(engine, len(model.get_input_embeddings().weight), given.context, given.steps)
    if given.library or given.url:
        answer = answers_behind(given.url) if given.url else partial(generate_batch, model)
        if given.library == LIBRARIES[1]:
            peer = OpenvinoBatches()
            peer.bind(Target(job.source.card, model, max_nodes=1, sampling=None))
            answer = peer.answer
        bench.compare(answer, given.requests, given.blocks)
    else:
        bench.measure(given.requests, given.nodes, given.blocks)
    about = f"{job.source.card.name}, {job.source.card.dtype}, engine={engine.kind.value}: {engine.describe_forward()}"
    sizes = f"{given.context} tokens of context, drafts of {given.nodes} nodes"
    print(f"{about}, {torch.get_num_threads()} threads, {sizes}")


class OneDraft(Drafter, Method):
    """A method and its drafters, which propose the same draft at every step."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        return self

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        return self._draft


class TogetherBench:
    """Turns of steps on one engine. All drafts are wrong, so that each request emits about one token per step."""

    def __init__(self, engine: Engine, vocab: int, context: int, steps: int) -> None:
        """Draw tokens. vocab: ids to draw from. context: [tokens] of a prompt. steps: in a turn."""
        self._engine, self._steps = engine, steps
        self._ids = np.random.default_rng(0).integers(0, vocab, 1 << 16)
        self._context, self._answer = context, (engine.max_nodes + 1) * steps + 1
        self._inside = 0.0  # [s] of this thread's processor in compiled forwards of batches
        if isinstance(engine, FastEngine) and engine.compiled:
            compiled: Any = engine.compiled
            feed = compiled.feed_packed

            def timed(*given: object) -> object:
                start = time.thread_time()
                computed = feed(*given)
                self._inside += time.thread_time() - start
                return computed

            compiled.feed_packed = timed

    def _draw(self, count: int, start: int = 0) -> list[int]:
        drawn: list[int] = np.roll(self._ids, -start)[:count].tolist()
        return drawn

    def alone(self, nodes: int) -> tuple[float]:
        """Return the time [s] per step of one request without a batch, with drafts of ``nodes``."""
        engine, draft, limit = self._engine, Draft.chain(self._draw(nodes)), self._answer
        engine.reserve(self._context + limit)
        engine.start(self._draw(self._context), limit, Walk(None, 0), NEEDS, SILENT)
        start = time.perf_counter()
        for _ in range(self._steps):
            engine.forward(draft)
            engine.settle(limit)
        return ((time.perf_counter() - start) / self._steps,)

    def together(self, batch: Batch, nodes: int) -> tuple[float, float]:
        """Return the time [s] per step of a batch with all its requests, and the processor's outside the forward."""
        handles = []
        for number in range(batch.requests):
            prompt = self._draw(self._context, number)
            handles.append(batch.open(prompt, batch.tokens - self._context, Walk(None, 0), NEEDS))
            batch.prefill(handles[-1])
        drafts, self._inside = [Draft.chain(self._draw(nodes)) for _ in handles], 0.0
        start, processor = time.perf_counter(), time.thread_time()
        for _ in range(self._steps):
            batch.forward(handles, drafts)
            batch.settle()
        used, seconds = time.thread_time() - processor, time.perf_counter() - start
        for handle in handles:
            batch.close(handle)
        return seconds / self._steps, (used - self._inside) / self._steps

    def serve(self, batch: Batch, nodes: int) -> tuple[float]:
        """Return the processor's time [s] per step of a server with all its requests, outside compiled forwards."""
        server = SharedServer(batch, SharedLaps(), frozenset(), self._engine.max_nodes, Budgets())
        method, limit = OneDraft(Draft.chain(self._draw(nodes))), batch.tokens - self._context
        prompts = [self._draw(self._context, number) for number in range(batch.requests)]
        requests = [server.admit(Asked(method, Request(prompt, limit, None, 0))) for prompt in prompts]
        for shared in requests:
            server.read(shared, self._context)
        with without_collector():  # as in a run
            self._inside, processor = 0.0, time.thread_time()
            for _ in range(self._steps):
                server.step(requests)
            used = time.thread_time() - processor
        for shared in requests:
            server.leave(shared)
        return ((used - self._inside) / self._steps,)

    @torch.inference_mode()
    def measure(self, sizes: Sequence[int], nodes: int, blocks: int) -> None:
        """Print a table of steps."""
        room = min(self._context + self._answer, self._engine.context)
        batches = [self._engine.batch(size, room) for size in sizes]
        fed = [min(size * (1 + nodes), self._engine.max_nodes + 1) - 1 for size in sizes]
        calls: list[Callable[[], tuple[float, ...]]] = [partial(self.alone, count) for count in (nodes, nodes, *fed)]
        calls += [partial(call, batch, nodes) for batch in batches for call in (self.together, self.serve)]
        times = [np.concatenate(turn) for turn in take_turns(calls, blocks)]
        own, again, wide, shared = np.split(np.array(times).T, [1, 2, 2 + len(sizes)])
        rows: list[list[object]] = [["without", f"{1e3 * np.median(own):.3f}", 1, 1, "", "", ""],
                ["control", f"{1e3 * np.median(again):.3f}", f"{np.median(again / own):.3f}", *[""] * 4]]  # fmt: skip
        for place, size in enumerate(sizes):
            steps, *spent = shared[3 * place : 3 * place + 3]
            ratio = np.median(steps / own)
            fits = size * (1 + nodes) == fed[place] + 1
            bound = f"{np.median(size * own / wide[place]):.2f}" if fits else ""
            host = [f"{1e6 * np.median(each):.0f}" for each in spent]
            rows.append([size, f"{1e3 * np.median(steps):.3f}", f"{ratio:.3f}", f"{size / ratio:.2f}", bound, *host])
        columns = ("requests", "ms a step", "over one without a batch", "tokens/s over it", "bound", "batch [us]",
                   "harness [us]")  # fmt: skip
        print_table(columns, rows, left=())

    def answer(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Return greedy answers of ``tokens`` each, read and decoded in a batch of their own."""
        batch = self._engine.batch(len(prompts), max(map(len, prompts)) + tokens)
        handles = [batch.open(prompt, tokens, Walk(None, 0), NEEDS) for prompt in prompts]
        answers = [[read.token] for handle in handles if (read := batch.prefill(handle))]
        for _ in range(1, tokens):
            batch.forward(handles, [None] * len(handles))
            batch.settle().enter(answers)
        batch.end()
        return answers

    @torch.inference_mode()
    def compare(self, answer: Answers, sizes: Sequence[int], blocks: int) -> None:
        """Print a table of complete answers, one token per step: ours, theirs, and ours again as the control, in turn.

        Each of our calls makes its cache.
        """
        self._engine.eos = frozenset()

        def rows() -> Iterator[list[object]]:
            for size in sizes:
                prompts = [self._draw(self._context, number) for number in range(size)]
                calls = [partial(timed, partial(call, prompts, self._steps))
                         for call in (self.answer, answer, self.answer)]  # fmt: skip
                turns = take_turns(calls, blocks + 1)[1:]  # the first is not counted
                times = np.array([[found[1:] for found in turn] for turn in turns])
                theirs, again = times[:, 1] / times[:, 0], times[:, 2, :1] / times[:, 0, :1]
                figures = (f"{ratio:.2f}" for ratio in np.median(np.hstack([theirs, again]), axis=0))
                same = all(ours[0] == other[0] for ours, other, _ in turns)
                yield [size, *figures, "yes" if same else "no"]

        columns = ("requests", "theirs over ours, clock", "processor", "ours again", "same ids")
        print_table(columns, rows(), left=())


def answers_behind(url: str, transport: httpx.BaseTransport | None = None) -> Answers:
    """Return a function of greedy answers by vLLM's batches: all prompts in one request that is not streamed."""
    client = httpx.Client(base_url=url, timeout=LONGEST_S, transport=transport)

    def ask(method: str, path: str, **given: Any) -> Any:
        try:
            return client.request(method, path, **given).raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            raise InputError(
                f"--url {url}: {path}: {str(error).splitlines()[0]}; expected the address of a vLLM server"
            ) from error

    model = ask("GET", "/v1/models")["data"][0]["id"]

    def answer(prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        asked = {"model": model, "prompt": [list(prompt) for prompt in prompts], "max_tokens": tokens}
        asked |= {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
        choices = ask("POST", "/v1/completions", json=asked)["choices"]
        return [choice["token_ids"] for choice in sorted(choices, key=lambda choice: choice["index"])]

    return answer


def generate_batch(model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Return greedy answers by the continuous batching of transformers, with blocks of its cache for these requests."""
    most = max(map(len, prompts)) + tokens
    found = model.generate_batch(
        [list(prompt) for prompt in prompts],
        GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1),
        ContinuousBatchingConfig(num_blocks=(most // 32 + 2) * len(prompts), max_batch_tokens=2048),
        progress_bar=False,
        warmup=False,
    )
    return [list(found[f"req_{number}"].generated_tokens) for number in range(len(prompts))]
