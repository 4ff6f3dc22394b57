"""One loaded target and its methods: warms up, walks the plan block by block, hands out records.

A case that fails is a record with ``status: error`` and its traceback, and the run goes on; nothing of it enters the
figures. Garbage collection is off inside a block and runs between blocks.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from specbench.decode.loop import Request, Transcript, decode
from specbench.decode.sampling import Sampling
from specbench.lossless import judge_block
from specbench.measure.clock import Clock, without_collector
from specbench.measure.energy import Meter
from specbench.measure.plan import Block, starts_span
from specbench.method import Method
from specbench.record import CONTROL, VANILLA, CaseRecord, TurnRecord
from specbench.suite.prompt import answer_text
from specbench.target.engine import Engine
from specbench.target.facade import Target
from specbench.target.tensor_parallel.team import TeamError
from specbench.types import Case, CaseError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bound:
    """A method in this run: the name of its rows, and what it may remember."""

    name: str
    method: Method
    reset: str


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every request of a run. judge: teacher-force every answer. dtype: of the target."""

    max_new_tokens: int
    sampling: Sampling | None
    seed: int
    dtype: str
    judge: bool = True
    keep_trees: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to be made. prompt: token ids. answer, text: tokens and text of the answer, known if recorded."""

    prompt: list[int]
    answer: int | None = None
    text: str | None = None


class Session:
    """Runs blocks. Methods are bound already. ask: (case, its answers so far) -> the next request.

    meter: of the GPUs' energy, None where there is none.
    """

    def __init__(
        self,
        engine: Engine,
        target: Target,
        ask: Callable[[Case, Sequence[str]], Ask],
        bound: Sequence[Bound],
        terms: Terms,
        meter: Meter | None = None,
    ) -> None:
        self._engine, self._ask, self._terms, self._meter = engine, ask, terms, meter
        self._bound = {entry.name: entry for entry in bound}
        self._clock = Clock(target.device)
        self._tokenizer = target.card.tokenizer

    def warm_up(self, cases: Sequence[Case]) -> list[str]:
        """Decode ``cases`` with every method, then forget what was learned.

        Returns what went wrong, a line each: a method that fails here will most likely fail in its cases too.
        """
        failed: list[str] = []
        for case in cases:
            for record in self._block(Block(-1, 0, case, tuple(self._bound)), judge=False):
                if record.error:
                    failed.append(f"{record.method} failed in warm-up: {record.error['message']}")
        for entry in self._bound.values():
            entry.method.reset()
        return sorted(set(failed))

    def run(self, plan: Sequence[Block], start: int) -> Iterator[list[CaseRecord]]:
        """The records of each block from ``start`` on, in the order in which the methods ran."""
        for block in plan[start:]:
            for entry in self._bound.values():
                if block.index == start or starts_span(plan, block.index, entry.reset):
                    entry.method.reset()
            yield self._block(block, judge=self._terms.judge and self._terms.sampling is None)

    def _block(self, block: Block, judge: bool) -> list[CaseRecord]:
        prompts: dict[str, list[list[int]]] = {}
        with without_collector():
            records = [self._case(block, place, name, prompts) for place, name in enumerate(block.order)]
        if judge:
            try:
                judge_block(records, prompts, self._engine.gaps, self._terms.dtype)
            except (CaseError, torch.OutOfMemoryError) as error:
                log.warning("case %s could not be judged: %s", block.case.id, error)
        return records

    def _case(self, block: Block, place: int, name: str, prompts: dict[str, list[list[int]]]) -> CaseRecord:
        case = block.case
        record = CaseRecord(case.id, case.category, case.subcategory, name, block.round, block.index, place, "ok", [])
        prompts[name] = []
        try:
            self._turns(case, block, record, prompts[name])
            record.state_bytes = int(self._bound[name].method.state_bytes())
            record.to_json()  # what cannot be written is this case's error, not the run's
        except TeamError:  # no case can be decoded any more
            raise
        except Exception as error:  # the boundary of a case: recorded whole, excluded visibly
            _fail(record, error)
        return record

    def _turns(self, case: Case, block: Block, record: CaseRecord, prompts: list[list[int]]) -> None:
        entry, answers = self._bound[record.method], list[str]()
        for turn in range(len(case.turns)):
            if turn and entry.reset == "turn":
                entry.method.reset()
            ask = self._ask(case, answers)
            request = Request(
                prompt=ask.prompt,
                limit=min(self._terms.max_new_tokens, ask.answer or self._terms.max_new_tokens),
                sampling=self._terms.sampling,
                seed=self._terms.seed,
                names=(case.id, turn, block.round),
                keep_trees=0 <= block.index < self._terms.keep_trees,
            )
            before = self._meter.joules() if self._meter else None
            transcript = decode(self._engine, entry.method, request, self._clock)
            energy_j = self._meter.since(before) if self._meter else None
            known = ask.text if len(transcript.ids) == ask.answer else None
            answers.append(answer_text(self._tokenizer, transcript.ids) if known is None else known)
            prompts.append(ask.prompt)
            prompt_ids = ask.prompt if record.method == VANILLA else None
            record.turns.append(_turn_record(transcript, len(ask.prompt), answers[-1], prompt_ids, energy_j))


def _fail(record: CaseRecord, error: Exception) -> None:
    """Make an error row of a record: what was decoded before stays only if it can be written."""
    record.status = "error"
    record.error = {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "turn": len(record.turns),
    }
    try:
        record.to_json()
    except (TypeError, ValueError):
        record.turns, record.state_bytes = [], 0
    if isinstance(error, torch.OutOfMemoryError):
        torch.cuda.empty_cache()


def _turn_record(
    transcript: Transcript, prompt_tokens: int, text: str, prompt_ids: list[int] | None, energy_j: float | None
) -> TurnRecord:
    return TurnRecord(
        prompt_tokens=prompt_tokens,
        ids=transcript.ids,
        finish=transcript.finish,
        accept=transcript.accept,
        proposed=transcript.proposed,
        depth=transcript.depth,
        fed=transcript.fed,
        prefill_s=transcript.prefill_s,
        decode_s=transcript.decode_s,
        phases_s=transcript.phases_s,
        text=text,
        sources=transcript.sources,
        stats=transcript.stats,
        prompt_ids=prompt_ids,
        trees=transcript.trees,
        step_s=transcript.step_s,
        energy_j=energy_j,
    )


def with_control(bound: Sequence[Bound], control: bool) -> list[Bound]:
    """Add the A/A control: vanilla's own method under a second name."""
    if not control:
        return list(bound)
    vanilla = next(entry for entry in bound if entry.name == VANILLA)  # prepare() has seen to it that it is there
    return [*bound, Bound(CONTROL, vanilla.method, vanilla.reset)]
