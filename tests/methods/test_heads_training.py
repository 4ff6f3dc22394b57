"""The trainer's heads are the drafter's: same states at every depth, same files; and what bundled
ones are worth.
"""

from __future__ import annotations

import re
from itertools import islice

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from builders.models import BASE, VOCAB
from builders.runs import job_for
from head_models import begun, bound, draft_of, run, states
from methods.dflash import DFlash
from methods.eagle import Eagle, Eagle3, Mtp, PEagle
from methods.eagle.eagle import EagleRun
from methods.medusa import Medusa
from methods.parts.draft_layer import LayerMemory
from scripts.tiny.__main__ import train_and_save
from scripts.tiny.blocks import BlockModule, BlockSettings, block_config, fill, new_block_head
from scripts.tiny.corpus import documents
from scripts.tiny.heads import (
    Eagle3Module,
    EagleModule,
    HeadSettings,
    MedusaModule,
    MedusaSettings,
    MtpModule,
    PEagleModule,
    head_config,
    new_head,
    new_medusa_heads,
    save_head,
    save_medusa,
    visible,
)
from scripts.tiny.train import PackedBatch, pack, separate
from specbench.method import complete
from specbench.models.load import load_model


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama", **{**BASE, "num_hidden_layers": 5, "initializer_range": 0.2}
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()


def rounded(module):
    """With the numbers that a file will hold."""
    for weight in module.double().parameters():
        weight.copy_(weight.half())
    return module


def unrolled(module, target):
    """Tokens, the target's states of them, and the trainer's passes over both."""
    ids = torch.randperm(VOCAB)[:30]
    hidden = states(target, ids.tolist())
    entered = module.enter([layer[None, :29] for layer in hidden])
    embedded = target.get_input_embeddings()(ids[1:])[None]
    return ids, hidden, module.unroll(entered, embedded, torch.arange(29)[None], 4)


ROOTS = (0, 1), (0, 6), (12, 13), (12, 24)  # where a conversation begins, and a place in it


def read_two(target):
    """Two conversations in one sequence: tokens, the batch and the target's output."""
    ids = torch.randperm(VOCAB)[:30][None]
    positions = torch.cat([torch.arange(12), torch.arange(18)])[None]
    kept = {"position_ids": positions, "attention_mask": separate(positions)}
    out = target.model(ids, **kept, use_cache=False, output_hidden_states=True)
    return ids, PackedBatch(ids, torch.ones(1, 30), positions), out


@pytest.mark.parametrize("kind", ["eagle", "mtp", "eagle3"])
@torch.inference_mode()
def test_unrolled_states_are_the_drafters(target, tmp_path, monkeypatch, kind):
    """Pass d at place i is the state of the node of depth d on the true path whose context ends at
    i - d.
    """
    settings = HeadSettings(kind=kind, intermediate=48, vocabulary=80)
    config = head_config(target, settings)
    one = {"eagle": EagleModule, "mtp": MtpModule}.get(kind)
    module = one(config, target) if one else Eagle3Module(config, target, torch.arange(50, 130))
    save_head(rounded(module), config, tmp_path)
    method = bound({"eagle": Eagle, "mtp": Mtp, "eagle3": Eagle3}[kind](str(tmp_path)), target)
    assert method.needs.hidden == ((1, 3, 4) if kind == "eagle3" else (5,))

    ids, hidden, passes = unrolled(module, target)
    for known in (1, 10, 25):
        drafting = EagleRun(method.bound, LayerMemory(method.bound.layers, 3, 1))
        features = [hidden[layer][:known] for layer in method.needs.hidden]
        drafting.remember(features, ids[1 : known + 1])
        complete(drafting.root())
        assert torch.allclose(drafting._root[0], passes[0][0, known - 1], atol=1e-4)
        for depth in range(1, 4):
            logits = complete(drafting.expand(ids[known + depth][None], torch.tensor([0])))
            assert torch.allclose(
                drafting._hidden[0], passes[depth][0, known + depth - 1], atol=1e-4
            )
            assert torch.allclose(
                logits[0], module.logits(passes[depth][0, known + depth - 1]), atol=1e-4
            )
            assert torch.allclose(
                method.bound.spread(logits)[0, 50:130].isfinite().sum(), torch.tensor(80)
            )


@torch.inference_mode()
def test_a_parallel_heads_passes_are_the_drafters_levels(target, tmp_path):
    """Pass d at place i is level d of the draft whose context ends at i - d."""
    settings = HeadSettings(kind="p_eagle", intermediate=48, vocabulary=80)
    config = head_config(target, settings)
    module = PEagleModule(config, target, torch.arange(50, 130))
    module.mask_hidden.normal_()
    save_head(rounded(module), config, tmp_path)
    method = bound(PEagle(str(tmp_path), length=4), target)
    ids, hidden, passes = unrolled(module, target)
    drafting = method.new_run(method.bound, method.new_memory())
    for start, known in ((0, 1), (1, 10), (10, 25)):
        drafting.remember(
            [hidden[layer][start:known] for layer in method.needs.hidden],
            ids[start + 1 : known + 1],
        )
        complete(drafting.root())
        wanted = torch.stack(
            [module.logits(passes[depth][0, known - 1 + depth]) for depth in range(4)]
        )
        assert torch.allclose(drafting._levels, wanted, atol=1e-4)


