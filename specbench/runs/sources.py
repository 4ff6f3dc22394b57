"""The source of a run's tokens: a model, recorded answers, a model timed along recorded answers, or
a server.

A source reads everything that needs no weights (``gather``), refuses settings and methods that do
not fit it, loads the engine and the target that methods decode with (``open``), and decides how an
answer is checked (``check``). What it refuses is an InputError that names the setting.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specbench.decode.check import check_engine
from specbench.decode.sampling import Sampling
from specbench.decode.threads import ThreadChoice
from specbench.measure.lossless import compare_block, judge_block
from specbench.measure.plan import WARMUP
from specbench.method import Method, Peer, Remote
from specbench.models.choose import TENSOR, choose_attention, make_engine
from specbench.models.engine import Engine
from specbench.models.facade import NOWHERE, ModelCard, Target
from specbench.models.fast.attention import FastOptions
from specbench.models.load import (
    find_eos,
    find_vocab_size,
    load_model,
    locate,
    read_card,
    read_tokenizer,
)
from specbench.models.replay import AlongRecord, ReplayEngine, ServerEngine, SyntheticAcceptance
from specbench.models.tensor_parallel.start import TeamSettings, start
from specbench.profile import Profile
from specbench.records.record import VANILLA, CaseRecord, EngineKind
from specbench.runs.config import Config
from specbench.runs.entry import Entry
from specbench.screen import LOADING
from specbench.suite import Suite, load_suite, select, whole_of
from specbench.suite.messages import find_cuts
from specbench.suite.prompt import PromptBuilder, answer_text
from specbench.trace import Trace, find_trace, kind_of, model_of, read_trace
from specbench.types import Case, InputError, named

# least share of answers with the recorded text or count; a wrong tokenizer gives far less
ALIKE = 0.9
SPELLED = 50  # answers that are decoded into text to check the tokenizer
SERVED = "server"  # the path of a model without a folder of weights
TOKEN_CHARACTERS = 128  # of the longest tokens of usual vocabularies, runs of blanks
MOST_CHARACTERS = 1 << 24  # of a question: more take minutes to tokenize
# [tokens] if a tokenizer names no length: the server refuses what is too long
MOST_CONTEXT = 1 << 20
FROM_TRACE = "trace"  # suite.format: the cases are the trace's own
log = logging.getLogger(LOADING)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn to decode.

    prompt: (T,) token ids. length, text: of the answer in tokens and as text, if recorded.
    conversation: of the prompt, as a server reads it that writes the prompt itself.
    """

    prompt: list[int]
    length: int | None = None
    text: str | None = None
    conversation: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """The parts with which a run decodes: an engine and a target, with the methods bound to it.

    next_turn: (case, its answers so far) -> its next turn. warmup: cases to decode before the clock
    counts. note: on the choice of the engine. readers: methods whose drafts come from what the
    target computes while it is driven along a record, so that their accepted lengths mean nothing.
    threads: of the CPU. profile: the cost of a step, if the run decides by it; step_ms: rows ->
    [ms] that it was made of, if it was measured here. limits: method -> the most nodes of its
    drafts, if they are limited. logs: the folder of what programs print that methods start.
    """

    engine: Engine
    target: Target
    next_turn: Callable[[Case, Sequence[str]], Turn]
    warmup: tuple[Case, ...]
    note: str | None = None
    readers: frozenset[str] = frozenset()
    threads: ThreadChoice | None = None
    profile: Profile | None = None
    step_ms: Mapping[int, float] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    logs: Path | None = None


