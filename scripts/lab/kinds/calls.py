"""Kinds of wrong calls: options of commands, calls from Python, hostile servers, and surroundings of a process."""

from __future__ import annotations

import os
import re
import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

from scripts.lab.kinds import server
from scripts.lab.kinds.damage import STEERING
from scripts.lab.kinds.kind import (
    ALONE,
    ANY,
    DONE,
    DRY,
    HERE,
    NONE,
    PYTHON,
    REFUSED,
    REPORT,
    SMALL,
    Fixture,
    Kind,
    holds,
)
from specbench import commands

MODEL = tuple(item for item in SMALL if item.startswith(("model", "engine")))  # all that a profile takes
# Command -> words that it needs, and the folders of the fixture that they name.
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "report": (("run", "--no-plots"), ("run",)),
    "list": ((".",), ("run", "other")),
    "diff": (("run", "other"), ("run", "other")),
    "compare": (("pld", "vanilla", "run"), ("run",)),
    "merge": (("part1", "part2", "--out", "new"), ("part1", "part2")),
    "choose": (("run/records.jsonl", "model.tokenizer=bundled:tiny"), ("run",)),
    "tune": (("--profile", "h100-8b", "--grid", "pld.max_ngram=1,2", "model=replay", "model.trace=run/records.jsonl",
              "method=[pld]"), ("run",)),
    "profile": ((*MODEL, "--fed", "1,2", "--contexts", "25", "--rounds", "1", "--out", "new"), ()),
    "build": (("datastore", "--tokenizer", "bundled:tiny", "--out", "new.safetensors", "corpus.txt"), ()),
    "completion": (("bash",), ()),
    "fetch": (ALONE, ()),
}  # fmt: skip
OPTIONS = {
    "empty": "", "text": "abc", "negative": "-1", "zero": "0", "1e9": "1000000000", "fraction": "1.5", "nan": "nan",
    "list": "1,2,,3", "long text": "x" * 5000, "steering": STEERING, "no UTF-8": "\udcff", "NUL": "a\0b", "folder": ".",
    "root": "/", "pipe": "pipe", "endless device": "/dev/zero", "no file": "gone/gone", "kernel's log": "/proc/kmsg",
    "an input": "corpus.txt", "records": "run/records.jsonl", "markup": "[bold red]x[/]", "override": "a=b",
    "range": "1" + ",1" * 3000,
}  # fmt: skip
NOWHERE = ("steering", "NUL", "no UTF-8", "no file", "text", "unknown", "without a value")
VALUED = {("--profile",), ("--grid",), ("--out",), ("--tokenizer",), ("--fed",), ("--contexts",), ("--rounds",)}


def parser_of(command: str) -> ArgumentParser:
    """The parser of a command."""
    found: list[ArgumentParser] = []

    def stop(parser: ArgumentParser, *_: object, **__: object) -> None:
        found.append(parser)
        raise StopIteration

    with patch.object(ArgumentParser, "parse_args", stop), patch.object(ArgumentParser, "parse_intermixed_args", stop):
        try:
            commands.module_of(command).main([])
        except StopIteration:
            return found[0]
    raise AssertionError(command)


