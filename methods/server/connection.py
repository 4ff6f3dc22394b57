"""HTTP to one server: JSON, text, and streams of events, each failure a ``CaseError`` with the
server's own message.

Every answer has a limit of bytes, after decompression, and of time, its headers included. Nothing
is tried twice. The key is read from the environment and is in no message.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp

from methods.server.replies import SHOWN, Event, Found, parse
from specbench.types import CaseError, InputError

KEY = "SPECBENCH_API_KEY"
CONNECT_S = 10.0
ANSWER_S = 20.0  # of an answer that is not streamed
START_S = 1.0  # of the text of an error, which comes with the headers
ANSWER_BYTES = 1 << 25  # of that; the longest page has a line for each label of each figure
METRICS = "/metrics"
# of an event, and of a token of the prompt
EVENT_BYTES, TOKEN_BYTES = 1 << 16, 1 << 10
ID_BYTES = 32  # of an id and its text, where each event repeats those before it
DATA, DONE = b"data:", b"[DONE]"
OK = 200
KEPT_S = 4.0  # of an idle connection; servers close theirs after five seconds or more
FAULTS = (aiohttp.ClientError, TimeoutError, OSError)


class Connection:
    """One server. timeout_s: between two reads. longest_s: of a whole request.

    closes: whether the server closes a connection after a streamed answer, whatever its headers
    say: a request that is sent on it immediately would be lost.
    """

    closes = False

    def __init__(self, url: str, timeout_s: float, longest_s: float) -> None:
        """url: may end with ``/v1``. Raises InputError for one that is not an address, or that has
        a password.
        """
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is not a number, half an address of IPv6
            known = False
        if not known:
            raise InputError(f"url={url}: expected http://HOST:PORT or https://HOST")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise InputError(
                f"url: {parts.scheme}://{parts.hostname} with a user, a password or a query, which"
                " the manifest would keep; expected the address alone, and a key in the"
                f" environment ({KEY})"
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout_s, self._longest_s = timeout_s, longest_s
        self._timeout = aiohttp.ClientTimeout(
            None, sock_connect=min(CONNECT_S, timeout_s), sock_read=timeout_s
        )
        self._runner = asyncio.Runner()
        # of what is timed; made on the loop that it belongs to
        self._kept: aiohttp.ClientSession | None = None

    def find(
        self, path: str, schema: type[Found], body: Mapping[str, Any] | None = None
    ) -> Found | None:
        """The JSON at ``path``, of a POST if there is a body; None if the server has none. Raises
        CaseError.
        """
        status, text = self.fetch(path, body)
        return parse(schema, self.url + path, text) if status == OK else None

    def read(self, path: str) -> str | None:
        """The text at ``path``; None if the server has none. Raises CaseError as ``fetch``."""
        status, text = self.fetch(path)
        return text.decode("utf-8", "replace") if status == OK else None

    def post(self, path: str) -> bool:
        """Returns whether the server takes a request without a body. Raises CaseError as
        ``fetch``.
        """
        return self.fetch(path, {})[0] // 100 == 2

    def fetch(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """As ``ask``, on the event loop that the streams belong to."""
        return cast(tuple[int, bytes], self.run(self.ask(path, body)))

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body of an answer that is not streamed; of an error, its beginning.

        Raises CaseError if no server answers, or if the answer is too long or too slow.
        """
        where = self.url + path
        longest_s = min(ANSWER_S, self._timeout_s)
        method = "GET" if body is None else "POST"
        try:
            async with (
                self._open() as session,
                asyncio.timeout(longest_s),
                session.request(method, where, json=body or None, allow_redirects=False) as answer,
            ):
                if answer.status != OK:
                    return answer.status, await _read_start(answer)
                return OK, await _read(answer, where)
        except FAULTS as error:
            raise _fault(where, error, longest_s, "a server that answers") from error

    def _open(self) -> aiohttp.ClientSession:
        """Connections of the loop that runs."""
        key = os.environ.get(KEY, "")
        if not (key.isascii() and key.isprintable()):
            raise InputError(
                f"{KEY}: has characters that no header may have; expected the key alone, without"
                " line ends"
            )
        kept: dict[str, Any] = (
            {"force_close": True} if self.closes else {"keepalive_timeout": KEPT_S}
        )
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, **kept),
            timeout=self._timeout,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=False,  # a proxy would be timed too
        )

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The outcome of ``work``, on the event loop that the streams belong to."""
        return _run_apart(self._runner.run, work)

    async def stream(
        self, path: str, body: Mapping[str, Any], schema: type[Found], tokens: int, prompt: int
    ) -> AsyncGenerator[Found, None]:
        """The events of a streamed answer of at most ``tokens`` to a prompt of ``prompt`` tokens,
        or characters.

        Raises CaseError for any that is cut, not JSON of the schema, an error, too long or too
        slow.
        """
        where = self.url + path
        self._kept = self._kept or self._open()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._kept.post(where, json=dict(body), allow_redirects=False)
            async with answer, aclosing(self._lines(where, answer, tokens, prompt)) as lines:
                kind = answer.headers.get("content-type", "")
                if answer.status != OK or not kind.startswith("text/event-stream"):
                    start = await _read_start(answer)
                    if answer.status != OK:
                        raise CaseError(
                            f"{where}: status {answer.status}: {show(start)}; expected status {OK}"
                        )
                    kind = kind or "no content type"
                    raise CaseError(
                        f"{where}: answers with {kind}: {show(start)}; expected a stream of events"
                    )
                done = False
                # to the end of the body: a connection that is left before is not used again
                async for line in lines:
                    data = line[len(DATA) :].strip()
                    done = done or data == DONE
                    if line.startswith(DATA) and not done:
                        found = parse(schema, where, data)
                        if isinstance(found, Event) and found.error:
                            raise CaseError(
                                f"{where}: the server's error: {str(found.error)[:SHOWN]}"
                            )
                        yield found
        except FAULTS as error:
            raise _fault(where, error, self._timeout_s, "events until its end") from error

    async def _lines(
        self, where: str, answer: aiohttp.ClientResponse, tokens: int, prompt: int
    ) -> AsyncGenerator[bytes, None]:
        left = most = prompt * TOKEN_BYTES + (tokens + 1) * (EVENT_BYTES + tokens * ID_BYTES)
        longest_s = min(self._longest_s, tokens * self._timeout_s)
        begun = time.monotonic()
        end, rest = begun + longest_s, bytearray()
        async for part in answer.content.iter_any():
            left -= len(part)
            now = time.monotonic()
            *lines, last = part.split(b"\n")
            if lines:
                lines[0], rest, begun = bytes(rest) + lines[0], bytearray(), now
            rest += last
            if now > end:
                raise CaseError(
                    f"{where}: the answer does not end in {longest_s:g} s; expected it to"
                )
            if now - begun > self._timeout_s:
                raise CaseError(
                    f"{where}: an event does not end in {self._timeout_s:g} s; expected it to"
                )
            if left < 0:
                raise CaseError(
                    f"{where}: more than {most} bytes for {tokens} tokens; expected fewer"
                )
            for line in lines:
                yield line
        yield bytes(rest)

    def close(self) -> None:
        """Close the sockets."""
        if self._kept is not None:
            self.run(self._kept.close())
            self._kept = None
        _run_apart(self._runner.close)


def _run_apart(call: Callable[..., Any], *given: Any) -> Any:
    """Returns the result of ``call``; on a separate thread if an event loop runs on this one, as in
    a notebook.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call(*given)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call, *given).result()


