"""A day's device, shapes and sections: each section's result is a file as soon as it ends."""

from __future__ import annotations

import functools
import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from methods.n_grammys import NGrammys
from methods.pld import PromptLookup
from methods.sam import SAM
from methods.token_recycling import TokenRecycling
from methods.vanilla import Vanilla
from scripts.lab.engine_check import CASES, random_model
from scripts.lab.goals import Goal, goals_text
from specbench.measure.environment import machine, versions
from specbench.method import Method
from specbench.models.facade import ModelCard, Target
from specbench.models.fast.attention import SDPA, FastOptions, allow_cudnn_attention
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


class Day:
    """One call after the other on one device; the 7B-shaped model and its engine are made once, when first asked for.

    out: folder of the results. rehearse: small shapes, few rounds. minutes: of each call.
    """

    def __init__(self, out: Path, rehearse: bool, minutes: float) -> None:
        self.out, self.rehearse, self.minutes = out.resolve(), rehearse, minutes
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        allow_cudnn_attention(False)

    def run(self, call: str, sections: Sequence[tuple[str, Section]], only: Sequence[str]) -> bool:
        """Every section of a call, or those of ``only``; whether all of them ended well."""
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
        """A section's result, or why there is none: one that fails takes no other with it."""
        start = time.monotonic()
        if start - begun > 60 * self.minutes:
            return {"left_out": f"{self.minutes:g} minutes were over"}
        try:
            found = {"result": section(self)}
        except Exception as error:  # the sections behind it are measured all the same; the exit code is 1
            found = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        return found | {"seconds": round(time.monotonic() - start, 2)}

    @functools.cached_property
    def methods(self) -> dict[str, Method]:
        """One of each way to draft without weights: chain, chain of a long match, tree, batch of rows."""
        return {
            "vanilla": Vanilla(), "pld": PromptLookup(), "sam": SAM(), "token_recycling": TokenRecycling(),
            "n_grammys": NGrammys(strategy="context"),
        }  # fmt: skip

    @property
    def few_methods(self) -> list[str]:
        """Names of those whose ids are compared, vanilla among them."""
        return ["vanilla", "pld"] if self.rehearse else list(self.methods)

    def bind(self, model: Any) -> None:
        """Bind every method to a model."""
        for method in self.methods.values():
            method.bind(self.target(model))

    def target(self, model: Any) -> Target:
        """What a method is bound to."""
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
        """Another engine of ``model``. attention: see ``find_attention``."""
        context = self.model.config.max_position_embeddings
        return FastEngine(self.model, context, frozenset(), 128, options=FastOptions(attention=attention))

    @functools.cached_property
    def prompts(self) -> list[list[int]]:
        """Prompts of some hundred tokens whose words come again."""
        count, length = (1, 60) if self.rehearse else (6, 400)
        return [[(37 * case + 11 * place) % 997 + 3 for place in range(length)] for case in range(count)]

    @property
    def cases(self) -> int:
        """Requests of each small model and method."""
        return 1 if self.rehearse else CASES

    @property
    def buffer_bytes(self) -> int | None:
        """Of the buffers that the read bandwidth is measured on; None = the device's own."""
        return 1 << 22 if self.rehearse else None

    @property
    def tokens(self) -> int:
        """New tokens of a request."""
        return 16 if self.rehearse else 128


def describe(found: Mapping[str, Any]) -> str:
    """A section's result as a table or as text."""
    if "error" in found:
        return f"failed: {found['error']}"
    if "left_out" in found:
        return f"left out: {found['left_out']}"
    result = found["result"]
    if isinstance(result, list) and result and isinstance(result[0], Goal):
        return goals_text(result)
    if isinstance(result, list) and result and isinstance(result[0], dict):
        return table(result)
    if isinstance(result, dict):
        return "\n".join(f"* {key}: {value}" for key, value in result.items())
    return str(result)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A markdown table; columns are the keys of all rows, in order."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[f"{value:.4g}" if isinstance(value := row.get(name, ""), float) else str(value) for name in names]
             for row in rows]  # fmt: skip
    return "\n".join(["| " + " | ".join(line) + " |" for line in [names, ["---"] * len(names), *cells]])


def _plain(value: Any) -> Any:
    if isinstance(value, Goal):
        return value.as_dict()
    raise TypeError(f"{type(value).__name__}: has no JSON")
