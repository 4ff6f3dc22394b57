"""Answers over HTTP that never end, are far too long, are compressed, slow, or not HTTP.

Each mode is a generator of the bytes that are sent unchanged until the client leaves, of the content type that a valid
answer has. Those of ``ANY`` are bad answers at every path, those of ``STREAM`` and ``METRICS`` at one.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator

Mode = Callable[[bytes], Iterator[bytes]]
PAUSE_S = 0.02  # between the bytes of the slow modes
JSON, HTML, EVENTS, TEXT = b"application/json", b"text/html", b"text/event-stream", b"text/plain"
MUCH = 1 << 20
STATUS = b"HTTP/1.1 200 OK\r\n"


def head(kind: bytes, *more: bytes, status: bytes = b"200 OK") -> bytes:
    """The head of an answer. more: headers."""
    return b"\r\n".join([b"HTTP/1.1 " + status, b"Content-Type: " + kind, *more, b"", b""])


def whole(body: bytes | str, kind: bytes = JSON, *more: bytes, status: bytes = b"200 OK") -> Iterator[bytes]:
    """A complete answer. more: headers."""
    data = body.encode() if isinstance(body, str) else body
    yield head(kind, b"Content-Length: %d" % len(data), b"Connection: close", *more, status=status) + data


def forever(begin: bytes, part: bytes, pause_s: float = 0.0) -> Iterator[bytes]:
    """The same bytes again and again, in large pieces unless they are slow."""
    yield begin
    piece = part if pause_s else part * (1 + MUCH // len(part))
    while True:
        yield piece
        time.sleep(pause_s)


def bomb(kind: bytes, name: bytes, window: int) -> Iterator[bytes]:
    """Blanks without end, compressed 1,000 times."""
    yield head(kind, b"Content-Encoding: " + name)
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    first, block = (packer.compress(b" " * size) + packer.flush(zlib.Z_FULL_FLUSH) for size in (MUCH, MUCH << 4))
    yield from forever(first, block)  # after a flush the same bytes mean the same


def event(choice: dict) -> bytes:
    """A choice as an event."""
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def silent(kind: bytes) -> Iterator[bytes]:
    """Nothing, for long."""
    time.sleep(30)
    yield b""


CHUNKED, DONE = b"Transfer-Encoding: chunked", b"data: [DONE]\n\n"
ANSWERED = event({"text": "", "token_ids": [40] * 24, "finish_reason": "length"})

ANY: dict[str, Mode] = {
    "html": lambda kind: forever(head(HTML), b"<p>word</p>"),
    "status_500": lambda kind: forever(b"HTTP/1.1 500 No\r\n\r\n", b"error "),
    "status_500_slow": lambda kind: forever(b"HTTP/1.1 500 No\r\n\r\n", b"e", PAUSE_S),
    "missing": lambda kind: iter([b"HTTP/1.1 404 No\r\n\r\n"]),
    "redirect": lambda kind: iter([b"HTTP/1.1 302 Found\r\nLocation: /v1/models\r\nContent-Length: 0\r\n\r\n"]),
    "chunked": lambda kind: forever(head(kind, CHUNKED), b"5\r\n[1,1,\r\n"),
    "length": lambda kind: forever(head(kind, b"Content-Length: 999999999999999999"), b"[1],"),
    "length_short": lambda kind: iter([head(kind, b"Content-Length: 99") + b"{}"]),
    "gzip": lambda kind: bomb(JSON, b"gzip", 31),
    "gzip_events": lambda kind: bomb(EVENTS, b"gzip", 31),
    "deflate": lambda kind: bomb(kind, b"deflate", 15),
    "not_gzip": lambda kind: forever(head(kind, b"Content-Encoding: gzip"), b"{}"),
    "slow_body": lambda kind: forever(head(kind), b" ", PAUSE_S),
    "slow_header": lambda kind: forever(STATUS, b"x", PAUSE_S),
    "slow_headers": lambda kind: forever(STATUS, b"a: b\r\n", PAUSE_S),
    "headers": lambda kind: forever(STATUS, b"a: b\r\n"),
    "header": lambda kind: forever(STATUS + b"a: ", b"b"),
    "continue": lambda kind: forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "slow_continue": lambda kind: forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", PAUSE_S),
    "chunk_extension": lambda kind: forever(head(kind, CHUNKED) + b"1;", b"x"),
    "trailers": lambda kind: forever(head(kind, CHUNKED) + b"2\r\n{}\r\n0\r\n", b"a: b\r\n"),
    "not_http": lambda kind: forever(b"", b"\x00\xff"),
    "closed": lambda kind: iter(()),
    "silent": silent,
}
STREAM: dict[str, Mode] = {
    "events": lambda kind: forever(head(EVENTS), event({"text": ""})),
    "empty_events": lambda kind: forever(head(EVENTS), b"data:{}\n"),
    "comments": lambda kind: forever(head(EVENTS), b": ping\n"),
    "slow_comments": lambda kind: forever(head(EVENTS), b": ping\n", PAUSE_S),
    "line": lambda kind: forever(head(EVENTS) + b"data: [", b"1,"),
    "slow_line": lambda kind: forever(head(EVENTS) + b"data: [", b"1,", PAUSE_S),
    "deep": lambda kind: forever(head(EVENTS) + b"data: ", b"["),
    "texts": lambda kind: forever(head(EVENTS), event({"text": "word " * 50})),
    "after_done": lambda kind: forever(head(EVENTS) + ANSWERED + DONE, b"data: {}\n\n"),
    "histogram": lambda kind: iter([
        head(EVENTS) + ANSWERED
        + b'data: {"metrics": {"speculative_decoding": {"num_accepted_draft_tokens": 0, "num_spec_steps": 90,'
        b' "num_draft_tokens": 9, "acceptance_histogram": [900000000000]}}}\n\n' + DONE
    ]),
}  # fmt: skip
COUNTERS = "".join(
    f"vllm:spec_decode_{name}_total 1.0\n" for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
) + "".join(
    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{place}"}} 1.0\n'
    for place in range(300_000)
)
METRICS: dict[str, Mode] = {
    "page": lambda kind: forever(head(TEXT), b"vllm:requests_total 1.0\n"),
    "positions": lambda kind: iter([head(TEXT) + COUNTERS.encode()]),
}
