"""What the scripts that build a file from a corpus ask for, and the documents it comes to."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from methods.parts.lookup.corpus import read_documents, tokenize, without_overlap
from specbench.target.load import locate, read_tokenizer
from specbench.types import InputError


@dataclass(frozen=True, slots=True)
class Corpus:
    """documents: token ids of each, none empty. dropped: documents kept out for what they share."""

    tokenizer: Any
    documents: list[np.ndarray]
    dropped: int

    def __str__(self) -> str:
        tokens = sum(map(len, self.documents))
        return f"{len(self.documents)} documents of {tokens} tokens, {self.dropped} kept out"


def corpus_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments that every builder has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "corpus", nargs="+", type=Path, help="text, .jsonl or .json files, also with .gz; .zip of texts"
    )
    parser.add_argument("--tokenizer", required=True, help="folder, hub id or bundled:tiny")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--field", action="append", default=[], help="JSON field with the text (dotted, repeatable)")
    parser.add_argument(
        "--exclude", action="append", default=[], type=Path, metavar="FILE",
        help="keep out documents that share 13 words in a row with this file (repeatable)",
    )  # fmt: skip
    return parser


def read_corpus(given: argparse.Namespace) -> Corpus:
    """The documents that the arguments name. Raises InputError where there are none."""
    if not given.out.parent.is_dir():
        raise InputError(f"--out {given.out}: its folder does not exist; make it first")
    tokenizer = read_tokenizer(locate(given.tokenizer, "--tokenizer"), "--tokenizer")
    texts, dropped = without_overlap(read_documents(given.corpus, given.field), read_documents(given.exclude))
    documents = [ids for ids in tokenize(iter(texts), tokenizer) if len(ids)]
    if not documents:
        names = ", ".join(map(str, given.corpus))
        raise InputError(
            f"no token in {names} (fields {given.field}, {dropped} documents kept out); is a --field misspelt?"
        )
    return Corpus(tokenizer, documents, dropped)
