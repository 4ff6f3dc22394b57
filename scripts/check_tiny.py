"""Check the bundled models on the bundled questions and print the figures as a markdown table."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tiny.card import CHECK_FILE, write_card
from tiny.check import Checker, read_suite, rows, table

ASSETS = Path(__file__).resolve().parent.parent / "specbench" / "assets"
NOTE = (
    "Greedy answers in single precision to the questions of `mini`, at most 256 new tokens, own answers fed back. "
    "*ended*: stopped by itself; *looped*: ran to the limit in a cycle of at most 16 tokens; *exact*: equal to the "
    "reference; *PLD MAT*: mean tokens per decode step of prompt lookup (n-grams up to 3, 10 draft tokens, first "
    "match), beside the figure of a real model; *draft agrees*: share of answer tokens that `tiny_draft` would have "
    "chosen."
)


def main() -> None:
    """Ask everything, print the table, and put it into the model cards if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", type=Path, default=ASSETS / "tiny")
    parser.add_argument("--draft", type=Path, default=ASSETS / "tiny_draft")
    parser.add_argument("--suite", type=Path, default=ASSETS / "mini" / "question.jsonl")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--wrong", action="store_true", help="also print the answers that miss their reference")
    parser.add_argument("--card", action="store_true", help="write the table into the model cards")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    draft = given.draft if given.draft.exists() else None
    checker = Checker(given.tiny, draft)
    answers = []
    for question in read_suite(given.suite):
        replies = checker.ask(question)
        answers += replies
        for turn, reply in enumerate(replies):
            if given.wrong and reply.right is False:
                text = checker.tokenizer.decode(reply.tokens, skip_special_tokens=True)
                print(f"{question['question_id']}.{turn}\n  is        {text!r}")
                print(f"  should be {question['reference'][turn]!r}")
    result = table(rows(answers), with_draft=draft is not None)
    print(result)
    if given.card:
        for folder in [given.tiny, *([draft] if draft else [])]:
            (folder / CHECK_FILE).write_text(f"{NOTE}\n\n{result}\n", encoding="utf-8")
            write_card(folder, folder.name)


if __name__ == "__main__":
    main()