@dataclass(frozen=True)
class Source:
    """A model that is loaded here answers the questions of a suite; the other sources differ from
    it in some steps.
    """

    config: Config
    suite: Suite
    card: ModelCard
    prompts: PromptBuilder | None = None
    trace: Trace | None = None

    loads: ClassVar[bool] = True  # weights, onto a device of this machine
    timed: ClassVar[bool] = True  # its seconds are those of a model

    @classmethod
    def gather(cls, config: Config) -> Source:
        """Read everything but weights. Raises InputError."""
        if config.suite.format == FROM_TRACE:
            raise InputError(
                "suite=trace: is for a trace, as model=replay model.trace=FILE; expected a suite of"
                " questions"
            )
        card = read_card(**_card_options(config))
        prompts, suite = _prompts(config, card.tokenizer), load_suite(config.suite)
        return cls(config, _fit_cases(suite, prompts, card), card, prompts)

    def open(self, sampling: Sampling | None, way: str | None, why: str | None) -> Stage:
        """Load what methods decode with; none is bound yet. way, why: as ``choose_parallelism``
        chose them.
        """
        config, kind, most = self.config, self.config.engine.kind, self.config.engine.largest_draft
        log.info("loading the weights of %s", self.card.name)
        if way == TENSOR:
            engine, model, note = start(
                TeamSettings(
                    card=self.card,
                    ranks=config.model.gpus or 1,
                    max_nodes=most,
                    revision=config.model.revision,
                    safetensors=config.model.safetensors,
                    seed=_seed(config),
                    options=choose_attention(_fast_options(config), self.card, most)[0],
                    threads=config.model.threads,
                    check=config.model.check_ranks,
                )
            )
            try:
                return self.ask(sampling, engine, model, note)
            except BaseException:
                engine.close()
                raise
        model = load_model(self.card, seed=_seed(config), **model_options(config))
        chosen, reason, note = make_engine(
            kind, model, self.card, most, config.model.attention, _fast_options(config)
        )
        reason = (why or reason) if kind == EngineKind.AUTO else None
        return self.ask(
            sampling,
            chosen,
            model,
            f"engine=auto chose {chosen.kind}: {reason}" if reason else note,
        )

    def bind(self, entries: Sequence[Entry], stage: Stage) -> frozenset[str]:
        """Bind methods to the target, and prepare the engine for their needs; returns the
        ``readers``.

        Raises InputError for a method that cannot be served.
        """
        logs = {
            entry.name: stage.logs / f"{entry.name}.log" if stage.logs else NOWHERE
            for entry in entries
        }
        targets = {name: replace(stage.target, log=log) for name, log in logs.items()}
        return frozenset(
            entry.name for entry in entries if self._bind(entry, stage.engine, targets[entry.name])
        )

    def _bind(self, entry: Entry, engine: Engine, target: Target) -> bool:
        """Bind one method; returns whether it is one of the ``readers``."""
        log.info("loading %s", entry.name)
        watched = target.asked
        if watched is not None:
            watched.clear()
        with named(f"method.{entry.name}."):
            entry.method.bind(target)
        needs = entry.method.needs
        reads = bool(needs.node_topk or needs.prompt_topk or needs.hidden)
        if target.model is None and reads:
            raise InputError(
                _no_replay(entry.name, "it needs the target's logits or hidden states")
            )
        if target.model is not None and needs.hidden and max(needs.hidden) > target.layers:
            raise InputError(
                f"method.{entry.name}: needs hidden state {max(needs.hidden)}, the target has"
                f" 0..{target.layers}"
            )
        if not isinstance(entry.method, Peer):
            engine.prepare(needs, target.sampling is None)
        return watched is not None and bool(reads or watched)

    def check(
        self,
        engine: Engine,
        vanilla: Method,
        records: Sequence[CaseRecord],
        prompts: dict[str, list[list[int]]],
    ) -> None:
        """Check the records of one case by teacher forcing. prompts: method -> token ids of each
        turn's prompt.
        """
        judge_block(records, prompts, engine.gaps, self.card.dtype)

    def ask(
        self, sampling: Sampling | None, engine: Engine, model: Any, note: str | None = None
    ) -> Stage:
        """A stage that answers the questions of the suite; the engine of a model is checked."""
        prompts, settings = self.prompts, self.config.engine
        assert prompts is not None
        if model is not None:
            log.info("checking the engine")
            check_engine(engine, model)

        def next_turn(case: Case, answers: Sequence[str]) -> Turn:
            return Turn(
                prompts.prompt(case, answers), conversation=prompts.conversation(case, answers)
            )

        target = Target(self.card, model, settings.largest_draft, sampling, engine.attention)
        warmup = tuple(WARMUP[index % len(WARMUP)] for index in range(self.config.measure.warmup))
        return Stage(engine, target, next_turn, warmup, note)


