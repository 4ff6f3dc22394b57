"""Peak host memory of one long request, decoded and then judged, above that of the loaded model.

    python scripts/measure_memory.py model=tiny 'model.overrides={max_position_embeddings: 32768}' --context 16384 32768
    python scripts/measure_memory.py model=random_110m model.random.config.max_position_embeddings=32768

The first arguments are those of ``specbench``. The resident memory is the high-water mark that Linux counts, set back
before each part; the prompt is made of phrases that repeat. The ratio is that of a context over the one before it.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import torch

from specbench.bench.drafting import repeating_tokens
from specbench.bench.memory import measure_peak
from specbench.cli import job_of, with_exit_code
from specbench.decode.loop import Request, decode
from specbench.material import model_options
from specbench.measure.clock import Clock
from specbench.method import Method
from specbench.target.choose import make_engine
from specbench.target.engine import Engine
from specbench.target.facade import Target
from specbench.target.load import load_model

NODES, MIB = 64, 1 << 20


@with_exit_code
def main() -> None:
    """Print a row an engine, method and context."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of specbench: model=..., method=...")
    parser.add_argument("--context", type=int, nargs="+", default=[16384, 32768], help="[tokens], the answer included")
    parser.add_argument("--tokens", type=int, default=32, help="of the answer")
    parser.add_argument("--engine", nargs="+", default=["eager", "fast"])
    given = parser.parse_intermixed_args()
    print("| engine | method | context | decoded, MiB | ratio | judged, MiB | ratio |\n|---|---|--:|--:|--:|--:|--:|")
    for kind in given.engine:
        job = job_of(["method=[pld,cacheback_no_frozen]", *given.overrides, f"engine={kind}", "suite.limit=1"])
        torch.set_num_threads(job.config.model.threads or torch.get_num_threads())
        model = load_model(job.card, **model_options(job.config))
        engine, _ = make_engine(job.config.engine.kind, model, job.card, NODES, job.config.model.attention)
        base, before = 0, dict[str, tuple[float, float]]()
        for entry in job.entries:
            entry.method.bind(Target(job.card, model, NODES, None))
            _, base = measure_peak(partial(run, engine, entry.method, repeating_tokens(64, job.card.vocab_size)))
        for count in sorted(given.context):
            prompt = repeating_tokens(count - given.tokens, job.card.vocab_size)
            for entry in job.entries:
                ids, decoded = measure_peak(partial(run, engine, entry.method, prompt, given.tokens))
                _, judged = measure_peak(partial(engine.gaps, prompt, ids))
                sizes = (decoded - base) / MIB, (judged - base) / MIB
                cells = [f"{size:.0f}" for size in sizes]
                ratios = [f"{size / old:.2f}" for size, old in zip(sizes, before.get(entry.name, ()), strict=False)]
                before[entry.name] = sizes
                pairs = [cell for pair in zip(cells, ratios or ("", ""), strict=True) for cell in pair]
                print(f"| {' | '.join([kind, entry.name, str(count), *pairs])} |", flush=True)
        for entry in job.entries:
            entry.method.close()
        engine.close()


def run(engine: Engine, method: Method, prompt: list[int], tokens: int = 8) -> list[int]:
    """The ids of a request."""
    return decode(engine, method, Request(prompt, tokens, None, 0), Clock(engine.device)).ids


if __name__ == "__main__":
    sys.exit(main())
