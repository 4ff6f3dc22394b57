"""What the client of a server costs: CPU time of this process for an event that comes in, at several requests at once.

    python scripts/measure_client.py --requests 1,4,16
    python scripts/measure_client.py --url http://HOST:8000 --tokenizer DIR --profile

Without --url the server is the tests' stand-in in another process, which sends an event each 10 ms to each request.
The client is that of a run under load (load=closed). --profile: where the time goes, by function.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import pstats
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.lab.client import HEADER, measure_client
from specbench.input import counts
from specbench.method import Remote
from specbench.models.facade import Target
from specbench.runs.cli import job_of
from specbench.screen import with_exit_code

STAND_IN = Path(__file__).resolve().parents[1] / "tests/stand_in.py"
STEP_S = "0.01"
SHOWN = 20  # functions of a profile


@contextlib.contextmanager
def stand_in() -> Iterator[str]:
    """The URL of a server in another process."""
    command = [sys.executable, str(STAND_IN), STEP_S]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


@with_exit_code
def main() -> None:
    """Print a row a number of requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=counts, default=(1, 4, 16), help="at once")
    parser.add_argument("--answers", type=int, default=16, help="for each request at once")
    parser.add_argument("--limit", type=int, default=200, help="[tokens] of an answer")
    parser.add_argument("--url", help="of a server that runs")
    parser.add_argument("--tokenizer", default="bundled:tiny", help="of its model")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = given.url or stack.enter_context(stand_in())
        job = job_of(["model=server", f"model.tokenizer={given.tokenizer}", f"method.vanilla.url={url}", "method=[]"])
        method = next(entry.method for entry in job.entries)
        assert isinstance(method, Remote)
        method.bind(Target(job.card, None, 64, None))
        stack.callback(method.close)
        prompts = [job.prompts.ids(case.turns[:1], []) for case in job.suite.cases]
        profile = stack.enter_context(cProfile.Profile()) if given.profile else None
        print(HEADER)
        for requests in given.requests:
            print(measure_client(method, prompts, given.limit, requests, given.answers * requests), flush=True)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(SHOWN)


if __name__ == "__main__":
    sys.exit(main())