def options(fixture: Fixture) -> Iterator[Kind]:
    """Yield each option and argument of each command with each fault."""
    files = {"corpus.txt": holds("The quick brown fox.\n" * 50)}
    for command, (words, copies) in COMMANDS.items():
        actions = [] if command in ("build", "fetch") else parser_of(command)._actions
        named = [each.option_strings[0] for each in actions if each.option_strings and each.nargs != 0]
        named += ["--tokenizer", "--out", "--field", "--exclude"] if command == "build" else []
        taken = {each.option_strings[0]: each.nargs for each in actions if each.option_strings}
        made: dict[tuple[str, str], tuple[str, ...]] = {}
        for option in named:
            given = [*words]
            if option in given:
                del given[given.index(option) : given.index(option) + 2]
            times = taken.get(option, 1)
            more = times if isinstance(times, int) else 1
            made |= {(option, fault): (*given, option, *([value] * more)) for fault, value in OPTIONS.items()}
            made |= {(option, "without a value"): (*given, option)}
        for number, word in enumerate(words):
            if not word.startswith("--") and words[number - 1 : number] not in VALUED:
                made |= {(f"argument {number}", fault): (*words[:number], value, *words[number + 1 :])
                         for fault, value in OPTIONS.items()}  # fmt: skip
        if command != "fetch":
            yield Kind("options", command, NONE, (command, *words), DONE, (), copies, files, outputs=("",))
        made |= {("options", "unknown"): (*words, "--nope"), ("options", "abbreviated"): (*words, "--ou", "x")}
        free = command in ("list", "fetch", "completion")
        for (place, fault), call in made.items():
            wrong = fault in NOWHERE and not free and place not in ("--output", "--out", "--export-answers", "--field")
            value = OPTIONS.get(fault, "")[:10]
            word = place if place.startswith("--") else value or command
            key = f"{value.partition('=')[0] or word}:"  # of a setting
            yield Kind("options", f"{command} {place}", fault, (command, *call), REFUSED if wrong else ANY,
                       (word, value or word, key, place.lstrip("-"), "--nope", "usage"),
                       copies, files, outputs=("",))  # fmt: skip


SERVED = ("model=server", "model.tokenizer=bundled:tiny", "suite.first=1", "decode.max_new_tokens=8", "measure=quick",
          "report.plots=false", HERE, f"method.vanilla.url={server.ADDRESS}/{server.GOOD}")  # fmt: skip
UNSAID = ("null", "empty list", "empty object")  # a server may leave out an entry
SOUND = ("after_done", "histogram", "slow_comments", "unknown charset")  # an answer may be valid
PATIENCE = tuple(f"method.{name}.{key}" for name in ("vanilla", "server") for key in ("timeout_s=3", "longest_s=6"))


ADDRESSES = {
    "nobody": f"http://127.0.0.1:{server.free_port()}", "no host": "http://nope.invalid", "no scheme": "localhost:1",
    "port 0": "http://a:0",
    "file": "file:///etc/passwd", "port 99999": "http://127.0.0.1:99999", "password": "http://a:b@127.0.0.1",
    "steering": f"http://{STEERING}", "IPv6": "http://[::1", "empty host": "http://", "query": "http://127.0.0.1?x=1",
}  # fmt: skip


def servers(fixture: Fixture) -> Iterator[Kind]:
    """Yield each fault of the connection at each endpoint, and each entry of each answer with each fault."""

    def kind(group: str, place: str, fault: str, mode: str, expected: str = ANY, *more: str) -> Kind:
        command = (*SERVED, *PATIENCE, f"method.server.url={server.ADDRESS}/{mode}", *more)
        return Kind(group, place, fault, command, expected, ("127.0.0.1", "method.server"))

    for dialect in server.OWNERS:
        yield kind("replies", dialect, NONE, f"d.{dialect}", DONE)
    for endpoint in (*server.ENDPOINTS, server.PROBE):
        for number, fault in enumerate(server.TRANSPORT):
            wrong = endpoint in ("answer", server.PROBE) and fault not in SOUND
            yield kind("transport", endpoint, fault, f"t.{endpoint}.{number}", REFUSED if wrong else ANY)
    for number, (place, fault, *_) in enumerate(server.tables()):
        yield kind("replies", place, fault, f"j.{number}")
    for number, (place, fault, wrong, *_) in enumerate(server.replies()):
        ids = re.search(r"token_ids|output_ids|\.tokens|finish_reason|choices", place) and fault not in UNSAID
        refused = wrong and ids
        yield kind("replies", place, fault, f"r.{number}", REFUSED if refused else ANY)
    for fault, address in ADDRESSES.items():
        words = *SERVED, *PATIENCE, f'method.server.url="{address}"'
        yield Kind("transport", "address", fault, words, REFUSED, ("url", address[:30]))


