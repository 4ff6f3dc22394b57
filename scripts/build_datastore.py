"""Build REST's datastore, a tokenized corpus with its suffix array, with a model's tokenizer.

python scripts/build_datastore.py --tokenizer lmsys/vicuna-7b-v1.3 --out vicuna.safetensors corpus.jsonl
specbench model=vicuna_7b method=[rest] method.rest.datastore=vicuna.safetensors
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from transformers import AutoTokenizer

from methods.parts.corpus import read_documents, tokenize
from methods.parts.datastore import Datastore
from specbench.target.load import locate
from specbench.types import InputError


def main() -> int:
    """Read, sort, write; print what the datastore holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="+", type=Path, help="text, .jsonl or .json files, also with .gz")
    parser.add_argument("--tokenizer", required=True, help="folder, hub id or bundled:tiny")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--field", action="append", default=[], help="JSON field with the text (dotted, repeatable)")
    given = parser.parse_args()
    start = time.perf_counter()
    try:
        tokenizer = AutoTokenizer.from_pretrained(locate(given.tokenizer, "--tokenizer"))
        datastore = Datastore.build(tokenize(read_documents(given.corpus, given.field), tokenizer), len(tokenizer))
    except InputError as error:
        print(f"build_datastore: error: {error}", file=sys.stderr)
        return 2
    if not len(datastore.array):
        print(
            f"build_datastore: error: no token in {given.corpus} (fields {given.field}); is a --field misspelt?",
            file=sys.stderr,
        )
        return 2
    datastore.save(given.out, len(tokenizer))
    print(
        f"{given.out}: {len(datastore.array)} tokens of {len(datastore.borders) - 1} documents,"
        f" {datastore.nbytes()} bytes in {time.perf_counter() - start:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
