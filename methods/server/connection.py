"""HTTP to one server: JSON, text, and streams of events, each failure a ``CaseError`` with the server's own message.

Nothing is tried twice. The key is read from the environment and is in no message.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
from pydantic_core import from_json

from specbench.types import CaseError, InputError

KEY = "SPECBENCH_API_KEY"
LONGEST_LINE = 1 << 22  # [bytes] of an event; a stream without line ends is cut here
SHOWN = 300  # [characters] of a server's message
CONNECT_S = 10.0
DATA, DONE = b"data:", b"[DONE]"
OK = 200
KEPT_S = 4.0  # of an idle connection; servers close theirs after five seconds or more
FAULTS = (aiohttp.ClientError, TimeoutError, OSError)


class Connection:
    """One server. timeout_s: between two reads. longest_s: of a whole request."""

    def __init__(self, url: str, timeout_s: float, longest_s: float) -> None:
        """url: may end with ``/v1``. Raises InputError for one that is not an address, or that has a password."""
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is not a number, half an address of IPv6
            known = False
        if not known:
            raise InputError(f"url={url}: expected http://HOST:PORT or https://HOST")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise InputError(
                f"url: {parts.scheme}://{parts.hostname} with a user, a password or a query, which the manifest would"
                f" keep; expected the address alone, and a key in the environment ({KEY})"
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self._longest_s = longest_s
        self._timeout = aiohttp.ClientTimeout(None, sock_connect=min(CONNECT_S, timeout_s), sock_read=timeout_s)
        self._runner = asyncio.Runner()
        self._kept: aiohttp.ClientSession | None = None  # of what is timed; made on the loop that it belongs to

    def find(self, path: str) -> Any:
        """Return the JSON at ``path``, None if the server has none. Raises CaseError if no server answers."""
        text = self.read(path)
        try:
            return None if text is None else json.loads(text)
        except ValueError:
            return None

    def read(self, path: str) -> str | None:
        """The text at ``path``; None where the server has nothing there. Raises CaseError as ``find``."""
        status, text = self._once("GET", path)
        return text if status == OK else None

    def post(self, path: str) -> bool:
        """Returns whether the server takes a request without a body. Raises CaseError as ``find``."""
        return self._once("POST", path)[0] // 100 == 2

    def tokenize(self, body: Mapping[str, Any]) -> list[int] | None:
        """The ids that ``/tokenize`` answers; None where the server does not."""
        try:
            status, text = self._once("POST", "/tokenize", dict(body))
            ids = json.loads(text).get("tokens") if status == OK else None
        except (CaseError, ValueError, AttributeError):
            return None
        return ids if isinstance(ids, list) and all(isinstance(token, int) for token in ids) else None

    def _once(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Status and text of an answer that is not streamed."""

        async def ask() -> tuple[int, str]:
            async with (
                self._open() as session,
                session.request(method, f"{self.url}{path}", **_json_options(body)) as answer,
            ):
                return answer.status, await answer.text("utf-8", "replace")

        try:
            return cast(tuple[int, str], self.run(ask()))
        except FAULTS as error:
            raise CaseError(f"{self.url}{path}: {_describe(error)}; expected a server that answers") from error

    def _open(self) -> aiohttp.ClientSession:
        """Connections of the loop that runs."""
        key = os.environ.get(KEY)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S),
            timeout=self._timeout,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=False,  # a proxy would be timed too
        )

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The outcome of ``work``, on the event loop that the streams belong to."""
        return _run_apart(self._runner.run, work)

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a streamed answer. Raises CaseError for any that is cut, no JSON, an error or too long."""
        where, end = f"{self.url}{path}", time.monotonic() + self._longest_s
        self._kept = self._kept or self._open()
        try:
            async with (
                self._kept.post(where, **_json_options(dict(body))) as answer,
                aclosing(self._lines(where, answer, end)) as lines,
            ):
                kind = answer.headers.get("content-type", "")
                if answer.status != OK or not kind.startswith("text/event-stream"):
                    text = " ".join((await answer.text("utf-8", "replace")).split())[:SHOWN]
                    if answer.status != OK:
                        raise CaseError(f"{where}: status {answer.status}: {text}")
                    kind = kind or "no content type"
                    raise CaseError(f"{where}: answers with {kind}: {text}; expected a stream of events")
                done = False
                async for line in lines:  # to the end of the body: a connection that is left before is not used again
                    data = line[len(DATA) :].strip()
                    done = done or data == DONE
                    if line.startswith(DATA) and not done:
                        yield _event(where, data)
        except FAULTS as error:
            raise CaseError(f"{where}: {_describe(error)}; the answer is incomplete") from error

    async def _lines(self, where: str, answer: aiohttp.ClientResponse, end: float) -> AsyncGenerator[bytes, None]:
        rest = b""
        async for part in answer.content.iter_any():
            if time.monotonic() > end:
                raise CaseError(f"{where}: the answer does not end in {self._longest_s:g} s; expected it to")
            *lines, rest = (rest + part).split(b"\n")
            if len(rest) > LONGEST_LINE:
                raise CaseError(f"{where}: an event of more than {LONGEST_LINE} bytes; expected a stream of events")
            for line in lines:
                yield line
        yield rest

    def close(self) -> None:
        """Close the sockets."""
        if self._kept is not None:
            self.run(self._kept.close())
            self._kept = None
        _run_apart(self._runner.close)


def _run_apart(call: Callable[..., Any], *given: Any) -> Any:
    """Returns the result of ``call``; on a separate thread if an event loop runs on this one, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call(*given)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call, *given).result()


def _json_options(body: Any) -> dict[str, Any]:
    """Options of a request with this JSON, which are not redirected."""
    return {"json": body, "allow_redirects": False}


def _event(where: str, text: bytes) -> dict[str, Any]:
    try:
        found = from_json(text)
    except ValueError as error:
        shown = text[:SHOWN].decode(errors="replace")
        raise CaseError(f"{where}: an event is not JSON: {shown}; expected one") from error
    if not isinstance(found, dict) or found.get("error"):
        message = found.get("error") if isinstance(found, dict) else found
        raise CaseError(f"{where}: the server's error: {str(message)[:SHOWN]}")
    return found


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
