"""Inject faults into runs, reports and profiles, and show that the same command recovers from each.

    python -m scripts.lab faults --count 1000
    python -m scripts.lab faults --kinds grown merged --faults kill "full disk" --count 50

A try makes a folder with what the command finds, runs the command in a forked process, and strikes one operation on the
disk, or a random moment. Then the same command runs without a fault. Its exit code, records (less times), manifest and
files are compared with those of an undisturbed command; the disturbed one's records too if it reported success. A
quarter of the repeated commands gets a second fault.

Prints one row per kind of run and of fault, and how to repeat each failure. A signal at a moment is repeated only
approximately. Ctrl-C ends the tries and prints their table. Exit code 1 if a try failed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import hashlib
import io
import json
import os
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import specbench.report.build
import specbench.report.tables.terminal  # noqa: F401 (a forked process pays for no import)
from scripts.lab.disk import FAULTS, HALF, WRITE, ClockForward, Disk, Fault, Operation, Signal
from scripts.lab.forked import fork
from scripts.lab.materials import print_table
from specbench.commands import main
from specbench.measure import environment
from specbench.records.store import MANIFEST, RECORDS, SHARDS
from specbench.runs import composition
from specbench.screen import DONE, FAILED

TRACE = "trace.jsonl"
LONGEST_S = 60  # of a command
SECOND = 0.25  # chance of a fault in the repeated command
AT_A_MOMENT = 0.3  # chance that a signal comes at a moment instead of an operation
CASES = 3
_REPLAY = ("model=replay", f"model.trace={TRACE}", "model.tokenizer=bundled:tiny", "report.plots=false")
_TINY = ("model=tiny", "model.threads=1", "suite.first=2", "measure=quick", "decode.max_new_tokens=6")
_RUN = "hydra.run.dir=r"
_NUMBER = re.compile(rb"-?\d[\d.e+-]*")
_PASSING = ("created", "processes", "machine", "git", "versions", "threads")  # of a manifest: facts of a process
STORE = (RECORDS, MANIFEST)


def fail_case() -> None:
    """Make the second block's drafts an error, as if the method had failed in it."""
    lines = [json.loads(line) for line in Path("r", RECORDS).read_text().splitlines()]
    for each in lines:
        if each["block"] == 1 and each["method"] == "pld":
            error = {"type": "RuntimeError", "message": "failed", "traceback": "", "turn": 0}
            each |= {"status": "error", "turns": [], "error": error, "lossless": None}
    Path("r", RECORDS).write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in lines))


@dataclass(frozen=True, slots=True)
class Kind:
    """A command that is struck. before: the commands that make what it finds. weight: of the tries."""

    command: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    edit: Callable[[], None] | None = None
    weight: float = 1.0


_PLD = (*_REPLAY, "method=[pld]", _RUN)
_HALVES = tuple((*_REPLAY, "method=[pld]", f"suite.part={k}/2", f"hydra.run.dir=half_{k}") for k in (1, 2))
KINDS: Mapping[str, Kind] = {
    "plain": Kind((*_TINY, "method=[pld]", "report.plots=false", _RUN), weight=0.5),
    "replayed": Kind((*_REPLAY, "method=[pld,sam]", _RUN)),
    "grown": Kind((*_REPLAY, "method=[pld,sam]", "measure.rounds=2", _RUN), (_PLD,)),
    "retried": Kind((*_PLD, "run.retry=true"), (_PLD,), fail_case),
    "merged": Kind(("merge", "half_1", "half_2", "--out", "r"), _HALVES),
    "sharded": Kind((*_PLD, "run.shards=2")),
    "loaded": Kind((*_PLD, "load=closed", "load.requests=2", "load.block=2")),
    "report": Kind(("report", "r", "--no-plots", "--output", "out"), (_PLD,)),
    "profile": Kind(
        ("profile", "model=tiny", "model.threads=1", "--fed", "1,2", "--contexts", "25", "--rounds", "1", "--out", "p"),
        weight=0.2,
    ),
}


