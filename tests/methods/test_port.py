"""The port: one outcome behind three backends, and an end to every wait."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
import torch

from actors import Diary, broken
from methods.parts.port import Port
from specbench.types import CaseError, InputError

# of a partner that answers, of one that does not; less than its sleep
PATIENCE_S, STUCK_S, LONG_S = 60.0, 2.0, 30.0
BACKENDS = ["inline", "thread", "process"]


@pytest.fixture(params=BACKENDS)
def port(request):
    port = Port(request.param, Diary, ("dear",), PATIENCE_S)
    yield port
    port.close()
    assert not port.alive


def test_answers_come_in_order_and_only_to_who_waits(port):
    assert port.ask("note", [1, 2]) == ["dear", [1, 2], 1]
    port.post("note", 5)  # nobody waits for this one
    first, second = port.post("note", 6), port.post("note", 7)
    assert port.take(second) == ["dear", 7, 4]
    assert port.take(first) == ["dear", 6, 3]  # whoever takes first
    assert not port._asked
    distributions = torch.rand(3, 4)
    assert torch.equal(port.ask("note", distributions)[1], distributions)
    with pytest.raises(CaseError, match="ValueError: asked to"):
        port.ask("fail")
    assert port.ask("note", 8) == ["dear", 8, 6]  # an error is one message's, the actor goes on


def test_inline_works_when_asked_and_the_others_at_once():
    for kind in ("inline", "thread"):
        worked = threading.Event()
        port = Port(kind, lambda worked: SimpleNamespace(work=worked.set), (worked,), PATIENCE_S)
        ticket = port.post("work")
        assert worked.wait(0 if kind == "inline" else PATIENCE_S) is (kind == "thread")
        port.take(ticket)
        assert worked.is_set()
        port.close()


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_stuck_partner_is_an_error_in_time_and_is_replaced(backend):
    port = Port(backend, Diary, ("",), STUCK_S)
    start = time.perf_counter()
    other = port.post("slow", 60, 1)
    with pytest.raises(CaseError, match="gave no answer for 2 s"):
        port.ask("note", 2)
    assert STUCK_S <= time.perf_counter() - start < LONG_S
    with pytest.raises(CaseError, match="is not running"):
        port.ask("note", 1)
    port.open()
    assert port.ask("note", 1) == ["", 1, 1]
    with pytest.raises(CaseError, match="lost before it answered"):
        port.take(other)  # asked of the lost one: its successor is not waited for
    assert port.alive
    port.close()


def test_killed_process_is_an_error_at_once_and_leaves_no_zombie():
    port = Port("process", Diary, ("",), PATIENCE_S)
    first = port._channel.worker.pid
    start = time.perf_counter()
    with pytest.raises(CaseError, match="ended with exit code 7"):
        port.ask("die")
    port.open()
    second = port._channel.worker.pid
    os.kill(second, signal.SIGKILL)
    time.sleep(0.2)
    with pytest.raises(CaseError, match="ended with exit code -9"):
        port.ask("note", 1)
    assert time.perf_counter() - start < PATIENCE_S  # which it would have taken twice
    port.open()
    assert port.ask("note", 1) == ["", 1, 1]
    third = port._channel.worker.pid
    port.close()
    assert len({first, second, third}) == 3
    left = [child.pid for child in psutil.Process().children()]
    assert not {first, second, third} & set(left)  # a zombie would still be a child


@pytest.mark.exhaustive
def test_a_process_that_stands_still_cannot_block_a_long_message():
    port = Port("process", Diary, ("",), STUCK_S)
    os.kill(port._channel.worker.pid, signal.SIGSTOP)
    start = time.perf_counter()
    with pytest.raises(CaseError, match=r"stuck|gave no answer"):
        port.ask("note", list(range(1_000_000)))
    assert time.perf_counter() - start < LONG_S
    assert not port.alive


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_partner_that_cannot_be_built_says_why(backend):
    with pytest.raises(InputError, match="draft=x: not there"):
        Port(backend, broken, ("input",), PATIENCE_S)
    with pytest.raises((CaseError, RuntimeError), match="no room"):
        Port(backend, broken, ("other",), PATIENCE_S)
