"""Every method's decode loop on tensors labelled cuda:0: no device mixes, and how often a step
waits for a transfer.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, replace
from importlib.util import find_spec

import pytest
from tiles import attending

from builders.fake_cuda import DEVICE, READ, UPLOAD, FakeCuda
from builders.runs import entry_of, job_for, method_names, settings_of
from builders.transfers import count_transfers
from specbench.decode.budgets import Budgets
from specbench.decode.loop import Request, decode
from specbench.decode.sampling import Sampling
from specbench.decode.together import SharedLaps, SharedServer
from specbench.measure.clock import Clock
from specbench.method import Method, Peer
from specbench.models.facade import Target
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.frame import TreeFrame
from specbench.models.load import load_model
from specbench.models.replay import TimedFast
from specbench.records.record import VANILLA

DRAWN = Sampling(0.8)
SHAPE = ("num_hidden_layers=2", "hidden_size=64", "intermediate_size=128", "vocab_size=2048")
SETTINGS = ("model=random", "model.draft=bundled:tiny_draft", "model.heads.pard=bundled:tiny_pard",
            "+model.frozen_table=bundled:tiny/frozen_table.safetensors",
            "+model.datastore=bundled:tiny/datastore.safetensors", "suite.categories=[rag]",
            "suite.limit=1", *(f"model.heads.{name}=random"
              for name in ("eagle", "eagle3", "p_eagle", "dflash", "mtp", "medusa", "hydra")),
            *(f"model.random.config.{size}" for size in SHAPE))  # fmt: skip

# The most of any step: read-backs and uploads at temperature 0, the same at 0.8; of other methods,
# vanilla's.
VANILLAS = (1, 0, 1, 0)
MOST = {
    "card": (6, 0, 6, 0),
    "opt_tree": (8, 0, 6, 0),
    "ouroboros": (13, 0, 13, 0),
    "ouroboros_warm": (13, 0, 13, 0),
    "pearl": (2, 0, 2, 0),
    "saguaro": (4, 0, 4, 0),
    "self_speculation": (3, 0, 3, 0),
    "sequoia": (1, 0, 2, 0),
}


SHARING = ("pld", "eagle2")  # a tree of the host, and one of the device


@functools.cache
def runnable() -> tuple[str, ...]:
    """Peers decode by the library's own loop."""
    return tuple(name for name in method_names() if not isinstance(entry_of(name).method, Peer))


def cells() -> list:
    """One yaml of each module in every run; its variants in a run of everything."""
    modules: set[str] = set()
    found = []
    for name in runnable():
        module = settings_of(name)["_target_"].split(".")[1]
        found.append(
            pytest.param(name, marks=[pytest.mark.exhaustive] if module in modules else [])
        )
        modules.add(module)
    return found


@pytest.fixture(scope="module")
def job():
    return job_for(*SETTINGS, f"method=[{','.join(runnable())}]")


@pytest.fixture(scope="module")
def counted(job):
    """The counts of one request of a method, and of vanilla's, computed once each."""
    prompt = job.source.prompts.ids(job.source.suite.cases[0].turns[:1], [])[-60:]
    methods = {entry.name: entry.method for entry in job.entries}

    @functools.cache
    def count(name: str, sampling: Sampling | None, engine=FastEngine):
        return count_transfers(methods[name], job.source.card, prompt, 9, sampling, engine)

    return count


@pytest.mark.parametrize("name", cells())
def test_transfers_a_step(name, counted):
    found = []
    for sampling in (None, DRAWN):
        out, clock = counted(name, sampling)
        steps = clock.steps_of
        assert len(steps) == len(out.accept) > 1
        if sampling is None or not entry_of(name).method.draws:
            assert out.ids == counted(VANILLA, sampling)[0].ids
        assert not clock.late, "recorded in a timed step"
        found += [max(column) for column in zip(*steps, strict=True)]
    assert tuple(found) == MOST.get(name, VANILLAS)


def test_a_layout_that_is_not_prepared_is_recorded_in_a_timed_step(counted, monkeypatch):
    """The wrong variant, of a method whose trees stay on the device."""
    record = FastEngine.record

    def record_without(*given) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(TreeFrame, "prepare_layout", lambda *_: None)
            record(*given)

    monkeypatch.setattr(FastEngine, "record", record_without)
    assert {kind for kind, _ in counted.__wrapped__("eagle2", None)[1].late} == {"lay out"}


def test_the_table_names_methods_that_there_are():
    assert set(MOST) <= set(runnable())


