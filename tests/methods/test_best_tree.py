"""DDTree: no tree of its size has a greater sum of probabilities, and heads and draft models draft
it.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.drafts import root_paths
from builders.models import plain_greedy
from draft_models import fitted, noisy
from draft_models import run as run_draft
from head_models import PEagle as PEagleModule
from head_models import bound, draft_of, features_of, likeliest, run
from methods.dflash import DFlash
from methods.eagle.eagle import PEagle
from methods.pard import Pard
from methods.parts.best_tree import draft_levels, draft_places
from specbench.method import DraftLevel
from specbench.models.tree import compute_depths
from specbench.types import InputError


def greatest_sum(chances: np.ndarray, nodes: int) -> float:
    """By brute force: any tree is a set of paths with all their beginnings, so at most the
    likeliest paths.
    """
    every = list(accumulate(chances, lambda paths, tokens: np.outer(paths, tokens).ravel()))
    return float(np.sort(np.concatenate(every))[::-1][:nodes].sum())


@settings(max_examples=20)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(0, 2**31),
    st.sampled_from([0.3, 1, 6]),
)
def test_no_tree_of_the_size_is_likelier(levels, vocab, nodes, seed, sharpness):
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(levels, vocab)) * sharpness)
    chances = logits.softmax(-1).numpy()
    draft = draft_places(logits, nodes)
    paths = root_paths(draft.tokens, draft.parents)
    assert (
        len(paths)
        == len(set(paths))
        == min(nodes, sum(vocab**depth for depth in range(1, levels + 1)))
    )
    own = [np.prod([chances[place, token] for place, token in enumerate(path)]) for path in paths]
    assert sum(own) == pytest.approx(greatest_sum(chances, nodes))
    # so what a smaller budget leaves is a best tree too
    assert np.allclose(own, sorted(own, reverse=True))
    depths = compute_depths(draft.parents)
    assert draft.score == pytest.approx(
        [chances[at - 1, path[-1]] for at, path in zip(depths, paths, strict=True)]
    )


def test_a_wrong_variant_is_less_likely():
    """The chain's most likely tokens alone, and siblings of the root first."""
    chances = np.array([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.9, 0.05, 0.05]])
    best = greatest_sum(chances, 4)
    draft = draft_places(torch.from_numpy(chances).log(), 4)
    own = [np.prod([chances[at, token] for at, token in enumerate(path)])
           for path in root_paths(draft.tokens, draft.parents)]  # fmt: skip
    assert sum(own) == pytest.approx(best)
    chain, wide = 0.5 + 0.3 + 0.27, 0.5 + 0.3 + 0.2 + 0.3
    assert max(chain, wide) < best - 0.01


def test_a_gpu_gets_the_same_tree():
    """By operations on tensors, here on a CPU."""
    random = torch.Generator().manual_seed(0)
    for nodes in (1, 2, 7, 64):
        logits = torch.randn(6, 50, generator=random, dtype=torch.float64) * 3
        for levels in (6, 2):
            ours = draft_places(logits, nodes, lambda level, most=levels: level.depth < most)
            found = draft_levels(
                *logits.log_softmax(-1)[:nodes].topk(min(nodes, 50)), nodes, levels
            )
            same = root_paths(found.tokens.tolist(), found.parents.tolist())
            assert sorted(same) == sorted(root_paths(ours.tokens, ours.parents))
        assert len(ours) < nodes or nodes < 3


def test_a_policy_cuts_the_places():
    """What is left is the part of the whole tree: nodes that are cut are not replaced by wider
    levels.
    """
    logits = 4 * torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    asked: list[DraftLevel] = []

    def goes_on(level):
        asked.append(level)
        return level.depth < 3

    draft, whole = draft_places(logits, 40, goes_on), draft_places(logits, 40)
    paths = root_paths(whole.tokens, whole.parents)
    assert root_paths(draft.tokens, draft.parents) == [path for path in paths if len(path) <= 3]
    assert 3 < len(draft) < 40
    assert max(map(len, paths)) > 3
    kept = [chance for chance, path in zip(whole.score, paths, strict=True) if len(path) <= 3]
    assert draft.score == pytest.approx(kept)
    assert [level.depth for level in asked] == [1, 2, 3]
    assert asked[1].probability == pytest.approx(
        float(logits.softmax(-1).amax(-1)[:2].prod()), rel=1e-5
    )


@torch.inference_mode()
def test_a_head_drafts_the_likeliest_paths(model, tmp_path):
    """Against a heap over the head's own laws; test_block_family.py has block drafters'."""
    module, context = PEagleModule(), [5, 6, 7, 8, 9]
    module.norm.weight.data *= 6  # so that the law is sharp, and the tree deep
    head = module.save(tmp_path, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    method = bound(PEagle(head, length=4, nodes=12, sampling="top"), model)
    levels = module.levels(model, features_of(model, method, context[:-1]), context[1:], 4)
    wanted = likeliest(lambda path: levels[len(path)].log_softmax(-1), 4, 12)
    for budget in (64, 5):
        draft = draft_of(method, model, context, budget)
        assert set(root_paths(draft.tokens, draft.parents)) == set(wanted[:budget])
    assert max(map(len, wanted)) > 1
    assert run(model, method, limit=40).ids == plain_greedy(model, [5, 6, 7, 8], 40)


def test_a_draft_model_drafts_the_likeliest_paths(model):
    """Its mask token is not trained, so only the first level is right; the ids are the target's."""
    draft = noisy(model, 0.02)
    method = fitted(Pard("unused", length=4, mask_token=3, choice="argmax", nodes=12), draft)
    out = run_draft(model, method, limit=40)
    assert out.ids == plain_greedy(model, [5, 6, 7], 40)
    assert max(out.proposed) == 12
    assert sum(accepted > 0 for accepted in out.accept) > len(out.accept) / 2


def test_settings_that_contradict_are_refused():
    with pytest.raises(InputError, match="nodes=8: choices have a shape of their own"):
        DFlash("random", nodes=8, choices=[[1]], sampling="top")
    with pytest.raises(
        InputError, match="nodes=8: the likeliest paths are not drawn; expected sampling=top"
    ):
        PEagle("random", nodes=8)
    with pytest.raises(
        InputError, match="nodes=8: the likeliest paths are not drawn; expected choice=argmax"
    ):
        Pard("unused", nodes=8)
