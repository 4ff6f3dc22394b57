"""Which kernels are chosen and what they cost, whether the fast engine is right here, and what memory does."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import torch
from day import Day
from kernels import compare_kernels, multiply_few_rows, plan_attention

from scripts.lab.engine_check import SMALL, equality, ids_of, random_model, ties
from scripts.lab.goals import Goal
from specbench.measure.environment import machine, versions
from specbench.models.load import ASSETS, load_model, read_card

ROOT = Path(__file__).resolve().parents[2]


def describe_machine(day: Day) -> dict[str, Any]:
    """What a reader of the other figures must know, and the packages of ``product`` that are missing here."""
    return {"device": str(day.device), "missing packages": missing_packages(), **versions(), **machine()}


def missing_packages() -> list[str]:
    """What the package depends on and this interpreter has not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [re.split(r"[<>=!\[; ]", line)[0] for line in project["dependencies"]]
    held = {each.metadata["Name"].lower().replace("_", "-") for each in importlib.metadata.distributions()}
    return [name for name in wanted if name not in held]


def compare_ids(day: Day) -> list[Goal]:
    """Small models of every family in float32: the fast engine's ids and logits against the eager one's."""
    day.bind(random_model("llama", SMALL, torch.float32, day.device))
    return equality({name: day.methods[name] for name in day.few_methods}, day.device, day.cases)


def look_at_ties(day: Day) -> list[Goal]:
    """The bundled model in bfloat16: how often ids part from vanilla's, and by what gap at most."""
    card = read_card(path=str(ASSETS / "tiny"), dtype="bfloat16", device=str(day.device))
    model = load_model(card)
    day.bind(model)
    return ties(model, {name: day.methods[name] for name in day.few_methods}, card.vocab_size, 2 * day.cases)


def grow_and_run_out(day: Day) -> list[Goal]:
    """Ids of a short request: at first, behind a long one that moved the cache, and behind one without memory."""
    day.bind(day.model)
    engine, vanilla = day.engine, day.methods["vanilla"]
    short = day.prompts[0][:50]
    first = ids_of(engine, vanilla, short, day.device, day.tokens)
    ids_of(engine, vanilla, (day.prompts[0] * 40)[: engine.context - 200], day.device, day.tokens)
    behind_long = ids_of(engine, vanilla, short, day.device, day.tokens)
    context, engine.context = engine.context, 1 << 42
    refused = 0.0
    try:
        engine.reserve(1 << 41)
    except RuntimeError:  # torch's error for memory that is not there
        refused = 1.0
    finally:
        engine.context = context
    behind_none = ids_of(engine, vanilla, short, day.device, day.tokens)
    return [
        Goal("ids that part behind a long request", float(behind_long != first), 0),
        Goal("a request without memory is refused", refused, 1, least=True),
        Goal("ids that part behind a request without memory", float(behind_none != first), 0),
    ]


SECTIONS = [
    ("machine", describe_machine),
    ("ids", compare_ids),
    ("ties", look_at_ties),
    ("plans", plan_attention),
    ("kernels", compare_kernels),
    ("products", multiply_few_rows),
    ("memory", grow_and_run_out),
]
