"""What the judge of losslessness can find: rounding, the ties of sound engines, and which planted faults it finds.

    python -m scripts.lab judge suite.limit=3 decode.max_new_tokens=96 --dtypes float32 bfloat16

The bundled model answers the bundled suite. Prints Markdown tables; docs/measurement.md, section 7, explains them.
"""

from __future__ import annotations

import copy
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import torch
from scipy.stats import binomtest
from torch import Tensor

from scripts.lab.faults import FAULTS, Fault
from scripts.lab.materials import random_model
from specbench.decode.walk import Walk
from specbench.models.engine import Silent
from specbench.models.fast.engine import FastEngine
from specbench.records.record import CaseRecord
from specbench.runs.job import job_of
from specbench.runs.session import Session, set_stage
from specbench.types import Needs

ANSWERS, TOKENS = (3, 10, 30), (1_000, 10_000, 30_000, 100_000)
RATE = 1e-4  # of wrong tokens, in the table by tokens
SOUND_HEAD = "other ids than vanilla's | ids | ties | largest gap | violations | close steps"
FOUND_HEAD = f"answers | other ids than vanilla's | found | in 1 answer [95 %] | in {' | '.join(map(str, ANSWERS))}"
RATE_HEAD = f"one in {round(1 / RATE):,} | dtype | found of each | in {' | '.join(f'{n:,}' for n in TOKENS)} tokens"
SHAPE = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 512, "initializer_range": 256**-0.5, "pad_token_id": 0,
}  # fmt: skip
LENGTH = 96  # [tokens] of the prompt that is computed in several ways
ROUNDING_HEAD = "library from exact | fast from exact | steps from all at once | fast from library | its largest"


