"""Count what each method costs a step besides the target's forward, on a 32-layer Llama with random weights.

    python scripts/count_overhead.py pld token_recycling cacheback --engine eager, or --transfers

Columns, per decode step: operations of the forward; operations outside it (launches on a GPU), a draft model's too; of
these the cache compaction; synchronisations; host time outside the forward, the median over requests.
With --transfers: copies between host and device a step that wait for the device, on tensors labelled cuda:0.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import torch

from scripts.lab.ops import describe_overhead
from scripts.lab.transfers import print_transfers
from specbench.models.choose import make_engine
from specbench.models.facade import Target
from specbench.models.fast.attention import FastOptions
from specbench.models.load import load_model
from specbench.records.record import EngineKind
from specbench.runs.cli import job_of
from specbench.screen import with_exit_code

SHAPE = ["model=random", "model.draft=bundled:tiny_draft", "+model.frozen_table=bundled:tiny/frozen_table.safetensors",
         "+model.datastore=bundled:tiny/datastore.safetensors",
         *(f"model.heads.{name}=random" for name in ("eagle", "eagle3", "p_eagle", "dflash", "mtp", "medusa", "hydra")),
         *(f"model.random.config.{size}" for size in ("hidden_size=64", "intermediate_size=128",
                                                      "vocab_size=2048"))]  # fmt: skip
DEFAULT = ["pld", "speculative_sampling", "token_recycling", "cacheback", "hf_generate", "hf_prompt_lookup"]


@with_exit_code
def main() -> None:
    """Print one row a method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=DEFAULT)
    parser.add_argument("--engine", choices=(EngineKind.FAST, EngineKind.EAGER), default=EngineKind.FAST)
    parser.add_argument("--transfers", action="store_true")
    given = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    layers = f"model.random.config.num_hidden_layers={2 if given.transfers else 32}"  # transfers do not depend on them
    job = job_of([*SHAPE, layers, f"method=[{','.join(given.methods)}]", "suite.categories=[rag]", "suite.limit=5"])
    card = replace(job.card, eos=frozenset())
    prompts = [job.prompts.ids(case.turns[:1], []) for case in job.suite.cases]
    if given.transfers:
        return print_transfers({entry.name: entry.method for entry in job.entries}, card, prompts[0])
    model = load_model(job.card)
    print("| method | forward ops | other ops | of these compaction | syncs | host us |\n|---|--:|--:|--:|--:|--:|")
    for entry in job.entries:
        engine = make_engine(given.engine, model, card, 256, "sdpa", FastOptions(compiled=False))[0]
        entry.method.bind(Target(job.card, model, 256, None))
        entry.method.reset()
        print(describe_overhead(entry.name, entry.method, engine, model, prompts), flush=True)


if __name__ == "__main__":
    sys.exit(main())
