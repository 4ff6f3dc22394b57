r"""Run kinds of bad input through the true commands, and check that each ends with one message or does no harm.

    python -m scripts.lab fuzz --jobs 2
    python -m scripts.lab fuzz --only 'records/' --count 0
    python -m scripts.lab fuzz --only 'settings/decode.top_p: nan' --keep DIR

A kind is a place (a setting, an entry of a file, an option, an answer of a server) and a fault; ``scripts.lab.kinds``
makes them. Each kind runs in a forked process with its own folder. It is at fault if it ends with a traceback (a), does
not end (b), succeeds although its input is wrong (c), takes more than 1 GB (d), writes where it must not (e), or has a
message that does not name the thing, is too long, or has control characters or Python's own words (f).
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from scripts.lab.forked import RAISED, fork
from scripts.lab.kinds import inputs, server, settings
from scripts.lab.kinds.kind import ALONE, DONE, PYTHON, REFUSED, Fixture, Kind, prepare
from scripts.lab.materials import print_table
from specbench import commands
from specbench.input import InputError
from specbench.names import printable
from specbench.screen import FAILED, INTERRUPTED, USAGE, ending_as_interrupts, fail

GIB = 1 << 30
MOST_BYTES, ADDRESSED_BYTES, WRITTEN_BYTES = GIB, 6 * GIB, GIB
LONGEST = 2_000  # [characters] of a message
POLL_S, SPARE_S = 0.01, 5.0
CWD, HOME, TMP = "in/cwd", "in/home", "tmp"  # of a kind's folder
KEPT = {".lock", "run.log", ".writable"}  # in a run's directory after a refusal
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
MARKUP = re.compile(r"\[/?(bold|dim|red|green|yellow|cyan)[ a-z]*\]|\[/\]")
RAW = re.compile(
    r"Traceback|object at 0x|<class '|NoneType|has no attribute|unsupported operand|not subscriptable|not iterable"
    r"|positional argument|keyword argument|\[Errno|invalid literal|could not convert|index out of range"
    r"|\b(Key|Type|Value|Attribute|Index|Memory|Recursion|Assertion|Unicode\w+|ZeroDivision|Overflow)Error\b"
)
Snapshot = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class End:
    """How a kind ended. code: None if it was killed at the limit. peak_bytes: above the memory before the fork.

    printed: standard error, then standard output, then the errors of the records. wrote, changed: files in the folder.
    """

    code: int | None
    seconds: float
    peak_bytes: int
    error: str
    printed: str
    wrote: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def run(parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Print one row per group, then every fault with the command that repeats it; returns 1 if there is one."""
    parser.add_argument("--count", type=int, default=1500, help="kinds, shared among the groups; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the choice among more kinds")
    parser.add_argument("--only", default="", metavar="TEXT", help="kinds whose name GROUP/PLACE: FAULT begins with it")
    parser.add_argument("--jobs", type=int, default=2, help="kinds at once")
    parser.add_argument("--limit", type=float, default=60.0, help="[s] in which a kind must end")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the folders of faults remain")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines: how every kind ended")
    given = parser.parse_args(arguments)
    folder = tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True)
    with ending_as_interrupts(), folder as place:
        root, start = Path(place), time.monotonic()
        preload(root)
        fixture = prepare(root / "fixture", lambda call: call_apart(call, root / "fixture.txt"))
        everything = make_kinds(fixture)
        made = {
            name: [kind for kind in kinds if kind.name.startswith(given.only)] for name, kinds in everything.items()
        }
        chosen = choose(made, given.count, given.seed)
        if not chosen:
            raise InputError(f"--only {given.only}: no such kind; the groups are {', '.join(everything)}")
        found: dict[Kind, tuple[End, list[str]]] = {}
        with server.serving() as address:
            for kind, end in run_kinds(chosen, root, fixture, address, given.jobs, given.limit, given.keep):
                found[kind] = end, judge(kind, end)
                if given.out:
                    write_end(given.out, kind, *found[kind])
    print_found({name: len(kinds) for name, kinds in made.items()}, found)
    print(f"\n{len(found)} kinds in {time.monotonic() - start:.0f} s")
    return FAILED if any(faults for _, faults in found.values()) else 0


