"""The fast engine gives what the eager one gives: ids, logits, hidden states, cache; and what may
be captured is so.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from transformers import GPT2Config, GPT2LMHeadModel

from builders.drafts import drafts_and_picks
from builders.engines import (
    COUNT,
    CPU,
    PROMPTS,
    assert_greedy,
    assert_same_rows,
    decode_script,
    draw_rows,
    eager_engine,
    fast_engine,
    scripts,
    started,
    take_step,
)
from builders.models import EVERY_FAMILY, SHAPES, VOCAB, build, plain_greedy
from specbench.decode.check import check_engine
from specbench.decode.latency import shape_of
from specbench.decode.walk import Walk
from specbench.models.engine import Silent
from specbench.models.fast.cache import StaticKV
from specbench.models.fast.compact import explain_unfit
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.frame import TreeFrame, accept, read_outcome
from specbench.models.fast.graphs import EXACT, GRAPHED, Buckets
from specbench.models.fast.layout import lay_out
from specbench.models.fast.operations import Linear, can_pack
from specbench.models.tree import compute_depths
from specbench.profile import ModelShape
from specbench.types import ROOT, CaseError, Draft, InputError, Needs

BUCKETS = {"exact": EXACT, "graphed": GRAPHED}
NEAR = 1e-8


@pytest.mark.matrix
@pytest.mark.parametrize("buckets", BUCKETS)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_steps_equal_the_eager_engines(family, buckets):
    """Ids, path, rows fed, top-k, hidden states; gaps. Trees, chains, passengers, device drafts."""
    model = build(family, torch.float64)
    engines = [eager_engine(model), fast_engine(model, BUCKETS[buckets])]
    needs = Needs(hidden=(0, 1, 2), prompt_hidden=True, node_topk=5, prompt_topk=5)
    prompt = PROMPTS["past the window"]
    truth = plain_greedy(model, prompt, COUNT)
    assert_same_rows(
        *(each.start(prompt, COUNT, Walk(None, 0), needs, Silent()) for each in engines)
    )
    rng, done = random.Random(3), 1
    while done < COUNT - 10:
        draft = any_draft(rng, truth[done : done + 6])
        steps = [take_step(each, draft) for each in engines]
        assert engines[0].fed == engines[1].fed
        assert_same_rows(*steps)
        assert [*steps[0].emitted] == truth[done : done + len(steps[0].emitted)]
        done += len(steps[0].emitted)
    eager, fast = (each.gaps(prompt, [*truth[:9], 3, 7]) for each in engines)
    assert fast == pytest.approx(eager, abs=NEAR)


def any_draft(rng: random.Random, right: list[int]) -> Draft:
    """A random tree that holds some of what is right, in random places; every third one with
    passengers.
    """
    tokens, parents, line = [], [], ROOT
    for token in right[: rng.randrange(len(right) + 1)]:
        for _ in range(rng.randrange(3)):
            parents.append(rng.randrange(-1, len(tokens)))
            tokens.append(rng.randrange(VOCAB))
        parents.append(line)
        tokens.append(token)
        line = len(tokens) - 1
    passenger = [rng.random() < 0.2 for _ in tokens] if rng.random() < 0.3 else None
    if rng.random() < 0.3:
        tokens, parents = (torch.tensor(each, dtype=torch.long) for each in (tokens, parents))
    return Draft(tokens, parents, None, passenger)


@pytest.mark.parametrize("family", ["llama", "qwen2-mixed", "mistral-window"])
def test_rows_are_a_forest(family):
    """A batch of rows commits and shows what the draft does as a tree, and feeds its padding."""
    model = build(family, torch.float64)
    truth = plain_greedy(model, [5, 6], COUNT + 8)
    engines = [
        eager_engine(model),
        eager_engine(model),
        *(fast_engine(model, each) for each in BUCKETS.values()),
    ]
    for number, each in enumerate(engines):
        started(each, [5, 6], Needs(rows=number > 0, node_topk=3, hidden=(1,)))
    done, rng = 1, random.Random(1)
    while done < COUNT - 10:
        draft = draw_rows(rng, truth[done : done + 6])
        depths = compute_depths(draft.parents)
        tree, *steps = [take_step(each, draft) for each in engines]
        assert {each.fed for each in engines[1:]} == {depths.count(1) * (max(depths) + 1)}
        for step in steps:
            assert_same_rows(step, tree)
        done += len(tree.emitted)


def test_a_batch_wider_than_any_draft_makes_room_and_keeps_what_was_cached():
    model = build("llama")
    truth = plain_greedy(model, [5, 6], COUNT + 8)
    engine = started(fast_engine(model), [5, 6], Needs(rows=True))
    rows = [[7]] * 40 + [truth[1:24]]  # 41 rows of 24
    parents = [ROOT] * 40 + [ROOT, *range(40, 62)]
    assert [
        *take_step(engine, Draft([token for row in rows for token in row], parents)).emitted
    ] == truth[1:25]
    assert engine.fed == 41 * 24 > 256
    assert [*take_step(engine, Draft()).emitted] == truth[25:26]


def test_a_mask_that_shows_siblings_is_caught(monkeypatch):
    model, lay = build("llama"), TreeFrame.lay_out
    engine = fast_engine(model)

    def open_mask(frame, layout):
        lay(frame, layout)
        for each in frame.bias.values():
            each[: len(layout), : len(layout)] = 0

    monkeypatch.setattr(TreeFrame, "lay_out", open_mask)
    with pytest.raises(AssertionError):
        assert_greedy(engine, model, [5, 6], COUNT)


def test_the_models_own_weights_serve_all_without_a_second_copy():
    """Unpacked, the library's q, k and v are views of one matrix; its forward is as before."""
    model, twin = build("llama"), build("llama")
    engine = fast_engine(model, compiled=False, pack=False)
    layer = model.model.layers[0]
    shared = layer.self_attn.q_proj.weight.untyped_storage().data_ptr()
    assert shared == layer.self_attn.v_proj.weight.untyped_storage().data_ptr()
    assert shared == engine.compact.layers[0].qkv.weight.untyped_storage().data_ptr()
    (first, *_) = fast_engine(model).compact.layers
    assert shared == first.qkv.weight.untyped_storage().data_ptr()
    assert first.gate_up.packed is None
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(model(ids).logits, twin(ids).logits)
    check_engine(engine, model)


