"""SSD against integer examples worked out from its description, and its life across requests."""

from __future__ import annotations

import threading

import pytest

from draft_models import begin, draft_behind
from methods.parts.suffix_array import SuffixArray
from methods.ssd import CACHE, RANDOM, Spacelike
from specbench.types import Prefill

REQUESTS = [[1, 2, 3, 4], [1, 2, 3, 5], [8, 2, 3, 4]]


def serve(method, requests=REQUESTS) -> Spacelike:
    """Let requests end, one after the other."""
    for context in requests:
        begin(method, context).finish(context)
    return method


def draft(method, context, budget=256, seed=0):
    return draft_behind(method, context, budget, seed=seed)


@pytest.mark.parametrize(
    ("context", "wanted", "matched"),
    [
        ([7, 2, 3], [4], 2),  # votes: 4 twice, 5 once
        ([3, 3], [4], 1),
        ([7, 1, 2, 3], [5], 3),  # a tie, the second request is the more recent
        ([7, 1, 2], [3, 5], 2),
        ([7], [], 0),
    ],
)
def test_integer_examples(context, wanted, matched):
    drafter = begin(serve(Spacelike(draft_length=2)), context)
    proposal = drafter.propose(context, 256)
    assert list(proposal.tokens) == wanted
    assert proposal.source is None or set(proposal.source) <= {CACHE}
    assert drafter.stats().get("query_tokens", 0) == matched


def test_a_fair_share_votes_and_unseen_draws_random_tokens_only_if_asked():
    """Of a thousand matches ten vote; the first ten in sorted order are all followed by 3."""
    method = serve(Spacelike(max_matches=10), [[1, 3]] * 100 + [[1, 8]] * 900)
    assert list(draft(method, [1]).tokens) == [8]
    method = serve(Spacelike(unseen="random", draft_length=4))
    method.vocab = 50
    first, second, other = (draft(method, [7], seed=seed) for seed in (1, 1, 2))
    assert (len(first), set(first.source)) == (4, {RANDOM})
    assert list(first.tokens) == list(second.tokens) != list(other.tokens)
    assert all(0 <= token < 50 for token in first.tokens)
    assert list(draft(method, [7, 2, 3]).tokens) == [4]
    assert len(draft(serve(Spacelike()), [7])) == 0


def test_a_request_keeps_its_array():
    method = serve(Spacelike(), [[1, 2, 3]])
    running = method.begin([1], Prefill(2), 0)
    serve(method, [[1, 2, 9]] * 2)
    assert list(running.propose([1, 2], 64).tokens) == [3]
    assert list(draft(method, [1, 2]).tokens) == [9]


def test_reset_empties_everything():
    method = serve(Spacelike(rebuild="background"))
    assert method.state_bytes() > 0
    method.reset()
    assert (method.state_bytes(), len(method.array), len(method.tokens)) == (0, 0, 0)
    serve(method, [[5, 6]])
    # nothing old, and the new is still being built
    assert len(draft(method, [2, 3])) == len(draft(method, [5])) == 0
    serve(method, [[5, 6]])
    assert list(draft(method, [5]).tokens) == [6]
    method.close()


def test_background_builds_in_another_thread_while_requests_go_on(monkeypatch):
    allowed, threads = threading.Event(), []
    build = SuffixArray.build

    def delayed(tokens):
        threads.append(threading.current_thread())
        assert allowed.wait(10)
        return build(tokens)

    method = Spacelike(rebuild="background")
    monkeypatch.setattr(SuffixArray, "build", delayed)
    serve(method, [[1, 2, 3]])  # returns although nothing can be built yet
    assert len(draft(method, [1])) == 0
    allowed.set()
    serve(method, [[1, 2, 3]])
    assert list(draft(method, [1]).tokens) == [2, 3]
    method.close()
    assert threads[0] is not threading.main_thread()
    assert not any(thread.is_alive() for thread in threads)


def test_a_failed_build_fails_the_request_that_needs_it_and_only_that(monkeypatch, caplog):
    def broken(tokens):
        raise MemoryError("no room")

    method = Spacelike(rebuild="background")
    with monkeypatch.context() as patch:
        patch.setattr(SuffixArray, "build", broken)
        serve(method, [[1, 2, 3]])
        method._pending.exception()
    with pytest.raises(RuntimeError, match="could not be rebuilt in the background: no room"):
        serve(method, [[1, 2, 3]])
    serve(method, [[1, 2, 3]] * 2)
    assert list(draft(method, [1]).tokens) == [2, 3]
    with monkeypatch.context() as patch:
        patch.setattr(SuffixArray, "build", broken)
        serve(method, [[1, 2, 3]])
        method.close()
    assert "no room" in caplog.text
