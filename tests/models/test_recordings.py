"""Recordings of a GPU, by a stand-in on a CPU: the same steps after any other requests."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from builders.engines import (
    COUNT,
    PROMPTS,
    assert_greedy,
    decode_script,
    scripts,
    started,
    take_step,
)
from builders.models import VOCAB, build, plain_greedy
from playback import Playback, played
from specbench.decode.check import check_engine
from specbench.models.eager import engine as eager_engine
from specbench.models.eager.engine import EagerEngine, EagerRequest
from specbench.models.fast import engine as fast_engine
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.graphs import GRAPHED, Buckets, Graphs
from specbench.models.runner import CompactRunner
from specbench.models.tensor_parallel.engine import Follower, Leader
from specbench.models.tensor_parallel.team import Op
from specbench.types import Draft, InputError, Needs

FEW = Buckets((1, 2, 4, 8, 16, 32, 64, 96), (64, 128, 256, 512))


def engine_for(model, buckets=FEW) -> FastEngine:
    return played(FastEngine(model, 512, frozenset(), 64, buckets))


@pytest.mark.matrix
@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen3"])
def test_recording_and_replaying_take_the_same_steps(family, prepared):
    """A graph's outputs are always the same tensors, and its first use, which also records it,
    moves the cache once.
    """
    model = build(family)
    engine = engine_for(model)
    check_engine(engine, model)
    if prepared:
        engine.prepare(Needs(), True)
        assert len(engine.graphs._recorded) == 8 * 4 - 1  # 96 rows read more than 64 keys
        outputs = [kept for _, kept in engine.graphs._recorded.values()]
        logits = {
            each[0].untyped_storage().data_ptr() for each in outputs if isinstance(each, tuple)
        }
        assert len(logits) == 1, "one memory for the logits of all widths and lengths"
        engine.prepare(Needs(hidden=(1,)), True)
        engine.prepare(Needs(rows=True), True)
    for prompt in PROMPTS.values():
        for name in scripts([]):
            assert_greedy(engine, model, prompt, COUNT, name)
    whole = engine_for(model, Buckets(FEW.widths, FEW.lengths, whole=True))
    assert_greedy(whole, model, prompt, COUNT)
    assert len({length for _, length, _ in whole.graphs._recorded}) == 1


def test_a_recording_that_runs_its_call_twice_is_caught(monkeypatch):
    """The wrong variant: a warm-up whose effects stay moves the accepted path twice."""
    model = build("llama")
    engine = engine_for(model, GRAPHED)
    monkeypatch.setattr(Playback, "_warm_up", lambda self, call: (call(), call())[1])
    with pytest.raises(InputError, match="does not see a draft tree"):
        check_engine(engine, model)


@pytest.mark.parametrize(
    ("context", "whole", "forwards"),
    [(2048, False, 83), (2048, True, 14), (32768, False, 139), (32768, True, 14)],
)
def test_the_number_of_recordings(context, whole, forwards):
    """Acceptance: for each width and number of rows it may move, and the layout of a tree on the
    device for each width. Forwards: without lengths of keys one a width.
    """
    buckets = Buckets(GRAPHED.widths, GRAPHED.lengths, whole)
    engine = Counted(build("llama"), context, frozenset(), 256, buckets)
    for needs, greedy, count in (
        (Needs(), True, forwards),
        (Needs(hidden=(1,)), True, 2 * forwards),
        (Needs(hidden=(1,)), False, 2 * forwards),
    ):
        engine.prepare(needs, greedy)
        assert len(engine.graphs._recorded) == count
        assert len(engine.acceptances._recorded) == 36 + 14
    engine.reserve(1024)
    assert len(engine.graphs._recorded) == 2 * forwards


class Devices:
    """``torch.cuda`` with two devices, of which a capture takes what is launched on the current
    one's stream.
    """

    def __init__(self, monkeypatch) -> None:
        self.current, self.default, self.made, self.captures = 0, None, [], []
        for name in ("device", "Stream", "current_stream", "stream", "graph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)

    @contextlib.contextmanager
    def device(self, chosen):
        before, self.current = self.current, chosen.index
        yield
        self.current = before

    def Stream(self, device=None):
        self.made.append(
            SimpleNamespace(device=self.current if device is None else device.index, waits=[])
        )
        self.made[-1].wait_stream = self.made[-1].waits.append
        return self.made[-1]

    def current_stream(self, device):
        return SimpleNamespace(wait_stream=lambda stream: None)

    @contextlib.contextmanager
    def stream(self, stream):
        assert stream.device == self.current
        yield

    @contextlib.contextmanager
    def graph(self, graph, pool=None, stream=None, capture_error_mode="global"):
        self.default = self.default or self.Stream()  # torch makes one for the process
        yield
        stream = stream or self.default
        self.captures.append((stream, stream.device == self.current))


def test_each_device_captures_on_its_own_stream(monkeypatch):
    """A draft model on a second GPU records after the target; the wrong variant takes torch's
    stream.
    """
    devices = Devices(monkeypatch)
    devices.default = devices.Stream(torch.device("cuda", 0))
    engines = [Graphs(torch.device("cuda", index)) for index in (0, 1)]
    for each in (*engines, *engines):
        each.run(object(), lambda: torch.zeros(1))
        each.drop()
        each.run(object(), lambda: torch.zeros(1))
    assert [stream.device for stream, _ in devices.captures] == [0, 0, 1, 1] * 2
    assert all(taken for _, taken in devices.captures)
    assert len(devices.made) == 1 + 2, "a stream for each, of warm-ups and captures"
    engines[1]._stream = None
    engines[1]._record(lambda: torch.zeros(1))
    assert not devices.captures[-1][1]


class Counted(FastEngine):
    """Records nothing but which calls it would."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        played(self)
        for each in (self.graphs, self.acceptances):
            each.run = lambda key, call, recorded=each._recorded: recorded.setdefault(
                key, (None, None)
            )
        self.frames.find = lambda width, most: SimpleNamespace(
            width=width,
            clear=lambda: None,
            prepare_layout=lambda run: run(("lay out", width), lambda: None),
        )


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared memory, the wrong variant"])
def test_hidden_states_of_a_forward_outlast_the_acceptance_that_was_recorded_before_it(shared):
    """Acceptance of a width is recorded with its first forward and replayed behind those for more
    keys.
    """
    model = build("llama", torch.float64)
    engines = [EagerEngine(model, 512, frozenset(), 64), engine_for(model)]
    if shared:
        engines[1].acceptances = engines[1].graphs
    for each in engines:
        started(each, long_prompt(50), Needs(hidden=(1,)))
    kept = []
    for _ in range(COUNT // 2):
        ours, theirs = [take_step(each, Draft([7, 8], [-1, -1])) for each in engines]
        kept.append(torch.allclose(ours.hidden[1], theirs.hidden[1]))
    assert len({length for _, length, *_ in engines[1].graphs._recorded if length > 16}) == 2
    assert all(kept) is not shared


def test_acceptance_moves_no_more_rows_than_a_shallow_tree_needs():
    model = build("llama")
    engine = started(engine_for(model), [5, 6])
    truth = plain_greedy(model, [5, 6], COUNT)
    moved, move = [], engine.cache.move
    engine.cache.move = lambda source, target: moved.append(len(target)) or move(source, target)
    done = 1
    for tokens, parents in (
        ([9] * 40 + truth[1:4], [-1] * 41 + [40, 41]),  # 44 rows, 3 deep
        ([9, *truth[5:23]], [-1, -1, *range(1, 18)]),  # 20 rows, 18 deep
    ):
        step = take_step(engine, Draft(tokens, parents))
        assert [*step.emitted] == truth[done : done + len(step.emitted)]
        assert len(step.path) in (3, 18)
        done += len(step.emitted)
    assert moved[::2] == [16, 32]  # each is called for its effect, then recorded


def test_what_a_method_asked_for_is_enqueued_before_the_device_is_waited_for(monkeypatch):
    model, order = build("llama"), []
    for owner, name in (
        (fast_engine, "find_top"),
        (fast_engine, "read_outcome"),
        (eager_engine, "find_top"),
    ):
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *given, name=name, real=real: order.append(name[:4]) or real(*given)
        )
    verify = EagerRequest.verify
    monkeypatch.setattr(
        EagerRequest, "verify", lambda *given: order.append("read") or verify(*given)
    )
    for engine in (engine_for(model), EagerEngine(model, 512, frozenset(), 64)):
        started(engine, [5, 6], Needs(node_topk=3))
        order.clear()
        take_step(engine, Draft([7, 8], [-1, -1]))
        assert order == ["find", "read"]


