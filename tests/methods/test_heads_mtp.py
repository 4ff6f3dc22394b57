"""Native MTP modules: checkpoints of each layout, written here, draft what the module drafts over its whole input."""

from __future__ import annotations

import json

import pytest
import torch
from mtp_modules import LAYOUTS, Module, in_turn, refuse_or_draft
from torch import nn

from builders.models import BASE, build, plain_greedy
from draft_models import draft_together
from head_models import SHAPE, begun, bound, card_of, run, states, watched
from methods.eagle import Mtp
from methods.parts.tree_method import BestChoice, fill
from specbench.decode.sampling import Sampling
from specbench.method import complete
from specbench.models.facade import ModelCard, Target
from specbench.models.load import LibraryConfig, load_model
from specbench.types import InputError


def saved(modules, folder, **config):
    more = {name: weight for module in modules[1:] for name, weight in module.tensors().items()}
    return modules[0].save(folder, more, num_nextn_predict_layers=len(modules), **config)


@pytest.fixture(scope="module")
def model():
    return bent(build("llama", torch.float64))


def bent(model):
    """With a final norm whose weights differ."""
    torch.manual_seed(6)
    nn.init.normal_(model.model.norm.weight, 1.0, 0.4)
    return model


def test_mimo_reads_states_before_the_final_norm_and_fast_mtp_behind_it(model, tmp_path):
    module, chains = Module("mimo"), []
    contexts = [[place * 7 % 90 + 5 for place in range(start, start + 8)] for start in range(12)]
    for fast, more in ((False, {}), (True, {"num_speculative_steps": 3})):
        module.fast = fast
        method = bound(Mtp(module.save(tmp_path / str(fast), **more), length=4), model)
        chains.append([begun(method, model, ids).propose(ids, 64).tokens.tolist() for ids in contexts])
        assert chains[-1] == [module.chain(model, ids) for ids in contexts]
    assert chains[0] != chains[1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_chain_is_the_modules(model, tmp_path, layout):
    """For every step of a request; the other layouts' order and norm are the wrong variants."""
    module = Module(layout)
    method = bound(Mtp(module.save(tmp_path), length=4), model)
    drafts = watched(method)
    prompt = [5, 6, 7, 8]
    assert run(model, method, prompt, 12).ids == plain_greedy(model, prompt, 12)
    assert len(drafts) >= 3
    for context, draft in drafts:
        assert [int(token) for token in draft.tokens] == module.chain(model, context)
    wrong = Module(layout)
    wrong.load_state_dict(module.state_dict())
    wrong.layout = {"mimo": "speculators", "deepseek": "speculators", "speculators": "mimo"}[layout]
    assert any([int(token) for token in draft.tokens] != wrong.chain(model, ids) for ids, draft in drafts)


def test_copies_of_the_targets_ends_are_not_read_and_everything_else_is_named(model, tmp_path):
    module = Module("deepseek")
    head, embedding = f"{module.prefix}shared_head.head.weight", f"{module.prefix}embed_tokens.weight"
    ends = model.get_output_embeddings().weight, torch.zeros(199, 64)
    bound(Mtp(module.save(tmp_path / "a", {head: ends[0].detach().clone(), embedding: ends[1]})), model)
    with pytest.raises(InputError, match=r"lm_head.weight is not the target's output head"):
        bound(Mtp(module.save(tmp_path / "other", {head: 2 * ends[0].detach()})), model)
    with pytest.raises(InputError, match=r"lacks token_layernorm.weight; holds unexpected mlp.bias"):
        bound(Mtp(module.save(tmp_path / "b", {f"{module.prefix}mlp.bias": torch.zeros(1)}, ["enorm"])), model)


@pytest.mark.parametrize(
    ("layout", "config", "reason"),
    [
        ("deepseek", {"num_nextn_predict_layers": 0}, "has no num_nextn_predict_layers"),
        ("deepseek", {"n_routed_experts": 8}, r"a mixture of experts \(n_routed_experts\)"),
        ("deepseek", {"kv_lora_rank": 8, "num_experts": 2}, r"experts \(num_experts\), latent attention"),
        ("deepseek", {"model_type": "qwen3_5"}, r"gated attention \(qwen3_5\)"),
        ("speculators", {"speculators_model_type": "eagle3"}, "speculators_model_type=eagle3; expected mtp"),
        ("speculators", {"num_centroids": 4}, "an output head of two levels"),
        ("mimo", {"hidden_size": 32}, "made for a hidden size of 32; expected the target's 64"),
    ],
)
def test_a_module_that_is_not_computed_here_is_refused_by_name(model, tmp_path, layout, config, reason):
    with pytest.raises(InputError, match=reason):
        Mtp(Module(layout).save(tmp_path, **config)).check(card_of(model))


def test_mimo_is_read_as_the_family_that_it_equals_and_drafts_with_its_own_module(tmp_path):
    """The target and its module from one checkpoint, whose family the library does not know."""
    weights = bent(build("qwen2", torch.float64)).state_dict()
    module = Module("mimo", intermediate_size=BASE["intermediate_size"])
    raw = {**BASE, "rope_theta": SHAPE["rope_theta"], "architectures": ["MiMoForCausalLM"], "auto_map": {}}
    folder = module.save(tmp_path, weights, **raw)
    config = LibraryConfig.from_pretrained(folder)
    assert config.model_type == "qwen2"
    card = ModelCard("mimo", folder, config, None, 512, frozenset(), "float64", "cpu")
    target, method = load_model(card), Mtp(length=4)
    method.check(card)
    method.bind(Target(card, target, 256, None))
    ids = [5, 6, 7, 8, 9]
    assert [int(token) for token in begun(method, target, ids).propose(ids, 64).tokens] == module.chain(target, ids)
    assert run(target, method, ids, 8).ids == plain_greedy(target, ids, 8)


@pytest.mark.parametrize("sampling", [None, Sampling(0.8, top_k=20)])
def test_a_policy_ends_the_chain_by_the_modules_distributions(model, tmp_path, sampling):
    module, ids, asked = Module("speculators"), [5, 6, 7, 8, 9], []
    drafter = begun(bound(Mtp(module.save(tmp_path), length=4), model, sampling), model, ids)
    drafter.goes_on = lambda level: asked.append(level) or len(asked) < 3
    tokens = [int(token) for token in drafter.propose(ids, 64).tokens]
    rows = module.rows(model, ids, [*tokens, 0])[:3]
    laws = rows.softmax(-1) if sampling is None else sampling(rows)
    assert len(tokens) == len(asked) == 3
    path = laws.gather(1, torch.tensor(tokens)[:, None])[:, 0].cumprod(0)
    for level, own, wanted in zip(asked, path, laws, strict=True):
        assert not level.drafted
        assert float(level.probability) == pytest.approx(float(own), rel=1e-4)
        torch.testing.assert_close(level.distribution.double(), wanted.double(), atol=1e-4, rtol=1e-3)


def test_drawn_tokens_state_the_modules_own_distributions(model, tmp_path):
    module, sampling = Module("mimo"), Sampling(0.8, top_k=20)
    ids = [5, 6, 7, 8, 9]
    draft = begun(bound(Mtp(module.save(tmp_path), length=4), model, sampling), model, ids).propose(ids, 64)
    tokens = [int(token) for token in draft.tokens]
    torch.testing.assert_close(draft.probs, sampling(module.rows(model, ids, tokens)), atol=1e-4, rtol=1e-3)
    assert not torch.allclose(draft.probs[1:], sampling(module.rows(model, ids))[1:], atol=1e-3)  # behind other tokens
    assert len(run(model, bound(Mtp("random"), model, sampling), ids, 20, sampling).ids) == 20
    modules, sampling, ids = [Module("deepseek", place) for place in range(2)], Sampling(0.8, top_k=20), [5, 6, 7, 8, 9]
    method = bound(Mtp(saved(modules, tmp_path), length=3), model, sampling)
    draft = begun(method, model, ids).propose(ids, 64)
    tokens = [int(token) for token in draft.tokens]
    torch.testing.assert_close(draft.probs, sampling(in_turn(modules, model, ids, 3, tokens)), atol=1e-4, rtol=1e-3)
    assert len(run(model, method, ids, 20, sampling).ids) == 20


@pytest.mark.parametrize(("layout", "count", "length"), [("deepseek", 2, 2), ("deepseek", 3, 3), ("mimo", 3, 2),
                                                         ("speculators", 2, 4), ("mimo", 3, 5)])  # fmt: skip
def test_several_modules_draft_in_turn(model, tmp_path, layout, count, length):
    """Every step of a request, a short prompt too; wrong variants: the first alone, another order, and no own rows."""
    modules = [Module(layout, place) for place in range(count)]
    method = bound(Mtp(saved(modules, tmp_path), length=length), model)
    for prompt in ([5, 6, 7, 8, 9, 10], [5]):
        made = watched(method)
        assert run(model, method, prompt, 12).ids == plain_greedy(model, prompt, 12)
        assert len(made) >= 3
        for context, draft in made:
            wanted = in_turn(modules, model, context, length)[: len(draft)].argmax(-1).tolist()
            assert [int(token) for token in draft.tokens] == wanted
    whole = [(ids, [int(token) for token in draft.tokens]) for ids, draft in made if len(draft) == length]
    for wrong in (modules[:1], modules[::-1]):
        assert any(in_turn(wrong, model, ids, length).argmax(-1).tolist() != tokens for ids, tokens in whole)
    alone = bound(Mtp(method.head, length=length, modules=1), model)
    ids = whole[0][0]
    assert [int(t) for t in begun(alone, model, ids).propose(ids, 64).tokens] == modules[0].rows(
        model, ids, None, length
    ).argmax(-1).tolist()


@pytest.mark.parametrize("layout", ["deepseek", "mimo"])
def test_modules_keep_up_whatever_was_accepted_and_drafted_between(model, tmp_path, layout):
    """Committed tokens arrive in pieces, as after steps of other lengths; drafts between them are cut anywhere."""
    modules = [Module(layout, place) for place in range(3)]
    method = bound(Mtp(saved(modules, tmp_path), length=4), model)
    ids = [place * 7 % 90 + 5 for place in range(24)]
    hidden, at = states(model, ids[:-1])[-1], 0
    place = method.new_run(method.bound, method.new_memory())
    for piece, budget in ((1, 2), (1, 4), (2, 1), (3, 4), (1, 1), (1, 2), (5, 3), (4, 4), (2, 4)):
        rows = slice(at, at + piece)
        place.remember([hidden[rows]], torch.tensor(ids[1:][rows]))
        at += piece
        for _ in range(2):  # a second draft from the same place is the same
            tokens = complete(fill(place, method.plan.cut(budget), BestChoice(place)))[0].tolist()
            assert tokens == in_turn(modules, model, ids[: at + 1], budget).argmax(-1).tolist()


def test_several_requests_share_the_modules_forwards(model, tmp_path):
    modules = [Module("deepseek", place) for place in range(2)]
    method = bound(Mtp(saved(modules, tmp_path), length=3), model)
    contexts = [[5, 6, 7, 11], [9, 8], [3, 4] * 6]
    drafts = draft_together([begun(method, model, ids) for ids in contexts], contexts)
    for draft, ids in zip(drafts, contexts, strict=True):
        assert draft.tokens.tolist() == in_turn(modules, model, ids, 3).argmax(-1).tolist()


def test_a_module_that_is_missing_or_too_many_is_named(model, tmp_path):
    modules = [Module("deepseek", place) for place in range(2)]
    folder = saved(modules, tmp_path)
    with pytest.raises(InputError, match="modules=3: expected a whole number from 1 to 2"):
        bound(Mtp(folder, modules=3), model)
    with pytest.raises(InputError, match="choices: 2 modules draft a chain"):
        bound(Mtp(folder, choices=[[2], [1, 1]]), model)
    config = json.loads((tmp_path / "config.json").read_text())
    wrong = [(3, r"\(model.layers.4.\*\): no MTP head .*lacks"), ("2", "num_nextn_predict_layers='2'"),
             (17, "expected a whole number from 1 to 16"), (True, "num_nextn_predict_layers=True")]  # fmt: skip
    for value, message in wrong:
        (tmp_path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": value}))
        with pytest.raises(InputError, match=message):
            bound(Mtp(folder), model)


@pytest.mark.parametrize("layout", ["mimo", "speculators"])
def test_no_value_of_a_setting_ends_in_another_error(model, tmp_path, layout):
    module = Module(layout)
    folder = module.save(tmp_path)
    also = dict.fromkeys(("rope_scaling", "layer_types", "sliding_window", "use_sliding_window", "qkv_bias"))
    plain = also | json.loads((tmp_path / "config.json").read_text())
    refuse_or_draft(model, module, folder, plain, plain)
    for unknown in ({"logits_scaling": 8.0}, {"quantization_config": {"quant_method": "fp8"}}):
        (tmp_path / "config.json").write_text(json.dumps({**plain, **unknown}))
        with pytest.raises(InputError, match=f"sets {next(iter(unknown))}, unknown here"):
            bound(Mtp(folder), model)
