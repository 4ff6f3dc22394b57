"""Stepping a drafter through a text: the steps of a greedy decode loop, timed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scripts.lab.drafters import COLUMNS, cost_at, follow, replay
from specbench.decode.walk import Walk
from specbench.method import Drafter, Method
from specbench.types import EMPTY, Draft, Needs


class Scripted(Drafter):
    """Drafts what its method says and writes down what it sees."""

    def __init__(self, method: Recorder) -> None:
        self.method = method

    def propose(self, context, budget):
        self.method.seen.append((list(context), budget))
        return self.method.draft(context)

    def observe(self, step):
        self.method.steps.append(step)

    def finish(self, context):
        self.method.finished.append(list(context))


class Recorder(Method):
    needs = Needs()

    def __init__(self, draft):
        self.draft, self.seen, self.steps, self.finished, self.begun, self.resets = draft, [], [], [], [], 0

    def reset(self):
        self.resets += 1

    def begin(self, prompt, prefill, seed):
        self.begun.append((list(prompt), prefill.token))
        self.prefill = prefill
        return Scripted(self)


TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def draft_next(context):
    """A wrong token, and the next two of the text."""
    return Draft([9, context[-1] + 1, context[-1] + 2], [-1, -1, 1])


def test_steps_are_those_of_a_greedy_decode_loop():
    method = Recorder(draft_next)
    cost = replay(method, TEXT, 3, 64)
    assert method.begun == [([1, 2, 3], 4)]
    assert method.seen == [([1, 2, 3, 4], 64), ([1, 2, 3, 4, 5, 6, 7], 64)]
    assert [(step.root, step.emitted, step.path, step.done) for step in method.steps] == [
        (4, (5, 6, 7), (1, 2), False),
        (7, (8, 9), (1,), True),  # the text ends: the path is cut as at a request's limit
    ]
    assert method.finished == [TEXT]
    assert (cost.nodes, cost.emitted) == (3, 2.5)
    assert (len(cost.draft_us), len(cost.update_us)) == (1, 1)  # the first propose reads the prompt
    assert len(cost.cells()) == len(COLUMNS)


def test_a_request_on_other_text_comes_first_and_only_kept_state_survives_it():
    text = list(range(40))
    for keeps, resets in ((True, 1), (False, 2)):
        method = Recorder(lambda context: EMPTY)
        cost_at(method, keeps, text, 5, 4, 64)
        assert method.begun == [([11, 12, 13, 14, 15], 16), ([31, 32, 33, 34, 35], 36)]
        assert method.resets == resets


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 8), st.booleans()), max_size=9), st.data())
def test_follow_is_as_deep_as_the_walker_goes(nodes, data):
    tokens = [token for token, _, _ in nodes]
    parents = [min(parent, node - 1) for node, (_, parent, _) in enumerate(nodes)]
    passenger = [rides for _, _, rides in nodes]
    future = data.draw(st.lists(st.integers(0, 2), min_size=10, max_size=10))
    depths = [0]
    for parent in parents:
        depths.append(depths[parent + 1] + 1)
    picks = [future[depth] for depth in depths]
    assert follow(Draft(tokens, parents, passenger=passenger), future) == Walk.follow(tokens, parents, passenger, picks)