def rotated(scaling):
    return {"rope_parameters": {"rope_theta": 10000.0, **scaling}}


WINDOW = {"sliding_window": 4}
TIED = {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        (
            "llama",
            rotated(
                {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            ),
        ),
        (
            "llama",
            rotated({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}),
        ),
        ("llama", TIED),
        ("qwen2", {"hidden_size": 112, "num_attention_heads": 14}),
        ("phi3", {"hidden_size": 96, "num_key_value_heads": 4, "sliding_window": 2047}),
        ("llama", {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
        ("mistral", {**WINDOW, "layer_types": ["full_attention", "sliding_attention"]}),
        ("phi3", {**WINDOW, "layer_types": ["full_attention", "sliding_attention"]}),
    ],
)
def test_a_configuration_means_what_it_means_to_the_library(family, extra, monkeypatch):
    """Scaled rotations, tied embeddings and biases, and windows, which some families ignore."""
    monkeypatch.setitem(SHAPES, "odd", (family, extra))
    model = build("odd", torch.float64)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    prompt = [(7 * place) % VOCAB for place in range(150)]
    for engine in (
        eager_engine(model),
        fast_engine(model),
        fast_engine(model, compiled=False, pack=False),
    ):
        assert_greedy(engine, model, prompt, 12)


@pytest.mark.skipif(
    not can_pack(torch.float32, torch.device("cpu")), reason="this torch packs no weights"
)
def test_only_short_inputs_take_the_packed_copy(monkeypatch):
    """oneDNN keeps code for each length that it has seen: a case of 1,000 turns took 10 GB."""
    taken = []
    monkeypatch.setattr(
        torch.ops.mkldnn, "_linear_pointwise", lambda rows, *_: taken.append(len(rows))
    )
    linear = Linear([torch.nn.Linear(16, 8)], pack=True)
    for count in range(1, 300):
        linear(torch.ones(count, 16))
    assert taken == list(range(1, 129))


@pytest.mark.parametrize("nodes", [1, 2, 3, 6])
def test_an_engine_of_few_nodes_is_checked_too(nodes):
    """With another model's forwards to compare with, it is refused for its logits."""
    model = build("llama")
    engine = FastEngine(model, 512, frozenset(), nodes, EXACT)
    check_engine(engine, model)
    other = build("llama")
    other.lm_head.weight.data = other.lm_head.weight.data.roll(1, dims=0)
    with pytest.raises(InputError, match="does not see a draft tree"):
        check_engine(engine, other)


@pytest.mark.parametrize("buckets", BUCKETS)
@pytest.mark.parametrize("parents", [[-1, 0], [-1, -1]], ids=["chain", "tree"])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_a_case_error_and_the_next_case_is_sound(
    buckets, parents, broken
):
    """Buckets read slots that nobody holds, and NaN stays NaN however it is masked."""
    model = build("llama")
    engine = started(fast_engine(model, BUCKETS[buckets]), [5, 6, 7, 8])
    kept = engine.compact.embedding[9].clone()
    engine.compact.embedding[9] = broken
    with pytest.raises(CaseError, match="NaN or infinite"):
        take_step(engine, Draft([9, 9], parents))
    engine.compact.embedding[9] = kept
    assert_greedy(engine, model, [5, 6], COUNT)


def test_passengers_of_a_batch_of_rows_are_not_accepted():
    model = build("llama")
    truth = plain_greedy(model, [5, 6], COUNT)
    draft = Draft([9, 8, *truth[1:4]], [-1, 0, -1, 2, 3], None, [False, False, False, True, False])
    for engine in (eager_engine(model), fast_engine(model), fast_engine(model, GRAPHED)):
        assert take_step(started(engine, [5, 6], Needs(rows=True)), draft).path == (2,)


@pytest.mark.parametrize(("family", "masked"), [("mistral-window", True), ("llama", False)])
def test_a_masked_prompt_shares_no_keys(family, masked, monkeypatch):
    """Flash takes no mask and the memory efficient kernel no shared keys: both at once are left to
    the plain one.
    """
    asked, real = [], functional.scaled_dot_product_attention

    def attend(query, keys, values, attn_mask=None, is_causal=False, enable_gqa=False):
        asked.append((attn_mask is not None, enable_gqa, keys.shape[1] == query.shape[1]))
        return real(
            query, keys, values, attn_mask=attn_mask, is_causal=is_causal, enable_gqa=enable_gqa
        )

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    started(fast_engine(build(family), compiled=False), PROMPTS["past the window"])
    assert set(asked) == {(masked, not masked, masked)}


class Adapter(torch.nn.Module):
    """A wrapped projection, as an adapter library makes it: the base's weight is visible, its own
    is not.
    """

    def __init__(self, base) -> None:
        super().__init__()
        self.base, self.added = (
            base,
            torch.nn.Linear(base.in_features, base.out_features, bias=False),
        )
        self.weight, self.bias = base.weight, base.bias

    def forward(self, rows):
        return self.base(rows) + self.added(rows)


def test_a_model_that_is_not_the_librarys_plain_one_is_left_to_the_eager_engine():
    model = build("llama")
    assert explain_unfit(model) is None
    model.model.layers[1].mlp.down_proj = Adapter(model.model.layers[1].mlp.down_proj)
    assert "down_proj is a Adapter" in explain_unfit(model)
    model = build("llama")
    model.model.layers[0].register_forward_hook(lambda *given: None)
    assert "has hooks" in explain_unfit(model)
    model = build("llama", torch.bfloat16)
    model.lm_head.float()
    assert "several dtypes" in explain_unfit(model)
    assert "is not one of" in explain_unfit(
        GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9))
    )


