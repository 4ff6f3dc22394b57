"""EAGLE-1, -2 and -3: what is drafted, against heads that are run from scratch over their whole
input.
"""

from __future__ import annotations

import heapq

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import methods.eagle.eagle as eagle_module
from builders.drafts import root_paths
from builders.models import VOCAB, plain_greedy
from draft_models import markov_tables
from head_models import (
    Eagle1,
    begun,
    bound,
    card_of,
    draft_of,
    features_of,
    paths_of,
    run,
    states,
    watched,
)
from head_models import Eagle3 as Eagle3Module
from methods.eagle.eagle import Eagle, Eagle3, EagleRun, read_frequent
from methods.parts.draft_layer import LayerMemory
from methods.parts.head_method import EAGLE_TREE, MEDUSA_TREE, WIDEST
from methods.parts.tree_method import BestChoice, DrawnChoice, fill, grow, target_ids
from methods.parts.tree_shape import ShapePlan, TreeShape
from specbench.decode.budgets import chances_of
from specbench.decode.sampling import Sampling
from specbench.method import complete
from specbench.types import InputError

PROMPT = [5, 6, 7, 8]
LAYERS = 8


@pytest.fixture(scope="module")
def deep():
    """A target with room for EAGLE-3's layers 2, L/2 and L - 3."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from builders.models import BASE

    torch.manual_seed(3)
    config = AutoConfig.for_model(
        "llama", **{**BASE, "num_hidden_layers": LAYERS, "initializer_range": 0.2}
    )
    return AutoModelForCausalLM.from_config(
        config, dtype=torch.float64, attn_implementation="sdpa"
    ).eval()


def naive_dynamic(model, head, features, ids, top_k, depth, nodes):
    """path -> the head's own probability of its last token: levels of the best nodes, then a heap
    of all candidates.
    """

    def below(path):
        logs = head.logits(model, head.states_after(model, features, ids, path)).log_softmax(-1)
        values, choice = logs.topk(top_k)
        return [
            (head.to_target(int(token)), float(log))
            for token, log in zip(choice, values, strict=True)
        ]

    heap, level = [], [(0.0, ())]
    for _ in range(depth + 1):
        made = []
        for score, path in level:
            made += [(score + log, (*path, token), log) for token, log in below(path)]
        heap += [(-score, len(path), path, log) for score, path, log in made]
        level = [(score, path) for score, path, _ in sorted(made, reverse=True)[:top_k]]
    heapq.heapify(heap)
    best = [heapq.heappop(heap) for _ in range(nodes)]
    return {path: torch.tensor(log).double().exp().item() for _, _, path, log in best}


IDS = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(5))[:90]  # in no order
KINDS = {
    "first": (Eagle, lambda: Eagle1(bias=False)),
    "mha": (Eagle, lambda: Eagle1(attention_bias=False, num_key_value_heads=4)),
    "third": (Eagle3, lambda: Eagle3Module(drafted=90, ids=IDS)),
    "normed": (Eagle3, lambda: Eagle3Module(seed=1, norm_before_residual=True)),
    "drift": (Eagle3, lambda: Eagle3Module(seed=2, fc_norm=True, norm_output=True)),
    "joint": (
        Eagle3,
        lambda: Eagle3Module(seed=3, norm_before_fc=True, norm_before_residual=True,
        embed_requires_grad=True)
    ),
    "qwen3": (Eagle3, lambda: Eagle3Module(seed=4, model_type="qwen3")),
    "frequent": (Eagle, lambda: Frequent(IDS[:60], Eagle1(bias=False))),
}  # fmt: skip


class Frequent:
    """FR-Spec: a head whose logits are the target's over some ids."""

    def __init__(self, ids, head):
        self.ids, self.head = ids, head

    def __getattr__(self, name):
        return getattr(self.head, name)

    def logits(self, model, state):
        return self.head.logits(model, state)[..., self.ids]

    def to_target(self, token):
        return int(self.ids[token])


