"""The requests and the events of each serving engine; docs/servers.md cites every field.

A dialect is a class with no state: ``body`` of a request, ``read`` of an event by its schema, and
what is done before one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from methods.server.acceptance import REQUEST, DraftReport
from methods.server.connection import Connection
from methods.server.replies import (
    SHOWN,
    ChatCompletion,
    Completion,
    Event,
    Generation,
    LlamaCompletion,
    Meta,
    ServedModel,
    Tokenized,
)
from specbench.types import CaseError, InputError

LEAST_MEAN = 1e-3  # tokens of an iteration; those that read a long prompt emit none
SCORED = 5  # tokens whose log-probabilities are requested, vLLM's default limit is 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A request.

    prompt: (T,) token ids, or text where the server takes no ids. drawing: temperature and the
    rest. conversation: for a server that writes the prompt itself.
    """

    model: str
    prompt: list[int] | str
    limit: int
    drawing: Mapping[str, float] = field(default_factory=dict)
    conversation: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """An event of an answer. ids: emitted by it, None where the server sends text only.

    finish: stop | length, in the last one. report: the server's figures for the whole request's
    drafts. prompt_ids, prompt_tokens: of a prompt that the server wrote itself, as far as it
    reports them.
    """

    ids: Sequence[int] | None = None
    text: str = ""
    finish: str | None = None
    report: DraftReport | None = None
    prompt_ids: Sequence[int] | None = None
    prompt_tokens: int | None = None


class OpenAI:
    """``/v1/completions`` of any server: text is streamed, and ids where the server sends them."""

    name = "openai"
    path = "/v1/completions"
    reply: ClassVar[type[Event]] = Completion  # an event of its answers
    names_model = True  # a request has the model's name
    steps = True  # a chunk is a step, unless several were sent together
    counts_drafts = False  # metrics without counters of drafts: it does not speculate
    info: tuple[str, ...] = ()  # where it reports how it was started
    owner = ""  # its models' ``owned_by``; empty: any server is of this kind
    probe: str | None = None  # a path that only this kind of server has
    scoring: ClassVar[Mapping[str, Any]] = {}  # of a request for log-probabilities by id
    closes = False  # True if a connection ends with its streamed answer
    isolates = False  # True if no cached prefix of an earlier prompt can speed up a request

    @classmethod
    def speaks(cls, connection: Connection, model: ServedModel | None) -> bool:
        """Returns whether the server is of this kind. model: the one of ``/v1/models``."""
        known = not cls.owner or (model is not None and model.owned_by == cls.owner)
        return known or bool(cls.probe and '"model_path"' in (connection.read(cls.probe) or ""))

    def prepare(self, connection: Connection) -> bool:
        """Empty the server's prefix cache, before the clock starts; whether no earlier prompt can
        help this one.
        """
        return self.isolates

    def own(self) -> dict[str, Any]:
        """Fields of this kind of server in a request of any of its endpoints."""
        return {}

    def body(self, question: Asked) -> dict[str, Any]:
        """The request's JSON."""
        return {
            "model": question.model,
            **(question.conversation or {"prompt": question.prompt}),
            **self.own(),
            "max_tokens": question.limit,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.0,
            **question.drawing,
        }

    def read(self, event: Any, seen: int) -> Chunk:
        """Read one event of the stream. seen: the number of ids that earlier events returned."""
        choice = event.choice
        finish = choice.finish_reason and ("length" if choice.finish_reason == "length" else "stop")
        return Chunk(choice.token_ids, choice.text or "", finish or None, self.read_report(event))

    async def score(
        self, connection: Connection, model: str, context: Sequence[int]
    ) -> dict[int, float]:
        """Token -> log-probability after ``context``, of the best few; nothing where the server
        sends no ids.
        """
        body = {**self.body(Asked(model, list(context), 1)), **self.scoring}
        events = (
            connection.stream(self.path, body, self.reply, 1, len(context))
            if self.scoring
            else None
        )
        return (
            {}
            if events is None
            else {token: score async for event in events for token, score in self.scores(event)}
        )

    def scores(self, event: Any) -> Iterable[tuple[int, float]]:
        """Read (token, log-probability) of the first place."""
        return event.scores()

    def tokenize(self, connection: Connection, model: str, text: str) -> list[int] | None:
        """The ids that the server reads ``text`` as; None where it does not report them."""
        return None

    def read_report(self, event: Any) -> DraftReport | None:
        """The figures for the request's drafts in an event."""
        return None


