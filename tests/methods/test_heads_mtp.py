"""Native MTP modules of each layout and family draft what the module drafts over its whole
input.
"""

from __future__ import annotations

import json

import pytest
import torch
from mtp_modules import LAYOUTS, FamilyModule, Module, in_turn, refuse_or_draft
from safetensors.torch import load_file, save_file
from torch import nn

from builders.drafts import require_laws
from builders.models import BASE, build, plain_greedy
from draft_models import draft_together
from head_models import (
    CONTEXT,
    SHAPE,
    begun,
    bound,
    damaged,
    draft_of,
    paths_of,
    run,
    states,
    watched,
)
from methods.eagle import Mtp
from methods.eagle.mtp import LibraryLayer
from methods.parts.tree_method import BestChoice, fill
from specbench.decode.sampling import Sampling
from specbench.method import complete
from specbench.models.facade import ModelCard, Target
from specbench.models.load import LibraryConfig, load_model
from specbench.types import InputError

IDS, SAMPLING = [5, 6, 7, 8, 9], Sampling(0.8, top_k=20)
# in a run of everything
LATER = ("deepseek", "speculators", "qwen3_next", "glm4_moe", "glm4_moe_lite")
KINDS = [
    pytest.param(kind, marks=[pytest.mark.exhaustive] if kind in LATER else [])
    for kind in (*LAYOUTS, "deepseek_v3", "qwen3_next", "glm4_moe", "glm4_moe_lite")
]
OWN = [kind for kind in KINDS if kind.values[0] not in ("deepseek", "speculators")]


def saved(modules, folder, **config):
    more = {name: weight for module in modules[1:] for name, weight in module.tensors().items()}
    return modules[0].save(folder, more, num_nextn_predict_layers=len(modules), **config)


def bent(model):
    """With a final norm whose weights differ."""
    torch.manual_seed(6)
    nn.init.normal_(model.model.norm.weight, 1.0, 0.4)
    return model


@pytest.fixture(scope="module")
def model():
    return bent(build("llama", torch.float64))


@pytest.fixture(scope="module")
def latent():
    return build("deepseek_v3", torch.float64)


def module_of(kind, model):
    """A target and its module, of a layout around ``model`` or of a family of its own."""
    if kind in LAYOUTS:
        return model, Module(kind)
    model = build(kind, torch.float64)
    return model, FamilyModule(model)


def drafted(method, model, ids=IDS):
    return [int(token) for token in draft_of(method, model, ids).tokens]