class Server(Source):
    """Servers answer the questions of a suite; only the tokenizer of their model is needed here."""

    loads = False

    @classmethod
    def gather(cls, config: Config) -> Source:
        """Read the suite and the tokenizer of the served model. Raises InputError."""
        model = config.model
        if model.tokenizer is None:
            raise InputError(
                "model.tokenizer: not set; expected the folder or hub id of the tokenizer of the"
                " served model"
            )
        source, tokenizer = _read_tokenizer(config, model.tokenizer, "model.tokenizer")
        rows = find_vocab_size(source, model.revision, tokenizer)
        settings = PreTrainedConfig.from_dict(
            {"vocab_size": rows, "eos_token_id": tokenizer.eos_token_id}
        )
        card = ModelCard(
            name=model.name or "server",
            path=SERVED,
            config=settings,
            tokenizer=tokenizer,
            context=model.context or min(int(tokenizer.model_max_length), MOST_CONTEXT),
            eos=find_eos(settings, tokenizer, source, model.revision, f"model.tokenizer={source}"),
            dtype=model.dtype,
            device="server",
        )
        prompts, suite = _prompts(config, tokenizer), load_suite(config.suite)
        return cls(config, _fit_cases(suite, prompts, card), card, prompts)

    def open(self, sampling: Sampling | None, way: str | None, why: str | None) -> Stage:
        """Nothing is loaded: the methods ask the servers."""
        return self.ask(sampling, ServerEngine(self.card, self.config.engine.largest_draft), None)

    def bind(self, entries: Sequence[Entry], stage: Stage) -> frozenset[str]:
        """As of ``Source``. Raises InputError for a method that needs a model here, or a server
        with another model.
        """
        methods = {
            entry.name: entry.method for entry in entries if isinstance(entry.method, Remote)
        }
        for entry in entries:
            if entry.name not in methods:
                raise InputError(
                    f"method.{entry.name}: decodes with a model here, and engine=server has none;"
                    " expected rows of servers (methods.server.method.ServerPeer), or a model and"
                    " engine=auto"
                )
        readers = super().bind(entries, stage)
        for name, method in methods.items():
            if method is not methods[VANILLA]:
                with named(f"method.{name}."):
                    method.require_same_model(methods[VANILLA])
        return readers

    def check(
        self,
        engine: Engine,
        vanilla: Method,
        records: Sequence[CaseRecord],
        prompts: dict[str, list[list[int]]],
    ) -> None:
        """Compare by the log-probabilities of the baseline's server if ids differ from the
        baseline's.
        """
        assert isinstance(vanilla, Remote)
        compare_block(records, prompts, vanilla.gap, self.card.dtype)


class Recorded(Source):
    """Recorded answers take the place of a model: a replay, which emits them token by token."""

    loads = timed = False

    @classmethod
    def gather(cls, config: Config) -> Source:
        """Read the trace and its tokenizer, the cases narrowed by the selection of the suite.
        Raises InputError.
        """
        path = find_trace(str(config.model.trace))
        if config.measure.lossless:
            raise InputError(
                "measure.lossless=true: a replay has no logits to judge by; expected false, as"
                " measure=replay has it"
            )
        if config.decode.temperature > 0:
            raise InputError(
                f"decode.temperature={config.decode.temperature}: a replay emits the recorded"
                " tokens; expected 0"
            )
        found: Any = _find_tokenizer(config, path, needed=cls.loads)
        suite = None if config.suite.format == FROM_TRACE else load_suite(config.suite)
        wanted = suite.cases if suite else None
        end: Any = found.eos_token_id if found else None
        trace = read_trace(path, lambda: _prompts(config, found), end, wanted)
        turns = [turn for each in trace.conversations for turn in each.turns]
        highest = max(int(ids.max()) for turn in turns for ids in (turn.prompt, turn.ids))
        tokenizer = found or _name_ids(highest + 1)
        if highest >= len(tokenizer) and config.model.tokenizer and not cls.loads:
            raise InputError(
                f"model.tokenizer={config.model.tokenizer}: has {len(tokenizer)} tokens, the trace"
                f" {path} has id {highest}; expected the tokenizer of the model that answered,"
                " which the run of a records.jsonl names itself"
            )
        # ends drafts as in the recorded run, unless it is inside an answer
        inside = end is None or any((turn.ids[:-1] == end).any() for turn in turns)
        own_end = frozenset() if inside else frozenset({end})
        card = ModelCard(
            name=config.model.name or trace.model or path.stem,
            path=trace.origin,
            config=PreTrainedConfig.from_dict({"vocab_size": max(len(tokenizer), 1 + highest)}),
            tokenizer=tokenizer,
            context=max(len(turn.prompt) + len(turn.ids) for turn in turns),
            eos=trace.ends | own_end,
            dtype="auto",
            device="cpu",
        )
        own = [each.case for each in trace.conversations]
        both = f"{suite.sha256} {trace.sha256}" if suite else ""
        questions = Suite(
            suite.name if suite else trace.suite or path.stem,
            tuple(own) if suite else select(own, config.suite),
            trace.origin,
            hashlib.sha256(both.encode()).hexdigest() if both else trace.sha256,
            tuple(trace_warnings(trace, suite, found)),
            suite.whole if suite else whole_of(own, config.suite),
        )
        return cls(config, questions, card, None, trace)

    def open(self, sampling: Sampling | None, way: str | None, why: str | None) -> Stage:
        """Nothing is loaded: the engine emits what is recorded."""
        most = self.config.engine.largest_draft
        return self.recall(ReplayEngine(self.card.eos, most), Target(self.card, None, most, None))

    def recall(
        self, engine: ReplayEngine | AlongRecord, target: Target, note: str | None = None
    ) -> Stage:
        """A stage of turns as they were recorded; the engine loads each before it is decoded."""
        assert self.trace is not None
        turns = {each.case.id: each.turns for each in self.trace.conversations}
        # prompt tokens that the engine emits as an answer's
        given = int(self.config.decode.first_draft == "prefill")

        def next_turn(case: Case, answers: Sequence[str]) -> Turn:
            turn = turns[case.id][len(answers)]
            prompt, ids = turn.prompt.tolist(), turn.ids.tolist()
            split = len(prompt) - given
            engine.load(prompt[:split], prompt[split:] + ids)
            return Turn(prompt, len(ids), turn.text)

        # Only what is recorded can be decoded, so the trace warms up too.
        warmup = tuple(each.case for each in self.trace.conversations[: self.config.measure.warmup])
        return Stage(engine, target, next_turn, warmup, note)

    def bind(self, entries: Sequence[Entry], stage: Stage) -> frozenset[str]:
        """As of ``Source``. Raises InputError for a method that decodes with the model itself."""
        for entry in entries:
            if isinstance(entry.method, Peer):
                raise InputError(_no_replay(entry.name, "it decodes with the model itself"))
        return super().bind(entries, stage)


