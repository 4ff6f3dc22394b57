"""The device, shapes, goals and cells of the measurements on a GPU."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.backends.cuda import enable_cudnn_sdp

from methods.n_grammys import NGrammys
from methods.pld import PromptLookup
from methods.sam import SAM
from methods.token_recycling import TokenRecycling
from methods.vanilla import Vanilla
from scripts.lab.materials import random_model, table_lines
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.method import Method
from specbench.models.facade import ModelCard, Target
from specbench.models.fast.attention import SDPA, FastOptions
from specbench.models.fast.engine import FastEngine

SHAPE_7B = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096, "pad_token_id": 0,
}  # fmt: skip
SHAPE_SMALL = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024, "pad_token_id": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and its goal. value: None if the figure does not apply on this device; an error if it has none.

    bound: the goal, None for a figure without one. stretch: a harder goal. least: both are lower bounds.
    """

    name: str
    value: float | str | None
    bound: float | None = None
    stretch: float | None = None
    least: bool = False
    unit: str = ""

    @property
    def verdict(self) -> str:
        """The verdict: stretch, met, missed or failed, or empty without a goal."""
        if isinstance(self.value, str):
            return "failed"
        if self.value is None or self.bound is None:
            return ""
        for verdict, bound in (("stretch", self.stretch), ("met", self.bound)):
            if bound is not None and (self.value >= bound if self.least else self.value <= bound):
                return verdict
        return "missed"

    def cells(self) -> list[str]:
        """Return the name, the measured value, the goal, the harder bound and the verdict as text."""
        sign = "\N{GREATER-THAN OR EQUAL TO}" if self.least else "\N{LESS-THAN OR EQUAL TO}"
        value = "" if self.value is None else _spell(self.value)
        bounds = (f"{sign} {bound:g}" if bound is not None else "" for bound in (self.bound, self.stretch))
        return [self.name, f"{value} {self.unit}".strip() if value else "", *bounds, self.verdict]


Row = Goal | Mapping[str, Any] | str


def ids_of(engine: Any, method: Method, prompt: list[int], tokens: int) -> list[int]:
    """Reset a method, and return the tokens that it emits for one request."""
    method.reset()
    return decode(engine, method, Request(prompt, tokens, None, 0), Clock(engine.device)).ids


class Day:
    """A process of the day on one device; the 7B-shaped model and its engine are made once, at their first use.

    work: folder of files. rehearse: small shapes, few rounds. end: of the section that runs, as ``time.monotonic``.
    """

    def __init__(self, work: Path, rehearse: bool) -> None:
        self.work, self.rehearse, self.end = work.resolve(), rehearse, float("inf")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.tokens = 16 if rehearse else 128  # new tokens of a request
        self.cases = 1 if rehearse else 4  # requests of each small model and method
        self.buffer_bytes = 1 << 22 if rehearse else None  # read to measure the bandwidth; None = the device's default
        count, length = (1, 60) if rehearse else (4, 400)
        self.prompts = [[(37 * case + 11 * place) % 997 + 3 for place in range(length)] for case in range(count)]
        self.methods: dict[str, Method] = {  # one per way to draft without weights: chain, long match, tree, rows
            "vanilla": Vanilla(), "pld": PromptLookup(), "sam": SAM(), "token_recycling": TokenRecycling(),
            "n_grammys": NGrammys(strategy="context"),
        }  # fmt: skip
        self.few_methods = {name: self.methods[name] for name in list(self.methods)[: 2 if rehearse else None]}
        enable_cudnn_sdp(False)

    @property
    def left_s(self) -> float:
        """[s] until the section is ended."""
        return self.end - time.monotonic()

    def synchronize(self) -> None:
        """Wait for the device. Raises RuntimeError if an earlier error has ended its context."""
        Clock(self.device).synchronize()

    def attempt(self, measure: Callable[[], float]) -> float | str:
        """Return a cell of a table: the figure, or the error of this cell. Raises an error that ends the context."""
        try:
            return measure()
        except Exception as error:
            self.synchronize()
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:80]

    def bind(self, model: Any) -> None:
        """Bind every method to a model."""
        for method in self.methods.values():
            method.bind(self.target(model))

    def target(self, model: Any) -> Target:
        """Return the view of a model that a method is bound to."""
        card = ModelCard("day", "random", model.config, None, 2048, frozenset(), "", str(self.device))
        return Target(card, model, 256, None)

    @functools.cached_property
    def model(self) -> Any:
        """Random weights of the 7B shape, on the device; the methods are bound to it."""
        model = random_model("llama", SHAPE_SMALL if self.rehearse else SHAPE_7B, self.dtype, self.device)
        self.bind(model)
        return model

    @functools.cached_property
    def engine(self) -> FastEngine:
        """The fast engine of ``model``."""
        return self.make_engine(SDPA)

    def make_engine(self, attention: str) -> FastEngine:
        """Make another engine of ``model``. attention: a name that ``find_attention`` takes."""
        context = self.model.config.max_position_embeddings
        options = FastOptions(attention=attention, compiled=False)  # a rehearsal runs what a GPU runs
        return FastEngine(self.model, context, frozenset(), 128, options=options)


def describe(rows: Sequence[Row]) -> str:
    """Return a section's rows as Markdown: goals and other rows as tables, and text unchanged."""
    goals = [row.cells() for row in rows if isinstance(row, Goal)]
    tables = [row for row in rows if isinstance(row, Mapping)]
    parts = ["\n".join(row for row in rows if isinstance(row, str))]
    if goals:
        parts.append("\n".join(table_lines(("figure", "measured", "goal", "stretch", "verdict"), goals, left=(0, 4))))
    if tables:
        names = list(dict.fromkeys(key for row in tables for key in row))
        cells = [[_spell(row.get(name, "")) for name in names] for row in tables]
        parts.append("\n".join(table_lines(names, cells, left=range(len(names)))))
    return "\n\n".join(filter(None, parts))


def _spell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/")
