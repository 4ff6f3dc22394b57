"""A kind of bad input, and the finished runs and files that kinds are made of.

A kind states what must happen: it is refused (exit code 2, or 1 for a server's row, and a message with one of its
words), it does no harm (``ANY``: refused as well, or done), or it is valid and done (``DONE``), which shows that the
others of its place are refused for their faults.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench import commands
from specbench.input import InputError
from specbench.report.exchange.formats import FORMATS
from specbench.runs.config import PACKAGE, list_options

REFUSED, ANY, DONE = "refused", "any", "done"
NONE = "none"  # the fault of a valid input, which must be done
PYTHON = "python"
TINY = PACKAGE / "assets/tiny"
SMALL = ("model=tiny", "suite.first=2", "measure=quick", "decode.max_new_tokens=8", "report.plots=false",
         "model.threads=1", "engine.compiled=false")  # fmt: skip
HERE = "hydra.run.dir=run"
ALONE = (*SMALL, "method=[pld]")
DRY = "--dry-run"
REPORT = ("report", "run", "--no-plots")


@dataclass(frozen=True, slots=True)
class Fixture:
    """What kinds are made of. folder: finished runs and files. usable: the methods that run here."""

    folder: Path
    usable: tuple[str, ...]

    def json(self, name: str) -> Any:
        """The first JSON value of a file."""
        text = (self.folder / name).read_text()
        return json.loads(text.splitlines()[0] if name.endswith("l") else text)


Lay = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of bad input.

    command: of ``specbench``; or PYTHON and a program. expected: REFUSED, ANY or DONE. words: the message has one.
    copies: folders of the fixture. files: what writes the other files. inside: what the process does first. outputs,
    changes: where it may write, and what it may change.
    """

    group: str
    place: str
    fault: str
    command: tuple[str, ...]
    expected: str
    words: tuple[str, ...]
    copies: tuple[str, ...] = ()
    files: Mapping[str, Lay] = field(default_factory=dict, hash=False, compare=False)
    inside: Callable[[], object] | None = field(default=None, hash=False, compare=False)
    outputs: tuple[str, ...] = ("run",)
    changes: tuple[str, ...] = ("run/summary.csv",)

    @property
    def name(self) -> str:
        """GROUP/PLACE: FAULT."""
        return f"{self.group}/{self.place}: {self.fault}"

    def lay(self, folder: Path, fixture: Fixture) -> None:
        """Write its files into a folder."""
        for name in self.copies:
            shutil.copytree(fixture.folder / name, folder / name, symlinks=True)
        os.mkfifo(folder / "pipe")
        for name, write in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            write(path)


def prepare(folder: Path, apart: Callable[[Callable[[], None]], object]) -> Fixture:
    """Make the finished runs and files that kinds are made of. apart: makes a call in another process."""
    folder.mkdir()

    def make() -> None:
        os.chdir(folder)
        for name, settings in {"run": (), "other": ("decode.seed=1",)}.items():
            assert commands.main([*ALONE, *settings, f"hydra.run.dir={folder / name}"]) == 0
        for part in (1, 2):
            named = f"suite.part={part}/2", f"hydra.run.dir={folder / f'part{part}'}"
            assert commands.main([*ALONE, *named]) == 0
        for name in FORMATS:
            assert commands.main(["report", "run", "--export", name, "--output", f"exported/{name}"]) == 0
        assert commands.main(["report", "run", "--export-answers", "answers"]) == 0
        (folder / "corpus.txt").write_text("The quick brown fox.\n" * 50)
        words = "automaton --tokenizer bundled:tiny --out automaton.safetensors corpus.txt"
        assert commands.main(["build", *words.split()]) == 0
        for run in (*folder.glob("part?"), folder / "run", folder / "other"):
            for path in run.iterdir():  # its report
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.suffix not in (".jsonl", ".json", ".csv"):
                    path.unlink()
        (folder / "usable.json").write_text(json.dumps([name for name in list_options("method") if runs_here(name)]))

    apart(make)
    for name, source in {"model": TINY, "head": PACKAGE / "assets/tiny_eagle"}.items():
        (folder / name).mkdir()
        for path in source.iterdir():
            (folder / name / path.name).symlink_to(path)
    return Fixture(folder, tuple(json.loads((folder / "usable.json").read_text())))


def runs_here(method: str) -> bool:
    """Whether a method can run on this machine with the bundled model."""
    from specbench.runs.job import job_of

    try:
        job_of([*SMALL, f"method=[{method}]"])
    except InputError:
        return False
    return True


def holds(content: str | bytes) -> Lay:
    """Return what writes a content."""
    return lambda path: path.write_bytes(
        content.encode(errors="surrogatepass") if isinstance(content, str) else content
    )
