"""A server over loopback whose answers are wrong, endless, slow or huge, as the path of its address says.

A mode is a generator of the bytes that are sent unchanged until the client leaves, of the content type that a valid
answer has. Those of ``ANY`` are bad answers at every path, those of ``STREAM`` and ``METRICS`` at one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import socketserver
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from scripts.lab.forked import fork
from scripts.lab.kinds.damage import TWICE, mutants_of

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


ADDRESS = "http://fuzz.invalid"  # in commands; the server's own takes its place
GOOD = "good"
ENDPOINTS = {
    "models": ("/v1/models",), "metrics": ("/metrics",), "tokenize": ("/tokenize",),
    "info": ("/server_info", "/get_server_info", "/props"), "answer": ("/v1/completions", "/generate", "/completion"),
}  # fmt: skip
PROBE = "probe"  # the answers of one token, before a run begins
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llama_cpp": "llamacpp", "openai": "someone"}
MODELS = {name: {"data": [{"id": "m", "object": "model", "owned_by": owner}]} for name, owner in OWNERS.items()}
COUNTED = "".join(f'vllm:spec_decode_{name}_total{{model="m"}} 0\n' for name in
                  ("num_drafts", "num_draft_tokens", "num_accepted_tokens"))  # fmt: skip
IDS, STEPS = [40, 41, 42, 43, 44, 45, 46, 47], (1, 3, 2, 2)


def events_of(dialect: str, limit: int, size: int = 2) -> list[dict[str, Any]]:
    """The events of a valid answer of ``limit`` tokens, ``size`` in each but the first."""
    found: list[dict[str, Any]] = []
    ids = IDS[:limit]
    for place in (0, *range(1, len(ids), size)):
        end = place + (size if place else 1)
        part, last = ids[place:end], end >= len(ids)
        if dialect == "llama_cpp":
            found.append({"content": "x", "tokens": part, "stop": False})
        elif dialect == "sglang":
            finish = {"type": "length"} if last else None
            meta = {"completion_tokens": len(ids[:end]), "finish_reason": finish, "spec_verify_ct": 3,
                    "spec_accept_token_num": 4, "spec_draft_token_num": 9}  # fmt: skip
            found.append({"text": "x", "output_ids": ids[:end], "meta_info": meta})
        else:
            own = {"token_ids": part} if dialect == "vllm" else {}
            choice = {
                "text": "" if own else "".join(map(chr, (token + 28 for token in part))),
                "finish_reason": "length" if last else None,
                **own,
            }
            found.append({"choices": [choice]})
    if dialect == "llama_cpp":
        timings = {"predicted_n": len(ids), "draft_n": 9, "draft_n_accepted": 4}
        found.append({"content": "", "tokens": [], "stop": True, "stop_type": "limit", "timings": timings})
    if dialect == "vllm":
        figures = {"num_spec_steps": 4, "num_draft_tokens": 9, "num_accepted_draft_tokens": 4,
                   "acceptance_histogram": [1, 2, 1]}  # fmt: skip
        found.append({"choices": [], "metrics": {"speculative_decoding": figures}})
    return found


@cache
def replies() -> tuple[tuple[str, str, bool, str, int, Callable[[], str]], ...]:
    """(dialect and place, fault, whether a type is wrong, dialect, number of the event, its JSON) of each bad event."""
    return tuple(
        (f"{dialect}.{number}.{place}", fault, wrong and fault != TWICE, dialect, number, text)
        for dialect in OWNERS
        for number in (0, -2, -1)
        for place, fault, wrong, text in mutants_of(events_of(dialect, len(IDS))[number])
    )


@cache
def tables() -> tuple[tuple[str, str, bool, str, Callable[[], str]], ...]:
    """(endpoint and place, fault, whether a type is wrong, endpoint, text) of bad answers that are no stream."""
    valid = {"models": MODELS["vllm"], "tokenize": {"tokens": IDS}, "info": {"speculative_config": {"method": "ngram"}}}
    return tuple(
        (f"{endpoint}.{place}", fault, wrong, endpoint, text)
        for endpoint, value in valid.items()
        for place, fault, wrong, text in mutants_of(value)
    )


# Fault -> the bytes of an answer of a content type. Each is tried at each endpoint.
TRANSPORT: dict[str, Any] = {
    **ANY, **STREAM, **METRICS,
    "silence after the head": lambda kind: forever(head(kind), b"", 1.0),
    "wrong gzip": lambda kind: whole("hello", kind, b"Content-Encoding: gzip"),
    "unknown encoding": lambda kind: whole("hello", kind, b"Content-Encoding: zap"),
    "length of 2^63": lambda kind: iter([head(kind, b"Content-Length: %d" % (1 << 63)) + b"{"]),
    "negative length": lambda kind: iter([head(kind, b"Content-Length: -5") + b"{}"]),
    "bad chunk": lambda kind: iter([head(kind, b"Transfer-Encoding: chunked") + b"zz\r\n{}\r\n"]),
    "binary": lambda kind: whole(bytes(range(256)) * 20, kind),
    "steering": lambda kind: whole("\x1b[31m\u202ered", TEXT, status=b"500 Error"),
    "steering reason": lambda kind: whole("", TEXT, status=b"500 \x1b[31mred"),
    "markup": lambda kind: whole("[bold red]x[/]", TEXT, status=b"500 Error"),
    "long 500": lambda kind: whole("no " * 100_000, TEXT, status=b"500 Error"),
    **{f"status {code}": lambda kind, code=code: whole('{"error": "no"}', status=b"%d No" % code)
       for code in (204, 400, 401, 404, 429, 500, 502, 503)},
    "HTML": lambda kind: whole("<html>Bad gateway</html>", HTML),
    "empty": lambda kind: whole("", kind),
    "unknown charset": lambda kind: whole("{}", kind + b"; charset=nope"),
    "nested": lambda kind: whole("[" * 200_000, kind),
    "nested event": lambda kind: whole(f"data: {'[' * 200_000}\n\n", kind),
    "events that are numbers": lambda kind: whole("data: 3\n\n" * 5, kind),
    "counters without sense": lambda kind: whole(COUNTED.replace(" 0\n", " 1e400\n"), TEXT),
    "counters of text": lambda kind: whole(COUNTED.replace(" 0\n", " 1.2.3e-+\n"), TEXT),
}  # fmt: skip


class Handler(socketserver.BaseRequestHandler):
    """One connection with one request; the first part of its path is the mode."""

    def handle(self) -> None:
        """Read the request and send the answer of its mode, until the client leaves."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            self.request.settimeout(120)
            request = self._read()
            path = request.split(b" ", 2)[1].decode()
            _, mode, rest = path.split("/", 2)
            for part in answer_of(mode, f"/{rest}", request):
                self.request.sendall(part)

    def _read(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.request.recv(65536) or b"\r\n\r\n"
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
        )
        while len(body) < length:
            body += self.request.recv(65536) or bytes(length)
        return head + b"\r\n\r\n" + body


