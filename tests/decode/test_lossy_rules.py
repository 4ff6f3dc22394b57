"""Lossy acceptance: both rules by hand, what they change, which the exact walker does not, and runs
that ask for it.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from builders.engines import Scripted
from builders.runs import job_for
from joint_law import MarkovEngine, emitted, exact, p_value
from specbench.decode.acceptance import follow_lossy, judge_lossy
from specbench.decode.loop import Request, decode
from specbench.decode.sampling import Sampling
from specbench.decode.walk import Walk
from specbench.measure.clock import Clock
from specbench.records.store import read_manifest, read_run
from specbench.report.build import read_findings
from specbench.runs.execution import execute
from specbench.types import Draft, InputError, Relaxed, Typical

RULE = Typical(threshold=0.09, alpha=0.3)
SURE, FLAT = [0.97, 0.01, 0.01, 0.01], [0.25, 0.25, 0.25, 0.25]


def accepted(distributions, tokens, parents, passenger=None, rule=RULE):
    judged = judge_lossy(
        torch.tensor(distributions), torch.tensor(tokens, dtype=torch.long), parents, rule
    )
    return follow_lossy(*judged.tolist(), parents, passenger)


def test_a_sure_target_asks_for_more_than_an_unsure_one():
    """Entropy ln 4 lowers the bar to 0.3 / 4 = 0.075, below the quarter that every token has; 0.01
    is below 0.09.
    """
    assert accepted([SURE, SURE], [1], [-1]) == []
    assert accepted([SURE, SURE], [0], [-1]) == [0]
    assert accepted([FLAT, FLAT], [3], [-1]) == [0]
    assert accepted([FLAT, FLAT], [3], [-1], rule=Typical(0.3, 1.1)) == []  # 1.1 / 4 is above it


def test_the_deepest_path_wins_then_the_likeliest():
    distributions = [FLAT, SURE, FLAT, FLAT, FLAT]
    # 0.25 * 0.97 beats 0.25 * 0.25
    assert accepted(distributions, [1, 2, 0, 3], [-1, -1, 0, 1]) == [0, 2]
    # 0.01 is not accepted behind the sure node
    assert accepted(distributions, [1, 2, 1, 3], [-1, -1, 0, 1]) == [1, 3]
    assert accepted(distributions, [1, 2, 0, 3], [-1, -1, 0, 1], [True, False, False, False]) == [
        1,
        3,
    ]


def test_it_does_not_keep_the_distribution():
    table = torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 1.5
    engine, sampling = MarkovEngine(table), Sampling(1.0)
    wanted = exact(lambda context: engine.distribution_after(context, sampling), [0], 3)
    best = table.argmax(-1).tolist()

    def draft(context, done, random):
        return Draft.chain([best[context[-1]], best[best[context[-1]]]])

    method = Scripted(draft)
    assert p_value(emitted(engine, method, sampling, [0], 3, 700), wanted) > 1e-3
    assert p_value(emitted(engine, method, sampling, [0], 3, 700, RULE), wanted) < 1e-6


def test_an_empty_draft_accepts_nothing():
    assert accepted([SURE], [], []) == []


HALF = [0.5, 0.3, 0.15, 0.05]


@pytest.mark.parametrize(
    ("rule", "token", "path"),
    [
        (Relaxed(2, 0.21), 1, [0]),  # 0.2 below the best
        (Relaxed(2, 0.19), 1, []),
        (Relaxed(2, 1.0), 2, []),  # the third likeliest
        (Relaxed(3, 1.0), 2, [0]),
        (Relaxed(9, 1.0), 3, [0]),  # more than the vocabulary has
        (Relaxed(1, 1.0), 0, [0]),
    ],
)
def test_the_likeliest_tokens_near_the_best_pass(rule, token, path):
    assert accepted([HALF, HALF], [token], [-1], rule=rule) == path


def decoded(rule, length=13, vocab=12):
    """The transcript of chains of three tokens, each the second likeliest after the one before; the
    ranking.
    """
    table = torch.randn(
        vocab, vocab, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    ranked = table.argsort(-1, descending=True).tolist()

    def draft(context, done, random):
        tokens = [context[-1]]
        for _ in range(3):
            tokens.append(ranked[tokens[-1]][1])
        return Draft.chain(tokens[1:])

    request = Request([0], length, None, 0, rule)
    return decode(MarkovEngine(table), Scripted(draft), request, Clock(torch.device("cpu"))), ranked


def test_greedy_decoding_is_relaxed_too_and_exact_with_one_token():
    plain, ranked = decoded(None)
    assert all(after == ranked[before][0] for before, after in pairwise([0, *plain.ids]))
    assert decoded(Relaxed(1, 1.0))[0].ids == plain.ids
    relaxed = decoded(Relaxed(2, 1.0))[0]
    assert relaxed.accept == [4, 4, 4]  # of each step three second-best tokens, then the best one
    assert [ranked[before].index(after) for before, after in pairwise([0, *relaxed.ids])] == [
        0,
        *[1, 1, 1, 0] * 3,
    ]


def test_acceptance_is_exact_from_the_end_of_the_thinking_on():
    free, ranked = decoded(Relaxed(2, 1.0))
    end = free.ids[2]  # the second token of the first step's path
    found = decoded(Relaxed(2, 1.0, marks=(-7, end)))[0]
    assert found.accept[0] == 3
    assert found.ids[:4] == [*free.ids[:3], ranked[end][0]]
    assert all(after == ranked[before][0] for before, after in pairwise(found.ids[2:]))
    assert set(found.accept[1:]) == {1}


def test_acceptance_is_lossy_from_the_begin_of_the_thinking_on():
    plain = decoded(None)[0]
    begin = plain.ids[0]  # of the prefill
    assert (
        decoded(Relaxed(2, 1.0, marks=(begin, -7), begun=False))[0].ids
        == decoded(Relaxed(2, 1.0))[0].ids
    )
    assert decoded(Relaxed(2, 1.0, marks=(-8, -7), begun=False))[0].ids == plain.ids
    # it ends with the prefill's token
    assert decoded(Relaxed(2, 1.0, marks=(-8, begin)))[0].ids == plain.ids


def test_a_token_that_top_k_cuts_is_never_accepted():
    law = [[0.5, 0.5, 0.0, 0.0]] * 2
    assert accepted(law, [3], [-1], rule=Relaxed(10, 0.6)) == []
    assert accepted(law, [1], [-1], rule=Relaxed(10, 0.6)) == [0]


def test_a_late_chain_goes_on_behind_a_draft_that_is_wholly_accepted():
    table = torch.eye(4, dtype=torch.float64).roll(1, 1)  # 0 -> 1 -> 2 -> 3 -> 0
    logits, fed, draft = table[[0, 1]], torch.tensor([0, 1]), Draft([1], [-1])
    for late, kept in (([2, 3], True), ([3], False)):
        verdict = Walk(None, 0, Relaxed(1, 0.0)).verify(logits, draft, [-1], fed, Draft.chain(late))
        assert (verdict.path, verdict.tokens, verdict.late) == ([0], [1, 2], kept)


OPTIONS = (
    "method=[pld]",
    "suite.limit=1",
    "suite.categories=[math_reasoning]",
    "measure=quick",
    "measure.warmup=0",
)


def lengths(directory, method):
    return [
        turn.accept
        for record in read_run(directory).records
        if record.method == method
        for turn in record.turns
    ]


@pytest.mark.parametrize(
    "load", ["load=one", pytest.param("load=closed", marks=pytest.mark.exhaustive)]
)
def test_a_run_accepts_more_and_its_methods_are_lossy_but_vanilla_is_not(tmp_path, load):
    for accept, settings in (
        ("exact", []),
        ("relaxed", ["decode.accept=relaxed", "decode.accept_delta=1"]),
    ):
        job = job_for("model=tiny", *OPTIONS, load, *settings, "decode.max_new_tokens=64")
        execute(job, tmp_path / accept, lambda *_: None)
    exact_run, relaxed = tmp_path / "exact", tmp_path / "relaxed"
    assert read_manifest(exact_run).methods["pld"].lossless
    methods = read_manifest(relaxed).methods
    assert (methods["pld"].lossless, methods["vanilla"].lossless) == (False, True)
    assert lengths(exact_run, "vanilla") == lengths(relaxed, "vanilla")
    mats = {
        path: np.mean([each for turn in lengths(path, "pld") for each in turn])
        for path in (exact_run, relaxed)
    }
    assert mats[relaxed] > mats[exact_run]
    if load == "load=one":  # the cost, next to the speed
        assert (
            read_findings([relaxed]).summary.set_index("method").loc["pld", "violations"].max() > 0
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("decode.accept=typical",), "expected decode.temperature above 0"),
        (("decode.accept=loose",), "expected one of exact, typical, relaxed"),
        (("decode.accept=relaxed", "decode.accept_top=0"), "accept_top"),
        (("decode.accept=relaxed", "decode.accept_delta=1.5"), "accept_delta"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        job_for("model=tiny", *OPTIONS, *settings)


def test_a_model_that_does_not_think_is_refused(tmp_path):
    job = job_for("model=tiny", *OPTIONS, "decode.accept=relaxed", "decode.accept_thinking=true")
    with pytest.raises(InputError, match="no tokens <think> and </think>"):
        execute(job, tmp_path / "run", lambda *_: None)
