"""Count what each method costs a step besides the target's forward, on a 32-layer Llama with random weights.

    python scripts/count_overhead.py pld token_recycling cacheback

Columns, per decode step: operations of the forward; operations outside it (launches on a GPU), the draft model's own
among them; of these the cache compaction; synchronisations; host microseconds outside the forward, timed without
counting, the median over requests.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

from specbench.cli import job_of
from specbench.decode.loop import Request, decode
from specbench.job import Entry
from specbench.measure.clock import Clock
from specbench.measure.ops import OpCounter
from specbench.method import Peer
from specbench.target.eager import EagerEngine
from specbench.target.facade import Target
from specbench.target.load import load_model

SHAPE = ["model=random", "model.random.config.num_hidden_layers=32", "model.random.config.hidden_size=64",
         "model.random.config.intermediate_size=128", "model.random.config.vocab_size=2048",
         "model.draft=bundled:tiny_draft", "+model.frozen_table=bundled:tiny/frozen_table.safetensors",
         "+model.datastore=bundled:tiny/datastore.safetensors", "model.heads.eagle=random",
         "model.heads.eagle3=random", "model.heads.medusa=random", "model.heads.hydra=random"]  # fmt: skip
DEFAULT = ["pld", "speculative_sampling", "token_recycling", "cacheback", "hf_generate", "hf_prompt_lookup"]


def main() -> None:
    """Print one row a method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=DEFAULT)
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args()
    torch.set_num_threads(1)
    job = job_of([*SHAPE, f"method=[{','.join(given.methods)}]", "suite.categories=[rag]", "suite.limit=5"])
    model = load_model(job.card)
    prompts = [job.prompts.ids(case.turns[:1], []) for case in job.suite.cases]
    print("| method | forward ops | other ops | of these compaction | syncs | host us |\n|---|--:|--:|--:|--:|--:|")
    for entry in job.entries:
        engine = EagerEngine(model, job.card.context, frozenset(), 256)
        entry.method.bind(Target(job.card, model, 256, None))
        entry.method.reset()
        print(row(entry, engine, model, prompts, given.tokens), flush=True)


def row(entry: Entry, engine: EagerEngine, model: Any, prompts: list[list[int]], tokens: int) -> str:
    """One method's line. A peer's loop cannot be seen into: its prefill counts as a step, its host time is blank."""
    clock, times = Clock(engine.device), []
    for prompt in prompts:
        out = decode(engine, entry.method, Request(prompt, tokens, None, 0), clock)
        if out.phases_s:
            host = sum(value for phase, value in out.phases_s.items() if phase != "forward")
            times.append(host / len(out.accept) * 1e6)
    counter = OpCounter()
    whole, keep, start = model.forward, engine.cache.keep, engine.start
    model.forward = counter.within("forward", whole)
    engine.cache.keep = counter.within("compaction", keep)  # type: ignore[method-assign]
    engine.start = counter.within("prefill", start)  # type: ignore[method-assign]
    with counter.counting():
        out = decode(engine, entry.method, Request(prompts[0], tokens, None, 0), clock)
    model.forward = whole
    forwards = len(out.accept) + 1
    steps = forwards if isinstance(entry.method, Peer) else forwards - 1
    other = counter.ops["rest"] + counter.ops["compaction"]
    cells = [f"{count / steps:.1f}" for count in (other, counter.ops["compaction"], counter.syncs["rest"])]
    cells.append(f"{statistics.median(times):.0f}" if times else "")
    return f"| {entry.name} | {counter.ops['forward'] / forwards:.0f} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
