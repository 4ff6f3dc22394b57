"""What a run decodes: a suite's questions put to a model, or the conversations of a recorded trace.

Everything here is read before any weights, and raises InputError naming the setting that is wrong.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from specbench.models.facade import ModelCard
from specbench.models.load import find_eos, locate, read_card, read_tokenizer
from specbench.names import suite_name
from specbench.records.record import EngineKind
from specbench.runs.config import Config
from specbench.suite import Selection, Shots, Suite, load_suite, select, whole_of
from specbench.suite.prompt import PromptBuilder, answer_text
from specbench.trace import Trace, find_trace, kind_of, model_of, read_trace
from specbench.types import InputError

ALIKE = 0.9  # share of answers whose count comes out with the right tokenizer; a wrong one gives far less
SPELLED = 50  # answers that are turned into text to see whether the tokenizer is theirs
SERVED = "server"  # in place of a folder of weights
MOST_CONTEXT = 1 << 20  # [tokens] where a tokenizer names no length: the server refuses what is too long
FROM_TRACE = "trace"  # suite.format: the cases are the trace's own


@dataclass(frozen=True, slots=True)
class Material:
    """The questions, the target's card, how prompts are made, and the trace where one is replayed."""

    suite: Suite
    card: ModelCard
    prompts: PromptBuilder | None
    trace: Trace | None = None


def gather(config: Config) -> Material:
    """Read everything but weights. Raises InputError."""
    if (config.engine.kind in (EngineKind.REPLAY, EngineKind.TIMED)) != bool(config.model.trace):
        raise InputError(
            f"engine.kind={config.engine.kind} with model.trace={config.model.trace}: expected both or neither;"
            " model=replay model.trace=FILE sets both; model=MODEL engine=timed model.trace=FILE times MODEL along it"
        )
    if config.engine.kind == EngineKind.REPLAY:
        return _recorded(config, find_trace(str(config.model.trace)))
    if config.engine.kind == EngineKind.TIMED:
        return _timed(config, find_trace(str(config.model.trace)))
    if config.engine.kind == EngineKind.SERVER:
        return _served(config)
    if config.suite.format == FROM_TRACE:
        raise InputError("suite=trace: is for a trace, as model=replay model.trace=FILE; expected a suite of questions")
    suite = _load_suite(config)
    card = read_card(**model_options(config), **_card_options(config))
    return Material(suite, card, _prompts(config, card.tokenizer))


