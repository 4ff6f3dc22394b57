"""Native MTP modules: checkpoints of each layout, written here, draft what the module drafts over its whole input."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from builders.models import BASE, build, plain_greedy
from head_models import HOSTILE, SHAPE, begun, bound, card_of, causal, run, states, watched
from methods.eagle import Mtp
from methods.parts.tree_method import BestChoice, fill
from specbench.decode.sampling import Sampling
from specbench.decode.together import SharedRequest, draft_on
from specbench.method import complete
from specbench.models.facade import ModelCard, Target
from specbench.models.load import LibraryConfig, load_model
from specbench.types import InputError

LAYERS = BASE["num_hidden_layers"]
EIGENNAMES = {"input_proj": "eh_proj", "hidden_layernorm": "hnorm", "token_layernorm": "enorm",
              "final_layernorm": "shared_head.norm"}  # fmt: skip
NATIVE = {"num_nextn_predict_layers": 1}
LAYOUTS = {
    "mimo": ("qwen2", {"model_type": "mimo", "attention_bias": True, **NATIVE}, "model.mtp_layers.0."),
    "deepseek": ("llama", {"model_type": "llama", **NATIVE}, f"model.layers.{LAYERS}."),
    "speculators": ("qwen3", {"model_type": "qwen3"}, "mtp_layers.0."),
}


class Module(nn.Module):
    """A layout's forward as its authors have it, over a whole sequence."""

    def __init__(self, layout: str, place: int = 0, **shape) -> None:
        super().__init__()
        torch.manual_seed(4 + place)
        self.fast = False  # FastMTP's checkpoint of MiMo
        self.layout, (family, self.raw, first) = layout, LAYOUTS[layout]
        stem, number, _ = first.rsplit(".", 2)
        self.prefix = f"{stem}.{int(number) + place}."
        config = AutoConfig.for_model(family, **{**SHAPE, "head_dim": 16, **shape})
        config._attn_implementation = "eager"
        layers = {"qwen2": Qwen2DecoderLayer, "llama": LlamaDecoderLayer, "qwen3": Qwen3DecoderLayer}
        self.block, self.rope = layers[family](config, 0), [LlamaRotaryEmbedding(config)]
        self.input_proj = nn.Linear(128, 64, bias=False)
        for name in ("hidden_layernorm", "token_layernorm", "final_layernorm"):
            setattr(self, name, nn.RMSNorm(64, eps=SHAPE["rms_norm_eps"]))
        for name, weight in self.named_parameters():
            if "norm" in name:
                nn.init.normal_(weight, 1.0, 0.1)
        self.double()

    def layer(self, model, hidden, ids):
        """(T, D) states that go on, of states and the tokens that follow them."""
        parts = [self.token_layernorm(model.get_input_embeddings()(ids)), self.hidden_layernorm(hidden)]
        mixed = self.input_proj(torch.cat(parts[::-1] if self.layout == "mimo" else parts, dim=-1))[None]
        angles = self.rope[0](mixed, torch.arange(len(ids))[None])
        written = self.block(mixed, attention_mask=causal(len(ids), mixed.dtype), position_embeddings=angles)[0]
        return written if self.layout == "deepseek" else self.final_layernorm(written)

    @torch.inference_mode()
    def rows(self, model, ids, drafted=None, length=4):
        """(length, V) logits behind ``ids`` and the tokens drafted so far, each the best one or that of ``drafted``."""
        bare = self.layout == "mimo" and not self.fast
        hidden = bare_states(model, ids[:-1]) if bare else states(model, ids[:-1])[-1]
        following, found = torch.tensor(ids[1:]), []
        for place in range(length):
            last = self.layer(model, hidden, following)[-1:]
            behind = self.final_layernorm(last) if self.layout == "deepseek" else last
            found.append(model.get_output_embeddings()(behind)[0])
            token = found[-1].argmax() if drafted is None else torch.tensor(drafted[place])
            hidden, following = torch.cat([hidden, last]), torch.cat([following, token[None]])
        return torch.stack(found)

    def chain(self, model, ids):
        return self.rows(model, ids).argmax(-1).tolist()

    def tensors(self, drop=()):
        """The checkpoint's names."""
        found = {}
        for name, weight in self.state_dict().items():
            stem, _, last = name.removeprefix("block.").rpartition(".")
            stem = EIGENNAMES.get(stem, stem) if self.layout == "deepseek" else stem
            if stem not in drop:
                found[f"{self.prefix}{stem}.{last}"] = weight.contiguous()
        return found

    def save(self, folder, more=(), drop=(), **config):
        """In two files with an index, as large checkpoints are, or in one."""
        folder.mkdir(parents=True, exist_ok=True)
        raw = {**SHAPE, "head_dim": 16, **self.raw, **config}
        if self.layout == "speculators":
            raw = {"speculators_model_type": "mtp", "transformer_layer_config": raw, **config}
            save_file({**self.tensors(drop), **dict(more)}, folder / "model.safetensors")
        else:
            held = {**self.tensors(drop), **dict(more), "model.norm.weight": torch.ones(64)}
            placed = {name: f"model-{place % 2}.safetensors" for place, name in enumerate(sorted(held))}
            for part in set(placed.values()):
                save_file(
                    {name: held[name] for name, at in placed.items() if at == part}, folder / part, {"format": "pt"}
                )
            (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
        (folder / "config.json").write_text(json.dumps(raw))
        return str(folder)


@torch.inference_mode()
def in_turn(modules, model, ids, length, drafted=()):
    """(length, V) logits by the report's equations, in float64: every module over all rows, as often as it is needed.

    drafted: tokens in place of the best ones.
    """
    known, rows, found = list(ids), len(ids) - 1, []
    bare = modules[0].layout == "mimo"
    first = bare_states(model, ids[:-1]) if bare else states(model, ids[:-1])[-1]
    for depth in range(1, length + 1):
        hidden, last = first, min(depth, len(modules))
        for k, module in enumerate(modules[:last], 1):
            read, hidden = hidden, module.layer(model, hidden, torch.tensor(known[k : k + rows]))
        for more in range(1, depth - last + 1):  # behind the last module: a row more, which reads its own state
            read = torch.cat([read, hidden[-1:]])
            hidden = module.layer(model, read, torch.tensor(known[last : last + rows + more]))
        state = module.final_layernorm(hidden) if module.layout == "deepseek" else hidden
        found.append(model.get_output_embeddings()(state[-1]))
        known.append(drafted[depth - 1] if drafted else int(found[-1].argmax()))
    return torch.stack(found)


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


@torch.inference_mode()
def bare_states(model, ids):
    """(T, D) what the final norm reads."""
    seen = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, given: seen.append(given[0][0]))
    model(torch.tensor([list(ids)]), use_cache=False)
    hook.remove()
    return seen[0]


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
        ("deepseek", {"model_type": "qwen3_next"}, r"gated attention \(qwen3_next\)"),
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
    asked = [SharedRequest(None, drafter=begun(method, model, ids)) for ids in contexts]
    waiting = [(each, each.drafter.drafting(ids, 64), None) for each, ids in zip(asked, contexts, strict=True)]
    while waiting:
        waiting = draft_on(waiting)
    for each, ids in zip(asked, contexts, strict=True):
        assert each.error is None
        assert each.draft.tokens.tolist() == in_turn(modules, model, ids, 3).argmax(-1).tolist()


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
    for value, said in wrong:
        (tmp_path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": value}))
        with pytest.raises(InputError, match=said):
            bound(Mtp(folder), model)


@pytest.mark.parametrize("layout", ["mimo", "speculators"])
def test_no_value_of_a_setting_ends_in_another_error(model, tmp_path, layout):
    folder = Module(layout).save(tmp_path)
    plain = {"rope_scaling": None, **json.loads((tmp_path / "config.json").read_text())}
    ids, accepted = [5, 6, 7, 8], 0
    for name in plain:
        for value in HOSTILE:
            (tmp_path / "config.json").write_text(json.dumps({**plain, name: value}))
            try:
                begun(bound(Mtp(folder), model), model, ids).propose(ids, 64)
                accepted += 1
            except InputError:
                pass
            except Exception as error:
                raise AssertionError(f"{name}={value!r} ends in {error!r}") from error
    assert accepted
    for unknown in ({"logits_scaling": 8.0}, {"quantization_config": {"quant_method": "fp8"}}):
        (tmp_path / "config.json").write_text(json.dumps({**plain, **unknown}))
        with pytest.raises(InputError, match=f"sets {next(iter(unknown))}, unknown here"):
            bound(Mtp(folder), model)
