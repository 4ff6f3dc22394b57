"""The device, shapes and goals of the measurements on a GPU, and the calls that run their sections."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
import traceback
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
from specbench.measure.environment import machine, versions
from specbench.method import Method
from specbench.models.facade import ModelCard, Target
from specbench.models.fast.attention import SDPA, FastOptions
from specbench.models.fast.engine import FastEngine
from specbench.records.store import write_atomically

SHAPE_7B = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096, "pad_token_id": 0,
}  # fmt: skip
SHAPE_SMALL = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024, "pad_token_id": 0,
}  # fmt: skip
Section = Callable[["Day"], Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and its goal. value: None if the figure does not apply on this device.

    bound: the goal, None for a figure without one. stretch: a harder goal. least: both are lower bounds.
    """

    name: str
    value: float | None
    bound: float | None = None
    stretch: float | None = None
    least: bool = False
    unit: str = ""

    @property
    def verdict(self) -> str:
        """The verdict: stretch, met or missed, or empty without a goal."""
        if self.value is None or self.bound is None:
            return ""
        for verdict, bound in (("stretch", self.stretch), ("met", self.bound)):
            if bound is not None and (self.value >= bound if self.least else self.value <= bound):
                return verdict
        return "missed"

    def cells(self) -> list[str]:
        """Return the measured value, the goal and the harder bound as text."""
        sign = "\N{GREATER-THAN OR EQUAL TO}" if self.least else "\N{LESS-THAN OR EQUAL TO}"
        value = "" if self.value is None else f"{self.value:.4g} {self.unit}".strip()
        return [value, *(f"{sign} {bound:g}" if bound is not None else "" for bound in (self.bound, self.stretch))]


def ids_of(engine: Any, method: Method, prompt: list[int], tokens: int) -> list[int]:
    """Reset a method, and return the tokens that it emits for one request."""
    method.reset()
    return decode(engine, method, Request(prompt, tokens, None, 0), Clock(engine.device)).ids


class Day:
    """The calls on one device; the 7B-shaped model and its engine are made once, at their first use.

    out: folder of the results. rehearse: small shapes, few rounds. minutes: of each call.
    """

    def __init__(self, out: Path, rehearse: bool, minutes: float) -> None:
        self.out, self.rehearse, self.minutes = out.resolve(), rehearse, minutes
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.tokens = 16 if rehearse else 128  # new tokens of a request
        self.cases = 1 if rehearse else 4  # requests of each small model and method
        self.buffer_bytes = 1 << 22 if rehearse else None  # read to measure the bandwidth; None = the device's default
        count, length = (1, 60) if rehearse else (6, 400)
        self.prompts = [[(37 * case + 11 * place) % 997 + 3 for place in range(length)] for case in range(count)]
        self.methods: dict[str, Method] = {  # one per way to draft without weights: chain, long match, tree, rows
            "vanilla": Vanilla(), "pld": PromptLookup(), "sam": SAM(), "token_recycling": TokenRecycling(),
            "n_grammys": NGrammys(strategy="context"),
        }  # fmt: skip
        self.few_methods = {name: self.methods[name] for name in list(self.methods)[: 2 if rehearse else None]}
        enable_cudnn_sdp(False)

    def run(self, call: str, sections: Sequence[tuple[str, Section]], only: Sequence[str]) -> bool:
        """Run every section of a call, or those of ``only``; returns whether all of them succeeded."""
        self.out.mkdir(parents=True, exist_ok=True)
        begun, good, texts = time.monotonic(), True, []
        for name, section in sections:
            if only and name not in only:
                continue
            found = self._run(section, begun)
            good &= "error" not in found
            known = {"call": call, "section": name, "rehearsed": self.rehearse, **found}
            text = json.dumps(known | {"machine": machine(), "versions": versions()}, indent=1, default=_plain)
            write_atomically(self.out / f"{call}-{name}.json", text.encode())
            texts.append(f"## {name}\n\n{describe(found)}\n")
            print(f"{call} {name}, {found.get('seconds', 0):.0f} s\n{describe(found)}\n", flush=True)
        write_atomically(self.out / f"{call}.md", "\n".join(texts).encode())
        return good

    def _run(self, section: Section, begun: float) -> dict[str, Any]:
        """A section's result, or the reason why it is missing: a section that fails does not stop the others."""
        start = time.monotonic()
        if start - begun > 60 * self.minutes:
            return {"left_out": f"{self.minutes:g} minutes were over"}
        try:
            found = {"result": section(self)}
        except Exception as error:  # the later sections are measured nevertheless; the exit code is 1
            found = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        return found | {"seconds": round(time.monotonic() - start, 2)}

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
        return FastEngine(self.model, context, frozenset(), 128, options=FastOptions(attention=attention))


def describe(found: Mapping[str, Any]) -> str:
    """Return a section's result as a Markdown table or as text."""
    if "error" in found:
        return f"failed: {found['error']}"
    if "left_out" in found:
        return f"left out: {found['left_out']}"
    result = found["result"]
    if isinstance(result, list) and result and isinstance(result[0], Goal):
        cells = [[goal.name, *goal.cells(), goal.verdict] for goal in result]
        return "\n".join(table_lines(("figure", "measured", "goal", "stretch", "verdict"), cells, left=(0, 4)))
    if isinstance(result, list) and result and isinstance(result[0], dict):
        names = list(dict.fromkeys(key for row in result for key in row))
        cells = [[f"{value:.4g}" if isinstance(value := row.get(name, ""), float) else str(value) for name in names]
                 for row in result]  # fmt: skip
        return "\n".join(table_lines(names, cells, left=range(len(names))))
    if isinstance(result, dict):
        return "\n".join(f"* {key}: {value}" for key, value in result.items())
    return str(result)


def _plain(value: Any) -> Any:
    if isinstance(value, Goal):
        return {**dataclasses.asdict(value), "verdict": value.verdict}
    raise TypeError(f"{type(value).__name__}: cannot be written as JSON")
