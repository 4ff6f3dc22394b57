"""Peak host memory of one long request, decoded and then judged, above that of the loaded model, beside its bound.

    python scripts/measure_memory.py model=tiny 'model.overrides={max_position_embeddings: 32768}' --context 16384 32768
    python scripts/measure_memory.py model=random_110m model.random.config.max_position_embeddings=32768

The first arguments are those of ``specbench``. The resident memory is the high-water mark that Linux counts, set back
before each part; the prompt is of phrases that repeat. Above the bound (``RequestBound``) the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import torch

from scripts.lab.drafting import repeating_tokens
from scripts.lab.memory import RequestBound, measure_peak
from specbench.advise.latency import shape_of
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.method import Method
from specbench.models.choose import make_engine
from specbench.models.engine import Engine
from specbench.models.facade import Target
from specbench.models.family import find_windows
from specbench.models.load import load_model
from specbench.profile import ModelShape
from specbench.runs.cli import job_of
from specbench.runs.material import model_options
from specbench.screen import with_exit_code

NODES, MIB = 256, 1 << 20


@with_exit_code
def main() -> None:
    """Print a row an engine, method and context."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of specbench: model=..., method=...")
    parser.add_argument("--context", type=int, nargs="+", default=[16384, 32768], help="[tokens], the answer included")
    parser.add_argument("--tokens", type=int, default=32, help="of the answer")
    parser.add_argument("--engine", nargs="+", default=["eager", "fast"])
    given, worst = parser.parse_intermixed_args(), 0.0
    print("| engine | method | context | decoded, MiB | judged, MiB | bound, MiB | bytes a token | larger / bound |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for kind in given.engine:
        job = job_of(["method=[pld,token_recycling]", *given.overrides, f"engine={kind}", "suite.limit=1"])
        torch.set_num_threads(job.config.model.threads or torch.get_num_threads())
        model = load_model(job.card, **model_options(job.config))
        engine, _ = make_engine(job.config.engine.kind, model, job.card, NODES, job.config.model.attention)
        shape, base, masked = ModelShape(**shape_of(model)), 0, any(find_windows(model.config).values())
        for entry in job.entries:
            entry.method.bind(Target(job.card, model, NODES, None))
            _, base = measure_peak(partial(run, engine, entry.method, repeating_tokens(64, job.card.vocab_size)))
        for count in sorted(given.context):
            prompt = repeating_tokens(count - given.tokens, job.card.vocab_size)
            for entry in job.entries:
                ids, decoded = measure_peak(partial(run, engine, entry.method, prompt, given.tokens))
                _, judged = measure_peak(partial(engine.gaps, prompt, ids))
                rows = count if entry.method.needs.prompt_topk else max(given.tokens, NODES + 1)
                bound = RequestBound.of(shape, rows, NODES, masked or kind == "eager")
                share = (max(decoded, judged) - base) / bound.at(count)
                sizes = [f"{size / MIB:.0f}" for size in (decoded - base, judged - base, bound.at(count))]
                cells = [kind, entry.name, f"{count}", *sizes, f"{bound.token_bytes}", f"{share:.2f}"]
                print(f"| {' | '.join(cells)} |", flush=True)
                worst = max(worst, share)
        for entry in job.entries:
            entry.method.close()
        engine.close()
    sys.exit(f"memory is {worst:.2f} of its bound" if worst > 1 else 0)


def run(engine: Engine, method: Method, prompt: list[int], tokens: int = 8) -> list[int]:
    """The ids of a request."""
    return decode(engine, method, Request(prompt, tokens, None, 0), Clock(engine.device)).ids


if __name__ == "__main__":
    sys.exit(main())
