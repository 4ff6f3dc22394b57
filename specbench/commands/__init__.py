"""The commands of ``specbench``, in one table.

A command is a module with ``main(argv) -> exit code``. It is imported when it is called, so that a
command without torch starts fast.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from specbench.input import InputError, require_directory
from specbench.names import VERSION, near, printable
from specbench.screen import DISK_FAULTS, DONE, FAILED, INTERRUPTED, fail, name_unwritten, shorten

DEFAULT = "run"


COMMANDS = {  # name -> its line of ``specbench --help``
    DEFAULT: "compare methods; the name may be left out: specbench model=tiny",
    "report": "the report of one run or of several, and the papers' figures next to it",
    "list": "the runs of results/: what, when, the best method, complete or not",
    "diff": "two runs: what they were set to, and their figures",
    "compare": "two methods of a run: how much faster one is, where, and why",
    "merge": "the parts of a run, made anywhere, become the run",
    "tune": "the parameters of a method with the best modelled speedup",
    "choose": "method and parameters for a GPU, a model and a load",
    "profile": "measure what a forward costs on this machine",
    "build": "a file that a method reads, from a text corpus",
    "fetch": "download the model and the questions of a run",
    "schema": "the JSON schema of a run's files: records, manifest",
    "completion": "what makes bash or zsh complete settings by the tab key",
}
EXAMPLES = """\
specbench                                              six methods on the bundled model, offline
specbench model.path=FOLDER_OR_HUB_ID 'method=[pld]'   any causal LM
specbench --dry-run model.path=FOLDER suite=gsm8k      what a run would do, and about how long
specbench COMMAND --help                               its options (of run: the settings)"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: the exit code of the command that the first word names, else of ``run``."""
    words = list(sys.argv[1:] if argv is None else argv)
    answer = {"--help": usage(), "-h": usage(), "--version": VERSION}.get(" ".join(words))
    first = words[0] if words else ""
    if first.isalpha() and first not in COMMANDS:
        return fail(f"{first}: no such command; {near(first, [*COMMANDS])}")
    name = words.pop(0) if first in COMMANDS else DEFAULT
    try:
        if answer:
            print(answer, flush=True)
            return DONE
        require_directory()
        return int(module_of(name).main(words))
    except InputError as error:
        return fail(str(error), f"specbench {name}")
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno not in DISK_FAULTS:
            raise
        text = f"{name_unwritten(error)}{error.strerror}; the same command can be repeated"
        print(printable(f"specbench {name}: {text}"), file=sys.stderr)
        return FAILED


def module_of(name: str) -> Any:
    """The module of a command, which has its name; ``list`` would hide a builtin."""
    return import_module(f"specbench.commands.{'runs' if name == 'list' else name}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable(shorten(message)))


def make_parser(name: str, text: str | None, **options: Any) -> argparse.ArgumentParser:
    """The parser of a command. text: its description, the docstring of its module, which is printed
    without marks.
    """
    return _Parser(prog=f"specbench {name}", description=(text or "").replace("``", ""), **options)


def usage() -> str:
    """The commands, a line each."""
    wide = max(map(len, COMMANDS))
    lines = [f"  {name:{wide}}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(["specbench [COMMAND] ARGUMENTS", "", *lines, "", EXAMPLES])