class Timed(Recorded):
    """A model is timed while recorded answers decide its tokens."""

    loads = timed = True

    @classmethod
    def gather(cls, config: Config) -> Source:
        """Read the trace and the model's card. Raises InputError if the model is too small for the
        trace.
        """
        path = find_trace(str(config.model.trace))
        if not config.model.path and not config.model.random:
            raise InputError(
                "engine=timed: no model to time; expected one, e.g. model=random_7b or model=random"
            )
        found = super().gather(config)
        assert found.trace is not None
        card = read_card(**_card_options(config) | {"tokenizer": _tokenizer_source(config, path)})
        chosen = {case.id for case in found.suite.cases}
        turns = [
            turn
            for each in found.trace.conversations
            if each.case.id in chosen
            for turn in each.turns
        ]
        highest = max(int(ids.max()) for turn in turns for ids in (turn.prompt, turn.ids))
        if highest >= card.vocab_size:
            raise InputError(
                f"model={card.name}: its vocabulary is of {card.vocab_size} tokens, the trace has"
                f" id {highest}; expected a shape of at least {highest + 1}"
                " (model.random.config.vocab_size), or the trace's own model"
            )
        longest = max(len(turn.prompt) + len(turn.ids) for turn in turns)
        if longest > card.context:
            raise InputError(
                f"model={card.name}: its context is of {card.context} tokens, the trace's longest"
                f" request of {longest}; expected no less"
                " (model.random.config.max_position_embeddings), or fewer cases (suite.ids,"
                " suite.limit)"
            )
        return replace(found, card=replace(card, eos=found.card.eos))

    def open(self, sampling: Sampling | None, way: str | None, why: str | None) -> Stage:
        config, settings = self.config, self.config.engine
        log.info("loading the weights of %s", self.card.name)
        model = load_model(self.card, seed=_seed(config), **model_options(config))
        attention, options = config.model.attention, _fast_options(config)
        engine, reason, note = make_engine(
            EngineKind.TIMED, model, self.card, settings.largest_draft, attention, options
        )
        assert isinstance(engine, AlongRecord)
        check_engine(engine, model)
        if settings.acceptance is not None:
            engine.acceptance = SyntheticAcceptance(settings.acceptance)
        target = Target(self.card, model, settings.largest_draft, None, engine.attention, asked=[])
        return self.recall(
            engine, target, f"engine=timed drives the eager forward: {reason}" if reason else note
        )