def make_kinds(fixture: Fixture) -> dict[str, list[Kind]]:
    """Returns all kinds by their groups."""
    found: dict[str, list[Kind]] = {}
    for make in (*settings.KINDS, *inputs.KINDS):
        for kind in make(fixture):
            found.setdefault(kind.group, []).append(kind)
    return found


def choose(made: dict[str, list[Kind]], count: int, seed: int) -> list[Kind]:
    """Returns ``count`` kinds, as evenly from the groups as their sizes allow, and all valid inputs; all for 0."""
    names = Counter(kind.name for kinds in made.values() for kind in kinds)
    if repeated := [name for name, often in names.items() if often > 1]:
        raise AssertionError(f"kinds of one name: {repeated[:5]}")
    chosen = [kind for kinds in made.values() for kind in kinds if kind.expected == DONE]
    left = {name: [kind for kind in kinds if kind.expected != DONE] for name, kinds in made.items()}
    for kinds in left.values():
        random.Random(seed).shuffle(kinds)
    while any(left.values()) and (not count or len(chosen) < count):
        for kinds in left.values():
            if kinds and (not count or len(chosen) < count):
                chosen.append(kinds.pop())
    return sorted(chosen, key=lambda kind: [*made].index(kind.group))


def preload(root: Path) -> None:
    """Import in this process what a run imports, so that a forked one need not."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg", "COLUMNS": "120"}
    listed = root / "modules.json"

    def list_modules() -> None:
        for words in (["--dry-run", *ALONE], [*ALONE, f"hydra.run.dir={root / 'preload'}"]):
            commands.main(words)
        commands.main(["report", str(root / "preload"), "--no-plots"])
        listed.write_text(json.dumps([*sys.modules]))

    import specbench.runs.launch  # noqa: F401 (torch and transformers, before the fork)

    call_apart(list_modules, root / "preload.txt")
    for name in json.loads(listed.read_text()):
        with suppress(Exception), redirect_stdout(io.StringIO()):
            importlib.import_module(name)
    with redirect_stdout(io.StringIO()):
        commands.main(["--dry-run", *ALONE])


def call_apart(call: Callable[[], None], log: Path) -> None:
    """Make a call in a forked process that must succeed; what it prints goes to a file."""
    if os.waitpid(fork(call, log), 0)[1]:
        raise RuntimeError(f"the fuzzer's own runs fail: {log.read_text(errors='replace')[-LONGEST:]}")


def run_kinds(
    kinds: Iterable[Kind], root: Path, fixture: Fixture, address: str, jobs: int, limit_s: float, keep: Path | None
) -> Iterator[tuple[Kind, End]]:
    """Yields how each kind ended, ``jobs`` at once, in the order of their ends."""
    left = enumerate(kinds)
    busy: dict[int, tuple[Kind, Path, Snapshot, float]] = {}
    base = _memory("RssAnon")  # of a forked process: mapped files count once it reads them
    try:
        while True:
            while len(busy) < jobs and (following := next(left, None)):
                number, kind = following
                folder = root / str(number)
                for part in (CWD, HOME, TMP):
                    (folder / part).mkdir(parents=True)
                kind.lay(folder / CWD, fixture)
                before = take_snapshot(folder)
                busy[_start(kind, folder, address, limit_s)] = kind, folder, before, time.monotonic()
            if not busy:
                return
            for pid, (kind, folder, before, start) in [*busy.items()]:
                late = time.monotonic() - start > limit_s
                if late or os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)  # with what it started, while its id is its own
                    _, status, usage = os.wait4(pid, 0)
                    del busy[pid]
                    code = None if late else os.waitstatus_to_exitcode(status)
                    peak = max(0, usage.ru_maxrss * 1024 - base)
                    end = read_end(folder, before, code, time.monotonic() - start, peak)
                    if keep and judge(kind, end):
                        name = re.sub(r"[^\w.]+", "_", kind.name)[:120]
                        with suppress(shutil.Error):  # of pipes, which are not copied
                            shutil.copytree(folder, keep / name, symlinks=True, dirs_exist_ok=True)
                    shutil.rmtree(folder, ignore_errors=True)
                    yield kind, end
            time.sleep(POLL_S)
    finally:  # of an interrupt
        for pid in busy:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _start(kind: Kind, folder: Path, address: str, limit_s: float) -> int:
    """Fork a process that runs a kind in its folder; returns its id, which is also that of its group."""

    def run_kind() -> int:
        os.setsid()
        os.chdir(folder / CWD)
        os.environ |= {"HOME": f"{folder / HOME}", "TMPDIR": f"{folder / TMP}", "XDG_CACHE_HOME": f"{folder / HOME}"}
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + ADDRESSED_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (WRITTEN_BYTES,) * 2)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        faulthandler.dump_traceback_later(max(1.0, limit_s - SPARE_S))
        code = call(kind, address)
        with suppress(OSError) if code else nullcontext():  # a full disk is not named twice
            print(end="", flush=True)
        return code

    return fork(run_kind, folder / "out", folder / "err")


def call(kind: Kind, address: str) -> int:
    """The exit code of a kind's command in this process."""
    words = [word.replace(server.ADDRESS, address) for word in kind.command]
    if kind.inside:
        kind.inside()
    sys.argv = ["specbench", *words]
    try:
        if words[0] == PYTHON:
            exec(words[1], {"Path": Path})
            return 0
        return commands.main(words)
    except InputError as error:
        return fail(str(error))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def _memory(name: str) -> int:
    """[bytes] An entry of this process's status."""
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def take_snapshot(folder: Path) -> Snapshot:
    """Returns path -> inode, size and time of change of every file below a folder, without following links."""
    found: Snapshot = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            about = path.lstat()
            found[path.relative_to(folder).as_posix()] = (about.st_ino, about.st_size, about.st_mtime_ns)
    return found