FORBIDDEN = (
    "aten::item",
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::is_nonzero",
    "aten::equal",
    "aten::masked_select",
    "aten::unique_dim",
    "aten::_unique2",
)


class Tape(TorchDispatchMode):
    """Operations with their shapes and numbers, in order; those that are forbidden fail."""

    def __init__(self, forbidden: Sequence[str] = ()) -> None:
        super().__init__()
        self.forbidden, self.seen = forbidden, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        assert name not in self.forbidden, f"{name} waits for the device"
        shapes = [tuple(each.shape) for each in args if isinstance(each, torch.Tensor)]
        numbers = [each for each in args if isinstance(each, (int, float, bool))]
        self.seen.append((name, shapes, numbers))
        return func(*args, **(kwargs or {}))


def tapes(engine, draft) -> list[object]:
    """The steps of the two captured calls for a draft."""
    with torch.inference_mode():
        engine.forward(draft)
        frame, moved = engine.request.frame, engine.request.moved
        _, length, taps = engine.request.key
        tape = Tape(FORBIDDEN)
        with tape:
            logits, _ = engine.compute(frame, length, taps)
            accept(logits, frame, engine.cache, moved)
        engine.settle(COUNT)
    return tape.seen


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen3"])
def test_what_is_captured_neither_waits_nor_depends_on_the_draft(family):
    """In one bucket different trees at different lengths run the very same operations on the very
    same shapes.
    """
    model = build(family)
    truth = plain_greedy(model, [5, 6], COUNT)
    engine = fast_engine(model, Buckets((1, 8, 16), (256, 512)))
    started(engine, [5, 6], Needs(hidden=(1,)))
    trees = [
        Draft([3, truth[1], 4, truth[2], 9], [-1, -1, 1, 1, 3]),
        Draft([8, 8, 8, 8, 8, 8], [-1, 0, 0, -1, 3, 3]),
        Draft([truth[4], 1, 2], [-1, -1, 0]),
    ]
    first, *others = [tapes(engine, tree) for tree in trees]
    assert len(first) > 20
    assert all(other == first for other in others)
    exact = fast_engine(model)  # the wrong variant: without buckets shapes follow the draft
    started(exact, [5, 6], Needs(hidden=(1,)))
    assert tapes(exact, trees[0]) != tapes(exact, trees[1])


