"""A case of bad input: a command, the files that it finds, the words of its message, and its exit code."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

DEEP = "[" * 100_000  # JSON that no parser may follow
Files = Mapping[str, str | bytes] | Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Bad:
    """command: program and arguments; paths in it are relative to the folder that files are written into.

    words: each stands in the message. files: name -> content, or what writes them into a folder. code: the exit code.
    loads: whether weights may be loaded.
    """

    name: str
    command: tuple[str, ...]
    words: tuple[str, ...]
    files: Files
    code: int
    loads: bool

    def write(self, folder: Path) -> None:
        if not isinstance(self.files, Mapping):
            self.files(folder)
            return
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def bad(
    arguments: str, *words: str, name: str = "", files: Files | None = None, code: int = 2, loads: bool = False
) -> Bad:
    """Of ``specbench ARGUMENTS``, into the directory ``run``; with ``method=[pld]`` where no methods are chosen."""
    given = shlex.split(arguments)
    if not any(item.startswith("method=") for item in given):
        given.insert(0, "method=[pld]")
    command = tuple(given)
    if not any(item.startswith("hydra.run.dir=") for item in given):
        command += ("hydra.run.dir=run",)
    return Bad(name or arguments, command, words, files or {}, code, loads)


def bad_report(arguments: str, *words: str, name: str = "", files: Files | None = None, code: int = 2) -> Bad:
    """Of ``specbench report ARGUMENTS``."""
    return Bad(name or arguments, ("report", *shlex.split(arguments)), words, files or {}, code, False)
