"""The schedule on a simulated clock: against queueing theory, and against the modelled speedup of a closed loop."""

import numpy as np
import pytest

from builders.profiles import FIT
from specbench.profile import Fit, Profile
from specbench.serving.scheduler import NEVER, Served, Stretch
from specbench.serving.settings import draw_arrivals
from specbench.serving.simulate import SimulatedAnswer, SimulatedServer, simulate
from specbench.serving.traces import RecordedArrivals

SERVICE_S = 0.01
ONE = Profile("H", "big", "served", "bfloat16", "published", Fit(1e3 * SERVICE_S, 0.0, 0.0, 0.0), "2026")


def _waits(served: Served) -> np.ndarray:
    return np.array([visit.begin_s - visit.arrival_s for visit in served.measured()])


def _batch_means(values: np.ndarray, batches: int = 30) -> tuple[float, float]:
    """(mean, half of its 99 % interval): waits of neighbours depend on each other, means of long batches hardly do."""
    means = np.array([part.mean() for part in np.array_split(values, batches)])
    return float(means.mean()), 2.76 * float(means.std(ddof=1)) / batches**0.5


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_mean_wait_is_that_of_a_queue_with_one_server_and_fixed_service(load: float) -> None:
    """M/D/1: rho / (2 (1 - rho)) service times (Pollaczek and Khinchine)."""
    answers = [SimulatedAnswer(1, (), ())]
    served = simulate(ONE, answers, Stretch(1, 2000, 30_000), draw_arrivals("poisson", load / SERVICE_S, seed=1))
    mean, half = _batch_means(_waits(served) / SERVICE_S)
    expected = load / (2 * (1 - load))
    assert abs(mean - expected) < half < 0.25 * expected
    memoryless = load / (1 - load)  # of M/M/1, the wrong variant
    assert abs(mean - memoryless) > half


def test_the_same_arrivals_at_the_moment_of_sending_would_hide_the_queue() -> None:
    """Latency counts from the intended arrival: a burst of ten waits 0, 1, ... 9 services."""
    burst = RecordedArrivals((0.0,) * 10 + (1.0,)).repeat()
    served = simulate(ONE, [SimulatedAnswer(1, (), ())], Stretch(1, 0, 10), burst)
    assert np.allclose(_waits(served), SERVICE_S * np.arange(10))
    assert all(visit.first_s == visit.end_s for visit in served.measured())


def test_closed_loop_is_the_modelled_step_and_keeps_every_seat_taken() -> None:
    answers = [SimulatedAnswer(4, (2,) * 50, (3,) * 50)]
    served = simulate(FIT, answers, Stretch(8, 8, 24))
    contexts = 4 + 2 * np.arange(50)
    expected = 1e-3 * np.array([float(FIT.shared_ms(24, context, 8)) for context in contexts])
    assert np.allclose(np.diff(served.ends_s[:50]), expected[1:])
    assert set(served.requests) == {8}
    assert {len(visit.forwards) for visit in served.measured()} == {50}


def test_chunks_bound_the_wait_between_two_bursts() -> None:
    """A long prompt read whole stops everybody; in chunks it does not, and its own first token comes later."""
    slow = Profile("H", "b", "e", "d", "published", Fit(1.0, 1000.0, 0.0, 0.0), "2026")
    answers = [SimulatedAnswer(1, (1,) * 40, (1,) * 40), SimulatedAnswer(200, (1,) * 3, (1,) * 3)]
    gaps, firsts = {}, {}
    for chunk in (0, 10):
        served = simulate(slow, answers, Stretch(4, 4, 40, chunk))
        waits = [np.diff(served.ends_s[visit.forwards.start : visit.forwards.stop]) for visit in served.measured()]
        gaps[chunk] = max(wait.max(initial=0.0) for wait in waits)
        firsts[chunk] = max(visit.first_s - visit.arrival_s for visit in served.measured())
    assert gaps[10] < 0.04 < 0.19 < gaps[0]
    assert firsts[10] > firsts[0]


def test_a_request_that_fails_before_its_first_token_counts_none(monkeypatch) -> None:
    real = SimulatedServer.admit

    def admit(self, question):
        admitted = real(self, question)
        if question.prompt > 100:  # longer than its room
            admitted.unread, admitted.done = 0, True
        return admitted

    monkeypatch.setattr(SimulatedServer, "admit", admit)
    served = simulate(FIT, [SimulatedAnswer(4, (1,) * 4, (1,) * 4), SimulatedAnswer(200, (), ())], Stretch(1, 0, 20))
    good = [visit for visit in served.measured() if visit.question.prompt == 4]
    assert 0 < len(good) < 20
    assert served.summary()["tokens"] == 5 * len(good)
    assert all(visit.first_s == NEVER for visit in served.measured() if visit.question.prompt > 4)


@pytest.mark.parametrize("own_s", [0.0, 1e-3, 1.0], ids=["none", "some", "most"])
def test_halves_hide_the_shorter_of_drafting_and_verification(own_s: float) -> None:
    answers = [SimulatedAnswer(4, (2,) * 50, (3,) * 50, own_s)]
    served = simulate(FIT, answers, Stretch(8, 8, 24), halves=True)
    forward_s = 1e-3 * np.array([float(FIT.shared_ms(12, context, 4)) for context in 4 + 2 * np.arange(50)])
    assert np.allclose(np.diff(served.ends_s[:50]), 2 * np.maximum(forward_s, 4 * own_s)[1:])
    assert set(served.requests) == {8}


def test_256_requests_at_once() -> None:
    answers = [SimulatedAnswer(100, (2,) * 20, (5,) * 20)]
    served = simulate(FIT, answers, Stretch(256, 256, 2000))
    assert len(served.measured()) == 2000
    begin, end = served.window()
    tokens = sum(count for count, at in zip(served.emitted, served.ends_s, strict=True) if begin < at <= end)
    assert tokens / (end - begin) > 8 / 1e-3 / float(FIT.step_ms(1, 100))
