"""A serving engine behind a URL as a peer: it decodes, the harness counts, cuts and times.

The clock starts when the request is sent and stops with its last event. What is asked before and behind a request, an
empty prefix cache and the server's counters, stands outside it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from methods.server.acceptance import SYNTHETIC, Account, Told, parse_counters, reconcile, told_by_counters
from methods.server.connection import Connection
from methods.server.dialect import Asked, Chunk, choose
from specbench.method import Emit, Peer, Settled
from specbench.target.facade import ModelCard, Target
from specbench.types import CaseError, InputError

log = logging.getLogger(__name__)
METRICS = "/metrics"
PROBE = 1  # [tokens] of the request that shows what the server takes


class ServerPeer(Peer):
    """One engine as it was started; its speculation is its own."""

    remote = True

    def __init__(
        self,
        url: str,
        dialect: str = "auto",
        model: str | None = None,
        timeout_s: float = 60.0,
        longest_s: float = 900.0,
    ) -> None:
        """url: http://HOST:PORT. dialect: auto | openai | vllm | sglang | llama_cpp | tensorrt_llm | lmdeploy.

        model: as the server names it, null = its first. timeout_s: between two events. longest_s: of a whole answer.
        """
        for name, value in (("timeout_s", timeout_s), ("longest_s", longest_s)):
            if value <= 0:
                raise InputError(f"{name}={value}: expected more than 0")
        self._wanted, self._model = dialect, model
        self._connection = Connection(url, timeout_s, longest_s)
        self._seen: Counter[str] = Counter()
        self._forget()

    def _forget(self) -> None:
        self._ids: list[int] = []
        self._sizes: list[int] = []
        self._text = ""
        self._finish: str | None = None
        self._told: list[Told] = []

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes its figures unsafe, with how often it was seen."""
        counted = ((text, f" ({count} requests)" if count else "") for text, count in self._seen.items())
        return tuple(f"{self._connection.url}: {text}{often}" for text, often in counted)

    def check(self, model: ModelCard) -> None:
        """The server must answer, have the model, and not draw its acceptance from a table. Raises InputError."""
        connection = self._connection
        try:
            listed = connection.find("/v1/models")
            models = (listed.get("data") or []) if isinstance(listed, dict) else []
            models = [each for each in models if isinstance(each, dict)]
            names = [str(each.get("id")) for each in models]
            if self._model is not None and names and self._model not in names:
                raise InputError(f"model={self._model}: the server has {', '.join(names)}; expected one of them")
            self._name = self._model or (names[0] if names else model.name)
            first: dict[str, Any] = next((each for each in models if str(each.get("id")) == self._name), {})
            self._dialect = choose(self._wanted, connection, first)
            told = [connection.read(path) or "" for path in self._dialect.info]
        except CaseError as error:
            raise InputError(f"url: {error}") from error
        if found := next(filter(None, map(SYNTHETIC.search, told)), None):
            raise InputError(
                f"url={connection.url}: the server draws acceptance from a table ({found[0]}), so its text is not the"
                " model's and its MAT no result; expected a server without it"
            )

    def bind(self, target: Target) -> None:
        """Ask for one token by ids, then by text: which of them the server takes. Raises InputError."""
        self._tokenizer, self._eos = target.card.tokenizer, target.eos
        sampling: Any = target.sampling
        names = ("temperature", "top_p", "top_k")
        drawing = {} if sampling is None else {name: getattr(sampling, name) for name in names}
        if not drawing.get("top_k", 1):  # 0: all
            del drawing["top_k"]
        self._drawing = drawing
        known = self._tokenizer("a", add_special_tokens=False).input_ids
        self._by_ids, refusals = True, []
        for prompt in (known, "a"):
            self._by_ids = not isinstance(prompt, str)
            try:
                chunks = list(self._chunks(Asked(self._name, prompt, PROBE, self._drawing)))
                break
            except CaseError as error:
                refusals.append(str(error))
        else:
            raise InputError(f"url: the server takes no prompt: {refusals[0]}; {refusals[1]}")
        if not self._by_ids:
            self._seen["takes text only: its own tokenizer reads the prompt"] = 0
        if all(chunk.ids is None for chunk in chunks):
            self._seen["returns text only: its ids are those of the text"] = 0
        self._counts = bool(self._counters())

    def prepare(self) -> None:
        """Empty the prefix cache and read the counters, before the clock starts."""
        self._forget()
        if not self._dialect.prepare(self._connection):
            self._seen["a prefix cache cannot be emptied: prompts that begin alike may be read faster"] += 1
        self._before = self._counters() if self._counts else {}

    def decode(self, prompt: Sequence[int], limit: int, seed: int, emit: Emit) -> None:
        """One streamed request."""
        drawing = self._drawing | ({"seed": seed % (1 << 31)} if self._drawing else {})
        asked = list(prompt) if self._by_ids else self._spell(prompt)
        for chunk in self._chunks(Asked(self._name, asked, limit, drawing)):
            self._finish = chunk.finish or self._finish
            if chunk.told is not None:
                self._told = [chunk.told]
            self._take(chunk, limit, emit)
        if self._finish is None:
            raise CaseError(f"{self._connection.url}: the answer ends without a reason; expected stop or length")

    def _chunks(self, question: Asked) -> Any:
        seen = 0
        for event in self._connection.stream(self._dialect.path, self._dialect.body(question)):
            chunk = self._dialect.read(event, seen)
            seen += len(chunk.ids or ())
            yield chunk

    def _take(self, chunk: Chunk, limit: int, emit: Emit) -> None:
        """Report a chunk's tokens, whose ids are known in the end where it is text."""
        if chunk.ids is not None and self._text == "":
            ids = [int(token) for token in chunk.ids]
            self._ids += ids
            if len(self._ids) > limit:
                raise CaseError(f"{self._connection.url}: more than the {limit} tokens that were asked for")
        else:
            self._text += chunk.text
            ids = [0] if chunk.text else []
        if ids:
            self._sizes.append(len(ids))
            emit(ids)

    def _spell(self, prompt: Sequence[int]) -> str:
        """The prompt as a text that the tokenizer reads as the same ids, if there is one."""
        texts = [self._tokenizer.decode(prompt[start:], skip_special_tokens=False) for start in (1, 0)]
        for text in texts:
            if list(self._tokenizer(text).input_ids) == list(prompt):
                return text
        self._seen["prompts whose text the tokenizer reads as other ids"] += 1
        return texts[1]

    def gap(self, context: Sequence[int], chosen: int, other: int) -> float | None:
        """By one more request behind the block, where the server gives log-probabilities by id."""
        scores = self._dialect.score(self._connection, self._name, context) if self._by_ids else {}
        return abs(scores[chosen] - scores[other]) if chosen in scores and other in scores else None

    def settle(self) -> Settled:
        """The answer's ids and steps, from the account that holds; see ``reconcile``."""
        ids, sizes = self._ids, self._sizes
        if self._text:
            ids = list(self._tokenizer(self._text, add_special_tokens=False).input_ids)
        ended = self._finish == "stop" and not (ids and ids[-1] in self._eos)
        if ended and (eos := self._tokenizer.eos_token_id) in self._eos:  # which many servers keep to themselves
            ids, sizes = [*ids, eos], [*sizes, 1]
        if self._counts and (counted := told_by_counters(self._before, self._counters())):
            self._told.append(counted)
        if self._text:
            account = Account(((1, 0),) * (len(ids) - 1), "text") if not self._told else self._reconcile(ids, None)
        else:
            account = self._reconcile(ids, sizes)
        for text in account.complaints:
            log.warning("%s: %s", self._connection.url, text)
            self._seen["accounts of acceptance that disagree"] += 1
        self._source = account.source
        return Settled(ids, account.steps)

    def _reconcile(self, ids: Sequence[int], sizes: Sequence[int] | None) -> Account:
        """The first chunk is the prefill's; where several steps were sent in it, they are not told apart."""
        first = sizes[0] if sizes and self._dialect.steps else 1
        used = sizes[1:] if sizes is not None and self._dialect.steps else None
        return reconcile(len(ids) - first, used, [each for each in self._told if each.drafts != 0])

    def stats(self) -> dict[str, float]:
        """Each account of the last request, by its name: steps, drafted and accepted tokens, accepted by place."""
        found: dict[str, float] = {f"source_{self._source}": 1.0}
        for each in self._told:
            figures = {"steps": each.drafts, "drafted": each.drafted, "accepted": each.accepted}
            found |= {f"{each.source}_{name}": float(value) for name, value in figures.items() if value is not None}
            places = each.per_position or [sum(each.histogram[place:]) for place in range(1, len(each.histogram))]
            found |= {f"{each.source}_accepted_{place}": float(value) for place, value in enumerate(places, 1)}
        if not self._text:
            found["chunks"] = float(len(self._sizes))
        return found

    def _counters(self) -> dict[str, float]:
        """Of the server; read until they stand still, since they may lag behind an answer."""
        text = self._connection.read(METRICS) or ""
        found = parse_counters(text)
        for _ in range(5 if found else 0):
            again = parse_counters(self._connection.read(METRICS) or "")
            if again == found:
                break
            found = again
        return found

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
