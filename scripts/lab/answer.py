r"""What a long answer costs apart from the model: its steps, records, report and judgement, in time and memory.

    python -m scripts.lab answer 'method=[pld]' --tokens 4096 32768 --judge model=tiny \
        'model.overrides={max_position_embeddings: 65536, rope_parameters: {rope_type: linear, factor: 16}}'

The first arguments are those of ``specbench``. A recorded answer of phrases that repeat is replayed and reported with
plots and page; the model of ``--judge`` judges it. Memory is the high-water mark of Linux above the memory before.
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scripts.lab.materials import MIB, load_engine, print_row, repeating_tokens
from scripts.lab.memory import measure_peak
from specbench.models.engine import Engine
from specbench.records.store import RECORDS
from specbench.report import build_report
from specbench.runs.execution import execute
from specbench.runs.job import job_of

PROMPT, FIRST, VOCAB = 64, 256, 2048


def add_options(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("overrides", nargs="*", help="of specbench: method=...")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4_096, 32_768], help="of the answer")
    parser.add_argument("--judge", nargs="+", help="settings of a model; without them the answer is not judged")


def run(given: Namespace) -> None:
    """Print a row an answer and part; a short answer comes first and is not printed."""
    engine = load_engine([*given.judge, "method=[]", "suite.limit=1"], 64)[2] if given.judge else None
    print("| answer | part | CPU s | MiB |\n|--:|---|--:|--:|")
    for count in (FIRST, *sorted(given.tokens)):
        for cells in rows_of(count, given.overrides, engine):
            if count > FIRST:
                print_row(count, *cells)


def rows_of(count: int, overrides: Sequence[str], engine: Engine | None) -> Iterator[list[str]]:
    """Yield part, seconds and memory for an answer of ``count`` tokens."""
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
    """Return a call's CPU time [s], and its peak [MiB] above the memory before it."""
    (_, before), start = measure_peak(int), time.process_time()
    _, peak = measure_peak(call)
    return [f"{time.process_time() - start:.2f}", f"{(peak - before) / MIB:.0f}"]