SOURCES = {EngineKind.REPLAY: Recorded, EngineKind.TIMED: Timed, EngineKind.SERVER: Server}


def gather(config: Config) -> Source:
    """Read everything but weights from the source that the settings name. Raises InputError."""
    follows, trace = config.engine.kind in (EngineKind.REPLAY, EngineKind.TIMED), config.model.trace
    if follows and not trace:
        raise InputError(
            f"model.trace: not set; engine={config.engine.kind} needs recorded answers:"
            " model.trace=FILE, such as the folder of a run"
        )
    if trace and not follows:
        raise InputError(
            f"model.trace={trace}: is not for engine={config.engine.kind}; expected model=replay,"
            " or engine=timed, which times the model along it"
        )
    return SOURCES.get(EngineKind(config.engine.kind), Source).gather(config)


def _no_replay(name: str, reason: str) -> str:
    return (
        f"method.{name}: {reason}, and a replay has recorded tokens only; leave it out, or choose a"
        " model"
    )


def trace_warnings(trace: Trace, suite: Suite | None, tokenizer: Any) -> Iterator[str]:
    """Warnings about a trace. suite: the questions that were selected, None if the cases are the
    trace's own. tokenizer: None for records whose own is not here, which have texts.
    """
    live = trace.kind == "records"
    if suite:
        yield from suite.warnings
        count = len(trace.conversations)
        if count + trace.failed < len(suite.cases):
            yield (
                f"The trace has {count} of the {len(suite.cases)} selected questions; the others"
                " are left out."
            )
    if trace.failed:
        yield f"{trace.failed} conversations of the trace lack a good answer and are left out."
    if trace.repeated:
        yield (
            f"{trace.repeated} questions are answered again on a later line of the trace; the last"
            " answer counts."
        )
    pairs = (pair for each in trace.conversations for pair in itertools.pairwise(each.turns))
    if diverged := sum(
        live and not np.array_equal(turn.prompt[: len(last.prompt)], last.prompt)
        for last, turn in pairs
    ):
        yield (
            f"{diverged} later prompts of the trace do not begin with the prompt of the turn"
            " before: expected prompt_ids with the whole conversation, unless the template"
            " rewrites earlier turns."
        )
    turns = [turn for each in trace.conversations for turn in each.turns]
    spelled = [turn for turn in turns if tokenizer and live and turn.text][:SPELLED]
    alike = sum(answer_text(tokenizer, turn.ids.tolist()) == turn.text for turn in spelled)
    if alike < ALIKE * len(spelled):
        yield (
            f"{alike} of the first {len(spelled)} answers of the trace read as they are recorded:"
            " is model.tokenizer the tokenizer of the model that answered?"
        )
    texts = [turn.text for turn in turns if not live]
    special = tokenizer.all_special_tokens if tokenizer else ()
    if found := [token for text in texts for token in special if token in text][:1]:
        count = sum(any(token in text for token in special) for text in texts)
        yield (
            f"{count} answers of the trace contain special tokens as text, such as {found[0]}: each"
            " is replayed as the token, and an EOS ends the answer."
        )
    if trace.exact is not None and trace.exact < ALIKE * trace.turns:
        yield (
            f"Trace {trace.summary()}: is model.tokenizer the tokenizer of the model that answered?"
        )
    elif trace.exact is not None and trace.exact < trace.turns:
        yield f"Trace {trace.summary()}; the others lost something when they were written as text."


def _tokenizer_source(config: Config, path: Path) -> str:
    """The tokenizer that is set, or that of the run whose records are replayed."""
    source = config.model.tokenizer or config.model.path
    if source is None and kind_of(path) == "records":
        source = model_of(path).tokenizer
    if source is None:
        raise InputError(
            "model.tokenizer: not set; expected the folder or hub id of the tokenizer of the model"
            " that answered"
        )
    return str(source)


