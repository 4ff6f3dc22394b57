"""Build Cacheback's frozen n-gram table from a text corpus with a model's tokenizer (paper section 3.3).

python scripts/build_frozen_table.py --tokenizer lmsys/vicuna-7b-v1.3 --out vicuna.safetensors corpus.jsonl
specbench model=vicuna_7b method=[cacheback] method.cacheback.frozen=vicuna.safetensors
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from transformers import AutoTokenizer

from methods.parts.corpus import read_documents, tokenize, without_overlap
from methods.parts.lru_table import build_frozen_table
from specbench.target.load import locate
from specbench.types import InputError


def main() -> int:
    """Read, count, write; print what the table holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="+", type=Path, help="text, .jsonl or .json files, also with .gz")
    parser.add_argument("--tokenizer", required=True, help="folder, hub id or bundled:tiny")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--field", action="append", default=[], help="JSON field with the text (dotted, repeatable)")
    parser.add_argument("--exclude", action="append", default=[], type=Path, help="keep this file's texts out")
    parser.add_argument("--leader", type=int, default=1, help="leader length LL [tokens]")
    parser.add_argument("--follower", type=int, default=3, help="follower length FL [tokens]")
    parser.add_argument("--leaders", type=int, default=2**20, help="leader capacity LC")
    parser.add_argument("--followers", type=int, default=128, help="follower capacity FC")
    parser.add_argument("--rate", type=float, default=1.0, help="share of windows sampled (the paper's 1 %% is 0.01)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    lengths = (given.leader, given.follower, given.leaders, given.followers)
    if min(lengths) < 1 or not 0 < given.rate <= 1:
        parser.error(f"got lengths and capacities {lengths} and rate {given.rate}; expected 1 or more, and 0 to 1")
    start = time.perf_counter()
    try:
        tokenizer = AutoTokenizer.from_pretrained(locate(given.tokenizer, "--tokenizer"))
        texts, dropped = without_overlap(read_documents(given.corpus, given.field), read_documents(given.exclude))
        documents = list(tokenize(iter(texts), tokenizer))
    except InputError as error:
        print(f"build_frozen_table: error: {error}", file=sys.stderr)
        return 2
    table = build_frozen_table(
        documents, given.leader, given.follower, given.leaders, given.followers, given.rate, given.seed
    )
    if not len(table.followers):
        print(
            f"build_frozen_table: error: no n-gram in {given.corpus} (fields {given.field}); is a --field misspelt?",
            file=sys.stderr,
        )
        return 2
    table.save(given.out, len(tokenizer))
    tokens = sum(len(ids) for ids in documents)
    print(
        f"{given.out}: {len(table.leaders)} leaders, {len(table.followers)} followers, {table.nbytes()} bytes"
        f" from {len(documents)} documents of {tokens} tokens, {dropped} kept out,"
        f" in {time.perf_counter() - start:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
