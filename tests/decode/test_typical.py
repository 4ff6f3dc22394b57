"""Typical acceptance: the rule by hand, and that it is lossy, which the exact walker is not."""

from __future__ import annotations

import torch

from builders.engines import Scripted
from joint_law import MarkovEngine, emitted, exact, p_value
from specbench.decode.acceptance import follow_typical, judge_typical
from specbench.decode.sampling import Sampling
from specbench.types import Draft, Typical

RULE = Typical(threshold=0.09, alpha=0.3)
SURE, FLAT = [0.97, 0.01, 0.01, 0.01], [0.25, 0.25, 0.25, 0.25]


def accepted(distributions, tokens, parents, passenger=None, rule=RULE):
    judged = judge_typical(torch.tensor(distributions), torch.tensor(tokens, dtype=torch.long), parents, rule)
    return follow_typical(*judged.tolist(), parents, passenger)


def test_a_sure_target_asks_for_more_than_an_unsure_one():
    """Entropy ln 4 lowers the bar to 0.3 / 4 = 0.075, below the quarter that every token has; 0.01 is below 0.09."""
    assert accepted([SURE, SURE], [1], [-1]) == []
    assert accepted([SURE, SURE], [0], [-1]) == [0]
    assert accepted([FLAT, FLAT], [3], [-1]) == [0]
    assert accepted([FLAT, FLAT], [3], [-1], rule=Typical(0.3, 1.1)) == []  # 1.1 / 4 is above it


def test_the_deepest_path_wins_then_the_likeliest():
    distributions = [FLAT, SURE, FLAT, FLAT, FLAT]
    assert accepted(distributions, [1, 2, 0, 3], [-1, -1, 0, 1]) == [0, 2]  # 0.25 * 0.97 beats 0.25 * 0.25
    assert accepted(distributions, [1, 2, 1, 3], [-1, -1, 0, 1]) == [1, 3]  # 0.01 is not accepted behind the sure node
    assert accepted(distributions, [1, 2, 0, 3], [-1, -1, 0, 1], [True, False, False, False]) == [1, 3]


def test_it_does_not_keep_the_distribution():
    table = torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 1.5
    engine, sampling = MarkovEngine(table), Sampling(1.0)
    wanted = exact(lambda context: engine.distribution_after(context, sampling), [0], 3)
    best = table.argmax(-1).tolist()

    def draft(context, done, random):
        return Draft.chain([best[context[-1]], best[best[context[-1]]]])

    method = Scripted(draft)
    assert p_value(emitted(engine, method, sampling, [0], 3, 700), wanted) > 1e-3
    method.typical = RULE
    assert p_value(emitted(engine, method, sampling, [0], 3, 700), wanted) < 1e-6


def test_an_empty_draft_accepts_nothing():
    assert accepted([SURE], [], []) == []
