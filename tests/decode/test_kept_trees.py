"""Records of complete drafts: their shape, the accepted nodes, and the source of each node."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from specbench.decode.loop import Transcript
from specbench.types import EMPTY, Draft, Step

NAMES = ("context", "table")


def count(draft: Draft, path: tuple[int, ...] = ()) -> Transcript:
    """The transcript of one step."""
    transcript = Transcript(trees=[])
    step = Step(root=1, emitted=tuple(range(1 + len(path))), path=path, done=True)
    transcript.count([(draft, step, 1 + len(draft))], NAMES)
    return transcript


def kept(draft: Draft, path: tuple[int, ...] = ()) -> dict:
    """The tree of one step, read back from a record."""
    [tree] = json.loads(json.dumps(count(draft, path).trees))
    return tree


def test_what_a_draft_does_not_say_is_not_recorded():
    assert kept(Draft.chain([5, 6]), (0,)) == {"tokens": [5, 6], "parents": [-1, 0], "path": [0]}
    assert kept(EMPTY) == {"tokens": [], "parents": [], "path": []}


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_nodes_are_listed_under_their_sources_and_passengers_are_named(kind):
    """A drafter on a device or in numpy names its sources as it names its tokens."""
    draft = Draft(
        kind([5, 6, 7]),
        kind([-1, 0, 0]),
        passenger=[False, True, False],
        source=kind([1, 0, 1]),
    )
    assert kept(draft, (np.int64(0), 2)) == {
        "tokens": [5, 6, 7],
        "parents": [-1, 0, 0],
        "path": [0, 2],
        "passengers": [1],
        "sources": {"context": [1], "table": [0, 2]},
    }
    assert count(draft, (0, 2)).sources == {"table": [2, 2]}
    assert count(replace(draft, passenger=None), (0, 2)).sources["context"] == [1, 0]


def test_without_a_place_nothing_is_kept():
    transcript = Transcript()
    transcript.count([(Draft.chain([5]), Step(1, (5, 2), (0,), True), 2)], NAMES)
    assert transcript.trees is None


def test_a_late_chains_first_token_is_marked():
    transcript = Transcript(trees=[])
    taken = Step(1, (5, 6), (0,), False, late=1)
    transcript.count([(Draft.chain([5]), taken, 2), (EMPTY, Step(6, (7,), (), True), 1)], NAMES)
    assert [tree.get("late") for tree in transcript.trees] == [True, None]
