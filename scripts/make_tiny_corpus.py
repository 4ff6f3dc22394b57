"""Write the bundled question suite, a sample of the corpus that the bundled models are trained on, or a tokenizer."""

from __future__ import annotations

import argparse
from pathlib import Path

from tiny.corpus import write_corpus, write_suite
from tiny.tokenizer import save_tokenizer, train_tokenizer

SUITE = Path(__file__).resolve().parent.parent / "specbench" / "assets" / "mini" / "question.jsonl"


def main() -> None:
    """Write what was asked for and say how much it was."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    suite = kinds.add_parser("suite", help="the question suite, in Spec-Bench's format")
    suite.add_argument("--path", type=Path, default=SUITE)
    suite.add_argument("--per-task", type=int, default=10)
    corpus = kinds.add_parser("corpus", help="training conversations as chat messages, one per line")
    corpus.add_argument("path", type=Path)
    corpus.add_argument("--count", type=int, default=10_000)
    corpus.add_argument("--seed", type=int, default=1)
    kinds.add_parser("tokenizer", help="that of the bundled models, trained anew").add_argument("path", type=Path)
    given = parser.parse_args()
    if given.kind == "tokenizer":
        save_tokenizer(train_tokenizer(), given.path)
    elif given.kind == "suite":
        print(f"{write_suite(given.path, given.per_task)} questions in {given.path}")
    else:
        print(f"{write_corpus(given.path, given.count, given.seed)} conversations in {given.path}")


if __name__ == "__main__":
    main()
