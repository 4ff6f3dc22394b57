"""The end and the output of a command: exit codes, the message of an error, progress, signals, a
closed terminal.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rich.console import Console
from rich.text import Text

from specbench.names import hide_secrets, printable

# Exit codes of every command. FAILED: a method without a decoded case, violations in float32 or
# float64, a full disk, a lost rank, a failed job, a report that could not be sent. USAGE: wrong
# input.
DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
# errors of a disk that was writable before
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
LONGEST_WORD, LONGEST_MESSAGE = 400, 1800  # [characters] of an error
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")
# a scheduler's and a closed terminal's; the latter is not everywhere
ENDING = ("SIGTERM", "SIGHUP")


def _shorten(text: str, most: int) -> str:
    """A text without its middle if it is longer than ``most`` characters."""
    half = most // 3
    return (
        text if len(text) <= most else f"{text[:half]}...({len(text)} characters)...{text[-half:]}"
    )


def fail(message: str, program: str = "specbench") -> int:
    """Print what is wrong with the input of a program, without the middle of what is long; returns
    the exit code.
    """
    print(printable(f"{program}: error: {shorten(message)}"), file=sys.stderr)
    return USAGE


def name_unwritten(error: OSError) -> str:
    """Returns 'FILE: ' of an error of writing, for standard output if it takes no line, '' if it is
    unknown.
    """
    if error.filename is None:
        try:
            print(flush=True)
        except OSError:
            return "standard output: "
    return f"{error.filename}: " if error.filename else ""


def shorten(message: str) -> str:
    """A message without keys in its URLs, and without the middle of its long words and of
    itself.
    """
    return _shorten(shorten_words(hide_secrets(message)), LONGEST_MESSAGE)


def shorten_words(text: str) -> str:
    """A text whose long words lack their middle."""
    return _LONG_WORD.sub(lambda found: _shorten(found[0], LONGEST_WORD), text)


class Screen(Console):
    """A console that continues without output when its reader, such as ``head``, has gone."""

    def __init__(self, **options: Any) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        super().__init__(**options)

    def on_broken_pipe(self) -> None:
        """Print nothing from here on; the library would end the program."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# name of the log of the steps of loading, which a run's display shows
LOADING = "specbench.loading"


@contextlib.contextmanager
def forwarding(show: Callable[[str], None], module: str) -> Iterator[None]:
    """Pass what a module logs of its progress to ``show``, and to no other handler."""
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: show(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(module)
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


@contextlib.contextmanager
def showing(console: Console, what: str, module: str) -> Iterator[None]:
    """Show ``what`` is done: on a terminal with what ``module`` logs, until it ends; else in one
    line.
    """
    if not console.is_terminal:
        console.print(Text(what))
    with (
        console.status(Text(what)) as status,
        forwarding(lambda text: status.update(Text(f"{what}: {text}")), module),
    ):
        yield


@contextlib.contextmanager
def ending_as_interrupts() -> Iterator[None]:
    """SIGTERM and SIGHUP end what runs inside as Ctrl-C does; one that is ignored (nohup) stays
    so.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {}
    for number in (getattr(signal, name) for name in ENDING if hasattr(signal, name)):
        with contextlib.suppress(ValueError):  # only the main thread may
            if signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
