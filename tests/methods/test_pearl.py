"""PEARL: what it drafts in which round, and that drawing keeps the target's distribution."""

from __future__ import annotations

import pytest
import torch

from builders.models import VOCAB, build, plain_greedy
from draft_models import MarkovLM, begin, fitted, keeps_the_distribution, markov_tables, run
from methods import pearl
from methods.parts.draft_lm import DraftLM
from methods.parts.draft_method import TargetTraits
from methods.pearl import Pearl, PearlActor
from specbench.decode.sampling import Sampling
from specbench.types import Draft, Step

PASSES, FAILS = 1e-3, 1e-6
SAMPLINGS = [Sampling(1.0), Sampling(0.7, top_p=0.9)]


def counting(vocab: int = 10) -> torch.Tensor:
    """A draft model that counts: after t comes t + 1."""
    return torch.eye(vocab, dtype=torch.float64).roll(1, 1) * 50


def counter(gamma: int, eos: frozenset[int] = frozenset()):
    method = fitted(Pearl("unused", gamma=gamma), MarkovLM(counting()), vocab=10, eos=eos)
    return begin(method, [0, 1])


def one_round(drafter, context):
    draft = drafter.propose(context, 64)
    drafter.launch()
    late = drafter.join()
    return list(draft.tokens), list(late.tokens) if late else []


def test_rounds_of_the_paper():
    """Pre-verify until the first drafted token is right, then post-verify with gamma more a
    round.
    """
    drafter = counter(gamma=3)
    assert one_round(drafter, [0, 1]) == ([], [2, 3, 4])  # nothing pending: pre-verify
    drafter.observe(Step(1, (7,), (), False, late=0))  # wrong at once: all three are dropped
    assert one_round(drafter, [0, 1, 7]) == ([], [8, 9, 0])
    drafter.observe(Step(7, (8,), (), False, late=1))
    # post-verify, and the next is judged with it
    assert one_round(drafter, [0, 1, 7, 8]) == ([9, 0], [1, 2, 3])
    drafter.observe(Step(8, (9, 0, 1), (0, 1), False, late=1))
    assert one_round(drafter, [0, 1, 7, 8, 9, 0, 1]) == ([2, 3], [4, 5, 6])
    drafter.observe(Step(1, (2, 5), (0,), False, late=0))  # 2 was right, 3 was not
    assert one_round(drafter, [0, 1, 7, 8, 9, 0, 1, 2, 5]) == ([], [6, 7, 8])
    drafter.observe(Step(5, (6,), (), True, late=1))
    stats = drafter.stats()
    assert stats["rounds"] == 5
    assert stats["pre_verify_rounds"] == 3
    assert stats["late_accepted"] == 3
    # drafted tokens accepted between two rejections
    assert stats["mean_run"] == pytest.approx((0 + 5 + 1) / 3)


def test_a_wrong_late_token_an_eos_and_a_small_budget():
    drafter = counter(gamma=2)
    one_round(drafter, [0, 1])
    drafter.observe(Step(1, (2,), (), False, late=1))
    assert one_round(drafter, [0, 1, 2]) == ([3], [4, 5])
    # the whole draft was right, the late token was not
    drafter.observe(Step(2, (3, 9), (0,), False, late=0))
    assert one_round(drafter, [0, 1, 2, 3, 9]) == ([], [0, 1])
    drafter = counter(gamma=5, eos=frozenset([4]))
    assert one_round(drafter, [0, 1]) == ([], [2, 3, 4])
    drafter.observe(Step(1, (2,), (), False, late=1))
    # it is the target's to say what comes instead
    assert one_round(drafter, [0, 1, 2]) == ([3, 4], [])
    drafter = counter(gamma=4)
    one_round(drafter, [0, 1])
    drafter.observe(Step(1, (2,), (), False, late=1))
    draft = drafter.propose([0, 1, 2], 1)
    drafter.launch()
    late = drafter.join()
    # never more than gamma late ones
    assert (list(draft.tokens), list(late.tokens)) == ([3], [4, 5, 6, 7])


@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 5, 6])
def test_the_target_as_its_own_draft_gives_gamma_tokens_a_round(model, gamma):
    out = run(model, fitted(Pearl("unused", gamma=gamma), model), [5, 6, 7], 62)
    assert out.ids == plain_greedy(model, [5, 6, 7], 62)
    assert out.accept[0] == 1  # nothing is pending yet
    assert set(out.accept[1:-1]) == {gamma}
    assert out.stats["pre_verify_rounds"] == (1 if gamma > 1 else len(out.accept))


@pytest.mark.matrix
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("gamma", [1, 3])
def test_emitted_strings_have_the_targets_distribution(sampling, gamma):
    assert keeps_the_distribution(Pearl("unused", gamma=gamma), sampling, *markov_tables()) > PASSES


def test_stating_another_distribution_than_the_one_drawn_from_would_not_keep_it(monkeypatch):
    """Late tokens that state another distribution than the one they were drawn from are accepted at
    a wrong rate.
    """
    plain = pearl._Pearl.join

    def forgetful(self):
        late = plain(self)
        if late is None:
            return None
        return Draft.chain(
            late.tokens, 0, torch.full((len(late), self._probs.shape[1]), 1 / self._probs.shape[1])
        )

    monkeypatch.setattr(pearl._Pearl, "join", forgetful)
    assert keeps_the_distribution(Pearl("unused", gamma=1), SAMPLINGS[0], *markov_tables()) < FAILS


@pytest.mark.parametrize("sampling", [None, Sampling(1.0)], ids=["T0", "T1"])
def test_tokens_that_are_read_together_are_those_that_are_read_one_by_one(sampling):
    """As on a GPU: beyond an EOS nothing is kept, and the random numbers go on as if nothing had
    been drafted there.
    """
    draft = build("llama", torch.float64)
    eos = frozenset(range(0, VOCAB, 6))
    sessions = []
    for reads in (True, False):
        actor = PearlActor(
            DraftLM(draft, 512), TargetTraits(VOCAB, eos, sampling, torch.device("cpu")), {}
        )
        sessions.append(actor.session([5, 7], 3))
        sessions[-1]._reads = reads
    keep, lengths = 2, set()
    for tail in ([], [9], [11, 13], [], [8], [9, 10], [14], [15]):
        ours, theirs = (session.extend(keep, tail, 5) for session in sessions)
        assert ours["tokens"] == theirs["tokens"]
        assert (ours["probs"] is None) == (sampling is None or not ours["tokens"])
        assert ours["probs"] is None or torch.allclose(ours["probs"], theirs["probs"])
        lengths.add(len(ours["tokens"]))
        keep += len(tail) + len(ours["tokens"]) // 2
    assert len(lengths) > 1
