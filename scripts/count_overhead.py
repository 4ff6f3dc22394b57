"""Count what each method costs a step besides the target's forward, on a 32-layer Llama with random weights.

    python scripts/count_overhead.py pld token_recycling cacheback

Columns, per decode step: operations of the forward; operations outside it (launches on a GPU), the draft model's own
among them; of these the cache compaction; synchronisations; host microseconds outside the forward, timed without
counting, the median over requests. Peers have a loop of their own and are not listed.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from specbench.cli import job_of
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.measure.ops import OpCounter
from specbench.method import Peer
from specbench.target.eager import EagerEngine
from specbench.target.facade import Target
from specbench.target.load import load_model

SHAPE = ["model=random", "model.random.config.num_hidden_layers=32", "model.random.config.hidden_size=64",
         "model.random.config.intermediate_size=128", "model.random.config.vocab_size=2048",
         "model.draft=bundled:tiny_draft", "+model.frozen_table=bundled:tiny/frozen_table.safetensors"]  # fmt: skip


def main() -> None:
    """Print one row a method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=["pld", "speculative_sampling", "token_recycling", "cacheback"])
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args()
    torch.set_num_threads(1)
    job = job_of([*SHAPE, f"method=[{','.join(given.methods)}]", "suite.categories=[rag]", "suite.limit=5"])
    model = load_model(job.card)
    prompts = [job.prompts.ids(case.turns[:1], []) for case in job.suite.cases]
    print("| method | forward ops | other ops | of these compaction | syncs | host us |\n|---|--:|--:|--:|--:|--:|")
    for entry in job.entries:
        if isinstance(entry.method, Peer):
            continue
        engine = EagerEngine(model, job.card.context, frozenset(), 256)
        entry.method.bind(Target(job.card, model, 256, None))
        entry.method.reset()
        clock = Clock(engine.device)
        times = []
        for prompt in prompts:
            out = decode(engine, entry.method, Request(prompt, given.tokens, None, 0), clock)
            host = sum(value for phase, value in out.phases_s.items() if phase != "forward")
            times.append(host / len(out.accept) * 1e6)
        counter = OpCounter()
        whole, keep, start = model.forward, engine.cache.keep, engine.start
        model.forward = counter.within("forward", whole)
        engine.cache.keep = counter.within("compaction", keep)  # type: ignore[method-assign]
        engine.start = counter.within("prefill", start)  # type: ignore[method-assign]
        model.forward = counter.within("forward", whole)
        with counter.counting():
            out = decode(engine, entry.method, Request(prompts[0], given.tokens, None, 0), clock)
        model.forward = whole
        steps = len(out.accept)
        other = counter.ops["rest"] + counter.ops["compaction"]
        row = (counter.ops["forward"] / (steps + 1), other / steps, counter.ops["compaction"] / steps)
        syncs = counter.syncs["rest"] / steps
        print(f"| {entry.name} | {row[0]:.0f} | {row[1]:.1f} | {row[2]:.1f} | {syncs:.1f} | "
              f"{statistics.median(times):.0f} |")  # fmt: skip


if __name__ == "__main__":
    main()