class VLLM(OpenAI):
    """Ids by ``return_token_ids``; acceptance by ``--per-request-spec-decode-metrics``; a salt
    keeps prefixes apart.
    """

    name, owner = "vllm", "vllm"
    counts_drafts = isolates = True  # by the salt of each request
    info = ("/server_info?config_format=json",)
    scoring: ClassVar[Mapping[str, Any]] = {"logprobs": SCORED, "return_tokens_as_token_ids": True}

    def own(self) -> dict[str, Any]:
        return {"return_token_ids": True, "cache_salt": uuid.uuid4().hex}

    def tokenize(self, connection: Connection, model: str, text: str) -> list[int] | None:
        return read_ids(connection, {"model": model, "prompt": text, "add_special_tokens": False})

    def read_report(self, event: Completion | ChatCompletion) -> DraftReport | None:
        """``metrics.speculative_decoding`` of the chunk with the usage."""
        found = event.metrics and event.metrics.speculative_decoding
        if not found or found.num_accepted_draft_tokens is None:
            return None
        return DraftReport(
            REQUEST,
            accepted=found.num_accepted_draft_tokens,
            drafts=found.num_spec_steps,
            drafted=found.num_draft_tokens,
            histogram=tuple(found.acceptance_histogram or ()),
            by_step=tuple(
                zip(found.per_step_accepted or (), found.per_step_drafted or (), strict=False)
            ),
        )


class TensorRTLLM(OpenAI):
    """Ids by ``detokenize: false``; acceptance from the tokens of an iteration, the prompt's own
    included.
    """

    name, owner = "tensorrt_llm", "tensorrt_llm"

    def body(self, question: Asked) -> dict[str, Any]:
        return super().body(question) | {"detokenize": False}

    def read(self, event: Completion, seen: int) -> Chunk:
        """The mean is of all iterations so far, so the last one's counts."""
        chunk, mean = super().read(event, seen), event.choice.avg_decoded_tokens_per_iter
        if not mean or not chunk.finish or chunk.ids is None:
            return chunk
        count = seen + len(chunk.ids)
        steps = round(count / max(mean, LEAST_MEAN)) - 1
        return replace(chunk, report=DraftReport(REQUEST, max(0, count - 1 - steps), steps))


class SGLang(OpenAI):
    """Its own ``/generate``; ids are all so far or the new ones, as the server was started."""

    name, owner = "sglang", "sglang"
    probe: str | None = "/get_model_info"
    path, reply, names_model = "/generate", Generation, False
    info: tuple[str, ...] = ("/get_server_info", "/server_info")

    def prepare(self, connection: Connection) -> bool:
        """The server empties its cache where nothing runs."""
        return self.isolates or connection.post("/flush_cache")

    def body(self, question: Asked) -> dict[str, Any]:
        drawing = {"temperature": 0.0, **question.drawing}
        drawing = {
            "sampling_seed" if name == "seed" else name: value for name, value in drawing.items()
        }
        given = {"text" if isinstance(question.prompt, str) else "input_ids": question.prompt}
        return given | {
            "sampling_params": {"max_new_tokens": question.limit, **drawing},
            "stream": True,
        }

    def read(self, event: Generation, seen: int) -> Chunk:
        """Read the new ones of ``output_ids``, which may be all ids so far. Raises CaseError if the
        server aborted.
        """
        meta, ids = event.meta_info or Meta(), event.output_ids
        if ids is not None and seen and len(ids) == meta.completion_tokens:
            ids = ids[seen:]
        finish = meta.finish_reason
        if finish and finish.type == "abort":
            raise CaseError(f"the server aborted the request: {str(finish.message)[:SHOWN]}")
        text = "" if ids is not None else event.text or ""
        return Chunk(ids, text, finish.type if finish else None, self.read_report(meta))

    def read_report(self, event: Meta) -> DraftReport | None:
        steps, accepted = event.spec_verify_ct, event.accepted
        if not steps or not event.finish_reason:
            return None
        if accepted is None:
            accepted = max(0, (event.completion_tokens or 0) - 1 - steps)
        return DraftReport(REQUEST, accepted, steps, event.drafted, tuple(event.histogram or ()))


class LMDeploy(SGLang):
    """``/generate`` as SGLang has it, flat; acceptance by its counters."""

    name, owner = "lmdeploy", "lmdeploy"
    info, probe = (), None
    isolates = True  # prefix caching is off unless the server was started with it

    def body(self, question: Asked) -> dict[str, Any]:
        given = {"prompt" if isinstance(question.prompt, str) else "input_ids": question.prompt}
        drawing = {"temperature": 0.0, **question.drawing}
        drawing.pop("seed", None)
        return given | {"max_tokens": question.limit, "stream": True, **drawing}


