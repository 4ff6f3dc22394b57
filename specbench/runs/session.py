"""Loads the target of a job, binds its methods, and decodes the blocks of its plan into records.

A case that fails becomes a record with ``status: error`` and its traceback, and the run continues;
no figure counts it. Garbage is collected between blocks only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from collections.abc import Container, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch.backends.cuda import enable_cudnn_sdp

from specbench.decode.budgets import Budgets, EqualBudget
from specbench.decode.latency import measure_steps, profile_of_steps
from specbench.decode.lengths import describe_idle
from specbench.decode.loop import PREFIX, Request, Transcript, decode
from specbench.decode.threads import choose_threads
from specbench.measure.clock import Clock, Meter, without_collector
from specbench.measure.identity import hide_identity
from specbench.measure.plan import Block, starts_span
from specbench.method import Method, Peer
from specbench.models.choose import TENSOR
from specbench.models.tensor_parallel.team import TeamError
from specbench.records.manifest import Manifest
from specbench.records.record import VANILLA, CaseRecord, Failure, TurnRecord
from specbench.runs.entry import Entry
from specbench.runs.job import Job
from specbench.runs.sources import Stage, Turn
from specbench.screen import LOADING
from specbench.suite.number import is_right
from specbench.suite.prompt import answer_text, count_thinking, thinking_marks
from specbench.types import Case, CaseError, InputError

log, loading = logging.getLogger(__name__), logging.getLogger(LOADING)
_KILLED = Failure(
    type="Killed",
    message="the process was killed in this block three times: the case is not tried again",
    traceback="",
    turn=0,
)


@contextlib.contextmanager
def set_stage(
    job: Job, earlier: Manifest | None = None, logs: Path | None = None
) -> Iterator[Stage]:
    """Load the target of a job and bind its methods; both are closed at the end.

    earlier: the manifest of the run that is resumed, if any: its threads and its costs of steps are
    taken. logs: the folder for what programs print that methods start. Raises InputError if the
    target cannot be driven, or a method cannot be served.
    """
    before = earlier or Manifest()
    model, source = job.config.model, job.source
    enable_cudnn_sdp(model.cudnn_attention)
    # torch's default; in the manifest
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    stage = replace(source.open(job.sampling, job.way, job.why), logs=logs)
    try:
        if source.loads and job.way != TENSOR:
            loading.info("choosing the threads")
            threads = choose_threads(
                stage.engine, model.threads, before.threads.count if before.threads else None
            )
            stage = replace(stage, threads=threads)
        if job.profile is not None:
            stage = replace(stage, profile=job.profile)
        elif job.priced:
            loading.info("measuring the cost of a step")
            engine, target = stage.engine, stage.target
            step_ms = {int(rows): ms for rows, ms in (before.step_ms or {}).items()}
            step_ms = step_ms or measure_steps(engine, target.device, target.vocab_size)
            stage = replace(stage, profile=profile_of_steps(step_ms, engine), step_ms=step_ms)
        readers = source.bind(job.entries, stage)
        loading.info("warming up, %d prompts a method", len(stage.warmup))
        yield replace(stage, readers=readers)
    finally:
        for entry in job.entries:
            entry.method.close()
        stage.engine.close()


class Session:
    """Runs blocks of the plan with the methods of a job, which are bound to a stage."""

    def __init__(self, job: Job, stage: Stage, meter: Meter | None = None) -> None:
        """meter: of the GPUs' energy, None if it cannot be read."""
        self._engine, self.next_turn, self._source = stage.engine, stage.next_turn, job.source
        self._decode, self._measure, self._sampling = (
            job.config.decode,
            job.config.measure,
            job.sampling,
        )
        self._keeps = job.config.engine.keep_prefix
        # method -> whether its turns found the turns before in the cache
        self._prefixes: dict[str, bool] = {}
        self._rule, self._plain = job.rule, type(job.entries[0].method)  # vanilla's
        self._limit, self._profile, self._meter = job.limit, stage.profile, meter
        self._entries = {entry.name: entry for entry in job.rows}
        self._lengths: dict[str, Budgets | None] = {}
        for entry in job.rows:
            limit = stage.limits.get(entry.name)
            if limit == 0:  # no node pays: plain decoding
                self._entries[entry.name] = replace(self._entries[VANILLA], name=entry.name)
            self._lengths[entry.name] = self._limit(
                EqualBudget(limit) if limit else None, self._profile
            )
        self._budgets: dict[str, Budgets] = {}  # of a load, by method
        self._clock = Clock(stage.target.device)
        self._tokenizer = stage.target.card.tokenizer
        self._marks = thinking_marks(self._tokenizer)
        if self._rule is not None and self._decode.accept_thinking:
            if self._marks is None:
                raise InputError(
                    "decode.accept_thinking=true: the tokenizer has no tokens <think> and </think>;"
                    " expected a model that thinks, or decode.accept_thinking=false"
                )
            self._rule = replace(self._rule, marks=self._marks)

    def warm_up(self, cases: Sequence[Case]) -> list[str]:
        """Decode ``cases`` with every method, then forget what was learned.

        Returns a warning for each method that failed: most likely it fails in its cases too.
        """
        failed: list[str] = []
        for entry in self._entries.values():
            self._reset(entry)
        for case in cases:
            for record in self._block(Block(-1, 0, case, tuple(self._entries), -1), check=False):
                if record.error:
                    failed.append(f"{record.method} failed in warm-up: {record.error['message']}")
        for entry in self._entries.values():
            self._reset(entry)
        return sorted(set(failed))

    def run(self, plan: Sequence[Block], deadly: Container[int] = ()) -> Iterator[list[CaseRecord]]:
        """The records of each block, in the order in which the methods ran.

        deadly: blocks that are not decoded, because they end the process; their records are errors.
        """
        for place, block in enumerate(plan):
            if block.index in deadly:
                yield [
                    record_of(block, case, position, name, _KILLED)
                    for position, name in enumerate(block.order)
                    for case in block.cases
                ]
                continue
            for entry in self._entries.values():
                if starts_span(plan, place, entry.reset):
                    self._reset(entry)
            yield self._block(block, check=self._measure.lossless and self._sampling is None)

    @property
    def warnings(self) -> list[str]:
        """Of the complete run: methods whose draft lengths no policy decided, or that alone read
        whole prompts.
        """
        peers = [name for name, entry in self._entries.items() if isinstance(entry.method, Peer)]
        found = describe_idle({**self._lengths, **self._budgets}, peers)
        whole = [name for name, kept in self._prefixes.items() if not kept]
        if whole and any(self._prefixes.values()):
            found.append(
                f"{', '.join(whole)}: reads whole prompts, while other methods read what a turn"
                " adds: compare the times without the target's prefills (decode_speedup; a draft"
                " model's reading of the prompt is in its first decode step, and counts), or set"
                " engine.keep_prefix=false"
            )
        return found

    def _reset(self, entry: Entry) -> None:
        entry.method.reset()
        if lengths := self._lengths[entry.name]:
            lengths.reset()

    def _block(self, block: Block, check: bool) -> list[CaseRecord]:
        prompts: dict[str, list[list[int]]] = {}
        with without_collector(freeze=True):
            records = [
                self._case(block, place, name, prompts) for place, name in enumerate(block.order)
            ]
        if check:
            self._check(block.case, records, prompts)
        return records

    def _check(
        self, case: Case, records: Sequence[CaseRecord], prompts: dict[str, list[list[int]]]
    ) -> None:
        drawn = {
            name for name, entry in self._entries.items() if getattr(entry.method, "synthetic", "")
        }
        records = [] if VANILLA in drawn else [each for each in records if each.method not in drawn]
        try:
            self._source.check(self._engine, self._entries[VANILLA].method, records, prompts)
        except (CaseError, torch.OutOfMemoryError) as error:
            log.warning("case %s could not be checked: %s", case.id, error)

    def _case(
        self, block: Block, place: int, name: str, prompts: dict[str, list[list[int]]]
    ) -> CaseRecord:
        record = record_of(block, block.case, place, name)
        prompts[name] = []
        try:
            self._turns(block.case, block, record, prompts[name])
            record.state_bytes = int(self._entries[name].method.state_bytes())
            # what cannot be read again is this case's error, not the run's
            CaseRecord.from_json(record.to_json())
        except TeamError:  # no case can be decoded any more
            raise
        except Exception as error:
            # the boundary of a case: recorded with its traceback, excluded visibly
            fail(record, error)
        return record

    def _turns(
        self, case: Case, block: Block, record: CaseRecord, prompts: list[list[int]]
    ) -> None:
        entry, answers = self._entries[record.method], list[str]()
        cached: list[int] = []  # of the turn before, in the engine's cache
        for turn in range(len(case.turns)):
            if turn and entry.reset == "turn":
                self._reset(entry)
            asked = self.next_turn(case, answers)
            request = self.request(
                asked, (case.id, turn, block.round), block, entry.method, self._lengths[entry.name]
            )
            if case.messages and self._keeps:
                shared = os.path.commonprefix([cached, asked.prompt])  # noqa: RUF071 (of tokens, not of paths)
                request = replace(request, kept=len(shared))
            before = self._meter.joules() if self._meter else None
            transcript = decode(self._engine, entry.method, request, self._clock)
            energy_j = self._meter.since(before) if self._meter else None
            cached = [*asked.prompt, *transcript.ids[:-1]]
            if request.kept:
                self._prefixes[record.method] = PREFIX in transcript.stats
            answers.append(self.text(asked, transcript))
            prompts.append(asked.prompt)
            record.turns.append(
                self._record(record.method, asked, transcript, answers[-1], energy_j=energy_j)
            )
        record.correct = is_right(case, self._answer(record.turns[-1]))

    def request(
        self,
        asked: Turn,
        names: tuple[object, ...],
        block: Block,
        method: Method,
        lengths: Budgets | None = None,
    ) -> Request:
        """Returns the request of a turn. names: of its random draws. lengths: the policy of draft
        lengths.

        Acceptance is exact without a draft, and outside the thinking if only the thinking may be
        lossy.
        """
        most, rule = self._decode.max_new_tokens, self._rule
        if rule is not None and rule.marks is not None:
            last = next((each for each in reversed(asked.prompt) if each in rule.marks), None)
            rule = replace(rule, begun=last == rule.marks[0])
        return Request(
            prompt=asked.prompt,
            limit=min(most, asked.length or most),
            sampling=self._sampling,
            rule=None if type(method) is self._plain else rule,
            seed=self._decode.seed,
            names=names,
            keep_trees=0 <= block.place < self._measure.keep_trees,
            in_prefill=self._decode.first_draft == "prefill",
            budgets=lengths,
            conversation=asked.conversation,
        )

    def _record(
        self, method: str, asked: Turn, transcript: Transcript, text: str, **more: Any
    ) -> TurnRecord:
        more |= {entry.name: getattr(transcript, entry.name) for entry in fields(transcript)}
        prompt = asked.prompt if method == VANILLA else None
        thinking = count_thinking(self._marks, asked.prompt, transcript.ids)
        return TurnRecord(
            **more, prompt_tokens=len(asked.prompt), text=text, prompt_ids=prompt, thinking=thinking
        )

    def text(self, asked: Turn, transcript: Transcript) -> str:
        """The answer as text: the recorded one if all of it was decoded."""
        known = asked.text if len(transcript.ids) == asked.length else None
        return answer_text(self._tokenizer, transcript.ids) if known is None else known

    def _answer(self, turn: TurnRecord) -> str:
        """A turn's text after its thinking."""
        return (
            turn.text
            if turn.thinking is None
            else answer_text(self._tokenizer, turn.ids[turn.thinking :])
        )


def record_of(
    block: Block, case: Case, place: int, name: str, error: Failure | None = None
) -> CaseRecord:
    """A record to be filled. error: of a case that is not tried."""
    about = (case.id, case.category, case.subcategory, name, block.round, block.index, place)
    return CaseRecord(*about, "error" if error else "ok", [], error=error)


def _without_surrogates(text: str) -> str:
    """Half a surrogate pair cannot be written as UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def fail(record: CaseRecord, error: Exception) -> None:
    """Make an error row of a record: what was decoded before stays only if it can be written."""
    record.status = "error"
    record.error = Failure(
        type=type(error).__name__,
        message=_without_surrogates(hide_identity(str(error))),
        traceback=_without_surrogates(hide_identity("".join(traceback.format_exception(error)))),
        turn=len(record.turns),
    )
    try:
        CaseRecord.from_json(record.to_json())
    except (TypeError, ValueError):
        record.turns, record.state_bytes = [], 0
    if isinstance(error, torch.OutOfMemoryError):
        torch.cuda.empty_cache()
