"""HTTP to one server: JSON, text, and streams of events, each failure a ``CaseError`` with the server's own message.

Nothing is tried twice. The key is read from the environment and stands in no message.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
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
        self._client = httpx.Client(**settings)  # of what is timed: it keeps its connection
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

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer. Raises CaseError for any that is cut, no JSON, an error or too long."""
        where, end = f"{self.url}{path}", time.monotonic() + self._longest_s
        try:
            with self._client.stream("POST", path, json=dict(body)) as answer:
                _require_stream(where, answer)
                texts = (line[len(DATA) :].strip() for line in self._lines(where, answer, end) if line.startswith(DATA))
                yield from (_event(where, text) for text in itertools.takewhile(lambda text: text != DONE, texts))
        except httpx.HTTPError as error:
            raise CaseError(f"{where}: {_say(error)}; the answer is incomplete") from error

    def _lines(self, where: str, answer: httpx.Response, end: float) -> Iterator[bytes]:
        held = b""
        for part in answer.iter_bytes():
            if time.monotonic() > end:
                raise CaseError(f"{where}: the answer does not end in {self._longest_s:g} s; expected it to")
            *lines, held = (held + part).split(b"\n")
            if len(held) > LONGEST_LINE:
                raise CaseError(f"{where}: an event of more than {LONGEST_LINE} bytes; expected a stream of events")
            yield from lines
        yield held

    def close(self) -> None:
        """Close the sockets."""
        self._client.close()
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


def _require_stream(where: str, answer: httpx.Response) -> None:
    kind = answer.headers.get("content-type", "")
    if answer.status_code == httpx.codes.OK and kind.startswith("text/event-stream"):
        return
    text = " ".join(answer.read().decode(errors="replace").split())[:SHOWN]
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
