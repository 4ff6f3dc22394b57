"""The requests and the events of each serving engine; docs/servers.md cites every field.

A dialect is a class with no state: ``body`` of a request, ``read`` of an event, and what is done before one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from methods.server.acceptance import REQUEST, DraftReport, whole
from methods.server.connection import Connection
from specbench.types import CaseError, InputError

SCORED = 5  # tokens whose log-probabilities are requested, vLLM's default limit is 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. prompt: (T,) token ids, or text where the server takes no ids. drawing: temperature and the rest."""

    model: str
    prompt: list[int] | str
    limit: int
    drawing: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """An event of an answer. ids: emitted by it, None where the server sends text only.

    finish: stop | length, in the last one. report: the server's figures for the whole request's drafts.
    """

    ids: Sequence[int] | None = None
    text: str = ""
    finish: str | None = None
    report: DraftReport | None = None


class OpenAI:
    """``/v1/completions`` of any server: text is streamed, and ids where the server sends them."""

    name = "openai"
    path = "/v1/completions"
    steps = True  # a chunk is a step, unless several were sent together
    counts_drafts = False  # metrics without counters of drafts: it does not speculate
    info: tuple[str, ...] = ()  # where it reports how it was started
    owner = ""  # its models' ``owned_by``; empty: any server is of this kind
    probe: str | None = None  # a path that only this kind of server has
    isolates = False  # True if no cached prefix of an earlier prompt can speed up a request

    @classmethod
    def speaks(cls, connection: Connection, models: Mapping[str, Any]) -> bool:
        """Returns whether the server is of this kind. models: its first of ``/v1/models``."""
        known = not cls.owner or models.get("owned_by") == cls.owner
        return known or bool(cls.probe and connection.find(cls.probe))

    def prepare(self, connection: Connection) -> bool:
        """Empty the server's prefix cache, before the clock starts; whether no earlier prompt can help this one."""
        return self.isolates

    def body(self, question: Asked) -> dict[str, Any]:
        """The request's JSON."""
        return {
            "model": question.model,
            "prompt": question.prompt,
            "max_tokens": question.limit,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.0,
            **question.drawing,
        }

    def read(self, event: Mapping[str, Any], seen: int) -> Chunk:
        """Read one event of the stream. seen: the number of ids that earlier events returned."""
        choice = (event.get("choices") or [{}])[0]
        return Chunk(
            choice.get("token_ids"), choice.get("text") or "", choice.get("finish_reason"), self.read_report(event)
        )

    async def score(self, connection: Connection, model: str, context: Sequence[int]) -> dict[int, float]:
        """Token -> log-probability after ``context``, of the best few; nothing where the server sends no ids."""
        return {}

    def tokenize(self, connection: Connection, model: str, text: str) -> list[int] | None:
        """The ids that the server reads ``text`` as; None where it does not report them."""
        return None

    def read_report(self, event: Mapping[str, Any]) -> DraftReport | None:
        """The figures for the request's drafts in an event."""
        return None


class VLLM(OpenAI):
    """Ids by ``return_token_ids``; acceptance by ``--per-request-spec-decode-metrics``; a salt keeps prefixes apart."""

    name, owner = "vllm", "vllm"
    counts_drafts = isolates = True  # by the salt of each request
    info = ("/server_info?config_format=json",)

    def body(self, question: Asked) -> dict[str, Any]:
        """Return the JSON body of a request."""
        return super().body(question) | {"return_token_ids": True, "cache_salt": uuid.uuid4().hex}

    async def score(self, connection: Connection, model: str, context: Sequence[int]) -> dict[int, float]:
        """Return log-probabilities of the next token; ``return_tokens_as_token_ids`` names them ``token_id:N``."""
        body = self.body(Asked(model, list(context), 1)) | {"logprobs": SCORED, "return_tokens_as_token_ids": True}
        found: dict[int, float] = {}
        async for event in connection.stream(self.path, body):
            best = ((event.get("choices") or [{}])[0].get("logprobs") or {}).get("top_logprobs") or []
            named = ((name.removeprefix("token_id:"), score) for each in best[:1] for name, score in each.items())
            found |= {int(name): score for name, score in named if name.isdecimal()}
        return found

    def tokenize(self, connection: Connection, model: str, text: str) -> list[int] | None:
        """Return the ids of a text, from ``/tokenize``."""
        return connection.tokenize({"model": model, "prompt": text, "add_special_tokens": False})

    def read_report(self, event: Mapping[str, Any]) -> DraftReport | None:
        """``metrics.speculative_decoding`` of the chunk with the usage."""
        found = (event.get("metrics") or {}).get("speculative_decoding")
        if not found or whole(found.get("num_accepted_draft_tokens")) is None:
            return None
        steps = zip(found.get("per_step_accepted") or (), found.get("per_step_drafted") or (), strict=False)
        return DraftReport(
            REQUEST,
            accepted=found["num_accepted_draft_tokens"],
            drafts=whole(found.get("num_spec_steps")),
            drafted=whole(found.get("num_draft_tokens")),
            histogram=tuple(found.get("acceptance_histogram") or ()),
            by_step=tuple(steps),
        )


class TensorRTLLM(OpenAI):
    """Ids by ``detokenize: false``; acceptance from the tokens of an iteration, the prompt's own included."""

    name, owner = "tensorrt_llm", "tensorrt_llm"

    def body(self, question: Asked) -> dict[str, Any]:
        """Return the JSON body of a request."""
        return super().body(question) | {"detokenize": False}

    def read(self, event: Mapping[str, Any], seen: int) -> Chunk:
        """The mean is of all iterations so far, so the last one's counts."""
        chunk = super().read(event, seen)
        mean = (event.get("choices") or [{}])[0].get("avg_decoded_tokens_per_iter")
        if not mean or not chunk.finish or chunk.ids is None:
            return chunk
        count = seen + len(chunk.ids)
        steps = round(count / mean) - 1
        return Chunk(chunk.ids, chunk.text, chunk.finish, DraftReport(REQUEST, max(0, count - 1 - steps), steps))


