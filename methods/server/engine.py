"""A serving engine that the run starts for one of its rows, and ends with it."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from specbench.screen import LOADING
from specbench.types import InputError

PORT = "{port}"  # in a command: replaced by a free port
# in an option or a variable
SECRET = re.compile(r"(?:^|[-_])(?:keys?|token|secret|password)(?:=|$)", re.IGNORECASE)
END_S = 20.0  # between the request to end and the kill
POLL_S = 0.3
REPORT_S = 30.0  # between two lines about an engine that is not ready
SHOWN_LINES, SHOWN_BYTES = 20, 1 << 14
log, loading = logging.getLogger(__name__), logging.getLogger(LOADING)


class LaunchedEngine:
    """The process group of one engine. url: where it will serve, on loopback."""

    def __init__(self, command: str | Sequence[str]) -> None:
        """command: as a shell reads it, or its words; no shell runs it. Raises InputError."""
        shown = command if isinstance(command, str) else shlex.join(command)
        try:
            words = shlex.split(command) if isinstance(command, str) else list(command)
        except ValueError as error:
            raise InputError(
                f"command={shown}: {error}; expected a command as a shell reads it"
            ) from error
        if found := next((word for word in words if SECRET.search(word.partition("=")[0])), None):
            raise InputError(
                f"command: has {found.partition('=')[0]}, and the manifest would keep the key;"
                " expected the key in the environment of specbench, in the engine's variable"
                " (VLLM_API_KEY, LLAMA_API_KEY) and in SPECBENCH_API_KEY"
            )
        if not any(PORT in word for word in words):
            raise InputError(
                f"command={shown}: has no {PORT}; expected it in place of the port: ... --port"
                f" {PORT}"
            )
        if shutil.which(words[0]) is None:
            raise InputError(
                f"command={shown}: {words[0]} is not a program of this machine; expected the"
                " engine's"
            )
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._words = [word.replace(PORT, str(port)) for word in words]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, output: Path, answers: Callable[[], bool], longest_s: float) -> None:
        """Start the engine and return when it answers.

        Args:
            output: the file that its output is appended to.
            answers: whether it answers now.
            longest_s: [s] until then, at most.

        Raises:
            InputError: it ended before, or took longer; the message has the last lines of its
                output. Or another server has its port.
        """
        if answers():  # else the run would measure it
            raise InputError(
                f"command: another server answers at {self.url} already; expected a free port:"
                " repeat the command, which takes another one"
            )
        self._output = output
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as out:
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        begin = reported = time.monotonic()
        while True:
            now, code = time.monotonic(), self._process.poll()
            if code is not None or now - begin > longest_s:
                fault = (
                    f"ended with exit code {code}"
                    if code is not None
                    else f"is not ready after {longest_s:g} s"
                )
                self.end()
                raise InputError(
                    f"command: {self._words[0]} {fault}; expected an answer of status 200 at"
                    f" {self.url}/health or /v1/models. The last lines of"
                    f" {output}:\n{self._read_end()}"
                )
            if answers():
                break
            if now - reported > REPORT_S:
                loading.info(
                    "waiting for %s since %.0f s; its output is %s",
                    self._words[0],
                    now - begin,
                    output,
                )
                reported = now
            time.sleep(POLL_S)
        log.info("%s serves at %s after %.0f s", self._words[0], self.url, time.monotonic() - begin)

    @property
    def fault(self) -> str:
        """What ended the engine before the run did; empty if nothing did."""
        code = self._process.poll() if self._process else None
        return (
            ""
            if code is None
            else f"the engine ended with exit code {code} during the run; see {self._output}"
        )

    def end(self) -> None:
        """End the engine and its children."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + END_S
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            while time.monotonic() < deadline and self._is_alive():
                time.sleep(POLL_S / 3)
        self._process.wait()
        self._process = None

    def _is_alive(self) -> bool:
        """Returns whether a process of the engine's group runs; one that nobody has waited for does
        not.
        """
        assert self._process is not None
        self._process.poll()
        for each in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if (
                    os.getpgid(each.pid) == self._process.pid
                    and each.status() != psutil.STATUS_ZOMBIE
                ):
                    return True
        return False

    def _read_end(self) -> str:
        with self._output.open("rb") as file:
            file.seek(max(0, self._output.stat().st_size - SHOWN_BYTES))
            return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-SHOWN_LINES:])
