"""Build Cacheback's frozen n-gram table from a text corpus with a model's tokenizer (paper section 3.3).

python scripts/build_frozen_table.py --tokenizer lmsys/vicuna-7b-v1.3 --out vicuna.safetensors corpus.jsonl
specbench model=vicuna_7b method=[cacheback] method.cacheback.frozen=vicuna.safetensors
"""

from __future__ import annotations

import sys
import time

from methods.cacheback.frozen_table import build_frozen_table
from methods.parts.lookup.corpus import corpus_parser, read_corpus
from specbench.cli import with_exit_code
from specbench.types import InputError


@with_exit_code
def main() -> None:
    """Read, count, write; print what the table holds."""
    parser = corpus_parser(__doc__)
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
    corpus = read_corpus(given)
    table = build_frozen_table(
        corpus.documents, given.leader, given.follower, given.leaders, given.followers, given.rate, given.seed
    )
    if not len(table.followers):
        raise InputError(f"no n-gram in {given.corpus} (fields {given.field}); is a --field misspelt?")
    table.save(given.out, len(corpus.tokenizer))
    print(
        f"{given.out}: {len(table.leaders)} leaders, {len(table.followers)} followers, {table.nbytes()} bytes"
        f" from {corpus}, in {time.perf_counter() - start:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
