"""Drafts that were drawn: the emitted strings keep the target's distribution, and the known wrong
rules do not.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from builders.engines import Scripted
from joint_law import MarkovEngine, emitted, exact, p_value
from specbench.decode import acceptance as trial
from specbench.decode import walk
from specbench.decode.sampling import Sampling
from specbench.method import Drafter, Method
from specbench.types import CaseError, Draft, Needs

VOCAB, LENGTH, DRAWS = 5, 3, 700  # so many draws tell each wrong rule below
RNG = np.random.default_rng
GENERATOR = torch.Generator().manual_seed(3)
TARGET = torch.randn(VOCAB, VOCAB, generator=GENERATOR, dtype=torch.float64) * 1.5
DRAFT = TARGET + torch.randn(VOCAB, VOCAB, generator=GENERATOR, dtype=torch.float64)
SAMPLINGS = [Sampling(1.0), Sampling(0.7, top_p=0.9)]
BLOCKS = Sampling(1.0, blocks=True)
PASSES, FAILS = 1e-3, 1e-6


def rows_of(sampling: Sampling) -> np.ndarray:
    """(V, V) the draft's distribution after each token."""
    return sampling(DRAFT).double().numpy()


class Drawing(Method):
    """Drafts by ``grow(rows, root, random) -> Draft``, rows being the draft's distribution after
    each token.
    """

    draws = True

    def __init__(self, grow, sampling: Sampling) -> None:
        self.grow, self.rows = grow, rows_of(sampling)

    def begin(self, prompt, prefill, seed):
        method, random = self, np.random.default_rng(seed)

        class _Drawn(Drafter):
            def propose(self, context, budget):
                return method.grow(method.rows, context[-1], random)

        return _Drawn()


def choose(row: np.ndarray, random) -> int:
    sums = row.cumsum()
    return int(sums.searchsorted(sums[-1] * random.random(), "right"))


def stack(stated: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.stack(stated))


def chain(rows, root, random) -> Draft:
    path = [root]
    for _ in range(3):
        path.append(choose(rows[path[-1]], random))
    return Draft.chain(path[1:], probs=torch.from_numpy(rows[path[:-1]]))


def siblings(rows, root, random, replace: bool, stated: bool = True) -> Draft:
    """Two levels of two children each; drawn with or without replacement. stated: with
    ``probs``.
    """
    tokens, parents, probs = [], [], []
    for level in ([-1], [0, 1]):
        for parent in level:
            whole = rows[root if parent < 0 else tokens[parent]]
            now = whole.copy()
            for _ in range(2):
                if now.sum() <= 0:
                    break
                tokens.append(choose(now, random))
                parents.append(parent)
                probs.append(now / now.sum() if stated else whole)
                if not replace:
                    now[tokens[-1]] = 0
        if level == [-1] and len(tokens) < 2:
            break
    return Draft(tokens, parents, probs=stack(probs))


def chosen(rows, root, random) -> Draft:
    """The two best children, chosen, but stated as drawn."""
    return Draft(rows[root].argsort()[:-3:-1].tolist(), [-1, -1], probs=stack([rows[root]] * 2))


def verdict(method: Method, sampling: Sampling) -> float:
    engine = MarkovEngine(TARGET)
    found = emitted(engine, method, sampling, [0], LENGTH, DRAWS)
    return p_value(
        found, exact(lambda context: engine.distribution_after(context, sampling), [0], LENGTH)
    )


@pytest.mark.matrix
@pytest.mark.parametrize("sampling", [*SAMPLINGS, BLOCKS], ids=["T1", "T0.7-p0.9", "blocks"])
@pytest.mark.parametrize(
    "grow",
    [
        chain,
        partial(siblings, replace=True),
        partial(siblings, replace=False),
    ],
    ids=["chain", "with-replacement", "without-replacement"],
)
def test_drawn_drafts_keep_the_distribution(grow, sampling):
    assert verdict(Drawing(grow, sampling), sampling) > PASSES


@pytest.mark.parametrize("seed", range(40))
def test_all_nodes_at_once_are_the_nodes_one_by_one(seed):
    """The same path, token and use of numbers; every third draft repeats what the target has, to
    the last digit.
    """
    random, torch_random = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    count = int(random.integers(0, 14))
    parents = [int(random.integers(-1, node)) for node in range(count)]
    passenger = [bool(random.random() < 0.1) for _ in parents]
    tokens = random.integers(0, 7, count).tolist()
    target = (torch.randn(count + 1, 7, generator=torch_random) * 2).softmax(-1)
    probs = target[[parent + 1 for parent in parents]] if seed % 3 == 0 else target[1:].roll(1, 0)
    uniforms = [trial.Uniforms(np.random.default_rng(seed)) for _ in range(2)]
    for _ in range(3):
        test = trial.RatioTest(parents, passenger, count + 1)
        judged = test.compute(
            target, torch.tensor(tokens, dtype=torch.long), probs, uniforms[0]
        ).tolist()
        found = test.follow(judged, uniforms[0])
        assert found == trial.verify_one_by_one(
            target, tokens, parents, passenger, probs, uniforms[1]
        )
        assert uniforms[0].used == uniforms[1].used > len(found[0])


