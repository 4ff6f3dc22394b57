"""DFlash's family: drafts against a float64 forward that is written from the formulas; wrong ones
differ.
"""

from __future__ import annotations

import json
import math

import pytest
import torch
from block_models import BLOCK, FILES, BlockFamily
from drawn_laws import outcomes
from safetensors.torch import load_file, save_file

from builders.drafts import require_laws
from builders.models import VOCAB, build, plain_greedy
from draft_models import draft_together
from head_models import (
    begun,
    bound,
    card_of,
    draft_of,
    features_of,
    likeliest,
    paths_of,
    run,
)
from methods.dflash import DFlash
from methods.parts import tree_method
from methods.parts.draft_layer import CompiledLayers
from specbench.decode.sampling import Sampling
from specbench.decode.walk import BlockTest
from specbench.types import InputError

IDS, SAMPLING = [5, 6, 7, 8, 9, 17, 30, 44, 3, 9, 21], Sampling(0.9)


def law_of(module, model, method, ids=IDS, count=None):
    count = BLOCK - module.skipped if count is None else count
    return module.places(model, features_of(model, method, ids[:-1]), ids[-1], count)


def agree(module, model, method, draft) -> bool:
    """Whether the distributions that a chain was drawn from are the twin's along it."""
    count, chain = module.inner["block_size"] - module.skipped, draft.tokens.tolist()
    law = law_of(module, model, method, count=count)
    wanted = torch.cat([SAMPLING(law(chain[:place])[None]) for place in range(len(chain))])
    return len(chain) == count and torch.allclose(
        draft.probs, wanted.to(draft.probs.dtype), atol=1e-6
    )


@torch.inference_mode()
def drawn(folder, model, **options):
    method = bound(DFlash(folder, **options), model, SAMPLING)
    return method, draft_of(method, model, IDS)


@pytest.mark.parametrize("kind", FILES)
def test_drafts_equal_those_of_the_formulas(model, tmp_path, kind):
    """Drawn and greedy; the ids are the target's; a policy of lengths sees each level's
    probability.
    """
    module = BlockFamily(kind)
    method, draft = drawn(module.saved(tmp_path), model)
    assert agree(module, model, method, draft)
    greedy, law = bound(DFlash(str(tmp_path)), model), law_of(module, model, method)
    whole = require_laws(begun(greedy, model, IDS), IDS, law)
    for stop in range(1, len(whole)):
        require_laws(begun(greedy, model, IDS), IDS, law, stop=stop)
    assert run(model, greedy, IDS, 30).ids == plain_greedy(model, IDS, 30)


@torch.inference_mode()
def found_and_wanted_law(method, model, monkeypatch, by_path=True):
    """(V, V) the law of two tokens: what block verification makes of every chain that can be drawn;
    the target's.

    by_path: a chain states what its tokens were drawn from, otherwise what those of the first chain
    were. The target is a table, likely where the drafter is.
    """
    chain, chances, firsts = [], [], {}

    def forced(probs, *_):
        place = len(chances)
        if place == len(chain):  # the likeliest that follows what is forced
            chain.append(int(probs[0].argmax()))
        chances.append(probs[0].double())
        stated = probs if by_path else firsts.setdefault(place, probs)
        return torch.tensor([chain[place]]), stated.clone(), torch.ones(1, dtype=torch.bool)

    monkeypatch.setattr(tree_method, "draw_children", forced)
    drawn, open_ = [], [()]
    while open_:
        chain[:], chances[:] = open_.pop(), []
        given = len(chain)
        draft = draft_of(method, model, IDS)
        for place in range(given, 2):
            others = chances[place].nonzero()[:, 0].tolist()
            open_ += [(*chain[:place], token) for token in others if token != chain[place]]
        drawn.append(
            (
                math.prod(float(row[token]) for row, token in zip(chances, chain, strict=True)),
                draft,
                [*chances],
            )
        )
    assert sum(chance for chance, *_ in drawn) == pytest.approx(1, abs=1e-5)

    random = torch.Generator().manual_seed(1)
    first, second = (sum(rows[place] for *_, rows in drawn) > 0 for place in (0, 1))
    raw = torch.randn(VOCAB + 1, VOCAB, generator=random, dtype=torch.float64)
    start, later = (
        raw[VOCAB].masked_fill(~first, -torch.inf).softmax(-1),
        raw.masked_fill(~second, -torch.inf).softmax(-1),
    )
    found = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    for chance, draft, _ in drawn:
        one, two = draft.tokens.tolist()
        test = BlockTest(draft.parents, None, 3)
        weights, left = test.weigh(
            torch.stack([start, later[one], later[two]]), draft.tokens, draft.probs
        )
        for accepted, path in outcomes(test, weights, draft.parents):
            if not path:
                found += chance * accepted * left[0][:, None] * later[:VOCAB]
            elif len(path) == 1:
                found[one] += chance * accepted * left[1]
            else:
                found[one, two] += chance * accepted
    return found, start[:, None] * later[:VOCAB]


