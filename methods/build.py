"""Build a file that a method reads, from a text corpus, with a model's tokenizer.

    specbench build datastore --tokenizer lmsys/vicuna-7b-v1.3 --out vicuna.safetensors corpus.jsonl
    specbench model=vicuna_7b 'method=[rest]' method.rest.datastore=vicuna.safetensors

frozen_table: Cacheback's n-grams (paper section 3.3). datastore: REST's corpus with its suffix
array. automaton: the static one of SAM-Decoding.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pkgutil import resolve_name

from methods.parts.corpus import Corpus, drop_overlapping, read_documents, tokenize
from specbench.input import file_path
from specbench.models.load import locate, read_tokenizer
from specbench.types import InputError

KINDS = {
    "frozen_table": "methods.cacheback:FrozenTable",
    "datastore": "methods.rest:Datastore",
    "automaton": "methods.sam:StaticAutomaton",
}


def main(argv: Sequence[str]) -> int:
    """Read, build, write; print what the file contains. Raises InputError."""
    parser = argparse.ArgumentParser(
        prog="specbench build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument(
        "rest",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="specbench build KIND --help lists them",
    )
    given = parser.parse_args(argv)
    kind = resolve_name(KINDS[given.kind])
    own = argparse.ArgumentParser(prog=f"specbench build {given.kind}")
    own.add_argument(
        "corpus",
        nargs="+",
        type=file_path,
        help="text, .jsonl or .json files, also with .gz; .zip of texts",
    )
    own.add_argument("--tokenizer", required=True, help="folder, hub id or bundled:tiny")
    own.add_argument("--out", required=True, type=file_path)
    own.add_argument(
        "--field", action="append", default=[], help="JSON field with the text (dotted, repeatable)"
    )
    own.add_argument(
        "--exclude", action="append", default=[], type=file_path, metavar="FILE",
        help="keep out documents that share 13 words in a row with this file (repeatable)",
    )  # fmt: skip
    kind.add_options(own)
    options = own.parse_args(given.rest)
    kind.refuse_output(options.out, [*options.corpus, *options.exclude])
    start = time.perf_counter()
    corpus = read_corpus(options)
    built, summary = kind.from_corpus(corpus, options)
    built.save(options.out, len(corpus.tokenizer))
    print(
        f"{options.out}: {summary}{built.nbytes()} bytes from {corpus}, in"
        f" {time.perf_counter() - start:.1f} s"
    )
    return 0


def read_corpus(given: argparse.Namespace) -> Corpus:
    """Reads the documents that the options name. Raises InputError if they have no token."""
    tokenizer = read_tokenizer(locate(given.tokenizer, "--tokenizer"), "--tokenizer")
    texts, dropped = drop_overlapping(
        read_documents(given.corpus, given.field), read_documents(given.exclude)
    )
    documents = [ids for ids in tokenize(iter(texts), tokenizer) if len(ids)]
    if not documents:
        names = ", ".join(map(str, given.corpus))
        raise InputError(
            f"no token in {names} (fields {given.field}, {dropped} documents kept out); is a"
            " --field misspelt?"
        )
    return Corpus(tokenizer, documents, dropped)