def _find_tokenizer(config: Config, path: Path, needed: bool) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a trace; None for records whose own is not on this machine: they have ids
    and texts.

    needed: raise InputError then.
    """
    given = config.model.tokenizer or config.model.path
    key = (
        "model.tokenizer"
        if given
        else f"model.trace={path}, the manifest next to it: model.tokenizer"
    )
    try:
        return _read_tokenizer(config, _tokenizer_source(config, path), key)[1]
    except InputError:
        if given or needed or kind_of(path) != "records":
            raise
        return None


def _name_ids(size: int) -> PreTrainedTokenizerBase:
    """A tokenizer of so many ids, each a text of its own, for records whose texts are known."""
    words = WordLevel({f"<{each}>": each for each in range(size)}, unk_token="<0>")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words))


def _read_tokenizer(config: Config, path: str, key: str) -> tuple[str, PreTrainedTokenizerBase]:
    """The folder or hub id of a tokenizer, and the tokenizer. key: the setting that names it, for
    errors.
    """
    own = config.model.gguf if path == config.model.path else None
    source = locate(path, key, own, config.model.revision)
    options = {
        "revision": config.model.revision,
        "trust_remote_code": config.model.trust_remote_code,
    }
    return source, read_tokenizer(source, key, **options)


def _prompts(config: Config, tokenizer: PreTrainedTokenizerBase) -> PromptBuilder:
    model = config.model
    return PromptBuilder(tokenizer, model.template, model.system, model.thinking)


def _fit_cases(suite: Suite, prompts: PromptBuilder, card: ModelCard) -> Suite:
    """Returns the suite with the turns of recorded conversations whose prompts fit into the
    context.

    A warning counts the others. Raises InputError for a case that the template cannot write, or
    whose text is too long to be tokenized, and for a recorded conversation without a turn that
    fits.
    """
    most = min(card.context * TOKEN_CHARACTERS, MOST_CHARACTERS)
    fitted: dict[str, Case] = {}
    for case in suite.cases:
        with named(f"{suite.origin}, question {case.id}: "):
            prompts.of(case)
            if case.messages:
                fitted[case.id] = _fit_turns(case, prompts, card.context)
            elif (count := len(case.system or "") + sum(map(len, case.turns))) > most:
                raise InputError(
                    f"has {count} characters; expected at most {most} with a context of"
                    f" {card.context} tokens: shorten it, or leave it out (suite.ids, suite.limit)"
                )
    lost = sum(
        len(case.turns) - len(fitted[case.id].turns) for case in suite.cases if case.id in fitted
    )
    if not lost:
        return suite
    shorter = sum(
        len(case.turns) > len(fitted[case.id].turns) for case in suite.cases if case.id in fitted
    )
    warning = (
        f"Suite {suite.name}: {lost} turns at the end of {shorter} recorded conversations are left"
        f" out: their prompts are longer than the model's context of {card.context} tokens."
    )
    cases, whole = (
        tuple(fitted.get(case.id, case) for case in each) for each in (suite.cases, suite.whole)
    )
    return replace(suite, cases=cases, whole=whole, warnings=(*suite.warnings, warning))


def _fit_turns(case: Case, prompts: PromptBuilder, context: int) -> Case:
    """Returns a recorded conversation up to its last turn whose prompt fits, which a search
    finds.
    """
    builder = prompts.of(case)

    def fits(turn: int) -> bool:
        return builder.fits(case, turn, context, min(context * TOKEN_CHARACTERS, MOST_CHARACTERS))

    turns = range(len(case.turns))
    fit = (
        len(turns)
        if fits(turns[-1])
        else bisect.bisect_left(turns, True, key=lambda turn: not fits(turn))
    )
    if not fit:
        raise InputError(
            f"the prompt of its first turn is longer than the model's context of {context} tokens;"
            " expected a model with a longer one (model.context), or leave it out (suite.ids,"
            " suite.limit)"
        )
    cut = find_cuts(case.messages)[fit - 1]
    messages = case.messages if fit == len(turns) else case.messages[:cut]
    return replace(case, turns=case.turns[:fit], messages=messages)


def _seed(config: Config) -> int:
    return config.model.random.seed if config.model.random else 0


def _fast_options(config: Config) -> FastOptions:
    return FastOptions(config.engine.pack, config.engine.attention, config.engine.compiled)


def model_options(config: Config) -> dict[str, Any]:
    """Return the options that both the card and the weights are read with."""
    names = ("revision", "gpus", "attention", "safetensors", "trust_remote_code")
    return {name: getattr(config.model, name) for name in names}


def _card_options(config: Config) -> dict[str, Any]:
    model = config.model
    names = ("path", "gguf", "name", "tokenizer", "context", "dtype", "device", "overrides")
    random = (
        {**asdict(model.random), "config": dict(model.random.config or {})}
        if model.random
        else None
    )
    own = {name: getattr(model, name) for name in names}
    return {**model_options(config), **own, "random": random, "widen": asdict(model.widen)}
