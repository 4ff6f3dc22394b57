"""A call of the GPU day: its sections run in child processes, and the parent keeps what they measured.

An illegal memory access ends the CUDA context of its process, so sections that might cause one have a process of their
own. The child sends each row when it is measured; the parent, which never touches the GPU, writes the files and ends a
section at its limit. A fault of any kind therefore costs one section, from that row on.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import io
import json
import multiprocessing
import os
import signal
import tarfile
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from scripts.gpu_day.day import Day, Goal, Row, describe
from specbench.records.store import write_atomically

SDPA = "sdpa"
WEIGHTS = (".safetensors", ".bin", ".pt", ".npy", ".npz")
ARCHIVE_BYTES = 15 << 20  # of files before compression, so that an archive has at most 16 MiB
TAIL = 1500  # characters of a log
PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a call.

    estimate_s: on an H100. process: neighbours of the same name share a process and its model.
    needs: sections that must have found no fault, since this one times what they check.
    """

    name: str
    measure: Callable[[Day], Iterable[Row]]
    estimate_s: float
    process: str = SDPA
    needs: tuple[str, ...] = ()

    @property
    def limit_s(self) -> float:
        """[s] after which it is ended."""
        return 2 * self.estimate_s + 30


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception of a section. lost: the GPU's context ended with it."""

    error: str
    traceback: str
    lost: bool


@dataclass(slots=True)
class Found:
    """What a section measured until it ended. error: why it ended early. left_out: why it did not begin."""

    section: str
    rows: list[Row] = field(default_factory=list)
    error: str = ""
    traceback: str = ""
    left_out: str = ""
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """True if it ended and no goal is missed."""
        bad = [row for row in self.rows if isinstance(row, Goal) and row.verdict in ("missed", "failed")]
        return not (self.error or self.left_out or bad)

    def text(self) -> str:
        """Return its rows and its error as Markdown."""
        reason = f"failed: {self.error}" if self.error else f"left out: {self.left_out}" if self.left_out else ""
        return "\n\n".join(filter(None, (describe(self.rows), reason)))


def select(sections: Sequence[Section], only: Collection[str]) -> list[Section]:
    """Return the sections of ``only`` and those that they need; all of them if it is empty."""
    wanted = {name for each in sections if each.name in only for name in (each.name, *each.needs)}
    return [each for each in sections if each.name in wanted or not only]


