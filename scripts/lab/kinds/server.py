"""A server over loopback whose answers are wrong, endless, slow or huge, as the path of its address says."""

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

from scripts.lab.kinds.damage import TWICE, mutants_of

ADDRESS = "http://fuzz.invalid"  # in commands; the server's own takes its place
GOOD = "good"
ENDPOINTS = {
    "models": ("/v1/models",), "metrics": ("/metrics",), "tokenize": ("/tokenize",),
    "info": ("/server_info", "/get_server_info", "/props"), "answer": ("/v1/completions", "/generate", "/completion"),
}  # fmt: skip
PROBE = "probe"  # the answers of one token, before a run begins
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llama_cpp": "llamacpp", "openai": "someone"}
MODELS = {name: {"data": [{"id": "m", "object": "model", "owned_by": owner}]} for name, owner in OWNERS.items()}
METRICS = "".join(f'vllm:spec_decode_{name}_total{{model="m"}} 0\n' for name in
                  ("num_drafts", "num_draft_tokens", "num_accepted_tokens"))  # fmt: skip
IDS, STEPS = [40, 41, 42, 43, 44, 45, 46, 47], (1, 3, 2, 2)
CHUNK = 1 << 20
JSON, EVENTS = "application/json", "text/event-stream"


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


def _head(status: str = "200 OK", kind: str = JSON, **more: str) -> bytes:
    fields = {"Content-Type": kind} | {name.replace("_", "-"): value for name, value in more.items()}
    return "\r\n".join([f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items()), "", ""]).encode()


def _whole(text: str | bytes, status: str = "200 OK", kind: str = JSON, **more: str) -> Iterator[bytes]:
    body = text.encode() if isinstance(text, str) else text
    yield _head(status, kind, Content_Length=str(len(body)), Connection="close", **more) + body


def _repeat(head: bytes, part: bytes, pause_s: float = 0.0) -> Iterator[bytes]:
    yield head
    while True:
        yield part
        time.sleep(pause_s)


def _redirect(request: bytes) -> Iterator[bytes]:
    path = request.split(b" ", 2)[1].decode()
    return _whole("", "307 Temporary Redirect", Location=path)


