"""Medusa and Hydra heads: what is drafted, against modules that are run from scratch."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from builders.models import build, plain_greedy
from head_models import (
    Hydra,
    begun,
    bound,
    draft_of,
    paths_of,
    run,
    states,
    watched,
)
from head_models import Medusa as MedusaModule
from methods.hydra_heads import HydraTree
from methods.medusa import Medusa, head_count
from specbench.types import InputError, Step

PROMPT = [5, 6, 7, 8]
TREE = [[3], [2, 1, 0], [1, 0, 1]]


def saved(module, folder, name="medusa_lm_head.safetensors", drop=()):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {key: weight.clone() for key, weight in module.state_dict().items() if key not in drop},
        folder / name,
    )
    return str(folder)


@torch.inference_mode()
def medusa_paths(module, state):
    """The tree's paths: rank r at depth d is head d - 1's r-th best, whatever stands above."""
    best = [head(state).topk(3).indices.tolist() for head in module]
    ranks = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 0)]
    return [tuple(best[depth][rank] for depth, rank in enumerate(path)) for path in ranks]


@pytest.mark.matrix
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("heads", [3, 5])
def test_medusa_fills_its_tree_from_the_last_state(model, tmp_path, heads, blocks):
    module = MedusaModule(heads, blocks)
    assert head_count(list(module.state_dict())) == (heads, blocks)
    method = bound(Medusa(saved(module, tmp_path), tree=TREE), model)
    ids = [*PROMPT, 9]
    drafter = begun(method, model, ids)
    assert paths_of(drafter.propose(ids, 64)) == medusa_paths(
        module, states(model, ids[:-1])[-1][-1]
    )
    rows = torch.randn(4, 64, dtype=torch.float64)  # of the root and nodes 0, 1, 2
    drafter.observe(Step(9, (12, 13), (2,), False, hidden={2: rows}))
    assert paths_of(drafter.propose([*ids, 12, 13], 64)) == medusa_paths(module, rows[3])
    kept = [(0,), (1,), (0, 0), (0, 0, 0)]  # the likeliest four of the tree, not its first
    best = [head(rows[3]).topk(2).indices.tolist() for head in module]
    found = paths_of(drafter.propose(ids, 4))
    assert found == [tuple(best[depth][rank] for depth, rank in enumerate(path)) for path in kept]
    assert len(drafter.propose(ids, 0)) == 0


@pytest.mark.parametrize("blocks", [1, 2])
def test_heads_without_an_output_matrix_read_through_the_targets(model, tmp_path, blocks):
    """As text-generation-inference saves them."""
    module = MedusaModule(3, blocks)
    outs = [f"{head}.{blocks}.weight" for head in range(3)]
    method = bound(Medusa(saved(module, tmp_path, drop=outs), tree=TREE), model)
    ids = [*PROMPT, 9]
    found = paths_of(draft_of(method, model, ids))
    last = states(model, ids[:-1])[-1][-1]
    assert found != medusa_paths(module, last)  # their matrices are gone
    for head in module:
        head[-1].weight.data = model.get_output_embeddings().weight.data
    assert found == medusa_paths(module, last)
    rows = torch.randn(4, 64, dtype=torch.float64)
    assert torch.allclose(
        method.output.function(rows), torch.stack([head(rows) for head in module], dim=1)
    )
    with pytest.raises(InputError, match=rf"lacks 0\.{blocks}\.weight, 2\.{blocks}\.weight$"):
        bound(Medusa(saved(module, tmp_path, drop=(outs[0], outs[2]))), model)


def test_levels_beyond_the_heads_are_left_out(model, tmp_path):
    method = bound(Medusa(saved(MedusaModule(2), tmp_path)), model)
    assert [len(level.ranks) for level in method.shape.levels] == [10, 28]
    method = bound(Medusa(saved(MedusaModule(5), tmp_path), heads=3), model)
    assert len(method.shape) == 61
    with pytest.raises(InputError, match=r"heads=6: head=.* has 5; expected at most that"):
        bound(Medusa(saved(MedusaModule(5), tmp_path), heads=6), model)


@pytest.mark.matrix
@pytest.mark.parametrize("family", ["llama", "llama-mha"])
@pytest.mark.parametrize("blocks", [1, 4])
def test_hydra_drafts_equal_heads_run_over_their_whole_input(tmp_path, family, blocks):
    """Names, prefix layer, incremental keys and values, paths' embeddings, for every step of a
    request.
    """
    model = build(family, torch.float64)
    module = Hydra(model.config, 3, blocks)
    folder = saved(module, tmp_path, "hydra_lm_head.safetensors")
    method = bound(HydraTree(folder, tree=TREE), model)
    made = watched(method)
    out = run(model, method, PROMPT, 10)
    assert out.ids == plain_greedy(model, PROMPT, 10)
    assert len(made) > 3
    for context, draft in made:
        features = states(model, context[:-1])[-1]
        paths = paths_of(draft)
        counts = {(): 3, paths[0]: 2, paths[1]: 1, paths[3]: 1, paths[5]: 1}
        wanted = {
            (*path, int(token))
            for path, count in counts.items()
            for token in module.logits(model, features, (context[-1], *path)).topk(count).indices
        }
        assert set(paths) == wanted