class SGLang(OpenAI):
    """Its own ``/generate``; ids are all so far or the new ones, as the server was started."""

    name, owner = "sglang", "sglang"
    probe: str | None = "/get_model_info"
    path = "/generate"
    info: tuple[str, ...] = ("/get_server_info", "/server_info")
    ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
    DRAFTED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
    HISTOGRAM = ("spec_accept_histogram", "spec_correct_drafts_histogram")

    def prepare(self, connection: Connection) -> bool:
        """The server empties its cache where nothing runs."""
        return self.isolates or connection.post("/flush_cache")

    def body(self, question: Asked) -> dict[str, Any]:
        """Return the JSON body of a request."""
        drawing = {"temperature": 0.0, **question.drawing}
        drawing = {"sampling_seed" if name == "seed" else name: value for name, value in drawing.items()}
        given = {"text" if isinstance(question.prompt, str) else "input_ids": question.prompt}
        return given | {"sampling_params": {"max_new_tokens": question.limit, **drawing}, "stream": True}

    def read(self, event: Mapping[str, Any], seen: int) -> Chunk:
        """Read the new ones of ``output_ids``, which may be all ids so far. Raises CaseError if the server aborted."""
        meta, ids = event.get("meta_info") or {}, event.get("output_ids")
        if ids is not None and seen and len(ids) == meta.get("completion_tokens"):
            ids = ids[seen:]
        finish = (meta.get("finish_reason") or {}).get("type")
        if finish == "abort":
            raise CaseError(f"the server aborted the request: {meta['finish_reason']}")
        return Chunk(ids, "" if ids is not None else event.get("text") or "", finish, self.read_report(meta))

    def read_report(self, event: Mapping[str, Any]) -> DraftReport | None:
        """Reads ``meta_info``, whose names changed between versions."""
        steps = whole(event.get("spec_verify_ct"))
        accepted, drafted, histogram = (
            next((event[name] for name in names if event.get(name) is not None), None)
            for names in (self.ACCEPTED, self.DRAFTED, self.HISTOGRAM)
        )
        if not steps or not event.get("finish_reason"):
            return None
        if accepted is None:
            accepted = max(0, (event.get("completion_tokens") or 0) - 1 - steps)
        return DraftReport(REQUEST, whole(accepted) or 0, steps, whole(drafted), tuple(histogram or ()))


class LMDeploy(SGLang):
    """``/generate`` as SGLang has it, flat; acceptance by its counters."""

    name, owner = "lmdeploy", "lmdeploy"
    info, probe = (), None
    isolates = True  # prefix caching is off unless the server was started with it

    def body(self, question: Asked) -> dict[str, Any]:
        """Return the JSON body of a request."""
        given = {"prompt" if isinstance(question.prompt, str) else "input_ids": question.prompt}
        drawing = {"temperature": 0.0, **question.drawing}
        drawing.pop("seed", None)
        return given | {"max_tokens": question.limit, "stream": True, **drawing}


class LlamaCpp(OpenAI):
    """Its own ``/completion``; a chunk is a token, however many a step gave."""

    name, owner = "llama_cpp", "llamacpp"
    path = "/completion"
    isolates = True  # by ``cache_prompt`` of each request
    steps = False
    info = ("/props",)

    def body(self, question: Asked) -> dict[str, Any]:
        """Return the JSON body of a request."""
        drawing = {"temperature": 0.0, **question.drawing}
        own = {"return_tokens": True, "cache_prompt": False, "stream": True}
        return {"prompt": question.prompt, "n_predict": question.limit, **own, **drawing}

    async def score(self, connection: Connection, model: str, context: Sequence[int]) -> dict[int, float]:
        """Return log-probabilities of the next token, from ``n_probs``."""
        body = self.body(Asked(model, list(context), 1)) | {"n_probs": SCORED}
        found: dict[int, float] = {}
        async for event in connection.stream(self.path, body):
            for place in event.get("completion_probabilities") or ():
                found |= {int(each["id"]): float(each["logprob"]) for each in place.get("top_logprobs") or ()}
        return found

    def tokenize(self, connection: Connection, model: str, text: str) -> list[int] | None:
        """Return the ids of a text, from ``/tokenize``."""
        return connection.tokenize({"content": text, "add_special": False})

    def read(self, event: Mapping[str, Any], seen: int) -> Chunk:
        """The last event has no tokens but the figures."""
        finish = None
        if event.get("stop"):
            finish = "length" if event.get("stop_type") == "limit" else "stop"
        timings = event.get("timings") or {}
        accepted, drafted = whole(timings.get("draft_n_accepted")), whole(timings.get("draft_n"))
        report = None if accepted is None or not finish else DraftReport(REQUEST, accepted, drafted=drafted)
        return Chunk(event.get("tokens"), "" if event.get("tokens") else event.get("content") or "", finish, report)


KINDS: tuple[type[OpenAI], ...] = (VLLM, TensorRTLLM, LMDeploy, LlamaCpp, SGLang, OpenAI)  # the plainest last


def choose(name: str, connection: Connection, models: Mapping[str, Any]) -> OpenAI:
    """The dialect of that name; ``auto``: the server's own. Raises InputError."""
    if name == "auto":
        return next(kind() for kind in KINDS if kind.speaks(connection, models))
    for kind in KINDS:
        if kind.name == name:
            return kind()
    raise InputError(f"dialect={name}: expected auto, {', '.join(kind.name for kind in KINDS)}")
