"""Steps are the time between marks, on the readings that the laps have made anyway."""

import itertools
import time

import pytest
import torch

from builders.runs import job_for
from methods.vanilla import Vanilla
from specbench.decode.loop import Request, decode
from specbench.measure import clock as module
from specbench.measure.clock import Clock
from specbench.runs.session import set_stage


def test_steps_lie_between_marks_and_read_no_clock_of_their_own(monkeypatch):
    now, readings = [0], []

    def read() -> int:
        readings.append(now[0])
        return now[0]

    monkeypatch.setattr(module.time, "perf_counter_ns", read)
    clock = Clock(torch.device("cpu"))
    clock.start()
    for milliseconds, phase, marked in (
        (5, "prefill", True),
        (1, "draft", False),
        (2, "update", True),
        (4, "update", True),
    ):
        now[0] += milliseconds * 1_000_000
        clock.lap(phase)
        if marked:
            before = len(readings)
            clock.mark()
            assert len(readings) == before
    assert clock.steps() == pytest.approx([0.003, 0.004])
    clock.start()
    assert clock.steps() == []


def test_a_process_that_is_interrupted_at_every_reading_has_no_time_outside_of_its_phases(
    stage, monkeypatch
):
    """Each reading of the clock is 50 ms after the one before it, as on a machine with too many
    processes.
    """
    readings = itertools.count(0, 50_000_000)
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: next(readings))
    method = Vanilla()
    method.bind(stage.target)
    out = decode(stage.engine, method, Request([5, 6, 7], 4, None, 0), Clock(torch.device("cpu")))
    assert sum(out.phases_s.values()) == pytest.approx(out.decode_s)


def test_processor_time_counts_no_wait():
    clock = Clock(torch.device("cpu"))
    clock.start()
    time.sleep(0.05)
    assert clock.elapsed("draft") >= 0.05 > 0.03 > clock.processor_s()


@pytest.fixture(scope="module")
def stage():
    with set_stage(job_for("model=tiny", "engine=eager", "method=[]")) as found:
        yield found


@pytest.mark.parametrize("method", ["pld", "hf_generate", "vanilla"])
def test_every_decode_step_has_its_time(stage, method):
    entries = job_for("model=tiny", "method=[pld,hf_generate]").entries
    entry = next(entry for entry in entries if entry.name == method)
    entry.method.bind(stage.target)
    entry.method.reset()
    out = decode(
        stage.engine,
        entry.method,
        Request([5, 6, 7, 5, 6], 12, None, 0),
        Clock(torch.device("cpu")),
    )
    assert len(out.step_s) == len(out.accept) > 0
    assert min(out.step_s) > 0
    assert sum(out.step_s) <= out.decode_s


class Slow(Vanilla):
    """Takes its time with the prompt."""

    def begin(self, prompt, prefill, seed):
        time.sleep(0.05)
        return super().begin(prompt, prefill, seed)


def test_the_wait_for_the_second_token_holds_what_is_learned_from_the_prompt(stage):
    method = Slow()
    method.bind(stage.target)
    out = decode(stage.engine, method, Request([5, 6, 7], 4, None, 0), Clock(torch.device("cpu")))
    assert out.step_s[0] > 0.05
    assert sum(out.step_s) <= out.decode_s
