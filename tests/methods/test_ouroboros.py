"""Ouroboros: the draft's lookahead against plain decoding, the phrase pool against lists, and its
endings.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from builders.drafts import judge
from builders.models import plain_greedy
from draft_models import begin, draft_behind, fitted, noisy, run
from methods.ouroboros import Ouroboros, PhrasePool

SMALL = {"gamma": 4, "window": 4, "level": 4, "endings": 2}


def method_with(draft, sampling=None, **options) -> Ouroboros:
    return fitted(Ouroboros("unused", **{**SMALL, **options}), draft, sampling)


def truthful(model, context, draft):
    """A step in which the target, ``model``, has judged ``draft``."""
    return judge(draft, context, lambda ids: plain_greedy(model, ids, 1)[0])


def test_the_draft_models_lookahead_says_what_plain_decoding_says(model):
    """Whatever is in the window, the pool and the cache, the drafted chain is the draft's own
    greedy text.
    """
    target = noisy(model, 0.05)
    drafter, context = begin(method_with(model), [5, 6, 7, 5, 6, 8]), [5, 6, 7, 5, 6, 8]
    most = 0
    for _ in range(12):
        draft = drafter.propose(context, 64)
        chain = drafter._drafted
        assert 4 <= len(chain) <= 4 + 2
        assert chain == plain_greedy(model, context, len(chain))
        most = max(most, len(chain))
        step = truthful(target, context, draft)
        drafter.observe(step)
        context += step.emitted
    assert most > 4  # phrases of the pool were right for the draft
    assert drafter.stats()["mean_forwards"] < drafter.stats()["mean_draft_length"]


def test_chains_without_endings_beyond_gamma_and_at_an_eos(model):
    draft = draft_behind(method_with(model, endings=0), [5, 6, 7])
    assert list(draft.parents) == list(range(-1, len(draft) - 1))
    assert list(draft.tokens) == plain_greedy(model, [5, 6, 7], len(draft))
    # A phrase of the pool that the draft model says too: its forward gives four tokens at once,
    # gamma is two.
    picks = plain_greedy(model, [5, 6, 7], 40)
    longest = {}
    for overshoot in ("kept", "cut"):
        method = method_with(model, gamma=2, endings=0, overshoot=overshoot)
        drafter, lengths = begin(method, [5, 6, 7]), []
        for place in range(0, 20, 2):
            for at in range(len(picks) - 3):
                method.pool.add(picks[at], tuple(picks[at + 1 : at + 4]))
            draft = drafter.propose([5, 6, 7, *picks[: place + 1]], 64)
            assert list(draft.tokens) == picks[place + 1 : place + 1 + len(draft)]
            lengths.append(len(draft))
        longest[overshoot] = max(lengths)
        assert min(lengths) >= 2
    assert longest["kept"] > longest["cut"] == 2
    truth = plain_greedy(model, [5, 6, 7], 3)
    method = fitted(Ouroboros("unused", **SMALL), model, eos=frozenset([truth[1]]))
    assert list(draft_behind(method, [5, 6, 7]).tokens) == truth[:2]


def test_endings_hang_from_the_last_drafted_token(model):
    """Two forwards only fill the window, so what is in the pool is what was put there."""
    last = plain_greedy(model, [5, 6, 7], 2)[-1]
    method = method_with(model, gamma=2)
    for phrase in ((1, 2, 3), (4, 5, 6), (7, 8, 9)):
        method.pool.add(last, phrase)
    draft = draft_behind(method, [5, 6, 7])
    assert draft.tokens[2:] == [4, 5, 6, 7, 8, 9]  # the two newest
    assert list(draft.parents) == [-1, 0, 1, 2, 3, 1, 5, 6]
    assert list(draft.source) == [0] * 2 + [1] * 6
    narrow = draft_behind(method, [5, 6, 7], 7)
    assert narrow.tokens[2:] == [7, 8, 9]


def test_an_ending_that_is_right_is_accepted_and_one_that_is_wrong_is_corrected(model):
    truth = plain_greedy(model, [5, 6, 7], 9)
    method = method_with(model, gamma=2)
    right, wrong = tuple(truth[2:5]), (11, 12, 13)
    method.pool.add(truth[1], wrong)
    method.pool.add(truth[1], right)
    drafter = begin(method, [5, 6, 7])
    draft = drafter.propose([5, 6, 7], 64)
    step = truthful(model, [5, 6, 7], draft)
    picks = step.topk.ids[:, 0].tolist()
    assert step.path == (0, 1, 5, 6, 7)
    # the drafted tokens, the whole phrase, and the bonus token
    assert list(step.emitted) == truth[:6]
    drafter.observe(step)
    assert method.pool.newest(truth[1], 9) == [(truth[2], *picks[3:5]), right]


def test_a_correction_takes_the_place_of_its_phrase():
    pool = PhrasePool(4)
    for phrase in ((1, 1), (2, 2), (3, 3)):
        pool.add(0, phrase)
    pool.replace(0, (2, 2), (9, 9))
    assert pool.newest(0, 9) == [(1, 1), (9, 9), (3, 3)]
    pool.replace(0, (3, 3), (1, 1))  # in it already: once only, in the corrected one's place
    pool.replace(0, (7, 7), (8, 8))  # which nothing is known of
    assert (pool.newest(0, 9), pool.newest(0, 0)) == ([(9, 9), (1, 1)], [])


def learnt_by_position(drafted, picks, length):
    found = []
    for start in range(len(drafted)):
        phrase = []
        for place in range(start, min(start + length, len(drafted))):
            phrase.append(picks[place])
            if place + 1 < len(drafted) and drafted[place + 1] != picks[place]:
                break
        if len(phrase) == length:
            found.append((drafted[start], tuple(phrase)))
    return found


class Lists:
    """The reference's pool, written out."""

    def __init__(self, width):
        self.width, self.stored = width, {}

    def add(self, key, phrase):
        stored = self.stored.get(key, [])
        stored = (
            [each for each in stored if each != phrase]
            if phrase in stored
            else stored[-(self.width - 1) :] * (self.width > 1)
        )
        self.stored[key] = [*stored, phrase]


@given(st.data())
def test_the_pool_is_the_references_lists(data):
    width = data.draw(st.integers(1, 4))
    pool, lists = PhrasePool(width), Lists(width)
    token = st.integers(0, 2)
    for _ in range(data.draw(st.integers(1, 8))):
        drafted = data.draw(st.lists(token, max_size=8))
        picks = [data.draw(token) for _ in drafted]
        length = data.draw(st.integers(2, 3))
        pool.learn(drafted, picks, length)
        for key, phrase in learnt_by_position(drafted, picks, length):
            lists.add(key, phrase)
        for key in range(3):
            assert pool.newest(key, 9) == lists.stored.get(key, [])
            assert len(pool.newest(key, 9)) <= width
    pool.clear()
    assert pool.nbytes() == 0


def test_a_warm_pool_needs_fewer_steps(model):
    method = method_with(noisy(model, 0.02), endings=3)
    cold, warm = run(model, method, limit=60), run(model, method, limit=60)
    assert method.state_bytes() > 0
    assert warm.sources["phrases"][1] > cold.sources["phrases"][1]
    method.reset()
    assert method.state_bytes() == 0
    assert run(model, method, limit=60).accept == cold.accept