@pytest.mark.parametrize("name", KINDS)
def test_drafts_equal_a_head_run_over_its_whole_input(deep, tmp_path, name):
    """Names, layer, stable keys and values, positions, alignment and tree at once, for every step
    of a request.
    """
    kind, make = KINDS[name]
    (tmp_path / "freq.json").write_text(str(IDS[:60].flip(0).tolist()))
    more, module = {"vocabulary": str(tmp_path / "freq.json")} if name == "frequent" else {}, make()
    method = bound(kind(module.save(tmp_path), top_k=3, depth=2, total_tokens=12, **more), deep)
    made = watched(method)
    out = run(deep, method, PROMPT, 12)
    assert out.ids == plain_greedy(deep, PROMPT, 12)
    assert len(made) >= 4
    for context, draft in made:
        features = features_of(deep, method, context[:-1])
        wanted = naive_dynamic(deep, module, features, context[1:], 3, 2, 11)
        assert dict(zip(paths_of(draft), draft.score, strict=True)) == pytest.approx(
            wanted, rel=1e-6
        )


def test_alignment_is_what_makes_them_equal(deep, tmp_path):
    """The wrong variant: features shifted by one token give another draft."""
    module = Eagle1()
    method = bound(Eagle(module.save(tmp_path), top_k=3, depth=2, total_tokens=12), deep)
    ids = [*PROMPT, 9, 10]
    drafter = begun(method, deep, ids)
    features = features_of(deep, method, ids[:-1])
    right = naive_dynamic(deep, module, features, ids[1:], 3, 2, 11)
    wrong = naive_dynamic(deep, module, features, ids[:-1], 3, 2, 11)
    assert set(paths_of(drafter.propose(ids, 64))) == set(right) != set(wrong)


def oracle(truth, hidden, base):
    """A run that writes the target's own continuation, and holds what it is given against the
    truth.
    """

    class Run(base):
        known = 0

        def remember(self, features, following):
            rows = slice(self.known, self.known + len(following))
            for given_, layer in zip(
                features if isinstance(features, list) else [features], hidden, strict=True
            ):
                assert torch.allclose(given_, layer[rows], atol=1e-8)
            assert following.tolist() == truth[rows.start + 1 : rows.stop + 1]
            self.known = rows.stop
            super().remember(features, following)

        def root(self):
            logits = yield from super().root()
            self.on, self.level = torch.ones(1, dtype=torch.bool), 0
            return self.marked(logits)

        def expand(self, ids, rows):
            logits = yield from super().expand(ids, rows)
            self.level += 1
            self.on = self.on[rows] & (ids == truth[self.known + self.level])
            return self.marked(logits)

        def marked(self, logits):
            logits = logits.clone()
            logits[self.on, truth[self.known + self.level + 1]] += 1000
            return logits

    return Run


@pytest.mark.parametrize(
    ("kind", "options", "deepest"),
    [
        (Eagle, {"tree": "static"}, 5),
        (Eagle, {"top_k": 4, "depth": 5, "total_tokens": 20}, 6),
        (Eagle3, {"top_k": 4, "depth": 7, "total_tokens": 20}, 8),
        (Eagle3, {"tree": "static"}, 5),
    ],
)
def test_an_oracle_is_accepted_to_full_depth(deep, monkeypatch, kind, options, deepest):
    method = bound(kind("random", **options), deep)
    truth = [*PROMPT, *plain_greedy(deep, PROMPT, 80)]
    hidden = states(deep, truth)
    layers = [hidden[layer] for layer in method.needs.hidden]
    monkeypatch.setattr(eagle_module, "EagleRun", oracle(truth, layers, EagleRun))
    out = run(deep, method, PROMPT, 50)
    assert out.ids == truth[4:54]
    assert out.depth == [deepest] * len(out.depth)
    assert out.accept[:-1] == [deepest + 1] * (len(out.accept) - 1)
    assert len(out.accept) > 4


def test_a_drawn_tree_is_the_seeds(model):
    sampling = Sampling(0.9, top_p=0.8)
    method = bound(Eagle("random", tree="static", sampling="drawn"), model, sampling)
    assert method.draws
    first, again, other = (draft_of(method, model, [*PROMPT, 9], seed=seed) for seed in (1, 1, 2))
    assert first.tokens.tolist() == again.tokens.tolist() != other.tokens.tolist()
    assert first.probs.shape == (25, VOCAB)
    assert len(run(model, method, PROMPT, 40, sampling, seed=4).ids) == 40


