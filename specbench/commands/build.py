"""Build a file that a method reads, from a text corpus, with a model's tokenizer.

    specbench build datastore --tokenizer lmsys/vicuna-7b-v1.3 --out vicuna.safetensors corpus.jsonl
    specbench model=vicuna_7b 'method=[rest]' method.rest.datastore=vicuna.safetensors

frozen_table: Cacheback's n-grams (paper section 3.3). datastore: REST's corpus with its suffix array. automaton: the
static one of SAM-Decoding.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from importlib import import_module

KINDS = {"frozen_table": "methods.cacheback", "datastore": "methods.rest", "automaton": "methods.sam"}
CORPUS = "methods.parts.corpus"


def main(argv: Sequence[str]) -> int:
    """Read, build, write; print what the file contains. Raises InputError."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="specbench build", description=__doc__, formatter_class=kind)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="specbench build KIND --help lists them")
    given = parser.parse_args(argv)
    reader, builder = import_module(CORPUS), import_module(KINDS[given.kind])
    own = reader.corpus_parser(f"specbench build {given.kind}")
    builder.add_options(own)
    options = own.parse_args(given.rest)
    start = time.perf_counter()
    corpus = reader.read_corpus(options)
    built, summary = builder.build(corpus, options)
    built.save(options.out, len(corpus.tokenizer))
    print(f"{options.out}: {summary}{built.nbytes()} bytes from {corpus}, in {time.perf_counter() - start:.1f} s")
    return 0
