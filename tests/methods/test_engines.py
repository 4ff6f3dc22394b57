"""Every method decodes the same on both engines: ids, accepted lengths and tokens fed, step by step."""

from __future__ import annotations

import pytest
import torch

from compose import entry_of, job_for, method_names
from specbench.method import Peer
from specbench.run import execute
from specbench.store import read_run
from specbench.target.fast.engine import FastEngine

SUITE = ("suite.limit=1", "suite.first=1", "decode.max_new_tokens=20", "measure=quick", "measure.warmup=0")


def needs(name: str) -> bool:
    """Whether a method reads logits or hidden states."""
    method = entry_of(name).method
    return bool(method.needs.node_topk or method.needs.hidden) or "eagle" in name or "heads" in name


def turns(folder, *overrides):
    job = job_for(*SUITE, "measure.lossless=false", *overrides)
    execute(job, folder, lambda *_: None)
    return {(each.method, each.case): each.turns for each in read_run(folder).records}, job


@pytest.mark.parametrize("name", method_names())
def test_both_engines_take_the_same_steps(name, tmp_path):
    eager, job = turns(tmp_path / "eager", f"method=[{name}]", "engine=eager")
    fast, _ = turns(tmp_path / "fast", f"method=[{name}]", "engine=fast")
    peers = {entry.name for entry in job.entries if isinstance(entry.method, Peer)}
    assert len(eager) == len(fast) == (1 if name == "vanilla" else 2)
    for key, expected in eager.items():
        for theirs, ours in zip(expected, fast[key], strict=True):
            assert ours.ids == theirs.ids, key
            if key[0] not in peers:
                assert (ours.accept, ours.proposed, ours.fed) == (theirs.accept, theirs.proposed, theirs.fed), key


@pytest.mark.parametrize("name", [name for name in method_names() if needs(name)])
def test_what_a_step_shows_is_read_before_the_next_forward(name, tmp_path, monkeypatch):
    """On a GPU a step's tensors lie in the graphs' memory: here the next forward spoils them, and nothing changes."""
    plain, _ = turns(tmp_path / "plain", f"method=[{name}]", "engine=fast")
    settle, forward, shown = FastEngine.settle, FastEngine.forward, []

    @torch.inference_mode()
    def spoil(engine, draft):
        while shown:
            shown.pop().fill_(float("nan"))
        return forward(engine, draft)

    def show(engine, left, late=None):
        step = settle(engine, left, late)
        shown.extend([*step.hidden.values(), *([step.topk.logits] if step.topk else [])])
        return step

    monkeypatch.setattr(FastEngine, "forward", spoil)
    monkeypatch.setattr(FastEngine, "settle", show)
    spoiled, _ = turns(tmp_path / "spoiled", f"method=[{name}]", "engine=fast")
    for key, expected in plain.items():
        assert [(turn.ids, turn.accept) for turn in spoiled[key]] == [(turn.ids, turn.accept) for turn in expected]
