"""The replay of prompt lookup on a finished answer: how many tokens each decode step would have brought.

Greedy prompt lookup never changes the answer, so its accepted lengths follow from the answer alone and no model has to
run again.
"""

from __future__ import annotations

from collections.abc import Sequence

from methods.pld import PromptLookup
from specbench.types import Prefill


def accepted_lengths(prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """Tokens brought by each decode step; the first token of the answer comes with the prompt and is not counted."""
    lengths, done = [], 1
    method = PromptLookup(max_ngram=3, num_draft=10, rule="original")
    drafter = method.begin(prompt, Prefill(answer[0] if answer else 0), 0)
    while done < len(answer):
        draft = drafter.propose([*prompt, *answer[:done]], method.num_draft).tokens
        rest = answer[done:]
        agreed = 0
        while agreed < min(len(draft), len(rest)) and draft[agreed] == rest[agreed]:
            agreed += 1
        brought = min(agreed + 1, len(rest))
        lengths.append(brought)
        done += brought
    return lengths
