"""PARD-2's mode that reads the target's states, against a forward without a cache written from the
formulas.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from builders.models import VOCAB, build, plain_greedy
from draft_models import CONTEXT, run
from head_models import damaged, watched
from methods.pard import Pard, StateEmbedding, StatesLM, StatesRequest
from methods.parts.draft_method import TargetTraits
from specbench.decode.sampling import Sampling
from specbench.models.load import locate, read_card
from specbench.types import InputError

MASK, LENGTH, LAYERS, SCALE = 11, 5, (2, 1, 0), 0.3
PROMPT = tuple(5 + place * 7 % 90 for place in range(12))


def projection(target, draft, bias=True):
    generator = torch.Generator().manual_seed(7)
    shape = draft.config.hidden_size, len(LAYERS) * target.config.hidden_size
    weight = torch.randn(shape, generator=generator, dtype=torch.float64) / 3
    return weight, torch.randn(shape[0], generator=generator, dtype=torch.float64) if bias else None


@torch.inference_mode()
def formula(
    target,
    draft,
    weight,
    bias,
    context,
    count=LENGTH,
    shift=1,
    layers=LAYERS,
    masks="last",
    scale=SCALE,
):
    """(count, V) logits: of the last token of ``context`` and of the masks, by plain forwards over
    all of it.
    """
    states = target(
        torch.tensor([context]), output_hidden_states=True, use_cache=False
    ).hidden_states
    rows = torch.cat([states[layer][0] for layer in layers], -1)
    rows = torch.cat([rows.new_zeros(shift, rows.shape[1]), rows])[: len(context)]
    after = rows[-1:] if masks == "last" else torch.zeros_like(rows[-1:])
    rows = torch.cat([rows, after.expand(count - 1, -1)])
    ids = torch.tensor([[*context, *[MASK] * (count - 1)]])
    embedded = draft.get_input_embeddings()(ids) + scale * (
        rows @ weight.T + (0 if bias is None else bias)
    )
    return draft(inputs_embeds=embedded, use_cache=False).logits[0, -count:]


def method_of(draft, weight, bias, sampling=None, **options):
    method = Pard("unused", length=LENGTH, mask_token=MASK, **options)
    method.layers = LAYERS
    lm = StatesLM(draft, CONTEXT, weight, bias, SCALE)
    method.adopt(lm, TargetTraits(VOCAB, frozenset(), sampling, torch.device("cpu")))
    return method


@pytest.mark.parametrize("bias", [True, False])
def test_drafts_equal_those_of_the_formulas(bias):
    target, draft = build("llama", torch.float64), build("qwen2-mixed", torch.float64)
    weight, shift = projection(target, draft, bias)
    plain = build("qwen2-mixed", torch.float64)
    made = watched(method := method_of(draft, weight, shift))
    out = run(target, method, PROMPT, 40)
    assert out.ids == plain_greedy(target, list(PROMPT), 40)
    assert len(made) > 5
    wrong = {
        "unshifted states": {"shift": 2},
        "masks without states": {"masks": "none"},
        "layers in another order": {"layers": LAYERS[::-1]},
        "another scale": {"scale": 0.02},
    }
    missed = dict.fromkeys(wrong, 0)
    for place, (context, drafted) in enumerate(made):
        tokens = list(drafted.tokens)
        right = formula(target, plain, weight, shift, context).argmax(-1).tolist()
        assert tokens == right[: len(tokens)]
        for name, change in wrong.items() if place < 6 else ():
            missed[name] += (
                tokens
                != formula(target, plain, weight, shift, context, **change).argmax(-1).tolist()
            )
    assert all(missed.values()), missed


def test_distributions_equal_those_of_the_formulas_after_accepted_tokens():
    """The draft is the target itself and the projection is small, so that tokens are accepted."""
    target, sampling = build("llama", torch.float64), Sampling(0.7, top_k=2)
    weight, bias = projection(target, target)
    weight, bias = weight / 100, bias / 100
    made = watched(method := method_of(build("llama", torch.float64), weight, bias, sampling))
    out = run(target, method, PROMPT, 40, sampling)
    assert max(out.accept) > 1
    for context, drafted in made:
        right = sampling(formula(target, target, weight, bias, context, len(drafted)))
        torch.testing.assert_close(drafted.probs, right, atol=1e-6, rtol=1e-6)


def test_a_step_without_a_draft_keeps_the_states_of_its_token():
    target, draft = build("llama", torch.float64), build("llama", torch.float64)
    weight, bias = projection(target, draft)
    request = StatesRequest(
        StatesLM(draft, CONTEXT, weight, bias, SCALE), VOCAB, torch.ones(3, weight.shape[1])
    )
    assert len(request.rows) == 4
    request.add(torch.ones(2, weight.shape[1]))
    request.feeding([1, 2, 3, 4, 5, 6], 0, [MASK]).run()
    assert (request.first, len(request.rows)) == (5, 1)
    assert isinstance(draft.get_input_embeddings(), StateEmbedding)


def saved(folder, config, tensors, name="warp_model.safetensors"):
    folder.mkdir()
    for file in Path(locate("bundled:tiny_pard", "draft")).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(known | config))
    if name.endswith(".bin"):
        torch.save(tensors, folder / name)
    elif tensors:
        save_file(tensors, folder / name)
    return str(folder)


def bundled():
    target = read_card(path="bundled:tiny", name="tiny", device="cpu")
    draft = read_card(path="bundled:tiny_pard", name="draft", device="cpu")
    return (
        target,
        draft.config.hidden_size,
        target.config.hidden_size,
        target.config.num_hidden_layers,
    )


def fields(**changes):
    _, _, wide, _ = bundled()
    known = {
        "pard2": True,
        "pard2_target_layers": [-1, 1],
        "pard2_target_dim": 2 * wide,
        "pard2_scale": 0.1,
    }
    return known | changes


def test_a_checkpoint_of_the_authors_layout_is_read_and_drafts(tmp_path):
    card, own, wide, layers = bundled()
    tensors = {"target_proj.weight": torch.randn(own, 2 * wide)}
    method = Pard(saved(tmp_path / "a", fields(), tensors))
    method.check(card)
    assert method.layers == (layers, 1)
    assert method.needs.hidden == (layers, 1)
    torch_file = saved(
        tmp_path / "b", fields(spd_type="pard2", pard2=False), tensors, "warp_model.bin"
    )
    with pytest.raises(InputError, match=r"holds none of warp_model\.safetensors"):
        Pard(torch_file).check(card)
    method = Pard(torch_file, safetensors=False)
    method.check(card)
    target = SimpleNamespace(
        card=card,
        attention="sdpa",
        vocab_size=card.vocab_size,
        eos=card.eos,
        sampling=None,
        device=torch.device("cpu"),
    )
    method.bind(target)
    torch.testing.assert_close(method.lm._weight, tensors["target_proj.weight"])
    plain = Pard(torch_file, target_states=False)
    plain.check(card)
    assert plain.layers == ()
    assert not plain.needs.hidden


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pard2_target_layers": [99, 1]}, "expected a list of hidden states"),
        ({"pard2_target_dim": 7}, "pard2_target_dim=7; expected 2 states of"),
        ({"pard_token": True}, "has the mask token True; expected an id"),
    ],
)
def test_settings_that_are_refused(tmp_path, changes, reason):
    card, own, wide, _ = bundled()
    folder = saved(
        tmp_path / "a", fields(**changes), {"target_proj.weight": torch.zeros(own, 2 * wide)}
    )
    with pytest.raises(InputError, match=reason):
        Pard(folder).check(card)


def test_tensors_that_are_refused(tmp_path):
    card, own, wide, _ = bundled()
    whole = {"target_proj.weight": torch.zeros(own, 2 * wide), "target_proj.bias": torch.zeros(own)}
    folder = saved(tmp_path / "a", fields(pard2_proj_bias=True), whole)
    for name in whole:
        for changed in damaged(whole, name):
            save_file(changed, tmp_path / "a" / "warp_model.safetensors")
            method = Pard(folder)
            method.check(card)
            with pytest.raises(
                InputError, match=r"head=.*(differs in shape|lacks target|int8|unexpected|finite)"
            ):
                method.bind(SimpleNamespace(card=card))
