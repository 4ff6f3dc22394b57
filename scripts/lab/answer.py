r"""Measure what a long answer costs apart from the model: time and memory of its steps, records, report and check.

    python -m scripts.lab answer 'method=[pld]' --tokens 4096 32768 --judge model=tiny \
        'model.overrides={max_position_embeddings: 65536, rope_parameters: {rope_type: linear, factor: 16}}'

The first arguments are those of ``specbench``. A recorded answer of phrases that repeat is replayed and reported with
plots and page; the model of ``--judge`` computes the lossless check. Memory is the high-water mark of Linux above the
memory before.
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scripts.lab.materials import MIB, load_engine, print_table, repeating_tokens
from scripts.lab.memory import measure_peak
from specbench.models.engine import Engine
from specbench.records.store import RECORDS
from specbench.report import build_report
from specbench.runs.execution import execute
from specbench.runs.job import job_of

PROMPT, FIRST, VOCAB = 64, 256, 2048


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print one row per answer and part; a short answer comes first and is not printed."""
    parser.add_argument("overrides", nargs="*", help="of specbench: method=...")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4_096, 32_768], help="of the answer")
    parser.add_argument("--judge", nargs="+", help="settings of a model; without them the answer is not checked")
    given = parser.parse_intermixed_args(arguments)
    engine = load_engine([*given.judge, "method=[]", "suite.limit=1"], 64)[2] if given.judge else None
    list(rows_of(FIRST, given.overrides, engine))
    rows = ([count, *cells] for count in sorted(given.tokens) for cells in rows_of(count, given.overrides, engine))
    print_table(("answer", "part", "CPU s", "MiB"), rows, left=(1,))


def rows_of(count: int, overrides: Sequence[str], engine: Engine | None) -> Iterator[list[str]]:
    """Yield the parts of an answer of ``count`` tokens: name, CPU time [s], and peak [MiB] above the memory before."""
    text = repeating_tokens(PROMPT + count, VOCAB)
    prompt, ids = text[:PROMPT], text[PROMPT:]

    def cost(call: Callable[[], Any]) -> list[str]:
        (_, before), start = measure_peak(int), time.process_time()
        _, peak = measure_peak(call)
        return [f"{time.process_time() - start:.2f}", f"{(peak - before) / MIB:.0f}"]

    with tempfile.TemporaryDirectory() as folder:
        trace, run = Path(folder, "trace.jsonl"), Path(folder, "run")
        trace.write_text(json.dumps({"case": "1", "turns": [{"prompt_ids": prompt, "ids": ids}]}) + "\n")
        settings = ["model=replay", f"model.trace={trace}", "model.tokenizer=bundled:tiny"]
        job = job_of([*settings, f"decode.max_new_tokens={count}", *overrides])
        yield ["decoded and written", *cost(partial(execute, job, run, lambda *_: None))]
        yield ["records on disk", "", f"{(run / RECORDS).stat().st_size / MIB:.1f}"]
        yield ["report", *cost(partial(build_report, [run]))]
        if engine is not None:
            yield ["checked", *cost(partial(engine.gaps, prompt, ids))]
