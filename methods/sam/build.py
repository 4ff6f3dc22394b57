"""What ``specbench build automaton`` adds to the reading of a corpus."""

from __future__ import annotations

import argparse

from methods.parts.lookup.corpus import Corpus
from methods.sam.static_automaton import StaticAutomaton, build_automaton
from specbench.types import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is put into the automaton, and how many children are ranked."""
    parser.add_argument("--ranked", type=int, default=8, help="most children of a node in a draft tree")
    parser.add_argument("--no-eos", action="store_true", help="put nothing between documents")
    parser.add_argument("--no-ids", action="store_true", help="do not add every token of the vocabulary")


def build(corpus: Corpus, given: argparse.Namespace) -> tuple[StaticAutomaton, str]:
    """The automaton, and what it holds. Raises InputError for options that the tokenizer does not allow."""
    if given.ranked < 1:
        raise InputError(f"--ranked {given.ranked}; expected 1 or more")
    eos = None if given.no_eos else corpus.tokenizer.eos_token_id
    if eos is None and not given.no_eos:
        raise InputError(f"--tokenizer {given.tokenizer}: has no EOS token; give --no-eos")
    automaton = build_automaton(corpus.documents, eos, 0 if given.no_ids else len(corpus.tokenizer), given.ranked)
    text, states, _, edges, _ = automaton.arrays
    return automaton, f"{len(text)} tokens, {len(states)} states, {len(edges)} edges, "
