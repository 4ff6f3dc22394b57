"""The drafters alone, with no target: memory, and microseconds per draft and per update, at several lengths of context.

    python scripts/benchmark_drafters.py pld cacheback --corpus news.txt --context 2000 100000

request MiB: what a drafter holds once it has read the prompt, the prompt's own list not counted. growth: a step
against one at the shortest context. scan / step: how many times longer a scan of the whole context
takes, as prompt lookup's references do it. Without methods named: all that run no model of their own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from methods.parts.corpus import read_documents, tokenize
from scripts.lab.drafting import COLUMNS, lines_of, repeating_tokens, time_scan
from specbench.method import Peer
from specbench.models.facade import Target
from specbench.models.load import load_model
from specbench.records.record import VANILLA
from specbench.runs.cli import job_of
from specbench.runs.config import conf_dir
from specbench.runs.session import Entry
from specbench.screen import with_exit_code
from specbench.types import InputError

NODES, RESET = 256, ("turn", "case")


@with_exit_code
def main() -> None:
    """One row a method and context, and a line for each method that cannot be stepped without a target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.stem for path in (conf_dir() / "method").glob("*.yaml") if path.stem != VANILLA)
    parser.add_argument("methods", nargs="*", default=names)
    parser.add_argument("--corpus", type=Path, nargs="+", help="text or JSON files; default: generated tokens")
    parser.add_argument("--context", type=int, nargs="+", default=[2_000, 32_000, 128_000], help="[tokens]")
    parser.add_argument("--tokens", type=int, default=2_000, help="decoded at each length")
    parser.add_argument("--set", nargs="+", default=[], help="settings as specbench takes them")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if min(given.tokens, *given.context) < 1:
        parser.error("--tokens, --context: expected 1 or more")
    job_of([f"method=[{name}]" for name in given.methods if name not in names][:1])  # an error and not a line skipped
    card = job_of([*given.set, "method=[]", "suite.limit=1"]).card
    need = 2 * (max(given.context) + given.tokens)
    documents = tokenize(read_documents(given.corpus or []), card.tokenizer)
    text = np.concatenate([*documents])[:need].tolist() if given.corpus else repeating_tokens(need, card.vocab_size)
    if len(text) < need:
        raise InputError(f"--corpus: {len(text)} tokens; expected at least {need}, or a shorter --context")
    target = Target(card, load_model(card), NODES, None)
    scans = {length: float(np.median(time_scan(text, length))) for length in sorted(given.context)}
    print(f"| method | context | {' | '.join(COLUMNS)} | growth | scan / step |\n|---{'|--:' * (len(COLUMNS) + 3)}|")
    for name in given.methods:
        try:
            entry = job_of([*given.set, f"method=[{name}]", "suite.limit=1"]).entries[-1]
            prepare(entry, target)
        except InputError as error:
            print(f"skipped {name}: {error}")
            continue
        for line in lines_of(name, entry.method, entry.reset not in RESET, text, scans, given.tokens, NODES):
            print(line, flush=True)
        entry.method.close()
    print("scan [us]:", ", ".join(f"{scan:.0f} at {length}" for length, scan in scans.items()))


def prepare(entry: Entry, target: Target) -> None:
    """Bind a method. Raises InputError if its drafts are those of a model."""
    if not isinstance(entry.method, Peer) and "draft" not in entry.parameters:
        entry.method.bind(target)
        if not entry.method.needs.hidden:
            return
    raise InputError("needs a model behind it; scripts/count_overhead.py times it")


if __name__ == "__main__":
    sys.exit(main())