class Call:
    """One call of the day.

    out: folder of the two results, ``<name>.md`` and ``<name>.tar.gz``. work: of everything else, which the archive has
    without weights. minutes: of the call; a section that would not end in them is left out.
    """

    def __init__(self, name: str, sections: Sequence[Section], out: Path, work: Path, minutes: float, rehearse: bool):
        self.name, self.sections, self.out, self.work, self.rehearse = name, sections, out, work, rehearse
        self.found: dict[str, Found] = {}
        self._end = time.monotonic() + 60 * minutes

    def run(self) -> bool:
        """Run the sections; returns False if one failed."""
        self.work.mkdir(parents=True, exist_ok=True)
        waiting = list(self.sections)
        while waiting:
            _, group = next(groupby(waiting, lambda section: section.process))
            waiting = waiting[self._run_group(list(group)) :]
        return not any(found.error for found in self.found.values())

    def _run_group(self, group: Sequence[Section]) -> int:
        """Run sections in one process; returns how many are done when it ends, the one that ended it among them."""
        log = self.work / f"{self.name}-{group[0].name}.log"
        context = multiprocessing.get_context("fork")  # the parent has imported everything, and used no GPU
        ours, theirs = context.Pipe()
        child = context.Process(target=_serve, args=(theirs, group, self.work, self.rehearse, log))
        child.start()
        theirs.close()
        try:
            for number, section in enumerate(group):
                found = self.found[section.name] = Found(section.name, left_out=self._explain_left_out(section))
                start = time.monotonic()
                lost = not found.left_out and self._run_section(section, number, found, ours, child, log)
                found.seconds = round(time.monotonic() - start, 2)
                self._write(section)
                if lost:
                    return number + 1
            return len(group)
        finally:
            _end(child)

    def _explain_left_out(self, section: Section) -> str:
        for name in section.needs:
            if not self.found[name].clean:
                return f"{name} found a fault"
        left = self._end - time.monotonic()
        return f"takes {section.estimate_s:g} s, {left:.0f} s are left" if left < section.estimate_s else ""

    def _run_section(
        self, section: Section, number: int, found: Found, pipe: Connection, child: Any, log: Path
    ) -> bool:
        """Collect a section's rows; returns whether its process is lost."""
        end = min(time.monotonic() + section.limit_s, self._end)
        try:
            pipe.send((number, end))
            while ready := wait([pipe, child.sentinel], max(0, end - time.monotonic())):
                if pipe not in ready:
                    break
                match pipe.recv():
                    case Failure() as failure:
                        found.error, found.traceback = failure.error, failure.traceback
                        return failure.lost
                    case None:
                        return False
                    case row:
                        found.rows.append(row)
            else:
                os.kill(child.pid, signal.SIGABRT)  # writes into the log where it is
                child.join(PATIENCE_S)
                found.error = f"did not end in time\n{_read_end(log)}"
                return True
        except (EOFError, OSError):
            pass
        child.join(PATIENCE_S)
        found.error = f"its process ended with exit code {child.exitcode}\n{_read_end(log)}"
        return True

    def _write(self, section: Section) -> None:
        """Write the section's file, the tables of all sections, and the archive."""
        found = self.found[section.name]
        known = {"call": self.name, "rehearsed": self.rehearse, **dataclasses.asdict(found), "rows": found.rows}
        (self.work / f"{self.name}-{section.name}.json").write_text(json.dumps(known, indent=1, default=_plain))
        print(f"{self.name} {section.name}, {found.seconds:.0f} s\n{found.text()}\n", flush=True)
        goals = [
            row for each in self.found.values() for row in each.rows if isinstance(row, Goal) and row.bound is not None
        ]
        texts = [f"## {name}\n\n{each.text()}\n" for name, each in self.found.items()]
        archive, left_out = pack(self.work)
        texts += [f"Not in the archive: {', '.join(left_out)}\n"] if left_out else []
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(
            self.out / f"{self.name}.md", "\n".join([f"# {self.name}: the goals\n", describe(goals), "", *texts])
        )
        write_atomically(self.out / f"{self.name}.tar.gz", archive)


def pack(folder: Path) -> tuple[bytes, list[str]]:
    """Return an archive of the folder's files without weights, the smallest first, and the names that do not fit."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in WEIGHTS]
    packed, left_out, size = io.BytesIO(), [], 0
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(files, key=lambda path: path.stat().st_size):
            name, size = str(path.relative_to(folder)), size + path.stat().st_size
            if size <= ARCHIVE_BYTES:
                archive.add(path, name)
            else:
                left_out.append(name)
    return packed.getvalue(), left_out


def _serve(pipe: Connection, group: Sequence[Section], work: Path, rehearse: bool, log: Path) -> None:
    """Measure, in the child, the sections that the parent names, and send their rows."""
    os.setsid()  # what it starts is ended with it
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable(2)
    day = Day(work, rehearse)
    while True:
        number, day.end = pipe.recv()
        try:
            for row in group[number].measure(day):
                pipe.send(row)
            pipe.send(None)
        except Exception as error:
            lost = False
            try:
                day.synchronize()
            except RuntimeError:
                lost = True
            pipe.send(Failure(f"{type(error).__name__}: {error}", traceback.format_exc(), lost))


def _end(child: Any) -> None:
    """End a process and what it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        child.kill()
    child.join()


def _read_end(log: Path) -> str:
    """The place where a process died, innermost call first, or the end of what it wrote."""
    text = log.read_text(errors="replace") if log.exists() else ""
    _, fatal, place = text.rpartition("Fatal Python error")
    return (fatal + place)[:TAIL] if fatal else text[-TAIL:]


def _plain(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Goal):
        return {**dataclasses.asdict(value), "verdict": value.verdict}
    raise TypeError(f"{type(value).__name__}: cannot be written as JSON")
