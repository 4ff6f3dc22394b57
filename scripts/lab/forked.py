"""Forked processes: each has what this one has imported."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

RAISED = 99  # the exit code of an exception that the call does not catch


def fork(call: Callable[[], int | None], out: Path | None = None, err: Path | None = None) -> int:
    """Make a call in a forked process; returns the process's id.

    Args:
        call: Returns the exit code; None is 0. After an exception the code is ``RAISED``, with a traceback.
        out: A file that gets the standard output, instead of this process's; standard input is then empty.
        err: A file that gets the standard errors; None: ``out``.
    """
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = RAISED
    try:
        if out:
            _redirect(out, err or out)
        code = call() or 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _redirect(out: Path, err: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    for number, path, mode in ((0, Path(os.devnull), os.O_RDONLY), (1, out, flags), (2, err, flags)):
        os.dup2(os.open(path, mode, 0o644), number)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), "utf-8", "backslashreplace")
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), "utf-8", "backslashreplace", write_through=True)
