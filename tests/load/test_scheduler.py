"""The schedule on a simulated clock, against queueing theory and bounds."""

import numpy as np
import pytest

from builders.served import SERVICE_S, SHORT, Answer, SimulatedServer, simulate, waits_of
from specbench.serving.scheduler import NEVER, Stretch
from specbench.serving.settings import draw_arrivals
from specbench.serving.traces import RecordedArrivals


def _batch_means(values: np.ndarray, batches: int = 30) -> tuple[float, float]:
    """(mean, half of its 99 % interval): waits of neighbours depend on each other, means of long
    batches hardly do.
    """
    means = np.array([part.mean() for part in np.array_split(values, batches)])
    return float(means.mean()), 2.76 * float(means.std(ddof=1)) / batches**0.5


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_mean_wait_is_that_of_a_queue_with_one_server_and_fixed_service(load: float) -> None:
    """M/D/1: rho / (2 (1 - rho)) service times (Pollaczek and Khinchine)."""
    served = simulate(
        SHORT, Stretch(1, 2000, 30_000), draw_arrivals("poisson", load / SERVICE_S, seed=1)
    )
    mean, half = _batch_means(waits_of(served) / SERVICE_S)
    expected = load / (2 * (1 - load))
    assert abs(mean - expected) < half < 0.25 * expected
    memoryless = load / (1 - load)  # of M/M/1, the wrong variant
    assert abs(mean - memoryless) > half


def test_the_same_arrivals_at_the_moment_of_sending_would_hide_the_queue() -> None:
    """Latency counts from the intended arrival: a burst of ten waits 0, 1, ... 9 services."""
    burst = RecordedArrivals((0.0,) * 10 + (1.0,)).repeat()
    served = simulate(SHORT, Stretch(1, 0, 10), burst)
    assert np.allclose(waits_of(served), SERVICE_S * np.arange(10))
    assert all(visit.first_s == visit.end_s for visit in served.measured())


def test_a_closed_loop_keeps_every_seat_taken() -> None:
    served = simulate([Answer(4, (2,) * 50)], Stretch(8, 8, 24), forward_s=lambda rows: 1e-3 * rows)
    assert np.allclose(np.diff(served.ends_s[:50]), 8e-3)
    assert set(served.requests) == {8}
    assert {len(visit.forwards) for visit in served.measured()} == {50}


def test_chunks_bound_the_wait_between_two_bursts() -> None:
    """A long prompt read whole stops everybody; in chunks it does not, and its own first token
    comes later.
    """
    answers = [Answer(1, (1,) * 40), Answer(200, (1,) * 3)]
    gaps, firsts = {}, {}
    for chunk in (0, 10):
        served = simulate(
            answers, Stretch(4, 4, 40, chunk), forward_s=lambda rows: 1e-3 * (1 + rows)
        )
        waits = [
            np.diff(served.ends_s[visit.forwards.start : visit.forwards.stop])
            for visit in served.measured()
        ]
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
    served = simulate([Answer(4, (1,) * 4), Answer(200)], Stretch(1, 0, 20))
    good = [visit for visit in served.measured() if visit.question.prompt == 4]
    assert 0 < len(good) < 20
    assert served.summary()["tokens"] == 5 * len(good)
    assert all(visit.first_s == NEVER for visit in served.measured() if visit.question.prompt > 4)


def test_a_queue_that_only_grows_is_given_up():
    """At twice the capacity the wait grows by half of each gap: the patience ends long before the
    last arrival.
    """
    served = simulate(
        SHORT, Stretch(1, 0, 100_000, patience_s=1.0), draw_arrivals("poisson", 2 / SERVICE_S, 0)
    )
    assert served.given_up
    assert len(served.visits) < 1000
    half = draw_arrivals("poisson", 0.5 / SERVICE_S, 0)
    assert not simulate(SHORT, Stretch(1, 0, 2000, patience_s=1.0), half).given_up
