"""The fields that are read of servers' answers, as schemas; docs/servers.md cites every field.

A field that is there has its type, without conversions. It may be missing or null, and other fields
are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from specbench.input import describe
from specbench.types import MOST, CaseError

SHOWN = 300  # [characters] of an answer or of a server's message, in ours
MOST_COUNTED = 1 << 53  # a server that counts further would have decoded for 10,000 years
Found = TypeVar("Found", bound="Reply")
Item = TypeVar("Item")

# the first wrong one is shown; a list of all could be long
Items = Annotated[list[Item], Field(fail_fast=True)]
Count = Annotated[int, Field(ge=0, le=MOST_COUNTED)]
Counts = Items[Count] | None
ByAccepted = Annotated[Items[Count], Field(max_length=MOST + 1)] | None  # steps, by accepted tokens


class Reply(BaseModel):
    """An answer, or a part of one."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Event(Reply):
    """An event of a streamed answer. error: the server's, of any type."""

    error: Any = None


class _Logprobs(Reply):
    top_logprobs: Items[dict[str, float] | None] | None = None


class Choice(Reply):
    """A part of the answer. finish_reason: some servers send an empty one before the end, and EOS
    has several names.
    """

    text: str | None = None
    token_ids: Counts = None
    finish_reason: Literal["stop", "length", "eos", "eos_token", "stop_sequence", ""] | None = None
    logprobs: _Logprobs | None = None
    avg_decoded_tokens_per_iter: Annotated[float, Field(ge=0)] | None = None  # TensorRT-LLM


class _Speculation(Reply):
    num_accepted_draft_tokens: Count | None = None
    num_spec_steps: Count | None = None
    num_draft_tokens: Count | None = None
    acceptance_histogram: ByAccepted = None
    per_step_accepted: Counts = None
    per_step_drafted: Counts = None


class _Metrics(Reply):
    speculative_decoding: _Speculation | None = None


class Completion(Event):
    """Of ``/v1/completions``."""

    choices: Annotated[list[Choice], Field(max_length=1)] | None = None
    metrics: _Metrics | None = None  # vLLM

    @property
    def choice(self) -> Choice:
        """The only one, without fields if the event has none."""
        return self.choices[0] if self.choices else Choice()

    def scores(self) -> Iterator[tuple[int, float]]:
        """(token, its log-probability) of the best tokens of the first place, as vLLM names them:
        ``token_id:N``.
        """
        places = (self.choice.logprobs or _Logprobs()).top_logprobs or [None]
        named = (
            (name.removeprefix("token_id:"), score) for name, score in (places[0] or {}).items()
        )
        yield from ((int(name), score) for name, score in named if name.isdecimal())


class _Delta(Reply):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Said(Reply):
    delta: _Delta | None = None
    token_ids: Counts = None  # vLLM
    finish_reason: (
        Literal[
            "stop", "length", "eos", "eos_token", "stop_sequence", "tool_calls", "function_call", ""
        ]
        | None
    ) = None


class _Usage(Reply):
    prompt_tokens: Count | None = None


class _Timings(Reply):
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None


class ChatCompletion(Event):
    """Of ``/v1/chat/completions``."""

    choices: Annotated[list[_Said], Field(max_length=1)] | None = None
    prompt_token_ids: Counts = None  # vLLM
    usage: _Usage | None = None
    metrics: _Metrics | None = None  # vLLM
    timings: _Timings | None = None  # llama.cpp

    @property
    def choice(self) -> _Said:
        """The only one, without fields if the event has none."""
        return self.choices[0] if self.choices else _Said()


class _Finish(Reply):
    type: Literal["stop", "length", "abort"]
    message: Any = None


class Meta(Reply):
    """``meta_info`` of SGLang and LMDeploy. The names of the figures changed between versions."""

    finish_reason: _Finish | None = None
    completion_tokens: Count | None = None
    spec_verify_ct: Count | None = None
    accepted: Count | None = Field(
        default=None,
        validation_alias=AliasChoices(
            "spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"
        ),
    )
    drafted: Count | None = Field(
        default=None,
        validation_alias=AliasChoices(
            "spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"
        ),
    )
    histogram: ByAccepted = Field(
        default=None,
        validation_alias=AliasChoices("spec_accept_histogram", "spec_correct_drafts_histogram"),
    )


class Generation(Event):
    """Of ``/generate``."""

    text: str | None = None
    output_ids: Counts = None
    meta_info: Meta | None = None


class _Score(Reply):
    id: Count
    logprob: float


class _Place(Reply):
    top_logprobs: Items[_Score] | None = None


class LlamaCompletion(Event):
    """Of llama.cpp's ``/completion``."""

    content: str | None = None
    tokens: Counts = None
    stop: bool | None = None
    stop_type: Literal["none", "eos", "limit", "word"] | None = None
    timings: _Timings | None = None
    completion_probabilities: Items[_Place] | None = None


class ServedModel(Reply):
    """One of ``/v1/models``, with all its other fields."""

    model_config = ConfigDict(extra="allow")

    id: str
    owned_by: str | None = None


class Models(Reply):
    """``/v1/models``."""

    data: Items[ServedModel] | None = None


class Tokenized(Reply):
    """``/tokenize``."""

    tokens: Counts = None


class ReplyError(CaseError):
    """A complete answer that is not as its schema describes it."""


def parse(schema: type[Found], where: str, text: bytes) -> Found:
    """An answer as its schema describes it. Raises ReplyError with the field, its value and what
    was expected.
    """
    try:
        return schema.model_validate_json(text)
    except ValidationError as error:
        raise ReplyError(
            f"{where}: {describe(error)}: {text[:SHOWN].decode(errors='replace')}; expected the"
            " fields and types of docs/servers.md: set the server's dialect, or correct the server"
        ) from None
