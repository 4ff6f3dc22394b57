"""Time the drafters alone: microseconds per draft and per update, at several lengths of context, with no target.

    python scripts/benchmark_drafters.py pld cacheback --corpus news.txt --context 2000 100000

Each method is stepped through a text as the decode loop would step it; the same tokens are decoded at every length.
growth: a step against one at the shortest context. scan / step: how many times longer a scan of the whole context takes
(prompt lookup as its references do it). Without methods named: all that need no logits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from methods.parts.corpus import read_documents, tokenize
from specbench.cli import conf_dir, job_of
from specbench.job import Entry
from specbench.measure.drafting import COLUMNS, cost_at, repeating_tokens, time_scan
from specbench.method import Peer
from specbench.record import VANILLA
from specbench.target.facade import Target
from specbench.target.load import load_model
from specbench.types import InputError

NODES = 256


def main() -> None:
    """One row a method and context, and a line for each method that cannot be stepped without a target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.stem for path in (conf_dir() / "method").glob("*.yaml") if path.stem != VANILLA)
    parser.add_argument("methods", nargs="*", default=names)
    parser.add_argument("--corpus", type=Path, nargs="+", help="text or JSON files; default: generated tokens")
    parser.add_argument("--context", type=int, nargs="+", default=[2_000, 20_000, 100_000], help="[tokens]")
    parser.add_argument("--tokens", type=int, default=2_000, help="tokens decoded at each length")
    parser.add_argument("--set", nargs="+", default=[], help="settings as specbench takes them: model=vicuna_7b")
    given = parser.parse_args()
    torch.set_num_threads(1)
    card = job_of([*given.set, "method=[]", "suite.limit=1"]).card
    lengths, need = sorted(given.context), 2 * (max(given.context) + given.tokens)
    text = repeating_tokens(need, card.vocab_size)
    if given.corpus:
        text = np.concatenate([*tokenize(read_documents(given.corpus), card.tokenizer)])[:need].tolist()
    if len(text) < need:
        parser.error(f"--corpus: {len(text)} tokens; expected at least {need}, or a shorter --context")
    target = Target(card, load_model(card), NODES, None)
    scans = [float(np.median(time_scan(text, length))) for length in lengths]
    print(f"| method | context | {' | '.join(COLUMNS)} | growth | scan / step |\n|---{'|--:' * (len(COLUMNS) + 3)}|")
    for name in given.methods:
        try:
            entry = job_of([*given.set, f"method=[{name}]", "suite.limit=1"]).entries[-1]
            prepare(entry, target)
        except InputError as error:
            print(f"skipped {name}: {error}")
            continue
        keeps, first = entry.reset in ("category", "never"), 0.0
        for length, scan in zip(lengths, scans, strict=True):
            cost = cost_at(entry.method, keeps, text, length, given.tokens, NODES)
            first = first or cost.step_us
            cells = [name, str(length), *cost.cells(), f"{cost.step_us / first:.2f}", f"{scan / cost.step_us:.1f}"]
            print(f"| {' | '.join(cells)} |", flush=True)
        entry.method.close()
    print("scan [us]:", ", ".join(f"{scan:.0f} at {length}" for length, scan in zip(lengths, scans, strict=True)))


def prepare(entry: Entry, target: Target) -> None:
    """Bind a method. Raises InputError if its drafts depend on a model, which nothing here runs."""
    if isinstance(entry.method, Peer) or "draft" in entry.parameters:
        raise InputError("runs a model; scripts/count_overhead.py times it")
    entry.method.bind(target)
    needs = entry.method.needs
    if needs.node_topk or needs.prompt_topk or needs.hidden:
        raise InputError("needs the target's logits or states; scripts/count_overhead.py times it")


if __name__ == "__main__":
    main()