def read_end(folder: Path, before: Snapshot, code: int | None, seconds: float, peak_bytes: int) -> End:
    """What an ended process left in its folder."""
    error, printed = (_tail(folder / name) for name in ("err", "out"))
    records = _tail(folder / CWD / "run/records.jsonl")
    failed = printable("\n".join(re.findall(r'"message": ?"((?:[^"\\]|\\.)*)"', records)))  # not for a terminal
    after = take_snapshot(folder)
    wrote = sorted({*after} - {*before, "out", "err"})
    changed = sorted(name for name, about in before.items() if after.get(name) != about)
    return End(code, seconds, peak_bytes, error, f"{error}\n{printed}\n{failed}", tuple(wrote), tuple(changed))


def _tail(path: Path, most: int = 1 << 18) -> str:
    if path.is_symlink() or not path.is_file():  # a link may be to a file without end
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - most))
        return file.read().decode(errors="replace")


def judge(kind: Kind, end: End) -> list[str]:
    """Returns what is wrong with how a kind ended, one text each, which begins with its letter; [] if nothing is."""
    found = []
    if end.code is None:
        found.append(f"b: no end in {end.seconds:.0f} s: {_innermost(end.error)}")
    elif end.code < 0 or end.code == RAISED:
        found.append(f"a: {_innermost(end.error) if end.code == RAISED else f'killed by signal {-end.code}'}")
    elif "Traceback (most recent call last)" in end.printed:
        found.append(f"a: {_innermost(end.printed)}")
    elif end.code not in (0, FAILED, USAGE, INTERRUPTED):
        found.append(f"a: exit code {end.code}")
    if kind.expected == REFUSED and end.code == 0:
        found.append("c: succeeds")
    if kind.expected == DONE and end.code:
        found.append("f: a valid input is refused")
    if end.peak_bytes > MOST_BYTES:
        found.append(f"d: {end.peak_bytes / GIB:.1f} GB")
    inside = tuple(f"{CWD}/{name}" for name in kind.outputs)
    elsewhere = [name for name in end.wrote if not (name.startswith((*inside, HOME)) or "torchinductor" in name)]
    left = [name for name in end.wrote if end.code == USAGE and Path(name).name not in KEPT and name.startswith(inside)]
    touched = [name for name in end.changed if not name.startswith(tuple(f"{CWD}/{name}" for name in kind.changes))]
    if end.code is not None:
        found += [f"e: {what} {names[0]} ({len(names)} files)" for what, names in
                  (("writes", elsewhere), ("is refused and leaves", left), ("changes", touched)) if names]  # fmt: skip
    return found + ([] if found and found[0][0] in "ab" else [f"f: {text}" for text in find_faults(kind, end)])


