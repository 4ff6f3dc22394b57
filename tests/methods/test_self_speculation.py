"""Self-speculation: the draft is the target's layers without those skipped, run by hand without a
cache.
"""

from __future__ import annotations

import pytest
import torch

from builders.models import BASE, build, plain_greedy
from draft_models import begin, draft_behind, run
from head_models import card_of, target_of
from methods.self_speculation import LayerSearch, SelfSpeculation, draw_sets, keep_layers
from specbench.decode.sampling import Sampling
from specbench.types import InputError

LAYERS = 5


def deep(family: str, **extra):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **{**BASE, "num_hidden_layers": LAYERS, **extra})
    return AutoModelForCausalLM.from_config(
        config, dtype=torch.float64, attn_implementation="sdpa"
    ).eval()


@torch.inference_mode()
def by_hand(model, ids, kept):
    """(V,) logits of the last token through the layers ``kept``, module by module, full
    attention.
    """
    body, ids = model.model, torch.tensor([list(ids)])
    hidden, turned = body.embed_tokens(ids), torch.arange(ids.shape[1])[None]
    angles = body.rotary_emb(hidden, turned)
    mask = torch.full((ids.shape[1],) * 2, torch.finfo(hidden.dtype).min, dtype=hidden.dtype).triu(
        1
    )[None, None]
    for layer in kept:
        hidden = body.layers[layer](
            hidden, attention_mask=mask, position_embeddings=angles, position_ids=turned
        )
    return model.lm_head(body.norm(hidden))[0, -1]


def bound(model, sampling=None, **options) -> SelfSpeculation:
    method = SelfSpeculation(**{"schedule": "fixed", "length": 4, **options})
    method.check(card_of(model))
    method.bind(target_of(model, sampling))
    method.reset()
    return method


@pytest.mark.parametrize(
    ("family", "extra", "options", "kept"),
    [
        ("llama", {}, {}, [0, 2, 4]),
        ("qwen2", {}, {"exit": 2}, [0, 1]),
        ("qwen3", {"head_dim": 16}, {"skip": [0, 3]}, [1, 2, 4]),
    ],
)
def test_a_chain_is_what_the_kept_layers_say(family, extra, options, kept):
    model = deep(family, **extra)
    method = bound(model, **options)
    assert method.kept == kept
    ids = [5 + place * 7 % 90 for place in range(30)]
    drafter = begin(method, ids[:20])
    for end in (20, 21, 24):
        chain = list(drafter.propose(ids[:end], 64).tokens)
        wanted = [
            int(by_hand(model, [*ids[:end], *chain[:place]], kept).argmax()) for place in range(4)
        ]
        assert chain == wanted
    every = [
        int(by_hand(model, [*ids[:24], *chain[:place]], range(LAYERS)).argmax())
        for place in range(4)
    ]
    assert chain != every  # the wrong variant: nothing is skipped


def test_windows_stay_with_their_layers_and_weights_are_shared():
    model = deep("qwen2", use_sliding_window=True, sliding_window=12, max_window_layers=2)
    part = keep_layers(model, [0, 3])
    assert part.config.layer_types == ["full_attention", "sliding_attention"]
    assert [layer.self_attn.layer_idx for layer in part.model.layers] == [0, 1]
    assert part.model.layers[1].mlp.up_proj.weight is model.model.layers[3].mlp.up_proj.weight
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == [*range(LAYERS)]
    assert (len(model.model.layers), model.config.num_hidden_layers) == (LAYERS, LAYERS)


def test_output_is_the_targets_and_a_chain_ends_where_it_is_unsure():
    model = deep("llama")
    assert run(model, bound(model)).ids == plain_greedy(model, [5, 6, 7], 61)
    assert len(draft_behind(bound(model, schedule="confidence", threshold=1.0), [5, 6, 7])) == 1
    model, sampling = build("llama", torch.float64), Sampling(1.0)
    method = bound(model, sampling, exit=1)
    assert method.draws
    assert len(run(model, method, sampling=sampling, limit=20).ids) == 20


def idle(model, *layers):
    """The model with layers that add nothing."""
    for layer in layers:
        model.model.layers[layer].self_attn.o_proj.weight.data.zero_()
        model.model.layers[layer].mlp.down_proj.weight.data.zero_()
    return model


SEARCH = {"search": 2, "window": 16}


def test_the_sets_are_the_given_one_and_others_that_keep_the_ends():
    assert sorted(draw_sets([0, 2, 4], 5, 9)) == [[0, 1, 4], [0, 2, 4], [0, 3, 4]]
    sets = draw_sets([*range(16)], 32, 6)
    assert sets == draw_sets([*range(16)], 32, 6)
    assert (len(sets), {(len({*kept}), kept[0]) for kept in sets}) == (7, {(16, 0)})
    assert all(kept[-1] == 31 and kept == sorted(kept) for kept in sets[1:])


def test_the_search_finds_the_layers_that_add_nothing_while_it_decodes():
    model = idle(deep("llama"), 1, 2)
    found = run(model, method := bound(model, length=4, **SEARCH))
    assert found.ids == plain_greedy(model, [5, 6, 7], 61)
    assert (method.kept, method.found.agreed) == ([0, 3, 4], 1.0)
    assert found.stats["agreed"] == 1.0
    assert found.accept[-4:-1] == [5, 5, 5]
    assert 5 not in found.accept[:3]
    assert run(model, bound(model, length=4)).accept[-4:-1] != [5, 5, 5]


@pytest.mark.parametrize("reset", [True, False])
def test_what_was_found_lasts_until_the_reset_and_is_each_states_own(reset):
    model = idle(deep("llama"), 1, 2)
    method = bound(model, **SEARCH)
    other = method.private()
    run(model, method)
    if reset:
        method.reset()
    assert (method.found.tried > 0, other.found.tried) == (not reset, 0)
    assert method.kept == ([0, 2, 4] if reset else [0, 3, 4])
    assert other.kept == [0, 2, 4]
    again = run(model, method, prompt=(9, 8))
    assert again.ids == plain_greedy(model, [9, 8], 61)
    assert (again.accept[0] == 5) is not reset


def test_sets_are_scored_by_the_tokens_that_follow_and_a_short_request_scores_none(monkeypatch):
    model = idle(deep("llama"), 1, 2)
    run(model, method := bound(model, **SEARCH), limit=16)
    assert method.found == LayerSearch()
    run(model, method := bound(model, **SEARCH))
    scores = []
    monkeypatch.setattr(LayerSearch, "enter", lambda self, agreed: scores.append(agreed))
    ids = [5, 6, 7, *plain_greedy(model, [5, 6, 7], 61)]
    for number, kept in enumerate(method.sets):
        method.found = LayerSearch(tried=number)
        method.try_next(ids, 3)
        wanted = [int(by_hand(model, ids[:end], kept).argmax()) == ids[end] for end in range(3, 19)]
        assert scores.pop() == sum(wanted) / 16


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"skip": [5]}, r"^skip=\[5\]: keeps 5 of 5 layers"),
        ({"exit": 5}, "^exit=5: keeps 5 of 5 layers"),
        ({"exit": 1, "search": 2}, "^search=2: and exit=1 keeps one layer"),
    ],
)
def test_layers_that_leave_no_draft_are_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        SelfSpeculation(**options).check(card_of(deep("llama")))
    with pytest.raises(InputError, match=r"^exit=2: and skip=\[1\]"):
        SelfSpeculation(skip=[1], exit=2)
