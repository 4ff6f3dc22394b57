"""DFlash: what is drafted, against a block that is run from scratch over context and mask
tokens.
"""

from __future__ import annotations

import json

import pytest
import torch

from builders.models import VOCAB, plain_greedy
from head_models import DFlash as DFlashModule
from head_models import begun, bound, card_of, draft_of, features_of, run, watched
from methods.dflash import DFlash
from specbench.decode.lengths import Confidence
from specbench.decode.sampling import Sampling
from specbench.types import InputError

PROMPT = [5, 6, 7, 8]
SMALLER = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(5))[:90].sort().values
SPARK = {"speculators_model_type": "dspark", "markov_rank": 8, "enable_confidence_head": True,
         "confidence_head_with_markov": True}  # fmt: skip
OURS = {"block_size": 6, "mask_token_id": 3, "aux_hidden_state_layer_ids": [0, 1, 2]}  # speculators


def z_lab(module, folder, **settings):
    """z-lab's: flat, its own settings nested, blocks counted, nothing of the target stored."""
    inner = {"block_size": 6, "mask_token_id": 3, "target_layer_ids": [0, 1]}
    named = {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    }
    return module.save(folder, **named, dflash_config={**inner, **settings}, num_target_layers=2)


def speculators(module, folder, **settings):
    """The speculators library's: the layers' configuration nested."""
    module.save(folder)
    config = {
        "speculators_model_type": "dflash",
        "speculators_config": {"algorithm": "dflash"},
        **OURS,
        **settings,
    }
    drafted = len(module.d2t) if hasattr(module, "d2t") else VOCAB
    config |= {
        "transformer_layer_config": module.raw,
        "draft_vocab_size": drafted,
        "target_hidden_size": None,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def deep_spec(module, folder, **settings):
    """DeepSpec's DSpark: flat, all blocks counted, copies of the target's ends stored."""
    settings = {
        "block_size": 6,
        "mask_token_id": 3,
        "target_layer_ids": [-1, 0, 1],
        "num_anchors": 8,
        **settings,
    }
    return module.save(folder, architectures=["Qwen3DSparkModel"], num_target_layers=2, **settings)


@pytest.mark.parametrize(
    ("write", "options", "settings", "layers"),
    [
        (z_lab, {"read": 2}, {}, (1, 2)),
        (speculators, {"drafted": 90, "ids": SMALLER, "attention_bias": False}, {}, (0, 1, 2)),
        (speculators, {"layers": 1}, {"sample_from_anchor": True}, (0, 1, 2)),
        (speculators, {"drafted": 90, "ids": SMALLER, "rank": 8}, SPARK, (0, 1, 2)),
        (deep_spec, {"own": True, "rank": 8}, SPARK, (0, 1, 2)),
    ],
)
def test_drafts_equal_a_block_run_from_scratch(model, tmp_path, write, options, settings, layers):
    """Of each library's file; other parts of drafters are in tests/methods/test_block_family.py."""
    module = DFlashModule(**options)
    method = bound(DFlash(write(module, tmp_path, **settings)), model)
    assert method.needs.hidden == layers
    made = watched(method)
    assert run(model, method, PROMPT, 14).ids == plain_greedy(model, PROMPT, 14)
    assert len(made) > 4
    for context, draft in made:
        hidden = module.norm(
            module.block(model, features_of(model, method, context[:-1]), context[-1], 6)
        )
        levels, chain = module.project(hidden, model)[0 if settings else 1 :], []
        for place, own in enumerate(levels):
            if "rank" in options:
                own = own + module.biases([context[-1], *chain], hidden)[place]
            chain.append(module.to_target(own.argmax()))
        assert draft.tokens.tolist() == chain[: len(draft)]
        assert len(draft) >= min(len(chain), 14 - len(context) + len(PROMPT))


@pytest.fixture
def confident(tmp_path):
    """DSpark with a confidence head that is sure of some places, and its folder."""
    module = DFlashModule(rank=8)
    module.confidence_head["proj"].weight.data *= 8
    return module, deep_spec(module, tmp_path, **SPARK, markov_head_type="vanilla")


def require_reach(method, model, ids, chances, lengths):
    """A level follows where it and all before it are likely enough."""
    reach = chances.cumprod(0)
    for length in lengths:
        drafter = begun(method, model, ids)
        drafter.goes_on = Confidence(float(reach[length - 1 : length + 1].mean())).goes_on
        assert len(drafter.propose(ids, 64)) == length


def test_the_confidence_head_says_how_far_a_draft_goes(model, confident):
    """Its scores are those by hand; read before the norm, or behind its own token, they differ."""
    (module, folder), ids = confident, [*PROMPT, 9]
    for sampling in (None, Sampling(0.9)):
        method = bound(DFlash(folder), model, sampling)
        written = module.block(model, features_of(model, method, ids[:-1]), 9, 6)
        draft = draft_of(method, model, ids)
        tokens = [9, *draft.tokens.tolist()]
        chances = module.chances(tokens[:6], module.norm(written))
        assert torch.allclose(torch.tensor(draft.score), chances.float(), atol=1e-6)
        assert chances.std() > 0.02
        for wrong in (
            module.chances(tokens[:6], written),
            module.chances(tokens[1:], module.norm(written)),
        ):
            assert not torch.allclose(wrong, chances, atol=1e-3)
        if sampling is None:
            require_reach(method, model, ids, chances, range(1, 6))


@pytest.mark.parametrize("name", ["temperatures", "sts_temperatures"])
def test_fitted_temperatures_divide_the_logits_of_their_place(model, tmp_path, confident, name):
    """Names as SGLang and TensorRT-LLM write them; without them, or with those of the next place,
    chances differ.
    """
    (module, folder), ids, fitted = confident, [*PROMPT, 9], [0.5, 2.0, 1.0, 3.0, 0.8, 1.5]
    (tmp_path / "sts.json").write_text(json.dumps({name: fitted, "num_samples": 7}))
    method = bound(DFlash(folder, calibration=str(tmp_path / "sts.json")), model)
    assert method.inputs == (folder, str(tmp_path / "sts.json"))
    hidden = module.norm(module.block(model, features_of(model, method, ids[:-1]), 9, 6))
    draft = draft_of(method, model, ids)
    logits = torch.logit(module.chances([9, *draft.tokens.tolist()[:5]], hidden))

    def stated(temperatures):
        wanted = torch.sigmoid(logits / torch.tensor(temperatures)).float()
        return torch.allclose(torch.tensor(draft.score), wanted, atol=1e-5)

    assert stated(fitted)
    assert not any(map(stated, ([1.0] * 6, [*fitted[1:], fitted[0]])))
    require_reach(method, model, ids, torch.tensor(draft.score), [3])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"temperatures": [1.0] * 5 + [0]}, "expected 6 numbers above 0"),
        ({"scales": [1.0] * 6}, "is no calibration"),
        (None, "sts.json"),
    ],
)
def test_a_calibration_that_does_not_fit_is_named(model, tmp_path, content, message):
    folder = deep_spec(DFlashModule(rank=8), tmp_path, **SPARK, markov_head_type="vanilla")
    if content is not None:
        (tmp_path / "sts.json").write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        DFlash(folder, calibration=str(tmp_path / "sts.json")).check(card_of(model))
    assert message in str(caught.value)
    with pytest.raises(InputError, match="has no confidence head; expected null"):
        DFlash(z_lab(DFlashModule(read=2), tmp_path / "plain"), calibration="sts.json").check(
            card_of(model)
        )


