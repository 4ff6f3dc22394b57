"""The replay of prompt lookup on a finished answer: how many tokens each decode step would have brought.

Greedy prompt lookup never changes the answer, so its accepted lengths follow from the answer alone and no model has to
run again.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_NGRAM = 3
DRAFT_TOKENS = 10


def lookup(context: Sequence[int], longest: int = LONGEST_NGRAM, count: int = DRAFT_TOKENS) -> list[int]:
    """Draft of Spec-Bench's prompt lookup: what followed the first occurrence of the last tokens.

    The longest n-gram is tried first; a match counts only if ``count`` tokens stand behind it and it does not overlap
    the n-gram that is looked up.
    """
    for length in range(min(longest, len(context) - 1), 0, -1):
        tail = list(context[-length:])
        for start in range(min(len(context) - length - count + 1, len(context) - 2 * length)):
            if list(context[start : start + length]) == tail:
                return list(context[start + length : start + length + count])
    return []


def accepted_lengths(prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """Tokens brought by each decode step; the first token of the answer comes with the prompt and is not counted."""
    lengths, done = [], 1
    while done < len(answer):
        draft = lookup([*prompt, *answer[:done]])
        rest = answer[done:]
        agreed = 0
        while agreed < min(len(draft), len(rest)) and draft[agreed] == rest[agreed]:
            agreed += 1
        brought = min(agreed + 1, len(rest))
        lengths.append(brought)
        done += brought
    return lengths