class LlamaCpp(OpenAI):
    """Its own ``/completion``; a chunk is a token, however many a step gave."""

    name, owner = "llama_cpp", "llamacpp"
    path, reply, names_model = "/completion", LlamaCompletion, False
    scoring: ClassVar[Mapping[str, Any]] = {"n_probs": SCORED}
    isolates = True  # by ``cache_prompt`` of each request
    steps = False
    closes = True  # its headers promise a connection that is kept
    info = ("/props",)

    def own(self) -> dict[str, Any]:
        return {"cache_prompt": False}

    def body(self, question: Asked) -> dict[str, Any]:
        drawing = {"temperature": 0.0, **question.drawing}
        own = {**self.own(), "return_tokens": True, "stream": True}
        return {"prompt": question.prompt, "n_predict": question.limit, **own, **drawing}

    def scores(self, event: LlamaCompletion) -> Iterable[tuple[int, float]]:
        """Read ``completion_probabilities``."""
        places = event.completion_probabilities or ()
        return ((each.id, each.logprob) for place in places for each in place.top_logprobs or ())

    def tokenize(self, connection: Connection, model: str, text: str) -> list[int] | None:
        return read_ids(connection, {"content": text, "add_special": False})

    def read(self, event: LlamaCompletion, seen: int) -> Chunk:
        """The last event has no tokens but the figures."""
        finish = ("length" if event.stop_type == "limit" else "stop") if event.stop else None
        found, report = event.timings, None
        if finish and found and found.draft_n_accepted is not None:
            report = DraftReport(REQUEST, found.draft_n_accepted, drafted=found.draft_n)
        return Chunk(event.tokens, "" if event.tokens else event.content or "", finish, report)


class Chat(OpenAI):
    """``/v1/chat/completions`` of a server of any kind, which writes the conversation by its own
    chat template.
    """

    path, reply = "/v1/chat/completions", ChatCompletion

    def __init__(self, base: OpenAI) -> None:
        """base: the server's kind, as which it does all but ask and read."""
        self.base = base
        for name in (
            "name",
            "steps",
            "counts_drafts",
            "info",
            "isolates",
            "prepare",
            "own",
            "score",
            "tokenize",
        ):
            setattr(self, name, getattr(base, name))

    def read(self, event: ChatCompletion, seen: int) -> Chunk:
        """Read one event. Raises CaseError if the server took calls of tools out of an answer
        without ids.
        """
        choice, delta = event.choice, event.choice.delta
        finish = choice.finish_reason and ("length" if choice.finish_reason == "length" else "stop")
        texts = (delta.reasoning_content, delta.reasoning, delta.content) if delta else ()
        if delta and delta.tool_calls and choice.token_ids is None:
            raise CaseError(
                "the server takes calls of tools out of the answer's text; expected all of it:"
                " start the server without its parser of tool calls, or set endpoint=completions"
            )
        report, timings = None, event.timings
        if isinstance(self.base, VLLM):
            report = self.base.read_report(event)
        elif timings and timings.draft_n_accepted is not None:  # after the end, with the usage
            report = DraftReport(REQUEST, timings.draft_n_accepted, drafted=timings.draft_n)
        count = event.usage.prompt_tokens if event.usage else None
        text = "".join(filter(None, texts))
        return Chunk(choice.token_ids, text, finish or None, report, event.prompt_token_ids, count)


def read_ids(connection: Connection, body: Mapping[str, Any]) -> list[int] | None:
    """The ids that ``/tokenize`` answers; None if the server does not."""
    found = connection.find("/tokenize", Tokenized, body)
    return found.tokens if found else None


# the plainest last
KINDS: tuple[type[OpenAI], ...] = (VLLM, TensorRTLLM, LMDeploy, LlamaCpp, SGLang, OpenAI)


def choose(name: str, connection: Connection, model: ServedModel | None) -> OpenAI:
    """The dialect of that name; ``auto``: the server's own. Raises InputError."""
    if name == "auto":
        return next(kind() for kind in KINDS if kind.speaks(connection, model))
    for kind in KINDS:
        if kind.name == name:
            return kind()
    raise InputError(f"dialect={name}: expected auto, {', '.join(kind.name for kind in KINDS)}")
