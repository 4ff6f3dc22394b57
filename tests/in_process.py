"""A command run in this process: what it prints and returns, without the seconds of a fresh import."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run_main(main: Callable[[], object], *arguments: object, name: str = "specbench") -> Done:
    """A command's ``main`` with these arguments."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", [name, *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main()
        except SystemExit as end:
            code = end.code
    return Done(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())