def add_options(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("settings", nargs="*", help="of the runs of the bundled model")


def run(given: Namespace) -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    for part in given.parts:
        for line in chain(PARTS[part](given.dtypes, given.settings), [""]):
            print(line, flush=True)


def rounding(dtypes: Sequence[str], _settings: Sequence[str]) -> Iterator[str]:
    """Yield a table of differences between logits, in halves of the dtype's epsilon times the logits' spread."""
    yield f"dtype | layers | {ROUNDING_HEAD}\n---|---|--:|--:|--:|--:|--:"
    for name, layers in product(dtypes, (2, 8, 32)):
        figures = measure_rounding(layers, getattr(torch, name))
        yield f"{name} | {layers} | {' | '.join(f'{value:.1f}' for value in figures)}"


def sound(dtypes: Sequence[str], settings: Sequence[str]) -> Iterator[str]:
    """Yield a table of the judge's verdicts on engines without a fault."""
    yield f"dtype | engine | {SOUND_HEAD}\n---|---|--:|--:|--:|--:|--:|--:"
    for name, kind in product(dtypes, ("fast", "eager")):
        records, _ = decode(f"engine={kind}", "method=[pld,opt_tree,pearl]", f"model.dtype={name}", *settings)
        yield f"{name} | {kind} | {Judged.of(records).sound_row()}"


def faults(dtypes: Sequence[str], settings: Sequence[str]) -> Iterator[str]:
    """Yield how many answers of a faulty engine, and so how many runs, are found; wrong tokens also by their number."""
    yield f"fault | dtype | {FOUND_HEAD}\n---|---|--:|--:|--:|--:|--:|--:|--:"
    rates = [RATE_HEAD, "---|---|--:|--:|--:|--:|--:"]
    for (title, (method, plant)), name in product(FAULTS.items(), dtypes):
        records, fault = decode("engine=fast", f"method=[{method}]", f"model.dtype={name}", *settings, plant=plant)
        found = Judged.of([record for record in records if record.method == method])
        yield f"{title} | {name} | {found.found_row()}"
        if plant.chance < 1:
            rates.append(f"{title} | {name} | {found.rate_row(fault.strikes)}")
    yield from ("", *rates)


PARTS = {"rounding": rounding, "sound": sound, "faults": faults}


def decode(*settings: str, plant: type[Fault] = Fault) -> tuple[list[CaseRecord], Fault]:
    """Return the judged records of a run of the bundled model, vanilla's too, and the fault in its engine."""
    job = job_of(["model=tiny", "suite=mini", "measure=quick", *settings])
    with set_stage(job) as stage:
        fault = plant(stage.engine)
        blocks = Session(job, stage).run(job.plan)
        return [record for records in blocks for record in records], fault


@dataclass(frozen=True, slots=True)
class Judged:
    """Sums over judged records. diverged: with other ids than vanilla's. found: with a violation."""

    answers: int
    diverged: int
    found: int
    ids: int
    ties: int
    violations: int
    worst_gap: float
    close_share: float

    @classmethod
    def of(cls, records: Sequence[CaseRecord]) -> Judged:
        """Sum up records that were all judged."""
        verdicts = [record.lossless for record in records if record.lossless is not None]
        assert len(verdicts) == len(records), "a record was not judged"
        steps = sum(len(turn.accept) for record in records for turn in record.turns)
        return cls(
            len(verdicts),
            sum(not each.equal for each in verdicts),
            sum(each.violations > 0 for each in verdicts),
            sum(each.positions for each in verdicts),
            sum(each.ties for each in verdicts),
            sum(each.violations for each in verdicts),
            max(each.worst_gap for each in verdicts),
            sum(each.close_steps or 0 for each in verdicts) / steps,
        )

    def sound_row(self) -> str:
        """Return the cells under ``SOUND_HEAD``."""
        return (
            f"{self.diverged} of {self.answers} | {self.ids} | {self.ties} | {self.worst_gap:.2g} | {self.violations}"
            f" | {self.close_share:.2%}"
        )

    def found_row(self) -> str:
        """Return the cells under ``FOUND_HEAD``: the chance to find an answer, by Wilson's interval, and a run."""
        share = self.found / self.answers
        bounds = binomtest(self.found, self.answers).proportion_ci(method="wilson")
        chances = (f"{chance_of_finding(share, answers):.0%}" for answers in ANSWERS)
        return (
            f"{self.answers} | {self.diverged} | {self.found} | {share:.0%} [{bounds.low:.0%}, {bounds.high:.0%}]"
            f" | {' | '.join(chances)}"
        )

    def rate_row(self, strikes: int) -> str:
        """Return the cells under ``RATE_HEAD`` behind the dtype. strikes: the wrong tokens to find."""
        share = self.violations / strikes
        return f"{share:.0%} | {' | '.join(f'{chance_of_finding(RATE * share, tokens):.0%}' for tokens in TOKENS)}"


def chance_of_finding(share: float, count: int) -> float:
    """Return the chance that one of ``count`` independent answers, or tokens, is found, if each is with ``share``."""
    return 1 - (1 - share) ** count


@torch.inference_mode()
def measure_rounding(layers: int, dtype: torch.dtype) -> tuple[float, float, float, float, float]:
    """Measure how far rounding moves the logits of a seeded random Llama.

    Returns the figures under ``ROUNDING_HEAD``: root mean squares over all logits, and the largest single difference,
    in units of the logits' spread and of half the dtype's epsilon, so that dtypes and models can be compared.
    """
    model = random_model("llama", SHAPE | {"num_hidden_layers": layers}, dtype, torch.device("cpu"))
    vocab = SHAPE["vocab_size"]
    ids = torch.randint(1, vocab, (LENGTH,), generator=torch.Generator().manual_seed(0)).tolist()
    exact, library = _at_once(copy.deepcopy(model).double(), ids), _at_once(model, ids)
    rows, cache = list[Tensor](), None
    for token in ids:
        out = model(input_ids=torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0, -1].double())
    engine = FastEngine(model, 2 * LENGTH, frozenset(), 8)
    top = engine.start(ids, 1, Walk(None, 0), Needs(prompt_topk=vocab), Silent()).topk
    assert top is not None
    fast = torch.zeros(LENGTH, vocab, dtype=torch.float64).scatter_(1, top.ids, top.logits.double())
    unit = torch.finfo(dtype).eps / 2 * float(exact.std())

    def apart(one: Tensor, other: Tensor) -> float:
        return float((one - other).square().mean().sqrt()) / unit

    worst = float((fast - library).abs().max()) / unit
    steps = apart(torch.stack(rows), library)
    return apart(library, exact), apart(fast, exact), steps, apart(fast, library), worst


def _at_once(model: Any, ids: Sequence[int]) -> Tensor:
    """Logits (T, V) in double precision, of one forward."""
    logits: Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].double()
    return logits
