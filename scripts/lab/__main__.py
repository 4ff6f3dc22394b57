"""Measure and check the harness and the machine.

python -m scripts.lab COMMAND [options]
python -m scripts.lab COMMAND --help
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from specbench.input import InputError
from specbench.screen import fail

COMMANDS = {
    "peers": "our methods timed against the loops of transformers and of other runtimes",
    "forwards": "compiled code against torch's operations for a draft's forward on a CPU",
    "batches": "steps of several requests that share forwards, and other runtimes' batches",
    "overhead": "what a method costs a step in addition to the target's forward",
    "drafters": "time and memory of drafters alone, without a target",
    "replay": "what the harness costs a step of a replay",
    "memory": "peak memory of a long request, against its bound",
    "answer": "time and memory of a long answer's records, report and judgement",
    "judge": "which faults the judge of losslessness finds, and what rounding does",
    "kernels": "what the Triton kernels take of an H100, by the compiler",
    "servers": "a real serving engine started, and its rows compared with this harness's runtime",
    "client": "CPU time of the client of a server for an event",
    "load": "recorded requests served on a simulated clock",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code, 2 for wrong input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    table = argparse.ArgumentParser(
        "python -m scripts.lab",
        description=f"{__doc__}\ncommands:\n{commands}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    table.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    name = table.parse_args(arguments[:1]).command
    command = importlib.import_module(f"scripts.lab.{name}")
    parser = argparse.ArgumentParser(
        f"{table.prog} {name}", description=command.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_options(parser)
    given = parser.parse_intermixed_args(arguments[1:])
    try:
        return command.run(given) or 0
    except InputError as error:
        return fail(str(error), name)


if __name__ == "__main__":
    sys.exit(main())
