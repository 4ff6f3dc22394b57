"""Show how far rounding moves logits, and which planted faults the lossless check finds.

    python -m scripts.lab judge suite.limit=3 decode.max_new_tokens=96 --dtypes float32 bfloat16

The bundled model answers the bundled suite. Prints Markdown tables; docs/measurement.md, section 7,
explains them.
"""

from __future__ import annotations

import copy
import random
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from scripts.lab.bench import print_table
from specbench.decode.walk import Walk
from specbench.models.engine import Engine, Silent
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.frame import accept
from specbench.records.record import CaseRecord
from specbench.runs.job import job_of
from specbench.runs.session import Session, set_stage
from specbench.types import Draft, Needs, Step

SHAPE = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 512, "initializer_range": 256**-0.5,
    "pad_token_id": 0,
}  # fmt: skip
LENGTH = 96  # [tokens] of the prompt that is computed in several ways


class Fault:
    """The base of all faults, which changes nothing. chance: of striking in a step. strikes: their
    number so far.

    A fault strikes only in steps with a draft, so vanilla in the same run stays sound. The lossless
    check's own forward is not touched.
    """

    chance = 1.0

    def __init__(self, engine: Engine) -> None:
        """Replace methods of a loaded fast engine."""
        self.engine, self.strikes = cast(FastEngine, engine), 0
        self.random = random.Random(0)
        self.plant()

    def plant(self) -> None:
        """Wrap the methods that the fault changes."""

    def strike(self) -> bool:
        """Return whether the fault strikes in this step."""
        return len(self.engine.request.draft) > 0 and self.random.random() < self.chance


class _WrongToken(Fault):
    """The base of faults that replace the token after the accepted path, which should be the
    target's pick.
    """

    late: Draft | None = None  # the late chain of this step
    _wrong = False

    def choose(self, row: Tensor, complete: bool) -> int | None:
        """Return the wrong token, or None. row: (V,) logits after the path. complete: all of the
        draft is accepted.
        """
        raise NotImplementedError

    def plant(self) -> None:
        engine: Any = self.engine
        real_accept, real_settle = engine.accept, engine.settle

        def accept() -> tuple[list[int], list[int]]:
            path, tokens = real_accept()
            row = engine.request.select(engine.request.logits)[path[-1] + 1 if path else 0]
            token = (
                self.choose(row, len(path) == len(engine.request.draft)) if self.strike() else None
            )
            self._wrong = token is not None and token != tokens[-1]
            return path, tokens if token is None else [*tokens[:-1], token]

        def settle(left: int, late: Draft | None = None) -> Step:
            self.late = late
            step = real_settle(left, late)
            self.strikes += self._wrong and len(step.emitted) == len(step.path) + 1
            return step

        engine.accept, engine.settle = accept, settle


class SecondBest(_WrongToken):
    """Emits the target's second best token, the smallest possible error."""

    chance = 0.5

    def choose(self, row: Tensor, complete: bool) -> int:
        return int(row.topk(2).indices[1])


class AnyToken(_WrongToken):
    """Emits a random token of the vocabulary."""

    chance = 0.5

    def choose(self, row: Tensor, complete: bool) -> int:
        return self.random.randrange(len(row))


class LateToken(_WrongToken):
    """Emits the first token of a late chain after a completely accepted draft, without verifying
    it.
    """

    def choose(self, row: Tensor, complete: bool) -> int | None:
        return (
            int(self.late.tokens[0])
            if complete and self.late is not None and len(self.late)
            else None
        )


class ShiftedSlot(Fault):
    """Compacts an accepted path from the slots one after its own."""

    def plant(self) -> None:
        engine: Any = self.engine
        real = engine.cache.move

        def move(source: Tensor, target: Tensor) -> None:
            struck = self.strike()
            self.strikes += struck
            last = int(engine.request.frame.slots[-2])
            real((source + 1).clamp(max=last) if struck else source, target)

        engine.accept_rows, engine.cache.move = accept, move


class StaleMask(Fault):
    """Verifies a draft under the mask of the last draft of its size."""

    def plant(self) -> None:
        engine: Any = self.engine
        real = engine.compute
        masks: dict[tuple[str, int], Tensor] = {}

        def compute(frame: Any, length: int, taps: Sequence[int]) -> Any:
            own = {kind: bias.clone() for kind, bias in frame.bias.items()}
            struck = self.strike()
            for kind, bias in own.items():
                stale = masks.get((kind, frame.width), bias)
                masks[kind, frame.width] = bias
                if struck and not torch.equal(stale, bias):
                    self.strikes += 1
                    frame.bias[kind].copy_(stale)
            found = real(frame, length, taps)
            for kind, bias in own.items():
                frame.bias[kind].copy_(bias)
            return found

        engine.compute = compute


