"""P-EAGLE: what is drafted, against heads that are run from scratch over context and mask
tokens.
"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from builders.drafts import require_laws
from builders.models import VOCAB, plain_greedy
from head_models import PEagle as PEagleModule
from head_models import begun, bound, paths_of, rename, run, states, watched
from methods.eagle import PEagle
from specbench.decode.sampling import Sampling

PROMPT = [5, 6, 7, 8]
LAYERS = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
SMALLER = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(5))[:90].sort().values


def nested(module, folder):
    """As the speculators library writes it."""
    module.save(folder, **LAYERS)
    rename(folder, lambda name: name.replace("midlayer.", "layers.0."))
    config = json.loads((folder / "config.json").read_text())
    outer = (
        "speculators_model_type",
        "mask_token_id",
        "embed_requires_grad",
        "draft_vocab_size",
        *LAYERS,
    )
    inner = {name: config.pop(name) for name in list(config) if name not in outer}
    proposal = {"proposal_type": "greedy", "speculative_tokens": 7}
    config |= {
        "transformer_layer_config": inner,
        "norm_before_residual": inner.pop("norm_before_residual", False),
    }
    config |= {"speculators_config": {"algorithm": "peagle", "proposal_methods": [proposal]}}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def flat(module, folder):
    """As vLLM's first heads were written: another name of the mask token, and a learned state of
    two dimensions.
    """
    module.save(
        folder, **LAYERS, speculators_model_type=None, mask_token_id=None, pard_token=module.mask
    )
    state, config = (
        load_file(folder / "model.safetensors"),
        json.loads((folder / "config.json").read_text()),
    )
    save_file({**state, "mask_hidden": state["mask_hidden"][0]}, folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps({name: stored for name, stored in config.items() if stored is not None})
    )
    return str(folder)


@pytest.mark.parametrize(
    ("write", "options", "tree"),
    [
        (
            nested,
            {"norm_before_residual": True, "num_hidden_layers": 2, "drafted": 90, "ids": SMALLER},
            None,
        ),
        (flat, {"fc_norm": True, "norm_output": True}, [[2], [2, 1], [1, 0, 1]]),
        (nested, {"embed_requires_grad": False}, None),
        (nested, {"model_type": "qwen3", "num_hidden_layers": 2}, None),
    ],
)
def test_drafts_equal_a_head_run_over_its_whole_input(model, tmp_path, write, options, tree):
    module = PEagleModule(**options)
    method = bound(PEagle(write(module, tmp_path), length=5, choices=tree), model)
    made = watched(method)
    assert run(model, method, PROMPT, 12).ids == plain_greedy(model, PROMPT, 12)
    assert len(made) > 4
    for context, draft in made:
        features = [states(model, context[:-1])[layer] for layer in range(3)]
        best = (
            module.levels(model, features, context[1:], 5 if tree is None else 3)
            .topk(2)
            .indices.tolist()
        )
        best = [[module.to_target(token) for token in level] for level in best]
        ranks = [(0,) * depth for depth in range(1, 6)] if tree is None else [
            (0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 0)]  # fmt: skip
        wanted = [tuple(best[depth][rank] for depth, rank in enumerate(path)) for path in ranks]
        assert paths_of(draft) == wanted[: len(draft)]


def test_mask_state_and_places_are_what_make_them_equal(model, tmp_path):
    """Another mask token, another learned state and a part of the context draft otherwise."""
    module, ids = PEagleModule(), [*PROMPT, 9, 10]
    method = bound(PEagle(module.save(tmp_path, **LAYERS), length=6), model)
    features = [states(model, ids[:-1])[layer] for layer in range(3)]
    right = module.levels(model, features, ids[1:], 6).argmax(-1).tolist()
    drafter = begun(method, model, ids)
    assert drafter.propose(ids, 64).tokens.tolist() == right
    assert drafter.propose(ids, 64).tokens.tolist() == right  # the mask rows were not remembered
    assert drafter.propose(ids, 4).tokens.tolist() == right[:4]

    def level(features, ids):
        return module.levels(model, features, ids, 6).argmax(-1).tolist()[1:]

    wrong = [level([each[1:] for each in features], ids[2:])]
    module.mask = 4
    wrong.append(level(features, ids[1:]))
    module.mask = 3
    module.mask_hidden.data.neg_()
    wrong.append(level(features, ids[1:]))
    assert right[1:] not in wrong


@pytest.mark.parametrize("sampling", [None, Sampling(0.9, top_p=0.8)])
def test_a_policy_and_a_drawn_chain_get_the_levels_distributions(model, tmp_path, sampling):
    """Over the target's vocabulary, of a head with a smaller one."""
    module, ids = PEagleModule(drafted=90, ids=SMALLER), [*PROMPT, 9]
    method = bound(PEagle(module.save(tmp_path, **LAYERS), length=4), model, sampling)
    assert method.draws
    levels = module.levels(
        model, [states(model, ids[:-1])[layer] for layer in range(3)], ids[1:], 4
    )
    spread = levels.new_full((4, VOCAB), -torch.inf).index_copy_(1, SMALLER, levels)
    draft = require_laws(
        begun(method, model, ids), ids, lambda path: spread[len(path)], sampling, near=1e-6
    )
    assert len(draft) == 4