def long_prompt(tokens: int) -> list[int]:
    return [(7 * place) % VOCAB for place in range(tokens)]


@pytest.mark.parametrize("again", ["a context beyond the standing one", "new taps"])
def test_recording_again_behind_decoded_requests_reads_no_place_of_theirs(again, monkeypatch):
    """A frame keeps where its last draft lay, which is behind the keys that a shorter recording
    reads.
    """
    monkeypatch.setattr(fast_engine, "STANDING", 128)
    model = build("llama")
    engine = engine_for(model)
    engine.prepare(Needs(), True)
    capacity = engine.cache.capacity
    assert_greedy(engine, model, long_prompt(100), 16)
    if again == "new taps":
        engine.prepare(Needs(hidden=(1,)), True)
    assert_greedy(engine, model, long_prompt(300), 4)
    assert engine.cache.capacity > capacity


class FailingAllocations:
    """``torch.zeros`` of a device with room for so many bytes in one tensor. failed: how often it
    had none.
    """

    def __init__(self, most: int) -> None:
        self.most, self.failed, self._zeros = most, 0, torch.zeros

    def __call__(self, *shape, dtype=None, **options):
        found = self._zeros(*shape, dtype=dtype, **options)
        if found.nbytes > self.most:
            self.failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found


@pytest.mark.parametrize("kind", ["fast", "eager"])
def test_a_case_without_memory_leaves_the_next_one_sound(kind, monkeypatch):
    """The cache has room only once it is there, and no recording reads where it was."""
    monkeypatch.setattr(fast_engine, "STANDING", 64)
    model = build("llama")
    engine = engine_for(model) if kind == "fast" else EagerEngine(model, 512, frozenset(), 64)
    engine.prepare(Needs(), True)
    engine.reserve(64)
    memory = FailingAllocations(most=engine.cache.nbytes())
    monkeypatch.setattr(torch, "zeros", memory)
    for _ in range(2):
        assert_greedy(engine, model, PROMPTS["short"], 8)
        with pytest.raises(torch.OutOfMemoryError):
            decode_script(engine, scripts([])["empty"], long_prompt(450), 8)
    assert memory.failed == 2
    assert_greedy(engine, model, PROMPTS["short"], 8)


