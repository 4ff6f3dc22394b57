"""Build SAM-Decoding's static automaton from a text corpus with a model's tokenizer.

python scripts/build_automaton.py --tokenizer lmsys/vicuna-7b-v1.3 --out vicuna.safetensors corpus.jsonl
specbench model=vicuna_7b method=[sam] method.sam.static=vicuna.safetensors
"""

from __future__ import annotations

import sys
import time

from methods.parts.lookup.corpus import corpus_parser, read_corpus
from methods.sam.static_automaton import build_automaton
from specbench.cli import with_exit_code
from specbench.types import InputError


@with_exit_code
def main() -> None:
    """Read, build, write; print what the automaton holds."""
    parser = corpus_parser(__doc__)
    parser.add_argument("--ranked", type=int, default=8, help="most children of a node in a draft tree")
    parser.add_argument("--no-eos", action="store_true", help="put nothing between documents")
    parser.add_argument("--no-ids", action="store_true", help="do not add every token of the vocabulary")
    given = parser.parse_args()
    if given.ranked < 1:
        parser.error(f"--ranked {given.ranked}; expected 1 or more")
    start = time.perf_counter()
    corpus = read_corpus(given)
    eos = None if given.no_eos else corpus.tokenizer.eos_token_id
    if eos is None and not given.no_eos:
        raise InputError(f"--tokenizer {given.tokenizer}: has no EOS token; give --no-eos")
    automaton = build_automaton(corpus.documents, eos, 0 if given.no_ids else len(corpus.tokenizer), given.ranked)
    automaton.save(given.out, len(corpus.tokenizer))
    text, states, _, edges, _ = automaton.arrays
    print(
        f"{given.out}: {len(text)} tokens, {len(states)} states, {len(edges)} edges, {automaton.nbytes()} bytes"
        f" from {corpus}, in {time.perf_counter() - start:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