@pytest.mark.parametrize(
    ("settings", "read"),
    [
        ({"enable_confidence_head": False}, False),
        ({}, True),  # its tensors are there
        (
            {"enable_confidence_head": True, "confidence_head_with_markov": False},
            "expected [1, 64]",
        ),
        ({"markov_head_type": "lstm"}, "markov_head_type=lstm; expected vanilla or gated or rnn"),
    ],
)
def test_what_a_dspark_file_says_of_its_heads(model, tmp_path, settings, read):
    config = {"markov_rank": 8, "confidence_head_with_markov": True, **settings}
    folder = deep_spec(DFlashModule(rank=8), tmp_path, dspark_config=config)
    if isinstance(read, str):
        with pytest.raises(InputError) as caught:
            bound(DFlash(folder), model)
        assert read in str(caught.value)
    else:
        draft = draft_of(bound(DFlash(folder), model), model, [*PROMPT, 9])
        assert (draft.score is not None) is read


def test_ends_that_dspark_trained_are_used_and_those_of_another_drafter_refused(model, tmp_path):
    """With the target's embedding or output head it drafts otherwise, the wrong variants."""
    module, ids = DFlashModule(own=True), [*PROMPT, 9]
    method = bound(DFlash(deep_spec(module, tmp_path / "spark")), model)
    found, features = (
        draft_of(method, model, ids).tokens.tolist(),
        features_of(model, method, ids[:-1]),
    )
    assert found == module.levels(model, features, 9, 6).argmax(-1).tolist()
    with pytest.raises(InputError, match=r"lm_head.weight is not the target's output head"):
        bound(DFlash(z_lab(module, tmp_path / "flash", target_layer_ids=[0, 0, 1])), model)
    for name in ("embed_tokens", "lm_head"):
        ends = getattr(module, name)
        delattr(module, name)
        assert found != module.levels(model, features, 9, 6).argmax(-1).tolist()
        setattr(module, name, ends)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask_token_id": None}, "mask_token_id=None; expected a token below 199"),
        ({"aux_hidden_state_layer_ids": [0, 3]}, "expected one of them, in a target of 2 layers"),
        ({"projector_type": "dflow"}, "projector_type=dflow; expected dflash or"),
    ],
)
def test_what_is_missing_or_unknown_is_named(model, tmp_path, settings, message):
    folder = speculators(DFlashModule(), tmp_path, **settings)
    with pytest.raises(InputError) as caught:
        DFlash(folder).check(card_of(model))
    assert message in str(caught.value)


def test_a_draft_is_no_longer_than_a_block_or_the_budget(model, tmp_path):
    folder = speculators(DFlashModule(), tmp_path)
    with pytest.raises(
        InputError, match="length or levels of choices=6: expected a whole number from 1 to 5"
    ):
        DFlash(folder, length=6).check(card_of(model))
    ids, whole, short = (
        [*PROMPT, 9],
        bound(DFlash(folder), model),
        bound(DFlash(folder, length=2), model),
    )
    chain = draft_of(whole, model, ids).tokens.tolist()
    assert draft_of(whole, model, ids, 3).tokens.tolist() == chain[:3]
    assert len(draft_of(short, model, ids)) == 2
