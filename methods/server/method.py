"""A serving engine at a URL as a peer: it decodes, the harness counts, cuts and times.

The clock starts when the request is sent and stops with its last event. Requests before and after
it, which empty the prefix cache and read the server's counters, are not timed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from methods.parts.parameters import Parameters, number
from methods.server.acceptance import (
    COUNTERS,
    SYNTHETIC,
    Account,
    Counters,
    DraftReport,
    parse_counters,
    read_gauges,
    reconcile,
    report_from_counters,
)
from methods.server.connection import METRICS, OK, Connection, show
from methods.server.dialects import Asked, Chat, Chunk, choose
from methods.server.engine import PORT, LaunchedEngine
from methods.server.identity import (
    DRAWS,
    LEVEL,
    TEXTS,
    TOKENS,
    Beginning,
    Identity,
    compare_draws,
    require_same_first_tokens,
    require_tokenizer,
    show_alike,
)
from methods.server.replies import SHOWN, Models, ReplyError, parse
from specbench.method import Emit, Remote, Settled
from specbench.models.facade import ModelCard, Target
from specbench.types import CaseError, InputError, named


@dataclass(slots=True)
class StreamedAnswer:
    """A streamed answer as it arrives.

    url: of its server. limit: [tokens] that were requested. vocabulary: the number of ids. text:
    where the server sends no ids. reports: the request's own account first. account: the steps that
    are kept. prompt_ids, prompt_tokens: of the prompt that the server wrote, as far as it reports
    them.
    """

    url: str
    limit: int
    vocabulary: int
    ids: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    reports: list[DraftReport] = field(default_factory=list)
    account: Account | None = None
    prompt_ids: Sequence[int] | None = None
    prompt_tokens: int | None = None

    def compare_prompt(self, prompt: Sequence[int]) -> bool:
        """Compare the prompt that the server wrote with ours (T,). Returns whether the server
        reports it.

        Raises CaseError if it is another one.
        """
        theirs, count = (
            self.prompt_ids,
            self.prompt_tokens if self.prompt_ids is None else len(self.prompt_ids),
        )
        if count is None:
            return False
        if count != len(prompt) or (theirs is not None and list(theirs) != list(prompt)):
            raise CaseError(
                f"{self.url}: the server's prompt of {count} tokens is not the one of {len(prompt)}"
                " tokens that the template here writes; expected the same: serve with this"
                " template, give the server's as model.template=FILE.jinja, or set"
                " endpoint=completions"
            )
        return True

    def take(self, chunk: Chunk, emit: Emit) -> None:
        """Report a chunk's tokens, whose ids are known in the end where it is text."""
        self.finish = chunk.finish or self.finish
        if chunk.report is not None:
            self.reports = [chunk.report]
        self.prompt_ids = self.prompt_ids or chunk.prompt_ids
        self.prompt_tokens = self.prompt_tokens or chunk.prompt_tokens
        ids, text = chunk.ids or (), "" if chunk.ids else chunk.text
        if (ids and self.text) or (text and self.ids):
            raise CaseError(
                f"{self.url}: an answer of ids and of text; expected ids in every event or in none"
            )
        self.ids += ids
        self.text += text
        if len(self.ids) > self.limit:
            raise CaseError(
                f"{self.url}: more than the {self.limit} tokens that were requested; expected at"
                " most these"
            )
        if ids and max(ids) >= self.vocabulary:
            raise CaseError(
                f"{self.url}: token id {max(ids)}; expected an id below {self.vocabulary}, the size"
                " of the vocabulary: serve the model of the run, or set its tokenizer"
                " (model.tokenizer), with its config.json if padded"
            )
        if ids or text:
            self.sizes.append(len(ids) or 1)
            emit(ids or [0])

    def settle(self, tokenizer: Any, eos: Collection[int], chunks_are_steps: bool) -> Account:
        """The answer's ids, and its steps from the account that is trusted; see ``reconcile``."""
        sizes = self.sizes
        if self.text:
            # which may be more than the server's own
            self.ids = list(tokenizer(self.text, add_special_tokens=False).input_ids)[: self.limit]
        ended = self.finish == "stop" and not (self.ids and self.ids[-1] in eos)
        # which many servers keep to themselves
        if ended and (end := tokenizer.eos_token_id) in eos:
            self.ids, sizes = [*self.ids, end], [*sizes, 1]
        reports = [each for each in self.reports if each.drafts != 0]
        if self.text and not self.reports:
            self.account = Account(((1, 0),) * (len(self.ids) - 1), "text")
        elif self.text or not chunks_are_steps:
            self.account = reconcile(len(self.ids) - 1, None, reports)
        else:
            # the first chunk is the prefill's; where several steps were sent in it, they cannot be
            # separated
            self.account = reconcile(len(self.ids) - sum(sizes[:1]), sizes[1:], reports)
        return self.account

    def stats(self) -> dict[str, float]:
        """Each account by its name: steps, drafted and accepted tokens, accepted by place."""
        found: dict[str, float] = (
            {} if self.account is None else {f"source_{self.account.source}": 1.0}
        )
        for each in self.reports:
            figures = {"steps": each.drafts, "drafted": each.drafted, "accepted": each.accepted}
            found |= {
                f"{each.source}_{name}": float(value)
                for name, value in figures.items()
                if value is not None
            }
            places = each.per_position or [
                sum(each.histogram[place:]) for place in range(1, len(each.histogram))
            ]
            found |= {
                f"{each.source}_accepted_{place}": float(value)
                for place, value in enumerate(places, 1)
            }
        found |= {"text_only": 1.0} if self.text else {"chunks": float(len(self.sizes))}
        return found


