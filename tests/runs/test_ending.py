"""The end of an interrupted run: by signals, or because the reader of its output has closed."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys

import pytest
from report.conftest import build_run

from builders.runs import job_for
from specbench import report
from specbench.commands import report as report_command
from specbench.records.store import RunWriter, write_atomically
from specbench.runs import launch
from specbench.screen import FAILED, INTERRUPTED, Screen, ending_as_interrupts


@pytest.fixture(scope="module")
def job():
    return job_for("method=[pld]", "suite.limit=1")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("place", ["decoding", "report", "the other command"])
def test_a_signal_ends_it_as_an_interrupt(job, place, name, tmp_path, monkeypatch, capsys):
    number = getattr(signal, name)
    before = signal.signal(
        number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
    )

    def end(*given, **named):
        signal.raise_signal(number)
        raise AssertionError("it went on")

    monkeypatch.setattr(launch, "execute", end if place == "decoding" else lambda *_: [])
    monkeypatch.setattr(report, "build_report", end)
    monkeypatch.setattr(report_command, "build_report", end)
    try:
        ended = signal.getsignal(number)
        if place == "the other command":
            code = report_command.main([str(build_run(tmp_path / "finished", per_category=1))])
        else:
            code = launch.run_job(job, tmp_path / "run")
        assert signal.getsignal(number) is ended
    finally:
        signal.signal(number, before)
    assert code == INTERRUPTED
    printed = capsys.readouterr()
    assert "the same command " in " ".join((printed.out + printed.err).split())


LEFT = "can no longer be written ({}); what is done is safe, the same command continues"


@pytest.mark.parametrize("place", ["decoding", "report"])
@pytest.mark.parametrize(
    ("number", "name", "message"),
    [
        (errno.ENOSPC, None, LEFT.format("No space left on device")),
        (errno.EFBIG, "tables/a.csv", LEFT.format("tables/a.csv: File too large")),
        (errno.EACCES, "/weights", "the run ends: /weights: Permission denied"),
        (errno.ECONNRESET, None, ""),
    ],
)
def test_a_fault_of_the_disk(job, number, name, message, place, tmp_path, monkeypatch, capsys):
    """One without a file that is none of the disk's stays what it is."""

    def fail(*given, **named):
        raise OSError(number, os.strerror(number), name and str(tmp_path / "run" / name))

    monkeypatch.setattr(launch, "execute", fail if place == "decoding" else lambda *_: [])
    monkeypatch.setattr(report, "build_report", fail)
    with contextlib.nullcontext() if message else pytest.raises(ConnectionResetError):
        assert launch.run_job(job, tmp_path / "run") == FAILED
        printed = capsys.readouterr().out
        assert message in printed
        assert LEFT.partition(" (")[0] not in printed or str(tmp_path) in printed


def test_what_a_kill_left_is_removed(tmp_path):
    """Not a living process's file, nor one that is not of a report or a run, nor what lies behind a
    link.
    """
    nobody, living = 999_999_999, os.getppid()
    gone = (
        f".manifest.json.{nobody}.partial",
        f".pieces.json.{os.getpid()}.partial",
        f"plots/.a.png.{nobody}.partial",
    )
    kept = (
        f".a.csv.{living}.partial",
        ".a.csv.partial",
        f".a.iso.{nobody}.partial",
        f"b/.a.csv.{nobody}.partial",
    )
    for name in (*gone, *kept):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "tables").symlink_to("b")
    assert RunWriter(tmp_path).resume(["vanilla"]) == []
    assert [name for name in (*gone, *kept) if (tmp_path / name).exists()] == [*kept]


def test_a_fault_of_writing_names_the_file(tmp_path):
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(IsADirectoryError) as error:
        write_atomically(tmp_path / "a.csv", "1")
    assert error.value.filename == str(tmp_path / "a.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


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
    """As in ``specbench | head``, or without any output."""
    with stdout(None):
        Screen().print("nobody listens")
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
