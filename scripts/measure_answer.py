"""What a long answer costs behind the model: its steps, its records, its report and its judgement; time and memory.

    python scripts/measure_answer.py 'method=[pld]' --tokens 4096 32768 --judge model=tiny \
        'model.overrides={max_position_embeddings: 65536, rope_parameters: {rope_type: linear, factor: 16}}'

The first arguments are those of ``specbench``. A recorded answer of phrases that repeat is replayed and reported with
plots and page; the model of ``--judge`` judges it. Memory is the high-water mark over what was held before, by Linux.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scripts.lab.drafting import repeating_tokens
from scripts.lab.memory import measure_peak
from specbench.models.choose import make_engine
from specbench.models.engine import Engine
from specbench.models.load import load_model
from specbench.records.store import RECORDS
from specbench.report import build_report
from specbench.runs.cli import job_of
from specbench.runs.execution import execute
from specbench.runs.material import model_options
from specbench.screen import with_exit_code

PROMPT, FIRST, VOCAB, MIB = 64, 256, 2048, 1 << 20


@with_exit_code
def main() -> None:
    """Print a row an answer and part; a short answer comes first, unprinted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of specbench: method=...")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4_096, 32_768], help="of the answer")
    parser.add_argument("--judge", nargs="+", help="settings of a model; default: none judges")
    given = parser.parse_intermixed_args()
    engine = None
    if given.judge:
        job = job_of([*given.judge, "method=[]", "suite.limit=1"])
        model = load_model(job.card, **model_options(job.config))
        engine, _ = make_engine(job.config.engine.kind, model, job.card, 64, job.config.model.attention)
    print("| answer | part | CPU s | MiB |\n|--:|---|--:|--:|")
    for count in (FIRST, *sorted(given.tokens)):
        for cells in rows_of(count, given.overrides, engine):
            if count > FIRST:
                print(f"| {' | '.join([str(count), *cells])} |", flush=True)


def rows_of(count: int, overrides: Sequence[str], engine: Engine | None) -> Iterator[list[str]]:
    """Of an answer of ``count`` tokens: part, seconds, memory."""
    text = repeating_tokens(PROMPT + count, VOCAB)
    prompt, ids = text[:PROMPT], text[PROMPT:]
    with tempfile.TemporaryDirectory() as folder:
        trace, run = Path(folder, "trace.jsonl"), Path(folder, "run")
        trace.write_text(json.dumps({"case": "1", "turns": [{"prompt_ids": prompt, "ids": ids}]}) + "\n")
        asked = ["model=replay", f"model.trace={trace}", "model.tokenizer=bundled:tiny"]
        job = job_of([*asked, f"decode.max_new_tokens={count}", *overrides])
        yield ["decoded and written", *cost(partial(execute, job, run, lambda *_: None))]
        yield ["records on disk", "", f"{(run / RECORDS).stat().st_size / MIB:.1f}"]
        yield ["report", *cost(partial(build_report, [run]))]
        if engine is not None:
            yield ["judged", *cost(partial(engine.gaps, prompt, ids))]


def cost(call: Callable[[], Any]) -> list[str]:
    """[CPU s], and [MiB] over what was held before."""
    (_, before), start = measure_peak(int), time.process_time()
    _, peak = measure_peak(call)
    return [f"{time.process_time() - start:.2f}", f"{(peak - before) / MIB:.0f}"]


if __name__ == "__main__":
    sys.exit(main())
