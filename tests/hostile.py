"""A server whose answers at one path never end, are far too long, or are not HTTP; at other paths it is ``stand_in``'s.

A mode is a generator of the bytes that are sent unchanged until the client leaves; ``PAUSE_S`` separates those of the
slow ones. ``server.hostile`` is the path, ``server.mode`` the mode's name, or a complete body. Requests for one token,
by which a server is tried before a run, are answered.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import time
import zlib
from collections.abc import Callable, Iterator

import stand_in

PAUSE_S = 0.02
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%s\r\n"
JSON, HTML, EVENTS, TEXT = b"application/json", b"text/html", b"text/event-stream", b"text/plain"
MUCH = 1 << 20


def forever(part: bytes, pause_s: float = 0.0) -> Iterator[bytes]:
    """The same bytes again and again, in large pieces unless they are slow."""
    whole = part if pause_s else part * (1 + MUCH // len(part))
    while True:
        yield whole
        time.sleep(pause_s)


def body(kind: bytes, part: bytes, begin: bytes = b"", more: bytes = b"", pause_s: float = 0.0) -> Iterator[bytes]:
    """An answer whose body has no end. more: headers."""
    yield HEAD % (kind, more) + begin
    yield from forever(part, pause_s)


def bomb(kind: bytes, name: bytes, window: int) -> Iterator[bytes]:
    """Zeros, compressed 1,000 times."""
    yield HEAD % (kind, b"Content-Encoding: %s\r\n" % name)
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    yield packer.compress(b" " * MUCH) + packer.flush(zlib.Z_FULL_FLUSH)  # after which the same bytes mean the same
    block = packer.compress(b" " * (MUCH << 4)) + packer.flush(zlib.Z_FULL_FLUSH)
    yield from forever(block)


def event(choice: dict) -> bytes:
    """A choice as an event."""
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def once(*parts: bytes) -> Iterator[bytes]:
    """These bytes, after which the connection is closed."""
    return iter(parts)


def silent() -> Iterator[bytes]:
    """Nothing, for long."""
    time.sleep(30)
    yield b""


STATUS = b"HTTP/1.1 200 OK\r\n"
ANSWERED = event({"text": "", "token_ids": [40] * 24, "finish_reason": "length"}) + b"data: [DONE]\n\n"

ANY: dict[str, Callable[[], Iterator[bytes]]] = {  # at every path
    "html": lambda: body(HTML, b"<p>word</p>"),
    "status_500": lambda: itertools.chain([b"HTTP/1.1 500 No\r\n\r\n"], forever(b"error ")),
    "status_500_slow": lambda: itertools.chain([b"HTTP/1.1 500 No\r\n\r\n"], forever(b"e", PAUSE_S)),
    "missing": lambda: once(b"HTTP/1.1 404 No\r\n\r\n"),
    "redirect": lambda: once(b"HTTP/1.1 302 Found\r\nLocation: /v1/models\r\nContent-Length: 0\r\n\r\n"),
    "chunked": lambda: body(JSON, b"5\r\n[1,1,\r\n", more=b"Transfer-Encoding: chunked\r\n"),
    "length": lambda: body(JSON, b"[1],", more=b"Content-Length: 999999999999999999\r\n"),
    "length_short": lambda: once(HEAD % (JSON, b"Content-Length: 99\r\n") + b"{}"),
    "gzip": lambda: bomb(JSON, b"gzip", 31),
    "gzip_events": lambda: bomb(EVENTS, b"gzip", 31),
    "deflate": lambda: bomb(JSON, b"deflate", 15),
    "not_gzip": lambda: body(JSON, b"{}", more=b"Content-Encoding: gzip\r\n"),
    "slow_body": lambda: body(JSON, b" ", pause_s=PAUSE_S),
    "slow_header": lambda: itertools.chain([STATUS], forever(b"x", PAUSE_S)),
    "slow_headers": lambda: itertools.chain([STATUS], forever(b"a: b\r\n", PAUSE_S)),
    "headers": lambda: itertools.chain([STATUS], forever(b"a: b\r\n")),
    "header": lambda: itertools.chain([STATUS, b"a: "], forever(b"b")),
    "continue": lambda: forever(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "slow_continue": lambda: forever(b"HTTP/1.1 100 Continue\r\n\r\n", PAUSE_S),
    "chunk_extension": lambda: body(JSON, b"x", b"1;", b"Transfer-Encoding: chunked\r\n"),
    "trailers": lambda: body(JSON, b"a: b\r\n", b"2\r\n{}\r\n0\r\n", b"Transfer-Encoding: chunked\r\n"),
    "not_http": lambda: forever(b"\x00\xff"),
    "closed": lambda: once(),
    "silent": silent,
}
STREAM: dict[str, Callable[[], Iterator[bytes]]] = {
    "events": lambda: body(EVENTS, event({"text": ""})),
    "empty_events": lambda: body(EVENTS, b"data:{}\n"),
    "comments": lambda: body(EVENTS, b": ping\n"),
    "slow_comments": lambda: body(EVENTS, b": ping\n", pause_s=PAUSE_S),
    "line": lambda: body(EVENTS, b"1,", b"data: ["),
    "slow_line": lambda: body(EVENTS, b"1,", b"data: [", pause_s=PAUSE_S),
    "deep": lambda: body(EVENTS, b"[", b"data: "),
    "texts": lambda: body(EVENTS, event({"text": "word " * 50})),
    "after_done": lambda: body(EVENTS, b"data: {}\n\n", ANSWERED),
    "histogram": lambda: once(
        HEAD % (EVENTS, b""),
        ANSWERED.replace(b"data: [DONE]\n\n", b"")
        + b'data: {"metrics": {"speculative_decoding": {"num_accepted_draft_tokens": 0, "num_spec_steps": 90,'
        b' "num_draft_tokens": 9, "acceptance_histogram": [900000000000]}}}\n\ndata: [DONE]\n\n',
    ),
}
COUNTERS = "".join(
    f"vllm:spec_decode_{name}_total 1.0\n" for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
) + "".join(
    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{place}"}} 1.0\n'
    for place in range(300_000)
)
METRICS: dict[str, Callable[[], Iterator[bytes]]] = {
    "page": lambda: body(TEXT, b"vllm:requests_total 1.0\n"),
    "positions": lambda: once(HEAD % (TEXT, b""), COUNTERS.encode()),
}
PACKED = gzip.compress(b'{"tokens": null}')
GOOD: dict[str, Callable[[], Iterator[bytes]]] = {
    "packed": lambda: once(HEAD % (JSON, b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(PACKED)) + PACKED),
}
MODES = ANY | STREAM | METRICS | GOOD


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
