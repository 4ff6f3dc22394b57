"""The worth of drafters: agreement, coverage, cost, the acceptance needed to win, the oracle of
draft lengths.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from report.conftest import manifest_of, write_run

from builders.profiles import FIT
from builders.records import record, turn
from builders.reports import check
from methods.pld import PromptLookup
from specbench.decode.sampling import Sampling
from specbench.decode.walk import Walk
from specbench.profile import write_profile
from specbench.records.record import VANILLA
from specbench.report import read_findings
from specbench.report.frames.audit import _count_steps
from specbench.types import Draft, Prefill

# Emitted tokens and depths of a chain's steps, by case. Drafting takes 2 ms a level, vanilla's step
# 10 ms.
STEPS = {"a": ([4, 1, 2], [3, 3, 4]), "b": ([1, 1, 3], [0, 4, 2])}
DRAFTER_S = {"a": 0.020, "b": 0.012}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    records = []
    for block, (case, category) in enumerate((("a", "qa"), ("b", "rag"))):
        accept, depth = STEPS[case]
        rest = sum(0.010 + 0.001 * levels for levels in depth)  # a further row takes 1 ms
        phases = {"draft": DRAFTER_S[case], "forward": rest}
        stats = {"in_vocabulary": 0.5} if case == "a" else {"in_vocabulary": 1.0, "overlap": 0.25}
        drafted = turn(accept, depth, decode_s=rest + DRAFTER_S[case], phases_s=phases, stats=stats)
        total = sum(accept)
        plain = turn([1] * total, decode_s=0.010 * total, phases_s={"forward": 0.010 * total})
        rows = ((VANILLA, plain), ("sps", drafted))
        records += [record(name, case, [each], category, block=block) for name, each in rows]
    return write_run(tmp_path_factory.mktemp("audit") / "run", manifest_of({"sps": {}}), records)


def rows_of(findings):
    return {row["category"]: row for row in findings.detail["audit"].to_dict("records")}


def best(price) -> float:
    """[ms] The cheapest lengths that keep what was emitted, of all of them; each step may also be
    vanilla's.
    """
    total = 0.0
    for emitted, depth in itertools.chain(*(zip(*STEPS[case], strict=True) for case in STEPS)):
        lengths = [price(1 + length) + 2 * length for length in range(emitted - 1, depth + 1)]
        total += (
            min(*lengths, emitted * price(1))
            if len(lengths) > 1
            else min(lengths[0], emitted * price(1))
        )
    return total


def test_figures_worked_out_by_hand(run):
    rows = rows_of(read_findings([run]))
    assert set(rows) == {"overall", "qa", "rag"}
    own = rows["overall"]
    assert own["basis"] == "measured"
    check(own, steps=6, mat=2.0, first_accepted=3 / 5)  # five steps drafted
    check(own, in_vocabulary=(8 * 0.5 + 6) / 14)  # prefill's tokens included
    check(rows["qa"], "overlap", first_accepted=2 / 3)
    check(rows["rag"], in_vocabulary=1.0, overlap=0.25)
    check(own, drafted_us=1e3 * 32 / 16)  # of 16 nodes
    step_ms = (6 * 10 + 16 + 32) / 6
    check(own, break_even_mat=step_ms / 10)
    check(own, break_even_draft_ms=20 - (60 + 16) / 6)  # a step that brings 2 tokens may take 20 ms
    check(own, as_run=120 / (60 + 16 + 32), oracle=120 / best(lambda fed: 9 + fed))
    assert own["oracle"] > own["as_run"]


def test_with_a_profile_forwards_have_its_price(run, tmp_path):
    own = rows_of(read_findings([run], write_profile(FIT, tmp_path)))["overall"]
    assert own["basis"] == "modelled"

    def price(fed):
        return 6.0 + 0.02 * fed + 0.0005 * 5  # contexts of 5 to 12 tokens: 4 us more at most

    assert own["oracle"] == pytest.approx(12 * price(1) / best(price), rel=2e-3)
    assert own["as_run"] == pytest.approx(
        12 * price(1) / (sum(map(price, [4, 4, 5, 1, 5, 3])) + 32), rel=2e-3
    )


def test_the_oracle_is_never_slower_than_the_run():
    """Eight nodes were cheaper than one, as a measured profile may say: the run's own length is one
    of the lengths.
    """
    step = [np.array([stored]) for stored in (9, 5, 2, 8)]  # fed, context, emitted, depth
    trials = SimpleNamespace(
        turns=SimpleNamespace(steps=SimpleNamespace(read=lambda *_: iter([step])))
    )
    sums = _count_steps(
        trials, {"steps": np.array([1])}, lambda fed, _: np.where(fed > 2, 10.0, 20.0), 0.0
    )
    assert (sums["oracle_ms"][0], sums["run_ms"][0], sums["vanilla_ms"][0]) == (10.0, 10.0, 40.0)


def test_overlap_is_one_less_total_variation():
    """Of drawn nodes, behind the root, on average over steps; nothing is kept without being
    asked.
    """
    target, drafted = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
    draft = Draft([1], [-1], probs=drafted[None])
    logits = torch.stack([target, drafted]).log()
    for audits in (True, False):
        walk = Walk(Sampling(1.0), 0, audits=audits)
        walk.verify(logits, draft, [-1], torch.tensor([7, 1]), None)
        walk.verify(logits, Draft([0], [-1], probs=target[None]), [-1], torch.tensor([7, 0]), None)
        assert walk.stats() == ({"overlap": pytest.approx((0.75 + 1) / 2)} if audits else {})


def test_emitted_tokens_that_a_drafter_cannot_draft_are_counted():
    method = PromptLookup(3, 4)
    drafter = method.begin([], Prefill(0), 0)
    assert method.figures(drafter, [1, 2, 3, 1]) == drafter.stats()
    method.vocabulary = frozenset({1, 2})
    assert method.figures(drafter, [1, 2, 3, 1])["in_vocabulary"] == 0.75
