"""Steps of several requests that share forwards, timed beside steps of one request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import httpx
import numpy as np
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from specbench.decode.walk import Walk
from specbench.models.engine import SILENT, Batch, Engine
from specbench.models.fast.engine import FastEngine
from specbench.types import Draft, InputError, Needs, Step

LONGEST_S = 600.0  # of a server's answers
COLUMNS = "| requests | ms a step | over one without a batch | tokens/s over it | bound | host [us] |"
NEEDS = Needs()
Answers = Callable[[Sequence[Sequence[int]], int], list[list[int]]]  # prompts, tokens of each answer -> greedy answers


class TogetherBench:
    """Turns of steps on one engine whose drafts are wrong, so that each request emits about one token a step."""

    def __init__(self, engine: Engine, vocab: int, context: int, steps: int) -> None:
        """vocab: ids to draw from. context: [tokens] of a prompt. steps: in a turn."""
        self._engine, self._steps = engine, steps
        self._ids = np.random.default_rng(0).integers(0, vocab, 1 << 16)
        self._context, self._answer = context, (engine.max_nodes + 1) * steps + 1
        self._inside = 0.0  # [s] in compiled forwards of batches
        if isinstance(engine, FastEngine) and engine.compiled:
            self._watch(engine.compiled)

    def _watch(self, compiled: object) -> None:
        feed = compiled.feed_packed  # type: ignore[attr-defined]

        def timed(*given: object) -> object:
            start = time.perf_counter()
            computed = feed(*given)
            self._inside += time.perf_counter() - start
            return computed

        compiled.feed_packed = timed  # type: ignore[attr-defined]

    def _draw(self, count: int, start: int = 0) -> list[int]:
        drawn: list[int] = np.roll(self._ids, -start)[:count].tolist()
        return drawn

    def alone(self, nodes: int) -> float:
        """[s] a step of one request without a batch, with drafts of ``nodes``."""
        engine, draft, limit = self._engine, Draft.chain(self._draw(nodes)), self._answer
        engine.reserve(self._context + limit)
        engine.start(self._draw(self._context), limit, Walk(None, 0), NEEDS, SILENT)
        start = time.perf_counter()
        for _ in range(self._steps):
            engine.forward(draft)
            engine.settle(limit)
        return (time.perf_counter() - start) / self._steps

    def together(self, batch: Batch, nodes: int) -> tuple[float, float]:
        """[s] a step of all requests that the batch has places for, and of that outside of a compiled forward."""
        handles = []
        for number in range(batch.requests):
            prompt = self._draw(self._context, number)
            handles.append(batch.open(prompt, batch.tokens - self._context, Walk(None, 0), NEEDS))
            batch.prefill(handles[-1])
        drafts = [(handle, Draft.chain(self._draw(nodes))) for handle in handles]
        left, self._inside = [self._answer] * len(handles), 0.0
        start = time.perf_counter()
        for _ in range(self._steps):
            batch.forward(drafts)
            batch.settle(left)
        seconds = time.perf_counter() - start
        for handle in handles:
            batch.close(handle)
        return seconds / self._steps, (seconds - self._inside) / self._steps

    @torch.inference_mode()
    def measure(self, sizes: Sequence[int], nodes: int, blocks: int) -> list[str]:
        """The lines of a table."""
        room = min(self._context + self._answer, self._engine.context)
        batches = [self._engine.batch(size, room) for size in sizes]
        fed = [min(size * (1 + nodes), self._engine.max_nodes + 1) - 1 for size in sizes]
        times = [
            [self.alone(nodes), self.alone(nodes)]
            + [self.alone(count) for count in fed]
            + [each for batch in batches for each in self.together(batch, nodes)]
            for _ in range(blocks)
        ]
        own, again, wide, shared = np.split(np.array(times).T, [1, 2, 2 + len(sizes)])
        steps, host = shared[::2], 1e6 * np.median(shared[1::2], axis=1)
        lines = [COLUMNS, "|--:" * 6 + "|", f"| without | {1e3 * np.median(own):.3f} | 1 | 1 | | |"]
        lines.append(f"| control | {1e3 * np.median(again):.3f} | {np.median(again / own):.3f} | | | |")
        for place, size in enumerate(sizes):
            ratio, bound = np.median(steps[place] / own), np.median(size * own / wide[place])
            whole = size * (1 + nodes) == fed[place] + 1
            lines.append(
                f"| {size} | {1e3 * np.median(steps[place]):.3f} | {ratio:.3f} | {size / ratio:.2f} |"
                f" {f'{bound:.2f}' if whole else ''} | {host[place]:.0f} |"
            )
        return lines

    def answer(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Greedy answers of ``tokens`` each, read and decoded in a batch of their own."""
        batch = self._engine.batch(len(prompts), max(map(len, prompts)) + tokens)
        handles = [batch.open(prompt, tokens, Walk(None, 0), NEEDS) for prompt in prompts]
        answers = [[read.token] for handle in handles if (read := batch.prefill(handle))]
        for done in range(1, tokens):
            batch.forward([(handle, None) for handle in handles])
            for own, step in zip(answers, batch.settle([tokens - done] * len(handles)), strict=True):
                assert isinstance(step, Step)
                own.extend(step.emitted)
        batch.end()
        return answers

    @torch.inference_mode()
    def beside(self, answer: Answers, sizes: Sequence[int], tokens: int, blocks: int) -> list[str]:
        """The lines of a table: whole answers by turns, ours, theirs, and ours again as the control.

        Each of our calls makes its cache.
        """
        self._engine.eos = frozenset()
        lines = ["| requests | theirs over ours, clock | processor | ours again | same ids |", "|--:" * 5 + "|"]
        for size in sizes:
            prompts, ratios, same = [self._draw(self._context, number) for number in range(size)], [], True
            for _ in range(blocks + 1):  # the first is not counted
                ours, spent = _timed(partial(self.answer, prompts, tokens))
                theirs, other = _timed(partial(answer, prompts, tokens))
                _, again = _timed(partial(self.answer, prompts, tokens))
                ratios.append((*other / spent, again[0] / spent[0]))
                same = same and ours == theirs
            figures = " | ".join(f"{ratio:.2f}" for ratio in np.median(ratios[1:], axis=0))
            lines.append(f"| {size} | {figures} | {'yes' if same else 'no'} |")
        return lines


def _timed(call: Callable[[], Any]) -> tuple[Any, np.ndarray]:
    """What a call returns; [s] by the clock and of the processor."""
    start = np.array([time.perf_counter(), time.process_time()])
    found = call()
    return found, np.array([time.perf_counter(), time.process_time()]) - start


def answers_behind(url: str, transport: httpx.BaseTransport | None = None) -> Answers:
    """Greedy answers by vLLM's batches: all prompts in one request that is not streamed."""
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
    """Greedy answers by the continuous batching of transformers, with blocks of its cache for these requests."""
    most = max(map(len, prompts)) + tokens
    found = model.generate_batch(
        [list(prompt) for prompt in prompts],
        GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1),
        ContinuousBatchingConfig(num_blocks=(most // 32 + 2) * len(prompts), max_batch_tokens=2048),
        progress_bar=False,
        warmup=False,
    )
    return [list(found[f"req_{number}"].generated_tokens) for number in range(len(prompts))]
