"""The largest load under an objective, with real requests: the search, what it runs again, a queue
that only grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import stand_in
from load.test_remote import OneAtATime, simulate_remote

import specbench
from builders.records import record, turn
from builders.served import SERVICE_S, SHORT, largest_rate, simulate
from methods.pld import PromptLookup
from specbench.commands import run as run_command
from specbench.commands.runs import find_every_run
from specbench.decode.loop import Request
from specbench.input import InputError
from specbench.records.store import RECORDS, read_run
from specbench.report.locate import find_runs
from specbench.runs.execution import execute
from specbench.runs.job import job_of
from specbench.runs.search import LoadSearch
from specbench.serving.objective import (
    Boundary,
    Kept,
    Objective,
    find_boundary,
    judge,
    measure_capacity,
)
from specbench.serving.remote import RemoteServer, serve_remote
from specbench.serving.scheduler import NEVER, QueueGrew, Stretch
from specbench.serving.settings import LoadConfig, draw_arrivals
from specbench.types import CaseError


def drive(
    boundary: float,
    start: float,
    least: float,
    most: float,
    narrow: float | None,
    unknown: float = 1.0,
):
    """The end of a search whose loads hold up to a boundary and fail above ``unknown`` times that;
    and its loads.
    """
    search, tried = find_boundary(start, least, most, narrow), []
    signs: dict[float, int] = {}
    load = next(search)
    with contextlib.suppress(StopIteration):
        while True:
            tried.append(load)
            signs[load] = 1 if load <= boundary else -1 if load > unknown * boundary else 0
            load = search.send(signs[load])
    found = Boundary.of(signs, (), NEVER)
    return (found.holds, found.fails), tried


@pytest.mark.parametrize("start", [0.3, 4.0, 20.0, 90.0])
def test_the_boundary_is_found_from_either_side(start):
    (holds, fails), tried = drive(11.3, start, 0.25, NEVER, 1.05)
    assert holds <= 11.3 < fails <= 1.05 * holds
    assert len(tried) == len(set(tried)) < 16
    (holds, fails), _ = drive(11.3, start, 0.25, NEVER, 1.05, unknown=1.5)
    assert holds <= 11.3 < 1.5 * 11.3 < fails
    assert fails / holds < 1.5 * 1.05**2


@pytest.mark.parametrize(
    ("most", "expected"), [(64, (11, 12)), (12, (11, 12)), (11, (11, NEVER)), (1, (1, NEVER))]
)
def test_whole_numbers_up_to_the_largest(most, expected):
    found, tried = drive(11.5, 1.0, 1.0, most, None)
    assert found == expected
    assert max(tried) <= most


def test_no_load_holds():
    assert drive(0.1, 8.0, 1.0, NEVER, 1.05)[0] == (0.0, 1.0)
    assert drive(0.1, 1.0, 1.0, 64, None)[0] == (0.0, 1.0)


def test_a_verdict_waits_for_the_looks():
    assert judge([1.0] * 7, 16, 0.9) is None
    assert judge([1.0] * 8, 16, 0.9).sign == 1
    assert judge([1.0] * 8, 16, 0.99).sign == 0  # 128 requests cannot show it
    assert judge([1.0] * 32, 16, 0.99).sign == 1
    assert judge([0.5, 1.0] * 4, 16, 0.92).sign == 0
    found = judge([0.5, 1.0] * 8, 16, 0.92)
    assert (found.sign, found.stretches, found.share) == (-1, 16, 0.75)
    assert judge([0.5, 1.0] * 16, 16, 0.75).sign == 0


def made(block: int, wait_s: float, failed: type | None = None, token_s: float = 0.01):
    """A record of one request with these times to its first token and to the only later one, in a
    block.
    """
    found = record("pld", f"c{block}-{wait_s}", [turn([1], decode_s=token_s)])
    found.block = block
    own = found.turns[0]
    own.prefill_s, own.step_s = 0.0, [token_s]
    own.load = {"arrival_s": 0.0, "queue_s": wait_s, "requests": [1], "rows": [1]}
    if failed:
        found.status, found.error = (
            "error",
            {"type": failed.__name__, "message": "", "traceback": "", "turn": 0},
        )
    return found


def test_requests_that_keep_the_objective_by_their_records():
    records = [made(0, 0.1), made(0, 0.3), made(1, 0.1), made(1, 0.1, ValueError)]
    found = Kept.of(records, Objective(ttft=0.2))
    assert (found.shares, found.requests, found.given_up) == ((0.5, 0.5), 2, False)
    assert Kept.of([made(0, 0.1, QueueGrew)], Objective(ttft=0.2)) == Kept((0.0,), 1, True)
    assert Kept.of(records, Objective(itl=0.005)).shares == (0.0, 0.0)
    assert Kept.of(records, Objective(tpot=0.011)).shares == (1.0, 0.5)
    assert measure_capacity([made(0, 0.19), made(0, 0.39)], 3) == pytest.approx(3 / 0.3)
    assert measure_capacity([made(0, 0.1, ValueError)], 3) == 0


def test_a_limit_on_bursts_that_are_not_steps():
    """A server with such bursts has the longest of their times."""
    found, objective = made(0, 0.1), Objective(itl=0.02)
    found.turns[0].step_s = []
    for burst_s, share in ((0.015, 1.0), (0.025, 0.0)):
        found.turns[0].load["burst_s"] = burst_s
        assert Kept.of([found], objective).shares == (share,)


class SimulatedSearch(LoadSearch):
    """A search whose runs are those of one server with a fixed service time for each method
    (M/D/1).
    """

    service_s = {"vanilla": SERVICE_S, "pld": SERVICE_S / 2}  # noqa: RUF012

    def _run(self, names, stretches, folder, load):
        self.runs.append(folder)
        return {
            name: [
                each
                for block in range(stretches)
                for each in self._serve(name, block, load["rate"])
            ]
            for name in names
        }

    @functools.cache  # noqa: B019
    def _serve(self, name, block, rate):
        arrivals = None if rate is None else draw_arrivals("poisson", rate, block)
        stretch, service_s = Stretch(1, 200, self._load.block), self.service_s[name]
        served = simulate(SHORT, stretch, arrivals, lambda rows: service_s)
        waits_s = [visit.first_s - visit.arrival_s for visit in served.measured()]
        return [made(block, wait_s, token_s=0.0) for wait_s in waits_s]


def simulated(objective: Objective, cases: int = 0, **load) -> SimulatedSearch:
    job = SimpleNamespace(
        config=SimpleNamespace(
            load=LoadConfig(find="slo", requests=1, **{"kind": "poisson", "block": 200, **load}),
            decode=SimpleNamespace(seed=0),
        ),
        entries=[SimpleNamespace(name="vanilla"), SimpleNamespace(name="pld")],
        source=SimpleNamespace(suite=SimpleNamespace(cases=range(cases))),
    )
    return SimulatedSearch(job, None, objective)


def test_each_method_has_its_own_boundary_and_loads_are_shared():
    """The closed form of M/D/1 lies between the two loads of each method."""
    search = simulated(Objective(ttft=0.055, share=0.9), block=400)
    found = search.find()
    for name, service_s in SimulatedSearch.service_s.items():
        scale = SERVICE_S / service_s
        expected = scale * largest_rate(0.055 * scale, 0.9)
        assert found[name].holds <= expected <= found[name].fails
        assert found[name].fails / found[name].holds < 1.3
        assert found[name].saturated == pytest.approx(1 / service_s)
    assert search.runs[0] == "capacity"
    rates = [float(folder.removeprefix("rate-")) for folder in search.runs[1:]]
    assert max(rates) <= 1 / SimulatedSearch.service_s["pld"]
    assert len(set(rates)) < 16


def test_no_load_that_holds_is_one_at_which_the_queue_grows():
    """Under a limit that nothing breaks, the rates end at the capacity."""
    for name, found in simulated(Objective(ttft=1e9, share=0.9)).find().items():
        capacity = 1 / SimulatedSearch.service_s[name]
        assert found.holds < found.fails == found.saturated == pytest.approx(capacity)
        assert found.holds > capacity / 1.1
        assert f"holds at {found.saturated:.4g}" not in found.spell()


def test_limits_that_one_request_alone_breaks_end_the_search_of_the_method():
    """Without a queue a request takes the service time: one method's is longer than the limit, the
    other's is not.
    """
    limit = 0.75 * SimulatedSearch.service_s["vanilla"]
    assert SimulatedSearch.service_s["pld"] < limit
    search = simulated(Objective(ttft=limit, share=0.9))
    found = search.find()
    assert (found["vanilla"].holds, found["pld"].holds > 0) == (0, True)
    assert search.runs.count("alone") == 1
    slow = simulated(Objective(ttft=1e-6, share=0.9))
    assert {each.holds for each in slow.find().values()} == {0}
    assert [name for name in slow.runs if not name.startswith("rate-")] == ["capacity", "alone"]
    assert len(slow.runs) == 3


def test_requests_that_failed_are_named_with_what_sends_them_again(capsys):
    """A queue that only grew is the load's own, and no fault."""
    search = simulated(Objective(ttft=0.055, share=0.9), kind="closed")
    for failed in (CaseError, QueueGrew):
        search._run = lambda *_, failed=failed: {
            "pld": [made(block, 0.1, failed) for block in range(8)]
        }
        assert search._measure("requests-1", {"requests": 1}, ["pld"])["pld"].given_up == (
            failed is QueueGrew
        )
        out = capsys.readouterr().out
        assert ("8 cases of pld" in out and "run.retry=true" in out) == (failed is CaseError)