@pytest.mark.parametrize("read", [False, True], ids=["", "parents read, the wrong variant"])
def test_along_a_record_the_devices_trees_stay_there(read, counted):
    """Its picks are looked up by depths that the device has."""
    truth = counted(VANILLA, None)[0].ids

    class Along(TimedFast):
        lays_out = not read

        def start(self, prompt, *given):
            self.load(prompt, truth)
            return super().start(prompt, *given)

    out, clock = counted.__wrapped__("eagle2", None, Along)
    assert out.ids == truth
    assert {max(column) for column in zip(*clock.steps_of, strict=True)} == {0, 1 + read}


@pytest.mark.exhaustive
@pytest.mark.parametrize("sampling", [None, DRAWN], ids=["T0", "T0.8"])
def test_what_a_gpu_does_otherwise_takes_the_steps_of_a_cpu(sampling):
    """Chains and shapes that are not read, the ratio test of all nodes at once: the steps of the
    bundled pair.
    """
    drafts = "method=[speculative_sampling,specinfer,eagle2,pearl]", "model.heads.eagle=random"
    job = job_for("model=tiny", *drafts, "suite.categories=[rag]", "suite.limit=1")
    prompt, card = (
        job.source.prompts.ids(job.source.suite.cases[0].turns[:1], [])[-60:],
        job.source.card,
    )
    for method in (entry.method for entry in job.entries):
        labelled = count_transfers(method, card, prompt, 14, sampling)[0]
        model = load_model(card)
        engine = FastEngine(model, card.context, card.eos, 256)
        method.check(card)
        method.bind(Target(card, model, 256, sampling))
        out = decode(engine, method, Request(prompt, 14, sampling, 0), Clock(engine.device))
        ours, theirs = (
            (each.ids, each.accept, each.proposed, each.depth) for each in (labelled, out)
        )
        assert ours == theirs


@dataclass
class Asked:
    """A question of a server, with a method of its own."""

    method: Method
    asked: Request
    error: Exception | None = None

    def request(self) -> Request:
        return self.asked

    def close(self, shared) -> None:
        self.error = shared.error


def share_forwards(method: Method, card, prompt) -> tuple[list[list[int]], set[tuple[int, int]]]:
    """The ids of two requests, and (read-backs, uploads) that wait in the engine's part of a step,
    at any step.
    """
    model, counts, card = load_model(card), set(), replace(card, device=str(DEVICE))
    with FakeCuda() as mode, attending():
        model.to(DEVICE)
        engine = FastEngine(
            model, card.context, card.eos, 100, options=FastOptions(attention="triton")
        )
        method.check(card)
        method.bind(Target(card, model, 100, None))
        method.reset()
        states = [each for each in (method, method.private()) if each is not None]
        laps = SharedLaps()
        batch = engine.batch(2, len(prompt) + 12, laps)
        server = SharedServer(batch, laps, engine.eos, engine.max_nodes, Budgets())
        forward, settle = batch.forward, batch.settle

        def begin(*given):
            mode.blocking.clear()
            forward(*given)
            begin.seen = Counter(mode.blocking)

        def end(*given):
            mode.blocking.clear()
            mode.blocking.update(begin.seen)
            steps = settle(*given)
            counts.add((mode.blocking[READ], mode.blocking[UPLOAD]))
            return steps

        batch.forward, batch.settle = begin, end
        requests = [server.admit(Asked(each, Request(prompt[number:], 5, None, 0)))
                    for number, each in enumerate(states)]  # fmt: skip
        for each in requests:
            server.read(each, len(prompt))
        while active := [each for each in requests if not each.done]:
            server.step(active)
        for each in requests:
            server.leave(each)
            assert each.error is None, each.error
        method.close()
    return [each.transcript.ids for each in requests], counts


@pytest.fixture(scope="module")
def truth(job):
    """A prompt, and vanilla's ids of it and of its part after the first token."""
    prompt = job.source.prompts.ids(job.source.suite.cases[0].turns[:1], [])[-30:]
    vanilla = next(entry.method for entry in job.entries if entry.name == VANILLA)
    return prompt, share_forwards(vanilla, job.source.card, prompt)[0]


@pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: pip install '.[triton]'"
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in SHARING else [pytest.mark.exhaustive])
        for name in runnable()
    ],
)
def test_a_step_of_several_requests_reads_back_once(name, job, truth):
    """Recorded steps of a batch; drafting is not counted here."""
    methods = {entry.name: entry.method for entry in job.entries}
    ids, counts = share_forwards(methods[name], job.source.card, truth[0])
    assert ids == truth[1][: len(ids)]
    assert counts == {(1, 0)}
