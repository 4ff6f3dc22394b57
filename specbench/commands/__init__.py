"""The commands of ``specbench``, in one table.

A command is a module with ``main(argv) -> exit code``. It is imported when it is called, so that a command without
torch starts fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from specbench import __version__
from specbench.input import InputError
from specbench.names import near
from specbench.screen import DONE, INTERRUPTED, fail

DEFAULT = "run"


@dataclass(frozen=True, slots=True)
class Command:
    """module: has its ``main``. what: its line of ``specbench --help``."""

    module: str
    what: str


COMMANDS = {
    DEFAULT: Command("specbench.commands.run", "compare methods; the name may be left out: specbench model=tiny"),
    "report": Command(
        "specbench.commands.report", "the report of one run or of several, and the papers' figures next to it"
    ),
    "list": Command("specbench.commands.runs", "the runs of results/: what, when, the best method, complete or not"),
    "diff": Command("specbench.commands.diff", "two runs: what they were set to, and their figures"),
    "compare": Command("specbench.commands.compare", "two methods of a run: how much faster one is, where, and why"),
    "merge": Command("specbench.commands.merge", "the parts of a run, made anywhere, become the run"),
    "tune": Command("specbench.commands.tune", "the parameters of a method with the best modelled speedup"),
    "choose": Command("specbench.commands.choose", "method and parameters for a GPU, a model and a load"),
    "profile": Command("specbench.commands.profile", "measure what a forward costs on this machine"),
    "build": Command("specbench.commands.build", "a file that a method reads, from a text corpus"),
    "fetch": Command("specbench.commands.fetch", "download the model and the questions of a run"),
    "completion": Command("specbench.commands.completion", "what makes bash or zsh complete settings by the tab key"),
}
EXAMPLES = """\
specbench                                              the bundled model on the bundled suite, offline
specbench model.path=FOLDER_OR_HUB_ID 'method=[pld]'   any causal LM
specbench --dry-run model.path=FOLDER suite=gsm8k       what a run would do, and about how long
specbench COMMAND --help                               its options; specbench run --help lists the settings"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: the exit code of the command that the first word names, else of ``run``."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words in (["--help"], ["-h"]):
        print(usage())
        return DONE
    if words == ["--version"]:
        print(__version__)
        return DONE
    first = words[0] if words else ""
    if first.isalpha() and first not in COMMANDS:
        return fail(f"{first}: no such command; {near(first, [*COMMANDS])}")
    name = words.pop(0) if first in COMMANDS else DEFAULT
    try:
        return int(import_module(COMMANDS[name].module).main(words))
    except InputError as error:
        return fail(str(error), f"specbench {name}")
    except KeyboardInterrupt:
        return INTERRUPTED


def usage() -> str:
    """The commands, a line each."""
    wide = max(map(len, COMMANDS))
    lines = [f"  {name:{wide}}  {command.what}" for name, command in COMMANDS.items()]
    return "\n".join(["specbench [COMMAND] ARGUMENTS", "", *lines, "", EXAMPLES])