def test_mimo_reads_states_before_the_final_norm_and_fast_mtp_behind_it(model, tmp_path):
    module, chains = Module("mimo"), []
    contexts = [[place * 7 % 90 + 5 for place in range(start, start + 8)] for start in range(12)]
    for fast, more in ((False, {}), (True, {"num_speculative_steps": 3})):
        module.fast = fast
        method = bound(Mtp(module.save(tmp_path / str(fast), **more), length=4), model)
        chains.append([drafted(method, model, ids) for ids in contexts])
        assert chains[-1] == [module.chain(model, ids) for ids in contexts]
    assert chains[0] != chains[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_is_the_modules(model, tmp_path, kind):
    """For every step of a request, also behind one token; wrong variants draft otherwise."""
    model, module = module_of(kind, model)
    method = bound(Mtp(module.save(tmp_path), length=4), model)
    assert isinstance(method.bound.layers, LibraryLayer) == (kind not in LAYOUTS)
    drafts = watched(method)
    for prompt in ([5, 6, 7, 8], [5]):
        assert run(model, method, prompt, 12).ids == plain_greedy(model, prompt, 12)
    assert len(drafts) >= 6

    def agrees():
        made = ((draft, module.chain(model, context)) for context, draft in drafts)
        return all(list(map(int, draft.tokens)) == chain[: len(draft)] for draft, chain in made)

    assert agrees()
    for module.wrong in (
        ("norms", "order", "tokens")
        if kind in LAYOUTS
        else ("norms", "order", "tokens", "positions")
    ):
        assert not agrees(), module.wrong
    module.wrong, others = (
        None,
        {"mimo": "speculators", "deepseek": "speculators", "speculators": "deepseek"},
    )
    module.layout = others[module.layout]
    assert not agrees()


def test_copies_of_the_targets_ends_are_not_read_and_everything_else_is_named(model, tmp_path):
    module = Module("deepseek")
    head, embedding = (
        f"{module.prefix}shared_head.head.weight",
        f"{module.prefix}embed_tokens.weight",
    )
    ends = model.get_output_embeddings().weight, torch.zeros(199, 64)
    bound(
        Mtp(module.save(tmp_path / "a", {head: ends[0].detach().clone(), embedding: ends[1]})),
        model,
    )
    with pytest.raises(InputError, match=r"lm_head.weight is not the target's output head"):
        bound(Mtp(module.save(tmp_path / "other", {head: 2 * ends[0].detach()})), model)
    with pytest.raises(
        InputError, match=r"lacks token_layernorm.weight; holds unexpected mlp.bias"
    ):
        bound(
            Mtp(
                module.save(tmp_path / "b", {f"{module.prefix}mlp.bias": torch.zeros(1)}, ["enorm"])
            ),
            model,
        )


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        ("deepseek", {"num_nextn_predict_layers": 0}, "has no num_nextn_predict_layers"),
        ("deepseek", {"n_routed_experts": 8}, r"a mixture of experts \(n_routed_experts\)"),
        ("deepseek", {"kv_lora_rank": 8, "num_experts": 2},
        r"experts \(num_experts\), latent attention"), ("deepseek", {"model_type": "qwen3_5"},
        r"gated attention \(qwen3_5\)"),
        ("speculators", {"speculators_model_type": "eagle3"},
        "speculators_model_type=eagle3; expected mtp"), ("speculators", {"num_centroids": 4},
        "an output head of two levels"),
        ("mimo", {"hidden_size": 32}, "made for a hidden size of 32; expected the target's 64"),
        ("deepseek_v3", {"n_routed_experts": 5000},
        "n_routed_experts=5000; expected a whole number"), ("deepseek_v3", {"n_routed_experts": 3},
        "holds unexpected mlp.experts.3.down_proj.weight"),
        ("deepseek_v3", {"kv_lora_rank": 8}, r"differs in shape self_attn.kv_a_layernorm.weight"),
        ("deepseek_v3",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4,
                         "original_max_position_embeddings": 64}},
                         "rotary positions change with the length"),
    ],
)  # fmt: skip
def test_a_module_that_is_not_computed_here_is_refused_by_name(
    model, tmp_path, kind, config, reason
):
    model, module = module_of(kind, model)
    with pytest.raises(InputError, match=reason):
        bound(Mtp(module.save(tmp_path, **config)), model)


@pytest.mark.parametrize("kind", OWN)
def test_target_and_module_of_one_checkpoint(tmp_path, kind):
    """No head is named. MiMo's family is unknown to the library, and read as the one it equals."""
    if kind == "mimo":
        model = bent(build("qwen2", torch.float64))
        module = Module("mimo", intermediate_size=BASE["intermediate_size"])
        raw = {
            **BASE,
            "rope_theta": SHAPE["rope_theta"],
            "architectures": ["MiMoForCausalLM"],
            "auto_map": {},
        }
        folder = module.save(tmp_path, model.state_dict(), **raw)
    else:
        model, module = module_of(kind, None)
        model.save_pretrained(tmp_path)
        whole = load_file(tmp_path / "model.safetensors")
        (tmp_path / "model.safetensors").unlink()
        folder = module.save(tmp_path, whole, architectures=[type(model).__name__])
    config = LibraryConfig.from_pretrained(folder)
    assert config.model_type == ("qwen2" if kind == "mimo" else kind)
    card = ModelCard("own", folder, config, None, CONTEXT, frozenset(), "float64", "cpu")
    target, method = load_model(card), Mtp(length=4)
    method.check(card)
    method.bind(Target(card, target, 256, None))
    assert drafted(method, target) == module.chain(target, IDS)
    assert run(target, method, IDS, 8).ids == plain_greedy(target, IDS, 8)


def law_of(module, model):
    return lambda path: module.rows(model, IDS, [*path, 0], len(path) + 1)[-1]


