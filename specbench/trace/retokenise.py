"""From the text of an answer back to its tokens: written into its conversation, tokenised whole, the prompt cut off.

An answer tokenised alone differs at its first token (a Llama tokenizer puts a space before it); inside the
conversation it comes out as it was generated, up to what stripping and decoding lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from specbench.suite.prompt import PromptBuilder

_NEXT = "Next question"  # a turn behind the answer, so that the template writes the answer as one that is finished


def conversation_ids(
    builder: PromptBuilder, turns: Sequence[str], answers: Sequence[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(prompt ids, answer ids) of the conversation's last answer; no EOS is added.

    turns: the user's n messages; answers: the n answers.
    """
    prompt = builder.ids(turns, answers[:-1])
    before = builder.text(turns, answers[:-1])
    answer = answers[-1].strip()
    whole = builder.text([*turns, _NEXT], answers)
    at = whole.find(answer, len(before)) if whole.startswith(before) else -1
    lead = whole[len(before) : at] if at >= 0 else ""  # a template may rewrite finished answers (cut their reasoning)
    ids = builder.encode(before + lead + answer)
    if ids[: len(prompt)] != prompt:  # the template's end and the answer's beginning make one token together
        ids = [*prompt, *builder.encode_bare(answer)]
    return tuple(prompt), tuple(ids[len(prompt) :])
