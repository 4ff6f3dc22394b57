"""Heads draft for several requests at once: one forward a level, and what each drafts alone."""

from __future__ import annotations

import pytest
import torch

from builders.models import VOCAB
from draft_models import draft_together
from head_models import HEADS, begun, bound
from methods.parts import draft_layer
from methods.parts.draft_layer import DraftLayers, RowFunction, RowsCall, turn

CONTEXTS = [[5, 6, 7, 11], [9, 8, 2], [3, 4] * 6, list(range(4, 40))]
# calls of the layers and of the output head by one draft
CALLS = {
    "eagle2": (3, 3),
    "eagle": (5, 5),
    "eagle3": (3, 3),
    "p_eagle": (1, 1),
    "dflash": (1, 1),
    "hydra": (1, 2),
    "medusa": (0, 1),
}


@pytest.mark.parametrize("kind", CALLS)
def test_several_requests_draft_in_one_forward_a_level_what_each_drafts_alone(
    kind, model, monkeypatch
):
    layers, outputs = CALLS[kind]
    method = bound(HEADS[kind](), model)

    def drafters():
        return [begun(method, model, ids) for ids in CONTEXTS]

    found = {DraftLayers: [], RowFunction: []}  # what each call gave its requests
    for owner, seen in found.items():
        real = owner.run_together

        def run_together(self, each, seen=seen, real=real):
            seen.append(real(self, each))
            return seen[-1]

        monkeypatch.setattr(owner, "run_together", run_together)
    monkeypatch.setattr(RowsCall, "run", lambda self: self.owner.run_together([self])[0])

    def together():
        for seen in found.values():
            seen.clear()
        drafts = draft_together(drafters(), CONTEXTS)
        return [content(each) for each in drafts]

    alone = [
        content(drafter.propose(ids, 64)) for drafter, ids in zip(drafters(), CONTEXTS, strict=True)
    ]
    assert len({tuple(tokens) for tokens, _ in alone}) > 1
    truth = {owner: [outcome for (outcome,) in seen] for owner, seen in found.items()}

    def same():
        for owner, count in ((DraftLayers, layers), (RowFunction, outputs)):
            assert [len(call) for call in found[owner]] == [4] * count
            by_request = [call[place] for place in range(4) for call in found[owner]]
            if not all(
                torch.allclose(*pair, atol=1e-9)
                for pair in zip(by_request, truth[owner], strict=True)
            ):
                return False
        return True

    assert together() == alone
    assert same()
    if layers:  # the wrong variant: positions of others
        monkeypatch.setattr(
            draft_layer, "turn", lambda rows, cos, sin: turn(rows, cos.roll(1, 0), sin.roll(1, 0))
        )
        together()
        assert not same()


def content(draft):
    tokens, parents = (torch.as_tensor(each).tolist() for each in (draft.tokens, draft.parents))
    assert max(tokens) < VOCAB
    return tokens, parents
