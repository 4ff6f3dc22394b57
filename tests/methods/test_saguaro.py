"""Speculative speculative decoding: which outcomes it drafts for, and that it keeps the target's
distribution.
"""

from __future__ import annotations

import pytest
import torch

from actors import inline_actor
from builders.models import build, plain_greedy
from draft_models import (
    MarkovLM,
    begin,
    fitted,
    keeps_the_distribution,
    markov_tables,
    noisy,
    plain_logits,
    run,
)
from methods import saguaro
from methods.saguaro import Saguaro, SaguaroSession
from specbench.decode.sampling import Sampling
from specbench.types import Step

PASSES, FAILS = 1e-3, 1e-6
SAMPLINGS = [Sampling(1.0), Sampling(0.7, top_p=0.9)]
PROMPT, LIMIT = [5, 6, 7], 61


def counting(vocab: int = 10) -> torch.Tensor:
    """A draft model that counts: after t comes t + 1, and next likely are t + 2, t + 3 ..."""
    steps = (torch.arange(vocab)[None] - torch.arange(vocab)[:, None] - 1) % vocab
    return -steps.double() * 5


def counter(fan_out: list[int], length: int = 3, eos: frozenset[int] = frozenset()):
    method = fitted(Saguaro("unused", length, fan_out), MarkovLM(counting()), vocab=10, eos=eos)
    return begin(method, [0, 1])


def one_round(drafter, context, budget=64):
    draft = drafter.propose(context, budget)
    drafter.launch()
    drafter.join()
    return list(draft.tokens)


def session_of(drafter) -> SaguaroSession:
    return inline_actor(drafter.port).sessions[drafter.number]


def test_outcomes_of_a_chain_and_what_follows_a_hit_and_a_miss():
    drafter = counter([2, 1, 0, 2])
    assert one_round(drafter, [0, 1]) == [2, 3, 4]
    # after none: the likeliest but the drafted 2; after the first: but 3; after two: no outcome;
    # after all: 5 is one
    assert set(session_of(drafter)._outcomes) == {(0, 3), (0, 4), (1, 4), (3, 5), (3, 6)}
    drafter.observe(Step(1, (2, 4), (0,), False))
    assert drafter.propose([0, 1, 2, 4], 64).tokens == [5, 6, 7]
    forwards = session_of(drafter)._lm.model.forwards
    drafter.launch()
    drafter.join()
    # the chain's last token, then the lines
    assert session_of(drafter)._lm.model.forwards == forwards + 1 + 3
    drafter.observe(Step(4, (9,), (), False))
    assert one_round(drafter, [0, 1, 2, 4, 9]) == [0, 1, 2]
    drafter.observe(Step(9, (0, 1, 2, 4), (0, 1, 2), False))
    assert one_round(drafter, [0, 1, 2, 4, 9, 0, 1, 2, 4]) == [5, 6, 7]
    stats = drafter.stats()
    assert (stats["hits"], stats["misses"], stats["hit_rate"]) == (2, 1, pytest.approx(2 / 3))


def test_an_eos_ends_a_chain_and_is_no_outcome():
    drafter = counter([3], eos=frozenset([3]))
    assert one_round(drafter, [0, 1]) == [2, 3]
    assert set(session_of(drafter)._outcomes) == {(0, 4), (0, 5), (0, 6), (1, 4), (1, 5), (1, 6)}
    drafter.observe(Step(1, (2, 6), (0,), False))
    assert one_round(drafter, [0, 1, 2, 6]) == [7, 8, 9]
    drafter.observe(Step(6, (1,), (), False))  # a line that ends at once
    assert one_round(drafter, [0, 1, 2, 6, 1]) == [2, 3]


