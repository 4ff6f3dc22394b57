"""Load on remote servers: waits from the intended arrival, requests in flight, ramp and drain, by
arithmetic.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import stand_in

from specbench.commands import run as run_command
from specbench.decode.loop import Request
from specbench.method import Remote, Settled
from specbench.records.store import read_run
from specbench.serving.remote import RemoteServer, serve_remote
from specbench.serving.scheduler import Stretch

SERVICE_S = 0.04  # of an answer, one after the other
LONG = ("decode.max_new_tokens=24", "measure.control=false")


class _Timer(selectors.DefaultSelector):
    """Passes the time that it should wait, and a microsecond, without a wait."""

    now_s = 0.0

    def select(self, timeout=None):
        found = super().select(0)
        assert found or timeout is not None, "nothing is left to wait for"
        self.now_s += 1e-6 + (0 if found else timeout)
        return found


def simulate_remote(coroutine: Coroutine) -> Any:
    """The result of a coroutine whose requests wait for timers alone, on a simulated clock."""
    timer = _Timer()
    loop = asyncio.SelectorEventLoop(timer)
    loop.time = lambda: timer.now_s
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=lambda: loop) as runner:
        patch.setattr("specbench.serving.remote.time", SimpleNamespace(perf_counter=loop.time))
        return runner.run(coroutine)


class OneAtATime(Remote):
    """A server that answers one request after the other, with four tokens at the end; every fifth
    prompt fails.
    """

    def __init__(self) -> None:
        self.place, self.asked = asyncio.Lock(), []

    prepare = run = require_same_model = gap = None

    async def answer(self, prompt, limit, seed, emit, conversation):
        self.asked.append(prompt[0])
        async with self.place:
            await asyncio.sleep(SERVICE_S)
            if prompt[0] % 5 == 4:
                raise ValueError("this request alone")
            emit([5])
            emit([6, 7, 8])
        return lambda: Settled([5, 6, 7, 8], [(3, 4)])


OneAtATime.__abstractmethods__ = frozenset()


def served(places: int, ramp: int, measured: int, times=None):
    async def drive():
        method, closed = OneAtATime(), []
        questions = (
            SimpleNamespace(
                method=method, request=lambda n=n: Request([n], 9, None, 0), close=closed.append
            )
            for n in itertools.count()
        )
        server = RemoteServer(frozenset({2}), 64)
        found = await serve_remote(
            server, questions, times and iter(times), Stretch(places, ramp, measured)
        )
        return found, method.asked

    return simulate_remote(drive())


def test_waits_count_from_the_intended_arrival():
    """Arrivals every half service time: the n-th waits for n halves, in the server or, with one
    place, before it.
    """
    times = [place * SERVICE_S / 2 for place in range(40)]
    for places in (8, 1):
        found, _ = served(places, 0, 4, times)
        visits = found.measured()
        assert [visit.arrival_s for visit in visits] == times[:4]
        for number, visit in enumerate(visits):
            assert visit.end_s - visit.arrival_s == pytest.approx(
                (number + 2) * SERVICE_S / 2, abs=1e-3
            )
        assert (visits[1].begin_s < visits[0].end_s) == (places == 8)
        assert places == 8 or visits[3].begin_s - visits[3].arrival_s == pytest.approx(
            1.5 * SERVICE_S, abs=1e-3
        )


def test_a_closed_loop_holds_its_requests_and_counts_the_measured_part():
    found, asked = served(3, 3, 6)
    visits = found.measured()
    assert [visit.question.request().prompt for visit in visits] == [[3], [4], [5], [6], [7], [8]]
    assert [visit.admitted.error is not None for visit in visits] == [
        number == 4 for number in range(3, 9)
    ]
    # two more came in before the last measured one ended
    assert len(asked) == len(found.visits) == 11
    # and none is left for the next stretch
    assert all(visit.admitted.done for visit in found.visits)
    about = found.summary()
    assert about["requests"] / about["forwards"] > 2.5
    assert about["seconds"] == pytest.approx(8 * SERVICE_S, abs=SERVICE_S)
    assert all(list(visit.forwards) for visit in visits if visit.admitted.error is None)


def settings_of(plain, drafting, folder) -> list[str]:
    """A run of vanilla and ``server`` on these two servers."""
    urls = [f"method.vanilla.url={plain.url}", f"method.server.url={drafting.url}"]
    small = ["suite.limit=1", "suite.first=4", "report.plots=false", "measure.warmup=0"]
    place = f"hydra.run.dir={folder}"
    return ["model=server", "model.tokenizer=bundled:tiny", *urls, *small, place]


def test_a_run_under_load_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr("specbench.serving.remote.GAUGE_S", 0.01)
    with stand_in.serving("vllm", speculates=False) as plain, stand_in.serving("vllm") as drafting:
        plain.service_s, drafting.service_s = 0.06, 0.03
        given = [*settings_of(plain, drafting, tmp_path), *LONG]
        load = ["load=closed", "load.requests=2", "load.block=2", "load.slo.ttft_ms=1000"]
        assert run_command.main([*given, *load]) == 0
    records = read_run(tmp_path).records
    orders = {(record.block, record.position): record.method for record in records}
    assert [orders[key] for key in sorted(orders)] == ["vanilla", "server", "server", "vanilla"]
    for record in records:
        assert record.status == "ok"
        assert record.lossless.equal
        assert record.turns[0].accept == stand_in.steps_of(23, record.method == "server")
        least_s = {"vanilla": 0.06, "server": 0.03}[record.method]
        assert all(turn.prefill_s + turn.decode_s >= least_s for turn in record.turns)
        assert record.stretch["gauges"] == {"running": [3, 3], "waiting": [1, 1]}
    assert {max(turn.load["requests"]) for record in records for turn in record.turns} <= {1, 2}
    table = (tmp_path / "tables/load.md").read_text()
    assert all(f"| {title} |" in table for title in ("Speedup", "Running", "Waiting"))
    assert "KV cache" not in table


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_that_was_killed_goes_on_and_asks_nothing_twice(tmp_path):
    from runs.test_resume import begin, timeless

    with stand_in.serving("vllm", speculates=False) as plain, stand_in.serving("vllm") as drafting:
        killed, whole = (
            [*settings_of(plain, drafting, tmp_path / name), *LONG] for name in ("killed", "whole")
        )
        drafting.stops_at = 3
        process = begin(["specbench", *killed])
        assert drafting.stopped.wait(60)
        process.kill()
        process.join()
        done = [
            len(record.turns)
            for record in read_run(tmp_path / "killed").records
            if record.method == "server"
        ]
        drafting.release.set()
        assert run_command.main(killed) == 0
        asked = drafting.answered
        assert run_command.main(whole) == 0
    killed, whole = (read_run(tmp_path / name).records for name in ("killed", "whole"))
    assert [timeless(record) for record in killed] == [timeless(record) for record in whole]
    turns = sum(len(record.turns) for record in whole if record.method == "server")
    assert 0 < sum(done) < turns
    assert asked == drafting.stops_at + turns - sum(done)
