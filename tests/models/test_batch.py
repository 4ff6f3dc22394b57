"""Whoever shares its forwards, a request emits what it emits alone; requests join, leave and fail
at any time.
"""

from __future__ import annotations

import contextlib
import copy
import random
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ranks import Forgetful, team

from builders.engines import Scripted, assert_same_rows, decode_script, scripts, started, take_step
from builders.models import VOCAB, build, plain_greedy
from playback import Playback
from specbench.decode.loop import derive_seed
from specbench.decode.sampling import Sampling
from specbench.decode.walk import Walk
from specbench.models.batch import PaddedRows
from specbench.models.eager.engine import EagerEngine
from specbench.models.engine import Silent
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.batch import FastBatch, PackedFrame
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.graphs import Buckets
from specbench.models.fast.host.forward import CompiledForward
from specbench.models.replay import TimedEager, TimedFast
from specbench.models.tensor_parallel.team import TeamError
from specbench.types import CaseError, Draft, Needs, Step

TRUTHS: dict[tuple[int, ...], list[int]] = {}
COUNT, CONTEXT, NODES = 10, 96, 24
TRITON = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: pip install '.[triton]'"
)
KINDS = ["eager", "fast", "compiled", pytest.param("recorded", marks=TRITON)]
EACH = pytest.mark.parametrize("kind", KINDS)
NAMES = ("chain", "wide", "repeated", "empty", "as_tensors")


class Recorded(FastEngine):
    """Our kernel in Triton's interpreter, in a GPU's widths, and its recordings by a stand-in."""

    def __init__(self, *given) -> None:
        buckets = Buckets((1, 2, 4, 8, 16, 32), (64, 128))
        super().__init__(*given, buckets, FastOptions(attention="triton"))

    def batch(self, *given):
        with pytest.MonkeyPatch.context() as patch:
            # more than 32 rows are not recorded
            patch.setattr("specbench.models.fast.batch.WIDE", ())
            batch = super().batch(*given)
        places = batch._places
        places.graphs, places.acceptances = Playback(places), Playback(places)
        return batch


def engine_for(kind: str, model):
    model = model["float32" if kind in ("compiled", "recorded") else "float64"]
    if kind == "recorded":
        return Recorded(model, CONTEXT, frozenset(), NODES)
    return {"eager": EagerEngine}.get(kind, FastEngine)(model, CONTEXT, frozenset(), NODES)


@dataclass
class Question:
    prompt: list[int]
    script: object
    sampling: Sampling | None
    seed: int
    ids: list[int] = field(default_factory=list)
    accept: list[int] = field(default_factory=list)
    handle: object = None
    drafter: object = None

    def alone(self, engine) -> tuple[list[int], list[int]]:
        out = decode_script(engine, self.script, self.prompt, COUNT, self.sampling, self.seed)
        return out.ids, out.accept


def draw_questions(
    model, number: int, rng: random.Random, sampling: Sampling | None
) -> list[Question]:
    found = []
    for seed in range(number):
        prompt = [rng.randrange(3, VOCAB) for _ in range(rng.choice([1, 4, 20]))]
        truth = TRUTHS.get(tuple(prompt)) or plain_greedy(model["float64"], prompt, COUNT + 8)
        TRUTHS[tuple(prompt)] = truth
        found.append(Question(prompt, scripts(truth)[rng.choice(NAMES)], sampling, seed))
    return found


def decode_together(batch, questions: list[Question], rng: random.Random) -> None:
    """Requests join when there is a place and chance says so; each forward is of a random part of
    those that decode.
    """
    waiting, reading, running = list(questions), [], []
    while waiting or reading or running:
        if waiting and batch.free and rng.random() < 0.6:
            each = waiting.pop(0)
            walk = Walk(each.sampling, derive_seed(each.seed, "verify"))
            each.handle = batch.open(each.prompt, COUNT, walk, Needs())
            reading.append(each)
        for each in [one for one in reading if rng.random() < 0.7]:
            prefill = batch.prefill(each.handle, rng.choice([None, 3, 7]))
            if prefill is not None:
                each.ids.append(prefill.token)
                each.drafter = Scripted(each.script).begin(each.prompt, prefill, 0)
                reading.remove(each)
                running.append(each)
        part = [each for each in running if rng.random() < 0.8]
        rng.shuffle(part)
        drafts = [each.drafter.propose(each.prompt + each.ids, NODES) for each in part]
        batch.forward([each.handle for each in part], drafts)
        for each, step in zip(part, batch.settle(), strict=True):
            assert isinstance(step, Step), step
            each.ids += step.emitted
            each.accept.append(len(step.emitted))
            if step.done:
                batch.close(each.handle)
                running.remove(each)


