"""Build REST's datastore, a tokenized corpus with its suffix array, with a model's tokenizer.

python scripts/build_datastore.py --tokenizer lmsys/vicuna-7b-v1.3 --out vicuna.safetensors corpus.jsonl
specbench model=vicuna_7b method=[rest] method.rest.datastore=vicuna.safetensors
"""

from __future__ import annotations

import sys
import time

from methods.parts.lookup.corpus import corpus_parser, read_corpus
from methods.rest import Datastore
from specbench.cli import with_exit_code


@with_exit_code
def main() -> None:
    """Read, sort, write; print what the datastore holds."""
    given = corpus_parser(__doc__).parse_args()
    start = time.perf_counter()
    corpus = read_corpus(given)
    datastore = Datastore.build(corpus.documents, len(corpus.tokenizer))
    datastore.save(given.out, len(corpus.tokenizer))
    print(f"{given.out}: {datastore.nbytes()} bytes from {corpus}, in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
