"""The layers of heads as compiled code on a CPU: every call gives what torch's operations give."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from builders.models import build
from head_models import HEADS, bound, run
from methods.parts import draft_layer
from methods.parts.draft_layer import CompiledLayers
from specbench.models.fast.host.forward import SHORT, Product


def list_errors(kind, family, dtype, monkeypatch) -> list[float]:
    """Of each call of one request: the relative errors of its outputs, and of the keys and values
    that it stores.
    """
    errors, compiled = [], CompiledLayers.run

    def compare(layers, call):
        memory = copy.copy(call.memory)
        memory.pairs, memory.mask = memory.pairs.clone(), memory.mask.clone()
        copied = copy.copy(call)
        object.__setattr__(copied, "memory", memory)
        [want] = call.owner.run_together([copied])
        got = compiled(layers, call)
        stored = [
            each.pairs[..., : call.first + len(call.inputs), :] for each in (call.memory, memory)
        ]
        errors.extend(float((a - b).abs().max() / b.abs().max()) for a, b in ((got, want), stored))
        return got

    monkeypatch.setattr(CompiledLayers, "run", compare)
    model = build(family, dtype)
    run(model, bound(HEADS[kind](), model), limit=24)
    return errors


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", [kind for kind in HEADS if kind != "medusa"])
def test_a_call_is_that_of_torch(kind, family, dtype, monkeypatch):
    errors = list_errors(kind, family, dtype, monkeypatch)
    assert len(errors) > 25
    assert max(errors) < (1e-5 if dtype == torch.float32 else 0.03)


@pytest.mark.parametrize("wrong", ["a position late", "a node that sees its sibling"])
def test_wrong_variants_are_found(wrong, monkeypatch):
    real = draft_layer.call_compiled

    def call(function, kernels, inputs, residual, places, first, cached, bias, *rest):
        changed = (
            (places + 1, bias) if wrong == "a position late" else (places, np.zeros_like(bias))
        )
        real(function, kernels, inputs, residual, changed[0], first, cached, changed[1], *rest)

    monkeypatch.setattr(draft_layer, "call_compiled", call)
    assert max(list_errors("eagle2", "llama", torch.float32, monkeypatch)) > 0.01


def test_products_of_few_rows_are_those_of_torch():
    torch.manual_seed(0)
    for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 0.01)):
        weight, bias = torch.randn(70, 96, dtype=dtype), torch.randn(70, dtype=dtype)
        product = Product(weight, bias)
        for count in (1, 2, 5, SHORT, SHORT + 1):
            rows = torch.randn(count, 96, dtype=dtype)
            want = torch.nn.functional.linear(rows, weight, bias)
            assert (product(rows) - want).abs().max() < most * want.abs().max()
