"""Count what each method costs a step besides the target's forward, on a 32-layer Llama with random weights.

    python scripts/count_overhead.py pld token_recycling cacheback --engine eager

Columns, per decode step: operations of the forward; operations outside it (launches on a GPU), a draft model's too; of
these the cache compaction; synchronisations; host time outside the forward, the median over requests.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from typing import Any

import torch

from specbench.bench.ops import OpCounter
from specbench.cli import job_of, with_exit_code
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.method import Peer
from specbench.record import EngineKind
from specbench.session import Entry
from specbench.target.choose import make_engine
from specbench.target.facade import Target
from specbench.target.load import load_model

SHAPE = ["model=random", "model.draft=bundled:tiny_draft", "+model.frozen_table=bundled:tiny/frozen_table.safetensors",
         "+model.datastore=bundled:tiny/datastore.safetensors",
         *(f"model.heads.{name}=random" for name in ("eagle", "eagle3", "medusa", "hydra")),
         *(f"model.random.config.{size}" for size in ("num_hidden_layers=32", "hidden_size=64", "intermediate_size=128",
                                                      "vocab_size=2048"))]  # fmt: skip
DEFAULT = ["pld", "speculative_sampling", "token_recycling", "cacheback", "hf_generate", "hf_prompt_lookup"]


@with_exit_code
def main() -> None:
    """Print one row a method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=DEFAULT)
    parser.add_argument("--engine", choices=(EngineKind.FAST, EngineKind.EAGER), default=EngineKind.FAST)
    given = parser.parse_args()
    torch.set_num_threads(1)
    job = job_of([*SHAPE, f"method=[{','.join(given.methods)}]", "suite.categories=[rag]", "suite.limit=5"])
    model, card = load_model(job.card), replace(job.card, eos=frozenset())
    prompts = [job.prompts.ids(case.turns[:1], []) for case in job.suite.cases]
    print("| method | forward ops | other ops | of these compaction | syncs | host us |\n|---|--:|--:|--:|--:|--:|")
    for entry in job.entries:
        engine = make_engine(given.engine, model, card, 256, "sdpa")[0]
        entry.method.bind(Target(job.card, model, 256, None))
        entry.method.reset()
        print(row(entry, engine, model, prompts), flush=True)


def row(entry: Entry, engine: Any, model: Any, prompts: list[list[int]], tokens: int = 48) -> str:
    """One method's line. A peer's own loop is one piece: its prefill counts as a step, its host time is blank."""
    clock, counter = Clock(engine.device), OpCounter()
    outs = [decode(engine, entry.method, Request(prompt, tokens, None, 0), clock) for prompt in prompts]
    times = [1e6 * (sum(each.values()) - each["forward"]) / len(out.accept) for out in outs if (each := out.phases_s)]
    fast = engine.kind == EngineKind.FAST
    ours = fast and not isinstance(entry.method, Peer)
    watched = {"forward": (engine, "compute") if ours else (model, "forward")}
    watched |= {"compaction": (engine.cache, "move" if fast else "keep"), "prefill": (engine, "start")}
    for section, (owner, name) in watched.items():
        setattr(owner, name, counter.within(section, getattr(owner, name)))
    with counter.counting():
        out = decode(engine, entry.method, Request(prompts[0], tokens, None, 0), clock)
    for owner, name in watched.values():
        delattr(owner, name)  # the class's own again
    steps, moved = len(out.accept) + isinstance(entry.method, Peer), counter.ops["compaction"]
    forwards = len(out.accept) + (not ours)  # the eager engine reads the prompt in the same forward
    cells = [f"{count / steps:.1f}" for count in (counter.ops["rest"] + moved, moved, counter.syncs["rest"])]
    cells += [f"{statistics.median(times):.0f}" if times else ""]
    return f"| {entry.name} | {counter.ops['forward'] / forwards:.0f} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
