"""A stand-in for a serving engine: it speaks each dialect over loopback and replays answers with
known steps.

A fault is planted by name. The answer is a function of the prompt, so that two servers agree. As a
program it serves at a port until it is ended: ``python tests/stand_in.py PORT [plain]``, plain
without drafts.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHAT = "/v1/chat/completions"
STEPS = (3, 1, 2, 4, 1, 3)  # tokens of each step, over and over
DRAFT = 4
OWNERS = {
    "vllm": "vllm",
    "tensorrt_llm": "tensorrt_llm",
    "lmdeploy": "lmdeploy",
    "llama_cpp": "llamacpp",
    "sglang": "sglang",
    "openai": "someone",
}


def answer_of(prompt, limit: int, eos: int | None = None) -> list[int]:
    """Ids between 40 and 239, by the prompt and its length."""
    start = sum(prompt) % 200 if not isinstance(prompt, str) else sum(prompt.encode()) % 200
    return [40 + (start + 7 * place) % 200 for place in range(limit)]


def draw(limit: int, seed: int, faulty: bool) -> list[int]:
    """Ids 40 to 45; where verification is at fault, too often 40 from the second on."""
    rng = random.Random(seed)
    laws = [(8, 6, 4, 3, 2, 1), (16, 4, 3, 2, 2, 1) if faulty else (8, 6, 4, 3, 2, 1)]
    return [40 + rng.choices(range(6), laws[min(place, 1)])[0] for place in range(limit)]


def steps_of(count: int, speculates: bool) -> list[int]:
    """Tokens of each step behind the first token; the last is cut at the answer's end."""
    found: list[int] = []
    while sum(found) < count:
        size = STEPS[len(found) % len(STEPS)] if speculates else 1
        found.append(min(size, count - sum(found)))
    return found


