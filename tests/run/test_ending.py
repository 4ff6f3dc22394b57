"""How a run ends that is not let to its end: signals, and readers of its output that have gone."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys

import pytest

from compose import job_for
from specbench import launch
from specbench.screen import Screen, ending_as_interrupts

JOB = ("method=[pld]", "suite.limit=1", "decode.max_new_tokens=8", "measure=quick", "measure.warmup=0")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_run_as_an_interrupt(name, tmp_path, monkeypatch, capsys):
    number = getattr(signal, name)
    before = signal.signal(number, signal.default_int_handler)  # under nohup it would be ignored

    def execute(job, directory, observe):
        signal.raise_signal(number)
        raise AssertionError("the run went on")

    monkeypatch.setattr(launch, "execute", execute)
    try:
        assert launch.run_job(job_for(*JOB), tmp_path / "run") == launch.INTERRUPTED
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert "the same command goes on" in " ".join(capsys.readouterr().out.split())


def test_a_signal_that_is_ignored_stays_so(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_as_interrupts():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@contextlib.contextmanager
def stdout(stream):
    kept, sys.stdout = sys.stdout, stream
    try:
        yield
    finally:
        sys.stdout = kept


def test_a_reader_that_has_gone_ends_nothing():
    """As in ``specbench | head``."""
    read, write = os.pipe()
    os.close(read)
    with stdout(io.TextIOWrapper(os.fdopen(write, "wb"), encoding="utf-8")):
        screen = Screen()
        for _ in range(3):
            screen.print("and on")
        assert screen.quiet
        sys.stdout.close()  # what is left is flushed into nothing


def test_a_locale_without_unicode():
    out = io.BytesIO()
    with stdout(io.TextIOWrapper(out, encoding="ascii")):
        Screen().print("5 \N{MICRO SIGN}s \N{EN DASH}")
        sys.stdout.flush()
        assert out.getvalue() == b"5 \\xb5s \\u2013\n"


def test_no_output_at_all():
    with stdout(None):
        Screen().print("nobody listens")