def run(parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Print the table and the failures; returns the exit code."""
    parser.add_argument("--count", type=int, default=1000, help="faults that strike")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first try")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], metavar="KIND", help=", ".join(KINDS))
    parser.add_argument(
        "--faults", nargs="+", choices=FAULTS, default=[*FAULTS], metavar="FAULT", help=", ".join(FAULTS)
    )
    parser.add_argument("--path", default="", help="strike operations on files with this in their path, at no moment")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    given = parser.parse_args(arguments)
    start = time.monotonic()
    choice = Choice(given.kinds, given.faults, given.seed, given.path)
    tries = inject(given.count, choice, given.first, given.jobs)
    rows: dict[tuple[str, str], Counter[str]] = {
        (kind, fault): Counter() for kind in given.kinds for fault in given.faults
    }
    for each in tries:
        for fault in each.faults:
            rows[each.kind, fault].update(injected=1, recovered=int(not each.wrong))
        rows[each.kind, each.faults[0]].update(each.wrong)
    columns = ("injected", "recovered", *COUNTED)
    shown = [[*key, *(row[name] for name in columns)] for key, row in rows.items() if row]
    total = ["all", "all", *(sum(row[name] for row in rows.values()) for name in columns)]
    print_table(("run", "fault", *columns), [*shown, total], left=(0, 1))
    failed = [each for each in tries if each.wrong]
    print(f"\n{total[2]} faults in {time.monotonic() - start:.0f} s, {len(failed)} tries failed")
    for each in failed:
        again = f"--seed {given.seed} --first {each.number} --count 1 --jobs 1"
        chosen = "" if given.kinds == [*KINDS] else f" --kinds {' '.join(given.kinds)}"
        chosen += "" if given.faults == [*FAULTS] else " --faults " + " ".join(map(repr, given.faults))
        chosen += f" --path {given.path}" if given.path else ""
        print(f"\n{each.kind}: {'; '.join(each.struck)}\n  again: python -m scripts.lab faults {again}{chosen}")
        print("".join(f"  {line}\n" for line in each.found), end="")
    return FAILED if failed else DONE


@dataclass(frozen=True, slots=True)
class Choice:
    """The kinds of runs and faults to draw from. path: a part of the paths that are struck."""

    kinds: Sequence[str]
    faults: Sequence[str]
    seed: int = 0
    path: str = ""


COUNTED = ("not ended", "lost", "doubled", "changed", "left over", "tracebacks")


@dataclass(slots=True)
class Try:
    """A try: the faults that struck, what they struck, what is wrong by kind (``COUNTED``), and examples."""

    number: int
    kind: str
    faults: list[str] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    wrong: dict[str, int] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)

    def blame(self, what: str, names: Sequence[object]) -> None:
        """Count something wrong."""
        if names:
            self.wrong[what] = self.wrong.get(what, 0) + len(names)
            self.found += [f"{what}: {name}" for name in names[:3]]


def inject(count: int, choice: Choice, first: int = 0, jobs: int | None = 1) -> list[Try]:
    """Strike with ``count`` faults; returns the tries in which one has struck, by their numbers."""
    torch.set_num_threads(1)
    shares = [count // (jobs or 1) + (job < count % (jobs or 1)) for job in range(jobs or 1)]
    pipes = []
    for job, share in enumerate(shares):
        numbers = range(first + job, first + max(100, 20 * count), len(shares))
        pipes.append(Forked(functools.partial(_work, share, choice, numbers)))
    for pipe in pipes:
        with contextlib.suppress(KeyboardInterrupt):  # the processes end with the tries that they have made
            pipe.wait()
        if pipe.code is None:
            pipe.wait()
    if any(pipe.code for pipe in pipes):
        raise RuntimeError("a process of the tries has ended")
    tries = [Try(**each) for pipe in pipes for each in json.loads(pipe.received)]
    return sorted(tries, key=lambda each: each.number)


def _work(count: int, choice: Choice, numbers: Sequence[int], send: Callable[[bytes], None]) -> None:
    """Make tries until ``count`` faults have struck, in a folder of this process."""
    found: list[Try] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as home:
        _settle()
        gc.unfreeze = lambda: None
        places = {kind: Place(Path(home).resolve(), kind) for kind in choice.kinds}
        with contextlib.suppress(KeyboardInterrupt):
            for number in numbers:
                if sum(len(each.faults) for each in found) >= count:
                    break
                draw = random.Random(f"{choice.seed} {number}")
                kind = draw.choices(choice.kinds, [KINDS[kind].weight for kind in choice.kinds])[0]
                one = places[kind].strike(number, draw, choice)
                found += [one] if one.faults else []
    send(json.dumps([asdict(each) for each in found]).encode())


def _settle() -> None:
    """Do once what each command would do again: a configuration is composed, the state of git is read."""
    compose = functools.cache(composition.compose_config)
    composition.compose_config = lambda name, overrides: copy.deepcopy(compose(name, tuple(overrides)))
    environment.git_state = lambda folder: {}
    environment.spell_busy = lambda: ""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Forked:
    """A forked process that writes bytes for this one."""

    def __init__(self, call: Callable[[Callable[[bytes], None]], int | None], log: Path | None = None) -> None:
        """call: gets the function that writes; returns the exit code. log: gets what it prints."""
        self.received = b""
        self.code: int | None = None
        self._pipe, writes = os.pipe()

        def send(text: bytes) -> None:
            with open(writes, "wb", closefd=False) as file:
                file.write(text)

        self.process = fork(lambda: call(send), log)
        os.close(writes)

    def begun(self) -> bool:
        """Wait for the first byte; returns False."""
        self.received += os.read(self._pipe, 1)
        return False

    def wait(self, limit_s: float | None = None) -> bool:
        """Read what is written until the end; returns whether it has come in time."""
        end = time.monotonic() + (limit_s or 0)
        while select.select([self._pipe], [], [], limit_s and max(0, end - time.monotonic()))[0]:
            if not (some := os.read(self._pipe, 1 << 16)):
                os.close(self._pipe)
                self.code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
                return True
            self.received += some
        return False


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command. code: negative after a signal. struck: whether the fault has."""

    code: int
    struck: bool
    output: str
    operations: list[Operation]


class Place:
    """The folder of a kind of run: what its command finds, and what an undisturbed one leaves."""

    def __init__(self, home: Path, kind: str) -> None:
        self.kind, self.name, self._home = KINDS[kind], kind, home / kind
        self._folder, self._kept = home / kind / "now", home / kind / "kept"

    @functools.cached_property
    def undisturbed(self) -> tuple[Snapshot, Ended, float]:
        """What the command leaves, its end with its operations, and its time [s]."""
        self._folder.mkdir(parents=True)
        (self._folder / "tmp").mkdir()
        os.chdir(self._folder)
        (self._folder / TRACE).write_text("".join(json.dumps(line) + "\n" for line in _trace()))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            for command in self.kind.before:
                assert main(command) == DONE, command
            if self.kind.edit:
                self.kind.edit()
            shutil.copytree(self._folder, self._kept, symlinks=True)
            assert main(self.kind.command) == DONE, self.kind.command
        one = Snapshot.take(self._folder)
        gc.freeze()
        self.command(ClockForward(0))  # caches are filled
        start = time.monotonic()
        ended = self.command(ClockForward(0))  # on another day
        assert ended.code == DONE, ended.output
        return one.common(Snapshot.take(self._folder)), ended, time.monotonic() - start

    def command(self, fault: Fault, moment_s: float | None = None, again: bool = False) -> Ended:
        """Run the command. moment_s: when a fault that is a signal strikes. again: in what is there."""
        if not again:
            os.chdir(self._home)
            shutil.rmtree(self._folder)
            shutil.copytree(self._kept, self._folder, symlinks=True)
        os.chdir(self._folder)
        log = self._home / "log"
        forked = Forked(functools.partial(self._run, fault), log)
        struck, ended = False, forked.begun()
        if moment_s is not None and isinstance(fault, Signal) and not (ended := forked.wait(moment_s)):
            os.kill(forked.process, fault.signal)
            struck = True
        if not ended and not forked.wait(LONGEST_S):
            os.kill(forked.process, signal.SIGKILL)
            forked.wait()
        signs, _, listed = forked.received.partition(b"[")
        operations = [Operation(*each) for each in json.loads(b"[" + listed)] if listed else []
        return Ended(forked.code or DONE, struck or b"!" in signs, log.read_text(errors="replace"), operations)

    def _run(self, fault: Fault, send: Callable[[bytes], None]) -> int:
        tempfile.tempdir = str(self._folder / "tmp")
        fault.fired = lambda: send(b"!")
        disk = Disk(self._folder, fault)
        code = FAILED
        try:
            send(b".")
            code = main(self.kind.command)
        finally:
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(each, signal.SIG_IGN)
            operations = [(made.kind, made.path) for made in disk.operations]
            fault.number = -1
            fault.end(self._folder)
            sys.stdout.flush()
            send(json.dumps(operations).encode())
        return code

    def strike(self, number: int, draw: random.Random, choice: Choice) -> Try:
        """Make a try with a fault that is drawn, and compare."""
        done = Try(number, self.name)
        expected, reference, _ = self.undisturbed
        ended = self._disturb(done, draw, choice, again=False)
        if not done.faults:
            return done
        if ended.code == DONE:
            expected.records_only().compare(Snapshot.take(self._folder).records_only(), done, "after success: ")
        if draw.random() < SECOND:
            self._disturb(done, draw, choice, again=True)
        ended = self.command(Fault(), again=True)
        if ended.code != reference.code:
            done.blame("not ended", [f"exit code {ended.code}: {' / '.join(ended.output.splitlines()[-3:])}"])
        expected.compare(Snapshot.take(self._folder), done)
        return done

    def _disturb(self, done: Try, draw: random.Random, choice: Choice, again: bool) -> Ended:
        """Run the command with a fault that is drawn."""
        _, reference, lasts_s = self.undisturbed
        name = draw.choice(choice.faults)
        kind = FAULTS[name]
        groups: dict[tuple[str, str], list[int]] = {}
        for number, each in enumerate(reference.operations):
            if each.kind in kind.strikes and choice.path in each.path:
                groups.setdefault((each.kind, "/".join(Path(each.path).parts[:2])), []).append(number)
        if not groups:
            return Ended(DONE, False, "", [])
        own = [group for group in groups if Path(group[1]).name.strip(".").startswith(STORE)]
        chosen = draw.choice(own if own and draw.random() < 0.5 else [*groups])  # as often the files of records
        number = draw.choice(groups[chosen])
        struck = reference.operations[number]
        place = draw.choice([each for each in kind.places if each != HALF or struck.kind == WRITE] or [*kind.places])
        moment_s = None
        if not choice.path and issubclass(kind, Signal) and draw.random() < AT_A_MOMENT:
            moment_s, number = lasts_s * draw.random(), -1
        ended = self.command(kind(number, place), moment_s, again)
        if ended.struck:
            done.faults.append(name)
            done.struck.append(
                f"{name} {f'{place} {struck.kind} {struck.path}' if moment_s is None else f'at {moment_s:.3f} s'}"
            )
            if "Traceback (most recent call last)" in ended.output:
                done.blame("tracebacks", [" / ".join(ended.output.splitlines()[-3:])])
            if ended.code == -signal.SIGKILL != -getattr(kind, "signal", 0):
                done.blame("not ended", [f"no end in {LONGEST_S} s"])
        return ended


def _trace() -> Iterator[dict[str, Any]]:
    """Yield recorded answers that repeat themselves, later ones longer."""
    for case in range(CASES):
        ids = [5, 6, 7 + case, 5, 6, 7 + case, 5] * (1 + case)
        yield {
            "case": str(case),
            "category": "ab"[case % 2],
            "turns": [{"prompt_ids": [1, 5, 6, 7 + case], "ids": ids}],
        }


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A folder. records: (file, case, method, round) -> each record without times. files: path -> contents.

    The contents are those of a file, with masked numbers, and with nothing: two undisturbed commands agree in some.
    """

    records: dict[tuple[str, ...], list[str]]
    files: dict[str, tuple[str, ...]]

    @classmethod
    def take(cls, folder: Path) -> Snapshot:
        """Read a folder."""
        records: dict[tuple[str, ...], list[str]] = {}
        files: dict[str, tuple[str, ...]] = {}
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if path.is_symlink():
                files[name] = ("link" if SHARDS in path.parts else f"link to {path.readlink()}",)  # to the last shard
            elif path.name == RECORDS:
                files[name] = ("records",)
                for line in path.read_bytes().splitlines(keepends=True):
                    key, value = _record(line)
                    records.setdefault((name, *key), []).append(value)
            elif path.name == MANIFEST:
                files |= {f"{name}: {key}": (value,) for key, value in _manifest(path).items()}
            elif path.suffix in (".log", ".yaml"):  # of each process
                files[name] = ("log",)
            else:
                files[name] = _contents(path) if path.is_file() else ("folder",)
        return cls(records, files)

    def common(self, other: Snapshot) -> Snapshot:
        """Keep of each file what two undisturbed commands have in common."""
        assert self.records == other.records, "two undisturbed commands have different records"
        assert self.files.keys() == other.files.keys(), self.files.keys() ^ other.files.keys()
        return Snapshot(self.records, {name: _shared(one, other.files[name]) for name, one in self.files.items()})

    def records_only(self) -> Snapshot:
        """Leave out the files."""
        return Snapshot(self.records, {})

    def compare(self, other: Snapshot, done: Try, when: str = "") -> None:
        """Blame a try for the differences between this, which is expected, and what its command left."""
        named = {what: [] for what in COUNTED}  # type: dict[str, list[object]]
        for key, expected in self.records.items():
            found = other.records.get(key, [])
            named["lost"] += [f"{when}record {key}"] if len(found) < len(expected) else []
            named["doubled"] += [f"{when}record {key}"] if len(found) > len(expected) else []
            named["changed"] += [f"{when}record {key}"] if len(found) == len(expected) and found != expected else []
        named["left over"] += [f"{when}record {key}" for key in other.records.keys() - self.records.keys()]
        named["lost"] += [f"{when}{name}" for name in sorted(self.files.keys() - other.files.keys())]
        named["left over"] += [f"{when}{name}" for name in sorted(other.files.keys() - self.files.keys())]
        for name, contents in self.files.items():
            if name in other.files and _shared(contents, other.files[name]) != contents:
                named["changed"].append(f"{when}{name}")
        for what, names in named.items():
            done.blame(what, names)


def _record(line: bytes) -> tuple[tuple[str, ...], str]:
    """Key and contents of a record; of a line that is none, the line."""
    try:
        found = json.loads(line)
        key = tuple(str(found[name]) for name in ("case", "method", "round"))
    except (ValueError, LookupError, TypeError):
        return ("no record",), repr(line)
    return key, json.dumps(_timeless(found), sort_keys=True) + ("" if line.endswith(b"\n") else " without a newline")


def _timeless(value: Any) -> Any:
    """A value without times and energies."""
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if not key.endswith(("_s", "_j", "seconds"))}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


def _manifest(path: Path) -> dict[str, str]:
    try:
        values = json.loads(path.read_bytes())
    except ValueError:
        return {"damaged": ""}
    return {key: json.dumps(value, sort_keys=True) for key, value in values.items() if key not in _PASSING}


def _contents(path: Path) -> tuple[str, ...]:
    """Hashes of a file's bytes, and of a JSON file with masked numbers."""
    texts = [path.read_bytes()]
    if path.suffix == ".json":
        texts.append(_NUMBER.sub(b"#", texts[0]))
    return tuple(hashlib.sha256(each).hexdigest() for each in texts)


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each for each in one if each in other)