CORRECTED = [kind for kind in FILES if "window" not in kind and kind not in ("plain", "causal")]


@pytest.mark.parametrize("kind", CORRECTED)
def test_the_law_of_drawn_chains_is_the_targets(model, tmp_path, monkeypatch, kind):
    """By enumeration: a place states its distribution after the token that was drawn before it, not
    after another.
    """
    method = bound(
        DFlash(BlockFamily(kind).saved(tmp_path), length=2),
        model,
        Sampling(1.5, top_k=4, blocks=True),
    )
    found, wanted = found_and_wanted_law(method, model, monkeypatch)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-6)
    found, wanted = found_and_wanted_law(method, model, monkeypatch, by_path=False)
    assert (found - wanted).abs().max() > 1e-3


def swap(weight, parts, order):
    pieces = weight.data.chunk(parts)
    weight.data = torch.cat([pieces[place] for place in order])


def no_row_of_the_block_is_hidden(module):
    sees = module.sees
    module.sees = lambda layer, row, key: sees(layer, row, key) or key >= len(IDS) - 1


def counts_from_each_place(module):
    module.sees = lambda layer, row, key: row - key <= module.top["sliding_window"]


def starts_behind_the_root(module):
    """The recurrent state of a block whose first row drafts nothing."""
    biases, first = module.biases, torch.zeros(1, VOCAB)
    module.biases = lambda read, rows: torch.cat([first, biases(read[1:], rows[1:])])


def of_all_layers(name, order):
    return lambda module: [setattr(getattr(layer, name), "order", order) for layer in module.layers]


def flip_slots(module):
    module.lilicorr.relative_slot_bias.data = module.lilicorr.relative_slot_bias.data.flip(1)


FULL, SLIDING = "full_attention", "sliding_attention"
SETTINGS = {
    "plain": [("causal", True)],
    "causal": [("causal", False)],
    "windowed": [("sliding_window", 3), ("sliding_window", 5), ("is_causal", True),
    ("is_causal", False),
                 ("layer_types", [FULL, SLIDING])],
    "windowed both ways": [("is_causal", True), ("sliding_window", 4)],
    "windowed from the root": [("sliding_window", 3), ("sliding_window", 5),
    ("sliding_window_non_causal", True),
                               ("layer_types", [SLIDING, FULL])],
    "windowed from the root both ways": [("sliding_window", 2),
    ("sliding_window_non_causal", False)], "all windowed": [("swa_window_size", 5)],
    "domino": [("pure_draft_prefix_len", 0), ("pure_draft_prefix_len", 2)],
    "domino from the second row": [("pure_draft_prefix_len", 1)],
    "dflash2": [("selector_top_k", 6), ("final_logit_softcapping", 2.0), ("output_multiplier", 1.0),
                ("input_embedding_scale", 1.0)],
    "lilicorr": [("lilicorr_logit_scale", 8.0)],
}  # fmt: skip
FORMULAS = [
    ("plain", lambda module: setattr(module, "mask", 4)),
    ("windowed both ways", no_row_of_the_block_is_hidden),
    ("windowed from the root", lambda module: module.top.pop("speculators_model_type")),
    ("windowed from the root both ways", counts_from_each_place),
    ("domino", lambda module: swap(module.prefix_gru.weight_ih_l0, 3, (1, 0, 2))),
    ("domino", lambda module: swap(module.prefix_gru.weight_hh_l0, 3, (0, 2, 1))),
    ("dflash2", of_all_layers("mlp_conv", (1, 0))),
    ("dflash2", of_all_layers("attention_conv", (0, 2))),
    ("lilicorr", lambda module: swap(module.lilicorr.same_slot_bias, 2, (1, 0))),
    ("lilicorr", flip_slots),
    ("lilicorr", lambda module: setattr(module.lilicorr, "in_head", module.lilicorr.out_head)),
    ("dspark gated", lambda module: setattr(module, "kind", "vanilla")),
    ("dspark rnn", lambda module: setattr(module, "kind", "vanilla")),
    ("dspark from the second row", starts_behind_the_root),
]


