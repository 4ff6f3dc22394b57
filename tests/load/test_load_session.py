"""Runs under load, of recorded answers: each request decodes as it does alone, whoever shares its
forwards.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from builders.records import write_json_lines
from builders.runs import by_case, execute_job, job_for
from methods.pld import _Lookup
from specbench.decode.budgets import Controller
from specbench.decode.lengths import Bandit
from specbench.decode.loop import Transcript
from specbench.decode.together import SharedServer
from specbench.method import Method
from specbench.records.record import CaseRecord
from specbench.records.store import RECORDS
from specbench.runs.load_session import require_memory
from specbench.serving.settings import LoadConfig
from specbench.types import InputError

pytestmark = pytest.mark.usefixtures("steady_time")
LOADED = ("load=closed", "load.requests=3", "load.block=5", "load.ramp=2", "load.chunk=7")
METHODS = ("method=[pld,sam,cacheback_no_frozen]", "model.tokenizer=bundled:tiny")


def decode(
    folder: Path, trace: Path, *overrides: str, stop_after: int | None = None
) -> dict[tuple, CaseRecord]:
    settings = ("model=replay", f"model.trace={trace}", *METHODS, "measure.warmup=0", *overrides)
    return by_case(execute_job(folder, *settings, stop_after=stop_after))


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    """Twelve cases that repeat themselves, every third of two turns."""
    drawn, lines = random.Random(5), []
    for number in range(12):
        phrase = [drawn.randrange(5, 40) for _ in range(8)]
        turns, prompt = [], [1, 2, number + 3, *phrase]
        for _ in range(1 + (number % 3 == 0)):
            ids = [token for _ in range(4) for token in (*phrase, drawn.randrange(5, 40))][
                : drawn.randrange(12, 36)
            ]
            turns.append({"prompt_ids": prompt, "ids": ids})
            prompt = [*prompt, *ids, 4]
        lines.append({"case": str(number), "category": "qa", "turns": turns})
    return write_json_lines(tmp_path_factory.mktemp("trace") / "trace.jsonl", lines)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, trace):
    return decode(tmp_path_factory.mktemp("alone") / "r", trace)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, trace):
    return decode(tmp_path_factory.mktemp("loaded") / "r", trace, *LOADED)


def work_of(records: dict[tuple, CaseRecord]) -> dict[tuple, list]:
    """The values of a record that do not depend on a clock."""
    return {
        key: [
            (turn.ids, turn.accept, turn.proposed, turn.fed, turn.sources) for turn in record.turns
        ]
        for key, record in records.items()
    }


def test_requests_decode_as_they_do_alone(alone, loaded):
    assert work_of(loaded) == work_of(alone)


def test_a_state_that_requests_share_would_change_what_is_accepted(
    tmp_path, trace, alone, monkeypatch
):
    monkeypatch.setattr(Method, "private", lambda method: method)
    assert work_of(decode(tmp_path / "r", trace, *LOADED)) != work_of(alone)


def test_stretches_alternate_and_records_hold_the_load(loaded):
    orders: dict[int, list[str]] = {}
    for record in loaded.values():
        orders.setdefault(record.block, [""] * 4)[record.position] = record.method
        assert record.stretch["forwards"] > 0
        assert record.stretch["seconds"] > 0
        for turn in record.turns:
            assert len(turn.load["requests"]) == len(turn.accept) == len(turn.step_s)
            assert max(turn.load["requests"]) <= 3
            assert all(rows >= fed for rows, fed in zip(turn.load["rows"], turn.fed, strict=True))
    assert orders[0] == orders[1][::-1] == orders[2]
    full = [
        count
        for record in loaded.values()
        for turn in record.turns
        for count in turn.load["requests"]
    ]
    # the load is kept up until the last measured request ends
    assert full.count(3) > 0.7 * len(full)


@pytest.mark.parametrize("most", [20, 1 << 16], ids=["", "without a bound, the wrong variant"])
def test_the_log_of_a_server_is_bounded(tmp_path, trace, alone, monkeypatch, steady_time, most):
    """No answer has more than 36 steps. While steps are counted, the clock of the server stands
    still.
    """
    sizes, counting = [], []

    def leave(self, shared, real=SharedServer.leave):
        counting.append(True)
        found = real(self, shared)
        counting.clear()
        sizes.append(max(len(self._steps), len(self._left)))
        return found

    def count(self, *given, real=Transcript.count):
        steady_time.sleep(100.0 if counting else 0.0)
        real(self, *given)

    monkeypatch.setattr("specbench.decode.together.MOST_LOGGED", most)
    monkeypatch.setattr(SharedServer, "leave", leave)
    monkeypatch.setattr(Transcript, "count", count)
    records = decode(tmp_path / "r", trace, *LOADED, "load.block=12")
    assert work_of(records) == work_of(alone)
    assert (max(sizes) <= 36) == (most == 20)
    assert max(record.stretch["seconds"] for record in records.values()) < 100


def test_one_request_that_fails_is_its_own_error_row(tmp_path, trace, alone, monkeypatch):
    real = _Lookup.observe

    def observe(self, step):
        if self.broken:
            raise ValueError("this request alone")
        real(self, step)

    def propose(self, context, budget, real=_Lookup.propose):
        self.broken = context[2] == 3 + 4  # case 4
        return real(self, context, budget)

    monkeypatch.setattr(_Lookup, "broken", False, raising=False)
    monkeypatch.setattr(_Lookup, "observe", observe)
    monkeypatch.setattr(_Lookup, "propose", propose)
    records = decode(tmp_path / "r", trace, *LOADED)
    assert [key for key, record in records.items() if record.status != "ok"] == [("pld", "4")]
    assert "this request alone" in records["pld", "4"].error["message"]
    rest = {key: work for key, work in work_of(records).items() if key != ("pld", "4")}
    assert rest == {key: work for key, work in work_of(alone).items() if key != ("pld", "4")}


def test_a_run_that_was_cut_goes_on_at_its_block(tmp_path, trace, loaded):
    decode(tmp_path / "r", trace, *LOADED, stop_after=1)
    path = tmp_path / "r" / RECORDS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + lines[0][:50])  # half a line, and half a block before it
    records = decode(tmp_path / "r", trace, *LOADED)
    assert len(path.read_text().splitlines()) == len(loaded)
    assert work_of(records) == work_of(loaded)
    # 20 of the first block, 7 of the next
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:27]))
    assert work_of(decode(tmp_path / "r", trace, *LOADED)) == work_of(loaded)


def test_a_queue_that_only_grows_ends_its_stretch_alone(
    tmp_path, trace, alone, monkeypatch, steady_time
):
    """A thousand arrivals a second, and pld takes 10 ms a step: its users wait in the end,
    vanilla's do not.
    """

    def propose(self, context, budget, real=_Lookup.propose):
        steady_time.sleep(0.01)
        return real(self, context, budget)

    monkeypatch.setattr(_Lookup, "propose", propose)
    load = (
        "load=constant",
        "load.rate=1000",
        "load.requests=1",
        "load.block=12",
        "load.ramp=0",
        "load.patience=0.4",
    )
    records = decode(tmp_path / "r", trace, *load)
    lost = {key for key, record in records.items() if record.error}
    assert {method for method, _ in lost} == {"pld"}
    assert 0 < len(lost) < 12
    assert {records[key].error["type"] for key in lost} == {"QueueGrew"}
    rest = {key: work for key, work in work_of(records).items() if key not in lost}
    assert rest == {key: work for key, work in work_of(alone).items() if key not in lost}


def test_a_stretch_by_time_measures_what_arrives_in_it(tmp_path, trace, alone):
    """250 arrivals a second, one each 4 ms: six within 22 ms of the first of them, and what is in
    flight ends.
    """
    load = ("load=constant", "load.rate=250", "load.requests=3", "load.seconds=0.022")
    records = decode(tmp_path / "r", trace, *load)
    assert sorted(Counter(record.block for record in records.values()).values()) == [6 * 4] * 2
    assert work_of(records) == work_of(alone)
    with pytest.raises(
        InputError, match="251 requests arrive in the first stretch, and the suite has 12 cases"
    ):
        job_for("model=replay", f"model.trace={trace}", *METHODS, *load[:3], "load.seconds=1.002")


def test_an_answer_ends_where_its_arrival_was_recorded_to_end(tmp_path, trace, alone):
    """Stretches of one case before the measured four: the first takes arrivals 0 to 4, the next one
    5 to 9.
    """
    tokens = [3, 5, 7, 9, 11, 13, 2]
    rows = [f"{0.002 * place},{count}\n" for place, count in enumerate(tokens)]
    times = tmp_path / "times.csv"
    times.write_text("time_s,answer_tokens\n" + "".join(rows))
    load = (
        "load=trace",
        f"load.times={times}",
        "load.requests=3",
        "load.ramp=1",
        "load.block=4",
        "load.rate=300",
    )
    records = decode(tmp_path / "r", trace, *load)
    for (method, case), record in records.items():
        block, place = divmod(int(case), 4)
        limit = tokens[(5 * block + 1 + place) % len(tokens)]
        assert record.block == block
        for cut, whole in zip(record.turns, alone[method, case].turns, strict=True):
            assert len(cut.ids) == min(limit, len(whole.ids))
            assert cut.ids == whole.ids[: len(cut.ids)]
    assert work_of(decode(tmp_path / "free", trace, *load, "load.answers=free")) == work_of(alone)


@pytest.mark.parametrize("budget", ["equal", "score", "controlled"])
def test_a_budget_changes_drafts_and_no_answer(tmp_path, trace, alone, loaded, budget):
    shared = () if budget == "controlled" else ("load.nodes=7",)
    records = decode(tmp_path / "r", trace, *LOADED, f"load.budget={budget}", *shared)
    answers = {key: [turn.ids for turn in record.turns] for key, record in records.items()}
    assert answers == {key: [turn.ids for turn in record.turns] for key, record in alone.items()}
    assert work_of(records) != work_of(loaded)
    if budget != "controlled":
        rows = [
            rows
            for record in records.values()
            for turn in record.turns
            for rows in turn.load["rows"]
        ]
        assert max(rows) == 3 + 7


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("load=closed", "load.requests=5000"),
            "load.requests=5000: expected a whole number from 1 to 4096",
        ),
        (
            ("load=poisson", "load.rate=1e-9"),
            r"load.rate=1e-09: the 48 requests of a stretch .* at most 86400 s",
        ),
        (
            ("load=closed", "suite.part=1/2"),
            "suite.part: expected the whole suite with load=closed",
        ),
        (
            ("load=closed", "decode.first_draft=prefill"),
            "decode.first_draft: expected after with load=closed",
        ),
        (
            ("load=closed", "method.pld.reset=category"),
            "method.pld.reset=category: requests of several categories",
        ),
    ],
)
def test_what_no_load_serves_is_refused(trace, overrides, message):
    with pytest.raises(InputError, match=message):
        job_for("model=replay", f"model.trace={trace}", *METHODS, *overrides)


class _Turns(Controller):
    """Drafts in three steps, then in none of three."""

    asked = 0

    def share(self, requests, most):
        super().share(requests, most)
        _Turns.asked += 1
        return [0 if _Turns.asked // 3 % 2 else most] * len(requests)


def test_steps_that_a_drafter_left_out_leave_no_trace(tmp_path, trace, monkeypatch):
    """It drafts as if nothing had been requested and each step reported; while nothing drafts,
    nothing is requested.
    """
    monkeypatch.setattr("specbench.runs.load_session.make_budgets", lambda *_: _Turns())
    calls = {0: 0, 256: 0}
    real = _Lookup.propose

    def propose(self, context, budget):
        calls[budget] += 1
        return real(self, context, budget)

    monkeypatch.setattr(_Lookup, "propose", propose)

    def work(name):
        _Turns.asked, calls[0] = 0, 0
        return work_of(decode(tmp_path / name, trace, *LOADED))

    paused = work("paused")
    left_out = calls[0]
    monkeypatch.setattr(Method, "pauses", False)
    assert work("asked") == paused
    assert left_out < calls[0] / 2
    monkeypatch.undo()
    monkeypatch.setattr("specbench.runs.load_session.make_budgets", lambda *_: _Turns())
    monkeypatch.setattr(
        "specbench.decode.together.SharedRequest.missed", property(lambda _: [], lambda *_: None)
    )
    assert work("forgetful") != paused


def test_a_policy_of_draft_lengths_acts_within_the_loads_budget(
    tmp_path, trace, alone, monkeypatch
):
    arms = itertools.cycle((0, 1, 5))  # the times of a machine would choose otherwise
    monkeypatch.setattr(Bandit, "ARMS", (0, 1, 5))
    monkeypatch.setattr(Bandit, "_best", lambda _: next(arms))
    records = decode(
        tmp_path / "r", trace, *LOADED, "decode.length=bandit", "load.budget=equal", "load.nodes=12"
    )
    for key, record in records.items():
        assert [turn.ids for turn in record.turns] == [turn.ids for turn in alone[key].turns]
    assert (
        1
        <= max(
            depth for record in records.values() for turn in record.turns for depth in turn.depth
        )
        <= 5
    )


@pytest.mark.parametrize(
    "fault", [None, RuntimeError("can't allocate memory"), torch.OutOfMemoryError("of a GPU")]
)
def test_a_load_without_memory_is_refused_before_it_begins(fault):
    def batch(requests, tokens):
        if fault is not None:
            raise fault
        return SimpleNamespace(nbytes=lambda: requests * tokens << 40, end=lambda: None)

    engine = SimpleNamespace(batch=batch, context=2048, device=torch.device("cpu"))
    with pytest.raises(
        InputError,
        match=r"load\.requests=64: there is no memory for so many requests of 2048 tokens",
    ):
        require_memory(LoadConfig("closed", 64), engine)
