"""Two processes that share a model decode what one does, step by step; they end together, and never
wait for nobody.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from ranks import (
    NODES,
    Dawdling,
    Dying,
    Failing,
    Forgetful,
    Fused,
    Narrow,
    Passing,
    Plain,
    Recorder,
    Recording,
    Twisted,
    Unsound,
    card_of,
    team,
)  # fmt: skip

import specbench.models.fast.engine as fast_engine
from builders.engines import (
    assert_greedy,
    assert_same_rows,
    decode_script,
    draw_rows,
    scripts,
    take_step,
)
from builders.models import VOCAB, build, plain_greedy
from specbench.decode.check import check_engine
from specbench.decode.sampling import Sampling
from specbench.decode.walk import Walk
from specbench.models.engine import Silent
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.graphs import GRAPHED, Buckets
from specbench.models.tensor_parallel.start import TeamSettings, start
from specbench.models.tensor_parallel.team import TeamError
from specbench.types import ROOT, CaseError, Draft, Needs

COUNT, LONG_S = 20, 60.0  # less than what a rank that waits for a lost one may take by default
PROMPTS = ([5], [5, 17, 3, 42, 8], list(range(20, 50)))  # the last one leaves the window
EXHAUSTIVE = pytest.mark.exhaustive
FAMILIES = [
    ("llama", 2),
    ("mistral-window", 2),
    pytest.param("llama-mha", 4, marks=EXHAUSTIVE),
    *(pytest.param(each, 2, marks=EXHAUSTIVE) for each in ("qwen2", "phi3", "qwen3")),
]
SAMPLINGS = {"greedy": None, "sampled": Sampling(0.8, 20, 0.9)}


def alone(model, buckets=None) -> FastEngine:
    return FastEngine(model, 512, frozenset(), NODES, buckets)


def run(engine, script, prompt=PROMPTS[1], sampling=None, limit=COUNT):
    return decode_script(engine, script, prompt, limit, sampling, 3)


def counts(out):
    return out.ids, out.accept, out.proposed, out.fed


@pytest.mark.parametrize(("family", "ranks"), FAMILIES)
def test_ranks_decode_as_one(family, ranks):
    """Every drafter, llama's also sampled; teacher forcing; logits of whole sequences; the check
    before a run.
    """
    prompt, samplings = (
        (PROMPTS[1], SAMPLINGS.values()) if family == "llama" else (PROMPTS[2], [None])
    )
    model = build(family, torch.float64)
    one, truth = alone(model), plain_greedy(model, prompt, COUNT + 8)
    with team(model, ranks=ranks, check=True) as (engine, whole):
        check_engine(engine, whole)
        for name, script in scripts(truth).items():
            for sampling in samplings:
                ours, theirs = (
                    run(engine, script, prompt, sampling),
                    run(one, script, prompt, sampling),
                )
                assert counts(ours) == counts(theirs), (name, sampling)
                assert sampling or ours.ids == truth[:COUNT]
        assert engine.gaps(prompt, truth[:9]) == one.gaps(prompt, truth[:9])
        ids = torch.randint(0, VOCAB, (300, 20), generator=torch.Generator().manual_seed(0))
        expected = model(ids, use_cache=False, logits_to_keep=1).logits[:, -1]
        torch.testing.assert_close(whole(ids).logits[:, -1], expected, atol=1e-8, rtol=1e-8)
        assert sum(each.numel() for each in whole.parameters()) == sum(
            each.numel() for each in model.parameters()
        )


@pytest.mark.parametrize("rows", [False, True], ids=["tree", "rows"])
def test_steps_show_the_same(rows):
    """Hidden states, top-k, what was fed; drafts as trees and as batches of rows."""
    model = build("llama", torch.float64)
    truth = plain_greedy(model, PROMPTS[1], COUNT)
    needs = Needs(hidden=(0, 1, 2), prompt_hidden=True, node_topk=5, prompt_topk=5, rows=rows)
    rng, done = random.Random(1), 1
    with team(model, check=True) as (engine, _):
        engines = [alone(model), engine]
        assert_same_rows(
            *(each.start(PROMPTS[1], COUNT, Walk(None, 0), needs, Silent()) for each in engines)
        )
        while done < COUNT - 8:
            draft = draw_rows(rng, truth[done : done + 4])
            steps = [take_step(each, draft) for each in engines]
            assert_same_rows(*steps)
            done += len(steps[0].emitted)
        # found before any rank is notified
        with pytest.raises(CaseError, match="expected as many"):
            engine.forward(Draft([1, 2], [ROOT]))
        assert_greedy(engine, model, PROMPTS[1], COUNT, "chain")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_other_types_of_number(dtype):
    """Rank 0 emits the best tokens by its own teacher forcing, up to rounding."""
    model = build("llama", dtype)
    with team(model, check=True) as (engine, _):
        for name, script in scripts(plain_greedy(model, PROMPTS[1], COUNT + 8)).items():
            out = run(engine, script)
            assert max(engine.gaps(PROMPTS[1], out.ids)) < (
                1e-3 if dtype == torch.float32 else 1.0
            ), name


def test_ranks_record_the_same_graphs_at_the_same_time(monkeypatch):
    """On padded widths and key lengths, with recordings dropped and made anew when the cache
    grows.
    """
    monkeypatch.setattr(fast_engine, "Graphs", Recorder)
    model = build("llama", torch.float64)
    buckets = Buckets(GRAPHED.widths[:6], GRAPHED.lengths[:2])
    terms = {"buckets": buckets, "follower": Recording, "patience_s": 30.0}
    with team(model, check=True, **terms) as (engine, _):
        for needs, greedy in (
            (Needs(), True),
            (Needs(hidden=(1,)), True),
            (Needs(hidden=(1,)), False),
        ):
            engine.prepare(needs, greedy)
        recorded = set(engine.graphs._recorded)
        assert {key[0] for key in recorded} == set(buckets.widths)
        for prompt in (PROMPTS[1], [7] * 400):
            truth = plain_greedy(model, prompt, COUNT + 8)
            for name, script in scripts(truth).items():
                assert run(engine, script, prompt).ids == truth[:COUNT], name
        assert engine.cache.capacity > 300


@functools.cache
def drafting(name: str):
    """A model, and the drafter of this name that knows its answer."""
    model = build("llama", torch.float64)
    return model, scripts(plain_greedy(model, PROMPTS[1], COUNT + 8))[name]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_delays_anywhere_change_nothing(sampling):
    """The drafter and the other rank dawdle for random times."""
    model, script = drafting("wide")
    plain = run(alone(model), script, sampling=SAMPLINGS[sampling])
    shaky = random.Random()

    def dawdle(*given):
        time.sleep(shaky.uniform(0, 0.01))
        return script(*given)

    with team(model, check=True, follower=Dawdling, patience_s=20.0) as (engine, _):
        for _ in range(2):
            assert counts(run(engine, dawdle, sampling=SAMPLINGS[sampling])) == counts(plain)


@pytest.mark.parametrize(
    ("follower", "what", "times"),
    [
        (Forgetful, "tokens in the cache", 1),
        (Twisted, "hidden states", 1),
        (Narrow, r"it feeds \d+ rows, rank 0 \d+", 1),
        (Failing, r"\(process \d+, cpu\) ended with exit code 1: ValueError: asked to fail", 2),
        (Dying, r"\(process \d+, cpu\) ended with exit code 9", 2),
    ],
)
def test_a_rank_that_diverges_or_is_lost_ends_the_run_and_is_named(follower, what, times):
    """By the check after every step; one that feeds other rows notices itself, a lost one stays."""
    model, script = drafting("wide")
    with team(model, check=times == 1, follower=follower, patience_s=20.0) as (engine, _):
        begin = time.perf_counter()
        for again in range(times):
            with pytest.raises(TeamError, match="rank 1" if again else f"rank 1.*{what}"):
                run(engine, script)
        assert time.perf_counter() - begin < LONG_S


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="stuck", marks=pytest.mark.exhaustive),
    ],
)
def test_a_killed_or_stuck_rank_is_named_within_seconds(kind):
    model, script = drafting("chain")
    with team(model, patience_s=2.0) as (engine, _):
        pid = engine._ranks.processes[0].pid

        def shoot(context, done, rng):
            if done > 8:
                os.kill(pid, kind)
            return script(context, done, rng)

        begin = time.perf_counter()
        with pytest.raises(TeamError, match=f"rank 1 .process {pid}, cpu. (ended|does not answer)"):
            run(engine, shoot)
        assert time.perf_counter() - begin < LONG_S


@pytest.mark.parametrize(("kind", "follower", "note"), [
    (Unsound, Plain, "engine.attention=auto chose sdpa: rank 1: the kernels are wrong here"),
    (Passing, Fused, None),
])  # fmt: skip
def test_all_ranks_have_the_kernels_or_none_has(kind, follower, note):
    """The check itself is not run here."""
    pytest.importorskip("specbench.models.fast.kernels.small_ops", reason="pip install '.[triton]'")
    model, options = build("llama"), FastOptions(attention="auto")
    settings = kind(
        card_of(model), 2, NODES, threads=1, check=True, options=options, follower=follower
    )
    engine, _, found = start(settings)
    try:
        assert (found, engine.attention) == (note, follower.attentions[0])
        assert_greedy(engine, model, PROMPTS[1], 6)
    finally:
        engine.close()


def test_a_rank_that_dies_while_rank_0_is_busy_elsewhere_is_noticed():
    model = build("llama", torch.float64)
    with team(model) as (engine, _):
        os.kill(engine._ranks.processes[0].pid, signal.SIGKILL)
        end = time.perf_counter() + LONG_S
        with contextlib.suppress(TeamError):
            while time.perf_counter() < end:
                engine._ranks.require_all()
                time.sleep(0.05)
        assert time.perf_counter() < end


def abandon(sender: Connection) -> None:
    """A rank 0 that starts another rank and ends without any clean-up."""
    torch.multiprocessing.get_context = lambda _=None: multiprocessing.get_context("fork")
    engine, *_ = start(TeamSettings(card_of(build("llama")), 2, NODES, threads=1))
    sender.send(engine._ranks.processes[0].pid)
    os._exit(0)


def test_the_other_ranks_end_with_rank_0():
    """However it ends."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    multiprocessing.get_context("forkserver").Process(target=abandon, args=(sender,)).start()
    process = receiver.recv()
    end = time.perf_counter() + LONG_S
    while alive(process) and time.perf_counter() < end:
        time.sleep(0.05)
    assert not alive(process)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