@pytest.mark.parametrize(("kind", "change"), FORMULAS)
def test_a_wrong_variant_drafts_otherwise(model, tmp_path, kind, change):
    """The formulas with gates or taps swapped, another order of parts ..."""
    module = BlockFamily(kind)
    method, draft = drawn(module.saved(tmp_path), model)
    change(module)
    assert not agree(module, model, method, draft)


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_wrong_setting_drafts_otherwise(model, tmp_path, kind):
    """A window off by one, rows that see later ones ..."""
    module = BlockFamily(kind)
    method, draft = drawn(module.saved(tmp_path), model)
    for name, value in SETTINGS[kind]:
        part = module.top if name in module.top else module.inner
        given, part[name] = part.get(name), value
        assert not agree(module, model, method, draft), name
        part[name] = given
        if given is None:
            del part[name]


@pytest.mark.parametrize("kind", [kind for kind in CORRECTED if "width" not in kind])
def test_every_tensor_of_a_part_is_read(model, tmp_path, kind):
    module, plain = BlockFamily(kind), BlockFamily("plain").state_dict()
    method, draft = drawn(module.saved(tmp_path), model)
    for name, weight in module.named_parameters():
        if name not in plain:
            kept, weight.data = weight.data, weight.data + torch.randn_like(weight)
            assert not agree(module, model, method, draft), name
            weight.data = kept
    assert agree(module, model, method, draft)


@pytest.mark.parametrize("kind", [kind for kind in FILES if "window" not in kind])
@torch.inference_mode()
def test_trees_are_the_likeliest_paths(model, tmp_path, kind):
    """In one call for DFlash and JetSpec, whose places know no drafted tokens, and level by level
    for the others.
    """
    module = BlockFamily(kind)
    method = bound(DFlash(module.saved(tmp_path), length=3, nodes=14, sampling="top"), model)
    law = law_of(module, model, method, count=3)
    wanted = set(likeliest(lambda path: law(path).log_softmax(-1), 3, 14))
    draft = draft_of(method, model, IDS)
    assert set(paths_of(draft)) == wanted
    assert len(draft) == 14
    assert max(map(len, wanted)) > 1
    assert method.by_place == (kind in ("plain", "causal"))


@pytest.mark.parametrize("kind", FILES)
def test_trees_of_a_fixed_shape_follow_their_own_path(model, tmp_path, kind):
    module = BlockFamily(kind)
    method = bound(DFlash(module.saved(tmp_path), choices=[[2], [2, 1], [1, 1, 2]]), model)
    law, paths = law_of(module, model, method, count=3), [()]
    for counts in ((2,), (2, 1), (1, 1, 2)):
        paths = [(*path, int(token)) for path, count in zip(paths, counts, strict=True)
                 for token in law(path).topk(count).indices]  # fmt: skip
    found = [path for path in paths_of(draft_of(method, model, IDS)) if len(path) == 3]
    assert found == paths


@pytest.mark.parametrize("kind", FILES)
def test_several_requests_draft_what_each_drafts_alone(model, tmp_path, kind):
    """Blocks of one forward do not see each other, nor do convolutions cross from one to the
    next.
    """
    method = bound(DFlash(BlockFamily(kind).saved(tmp_path)), model)
    contexts = [IDS, IDS[:4], [3, 4] * 8]
    alone = [draft_of(method, model, ids).tokens.tolist() for ids in contexts]
    drafts = draft_together([begun(method, model, ids) for ids in contexts], contexts)
    assert [draft.tokens.tolist() for draft in drafts] == alone
    assert len(set(map(tuple, alone))) == 3


