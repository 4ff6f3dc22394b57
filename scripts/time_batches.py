"""Time plain steps of several requests that share forwards, against steps of one request without a batch.

    python scripts/time_batches.py model=tiny
    python scripts/time_batches.py model=tiny model.threads=1 --library transformers --requests 1,4,8,16 --blocks 5
    python scripts/time_batches.py model=random_110m model.threads=2 --requests 1,2,4,8,16 --nodes 7
    python scripts/time_batches.py model=tiny model.threads=1 --url http://127.0.0.1:8000 --requests 1,4,8,16

The first arguments are those of ``specbench``. One request without a batch, the same again as the control, and each
number of requests take turns on one loaded model; the figures are medians of the ratios of the turns. The bound is that
of one request whose forwards feed as many rows: T(1) / T(q) times the requests. Host: a step's time outside of the
forward, where it is compiled code. With --library or --url, whole answers by turns with another runtime's batches; the
processor's time is that of this process, and a server that keeps prompts (vLLM without --no-enable-prefix-caching)
reads none after the first turn.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import torch

from methods.openvino_genai import OpenvinoBatches
from scripts.lab.together import TogetherBench, answers_behind, generate_batch
from specbench.input import whole_numbers
from specbench.models.choose import make_engine
from specbench.models.facade import Target
from specbench.models.load import load_model
from specbench.runs.cli import job_of
from specbench.runs.material import model_options
from specbench.screen import with_exit_code

LIBRARIES = ("transformers", "openvino")


@with_exit_code
def main() -> None:
    """Time and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of specbench: model=..., engine=..., model.threads=...")
    parser.add_argument("--requests", type=whole_numbers, default=[1, 2, 4, 8, 16, 64], help="at once")
    parser.add_argument("--nodes", type=int, default=0, help="of each draft, a chain that is never right")
    parser.add_argument("--context", type=int, default=100, help="tokens in the cache of each request")
    parser.add_argument("--blocks", type=int, default=15, help="turns of each")
    parser.add_argument("--steps", type=int, default=30, help="in a turn")
    beside = parser.add_mutually_exclusive_group()
    beside.add_argument("--library", choices=LIBRARIES, help="whole answers, beside its continuous batching")
    beside.add_argument("--url", help="whole answers, beside the batches of the vLLM server there")
    given = parser.parse_intermixed_args()
    job = job_of(["method=[]", *given.overrides])
    torch.set_num_threads(job.config.model.threads or torch.get_num_threads())
    model = load_model(job.card, **model_options(job.config))
    engine, _ = make_engine(job.config.engine.kind, model, job.card, 64, job.config.model.attention)
    bench = TogetherBench(engine, len(model.get_input_embeddings().weight), given.context, given.steps)
    if given.library or given.url:
        answer = answers_behind(given.url) if given.url else partial(generate_batch, model)
        if given.library == LIBRARIES[1]:
            peer = OpenvinoBatches()
            peer.bind(Target(job.card, model, max_nodes=1, sampling=None))
            answer = peer.answer
        print(*bench.beside(answer, given.requests, given.steps, given.blocks), sep="\n")
    else:
        print(*bench.measure(given.requests, given.nodes, given.blocks), sep="\n")
    about = f"{job.card.name}, {job.card.dtype}, engine={engine.kind.value}: {engine.describe_forward()}"
    print(
        f"{about}, {torch.get_num_threads()} threads, {given.context} tokens of context, drafts of {given.nodes} nodes"
    )


if __name__ == "__main__":
    sys.exit(main())
