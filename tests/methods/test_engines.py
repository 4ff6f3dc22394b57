"""Every method decodes the same on both engines: ids, accepted lengths and tokens fed, step by
step.
"""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from tiles import attending

from builders.runs import entry_of, method_names, one_of_each_class, settings_of
from specbench.decode.budgets import Budgets
from specbench.method import Method, Peer
from specbench.models.fast.engine import FastEngine
from specbench.runs.load_session import PRIVATE
from together import Records

QUICK = ("decode.max_new_tokens=10", "measure=quick", "measure.warmup=0", "measure.lossless=false")
SUITE = ("suite.limit=1", "suite.first=1", *QUICK)

LOAD = (
    "load=closed",
    "load.requests=3",
    "load.block=2",
    "load.ramp=1",
    "load.chunk=16",
    "load.tokens=400",
)
CASES = ("suite.limit=1", "suite.first=2", *QUICK, "engine=fast")
BRIEF = (*CASES, "decode.max_new_tokens=5")
RECORDED = ("n_grammys",)
LOADED = ("token_recycling", "speculative_sampling", "pard", "pearl")

# One of each kind: drafts from the context, logits, rows, hidden states, heads, a draft model, the
# library's loop.
KINDS = (
    "pld",
    "token_recycling",
    "n_grammys",
    "eagle3",
    "medusa",
    "speculative_sampling",
    "hf_generate",
)


def needs(name: str) -> bool:
    """Returns whether a method reads logits or hidden states."""
    method = entry_of(name).method
    return bool(method.needs.node_topk or method.needs.hidden) or "eagle" in name or "heads" in name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in KINDS else pytest.mark.exhaustive)
        for name in one_of_each_class()
    ],
)
def test_both_engines_take_the_same_steps(name, together):
    _, eager = together.run(name, *SUITE, "engine=eager")
    _, fast = together.run(name, *SUITE, "engine=fast")
    peers = {name} if isinstance(entry_of(name).method, Peer) else set()
    assert len(eager) == len(fast) == (1 if name == "vanilla" else 2)
    for key, expected in eager.items():
        for theirs, ours in zip(expected.turns, fast[key].turns, strict=True):
            assert ours.ids == theirs.ids, key
            if key[0] not in peers:
                assert (ours.accept, ours.proposed, ours.fed) == (
                    theirs.accept,
                    theirs.proposed,
                    theirs.fed,
                ), key


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in LOADED else pytest.mark.exhaustive)
        for name in method_names()
    ],
)
def test_requests_that_share_forwards_take_the_steps_that_they_take_alone(name, together):
    """State of its own for each, also of draft models and heads."""
    _, alone = together.run(name, *CASES, fits=shares)
    _, loaded = together.run(name, *CASES, *LOAD, fits=shares)
    require_equal_steps(alone, loaded)


@pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: pip install '.[triton]'"
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in RECORDED else pytest.mark.exhaustive)
        for name in method_names()
    ],
)
def test_requests_that_share_recorded_forwards_take_the_steps_that_they_take_alone(name, together):
    """As on a GPU, by our kernels in Triton's interpreter, except for attention, which takes too
    long there.
    """
    _, alone = together.run(name, *BRIEF, fits=shares)
    _, loaded = together.run(
        name, *BRIEF, *LOAD, "engine.attention=triton", fits=shares, within=attending
    )
    require_equal_steps(alone, loaded)


def require_equal_steps(alone: Records, loaded: Records) -> None:
    """The same ids and, unless requests share what they learn, accepted lengths and nodes."""
    assert alone.keys() == loaded.keys()
    for key, expected in alone.items():
        assert loaded[key].error is None, loaded[key].error
        for theirs, ours in zip(expected.turns, loaded[key].turns, strict=True):
            assert ours.ids == theirs.ids, key
            if settings_of(key[0])["reset"] in PRIVATE:
                assert (ours.accept, ours.proposed) == (theirs.accept, theirs.proposed), key


@contextlib.contextmanager
def resting(paused: bool):
    """Three steps with drafts, three without."""
    turns = itertools.count()

    def share(budget, requests, most):
        return [most if next(turns) // 9 % 2 == 0 else 0] * len(requests)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budgets, "share", share)
        if not paused:
            patch.setattr(Method, "pauses", False)
        yield


OBSERVED, PAUSED = (
    partial(resting, False),
    partial(resting, True),
)  # the same objects in each test: a run is kept by them


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in one_of_each_class() if name != "vanilla"])
def test_steps_that_a_drafter_left_out_leave_no_trace_in_what_it_reads(name, together):
    if not pauses(name):
        pytest.skip("it is asked at every step, or learns less from steps that it left out")
    cases = ("suite.limit=1", "suite.first=2", *QUICK, "engine=fast", *LOAD)
    _, observed = together.run(name, *cases, fits=pauses, within=OBSERVED)
    _, paused = together.run(name, *cases, fits=pauses, within=PAUSED)
    for key, record in observed.items():
        turns = [(turn.ids, turn.accept) for turn in record.turns]
        assert turns
        assert [(turn.ids, turn.accept) for turn in paused[key].turns] == turns, key


def pauses(name: str) -> bool:
    """Returns whether a method's steps can be left out, and all that it reads of them is reported
    later.
    """
    method = entry_of(name).method
    return shares(name) and method.pauses and not method.needs.node_topk


def shares(name: str) -> bool:
    """Returns whether requests of a method share forwards at all."""
    return not isinstance(entry_of(name).method, Peer)


def test_a_method_says_what_it_learns():
    """Or its requests come one after the other: else one of them would empty what the others
    learned.
    """

    class Silent(type(entry_of("vanilla").method)):
        def reset(self):
            self.table = {}

    assert Silent().private() is None
    for name in method_names():
        kind = type(entry_of(name).method)
        assert kind.reset is Method.reset or kind.learned or kind.private is not Method.private, (
            name
        )


@contextlib.contextmanager
def spoiling():
    """On a GPU a step's tensors lie in the graphs' memory: here the next forward spoils them."""
    settle, forward, shown = FastEngine.settle, FastEngine.forward, []

    @torch.inference_mode()
    def spoil(engine, draft):
        while shown:
            shown.pop().fill_(float("nan"))
        return forward(engine, draft)

    def show(engine, left, late=None):
        step = settle(engine, left, late)
        shown.extend([*step.hidden.values(), *([step.topk.logits] if step.topk else [])])
        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FastEngine, "forward", spoil)
        patch.setattr(FastEngine, "settle", show)
        yield


@pytest.mark.parametrize("name", [name for name in method_names() if needs(name)])
def test_what_a_step_shows_is_read_before_the_next_forward(name, together):
    _, plain = together.run(name, *SUITE, "engine=fast")
    _, spoiled = together.run(name, *SUITE, "engine=fast", fits=needs, within=spoiling)
    for key, expected in plain.items():
        turns = [(turn.ids, turn.accept) for turn in expected.turns]
        assert turns
        assert [(turn.ids, turn.accept) for turn in spoiled[key].turns] == turns