@cache
def _bomb() -> bytes:
    """3.5 GiB of blanks, packed; only the sum at their end is wrong."""
    packer = zlib.compressobj(9, wbits=31)
    first, block = (packer.compress(b" " * CHUNK) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + block * 3583 + packer.flush()


# Fault -> the bytes of an answer. Each is tried at each endpoint.
TRANSPORT: dict[str, Any] = {
    "endless body": lambda kind, request: _repeat(_head(kind=kind), b"x" * CHUNK),
    "endless lines": lambda kind, request: _repeat(_head(kind=kind), b"data: {}\n\n" * 1000),
    "endless comments": lambda kind, request: _repeat(_head(kind=kind), b": wait\n\n", 0.2),
    "endless 500": lambda kind, request: _repeat(_head("500 Error", "text/html"), b"<p>" * 100_000),
    "endless header": lambda kind, request: _repeat(b"HTTP/1.1 200 OK\r\nA: ", b"x" * CHUNK),
    "endless headers": lambda kind, request: _repeat(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 1000),
    "a byte a second": lambda kind, request: _repeat(_head(kind=kind), b" ", 1.0),
    "a header a second": lambda kind, request: _repeat(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n", 1.0),
    "1xx without end": lambda kind, request: _repeat(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.1),
    "silence": lambda kind, request: _repeat(b"", b"", 1.0),
    "silence after the head": lambda kind, request: _repeat(_head(kind=kind), b"", 1.0),
    "gzip bomb": lambda kind, request: _whole(_bomb(), kind=kind, Content_Encoding="gzip"),
    "wrong gzip": lambda kind, request: _whole(b"hello", kind=kind, Content_Encoding="gzip"),
    "unknown encoding": lambda kind, request: _whole(b"hello", kind=kind, Content_Encoding="zap"),
    "closed": lambda kind, request: iter(()),
    "cut body": lambda kind, request: iter([_head(kind=kind, Content_Length="1000") + b"{"]),
    "length of 2^63": lambda kind, request: iter([_head(kind=kind, Content_Length=str(1 << 63)) + b"{"]),
    "negative length": lambda kind, request: iter([_head(kind=kind, Content_Length="-5") + b"{}"]),
    "bad chunk": lambda kind, request: iter([_head(kind=kind, Transfer_Encoding="chunked") + b"zz\r\n{}\r\n"]),
    "no HTTP": lambda kind, request: iter([b"SSH-2.0-OpenSSH_9.6\r\n"]),
    "binary": lambda kind, request: _whole(bytes(range(256)) * 20, kind=kind),
    "steering": lambda kind, request: _whole("\x1b[31m\u202ered", "500 Error", "text/plain"),
    "steering reason": lambda kind, request: _whole("", "500 \x1b[31mred", "text/plain"),
    "markup": lambda kind, request: _whole("[bold red]x[/]", "500 Error", "text/plain"),
    "long 500": lambda kind, request: _whole("no " * 100_000, "500 Error", "text/plain"),
    **{f"status {code}": lambda kind, request, code=code: _whole('{"error": "no"}', f"{code} No")
       for code in (204, 400, 401, 404, 429, 500, 502, 503)},
    "redirect to itself": lambda kind, request: _redirect(request),
    "HTML": lambda kind, request: _whole("<html>Bad gateway</html>", kind="text/html"),
    "empty": lambda kind, request: _whole("", kind=kind),
    "unknown charset": lambda kind, request: _whole("{}", kind=f"{kind}; charset=nope"),
    "nested": lambda kind, request: _whole("[" * 200_000, kind=kind),
    "nested event": lambda kind, request: _whole(f"data: {'[' * 200_000}\n\n", kind=kind),
    "events that are numbers": lambda kind, request: _whole("data: 3\n\n" * 5, kind=kind),
    "300,000 positions": lambda kind, request: _whole("".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} 1\n' for place in range(300_000)
    ) + METRICS, kind="text/plain"),
    "counters without sense": lambda kind, request: _whole(METRICS.replace(" 0\n", " 1e400\n"), kind="text/plain"),
    "counters of text": lambda kind, request: _whole(METRICS.replace(" 0\n", " 1.2.3e-+\n"), kind="text/plain"),
}  # fmt: skip


class Handler(socketserver.BaseRequestHandler):
    """One connection with one request; the first part of its path is the mode."""

    def handle(self) -> None:
        """Read the request and send what its mode says, until the client leaves."""
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
        yield from [*TRANSPORT.values()][int(rest[1])](EVENTS if limit else JSON, request)
    elif kind == "j" and endpoint == tables()[int(rest[0])][3]:
        yield from _whole(tables()[int(rest[0])][4]())
    elif endpoint == "models":
        yield from _whole(json.dumps(MODELS[dialect]))
    elif endpoint == "metrics":
        yield from _whole(METRICS, kind="text/plain")
    elif limit:
        lines = [json.dumps(event) for event in events_of(dialect, limit, 1 if mode == GOOD else 2)]
        if number is not None and limit > 1:
            lines[number] = text
        yield from _whole("".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]), kind=EVENTS)
    else:
        yield from _whole("{}", "404 Not Found")


class Server(socketserver.ThreadingTCPServer):
    """Keeps no connection from ending the process."""

    daemon_threads = allow_reuse_address = True
    request_queue_size = 64


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The address of a server in another process, which ends with the block."""
    server = Server(("127.0.0.1", 0), Handler)
    if (pid := os.fork()) == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with contextlib.suppress(BaseException):
            server.serve_forever()
        os._exit(0)
    port = server.server_address[1]
    server.socket.close()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def free_address() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"http://127.0.0.1:{found.getsockname()[1]}"