FAULTS: dict[str, tuple[str, type[Fault]]] = {  # name -> the method that it strikes, the fault
    "wrong token, the second best": ("pld", SecondBest),
    "wrong token, any": ("pld", AnyToken),
    "late token, not verified": ("pearl", LateToken),
    "slots shifted by one": ("opt_tree", ShiftedSlot),
    "mask of an earlier draft": ("opt_tree", StaleMask),
}


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print the tables of the chosen parts."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("settings", nargs="*", help="of the runs of the bundled model")
    given = parser.parse_intermixed_args(arguments)
    torch.set_num_threads(1)
    for part in given.parts:
        PARTS[part](given.dtypes, given.settings)
        print()


def print_rounding(dtypes: Sequence[str], _settings: Sequence[str]) -> None:
    """Print differences between logits, in halves of the dtype's epsilon times the spread of the
    logits.
    """
    columns = ("dtype", "layers", "library from exact", "fast from exact", "fast from library")
    rows = (
        [
            name,
            layers,
            *(f"{value:.1f}" for value in measure_rounding(layers, getattr(torch, name))),
        ]
        for name, layers in product(dtypes, (2, 8, 32))
    )
    print_table(columns, rows, left=(0, 1))


def print_faults(dtypes: Sequence[str], settings: Sequence[str]) -> None:
    """Print how many answers with a fault are found, and of wrong tokens the share that are
    violations.
    """

    def rows() -> Iterator[list[object]]:
        for (title, (method, plant)), name in product(FAULTS.items(), dtypes):
            records, fault = decode(
                "engine=fast", f"method=[{method}]", f"model.dtype={name}", *settings, plant=plant
            )
            own = [record for record in records if record.method == method]
            yield [title, name, *count_found(own, fault.strikes if plant.chance < 1 else 0)]

    columns = ("answers", "other ids than vanilla's", "found", "wrong tokens", "of these found")
    print_table(("fault", "dtype", *columns), rows(), left=(0, 1))


PARTS = {"rounding": print_rounding, "faults": print_faults}


def decode(*settings: str, plant: type[Fault] = Fault) -> tuple[list[CaseRecord], Fault]:
    """Return the checked records of a run of the bundled model, with vanilla's, and the fault in
    its engine.
    """
    job = job_of(["model=tiny", "suite=mini", "suite.limit=null", "measure=quick", *settings])
    with set_stage(job) as stage:
        fault = plant(stage.engine)
        blocks = Session(job, stage).run(job.plan)
        return [record for records in blocks for record in records], fault


def count_found(records: Sequence[CaseRecord], wrong: int) -> list[object]:
    """Count answers, those that differ from vanilla's, those with a violation, and the share of
    wrong tokens found.
    """
    verdicts = [record.lossless for record in records if record.lossless is not None]
    assert len(verdicts) == len(records), "a record was not checked"
    diverged, found = (
        sum(not each.equal for each in verdicts),
        sum(each.violations > 0 for each in verdicts),
    )
    share = f"{sum(each.violations for each in verdicts) / wrong:.0%}" if wrong else ""
    return [len(verdicts), diverged, found, wrong or "", share]


@torch.inference_mode()
def measure_rounding(layers: int, dtype: torch.dtype) -> tuple[float, float, float]:
    """Measure how far rounding moves the logits of a seeded random Llama.

    Returns root mean squares over all logits in units of the spread of the logits and of half the
    dtype's epsilon, so that dtypes and models can be compared.
    """
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **SHAPE, num_hidden_layers=layers)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    vocab = SHAPE["vocab_size"]
    ids = torch.randint(1, vocab, (LENGTH,), generator=torch.Generator().manual_seed(0)).tolist()

    def in_one_forward(model: Any) -> Tensor:  # (T, V)
        return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].double()

    exact, library = in_one_forward(copy.deepcopy(model).double()), in_one_forward(model)
    engine = FastEngine(model, 2 * LENGTH, frozenset(), 8)
    top = engine.start(ids, 1, Walk(None, 0), Needs(prompt_topk=vocab), Silent()).topk
    assert top is not None
    fast = torch.zeros(LENGTH, vocab, dtype=torch.float64).scatter_(1, top.ids, top.logits.double())
    unit = torch.finfo(dtype).eps / 2 * float(exact.std())

    def distance(one: Tensor, other: Tensor) -> float:
        return float((one - other).square().mean().sqrt()) / unit

    return distance(library, exact), distance(fast, exact), distance(fast, library)
