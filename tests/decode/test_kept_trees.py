"""Records of complete drafts: their shape, the accepted nodes, and the source of each node."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from specbench.decode.loop import Transcript
from specbench.types import EMPTY, Draft, Step

NAMES = ("context", "table")


def kept(draft: Draft, path: tuple[int, ...] = ()) -> dict:
    """The tree of the transcript of one step, read back from a record."""
    transcript = Transcript(trees=[])
    step = Step(root=1, emitted=tuple(range(1 + len(path))), path=path, done=True)
    transcript.count([(draft, step, 1 + len(draft))], NAMES)
    [tree] = json.loads(json.dumps(transcript.trees))
    return tree


def test_what_a_draft_does_not_say_is_not_recorded():
    assert kept(Draft.chain([5, 6]), (0,)) == {"tokens": [5, 6], "parents": [-1, 0], "path": [0]}
    assert kept(EMPTY) == {"tokens": [], "parents": [], "path": []}


def test_nodes_are_listed_under_their_sources_and_passengers_are_named():
    """Numbers may be of any kind."""
    for kind in (list, np.array, torch.tensor):
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


def test_without_a_place_nothing_is_kept():
    transcript = Transcript()
    transcript.count([(Draft.chain([5]), Step(1, (5, 2), (0,), True), 2)], NAMES)
    assert transcript.trees is None


@pytest.mark.parametrize("numbers", [[1, 0], (1, 0), np.array([1, 0]), torch.tensor([1, 0])])
@pytest.mark.parametrize("passenger", [None, [False, True]])
def test_sources_of_any_kind_are_counted(numbers, passenger):
    """A drafter on a device or in numpy names its sources as it names its tokens."""
    transcript = Transcript(trees=[])
    draft = Draft([5, 6], [-1, -1], source=numbers, passenger=passenger)
    transcript.count([(draft, Step(1, (5, 2), (0,), True), 3)], NAMES)
    assert transcript.sources == {"table": [1, 1]} | ({} if passenger else {"context": [1, 0]})
    assert json.loads(json.dumps(transcript.trees))[0]["sources"] == {"table": [0], "context": [1]}


def test_a_late_chains_first_token_is_marked():
    transcript = Transcript(trees=[])
    taken = Step(1, (5, 6), (0,), False, late=1)
    transcript.count([(Draft.chain([5]), taken, 2), (EMPTY, Step(6, (7,), (), True), 1)], NAMES)
    assert [tree.get("late") for tree in transcript.trees] == [True, None]
