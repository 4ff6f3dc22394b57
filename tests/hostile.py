"""A server whose answers at one path are wrong, endless, slow or huge; at other paths it is
``stand_in``'s.

A mode is a generator of the bytes that are sent until the client leaves. Modes of ``ANY`` are bad
answers at every path, those of ``STREAM`` and ``METRICS`` at one. ``server.hostile`` is the path,
``server.mode`` the mode's name, or a complete body. Requests for one token, by which a server is
tried before a run, are answered.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import time
import zlib
from collections.abc import Callable, Iterator

import stand_in

Mode = Callable[[], Iterator[bytes]]
PAUSE_S = 0.02  # between the bytes of the slow modes
JSON, HTML, EVENTS, TEXT = b"application/json", b"text/html", b"text/event-stream", b"text/plain"
MUCH = 1 << 20
STATUS = b"HTTP/1.1 200 OK\r\n"


def head(kind: bytes, *more: bytes) -> bytes:
    """The head of an answer. more: headers."""
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Type: " + kind, *more, b"", b""])


def forever(begin: bytes, part: bytes, pause_s: float = 0.0) -> Iterator[bytes]:
    """The same bytes again and again, in large pieces unless they are slow."""
    yield begin
    piece = part if pause_s else part * (1 + MUCH // len(part))
    while True:
        yield piece
        time.sleep(pause_s)


def bomb() -> Iterator[bytes]:
    """Blanks without end, compressed 1,000 times."""
    yield head(JSON, b"Content-Encoding: gzip")
    packer = zlib.compressobj(wbits=31)
    first, block = (
        packer.compress(b" " * size) + packer.flush(zlib.Z_FULL_FLUSH) for size in (MUCH, MUCH << 4)
    )
    yield from forever(first, block)  # after a flush the same bytes mean the same


def event(choice: dict) -> bytes:
    """A choice as an event."""
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def silent() -> Iterator[bytes]:
    """Nothing, for long."""
    time.sleep(30)
    yield b""


CHUNKED, DONE = b"Transfer-Encoding: chunked", b"data: [DONE]\n\n"
ANSWERED = event({"text": "", "token_ids": [40] * 24, "finish_reason": "length"})

ANY: dict[str, Mode] = {
    "html": lambda: forever(head(HTML), b"<p>word</p>"),
    "status_500": lambda: forever(b"HTTP/1.1 500 No\r\n\r\n", b"error "),
    "missing": lambda: iter([b"HTTP/1.1 404 No\r\n\r\n"]),
    "redirect": lambda: iter(
        [b"HTTP/1.1 302 Found\r\nLocation: /v1/models\r\nContent-Length: 0\r\n\r\n"]
    ),
    "chunked": lambda: forever(head(JSON, CHUNKED), b"5\r\n[1,1,\r\n"),
    "length_short": lambda: iter([head(JSON, b"Content-Length: 99") + b"{}"]),
    "gzip": bomb,
    "not_gzip": lambda: forever(head(JSON, b"Content-Encoding: gzip"), b"{}"),
    "slow_body": lambda: forever(head(JSON), b" ", PAUSE_S),
    "slow_headers": lambda: forever(STATUS, b"a: b\r\n", PAUSE_S),
    "header": lambda: forever(STATUS + b"a: ", b"b"),
    "slow_continue": lambda: forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", PAUSE_S),
    "not_http": lambda: forever(b"", b"\x00\xff"),
    "closed": lambda: iter(()),
    "silent": silent,
}
STREAM: dict[str, Mode] = {
    "events": lambda: forever(head(EVENTS), event({"text": ""})),
    "empty_events": lambda: forever(head(EVENTS), b"data:{}\n"),
    "slow_comments": lambda: forever(head(EVENTS), b": ping\n", PAUSE_S),
    "line": lambda: forever(head(EVENTS) + b"data: [", b"1,"),
    "deep": lambda: forever(head(EVENTS) + b"data: ", b"["),
    "texts": lambda: forever(head(EVENTS), event({"text": "word " * 50})),
    "after_done": lambda: forever(head(EVENTS) + ANSWERED + DONE, b"data: {}\n\n"),
    "histogram": lambda: iter(
        [
            head(EVENTS)
            + ANSWERED
            + b'data: {"metrics": {"speculative_decoding": {"num_accepted_draft_tokens": 0,'
            b' "num_spec_steps": 90,'
            b' "num_draft_tokens": 9, "acceptance_histogram": [900000000000]}}}\n\n' + DONE
        ]
    ),
}
COUNTERS = "".join(
    f"vllm:spec_decode_{name}_total 1.0\n"
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
) + "".join(
    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{place}"}} 1.0\n'
    for place in range(300_000)
)
METRICS: dict[str, Mode] = {
    "page": lambda: forever(head(TEXT), b"vllm:requests_total 1.0\n"),
    "positions": lambda: iter([head(TEXT) + COUNTERS.encode()]),
}
PACKED = gzip.compress(b'{"tokens": null}')
LENGTH = b"Content-Length: %d" % len(PACKED)
MODES = (
    ANY
    | STREAM
    | METRICS
    | {"packed": lambda: iter([head(JSON, LENGTH, b"Content-Encoding: gzip") + PACKED])}
)


class Handler(stand_in.Handler):
    """``server.mode`` at ``server.hostile``."""

    def do_GET(self) -> None:
        """Sends the mode's bytes until the client leaves."""
        if self.path.partition("?")[0] != self.server.hostile:
            return super().do_GET()
        return self._attack()

    def do_POST(self) -> None:
        """As of GET."""
        raw = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path == self.server.hostile and json.loads(raw or b"{}").get("max_tokens") != 1:
            return self._attack()
        source, self.rfile = self.rfile, io.BytesIO(raw)
        super().do_POST()
        self.rfile = source
        return None

    def _attack(self) -> None:
        mode, self.close_connection = self.server.mode, True
        if isinstance(mode, bytes):
            return self._send(mode.decode())
        with contextlib.suppress(OSError):
            for part in MODES[mode]():
                self.connection.sendall(part)
        return None


@contextlib.contextmanager
def serving(path: str = "", mode: str = "", **options) -> Iterator[stand_in.ThreadingHTTPServer]:
    """A server that is hostile at ``path``."""
    with stand_in.serving(handler=Handler, **options) as server:
        server.hostile, server.mode = path, mode
        yield server
