"""HTTP to one server: JSON, text, and streams of events, each failure a ``CaseError`` with the server's own message.

Nothing is tried twice. The key is read from the environment and stands in no message.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

import httpx

from specbench.types import CaseError, InputError

KEY = "SPECBENCH_API_KEY"
LONGEST_LINE = 1 << 22  # [bytes] of an event; a stream without line ends is cut here
SHOWN = 300  # [characters] of a server's message
CONNECT_S = 10.0
DATA, DONE = b"data:", b"[DONE]"


class Connection:
    """One server. timeout_s: between two reads. longest_s: of a whole request."""

    def __init__(self, url: str, timeout_s: float, longest_s: float) -> None:
        self.url = _base(url)
        self._longest_s = longest_s
        key = os.environ.get(KEY)
        settings: dict[str, Any] = {
            "base_url": self.url,
            "timeout": httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            "trust_env": False,  # a proxy would be timed too
        }
        every = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(**settings, limits=every)  # of what is timed: it keeps its connections
        self._runner = asyncio.Runner()
        self._aside = httpx.Client(**settings, limits=httpx.Limits(max_keepalive_connections=0))

    def find(self, path: str) -> Any:
        """The JSON at ``path``; None where there is none. Raises CaseError where no server answers."""
        text = self.read(path)
        try:
            return None if text is None else json.loads(text)
        except ValueError:
            return None

    def read(self, path: str) -> str | None:
        """The text at ``path``; None where the server has nothing there."""
        try:
            answer = self._aside.get(path)
        except httpx.HTTPError as error:
            raise CaseError(f"{self.url}{path}: {_say(error)}; expected a server that answers") from error
        return answer.text if answer.status_code == httpx.codes.OK else None

    def post(self, path: str) -> bool:
        """Whether the server takes a request without a body."""
        try:
            return self._aside.post(path).is_success
        except httpx.HTTPError as error:
            raise CaseError(f"{self.url}{path}: {_say(error)}; expected a server that answers") from error

    def tokenize(self, body: Mapping[str, Any]) -> list[int] | None:
        """The ids that ``/tokenize`` answers; None where the server does not."""
        try:
            answer = self._aside.post("/tokenize", json=dict(body))
            ids = answer.json().get("tokens") if answer.is_success else None
        except (httpx.HTTPError, ValueError, AttributeError):
            return None
        return ids if isinstance(ids, list) and all(isinstance(token, int) for token in ids) else None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The outcome of ``work``, on the event loop that the streams belong to."""
        return self._runner.run(work)

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a streamed answer. Raises CaseError for any that is cut, no JSON, an error or too long."""
        where, end = f"{self.url}{path}", time.monotonic() + self._longest_s
        try:
            async with (
                self._client.stream("POST", path, json=dict(body)) as answer,
                aclosing(self._lines(where, answer, end)) as lines,
            ):
                await _require_stream(where, answer)
                done = False
                async for line in lines:  # to the end of the body: a connection that is left before is not used again
                    text = line[len(DATA) :].strip()
                    done = done or text == DONE
                    if line.startswith(DATA) and not done:
                        yield _event(where, text)
        except httpx.HTTPError as error:
            raise CaseError(f"{where}: {_say(error)}; the answer is incomplete") from error

    async def _lines(self, where: str, answer: httpx.Response, end: float) -> AsyncGenerator[bytes, None]:
        held = b""
        async for part in answer.aiter_bytes():
            if time.monotonic() > end:
                raise CaseError(f"{where}: the answer does not end in {self._longest_s:g} s; expected it to")
            *lines, held = (held + part).split(b"\n")
            if len(held) > LONGEST_LINE:
                raise CaseError(f"{where}: an event of more than {LONGEST_LINE} bytes; expected a stream of events")
            for line in lines:
                yield line
        yield held

    def close(self) -> None:
        """Close the sockets."""
        if not self._client.is_closed:
            self._runner.run(self._client.aclose())
        self._runner.close()
        self._aside.close()


def _base(url: str) -> str:
    """The address without ``/v1``. Raises InputError for one that is none, or that holds a password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"url={url}: expected http://HOST:PORT or https://HOST")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InputError(
            f"url: {parts.scheme}://{parts.hostname} with a user, a password or a query, which the manifest would"
            f" keep; expected the address alone, and a key in the environment ({KEY})"
        )
    return url.rstrip("/").removesuffix("/v1")


async def _require_stream(where: str, answer: httpx.Response) -> None:
    kind = answer.headers.get("content-type", "")
    if answer.status_code == httpx.codes.OK and kind.startswith("text/event-stream"):
        return
    text = " ".join((await answer.aread()).decode(errors="replace").split())[:SHOWN]
    if answer.status_code != httpx.codes.OK:
        raise CaseError(f"{where}: status {answer.status_code}: {text}")
    raise CaseError(f"{where}: answers with {kind or 'no content type'}: {text}; expected a stream of events")


def _event(where: str, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        shown = text[:SHOWN].decode(errors="replace")
        raise CaseError(f"{where}: an event is no JSON: {shown}; expected one") from error
    if not isinstance(found, dict) or found.get("error"):
        said = found.get("error") if isinstance(found, dict) else found
        raise CaseError(f"{where}: the server's error: {str(said)[:SHOWN]}")
    return found


def _say(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