@pytest.mark.parametrize("kind", FILES)
def test_compiled_code_runs_where_all_layers_see_the_same_rows(tmp_path, monkeypatch, kind):
    """In single precision, with the outcome of torch; a window counts as long as it hides
    nothing.
    """
    model, calls, real = build("llama", torch.float32), [], CompiledLayers.run

    def compare(layers, call):
        [want] = call.owner.run_together([call])
        got = real(layers, call)
        calls.append((call.keys, float((got - want).abs().max() / want.abs().max())))
        return got

    monkeypatch.setattr(CompiledLayers, "run", compare)
    method = bound(DFlash(BlockFamily(kind).saved(tmp_path)), model)
    assert run(model, method, IDS[:2], 20).ids == plain_greedy(model, IDS[:2], 20)
    assert all(error < 1e-4 for _, error in calls)
    assert bool(calls) == (
        "window" not in kind and kind not in ("dflash2", "lilicorr of the drafter's width")
    )


def test_a_flat_file_of_the_speculators_library_drafts_as_the_nested_one(model, tmp_path):
    """DFlash 2, whose first row may draft, with the layers' configuration in its own part."""
    module = BlockFamily("dflash2")
    for name in ("final_logit_softcapping", "output_multiplier", "input_embedding_scale"):
        del module.inner[name]
    folder = module.saved(tmp_path)
    flat = {
        **module.inner,
        "speculators_model_type": "dflash2",
        "sample_from_anchor": True,
        "draft_vocab_size": 199,
    }
    (tmp_path / "config.json").write_text(
        json.dumps({**flat, "transformer_layer_config": module.raw})
    )
    method, draft = drawn(folder, model)
    assert len(draft) == BLOCK
    module.inner["sample_from_anchor"] = True
    assert agree(module, model, method, draft)


def test_both_names_of_the_lattice_are_read(model, tmp_path):
    """Model-Optimizer numbers the layers of small networks, and SGLang names them."""
    module = BlockFamily("lilicorr")
    folder = module.saved(tmp_path)
    method, draft = drawn(folder, model)
    state = load_file(tmp_path / "model.safetensors")
    for old, new in (
        ("feature_mlp.0.", "feature_norm."),
        ("feature_mlp.1.", "feature_mlp.up_proj."),
        ("feature_mlp.3.", "feature_mlp.down_proj."),
        (".mlp.0.", ".mlp.up_proj."),
        (".mlp.2.", ".mlp.down_proj."),
    ):
        state = {
            name.replace(old, new) if "lilicorr" in name else name: weight
            for name, weight in state.items()
        }
    assert {name.rsplit(".", 1)[0] for name in state} >= {
        "lilicorr.feature_norm",
        "lilicorr.layers.1.mlp.down_proj",
    }
    save_file(state, tmp_path / "model.safetensors")
    other, again = drawn(folder, model)
    assert torch.equal(draft.probs, again.probs)
    assert agree(module, model, other, again)
    assert method.needs == other.needs


@pytest.mark.parametrize(
    ("kind", "inner", "top", "message"),
    [
        ("windowed", {}, {"sliding_window": None}, "a window of None; expected a whole number"),
        ("windowed", {"causal": True}, {"is_causal": False}, "'is_causal': False}; expected one"),
        ("plain", {"attention_sink_bias": True}, {}, "sets attention_sink_bias, unknown here"),
        ("plain", {"block_size": 5}, {"block_size": 6}, "block_size=6 and 5; expected one value"),
        ("domino", {"sample_from_anchor": False}, {}, "shift_label=True; expected the same"),
        ("domino", {"selector_rank": 4}, {}, "sets domino, selector_rank; expected one of them"),
        ("dflash2", {"conv_group_size": 24}, {}, "conv_group_size=24; expected a divisor of 64"),
        ("dflash2", {}, {"final_logit_softcapping": 3.0}, "expected 0.0, or the setting in"),
    ],
)
def test_what_is_refused_is_named(model, tmp_path, kind, inner, top, message):
    with pytest.raises(InputError) as caught:
        DFlash(BlockFamily(kind).saved(tmp_path, inner, top)).check(card_of(model))
    assert message in str(caught.value)


def test_a_tree_has_no_more_children_than_a_place_has_candidates(model, tmp_path):
    folder = BlockFamily("lilicorr").saved(tmp_path)
    with pytest.raises(
        InputError, match="keeps 4 candidates for a place, and a node of the tree has 5 children"
    ):
        DFlash(folder, choices=[[5]]).check(card_of(model))
    method = bound(DFlash(folder, length=1, nodes=9, sampling="top"), model)
    assert len(draft_of(method, model, IDS)) == 4
