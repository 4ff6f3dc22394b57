"""A server over loopback whose answers are wrong, endless, slow or huge, as the path of its address says."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import socketserver
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from scripts.lab import hostile
from scripts.lab.forked import fork
from scripts.lab.hostile import EVENTS, HTML, JSON, TEXT, forever, head, whole
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
    **hostile.ANY, **hostile.STREAM, **hostile.METRICS,
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
    "counters without sense": lambda kind: whole(METRICS.replace(" 0\n", " 1e400\n"), TEXT),
    "counters of text": lambda kind: whole(METRICS.replace(" 0\n", " 1.2.3e-+\n"), TEXT),
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
        yield from whole(METRICS, TEXT)
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