@torch.inference_mode()
def test_a_block_is_the_drafters(target, tmp_path):
    """Blocks of two conversations in one sequence, all in one forward, against drafts of each
    conversation.
    """
    settings = BlockSettings(block=5, intermediate=48)
    config = block_config(target, settings)
    module = rounded(BlockModule(config))
    save_head(module, config, tmp_path)
    method = bound(DFlash(str(tmp_path)), target)
    ids, batch, out = read_two(target)
    hidden = out.hidden_states
    roots = torch.tensor([[root for _, root in ROOTS]])
    made = target.lm_head(fill(module, target, hidden, batch, roots, 5))[0, :, 1:]
    for place, (start, root) in enumerate(ROOTS):
        context = ids[0, start : root + 1].tolist()
        drafter = begun(method, target, context)
        drafter.propose(context, 64)
        assert torch.allclose(drafter._run._levels, made[place], atol=1e-6)
    assert not torch.allclose(made[0], made[1], atol=1e-2)


@torch.inference_mode()
def test_medusa_heads_are_the_drafters(target, tmp_path):
    """Of two conversations in one sequence, along the path that each drafts."""
    module = MedusaModule(target, MedusaSettings(heads=3, blocks=2))
    for weight in module.parameters():
        weight += torch.randn_like(weight) * 0.1
    save_medusa(rounded(module), tmp_path)
    method = bound(Medusa(str(tmp_path), tree=[[1], [1], [1]]), target)
    ids, _, out = read_two(target)
    chains = []
    for start, root in ROOTS:
        state = out.last_hidden_state[:, root - 1]
        chains.append([int(module.guess(head, state).argmax()) for head in range(3)])
        context = ids[0, start : root + 1].tolist()
        assert draft_of(method, target, context).tokens.tolist() == chains[-1]
    assert len(set(map(tuple, chains))) > 1


def test_a_pass_sees_its_own_ancestors_only():
    """Of two conversations of three and two tokens."""
    seen = visible(torch.tensor([[0, 1, 2, 0, 1]]), 1)[0, 0]
    assert seen.nonzero().tolist() == [[1, 0], [2, 0], [2, 1], [4, 3]]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "dflash", "medusa"])
def test_training_makes_the_head_better(tmp_path, capsys, kind):
    short = {"steps": 14, "rows": 1, "length": 256, "warmup": 2}
    if kind == "dflash":
        trainee = new_block_head(BlockSettings(**short, intermediate=64, block=3))
    elif kind == "medusa":
        trainee = new_medusa_heads(MedusaSettings(**short, heads=2))
    else:
        trainee = new_head(HeadSettings(kind=kind, **short, intermediate=64, passes=2))
    fresh = entropy(trainee)
    train_and_save(trainee, tmp_path)
    trainee.module.train()
    assert entropy(trainee) < fresh - 0.3
    weights = "medusa_lm_head.safetensors" if kind == "medusa" else "model.safetensors"
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", weights}
    [shares] = re.findall(r"^on held-out answers, .*: (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(shares.split()) == 2


@torch.no_grad()
def entropy(trainee) -> float:
    settings = trainee.settings
    batches = pack(
        trainee.tokenizer, documents(99, held_out=True), settings.length, settings.rows, 0.0
    )
    losses = [trainee.loss_of(batch)[0].item() for batch in islice(batches, 4)]
    return sum(losses) / len(losses)


LEAST = {"eagle": 3.0, "eagle2": 3.5, "eagle3": 2.5, "p_eagle": 1.4, "dflash": 1.6, "medusa": 1.6}


@pytest.mark.exhaustive
def test_bundled_heads_are_worth_their_bytes():
    job = job_for(f"method=[{','.join(LEAST)}]", "suite.categories=[qa]", "suite.limit=3")
    model = load_model(job.source.card)
    methods = {
        entry.name: bound(entry.method, model) for entry in job.entries if entry.name in LEAST
    }
    accepted = {name: [] for name in methods}
    for case in job.source.suite.cases:
        prompt = job.source.prompts.ids(case.turns[:1], [])
        for name, method in methods.items():
            accepted[name] += run(model, method, prompt, 40).accept
    assert accepted.keys() == LEAST.keys()
    assert all(sum(found) / len(found) > LEAST[name] for name, found in accepted.items()), accepted
