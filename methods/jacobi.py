"""Jacobi decoding (Santilli et al. 2023, "Accelerating Transformer Inference for Translation via
Parallel Decoding").

A window of guesses after the root is fed in one forward; the target's best token after each guess
is the next window. Guesses that have become right are accepted, so greedy decoding is a fixed-point
iteration that may settle several tokens a step.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from methods.parts.parameters import Parameters, count
from specbench.method import Drafter, Method
from specbench.models.facade import ModelCard, Target
from specbench.types import Draft, Needs, Prefill, Step, require_nodes


class _Window(Drafter):
    def __init__(self, method: Jacobi, prompt: Sequence[int], first: int, seed: int) -> None:
        self._method, self._prompt = method, prompt or [first]
        self._random = random.Random(seed)
        self._guesses: list[int] = []
        self._fill(first)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        self._guesses = self._guesses[:budget]
        return Draft.chain(self._guesses, source=0)

    def observe(self, step: Step) -> None:
        assert step.topk is not None
        # Row i holds what follows guess i; the rows after the accepted guesses' last one are the
        # guesses to come.
        self._guesses = step.topk.ids[len(step.path) + 1 :, 0].tolist()
        self._fill(step.emitted[-1])

    def _fill(self, root: int) -> None:
        """Pad the window to its length. root: the token it hangs from."""
        missing = self._method.window - len(self._guesses)
        if self._method.padding == "prompt":
            self._guesses += self._random.choices(self._prompt, k=missing)
        elif self._method.padding == "repeat":
            self._guesses += [self._guesses[-1] if self._guesses else root] * missing
        else:
            self._guesses += [self._method.pad] * missing


@dataclass(eq=False)
class Jacobi(Parameters, Method):
    """Jacobi decoding; conf/method/jacobi.yaml describes the parameters."""

    by_node = True
    sources = ("window",)
    pad = 0

    window: int = count(8)
    padding: Literal["pad", "prompt", "repeat"] = "pad"

    @property
    def needs(self) -> Needs:
        return Needs(node_topk=1, read_topk=True)

    def check(self, model: ModelCard) -> None:
        """Look up the pad token; one that was added beyond the embeddings cannot be fed."""
        pad = model.tokenizer.pad_token_id
        self.pad = pad if pad is not None and pad < model.vocab_size else min(model.eos, default=0)

    def bind(self, target: Target) -> None:
        require_nodes(f"window={self.window}", self.window, target.max_nodes)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The window is the request's own. seed: of the tokens drawn from the prompt."""
        return _Window(self, prompt, prefill.token, seed)