class Fixed:
    """A run whose logits are given, the same below every node."""

    def __init__(self, logits):
        self._logits, self.head = logits, self

    def root(self):
        yield from ()
        return self._logits[None]

    def expand(self, ids, rows):
        yield from ()
        return self._logits.expand(len(ids), -1)

    @staticmethod
    def chances(ids):
        return None

    @staticmethod
    def ids(choice):
        return choice

    @staticmethod
    def spread(logits):
        return logits


def test_certain_distributions():
    logits = torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf])
    choose = DrawnChoice(Fixed(logits), Sampling(1.0), torch.Generator().manual_seed(0))
    tokens = choose(logits[None], torch.zeros(3, dtype=torch.long), torch.arange(3), 3)
    assert tokens[0] == 0
    assert len(set(tokens.tolist())) == 3
    assert choose.probs[0].gather(1, tokens[:, None]).tolist() == [[1.0]] * 3
    certain = torch.full((8,), -torch.inf)
    certain[3] = 0.0  # every path of threes has score 0
    draft = complete(grow(Fixed(certain), 2, 3, 3))
    assert paths_of(draft) == [(3,), (3, 3), (3, 3, 3)]


@given(st.integers(1, 6), st.integers(0, 4), st.integers(1, 60), st.booleans(), st.integers(0, 99))
def test_no_node_stands_without_its_parent(top_k, depth, nodes, flat, seed):
    """Also where every score is equal, and where the budget is below the width."""
    torch.manual_seed(seed)
    logits = torch.zeros(8) if flat else torch.randn(8).mul(3).round()
    draft = complete(grow(Fixed(logits), top_k, depth, nodes))
    room = min(top_k, nodes) + sum(
        min(top_k, min(top_k, nodes) * top_k**level) * top_k for level in range(depth)
    )
    assert len(draft) <= min(nodes, room)
    assert all(-1 <= parent < node for node, parent in enumerate(draft.parents))
    paths = paths_of(draft)
    assert len(set(paths)) == len(paths)
    assert len(draft.score) == len(draft)


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8])
def test_a_small_budget_grows_the_best_part_of_the_whole_tree_in_fewer_and_narrower_forwards(nodes):
    class Counted(Fixed):
        rows = 0

        def expand(self, ids, rows):
            Counted.rows += len(ids)
            return super().expand(ids, rows)

    logits = torch.randn(12, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    paths, counts = [], []
    for most in (60, nodes):
        Counted.rows = 0
        draft = complete(grow(Counted(logits), 10, 5, most))
        ranked = sorted(zip(chances_of(draft), paths_of(draft), strict=True), reverse=True)
        paths.append([path for _, path in ranked[:nodes]])
        counts.append(Counted.rows)
    assert len(paths[0]) == nodes
    assert paths[1] == paths[0]
    assert counts[0] == 50
    assert counts[1] <= nodes * (nodes - 1)


def test_published_trees_and_their_first_parts():
    tree = TreeShape.from_counts(EAGLE_TREE, WIDEST)
    assert [len(level.ranks) for level in tree.levels] == [4, 8, 8, 3, 2]
    assert {(2, 1), (0, 0, 0, 2)} <= set(root_paths(tree.ranks, tree.parents))
    medusa = TreeShape.from_counts(MEDUSA_TREE, WIDEST)
    assert [len(level.ranks) for level in medusa.levels] == [10, 28, 23, 2]
    assert {(9, 0), (0, 0, 9), (1, 0, 1)} <= set(root_paths(medusa.ranks, medusa.parents))
    place = Fixed(torch.arange(8.0))
    for nodes in range(1, len(tree) + 1):
        plan = ShapePlan(tree.part(range(nodes)), torch.device("cpu"))
        assert len(complete(fill(place, plan, BestChoice(place)))[0]) == nodes


def test_fixed_tree_is_filled_by_rank(deep, tmp_path):
    module = Eagle1()
    method = bound(
        Eagle(module.save(tmp_path), tree="static", choices=[[2], [2, 1], [1, 0, 0]]), deep
    )
    ids = [*PROMPT, 9, 10]
    features = features_of(deep, method, ids[:-1])

    def best(path):
        return (
            module.logits(deep, module.states_after(deep, features, ids[1:], path))
            .topk(2)
            .indices.tolist()
        )

    a, b = best(())
    (c, d), (e, _) = best((a,)), best((b,))
    f = best((a, c))[0]
    drafter = begun(method, deep, ids)
    assert drafter.propose(ids, 64).tokens.tolist() == [a, b, c, d, e, f]
    # the likeliest three by rank, not the first
    assert drafter.propose(ids, 3).tokens.tolist() == [a, c, f]
    assert len(drafter.propose(ids, 0)) == 0


def test_memory_of_a_prompt_that_is_read_in_parts(model):
    method = bound(Eagle("random", top_k=3, depth=2, total_tokens=10), model)
    ids = torch.arange(3, 3 + 150).tolist() * 2
    whole = draft_of(method, model, ids)
    run_ = EagleRun(method.bound, LayerMemory(method.bound.layers, 6, 3))
    hidden = states(model, ids[:-1])[-1]
    for start in range(0, len(ids) - 1, 7):  # many model pieces, with a draft between them
        rows = slice(start, start + 7)
        run_.remember([hidden[rows]], torch.tensor(ids[1:][rows]))
        piece = complete(grow(run_, 3, 2, 9))
    assert piece.tokens == whole.tokens
    assert piece.score == pytest.approx(whole.score)


def test_offsets_lead_to_ids():
    ids = torch.randperm(50, generator=torch.Generator().manual_seed(0))[:20]
    assert target_ids(ids - torch.arange(20), 50, "head=x").tolist() == ids.tolist()
    with pytest.raises(
        InputError, match=r"head=x: d2t leads to ids from .*; expected offsets to 20 different"
    ):
        target_ids(ids, 50, "head=x")  # the wrong variant: ids where offsets are expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2, 2, 3]", "holds 3 different ids of 4"),
        ("[1, 2, -3, 4]", "not an id below"),
        ("[1", "not JSON"),
    ],
)
def test_a_wrong_list_of_frequent_ids_is_named(model, tmp_path, content, message):
    path = tmp_path / "freq.json"
    path.write_text(content)
    with pytest.raises(InputError, match=rf"(?s)vocabulary=.*freq.json: .*{message}"):
        Eagle("random", top_k=3, vocabulary=str(path)).check(card_of(model))
    with pytest.raises(InputError, match="vocabulary=x: this head has an output matrix of its own"):
        Eagle3("random", vocabulary="x")
    torch.save([5, 3, 9], tmp_path / "freq_3.pt")  # as the authors' files are
    assert read_frequent(str(tmp_path / "freq_3.pt"), 10, 3) == [3, 5, 9]


class Markov(Fixed):
    """A run whose logits follow from a node's token alone."""

    def __init__(self, table):
        super().__init__(table[0])
        self._table = table

    def expand(self, ids, rows):
        yield from ()
        return self._table[ids]


@pytest.mark.parametrize("seed", range(5))
def test_a_drawn_tree_states_what_each_node_was_drawn_from(seed):
    """Behind its parent, without its earlier siblings: so the law stays the target's
    (tests/decode/test_drawn.py).
    """
    (_, table), sampling = markov_tables(4), Sampling(0.9)
    run_, plan = (
        Markov(table),
        ShapePlan(TreeShape.from_counts([[2], [2, 1]], WIDEST), torch.device("cpu")),
    )
    choose = DrawnChoice(run_, sampling, torch.Generator().manual_seed(seed))
    tokens, parents = complete(fill(run_, plan, choose))[0].tolist(), plan.shape.parents
    for node, stated in enumerate(torch.cat(choose.probs)):
        wanted = sampling(table[0 if parents[node] < 0 else tokens[parents[node]]][None])[0]
        wanted[[tokens[other] for other in range(node) if parents[other] == parents[node]]] = 0
        assert torch.allclose(stated, wanted / wanted.sum(), atol=1e-6)