def test_a_suite_that_is_too_small_bounds_the_rates(capsys):
    search = simulated(Objective(ttft=1e9, share=0.9), cases=600, seconds=10)
    rates = []
    for found in search.find().values():
        rates.append(found.holds)
        assert 600 / 10 / 1.25 < found.holds < 600 / 10 * 1.25  # Poisson arrivals
    assert max(float(folder.removeprefix("rate-")) for folder in search.runs[1:]) == max(rates)
    assert (
        "requests arrive within load.seconds=10, the suite has 600 cases" in capsys.readouterr().out
    )


def test_a_trace_is_searched_from_its_own_rate(tmp_path):
    """A closed loop does not have the answers that the trace has recorded."""
    trace = tmp_path / "times.json"
    trace.write_text(json.dumps([0.05 * number for number in range(400)]))
    search = simulated(Objective(ttft=0.055, share=0.9), kind="trace", times=str(trace), block=50)
    found = search.find()
    assert search.runs[0] == "rate-20"
    assert "capacity" not in search.runs
    assert 0 < found["vanilla"].holds < found["pld"].holds < found["pld"].fails
    free = simulated(
        Objective(ttft=0.055, share=0.9), kind="trace", times=str(trace), answers="free", block=8
    )
    free.find()
    assert free.runs[0] == "capacity"


