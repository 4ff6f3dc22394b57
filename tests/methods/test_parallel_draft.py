"""What CARD, PEARL and Saguaro share: the target's output, the same transcript by every port, and
lost partners.
"""

from __future__ import annotations

import logging
import time

import psutil
import pytest
import torch

from actors import (
    DawdlingCard,
    DawdlingPearl,
    DawdlingSaguaro,
    DelayedPort,
    MortalCard,
    MortalPearl,
    inline_actor,
)
from builders.models import FAMILIES, build, plain_greedy
from builders.runs import job_for
from draft_models import PARALLEL, begin, draft_behind, fitted, noisy, run, transcript
from methods.card import Card
from methods.parts.parallel_draft import DraftActor, RoundTimes
from methods.pearl import Pearl
from methods.saguaro import Saguaro
from specbench.decode.sampling import Sampling
from specbench.records.record import VANILLA
from specbench.records.store import read_run
from specbench.runs.execution import execute
from specbench.types import CaseError

PROMPT, LIMIT = [5, 6, 7], 41
SLOW = {Card: DawdlingCard, Pearl: DawdlingPearl, Saguaro: DawdlingSaguaro}


@pytest.fixture(params=PARALLEL)
def make(request):
    return PARALLEL[request.param]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "llama"])
@pytest.mark.matrix
@pytest.mark.parametrize("name", PARALLEL)
def test_greedy_output_is_the_targets(name, family):
    model = build(family, torch.float64)
    method = fitted(PARALLEL[name](), noisy(model, 0.02))
    assert run(model, method, PROMPT, LIMIT).ids == plain_greedy(model, PROMPT, LIMIT)


def test_drafts_keep_to_the_budget(model, make):
    truth = plain_greedy(model, PROMPT, LIMIT)
    for budget in (0, 1, 2):
        out = run(model, fitted(make(), noisy(model, 0.01)), PROMPT, LIMIT, max_nodes=budget)
        assert out.ids == truth
        assert max(out.proposed) == budget


def test_buffers_are_used_again_and_requests_do_not_touch_each_other(model, make):
    method = fitted(make(), noisy(model, 0.02))
    prompts = [[5, 6, 7], [9], [5, 6, 7]]
    outs = [transcript(run(model, method, prompt, LIMIT)) for prompt in prompts]
    assert outs[0] == outs[2]
    fresh = fitted(make(), noisy(model, 0.02))
    assert transcript(run(model, fresh, prompts[1], LIMIT)) == outs[1]
    method.partner.ask("close", 99)  # of the last requests, closing one is still on its way
    assert not inline_actor(method.partner).sessions
    assert len(inline_actor(method.partner).lm._free) == 1


def test_a_request_that_was_given_up_leaves_no_session(model, make):
    method = fitted(make(), model)
    draft_behind(method, PROMPT)  # nobody finishes it
    last = begin(method, PROMPT)
    last.propose(PROMPT, 64)
    assert list(inline_actor(method.partner).sessions) == [last.number]


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["pearl", "saguaro", "card", "card-waits"])
@pytest.mark.parametrize("sampling", [None, Sampling(0.9)], ids=["greedy", "sampled"])
def test_transcript_is_the_same_behind_every_port_and_delay(model, name, sampling):
    wanted = transcript(
        run(
            model,
            fitted(PARALLEL[name](), noisy(model, 0.02), sampling),
            PROMPT,
            LIMIT,
            sampling=sampling,
        )
    )
    backends = (
        ["thread", "process"] if name != "card-waits" and sampling is not None else ["thread"]
    )
    for backend in backends:
        method = PARALLEL[name](port=backend, patience_s=20.0)
        method.kind = SLOW[type(method)]
        fitted(method, noisy(model, 0.02), sampling)
        method.partner = DelayedPort(method.partner)
        for _ in range(2):
            assert transcript(run(model, method, PROMPT, LIMIT, sampling=sampling)) == wanted
        method.close()


@pytest.mark.parametrize(("name", "hanging"), [("pearl", "extend"), ("card", "correct")])
def test_a_stuck_partner_is_an_error_row_and_the_run_goes_on(
    name, hanging, tmp_path, monkeypatch, caplog
):
    """It hangs in the third request."""
    plain = DraftActor.tell

    def tell(self, number, verb, *given):
        if number == 3 and verb == hanging:
            time.sleep(60)
        return plain(self, number, verb, *given)

    monkeypatch.setattr(DraftActor, "tell", tell)
    job = job_for(
        f"method=[{name}]", f"method.{name}.port=thread", f"method.{name}.patience_s=2.0",
        "suite.limit=1", "decode.max_new_tokens=12", "measure=quick", "measure.warmup=0",
    )  # fmt: skip
    start = time.perf_counter()
    with caplog.at_level(logging.WARNING):
        execute(job, tmp_path, lambda *_: None)
    assert time.perf_counter() - start < 55  # the partner would have hung for 60 s
    records = read_run(tmp_path).records
    errors = [record for record in records if record.status == "error"]
    assert len(errors) == 1
    assert "gave no answer for 2 s" in errors[0].error["message"]
    truth = {record.case: record.turns for record in records if record.method == VANILLA}
    good = [record for record in records if record.method == name and record.status == "ok"]
    assert len(good) >= 5
    assert all(
        [turn.ids for turn in each.turns] == [turn.ids for turn in truth[each.case]]
        for each in good
    )
    assert "drafts on the target's own device (cpu)" in caplog.text


@pytest.mark.parametrize("name", ["pearl", "card"])
def test_a_process_that_dies_costs_one_case(model, name):
    method = PARALLEL[name](port="process", patience_s=20.0)
    method.kind = {Card: MortalCard, Pearl: MortalPearl}[type(method)]
    fitted(method, model)
    wanted = plain_greedy(model, PROMPT, LIMIT)
    assert run(model, method, PROMPT, LIMIT).ids == wanted
    first = method.partner._channel.worker.pid
    with pytest.raises(CaseError, match="ended with exit code 7"):
        run(model, method, [13, 2], LIMIT)
    method.reset()  # as the session does between cases
    assert method.partner._channel.worker.pid != first
    assert run(model, method, PROMPT, LIMIT).ids == wanted
    method.close()
    assert not [child for child in psutil.Process().children() if child.pid == first]


def test_modelled_time_is_the_longer_side_of_each_round():
    times = RoundTimes(torch.device("cpu"))
    times.target = [(0.0, 1.0), (1.0, 2.0)]
    times.during, times.before, times.wall_s = [[0.25, 0.25], [0.75, 0.75]], [0.5], 4.0
    stats = times.stats()
    assert stats["modelled_s"] == 1.0 + 1.5 + 0.5
    assert stats["measured_s"] == 4.5
    assert stats["draft_forwards"] == 5.0
    assert stats["draft_forward_ms"] == 500.0
    assert stats["target_forward_ms"] == 1000.0