def find_faults(kind: Kind, end: End) -> Iterator[str]:
    """Yield what is wrong with the message of a kind that was refused."""
    if end.code not in (FAILED, USAGE) or kind.expected == DONE:
        return
    message = end.error[end.error.rfind("error:") :] if "error:" in end.error else end.printed.strip()
    message = message if end.code == USAGE else end.printed
    if not message.strip():
        yield "no message"
    elif not any(printable(word).lower() in end.printed.lower() for word in kind.words):
        yield f"names none of {', '.join(kind.words)}"
    if end.code == USAGE and len(message) > LONGEST:
        yield f"{len(message)} characters"
    for what, wrong in (("a control character", STEERS), ("Python's own words", RAW), ("markup", MARKUP)):
        if (found := wrong.search(message)) and not (wrong is MARKUP and "markup" in kind.fault):
            yield f"{what}: {found[0]!a}"


def _innermost(error: str) -> str:
    """The last line of a traceback, or of a stack that was printed at the limit its innermost call, shortened."""
    lines = [line for line in error.splitlines() if line.strip()]
    stack = [place for place, line in enumerate(lines) if line.startswith("Timeout (")]
    if stack:
        return lines[min(stack[-1] + 2, len(lines) - 1)].strip()
    raised = [line for line in lines if re.match(r"\w[\w.]*(Error|Exception|Interrupt)\b", line)]
    return "".join((raised or lines)[-1:]).strip()[:200]


def spell(kind: Kind) -> str:
    """The command of a kind, as a shell takes it."""
    words = ("python", "-c", kind.command[1]) if kind.command[0] == PYTHON else ("specbench", *kind.command)
    return " ".join(shlex.quote(word if len(word) < 200 else f"{word[:60]}...") for word in words)


def write_end(path: Path, kind: Kind, end: End, faults: Sequence[str]) -> None:
    """Append how a kind ended to a file of JSON lines."""
    about = {
        "name": kind.name,
        "code": end.code,
        "seconds": round(end.seconds, 2),
        "mb": end.peak_bytes >> 20,
        "expected": kind.expected,
        "faults": faults,
        "command": spell(kind),
        "printed": end.printed.strip()[-LONGEST:],
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(about) + "\n")


def print_found(made: dict[str, int], found: dict[Kind, tuple[End, list[str]]]) -> None:
    """Print a row for each group, then the faults."""
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for kind, (end, faults) in found.items():
        state = "faults" if faults else "refused" if end.code else "harmless"
        for name in (kind.group, "all"):
            rows[name].update(kinds=1, **{state: 1})
    columns = ("kinds", "refused", "harmless", "faults")
    made = made | {"all": sum(made.values())}
    print_table(
        ("group", *columns, "of"),
        [[name, *(rows[name][column] for column in columns), of] for name, of in made.items() if rows[name]],
    )
    for kind, (_, faults) in found.items():
        if faults:
            print(f"\n{kind.name!a}")
            print(*(f"  {fault}".encode("unicode_escape").decode() for fault in faults), sep="\n")
            print(f"  {spell(kind)}".encode("unicode_escape").decode())
            print(f"  python -m scripts.lab fuzz --only {shlex.quote(kind.name)!s}".encode("unicode_escape").decode())