def test_a_search_needs_its_own_folder_and_enough_cases(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    given = [*replay(tmp_path), "load=closed", *SLO]
    assert run_command.main([*given, "load.slo.share=0.99"]) == 2
    expected = (
        "0.99: expected a share of requests from 0.5 to 0.9765625, as the 128 requests of a load"
    )
    assert expected in capsys.readouterr().err
    (tmp_path / "run/manifest.json").write_text("{}")
    assert run_command.main(given) == 2
    assert f"hydra.run.dir={tmp_path}/run: contains a run" in capsys.readouterr().err


def test_the_arrivals_of_a_search_are_not_counted_before_its_rates(tmp_path):
    settings = [
        *replay(tmp_path),
        "load=poisson",
        "load.find=slo",
        "load.slo.ttft_ms=5",
        "load.seconds=3",
    ]
    assert len(job_of(settings).source.suite.cases) == 4


def replay(folder: Path) -> list[str]:
    trace = folder / "t.jsonl"
    turns = [{"prompt_ids": [1, 5, 6, 5], "ids": [6, 5, 6, 2]}]
    trace.write_text("".join(json.dumps({"case": each, "turns": turns}) + "\n" for each in "abcd"))
    given = ["model=replay", f"model.trace={trace}", "model.tokenizer=bundled:tiny", "method=[pld]"]
    return [*given, f"hydra.run.dir={folder}/run", "report.plots=false"]


SLO = ("load.find=slo", "load.slo.ttft_ms=100000", "load.slo.share=0.7")


def count_lines(folder: Path) -> dict[Path, int]:
    return {path: len(path.read_text().splitlines()) for path in folder.rglob(RECORDS)}


def test_a_search_from_python(tmp_path, steady_time):
    """Killed in the last block of a load and asked for another objective, it has the same runs."""
    given = [*replay(tmp_path), "load=poisson", *SLO, "load.block=4"]
    assert specbench.run(*given).code == 0
    whole = count_lines(tmp_path)
    assert tmp_path / "run/capacity" / RECORDS in whole
    cut = max(whole)
    cut.write_text("".join(cut.read_text().splitlines(keepends=True)[:-3]))
    assert specbench.run(*given, "load.slo.ttft_ms=90000").code == 0
    assert count_lines(tmp_path) == whole
    row = pd.read_csv(tmp_path / "run/tables/objective.csv").set_index("method").loc["pld"]
    assert row["holds"] < row["fails"] <= row["saturated"]
    runs = {run.name for run in find_runs([tmp_path / "run"])}
    assert "latest" not in runs
    assert {run.relative_to(tmp_path).parts[0] for run in find_every_run(tmp_path)} == {"run"}


def test_a_load_has_other_stretches_for_each_method(tmp_path):
    """A method that joins a load, or is judged again, reads a run that has more stretches than it
    needs.
    """
    job = job_of([*replay(tmp_path), "load=poisson", *SLO, "load.block=4"])
    search, both = LoadSearch(job, tmp_path / "run", Objective()), ["pld", "vanilla"]
    for names, stretches in (
        (["vanilla"], 16),
        (["pld"], 8),
        (both, 8),
        (["vanilla"], 32),
        (["pld"], 16),
    ):
        records = search._run(names, stretches, "rate-900", {"rate": 900.0, "patience": 60.0})
        for name in names:
            shares = Kept.of(records[name], Objective(ttft=100)).shares
            assert len(shares) == len({record.round for record in records[name]}) >= stretches
    run = read_run(tmp_path / "run/rate-900")
    counts = {
        name: len({each.block for each in run.records if each.method == name})
        for name in ("vanilla", "pld")
    }
    assert counts == {"vanilla": 32 + 16, "pld": 32}  # vanilla again where pld joined


def test_a_search_is_only_that_of_run(tmp_path):
    with pytest.raises(InputError, match=r"load.find=slo: only `specbench run` searches"):
        execute(job_of([*replay(tmp_path), "load=closed", *SLO]), tmp_path / "run", lambda *_: None)


def test_a_search_names_a_method_of_which_no_request_could_be_decoded(
    tmp_path, monkeypatch, capsys
):
    def fail(*_):
        raise ValueError("never")

    monkeypatch.setattr(PromptLookup, "begin", fail)
    given = [*replay(tmp_path), "load=closed", *SLO, "load.block=4"]
    assert run_command.main(given) == 1
    out = capsys.readouterr().out
    assert "no case of pld could be decoded" in out
    assert "pld: holds" not in out
    assert run_command.main([*given[:-1], "load.find=null"]) == 2  # the folder has a search


def test_a_remote_queue_that_only_grows_is_given_up():
    """A service of 40 ms and an arrival each 4 ms: the sixth waits for more than 0.1 s, which ends
    the stretch.
    """

    async def serve(patience_s):
        method, now = OneAtATime(), asyncio.get_running_loop().time
        questions = (
            SimpleNamespace(
                method=method, request=lambda n=n: Request([5 * n], 9, None, 0), close=[].append
            )
            for n in range(10_000)
        )
        server = RemoteServer(frozenset({2}), 64)
        times = (0.004 * number for number in range(10_000))
        served = await serve_remote(
            server, questions, times, Stretch(2, 0, 30, patience_s=patience_s)
        )
        return served, now()

    served, took_s = simulate_remote(serve(0.1))
    assert served.given_up
    assert took_s < 0.4
    measured = served.measured()
    assert 0 < sum(visit.end_s < NEVER for visit in measured) < len(measured) < 30
    assert 0 < served.summary()["seconds"] < took_s
    whole, whole_s = simulate_remote(serve(NEVER))
    assert not whole.given_up
    assert len(whole.measured()) == 30
    assert whole_s > 1.19


class InTurn:
    """A place for one thread after the other, in the order in which they came; a lock of Python
    promises no order.
    """

    def __init__(self) -> None:
        self._changed, self._came, self._gone = threading.Condition(), itertools.count(), 0

    def __enter__(self) -> None:
        with self._changed:
            own = next(self._came)
            self._changed.wait_for(lambda: self._gone == own)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._gone += 1
            self._changed.notify_all()


async def offer(port: int, rate: float, count: int) -> list[float]:
    """[s] From the intended arrival, one each 1 / rate, to the first event, by sockets alone;
    nothing limits them.
    """
    body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 2, "stream": True}).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length:"
        b" %d\r\n\r\n" % len(body)
    )
    begun = time.perf_counter() + 0.05

    async def ask(at_s: float) -> float:
        await asyncio.sleep(begun + at_s - time.perf_counter())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body)
        await reader.readuntil(b"data: ")
        waited_s = time.perf_counter() - begun - at_s
        await reader.read()
        writer.close()
        return waited_s

    return await asyncio.gather(*(ask(number / rate) for number in range(count)))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_boundary_of_a_server_is_that_of_an_independent_generator(tmp_path):
    """The server takes one request at a time: at constant gaps nobody waits, until its queue only
    grows.
    """
    service_s, limit_s, share = 0.06, 0.15, 0.9  # long, as client and server share a processor
    with stand_in.serving("vllm", speculates=False) as server:
        server.service_s, server.place = service_s, InTurn()
        given = [
            "model=server",
            "model.tokenizer=bundled:tiny",
            "decode.max_new_tokens=2",
            "report.plots=false",
        ]
        given += [
            "measure.warmup=0",
            f"hydra.run.dir={tmp_path}/run",
            f"method.vanilla.url={server.url}",
            "method=[]",
        ]
        given += [
            "load=constant",
            "load.requests=4",
            "load.block=8",
            "load.find=slo",
            f"load.slo.share={share}",
        ]
        # of one turn each
        given += ["suite.limit=8", "suite.categories=[qa]", "measure.lossless=false"]
        assert run_command.main([*given, f"load.slo.ttft_ms={1e3 * limit_s}"]) == 0
        (row,) = pd.read_csv(tmp_path / "run/tables/objective.csv").to_dict("records")

        def keeps(rate: float) -> bool:
            waits_s = asyncio.run(offer(server.server_port, rate, 100))
            return sum(wait_s <= limit_s for wait_s in waits_s) >= share * len(waits_s)

        rate = 0.8 / service_s
        assert keeps(rate)
        while keeps(1.05 * rate):
            rate *= 1.05
    independent = 1.025 * rate  # between the last that keeps and the first that does not
    print(
        f"the harness {row['holds']}, queue grows at {row['saturated']}; independent"
        f" {independent:.4g}"
    )
    assert row["holds"] == pytest.approx(independent, rel=0.1)
    assert row["holds"] < row["saturated"] == pytest.approx(independent, rel=0.1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["load.find=slo"], "load.find=slo: no limit is set"),
        (
            ["load.find=slo", "load.slo.ttft_ms=5", "--dry-run"],
            "finds its loads while it runs; expected one load",
        ),
        (
            ["load.find=slo", "load.slo.ttft_ms=0"],
            "load.slo.ttft_ms=0.0: expected a finite number above 0",
        ),
    ],
)
def test_searches_that_are_refused(tmp_path, given, message, capsys):
    assert run_command.main([*replay(tmp_path), "load=closed", *given]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
