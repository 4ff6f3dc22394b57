"""A widened model computes what the trained one computes, and so do its trained heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from builders.runs import by_case, execute_job
from specbench.models.widen import FAMILIES, Widening
from specbench.types import InputError

NARROW = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 0.1,
}  # fmt: skip
SIZES = [
    {"hidden": 128, "intermediate": 200, "layers": 5, "heads": 16, "kv_heads": 8},
    # a key head of the model is copied: groups of one
    {"hidden": 96, "heads": 8, "kv_heads": 8, "layers": 4},
    {"hidden": 256, "heads": 16, "kv_heads": 4, "head": 32, "vocab": 500},
    {"head": 64},
    {"layers": 6},
]


def widen(
    family: str, sizes: dict[str, Any], kind: type[Widening] = Widening
) -> tuple[torch.Tensor, torch.Tensor]:
    """(2, 40, V) logits of a model with random weights, and of the widened one for the same
    tokens.
    """
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**NARROW)
    model = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        weight.data = torch.rand_like(weight) + 0.5 if weight.ndim == 1 else 4 * weight.data
    found = kind.to(config, sizes)
    assert found is not None
    wide = AutoModelForCausalLM.from_config(found.config()).eval()
    for weight in wide.parameters():  # nothing that is added may count, whatever it is
        weight.data.normal_(std=0.5)
    found.fill(wide, model.state_dict())
    ids = torch.randint(0, 300, (2, 40))
    with torch.inference_mode():
        return model(ids).logits, wide(ids).logits


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_same_logits(family: str, sizes: dict[str, Any]) -> None:
    narrow, wide = widen(family, sizes)
    torch.testing.assert_close(wide[..., :300], narrow, atol=2e-5, rtol=2e-5)
    assert torch.softmax(wide, -1)[..., 300:].sum() < 1e-9  # an added token is never drawn


class WholeEpsilon(Widening):
    """Leaves the epsilon of norms."""

    def _epsilon(self, epsilon: float) -> float:
        return epsilon


class PlainNorms(Widening):
    """Leaves the weights of norms."""

    def _place(
        self, name: str, weight: torch.Tensor, drawn: torch.Tensor, normed: bool
    ) -> torch.Tensor:
        if "layernorm" in name:
            weight = weight * (self.wide.hidden / self.narrow.hidden) ** 0.5
        return super()._place(name, weight, drawn, normed)


class FirstHeads(Widening):
    """Puts the query heads first, whatever their groups."""

    def _queries(self) -> Any:
        return self._heads([(head, head) for head in range(self.narrow.heads)], self.wide.heads)


class FirstPairs(Widening):
    """Puts a head's numbers first, whatever their frequency."""

    def _dims(self) -> Any:
        found = super()._dims()
        return replace(found, to=found.source)


class KeptScores(Widening):
    """Leaves the scale of scores that a larger head changes."""

    def _place(
        self, name: str, weight: torch.Tensor, drawn: torch.Tensor, normed: bool
    ) -> torch.Tensor:
        if "q_proj" in name:
            weight = weight / (self.wide.head / self.narrow.head) ** 0.5
        return super()._place(name, weight, drawn, normed)


@pytest.mark.parametrize("wrong", [WholeEpsilon, PlainNorms, FirstHeads, FirstPairs, KeptScores])
def test_wrong_rule_shows(wrong: type[Widening]) -> None:
    narrow, wide = widen("llama", SIZES[2], wrong)
    assert (wide[..., :300] - narrow).abs().max() > 1e-3


HEADS = "method=[eagle,eagle3,p_eagle,mtp,dflash,medusa,pard,speculative_sampling]"
WIDE = [
    "model.widen={hidden: 512, intermediate: 1408, layers: 8, heads: 16, kv_heads: 8}",
    (
        "model.widen={hidden: 384, vocab: 3000, head: 64, kv_heads: 8, draft: {hidden: 256, layers:"
        " 3, kv_heads: 4}}"
    ),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("sizes", "engine"), [(WIDE[0], "fast"), (WIDE[1], "eager")])
def test_same_steps(tmp_path: Any, sizes: str, engine: str) -> None:
    """Ids and accepted lengths of every method are those with the trained model and its trained
    heads.
    """
    settings = [
        HEADS,
        f"engine={engine}",
        "suite.first=2",
        "measure=quick",
        "decode.max_new_tokens=24",
    ]
    narrow = by_case(execute_job(tmp_path / "narrow", *settings))
    wide = by_case(execute_job(tmp_path / "wide", *settings, sizes))
    assert narrow.keys() == wide.keys()
    for key, record in narrow.items():
        assert [(turn.ids, turn.accept) for turn in record.turns] == [
            (turn.ids, turn.accept) for turn in wide[key].turns
        ]


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"hidden": 32}, "model.widen.hidden=32: the model has 64"),
        ({"head": 24}, "model.widen.head=24: expected a multiple of the model's 16"),
        ({"heads": 12, "kv_heads": 5}, "model.widen.kv_heads=5: expected a divisor"),
        ({"heads": 8, "kv_heads": 1}, "expected more key heads"),
        ({"hidden": 65}, "model.widen: no llama has these sizes"),
        ({"vocab": 400}, "model.widen.vocab=400: added tokens need an added hidden unit"),
        ({"draft": {"hidden": 128}}, "the target is not widened"),
    ],
)
def test_refused(sizes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        widen("llama", sizes)