log = logging.getLogger(__name__)
HEALTH, MODELS, NOT_FOUND = "/health", "/v1/models", 404
LAGS = 5  # readings of the counters after the first
CHAT = "chat"
ENDPOINTS = ("completions", CHAT)
DISAGREE = "accounts of acceptance that disagree"
PROBE = 1  # [tokens] of the request that shows what the server takes
AT_ONCE = 8  # requests that are not measured


@contextmanager
def _refusing(prefix: str = "url: ") -> Iterator[None]:
    """Makes a server's fault before the run an error of its setting."""
    try:
        yield
    except CaseError as error:
        raise InputError(f"{prefix}{error}") from error


def _ignore(ids: Sequence[int]) -> bool:
    """The ``Emit`` of a request that is not measured."""
    return False


@dataclass(eq=False)
class ServerPeer(Parameters, Remote):
    """One engine with its own speculation, running or started here; conf/method/server.yaml has the
    parameters.
    """

    url: str | None = None
    dialect: str = "auto"
    model: str | None = None
    timeout_s: float = number(60.0, lambda value: value > 0, "more than 0")
    longest_s: float = number(900.0, lambda value: value > 0, "more than 0")
    start_s: float = number(1800.0, lambda value: value > 0, "more than 0")
    command: str | list[str] | None = None
    endpoint: str = "completions"
    gpu_metrics: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.endpoint not in ENDPOINTS:
            raise InputError(f"endpoint={self.endpoint}: expected {' or '.join(ENDPOINTS)}")
        if (self.url is None) == (self.command is None):
            raise InputError(
                f"url={self.url}, command={self.command}: expected one of the two,"
                " url=http://HOST:PORT of an engine that runs, or command='vllm serve MODEL --port"
                f" {PORT}' to start one"
            )
        self._engine = LaunchedEngine(self.command) if self.command is not None else None
        url = self._engine.url if self._engine else str(self.url)
        self._connection = Connection(url, self.timeout_s, self.longest_s)
        self._watched = [self._connection]
        if self.gpu_metrics is not None:
            with named("gpu_metrics: "):
                exporter = self.gpu_metrics.removesuffix(METRICS)
                self._watched.append(Connection(exporter, self.timeout_s, self.longest_s))
        self._seen: Counter[str] = Counter()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Observations that make its figures unsafe, with the number of requests."""
        counted = [
            (text, f" ({count} requests)" if count else "") for text, count in self._seen.items()
        ]
        counted += [(self._engine.fault, "")] if self._engine and self._engine.fault else []
        return tuple(f"{self._connection.url}: {text}{often}" for text, often in counted)

    def check(self, model: ModelCard) -> None:
        """Look at a server that runs; one that is started here is looked at in ``bind``. Raises
        InputError.
        """
        if self._engine is None:
            self._look()

    @_refusing()
    def _look(self) -> None:
        """The server must answer and have the model. Raises InputError."""
        connection = self._connection
        status, text = connection.fetch(MODELS)
        models = (parse(Models, connection.url + MODELS, text).data if status == OK else None) or []
        names = [each.id for each in models]
        if self.model is not None and names and self.model not in names:
            raise InputError(
                f"model={self.model}: the server has {', '.join(names)[:SHOWN]}; expected one of"
                " them"
            )
        self._name = self.model or next(iter(names), "")
        first = next((each for each in models if each.id == self._name), None)
        kind = choose(self.dialect, connection, first)
        self._dialect = Chat(kind) if self.endpoint == CHAT else kind
        connection.closes = kind.closes
        if self._dialect.names_model and not self._name:
            raise InputError(
                f"{'url' if status == NOT_FOUND else 'model'}: {connection.url}{MODELS} names no"
                f" model (status {status}: {show(text)}); expected the server's name of the model"
                " in model, or in url the address of a server of completions as it stands"
                " before /v1"
            )
        infos = [connection.read(path) or "" for path in self._dialect.info]
        if found := next(filter(None, map(SYNTHETIC.search, infos)), None):
            self.synthetic = " ".join(found[0].split())
            self._seen[
                f"it draws acceptance from a table ({self.synthetic}): its text is not the model's,"
                " MAT is no result"
            ] = 0

    def bind(self, target: Target) -> None:
        """Start the engine if this is its command, and ask the server what it takes. Raises
        InputError.
        """
        if self._engine is not None:
            self._engine.start(target.log, self._is_ready, self.start_s)
            self._look()
        self._probe(target)

    def _is_ready(self) -> bool:
        with suppress(CaseError):  # no connection, or no answer in time: not yet
            return any(self._connection.fetch(path)[0] == OK for path in (HEALTH, MODELS))
        return False

    @_refusing()
    def _probe(self, target: Target) -> None:
        """Ask for one token by ids, then by text: which of them the server takes. Raises
        InputError.
        """
        self._tokenizer, self._eos, self._vocabulary = (
            target.card.tokenizer,
            target.eos,
            target.vocab_size,
        )
        sampling: Any = target.sampling
        names = ("temperature", "top_p", "top_k")
        drawing = {} if sampling is None else {name: getattr(sampling, name) for name in names}
        if not drawing.get("top_k", 1):  # 0: all
            del drawing["top_k"]
        self._drawing = drawing
        known = self._tokenizer("a", add_special_tokens=False).input_ids
        self._by_ids, refusals = True, []
        for prompt in ("a",) if self.endpoint == CHAT else (known, "a"):
            self._by_ids = not isinstance(prompt, str)
            try:
                answer = self.run(self._ask(self._question(prompt, PROBE, self._drawing), _ignore))
                break
            except CaseError as error:
                if isinstance(error.__cause__, TimeoutError):
                    raise
                refusals.append(str(error))
        else:
            raise InputError(
                f"url: the server takes no prompt: {'; '.join(refusals)}; expected the address of a"
                " server of completions, as it stands before /v1"
            )
        if not self._by_ids and self.endpoint != CHAT:
            self._seen["takes text only: its own tokenizer reads the prompt"] = 0
        if not answer.ids:
            self._seen["returns text only: its ids are those of the text"] = 0
        page, counters = self._page()
        self._counts = bool(counters)
        self._plain = bool(page) and not self._counts and self._dialect.counts_drafts
        self._identity = Identity(self._connection)
        tokenize = partial(self._dialect.tokenize, self._connection, self._name)
        try:
            require_tokenizer(self._connection, tokenize, self._tokenizer)
        except ReplyError as error:  # of another service at this path, which nothing else needs
            self._seen[f"its tokenizer is not compared: {error}"] = 0

    @_refusing("url: the comparison with the baseline: ")
    def require_same_model(self, baseline: Remote) -> None:
        """Compares first tokens with the baseline's; another distribution is a warning. Raises
        InputError.
        """
        assert isinstance(baseline, ServerPeer)
        if self.endpoint != baseline.endpoint:
            raise InputError(
                f"endpoint={self.endpoint}: the baseline has {baseline.endpoint}; expected the same"
                " of both"
            )
        both = (self, baseline)
        # greedy
        first = [lambda text, each=each: each.run(each._begin(text, PROBE, {})) for each in both]
        require_same_first_tokens([each._connection.url for each in both], first)
        if not self._drawing or self.synthetic or baseline.synthetic:
            return
        drawn = [each.run(each._draw(role)) for role, each in enumerate(both)]
        chance = compare_draws(*show_alike(*drawn))
        log.info(
            "%s: first tokens drawn as %s does: p = %.4f",
            *(each._connection.url for each in both),
            chance,
        )
        if chance < LEVEL:
            self._seen[
                f"first tokens are not drawn as the baseline draws them: p = {chance:.4f} by"
                f" {DRAWS} answers of {TOKENS} tokens after each of {len(TEXTS)} texts; of equal"
                f" servers one comparison in {1 / LEVEL:.0f} says so"
            ] = 0

    def _question(
        self, prompt: list[int] | str, tokens: int, drawing: Mapping[str, float]
    ) -> Asked:
        """A request that is not measured; a text is the user's message where the server writes the
        prompt.
        """
        message = (
            {"messages": [{"role": "user", "content": prompt}]} if self.endpoint == CHAT else {}
        )
        return Asked(self._name, prompt, tokens, drawing, message)

    async def _begin(self, text: str, tokens: int, drawing: Mapping[str, float]) -> Beginning:
        prompt = self._tokenizer(text).input_ids if self._by_ids else text
        answer = await self._ask(self._question(prompt, tokens, drawing), _ignore)
        return Beginning(
            answer.ids, self._tokenizer.decode(answer.ids) if answer.ids else answer.text
        )

    async def _draw(self, role: int) -> list[list[Beginning]]:
        """Drawn answers after each text. role: of the server, for seeds of its own."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def ask(text: str, number: int) -> Beginning:
            async with gate:
                return await self._begin(text, TOKENS, self._drawing | {"seed": 2 * number + role})

        return [
            await asyncio.gather(*(ask(text, number) for number in range(DRAWS))) for text in TEXTS
        ]

    def prepare(self, alone: bool = True) -> None:
        """Empty the prefix cache and read the counters, before the clock starts.

        Raises CaseError where the server was restarted since the run began.
        """
        self._identity.require_same()
        if not self._dialect.prepare(self._connection):
            self._seen[
                "a prefix cache cannot be emptied: prompts that begin alike may be read faster"
            ] += alone
        self._before = self._page()[1] if self._counts and alone else {}

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._connection.run(work)

    async def answer(
        self,
        prompt: Sequence[int],
        limit: int,
        seed: int,
        emit: Emit,
        conversation: Mapping[str, Any],
    ) -> Callable[[], Settled]:
        """One streamed request. Raises CaseError if the server writes the conversation as another
        prompt.
        """
        drawing = self._drawing | ({"seed": seed % (1 << 31)} if self._drawing else {})
        if self.endpoint == CHAT and not conversation:
            raise CaseError(
                "endpoint=chat: no conversation, only token ids; expected a suite, or"
                " endpoint=completions"
            )
        if self.endpoint == CHAT:
            answer = await self._ask(
                Asked(self._name, list(prompt), limit, drawing, conversation), emit
            )
            if not answer.compare_prompt(prompt):
                self._seen[
                    "does not report the tokens of its prompts: they may differ from those here"
                ] += 1
        else:
            asked = list(prompt) if self._by_ids else self._spell(prompt)
            answer = await self._ask(Asked(self._name, asked, limit, drawing), emit)
        return partial(self._settle, answer)

    async def _ask(self, question: Asked, emit: Emit) -> StreamedAnswer:
        """Its answer, whole. Raises CaseError."""
        answer, seen = StreamedAnswer(self._connection.url, question.limit, self._vocabulary), 0
        dialect, connection = self._dialect, self._connection
        sizes = question.limit, len(question.prompt)
        async with aclosing(
            connection.stream(dialect.path, dialect.body(question), dialect.reply, *sizes)
        ) as events:
            async for event in events:
                chunk = dialect.read(event, seen)
                seen += len(chunk.ids or ())
                answer.take(chunk, emit)
        if answer.finish is None:
            raise CaseError(
                f"{answer.url}: the answer ends without a reason; expected stop or length"
            )
        return answer

    async def gauges(self) -> Mapping[str, float]:
        """See ``Remote.gauges``; a page that cannot be read is a warning, and the measurement
        continues.
        """
        found: dict[str, float] = {}
        for each in self._watched:
            try:
                status, page = await each.ask(METRICS)
            except CaseError:
                self._seen[f"{each.url}{METRICS} could not be read during the load"] += 1
                continue
            found |= read_gauges(page.decode("utf-8", "replace")) if status == OK else {}
        return found

    def _spell(self, prompt: Sequence[int]) -> str:
        """The prompt as a text that the tokenizer reads as the same ids, if there is one."""
        texts = [
            self._tokenizer.decode(prompt[start:], skip_special_tokens=False) for start in (1, 0)
        ]
        for text in texts:
            if list(self._tokenizer(text).input_ids) == list(prompt):
                return text
        self._seen["prompts whose text the tokenizer reads as other ids"] += 1
        return texts[1]

    def gap(self, context: Sequence[int], chosen: int, other: int) -> float | None:
        """By one more request after the block, where the server gives log-probabilities by id."""
        if not (self._by_ids or self.endpoint == CHAT):
            return None
        try:
            scores = self.run(self._dialect.score(self._connection, self._name, context))
        except CaseError as error:  # this comparison's, and no other row's
            log.warning("a difference could not be compared: %s", error)
            return None
        return abs(scores[chosen] - scores[other]) if chosen in scores and other in scores else None

    def _settle(self, answer: StreamedAnswer) -> Settled:
        """Ids and steps, from the account that is trusted; the counters' too where the request was
        alone.
        """
        if self._before:
            page, counters = self._page()
            self._identity.note(page)
            counted = report_from_counters(self._before, counters)
            answer.reports += [counted] if counted else []
        if self._plain and not answer.reports:
            answer.reports = [DraftReport(COUNTERS, accepted=0)]
        account = answer.settle(self._tokenizer, self._eos, self._dialect.steps)
        # all of them are in the run's log, the terminal has the first
        for text in account.complaints:
            log.log(
                logging.INFO if self._seen[DISAGREE] else logging.WARNING,
                "%s: %s",
                self._connection.url,
                text,
            )
            self._seen[DISAGREE] += 1
        return Settled(answer.ids, account.steps, answer.stats())

    def _page(self) -> tuple[str, Counters]:
        """The server's metrics and their counters; read until these no longer change: they may lag
        behind an answer.
        """
        before: Counters | None = None
        for _ in range(1 + LAGS):
            text = self._connection.read(METRICS) or ""
            counters = parse_counters(text, self._connection.url + METRICS)
            if not counters or counters == before:
                break
            before = counters
        return text, counters

    def close(self) -> None:
        self._connection.close()
        if self._engine:
            self._engine.end()