def show(text: bytes) -> str:
    """The beginning of an answer, in one line of a message."""
    return " ".join(text.decode("utf-8", "replace").split())[:SHOWN]


async def _read(answer: aiohttp.ClientResponse, where: str) -> bytes:
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > ANSWER_BYTES:
            raise CaseError(f"{where}: an answer of more than {ANSWER_BYTES} bytes; expected fewer")
    return bytes(body)


async def _read_start(answer: aiohttp.ClientResponse) -> bytes:
    """The first bytes of a body, as far as they can be read: its status or its type is the
    error.
    """
    body = bytearray()
    with suppress(*FAULTS):
        async with asyncio.timeout(START_S):
            async for part in answer.content.iter_any():
                body += part
                if len(body) > SHOWN:
                    break
    return bytes(body)


def _fault(where: str, error: Exception, limit_s: float, expected: str) -> CaseError:
    """The error of an answer that did not come, or not as HTTP."""
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        got = f"no connection ({getattr(error, 'strerror', None) or error})"
    elif isinstance(error, TimeoutError):
        got = f"no complete answer in {limit_s:g} s"
    elif isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, OSError)):
        got = "the connection was closed before the answer's end; the answer is incomplete"
    else:
        got = f"not HTTP ({show(getattr(error, 'message', str(error)).encode())})"
    return CaseError(f"{where}: {got}; expected {expected}")
