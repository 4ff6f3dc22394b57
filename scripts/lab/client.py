"""Measure the CPU time that a server's client takes per arriving event, at several numbers of concurrent requests.

    python -m scripts.lab client --requests 1,4,16
    python -m scripts.lab client --url http://HOST:8000 --tokenizer DIR --profile

Without --url the server is the tests' stand-in in another process, which sends an event each 10 ms to each request.
The client is the one of a run under load (load=closed). --profile prints the time by function.
"""

from __future__ import annotations

import contextlib
import cProfile
import itertools
import pstats
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scripts.lab.materials import Asked, print_table
from specbench.decode.loop import Request
from specbench.input import counts
from specbench.method import Remote
from specbench.models.facade import Target
from specbench.runs.job import job_of
from specbench.serving.remote import RemoteServer, serve_remote
from specbench.serving.scheduler import Served, Stretch

STAND_IN = Path(__file__).resolve().parents[2] / "tests/stand_in.py"
STEP_S = "0.01"
SHOWN = 20  # functions of a profile
ROOM = 1 << 20  # [tokens] of a request: more than any server's context


def run(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Print one row per number of concurrent requests."""
    parser.add_argument("--requests", type=counts, default=(1, 4, 16), help="at once")
    parser.add_argument("--answers", type=int, default=16, help="for each request at once")
    parser.add_argument("--limit", type=int, default=200, help="[tokens] of an answer")
    parser.add_argument("--url", help="of a running server")
    parser.add_argument("--tokenizer", default="bundled:tiny", help="of its model")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_intermixed_args(arguments)
    with contextlib.ExitStack() as stack:
        url = given.url
        if not url:
            command, pipe = [sys.executable, str(STAND_IN), STEP_S], subprocess.PIPE
            server = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
            stack.callback(server.communicate)
            assert server.stdout is not None
            url = server.stdout.readline().strip()
        job = job_of(["model=server", f"model.tokenizer={given.tokenizer}", f"method.vanilla.url={url}", "method=[]"])
        method = next(entry.method for entry in job.entries)
        assert isinstance(method, Remote)
        assert job.source.prompts is not None
        method.bind(Target(job.source.card, None, 64, None))
        stack.callback(method.close)
        prompts = [job.source.prompts.ids(case.turns[:1], []) for case in job.source.suite.cases]
        profile = stack.enter_context(cProfile.Profile()) if given.profile else None
        costs = ((requests, measure_client(method, prompts, given.limit, requests, given.answers * requests))
                 for requests in given.requests)  # fmt: skip
        rows = ([requests, cost.events, f"{cost.events / cost.wall_s:.0f}", f"{1e6 * cost.cpu_s / cost.events:.0f}",
                 f"{cost.cpu_s / cost.wall_s:.1%}"] for requests, cost in costs)  # fmt: skip
        print_table(("requests at once", "events", "events a second", "CPU us an event", "of a core"), rows, left=())
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(SHOWN)


@dataclass(frozen=True, slots=True)
class ClientCost:
    """The cost of a closed loop. events: that arrived, with ``tokens``. cpu_s: user and system time of this process."""

    events: int
    tokens: int
    wall_s: float
    cpu_s: float


def measure_client(
    method: Remote, prompts: Sequence[Sequence[int]], limit: int, requests: int, answers: int
) -> ClientCost:
    """Run a closed loop of ``requests`` at once until ``answers`` have ended, as a run under load does.

    The prompts are used in turn, again and again; ``limit`` is the length [tokens] of an answer. Raises CaseError if a
    request fails.
    """
    questions = (Asked(method, Request(prompt, limit, None, 0)) for prompt in itertools.cycle(prompts))

    async def ask() -> Served:
        server = RemoteServer(frozenset(), ROOM)
        try:
            return await serve_remote(server, questions, None, Stretch(requests, 0, answers))
        finally:
            await server.end()

    method.prepare(alone=False)
    start = np.array([time.perf_counter(), time.process_time()])
    served = method.run(ask())
    wall_s, cpu_s = np.array([time.perf_counter(), time.process_time()]) - start
    bursts = [tokens for visit in served.visits for _, tokens in visit.admitted.bursts]
    return ClientCost(len(bursts), sum(bursts), wall_s, cpu_s)
