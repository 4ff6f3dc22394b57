"""The check before a run: an engine's logits of a draft tree against plain forwards of the model.

A family that reads masks or positions in its own way would give wrong tokens without an error.
Every node's logits are compared with a plain forward over the node's own path, and once more after
the accepted nodes were moved together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specbench.decode.walk import Walk
from specbench.models.engine import Engine, Silent
from specbench.models.family import has_experts
from specbench.types import ROOT, CaseError, Draft, InputError, Needs, Step

TOP = 8
# Largest difference in units of the logits' spread. Rounding stays well below; a wrong mask gives
# about 1.
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-2, torch.bfloat16: 0.3, torch.float16: 0.3}
PARENTS = (ROOT, ROOT, 0, 1, 3, 3)  # nodes 1 and 3 are right: their slots must be moved
# In half precision a router's tie may choose another expert in a forward of another width, and so
# other logits; a wrong mask is wrong for every prompt.
PROMPTS_OF_EXPERTS = 3


@torch.inference_mode()
def check_engine(engine: Engine, model: Any) -> None:
    """Raise InputError if the engine's logits are not the model's own, in a tree or after it."""
    tolerance, tries = TOLERANCE[model.dtype], range(1)
    if has_experts(model.config) and model.dtype in (torch.bfloat16, torch.float16):
        tries = range(PROMPTS_OF_EXPERTS)
    for number in tries:
        worst = _find_gap(engine, model, number)
        if worst <= tolerance:
            return
    if worst != worst:
        raise InputError(_no_numbers(model))
    raise InputError(
        f"model.path: the family {model.config.model_type} does not see a draft tree as the engine"
        f" lays it out (logits off by {worst:.2g} of their spread, expected at most {tolerance:g});"
        " its results would be wrong; report the family, or choose another model"
    )


def _find_gap(engine: Engine, model: Any, number: int) -> float:
    """Largest difference of the engine's logits from the model's own, in units of their spread, for
    one prompt.
    """
    vocab = int(model.config.get_text_config().vocab_size)
    prompt = [(17 * place + 5 + 3 * number) % vocab for place in range(6)]
    try:
        prefill = engine.start(prompt, 16, Walk(None, 0), Needs(node_topk=TOP), Silent())
        context = [*prompt, prefill.token]
        first = int(_plain(model, context).argmax())
        second = int(_plain(model, [*context, first]).argmax())
        nodes = [(first + 1) % vocab, first, 3 % vocab, second, 7 % vocab, 2 % vocab][
            : engine.max_nodes
        ]
        draft = Draft(nodes, PARENTS[: len(nodes)])
        step = _step(engine, draft)
        worst = max(_gap(model, context, draft, step, row) for row in range(len(draft) + 1))
        context += step.emitted
        return max(worst, _gap(model, context, Draft(), _step(engine, Draft()), 0))
    except CaseError as error:
        raise InputError(_no_numbers(model)) from error
    except (ValueError, TypeError, IndexError) as error:
        raise InputError(
            f"model.path: the family {model.config.model_type} cannot be driven with explicit masks"
            f" and positions ({type(error).__name__}: {error})"
        ) from error


def _no_numbers(model: Any) -> str:
    dtype = str(model.dtype).removeprefix("torch.")
    wider = ", or model.dtype=float32" if dtype in ("float16", "bfloat16") else ""
    return (
        f"model.path: the forward in {dtype} gives logits that are not finite, or all equal;"
        f" expected weights without NaN or infinity that are not all zero{wider}"
    )


def _step(engine: Engine, draft: Draft) -> Step:
    engine.forward(draft)
    return engine.settle(8)


def _plain(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """(V,) logits after ``ids``, without a cache or an explicit mask."""
    device = model.get_input_embeddings().weight.device
    return (
        model(input_ids=torch.tensor([list(ids)], device=device), use_cache=False)
        .logits[0, -1]
        .float()
    )


def _gap(model: Any, context: Sequence[int], draft: Draft, step: Step, row: int) -> float:
    """Largest difference of one row's best logits from the plain forward's, in units of their
    spread.
    """
    path: list[int] = []
    node = row - 1
    while node != ROOT:
        path.append(int(draft.tokens[node]))
        node = int(draft.parents[node])
    plain = _plain(model, [*context, *reversed(path)])
    assert step.topk is not None
    ours = step.topk.logits[row].float().to(plain.device)
    return float((plain[step.topk.ids[row].to(plain.device)] - ours).abs().max() / plain.std())
