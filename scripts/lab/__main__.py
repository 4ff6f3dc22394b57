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
    "gpu": "the Triton kernels, the latency of each engine, and methods, on a GPU",
    "peers": "our methods timed against the loops of transformers",
    "overhead": "what a method costs per step in addition to the target's forward",
    "judge": "which faults the lossless check finds, and the effect of rounding",
    "kernels": "the resources of an H100 that the Triton kernels take, by the compiler",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code, 2 for wrong input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    verbatim = argparse.RawDescriptionHelpFormatter
    table = argparse.ArgumentParser(
        "python -m scripts.lab",
        description=f"{__doc__}\ncommands:\n{commands}",
        formatter_class=verbatim,
    )
    table.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    name = table.parse_args(arguments[:1]).command
    command = importlib.import_module(f"scripts.lab.{name}")
    parser = argparse.ArgumentParser(
        f"{table.prog} {name}", description=command.__doc__, formatter_class=verbatim
    )
    try:
        return command.run(parser, arguments[1:]) or 0
    except InputError as error:
        return fail(str(error), name)


if __name__ == "__main__":
    sys.exit(main())