@pytest.mark.parametrize("sampling", [None, SAMPLING])
def test_a_policy_ends_the_chain_by_the_modules_distributions(model, tmp_path, sampling):
    module = Module("speculators")
    drafter = begun(bound(Mtp(module.save(tmp_path), length=4), model, sampling), model, IDS)
    require_laws(drafter, IDS, law_of(module, model), sampling, stop=3)


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_tokens_state_the_modules_own_distributions(model, tmp_path, kind):
    model, module = module_of(kind, model)
    method = bound(Mtp(module.save(tmp_path), length=4), model, SAMPLING)
    draft = require_laws(begun(method, model, IDS), IDS, law_of(module, model), SAMPLING)
    module.wrong = "positions"
    with pytest.raises(AssertionError):
        require_laws(begun(method, model, IDS), IDS, law_of(module, model), SAMPLING)
    assert len(draft) == 4
    assert len(run(model, method, IDS, 20, SAMPLING).ids) == 20


def test_modules_in_turn_state_their_own_distributions(model, tmp_path):
    modules = [Module("deepseek", place) for place in range(2)]
    method = bound(Mtp(saved(modules, tmp_path), length=3), model, SAMPLING)
    draft = draft_of(method, model, IDS)
    wanted = in_turn(modules, model, IDS, 3, [int(token) for token in draft.tokens])
    torch.testing.assert_close(draft.probs, SAMPLING(wanted), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("layout", "count", "length"),
    [("deepseek", 2, 2), ("deepseek", 3, 3), ("mimo", 3, 2), ("speculators", 2, 4), ("mimo", 3, 5)],
)
def test_several_modules_draft_in_turn(model, tmp_path, layout, count, length):
    """Every step of a request, a short prompt too; wrong variants: the first alone, another order,
    and no own rows.
    """
    modules = [Module(layout, place) for place in range(count)]
    method = bound(Mtp(saved(modules, tmp_path), length=length), model)
    for prompt in ([5, 6, 7, 8, 9, 10], [5]):
        made = watched(method)
        assert run(model, method, prompt, 12).ids == plain_greedy(model, prompt, 12)
        assert len(made) >= 3
        for context, draft in made:
            wanted = in_turn(modules, model, context, length)[: len(draft)].argmax(-1).tolist()
            assert [int(token) for token in draft.tokens] == wanted
    whole = [
        (ids, [int(token) for token in draft.tokens]) for ids, draft in made if len(draft) == length
    ]
    for wrong in (modules[:1], modules[::-1]):
        assert any(
            in_turn(wrong, model, ids, length).argmax(-1).tolist() != tokens
            for ids, tokens in whole
        )
    alone = bound(Mtp(method.head, length=length, modules=1), model)
    ids = whole[0][0]
    assert (
        drafted(alone, model, ids) == modules[0].rows(model, ids, None, length).argmax(-1).tolist()
    )


@pytest.mark.parametrize("layout", ["deepseek", "mimo"])
def test_modules_keep_up_whatever_was_accepted_and_drafted_between(model, tmp_path, layout):
    """Committed tokens arrive in pieces, as after steps of other lengths; drafts between them are
    cut anywhere.
    """
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


def test_a_tree_follows_its_own_paths(latent, tmp_path):
    module = FamilyModule(latent)
    method = bound(Mtp(module.save(tmp_path), choices=[[2], [2, 1], [1, 1, 1]]), latent)
    for path in paths_of(draft_of(method, latent, IDS)):
        best = module.rows(latent, IDS, path, len(path))[-1].topk(2).indices.tolist()
        assert path[-1] in best
    assert run(latent, method, IDS, 12).ids == plain_greedy(latent, IDS, 12)


@pytest.mark.parametrize("kind", ["deepseek", "deepseek_v3"])
def test_several_requests_share_the_modules_forwards(model, latent, tmp_path, kind):
    model = model if kind in LAYOUTS else latent
    modules = [
        Module(kind, place) if kind in LAYOUTS else FamilyModule(latent, place)
        for place in range(2)
    ]
    method = bound(Mtp(saved(modules, tmp_path), length=3), model)
    contexts = [[5, 6, 7, 11], [9, 8], [3, 4] * 6]
    drafts = draft_together([begun(method, model, ids) for ids in contexts], contexts)
    for draft, ids in zip(drafts, contexts, strict=True):
        assert draft.tokens.tolist() == in_turn(modules, model, ids, 3).argmax(-1).tolist()