@given(drafts_and_picks(), st.integers(0, 5), st.sampled_from([EXACT, GRAPHED]))
def test_acceptance_on_the_device_is_the_walkers(tree, padding, buckets):
    """The rule of ``Walk.follow``: ties, repeated siblings, passengers, padding; and the cache
    moves with it.
    """
    tokens, parents, passenger, picks = tree
    draft = Draft(tokens, parents, None, passenger)
    layout = lay_out(parents, draft, None)
    width = len(layout) + padding
    frame = TreeFrame(width, {"full_attention": None}, torch.float32, CPU)
    frame.fill(1, tokens, 7, layout)
    logits = torch.zeros(width, 4)
    logits[torch.arange(len(picks)), torch.tensor(picks)] = 1
    cache = StaticKV(1, 1, 1, torch.float32, CPU)
    cache.reserve(64)
    cache._all.copy_(
        torch.arange(256.0)[: cache.capacity].view(1, 1, 1, -1, 1).expand_as(cache._all)
    )
    moved = 0 if layout.chain else buckets.moved(layout.depth, width)
    rows, emitted = read_outcome(accept(logits, frame, cache, moved).tolist(), moved, torch.float32)
    path = Walk.follow(tokens, parents, passenger, picks)
    assert [layout.node_of(row) for row in rows] == path
    assert emitted == [*(tokens[node] for node in path), picks[path[-1] + 1] if path else picks[0]]
    kept = cache._all[0, 0, 0, 7 : 8 + len(path), 0].tolist()
    assert kept == [7, *(8 + node for node in path)]


def attention(query, key, value, *rest, out_shape=None, **named) -> int:
    return sdpa_flop_count(query, key, value)


# torch counts the GPUs' only
ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention}


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_operations_of_a_forward_are_the_analytic_count(family):
    """Within 2 %: nothing is computed twice, and padding is all that a bucket adds."""
    model = build(family)
    shape = shape_of(model)
    engine = fast_engine(model, compiled=False, pack=False)
    started(engine, list(range(100)))
    for fed in (1, 8, 64):
        with FlopCounterMode(display=False, custom_mapping=ATTENTION) as counter:
            engine.forward(Draft.chain([7] * (fed - 1)))
        expected = float(shape.operations(fed, 100)) + attention_beyond_what_is_seen(shape, fed)
        assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


def attention_beyond_what_is_seen(shape: ModelShape, fed: int) -> float:
    """The analytic count has a row see half of the fed tokens; a masked product computes all of
    them.
    """
    return 4.0 * fed * (fed / 2) * shape.layers * shape.heads * shape.head_dim


def test_buffers_never_move():
    model = build("llama")
    script = scripts(plain_greedy(model, [5, 6], COUNT + 8))["wide"]
    engine = fast_engine(model, GRAPHED)
    places = []
    for _ in range(2):
        decode_script(engine, script, [5, 6])
        frames = engine.frames.known.items()
        places.append({width: frame.ids.data_ptr() for width, frame in frames})
        places[-1]["cache"] = engine.cache._all.data_ptr()
    assert places[0] == places[1]