def test_the_plain_sampler_passes_its_own_test():
    assert verdict(Scripted(lambda *_: Draft()), SAMPLINGS[0]) > PASSES


@pytest.mark.parametrize(
    "grow", [partial(siblings, replace=False, stated=False), chosen], ids=["first", "chosen"]
)
def test_siblings_judged_by_the_first_distribution_and_chosen_children_as_if_drawn_fail(grow):
    assert verdict(Drawing(grow, SAMPLINGS[0]), SAMPLINGS[0]) < FAILS


def test_one_uniform_for_a_token_and_the_next_fails(monkeypatch):
    class Twice:
        """Every number is used for two tokens in a row."""

        def __init__(self, seed) -> None:
            self.source, self.spare = RNG(seed), None

        def random(self):
            if self.spare is None:
                self.spare = self.source.random()
                return self.spare
            spare, self.spare = self.spare, None
            return spare

    monkeypatch.setattr(
        walk.np.random,
        "default_rng",
        lambda seed: Twice(seed) if isinstance(seed, list) else RNG(seed),
    )
    assert verdict(Drawing(chain, SAMPLINGS[0]), SAMPLINGS[0]) < FAILS


def test_a_residual_that_is_not_taken_fails(monkeypatch):
    monkeypatch.setattr(trial, "_residual", lambda distribution, drawn, whole, tried: distribution)
    assert verdict(Drawing(chain, SAMPLINGS[0]), SAMPLINGS[0]) < FAILS


class Late(Method):
    """PEARL's shape: of a drawn chain the first part is proposed, the rest comes late and is
    proposed next.
    """

    draws = True

    def __init__(self, sampling: Sampling) -> None:
        self.rows = rows_of(sampling)

    @property
    def needs(self) -> Needs:
        return Needs(concurrent=True)

    def begin(self, prompt, prefill, seed):
        method, random = self, np.random.default_rng(seed)

        class _Late(Drafter):
            def __init__(self) -> None:
                self.pending: list[tuple[int, np.ndarray]] = []

            def propose(self, context, budget):
                self.root = context[-1]
                return self._chain(self.pending)

            def launch(self):
                self.new = []
                last = self.pending[-1][0] if self.pending else self.root
                for _ in range(2):
                    row = method.rows[last]
                    last = choose(row, random)
                    self.new.append((last, row))

            def join(self):
                return self._chain(self.new)

            def observe(self, step):
                self.pending = self.new[1:] if step.late else []

            @staticmethod
            def _chain(pairs):
                if not pairs:
                    return Draft()
                return Draft.chain(
                    [token for token, _ in pairs], probs=stack([row for _, row in pairs])
                )

        return _Late()


@pytest.mark.parametrize(
    "sampling",
    [pytest.param(SAMPLINGS[0], marks=pytest.mark.exhaustive), SAMPLINGS[1], BLOCKS],
    ids=["T1", "T0.7-p0.9", "blocks"],
)
def test_a_late_chain_keeps_the_distribution(sampling):
    assert verdict(Late(sampling), sampling) > PASSES


def test_a_late_token_is_reported_when_greedy():
    """At temperature 0 it is late's first token that the target emits, or it is not."""
    engine = MarkovEngine(TARGET)
    first = int(TARGET[0].argmax())
    second = int(TARGET[first].argmax())
    from specbench.decode.walk import Walk
    from specbench.measure.clock import Clock

    for token, kept in ((second, 1), ((second + 1) % VOCAB, 0)):
        prefill = engine.start([0], 8, Walk(None, 0), Needs(), Clock(torch.device("cpu")))
        assert prefill.token == first
        engine.forward(Draft())
        step = engine.settle(8, Draft.chain([token, 1]))
        assert (step.emitted, step.late) == ((second,), kept)
        engine.forward(Draft.chain([(int(TARGET[second].argmax()) + 1) % VOCAB]))
        # the draft before it was wrong
        assert engine.settle(8, Draft.chain([int(TARGET[second].argmax())])).late == 0


@pytest.mark.parametrize("probs", [torch.full((1, VOCAB), float("nan")), torch.ones(1, VOCAB - 1)])
def test_a_distribution_that_is_none_is_the_cases_error(probs):
    engine = MarkovEngine(TARGET)
    method = Scripted(lambda *_: Draft.chain([1], probs=probs))
    with pytest.raises(CaseError, match="the drafter states distributions"):
        emitted(engine, method, SAMPLINGS[0], [0], LENGTH, 1)