@pytest.fixture(scope="module")
def model():
    """Layers with and without a window. In single precision compiled code gives a row the same bits
    in any company.
    """
    double = build("qwen2-mixed", torch.float64)
    return {"float64": double, "float32": copy.deepcopy(double).float()}


@EACH
@settings(max_examples=1)  # in addition to those that every engine has
@example(places=2, seed=1, warm=True)
@example(places=3, seed=2, warm=False)
@example(places=8, seed=3, warm=False)
@given(places=st.sampled_from([2, 3, 8]), seed=st.integers(0, 2**16), warm=st.booleans())
def test_ids_and_steps_are_those_of_a_request_alone(model, kind, places, seed, warm):
    # the interpreter takes long
    rng, places = random.Random(seed), min(places, 4) if kind == "recorded" else places
    engine = engine_for(kind, model)
    questions = draw_questions(model, places + 1, rng, Sampling(0.8) if warm else None)
    batch = engine.batch(places, CONTEXT)
    decode_together(batch, questions, rng)
    assert batch.free == places
    alone = engine_for("fast", model) if kind == "recorded" else engine
    for each in questions:
        assert (each.ids, each.accept) == each.alone(alone)


def _sees_the_neighbour(monkeypatch, batch):
    build = PaddedRows.build_mask
    monkeypatch.setattr(PaddedRows, "build_mask", lambda *given: build(*given).roll(1, 0))
    lay_out = CompiledForward.lay_out
    monkeypatch.setattr(CompiledForward, "lay_out", lambda self, rows, room: lay_out(self, rows, 0))
    pack = CompiledForward.pack
    monkeypatch.setattr(
        CompiledForward, "pack", lambda self, *given: pack(self, *given[:2], 0 * given[2], given[3])
    )
    enter = PackedFrame._enter_tiles

    def enter_wrongly(self, groups):
        groups[:-1, 0] = np.roll(groups[:-1, 0], 1)
        enter(self, groups)

    monkeypatch.setattr(PackedFrame, "_enter_tiles", enter_wrongly)