def test_a_module_that_is_missing_or_too_many_is_named(model, tmp_path):
    folder = saved([Module("deepseek", place) for place in range(2)], tmp_path)
    with pytest.raises(InputError, match="modules=3: expected a whole number from 1 to 2"):
        bound(Mtp(folder, modules=3), model)
    with pytest.raises(InputError, match="choices: 2 modules draft a chain"):
        bound(Mtp(folder, choices=[[2], [1, 1]]), model)
    config = json.loads((tmp_path / "config.json").read_text())
    for value, message in (
        (3, r"\(model.layers.4.\*\): no MTP head .*lacks"),
        (17, "from 1 to 16"),
    ):
        (tmp_path / "config.json").write_text(
            json.dumps({**config, "num_nextn_predict_layers": value})
        )
        with pytest.raises(InputError, match=message):
            bound(Mtp(folder), model)


FEW = ("kv_lora_rank", "n_group", "num_experts_per_tok", "moe_intermediate_size", "rope_interleave")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("mimo", ()),
        ("speculators", ()),
        ("deepseek_v3", FEW),
        pytest.param("deepseek_v3", (), marks=pytest.mark.exhaustive),
        pytest.param("qwen3_next", (), marks=pytest.mark.exhaustive),
    ],
)
def test_no_value_of_a_setting_ends_in_another_error(model, tmp_path, kind, names):
    """names: of the settings; none = all, which takes over a minute."""
    model, module = module_of(kind, model)
    folder = module.save(tmp_path)
    also = ("rope_scaling", "layer_types", "sliding_window", "use_sliding_window", "qkv_bias")
    plain = dict.fromkeys(also if kind in LAYOUTS else ()) | json.loads(
        (tmp_path / "config.json").read_text()
    )
    refuse_or_draft(model, module, folder, plain, names or plain)
    (tmp_path / "config.json").write_text(json.dumps({**plain, "logits_scaling": 8.0}))
    with pytest.raises(InputError, match="sets logits_scaling, unknown here"):
        bound(Mtp(folder), model)


def test_a_long_prompt_is_read_in_parts(latent, tmp_path, monkeypatch):
    """The wrong variant is a mask that shows the later tokens of a part, which the second module
    notices.
    """
    contexts = [[place * step % 90 + 5 for place in range(70)] for step in (7, 11, 13)]
    modules = [FamilyModule(latent, place) for place in range(2)]
    method = bound(Mtp(saved(modules, tmp_path), length=3), latent)
    parts = lambda end, start: [slice(at, min(at + 16, end)) for at in range(start, end, 16)]  # noqa: E731
    monkeypatch.setattr("methods.eagle.mtp.list_masked_chunks", parts)

    def drafts():
        return [drafted(method, latent, ids) for ids in contexts]

    right = [in_turn(modules, latent, ids, 3).argmax(-1).tolist() for ids in contexts]
    assert drafts() == right
    mask = "methods.eagle.mtp.build_causal_mask"
    monkeypatch.setattr(
        mask, lambda end, window, dtype, start: torch.zeros(1, 1, end - start, end, dtype=dtype)
    )
    assert drafts() != right


def test_a_routers_bias_keeps_its_precision(tmp_path):
    """In bfloat16 two experts whose biases differ by less than its rounding would be one."""
    model = build("deepseek_v3", torch.bfloat16)
    module = FamilyModule(model).float()
    bias = module.block.mlp.gate.e_score_correction_bias
    bias.copy_(torch.tensor([1.0, 1.0001, 1.0002, 1.0003]))
    method = bound(Mtp(module.save(tmp_path)), model)
    loaded = method.bound.layers._model.layers[0].mlp
    assert torch.equal(loaded.gate.e_score_correction_bias, bias)
    assert loaded.experts.down_proj.dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_next"])
def test_a_module_with_other_tensors_is_refused(family, tmp_path):
    model = build(family, torch.float64)
    module = FamilyModule(model)
    folder, state = module.save(tmp_path), module.tensors()
    (tmp_path / "model.safetensors.index.json").unlink()
    for name in [*state][:: 1 + len(state) // 12]:
        for changed in damaged(state, name):
            save_file(changed, tmp_path / "model.safetensors")
            with pytest.raises(InputError):
                bound(Mtp(folder), model)