def test_a_cut_chain_has_the_outcomes_of_what_the_target_reads():
    drafter = counter([1])
    assert one_round(drafter, [0, 1], budget=1) == [2]
    # after the draft, what was cut is likeliest
    assert set(session_of(drafter)._outcomes) == {(0, 3), (1, 3)}
    drafter.observe(Step(1, (2, 3), (0,), False))
    assert one_round(drafter, [0, 1, 2, 3], budget=0) == []
    assert set(session_of(drafter)._outcomes) == {(0, 4)}


@torch.inference_mode()
def greedy_chain(model, context, length):
    found = []
    for _ in range(length):
        found.append(int(plain_logits(model, [*context, *found]).argmax()))
    return found


def drafted(model, draft, fan_out):
    """(context, chain, whether its outcome was drafted for) of every step of a request."""
    made = []
    method = fitted(Saguaro("unused", 3, fan_out), draft)
    plain = method.begin

    def begin_watched(*given):
        drafter = plain(*given)
        propose = drafter.propose

        def watched(context, budget):
            hits = drafter._hits
            chain = propose(context, budget)
            made.append((list(context), list(chain.tokens), drafter._hits > hits))
            return chain

        drafter.propose = watched
        return drafter

    method.begin = begin_watched
    out = run(model, method, PROMPT, LIMIT)
    assert out.ids == plain_greedy(model, PROMPT, LIMIT)
    return made


@pytest.mark.parametrize("family", ["llama", pytest.param("qwen2", marks=pytest.mark.matrix)])
def test_every_chain_is_the_draft_models_own(family):
    """Float64, without cache and mask: the chain of a hit is the one that would have been drafted
    after it.
    """
    model = build(family, torch.float64)
    draft = noisy(model, 0.02)
    made = drafted(model, draft, [4])
    assert {hit for *_, hit in made} == {False, True}
    for context, chain, _ in made[:-1]:
        assert chain == greedy_chain(draft, context, 3)


def test_the_chain_of_another_outcome_would_be_another(monkeypatch, model):
    """Wrong on purpose: a hit takes the next line, whose chain follows another token."""
    plain = SaguaroSession._take

    def shifted(self, lines, line, nodes):
        return plain(self, lines, (line + 1) % len(lines.tokens), nodes)

    monkeypatch.setattr(SaguaroSession, "_take", shifted)
    draft = noisy(model, 0.02)
    made = drafted(model, draft, [4])
    assert any(chain != greedy_chain(draft, context, 3) for context, chain, hit in made[:-1] if hit)


def test_the_target_as_its_own_draft_always_hits(model):
    out = run(model, fitted(Saguaro("unused", 4, [1]), model), PROMPT, LIMIT)
    assert set(out.accept[:-1]) == {5}
    assert out.stats["hit_rate"] == 1
    out = run(model, fitted(Saguaro("unused", 4, [0]), model), PROMPT, LIMIT)
    assert set(out.accept[:-1]) == {5}
    assert out.stats["hit_rate"] == 0


@pytest.mark.matrix
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("fan_out", [[1], [0, 2, 4]])
def test_emitted_strings_have_the_targets_distribution(sampling, fan_out):
    assert (
        keeps_the_distribution(Saguaro("unused", 2, fan_out), sampling, *markov_tables()) > PASSES
    )


def test_stating_the_distribution_of_another_line_would_not_keep_it(monkeypatch):
    plain = SaguaroSession._take

    def shifted(self, lines, line, nodes):
        return {
            **plain(self, lines, line, nodes),
            "probs": lines.probs[0][[line - 1] * len(self._chain)],
        }

    monkeypatch.setattr(SaguaroSession, "_take", shifted)
    assert keeps_the_distribution(Saguaro("unused", 1, [4]), SAMPLINGS[0], *markov_tables()) < FAILS


def test_drawing_from_another_distribution_than_the_one_stated_would_not_keep_it(monkeypatch):
    plain = saguaro.draw_one
    monkeypatch.setattr(saguaro, "draw_one", lambda probs, random: plain(probs**8, random))
    assert keeps_the_distribution(Saguaro("unused", 1, [4]), SAMPLINGS[0], *markov_tables()) < FAILS