VALUES = {
    "None": "None", "number": "3", "list": "['method=[pld]']", "bytes": "b'run'", "path": "Path('gone')",
    "empty": "''", "NUL": "'a\\0b'", "half a character": "'\\ud800'", "mapping": "{'a': 1}", "nan": "float('nan')",
    "object": "print", "long": "'x' * 100_000", "folder": "'.'", "file": "'pipe'", "device": "'/dev/zero'",
    "two": "'a', 'b'", "unknown": "'nope=1'", "flag": "'--help'", "dry": "'--dry-run'", "true": "True",
    "sweep": "'-m', 'decode.seed=1,2'", "generator": "(x for x in 'ab')",
}  # fmt: skip
CALLS = {"run": "import specbench; specbench.run({})", "load": "import specbench; specbench.load({})",
         "run of a job": f"import specbench; specbench.run(*{[*ALONE, HERE]!r}, {{}})"}  # fmt: skip


def calls(fixture: Fixture) -> Iterator[Kind]:
    """Yield calls from Python with each wrong value."""
    for place, call in CALLS.items():
        for fault, value in VALUES.items():
            if place == "load" and fault in ("two", "sweep"):  # a call that Python itself refuses
                continue
            harmless = fault in ("folder", "empty") or (place == "run of a job" and fault in ("dry", "two"))
            yield Kind("python", place, fault, (PYTHON, call.format(value)), ANY if harmless else REFUSED,
                       ("",), ("run",), changes=("run",), outputs=("run", "results"))  # fmt: skip


VARIABLES = {
    "COLUMNS": ("0", "-1", "abc", "1", "1000000000"), "LINES": ("abc",), "TERM": ("", "nope", "dumb"), "LANG": ("C",),
    "SPECBENCH_DATA": ("", "/nope", "pipe", "/dev/zero", "x" * 300), "HOME": ("", "/nope", "pipe", "/dev/null"),
    "XDG_CACHE_HOME": ("", "/dev/null", "pipe"), "TMPDIR": ("/nope", "/dev/null"), "TZ": ("nope", "\u202e"),
    "OMP_NUM_THREADS": ("0", "-1", "abc"), "CUDA_VISIBLE_DEVICES": ("abc", "99"), "LC_ALL": ("nope", "C"),
    "HF_HUB_OFFLINE": ("abc",), "HF_HOME": ("/dev/null",), "HF_ENDPOINT": ("abc", "http://127.0.0.1:1"),
    "MPLBACKEND": ("nope",), "MPLCONFIGDIR": ("/dev/null",), "NUMBA_CACHE_DIR": ("/dev/null",), "USER": ("", "[bold]"),
    "SPECBENCH_API_KEY": ("a\nb", "\u202e", ""), "HYDRA_FULL_ERROR": ("1",), "SLURM_JOB_ID": ("abc",), "PATH": ("",),
    "PYTHONPATH": ("/dev/null",), "SOURCE_DATE_EPOCH": ("abc",),
}  # fmt: skip


def put(number: int, device: str) -> None:
    """Put a device in the place of a standard stream."""
    os.dup2(os.open(device, os.O_RDWR), number)


def close(number: int) -> None:
    """Close a standard stream, as a shell does before Python starts."""
    os.close(number)
    setattr(sys, ("stdin", "stdout", "stderr")[number], None)


AROUND: dict[str, Callable[[], object]] = {
    "deleted working directory": lambda: shutil.rmtree(Path.cwd()),
    **{f"closed stream {number}": partial(close, number) for number in (0, 1, 2)},
    **{f"stream {number} on {device}": partial(put, number, device)
       for number in (1, 2) for device in ("/dev/full", "/dev/null")},
    **{f"{name}={value}": partial(os.environ.update, {name: value})
       for name, values in VARIABLES.items() for value in values},
}  # fmt: skip


def surroundings(fixture: Fixture) -> Iterator[Kind]:
    """Yield a run, its estimate and its report in surroundings that no program expects."""
    kinds = {"run": (*ALONE, HERE), "dry run": (DRY, *ALONE, HERE), "report": REPORT, "list": ("list", ".")}
    for place, command in kinds.items():
        for fault, inside in AROUND.items():
            changes = ("",) if fault.startswith("deleted") else ("run",)
            copies = ("run",) if place in ("report", "list") else ()
            yield Kind(
                "surroundings", place, fault, command, ANY, ("",), copies, {}, inside, ("run", ".cache"), changes
            )


KINDS = (options, servers, calls, surroundings)