def answer_of(mode: str, path: str, request: bytes) -> Iterator[bytes]:
    """The bytes that answer a request. mode: ``good`` or as ``bad.calls`` writes it."""
    kind, *rest = mode.split(".")
    endpoint = next((name for name, paths in ENDPOINTS.items() if path.partition("?")[0] in paths), "")
    dialect, number, text, limit = rest[0] if kind == "d" else "vllm", None, "", 0
    if endpoint == "answer":
        given: Mapping[str, Any] = json.loads(request.partition(b"\r\n\r\n")[2])
        limit = int(given.get("max_tokens") or given.get("n_predict") or given["sampling_params"]["max_new_tokens"])
        endpoint = "answer" if limit > 1 else PROBE
    if kind == "r":
        _, _, _, dialect, number, make = replies()[int(rest[0])]
        text = make()
    if kind == "t" and endpoint == rest[0]:
        yield from [*TRANSPORT.values()][int(rest[1])](EVENTS if limit else JSON)
    elif kind == "j" and endpoint == tables()[int(rest[0])][3]:
        yield from whole(tables()[int(rest[0])][4]())
    elif endpoint == "models":
        yield from whole(json.dumps(MODELS[dialect]))
    elif endpoint == "metrics":
        yield from whole(COUNTED, TEXT)
    elif limit:
        lines = [json.dumps(event) for event in events_of(dialect, limit, 1 if mode == GOOD else 2)]
        if number is not None and limit > 1:
            lines[number] = text
        yield from whole("".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]), EVENTS)
    else:
        yield from whole("{}", status=b"404 Not Found")


class Server(socketserver.ThreadingTCPServer):
    """Keeps no connection from ending the process."""

    daemon_threads = allow_reuse_address = True
    request_queue_size = 64


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The address of a server in another process, which ends with the block."""
    server = Server(("127.0.0.1", 0), Handler)

    def serve() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        server.serve_forever()

    pid = fork(serve)
    port = server.server_address[1]
    server.socket.close()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def free_port() -> int:
    """Return an unused port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
