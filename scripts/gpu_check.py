"""Check the fast engine on this device and hold it against its goals; one table at the end, JSON beside it.

    python scripts/gpu_check.py                       # random weights of the 7B shape, under ten minutes on one GPU
    python scripts/gpu_check.py --shape small         # anywhere, to see that it works

Needs torch, transformers, psutil and pydantic only.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from methods.pld import PromptLookup
from methods.sam.method import SAM
from methods.token_recycling import TokenRecycling
from methods.vanilla import Vanilla
from specbench.bench.engine_check import SMALL, equality, random_model, ties
from specbench.bench.goals import Goal, against_generate, goals_text, roofline, steadiness, steps
from specbench.measure.environment import machine, versions
from specbench.target.attention import allow_cudnn_attention
from specbench.target.facade import ModelCard, Target
from specbench.target.fast.engine import FastEngine
from specbench.target.load import ASSETS, load_model, read_card

SHAPES: dict[str, dict[str, Any]] = {
    "7b": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096},
    "small": {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
              "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 2048},
}  # fmt: skip


def main() -> None:
    """Run every check; print as they come, the table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--tokens", type=int, default=128, help="of each request")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    allow_cudnn_attention(False)
    methods = {"vanilla": Vanilla(), "pld": PromptLookup(), "sam": SAM(), "token_recycling": TokenRecycling()}
    goals: list[Goal] = []

    def note(found: list[Goal]) -> None:
        goals.extend(found)
        print(*(f"{goal.name}: {goal.value}" for goal in found), sep="\n", flush=True)

    def bind(model: Any) -> None:
        card = ModelCard("check", "random", model.config, None, 2048, frozenset(), "", str(device))
        for method in methods.values():
            method.bind(Target(card, model, 256, None))

    tiny = read_card(path=str(ASSETS / "tiny"), dtype="bfloat16", device=str(device))
    bind(random_model("llama", SMALL, torch.float32, device))
    note(equality(methods, device))
    model = load_model(tiny)
    bind(model)
    note(ties(model, methods, tiny.vocab_size))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = random_model("llama", {**SHAPES[given.shape], "pad_token_id": 0}, dtype, device)
    bind(model)
    engine = FastEngine(model, model.config.max_position_embeddings, frozenset(), 128)
    note(roofline(engine, model, [512, 1024 if given.shape == "small" else 2048]))
    prompts = [[(37 * case + 11 * place) % 997 + 3 for place in range(400)] for case in range(6)]
    note(against_generate(engine, model, methods, prompts, given.tokens))
    note(steps(engine, methods, prompts[0], given.tokens))
    note(steadiness(engine, methods["pld"], prompts[0][:64], given.tokens, 400))
    given.out.write_text(json.dumps({"machine": machine(), "versions": versions(), "shape": given.shape,
                                     "goals": [goal.as_dict() for goal in goals]}, indent=1))  # fmt: skip
    print(goals_text(goals))


if __name__ == "__main__":
    main()