def test_a_draft_models_cache_that_cannot_grow_keeps_its_tokens_and_grows_later(monkeypatch):
    runner = CompactRunner(build("llama"), 512, compiled=False)
    cache = runner.new_cache()
    cache.grow(64)
    runner.run(cache, [5, 6], range(2), None, 1)
    memory = FailingAllocations(most=cache.memory.nbytes())
    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", memory)
        with pytest.raises(torch.OutOfMemoryError):
            cache.grow(500)
    assert (cache.length, cache.capacity) == (2, 256)
    cache.grow(500)
    assert (cache.length, cache.capacity) == (2, 512)


@pytest.mark.parametrize("rank", ["rank 0", "another"])
def test_recordings_are_dropped_before_the_ranks_leave_their_group(rank):
    """They hold NCCL's sums, and leaving the group waits for them."""
    kind = Leader if rank == "rank 0" else Follower
    engine = kind.__new__(kind)
    engine.graphs, engine.acceptances = Playback(engine), Playback(engine)
    engine.graphs._recorded["one"] = engine.acceptances._recorded["one"] = (None, None)
    lengths = []
    engine.team = SimpleNamespace(receive=lambda: (Op.STOP, []))
    engine._ranks = SimpleNamespace(close=lambda team: lengths.append(len(engine.graphs._recorded)))
    if rank == "rank 0":
        engine.close()
        assert lengths == [0]
    else:
        engine.serve()  # the group is left when it returns
    assert not engine.graphs._recorded
    assert not engine.acceptances._recorded
