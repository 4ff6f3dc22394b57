"""A joint-law test: are the strings that a method emits distributed as the target's own? Against
exact enumeration.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch
from scipy.stats import chisquare
from torch import Tensor

from specbench.decode.loop import Request, decode
from specbench.decode.sampling import Sampling
from specbench.measure.clock import Clock
from specbench.method import Method
from specbench.models.eager.engine import EagerEngine, EagerRequest
from specbench.models.engine import Engine, Silent
from specbench.types import Lossy, Needs

# expected count of an outcome; rarer ones are put together, as the chi-square test wants it
LEAST = 5.0


class _NoCache:
    length = 0

    def drop_copies(self) -> None: ...


class MarkovEngine(EagerEngine):
    """The eager engine over a table: the logits after a token are its row, whatever came before."""

    def __init__(self, table: Tensor, max_nodes: int = 64) -> None:
        self.table, self.max_nodes, self.context, self.eos = table, max_nodes, 512, frozenset()
        self.device, self.dtype, self.fed = torch.device("cpu"), table.dtype, 0
        self.cache = _NoCache()  # type: ignore[assignment]
        self.request = EagerRequest(Needs(), Silent())
        self._kept = 0

    def reserve(self, tokens: int) -> None: ...

    def run_model(self, tokens, parents, depths, rows, want_hidden):
        return SimpleNamespace(logits=self.table[tokens])

    def commit(self, path) -> None: ...

    def distribution_after(self, context: Sequence[int], sampling: Sampling) -> Tensor:
        """(V,) what follows ``context``."""
        return sampling(self.table[context[-1]][None])[0]


def exact(
    after: Callable[[Sequence[int]], Tensor], prompt: Sequence[int], length: int
) -> dict[tuple[int, ...], float]:
    """String -> probability, of all strings of ``length`` tokens behind ``prompt``."""
    known: dict[tuple[int, ...], list[float]] = {}
    found: dict[tuple[int, ...], float] = {}
    vocab = len(after(prompt))
    for string in itertools.product(range(vocab), repeat=length):
        probability = 1.0
        for place, token in enumerate(string):
            before = string[:place]
            if before not in known:
                known[before] = after([*prompt, *before]).double().tolist()
            probability *= known[before][token]
        found[string] = probability
    return found


def emitted(
    engine: Engine,
    method: Method,
    sampling: Sampling,
    prompt: Sequence[int],
    length: int,
    draws: int,
    rule: Lossy | None = None,
) -> Counter[tuple[int, ...]]:
    """Counts how often each string was emitted, one seed per draw."""
    clock = Clock(torch.device("cpu"))
    found: Counter[tuple[int, ...]] = Counter()
    for seed in range(draws):
        found[
            tuple(
                decode(
                    engine, method, Request(list(prompt), length, sampling, seed, rule), clock
                ).ids
            )
        ] += 1
    return found


def p_value(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Of the chi-square test of ``counts`` against ``law``; 0 where something impossible was
    emitted.
    """
    draws = sum(counts.values())
    if any(law.get(string, 0.0) == 0.0 for string in counts):
        return 0.0
    seen, expected, rare = [], [], [0.0, 0.0]
    for string, probability in law.items():
        if probability * draws < LEAST:
            rare = [rare[0] + counts[string], rare[1] + probability * draws]
        else:
            seen.append(counts[string])
            expected.append(probability * draws)
    if rare[1] >= LEAST:
        seen.append(rare[0])
        expected.append(rare[1])
    scale = sum(seen) / sum(expected)
    return float(chisquare(seen, [value * scale for value in expected]).pvalue)