class _Backwards:
    """A kernel whose second argument, the rows' slots, is that of the rows in the opposite
    order.
    """

    def __init__(self, kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda slots, at, *given, **named: self.kernel[grid](
            slots, at.flip(0), *given, **named
        )


def _moves_by_anothers_path(monkeypatch, batch):
    move = batch.move
    monkeypatch.setattr(
        batch, "move", lambda places, *slots: move([*places[1:], places[0]], *slots)
    )
    accept = CompiledForward.accept_packed

    def accept_wrongly(self, logits, layout, *rest):
        spans = layout.spans.copy()
        spans[:, 2] = np.roll(spans[:, 2], 1)
        return accept(self, logits, replace(layout, spans=spans), *rest)

    monkeypatch.setattr(CompiledForward, "accept_packed", accept_wrongly)
    if isinstance(batch.engine, Recorded):
        name = "specbench.models.fast.kernels.packed_rows.move_rows"
        monkeypatch.setattr(name, _Backwards(import_module(name.rpartition(".")[0]).move_rows))


def _shares_numbers(monkeypatch, batch):
    opened, walk = batch.open, Walk(Sampling(0.8), 0)
    monkeypatch.setattr(
        batch, "open", lambda prompt, limit, own, needs: opened(prompt, limit, walk, needs)
    )


@EACH
@pytest.mark.parametrize("wrong", [_sees_the_neighbour, _moves_by_anothers_path, _shares_numbers])
def test_a_request_that_meets_another_emits_other_ids(model, monkeypatch, wrong, kind):
    rng, engine = random.Random(3), engine_for(kind, model)
    questions = draw_questions(model, 3, rng, Sampling(0.8) if wrong is _shares_numbers else None)
    for each in questions:
        each.script = scripts(TRUTHS[tuple(each.prompt)])["wide"]
    batch = engine.batch(3, CONTEXT)
    wrong(monkeypatch, batch)
    decode_together(batch, questions, rng)
    monkeypatch.undo()
    assert any((each.ids, each.accept) != each.alone(engine) for each in questions)


@EACH
def test_a_request_that_fails_leaves_the_others_alone(model, kind):
    engine = engine_for(kind, model)
    batch = engine.batch(3, 40)
    good, large, broken = ([5, 6, 7], [8, 9], [10, 11, 12])
    handles = opened(batch, (good, large, broken))
    firsts = [batch.prefill(handle).token for handle in handles]
    with pytest.raises(RuntimeError, match="all of 3 places are taken"):
        opened(batch, [good])
    with pytest.raises(
        CaseError, match=r"prompt of 3 and answer of 38 tokens; expected at most 40 together"
    ):
        opened(batch, [good], limit=38)
    break_slots(batch, handles[2].place)
    batch.forward(handles, [Draft(), Draft.chain([3] * 25), Draft()])
    assert batch.fed == 2
    step, refused, nan = batch.settle()
    assert [firsts[0], *step.emitted] == plain_greedy(model["float64"], good, 2)
    assert "draft of 25 nodes" in str(refused)
    assert "NaN or infinite" in str(nan)
    for handle in [*handles[1:], handles[1]]:
        batch.close(handle)
    assert batch.free == 2
    again = opened(batch, (large, broken))
    assert [batch.prefill(each).token for each in again] == firsts[1:]
    batch.forward(again, [Draft()] * 2)
    for prompt, first, step in zip((large, broken), firsts[1:], batch.settle(), strict=True):
        assert [first, *step.emitted] == plain_greedy(model["float64"], prompt, 2)
    batch.end()


@pytest.mark.parametrize("forgets", [False, True])
def test_plain_steps_alternate_with_steps_of_other_requests(model, monkeypatch, forgets):
    """Steps of greedy requests alone are compiled throughout; a sampled one among them has them all
    done in Python.
    """
    rng, plain = random.Random(4), []
    questions = draw_questions(model, 6, rng, None)
    for each in questions[::2]:
        each.sampling = Sampling(0.8)
    eos = frozenset({TRUTHS[tuple(questions[1].prompt)][4], TRUTHS[tuple(questions[3].prompt)][6]})
    engine = FastEngine(model["float32"], CONTEXT, eos, NODES)
    batch, feed = engine.batch(3, CONTEXT), FastBatch.feed_plain
    monkeypatch.setattr(
        FastBatch, "feed_plain", lambda *given: plain.append(feed(*given)) or plain[-1]
    )
    if forgets:
        monkeypatch.setattr(FastBatch, "sync", lambda self: None)
    with contextlib.suppress(*[IndexError, AssertionError] * forgets):
        decode_together(batch, questions, rng)
    assert {*plain} == {True, False}
    assert forgets == any((each.ids, each.accept) != each.alone(engine) for each in questions)


def test_a_plain_step_that_fails_leaves_the_others_alone(model):
    engine, prompts = engine_for("compiled", model), ([5, 6, 7], [10, 11, 12])
    batch = engine.batch(2, 40)
    handles = opened(batch, prompts)
    firsts = [batch.prefill(handle).token for handle in handles]
    break_slots(batch, handles[1].place)
    batch.forward(handles, [None, Draft.chain([3])])
    outcomes, contexts = batch.settle(), [[firsts[0]], [firsts[1]]]
    assert ([*outcomes.errors], outcomes.ended, outcomes.enter(contexts)) == ([1], [], 1)
    assert contexts == [plain_greedy(model["float64"], prompts[0], 2), firsts[1:]]
    assert "NaN or infinite" in str(outcomes[1])
    batch.close(handles[1])
    (again,) = opened(batch, prompts[1:])
    assert batch.prefill(again).token == firsts[1]
    batch.forward([again], [Draft()])
    assert [firsts[1], *batch.settle()[0].emitted] == plain_greedy(model["float64"], prompts[1], 2)


def test_a_plain_forward_that_raised_an_exception_is_not_settled_by_the_next_step(model):
    engine, prompt = engine_for("compiled", model), [5, 6, 7]
    batch = engine.batch(1, 40)
    (handle,) = opened(batch, [prompt])
    ids = [batch.prefill(handle).token]
    with pytest.raises(IndexError, match="no row in the embedding"):
        batch.forward([handle], [Draft.chain([VOCAB])])
    # tokens in a tensor are not for a plain step
    for draft in (Draft(torch.tensor([1]), torch.tensor([-1])), None):
        batch.forward([handle], [draft])
        ids += batch.settle()[0].emitted
    assert ids == plain_greedy(model["float64"], prompt, len(ids))


@EACH
@pytest.mark.parametrize(
    "parents", [[-1, 2, 0], [-1, 1, 0], [-1, -2, 0], [-1, 0, 1 << 40], range(3)]
)
def test_a_draft_whose_parents_come_late_is_refused_as_in_a_request_alone(model, kind, parents):
    engine, prompt, wrong = engine_for(kind, model), [5, 6, 7], Draft([3, 4, 5], parents)
    batch = engine.batch(2, 40)
    handles = opened(batch, [prompt] * 2)
    first, _ = [batch.prefill(handle).token for handle in handles]
    batch.forward(handles, [Draft([3, 4], [-1, -1]), wrong])
    step, refused = batch.settle()
    assert [first, *step.emitted] == plain_greedy(model["float64"], prompt, 2)
    started(engine, prompt)
    with pytest.raises(
        CaseError, match=r"parent of node [012] is -?\d+; expected -1 \(root\) or a smaller"
    ) as alone:
        engine.forward(wrong)
    assert str(refused) == str(alone.value)


def opened(batch, prompts, needs: Needs | None = None, limit: int = 8) -> list:
    """A place for a greedy request of each prompt."""
    return [batch.open(prompt, limit, Walk(None, 0), needs or Needs()) for prompt in prompts]


def break_slots(batch, place: int) -> None:
    """Numbers that are not finite in all that a place has."""
    with torch.inference_mode():
        if isinstance(batch, FastBatch):
            batch.cache.whole[:, :, place * batch.room : (place + 1) * batch.room] = float("nan")
        else:
            for stack in batch.cache._stacks:
                stack[:, place] = float("nan")


@EACH
def test_rows_that_a_method_asks_for_are_those_of_a_request_alone(model, kind):
    """Top tokens and hidden states, of prompts in chunks and of drafts, the place between two that
    draft left out.
    """
    needs = Needs(hidden=(1, 2), prompt_hidden=True, node_topk=3, prompt_topk=4)
    engine, near = engine_for(kind, model), {"compiled": 1e-5, "recorded": 1e-4}.get(kind, 1e-7)
    batch, prompts = engine.batch(3, 40), ([5, 6, 7, 8, 9], [11], [12, 13, 14])
    handles = opened(batch, prompts, needs)
    draft = Draft([3, 4, 5], [-1, -1, 1])
    for handle, most in zip(handles, (2, 2, None), strict=True):
        found = None
        while found is None:
            found = batch.prefill(handle, most)
        assert_same_rows(
            found, engine.start(handle.prompt, 8, Walk(None, 0), needs, Silent()), near
        )
    batch.forward([handles[2], handles[0]], [draft, Draft()])
    for handle, given_draft, found in zip(
        (handles[2], handles[0]), (draft, Draft()), batch.settle(), strict=True
    ):
        assert_same_rows(found, take_step(started(engine, handle.prompt, needs), given_draft), near)


@pytest.mark.parametrize(
    ("timed", "dtype"), [(TimedEager, "float64"), (TimedFast, "float64"), (TimedFast, "float32")]
)
def test_requests_are_timed_along_a_record_each(model, timed, dtype):
    """Tokens that no model would emit; the caches hold them. In single precision compiled code
    verifies the picks.
    """
    engine, answers = (
        timed(model[dtype], CONTEXT, frozenset(), NODES),
        {(5, 6): [7, 8, 9, 9], (11,): [12, 13, 14, 3]},
    )
    batch, handles = engine.batch(2, 20), []
    for prompt, answer in answers.items():
        engine.load(prompt, answer)
        handles += opened(batch, [prompt], limit=4)
    assert [batch.prefill(handle).token for handle in handles] == [7, 12]
    batch.forward(handles, [Draft([3, 8, 9], [-1, -1, 1]), Draft.chain([13, 2])])
    assert [step.emitted for step in batch.settle()] == [(8, 9, 9), (13, 14)]


@pytest.mark.exhaustive
def test_requests_on_two_ranks_emit_what_they_emit_alone(model):
    """The ranks are compared after every forward: what each holds in its slots, and the states
    after the last sum.
    """
    alone, rng = engine_for("fast", model), random.Random(5)
    with team(model["float64"], check=True) as (engine, _):
        for requests, sampling in ((2, None), (3, Sampling(0.8, 20, 0.9))):
            questions, batch = (
                draw_questions(model, 5, rng, sampling),
                engine.batch(requests, CONTEXT),
            )
            decode_together(batch, questions, rng)
            batch.end()
            assert [(each.ids, each.accept) for each in questions] == [
                each.alone(alone) for each in questions
            ]


@pytest.mark.exhaustive
def test_a_rank_that_does_not_move_accepted_rows_is_named(model):
    questions = [
        Question(
            [5, 17, 3], scripts(plain_greedy(model["float64"], [5, 17, 3], 18))["wide"], None, 0
        )
    ]
    named = pytest.raises(TeamError, match=r"rank 1 diverged .* tokens in the cache")
    with team(model["float64"], check=True, follower=Forgetful) as (engine, _), named:
        decode_together(engine.batch(2, CONTEXT), questions, random.Random(0))