def _served(config: Config) -> Material:
    """Questions for servers: the tokenizer of their model, and no weights."""
    model = config.model
    if model.tokenizer is None:
        raise InputError("model.tokenizer: not set; expected the folder or hub id of the tokenizer of the served model")
    source = locate(model.tokenizer, "model.tokenizer")
    options = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    tokenizer = read_tokenizer(source, "model.tokenizer", **options)
    settings = PreTrainedConfig.from_dict({"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id})
    card = ModelCard(
        name=model.name or "server",
        path=SERVED,
        config=settings,
        tokenizer=tokenizer,
        context=model.context or min(int(tokenizer.model_max_length), MOST_CONTEXT),
        eos=find_eos(settings, tokenizer, source, model.revision),
        dtype=model.dtype,
        device="server",
    )
    return Material(_load_suite(config), card, _prompts(config, tokenizer))


def _prompts(config: Config, tokenizer: PreTrainedTokenizerBase) -> PromptBuilder:
    model = config.model
    return PromptBuilder(tokenizer, model.template, model.system, model.thinking)


def _recorded(config: Config, path: Path) -> Material:
    """A trace, its cases narrowed as the suite says."""
    if config.measure.lossless:
        raise InputError(
            "measure.lossless=true: a replay has no logits to judge by; expected false, as measure=replay has it"
        )
    if config.decode.temperature > 0:
        raise InputError(
            f"decode.temperature={config.decode.temperature}: a replay emits the recorded tokens; expected 0"
        )
    tokenizer = _tokenizer(config, path)
    suite = None if config.suite.format == FROM_TRACE else _load_suite(config)

    def builder() -> PromptBuilder:
        return _prompts(config, tokenizer)

    trace = read_trace(path, builder, tokenizer.eos_token_id, suite.cases if suite else None)
    own = [each.case for each in trace.conversations]
    cases = tuple(own) if suite else tuple(select(own, selection_of(config)))
    name = suite.name if suite else trace.suite or path.stem
    both = f"{suite.sha256} {trace.sha256}" if suite else ""
    digest = hashlib.sha256(both.encode()).hexdigest() if both else trace.sha256
    vocabulary = max(len(tokenizer), 1 + max(int(ids.max()) for ids in _ids(trace)))
    if vocabulary > len(tokenizer) and config.model.tokenizer and config.engine.kind == EngineKind.REPLAY:
        raise InputError(
            f"model.tokenizer={config.model.tokenizer}: has {len(tokenizer)} tokens, the trace {path} has id"
            f" {vocabulary - 1}; expected the tokenizer of the model that answered, which the run of a records.jsonl"
            " names itself"
        )
    card = ModelCard(
        name=config.model.name or trace.model or path.stem,
        path=trace.origin,
        config=PreTrainedConfig.from_dict({"vocab_size": vocabulary}),
        tokenizer=tokenizer,
        context=max(len(turn.prompt) + len(turn.ids) for each in trace.conversations for turn in each.turns),
        eos=trace.ends | _own_end(trace, tokenizer.eos_token_id),
        dtype="auto",
        device="cpu",
    )
    whole = suite.whole if suite else whole_of(own, selection_of(config))
    warnings = tuple(_trace_warnings(trace, suite, tokenizer))
    return Material(Suite(name, cases, trace.origin, digest, warnings, whole), card, None, trace)


def _own_end(trace: Trace, eos: int | None) -> frozenset[int]:
    """The tokenizer's EOS where it cuts no answer: no draft goes on behind it, as in the run that was recorded."""
    turns = (turn for each in trace.conversations for turn in each.turns)
    if eos is None or any((turn.ids[:-1] == eos).any() for turn in turns):
        return frozenset()
    return frozenset({eos})


def _ids(trace: Trace) -> Iterator[np.ndarray]:
    """The prompt and the answer of every turn."""
    return (ids for each in trace.conversations for turn in each.turns for ids in (turn.prompt, turn.ids))


def _trace_warnings(trace: Trace, suite: Suite | None, tokenizer: Any) -> Iterator[str]:
    """Warnings about a trace. suite: the questions that were selected, None where the cases are the trace's own."""
    if suite:
        yield from suite.warnings
        count = len(trace.conversations)
        if count + trace.failed < len(suite.cases):
            yield f"The trace holds {count} of the {len(suite.cases)} selected questions; the others are left out."
    if trace.failed:
        yield f"{trace.failed} conversations of the trace lack a good answer and are left out."
    if trace.repeated:
        yield f"{trace.repeated} questions are answered again on a later line of the trace; the last answer counts."
    if parted := _parted(trace):
        yield (
            f"{parted} later prompts of the trace do not begin with the prompt of the turn before: expected prompt_ids"
            " with the whole conversation, unless the template rewrites earlier turns."
        )
    spelled = [turn for each in trace.conversations for turn in each.turns if trace.kind == "records" and turn.text]
    alike = sum(answer_text(tokenizer, turn.ids.tolist()) == turn.text for turn in spelled[:SPELLED])
    if alike < ALIKE * len(spelled[:SPELLED]):
        yield (
            f"{alike} of the first {len(spelled[:SPELLED])} answers of the trace read as they are recorded: is"
            " model.tokenizer the tokenizer of the model that answered?"
        )
    yield from _with_special(trace, tokenizer.all_special_tokens)
    if trace.exact is not None and trace.exact < ALIKE * trace.turns:
        yield f"Trace {trace.summary()}: is model.tokenizer the tokenizer of the model that answered?"
    elif trace.exact is not None and trace.exact < trace.turns:
        yield f"Trace {trace.summary()}; the others lost something when they were written as text."


def _parted(trace: Trace) -> int:
    """Prompts of records that do not begin with the prompt of the turn before."""
    pairs = (pair for each in trace.conversations for pair in itertools.pairwise(each.turns))
    return sum(
        trace.kind == "records" and not np.array_equal(turn.prompt[: len(last.prompt)], last.prompt)
        for last, turn in pairs
    )


def _with_special(trace: Trace, tokens: Sequence[str]) -> Iterator[str]:
    """A warning about texts in which the tokenizer finds special tokens."""
    texts = [turn.text for each in trace.conversations for turn in each.turns if trace.kind != "records"]
    found = [token for text in texts for token in tokens if token in text][:1]
    if found:
        count = sum(any(token in text for token in tokens) for text in texts)
        yield (
            f"{count} answers of the trace hold special tokens as text, such as {found[0]}: each is replayed as the"
            " token, and an EOS ends the answer."
        )


def _timed(config: Config, path: Path) -> Material:
    """A trace and the model that is timed along it. Raises InputError where the model is too small for the trace."""
    options = _card_options(config)
    if not options["path"] and not options["random"]:
        raise InputError("engine=timed: no model to time; expected one, e.g. model=random_7b or model=random")
    found = _recorded(config, path)
    assert found.trace is not None
    options["tokenizer"] = _tokenizer_source(config, path)
    card = read_card(**model_options(config), **options)
    chosen = {case.id for case in found.suite.cases}
    turns = [turn for each in found.trace.conversations if each.case.id in chosen for turn in each.turns]
    highest = max(int(ids.max()) for turn in turns for ids in (turn.prompt, turn.ids))
    if highest >= card.vocab_size:
        raise InputError(
            f"model={card.name}: its vocabulary is of {card.vocab_size} tokens, the trace has id {highest}; expected a"
            f" shape of at least {highest + 1} (model.random.config.vocab_size), or the trace's own model"
        )
    longest = max(len(turn.prompt) + len(turn.ids) for turn in turns)
    if longest > card.context:
        raise InputError(
            f"model={card.name}: its context is of {card.context} tokens, the trace's longest request of {longest};"
            " expected no less (model.random.config.max_position_embeddings), or fewer cases (suite.ids, suite.limit)"
        )
    return replace(found, card=replace(card, eos=found.card.eos))


def _tokenizer(config: Config, path: Path) -> Any:
    """The tokenizer of the texts of a trace."""
    options = {"revision": config.model.revision, "trust_remote_code": config.model.trust_remote_code}
    own = config.model.tokenizer or config.model.path
    key = "model.tokenizer" if own else f"model.trace={path}, the manifest beside it: model.tokenizer"
    return read_tokenizer(locate(_tokenizer_source(config, path), key), key, **options)


def _tokenizer_source(config: Config, path: Path) -> str:
    """The tokenizer that is set, or that of the run whose records are replayed."""
    model = config.model
    source = model.tokenizer or model.path
    if source is None and kind_of(path) == "records":
        source = model_of(path).tokenizer
    if source is None:
        raise InputError(
            "model.tokenizer: not set; expected the folder or hub id of the tokenizer of the model that answered"
        )
    return str(source)


def selection_of(config: Config) -> Selection:
    """Which cases the configuration keeps."""
    suite = config.suite
    return Selection(
        categories=tuple(suite.categories) if suite.categories is not None else None,
        limit=suite.limit,
        sample=suite.sample,
        seed=suite.seed,
        first=suite.first,
        ids=tuple(suite.ids) if suite.ids is not None else None,
        part=suite.part,
        order=suite.order,
    )


def _load_suite(config: Config) -> Suite:
    suite = config.suite
    hub = suite.hub
    if not suite.name and not suite.path:
        raise InputError("suite.path: not set; expected a file of questions, or one of the suites by suite=NAME")
    return load_suite(
        suite.name or suite_name(suite.path or ""),
        path=suite.path,
        relative=suite.relative,
        hub=vars(hub) if hub else None,
        home=suite.home,
        format=suite.format or (None if suite.name else "own"),
        fields={ours: theirs for ours, theirs in vars(suite.fields).items() if theirs},
        frame=suite.frame,
        form=suite.form,
        shots=Shots(suite.shots, suite.shots_seed, suite.shots_from),
        expected=suite.expected,
        sha256=suite.sha256,
        selection=selection_of(config),
    )


def model_options(config: Config) -> dict[str, Any]:
    """The options that both the card and the weights are read with."""
    model = config.model
    names = ("revision", "gpus", "attention", "safetensors", "trust_remote_code")
    return {name: getattr(model, name) for name in names}


def _card_options(config: Config) -> dict[str, Any]:
    model = config.model
    names = ("path", "name", "tokenizer", "context", "dtype", "device")
    shape = model.random
    random = {"family": shape.family, "config": dict(shape.config)} if shape else None
    return {**{name: getattr(model, name) for name in names}, "random": random, "overrides": model.overrides}