class Handler(BaseHTTPRequestHandler):
    """One server; its settings are on ``self.server``."""

    protocol_version = "HTTP/1.1"
    cut = False  # in the middle of an answer
    # else a request of two small packets waits 40 ms for an acknowledgement
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Silent."""

    def _send(self, text: str, kind: str = "application/json", status: int = 200) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        server = self.server
        if self.path == "/v1/models":
            data = [{"id": "m", "object": "model", "owned_by": OWNERS[server.dialect]}]
            return self._send(json.dumps({"data": data}))
        if self.path == "/metrics" and server.start:
            return self._send(f"process_start_time_seconds {server.start}", "text/plain")
        if self.path == "/metrics" and server.counts:
            prefix = {"lmdeploy": "lmdeploy", "llama_cpp": "llamacpp"}.get(server.dialect, "vllm")
            lines = [
                f'{prefix}:spec_decode_{name}_total{{model="m"}} {value}'
                for name, value in server.counts.items()
            ]
            lines += [f"{prefix}:num_requests_running 3", f"{prefix}:num_requests_waiting 1"]
            return self._send("\n".join(lines), "text/plain")
        if self.path.startswith(("/server_info", "/get_server_info", "/props")):
            synthetic = '"synthetic"' if server.fault == "synthetic" else '"standard"'
            return self._send(
                f'{{"speculative_config": {{"rejection_sample_method": {synthetic}}}}}'
            )
        return self._send("{}", status=404)

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
        if self.path == "/flush_cache":
            return self._send("ok", "text/plain")
        if self.path == "/tokenize":
            return self._send(json.dumps({"tokens": server.reads}) if server.reads else "{}")
        if self.path not in ("/v1/completions", CHAT, "/generate", "/completion"):
            return self._send('{"detail": "Not Found"}', status=404)
        server.asked.append((self.path, body, dict(self.headers)))
        if server.fault == "no_stream":
            return self._send('{"choices": [{"text": "all at once"}]}')
        if server.fault == "error_500":
            return self._send('{"error": {"message": "CUDA out of memory"}}', status=500)
        prompt = body.get("prompt", body.get("input_ids", body.get("text")))
        prompt = server.write(body) if self.path == CHAT else prompt
        if server.fault == "no_ids" and not isinstance(prompt, str):
            return self._send('{"detail": "prompt must be a string."}', status=400)
        limit = (
            body.get("max_tokens")
            or body.get("n_predict")
            or body["sampling_params"]["max_new_tokens"]
        )
        self.scores = body.get("logprobs")
        with (
            server.place if limit > 1 and server.service_s else contextlib.nullcontext()
        ):  # one after the other: a known service time
            if limit > 1:
                server.answered += 1
                if server.answered == server.stops_at:
                    server.stopped.set()
                    server.release.wait(20)
                time.sleep(server.service_s)
            drawing = body.get("sampling_params", body)
            seed = drawing.get("seed", drawing.get("sampling_seed", 0))
            return self._stream(prompt, limit, seed if drawing.get("temperature") else None)

    def _stream(self, prompt, limit: int, seed: int | None) -> None:
        server = self.server
        more = {"too_many": 3, "context": -(limit // 2)}.get(server.fault, 0)
        ids = answer_of(prompt, limit + more)
        if server.fault == "other" and limit > 5:
            ids[5] += 1
        ids = [token + (server.fault == "weights") for token in ids]
        ids = ids if seed is None else draw(limit, seed, server.fault == "law")
        sizes = [1, *steps_of(len(ids) - 1, server.speculates)]
        if server.fault == "coalesced":
            joined = sizes[:1] + [
                sum(sizes[place : place + 2]) for place in range(1, len(sizes), 2)
            ]
        else:
            joined = sizes
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self._events(ids, sizes, joined):
            own = (
                self._as_chat(event, prompt) if self.path == CHAT and event != "[DONE]" else [event]
            )
            for each in own:
                self._write_chunk(b"data: " + each.encode() + b"\n\n")
        if not self.cut:
            self._write_chunk(b"")
        # which closes without a word, though it promises to keep the connection
        if server.dialect == "llama_cpp":
            self.wfile.flush()
            time.sleep(0.01)
            self.close_connection = True

    def _as_chat(self, event: str, prompt: list[int]) -> Iterator[str]:
        """An event of completions as those of chat completions; llama.cpp has its figures in one
        behind the end.
        """
        found = json.loads(event)
        if self.server.dialect == "llama_cpp":
            delta = {} if found["stop"] else {"content": " a"}
            yield json.dumps(
                {
                    "choices": [
                        {"delta": delta, "finish_reason": "length" if found["stop"] else None}
                    ]
                }
            )
            if found["stop"]:
                usage = {"prompt_tokens": len(prompt)}
                yield json.dumps({"choices": [], "usage": usage, "timings": found["timings"]})
            return
        for choice in found["choices"]:
            text = choice.pop("text")
            name = (
                "tool_calls"
                if self.server.fault == "tool_parser"
                else "reasoning"
                if "w1" in text
                else "content"
            )
            choice["delta"] = {name: [text] if name == "tool_calls" else text}
        if self.server.dialect == "vllm":
            found["prompt_token_ids"] = prompt
        elif self.server.dialect == "openai":
            found["usage"] = {"prompt_tokens": len(prompt)}
        yield json.dumps(found)

    def _write_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _events(self, ids: list[int], sizes: list[int], joined: list[int]) -> Iterator[str]:
        server, place = self.server, 0
        for number, size in enumerate(joined):
            if server.fault == "cut" and number == 2:
                self.close_connection = self.cut = True
                return
            if server.fault == "slow" and number == 1:
                server.release.wait(20)
            part, last = ids[place : place + size], number == len(joined) - 1
            place += size
            for event in self._chunk(
                part, place, sizes, last and server.fault != "no_finish", last
            ):
                yield server.change(json.dumps(event))
        self._count(sizes)
        yield "[DONE]"

    def figures(self, sizes: list[int]) -> tuple[int, int, int, list[int]]:
        """(steps, drafted, accepted, steps by accepted) of an answer as this server counts it."""
        steps = sizes[1:]
        bonus = int(self.server.fault == "bonus")
        accepted = [size - 1 + bonus for size in steps]
        histogram = [accepted.count(count) for count in range(DRAFT + 1 + bonus)]
        return len(steps), DRAFT * len(steps), sum(accepted), histogram

    def _count(self, sizes: list[int]) -> None:
        server = self.server
        if server.counts and server.speculates:
            steps, drafted, accepted, _ = self.figures(sizes)
            wrong = 1000 if server.fault == "wrong_counter" else 0
            for name, more in zip(server.counts, (steps, drafted, accepted + wrong), strict=True):
                server.counts[name] += more

    def _chunk(
        self, part: list[int], so_far: int, sizes: list[int], ended: bool, last: bool
    ) -> Iterator[dict]:
        server = self.server
        steps, drafted, accepted, histogram = self.figures(sizes)
        adds = last and server.speculates and server.per_request
        if server.dialect == "llama_cpp":
            for token in part:
                yield {"content": "x", "tokens": [token], "stop": False}
            if ended:
                timings = {"predicted_n": so_far} | (
                    {"draft_n": drafted, "draft_n_accepted": accepted} if adds else {}
                )
                yield {
                    "content": "",
                    "tokens": [],
                    "stop": True,
                    "stop_type": "limit",
                    "timings": timings,
                }
            return
        if server.dialect in ("sglang", "lmdeploy"):
            self.sent = [] if so_far == len(part) else self.sent
            self.sent += part
            meta = {
                "completion_tokens": so_far,
                "finish_reason": {"type": "length"} if ended else None,
            }
            if adds and server.dialect == "sglang":
                meta |= {
                    "spec_verify_ct": steps,
                    "spec_accept_token_num": accepted,
                    "spec_draft_token_num": drafted,
                }
                meta |= {"spec_accept_histogram": histogram}
            yield {"text": "x", "output_ids": list(self.sent), "meta_info": meta}
            return
        text = "" if server.dialect != "openai" else f" w{so_far}"
        choice = {"text": text, "finish_reason": "length" if ended else None}
        if server.dialect != "openai" and server.fault != "no_ids":
            choice |= {"token_ids": part}
        elif server.fault == "no_ids":
            choice["text"] = " a"
        if self.scores and last:
            best = {
                f"token_id:{token}": -0.7 - server.gap * (token % 2) for token in range(40, 241)
            }
            choice |= {"logprobs": {"top_logprobs": [best]}}
        if adds and server.dialect == "tensorrt_llm":
            choice["avg_decoded_tokens_per_iter"] = so_far / (steps + 1)
        yield {"choices": [choice]}
        if adds and server.dialect == "vllm":
            found = {
                "num_spec_steps": steps,
                "num_draft_tokens": drafted,
                "num_accepted_draft_tokens": accepted,
            }
            yield {
                "choices": [],
                "metrics": {"speculative_decoding": found | {"acceptance_histogram": histogram}},
            }


@contextlib.contextmanager
def serving(
    dialect="vllm",
    fault="",
    speculates=True,
    counts=True,
    per_request=True,
    handler=Handler,
    port=0,
) -> Iterator[ThreadingHTTPServer]:
    """A server on a port of loopback, 0 a free one, with its address as ``url``."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    server.dialect, server.fault, server.speculates, server.per_request = (
        dialect,
        fault,
        speculates,
        per_request,
    )
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    server.counts = dict.fromkeys(names, 0) if counts else {}
    server.change = lambda event: event  # its text, before it is sent
    server.write = lambda body: [5, 6, 7]  # a conversation as a prompt
    server.gap = 0.01  # [nats] between an even token and an odd one
    server.start, server.reads, server.service_s = 0.0, [], 0.0
    server.place, server.answered, server.stops_at = threading.Lock(), 0, -1
    server.stopped, server.release = threading.Event(), threading.Event()
    server.asked, server.url = [], f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.release.set()
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    with serving(speculates="plain" not in sys.argv, port=int(sys.argv[1])) as server:
        print(server.url, flush=True)
        threading.Event().wait()
