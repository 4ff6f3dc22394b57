"""Kinds of bad input of commands: options, files, calls from Python, hostile servers, surroundings of a process.

Every file that a command reads is tried with each damage, and each of its entries with each fault.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from scripts.lab.kinds import server
from scripts.lab.kinds.damage import BYTES, STEERING, THINGS, TWICE, WRONG, mutants_of
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
    TINY,
    Fixture,
    Kind,
    Lay,
    holds,
)
from specbench import commands
from specbench.report.exchange.formats import FORMATS
from specbench.runs.config import PACKAGE, conf_dir

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


SPEC_BENCH = '{"question_id": 1, "category": "qa", "turns": ["Where is the harbour?", "Why?"], "reference": ["a"]}\n'
OWN = '{"prompt": "Where is the harbour?", "id": "1", "category": "qa", "reference": "there"}\n'
MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho ho"}]
CHAT = json.dumps({"id": "1", "category": "qa", "messages": MESSAGES}) + "\n"
SHAREGPT = '{"id": "1", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}\n'
TRACE = '{"case": "1", "category": "qa", "turns": [{"prompt_ids": [1, 5], "ids": [7, 8, 2], "finish": "eos"}]}\n'
GSM8K = '{"question": "What is 1 + 1?", "answer": "1 + 1 = 2\\n#### 2"}\n'
HUMANEVAL = (
    '{"task_id": "HumanEval/0", "prompt": "def f():", "canonical_solution": "", "test": "", "entry_point": "f"}\n'
)
MBPP = '{"task_id": 11, "text": "Write f.", "code": "f", "test_list": ["assert f()"], "challenge_test_list": []}\n'
MT_BENCH = '{"question_id": 81, "category": "writing", "turns": ["a", "b"]}\n'
# What a word of a reader's command is short for.
WORDS: dict[str, tuple[str, ...]] = {
    "DRY": (DRY,), "ALONE": ALONE, "SMALL": SMALL, "HERE": (HERE,), "REPORT": REPORT,
    "EVERY": (*(item for item in ALONE if item != "suite.first=2"), HERE),
    "REPLAYED": ("model=replay", "model.tokenizer=bundled:tiny", "method=[pld]", SMALL[4], HERE),
    "PUBLISHED": (PYTHON, "from specbench.report.published import read_published as r; r(Path('csv'))"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reader:
    """A file and the command that reads it.

    of: its content, or the file of the fixture. command: words, those in capitals are of ``WORDS``. copies: folders of
    the fixture. strict: a value of another type is refused. entries: each entry of its JSON is a place.
    """

    group: str
    name: str
    of: str | Path
    command: str
    copies: str = ""
    strict: bool = False
    words: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("run",)
    changes: tuple[str, ...] = ("run/summary.csv",)
    entries: bool = True


# Readers that refuse what is no JSON, or not one value.
PARSED = [f"{file}{command}" for file in ("records", "manifest") for command in ("", " resumed", " merged")]
# Name -> content and suite of a file of questions.
QUESTIONS = {
    "spec_bench": (SPEC_BENCH, "spec_bench"), "own": (OWN, "file"), "own.json": (f"[{OWN.strip()}]", "file"),
    "messages": (json.dumps({"messages": MESSAGES, "id": "1"}) + "\n", "file"), "chat": (CHAT, "file"),
    "conversations": (SHAREGPT, "file"), "gsm8k": (GSM8K, "gsm8k"), "humaneval": (HUMANEVAL, "humaneval"),
    "mbpp": (MBPP, "mbpp"), "mt_bench": (MT_BENCH, "mt_bench"), "own.csv": ("prompt,id\nWhere?,1\n", "file"),
    "own.tsv": ("prompt\tid\nWhere?\t1\n", "file"), "own.parquet": ("x", "file"),
    "own.jsonl.gz": ("x", "file"),
}  # fmt: skip


def readers(fixture: Fixture) -> Iterator[Reader]:
    """Yield the files that commands read."""
    for name, (content, suite) in QUESTIONS.items():
        path = f"q.{name.partition('.')[2] or 'jsonl'}"
        yield Reader(f"questions {name}", path, content, f"EVERY suite={suite} suite.path={path}")
    shots = "DRY ALONE HERE suite=gsm8k_8shot suite.path=q.jsonl suite.shots_from=s.jsonl"
    yield Reader("questions shots", "s.jsonl", GSM8K * 9, shots)
    for name, content in {"ids": TRACE, "chat": CHAT}.items():
        yield Reader(f"trace {name}", "t.jsonl", content, "REPLAYED model.trace=t.jsonl", strict=name == "ids")
    records = fixture.folder / "run/records.jsonl"
    yield Reader("trace records", "t/records.jsonl", records, "REPLAYED model.trace=t/records.jsonl")
    timed = "DRY model=tiny engine=timed model.trace=t/records.jsonl method=[pld] HERE"
    yield Reader("trace timed", "t/records.jsonl", records, timed)
    yield from readers_of_runs(fixture)
    for name in (".deaths.json", ".at", ".lock", "summary.csv", "run.log", "report.html", "tables", "plots"):
        content = '{"0": 1}' if "json" in name else "0"
        for place, command in {"": "ALONE HERE suite.first=3", " report": "REPORT"}.items():
            yield Reader(f"side {name}{place}", f"run/{name}", content, command, "run", words=("run",),
                         changes=("run",), entries=False)  # fmt: skip
    profile = next((conf_dir().parent / "results/profiles/published").glob("*.json"))
    yield Reader("profile report", "p.json", profile, "REPORT --profile p.json", "run", strict=True)
    price = "DRY ALONE HERE decode.length=price decode.length_profile=p.json"
    yield Reader("profile price", "p.json", profile, price, strict=True)
    load = "DRY ALONE HERE load=trace load.times=t.json load.requests=2"
    yield Reader("load times", "t.json", "[0.0, 0.1, 0.3, 0.5]", load, strict=True)
    for name, text in {
        "mooncake": '{"timestamp": 0, "output_length": 9}\n{"timestamp": 30, "output_length": 5}\n',
        "burstgpt": "Timestamp,Model,Response tokens\n5,ChatGPT,9\n6,ChatGPT,5\n",
        "azure": "TIMESTAMP,GeneratedTokens\n2023-11-16 18:15:46.68,9\n2023-11-16 18:15:47,5\n",
    }.items():
        yield Reader(f"load trace {name}", "t.json", text, load)
    for name in sorted(path.name for path in TINY.iterdir() if path.suffix in (".json", ".safetensors")):
        model = "ALONE HERE model.path=model model.dtype=float32"
        yield Reader(f"model {name}", f"model/{name}", TINY / name, model, "model", words=("model",))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    yield Reader("model chat template", "t.jinja", template, "ALONE HERE model.template=t.jinja")
    eagle = "SMALL HERE method=[eagle] model.heads.eagle=head"
    for name in ("config.json", "model.safetensors"):
        yield Reader(
            f"head {name}", f"head/{name}", PACKAGE / "assets/tiny_eagle" / name, eagle, "head", words=("head",)
        )
    for key, name in {"cacheback] model.frozen_table": "frozen_table", "rest] model.datastore": "datastore",
                      "sam] method.sam.static": "automaton"}.items():  # fmt: skip
        table = f"SMALL HERE method=[{key}=x.safetensors"
        whole = (fixture.folder if name == "automaton" else TINY) / f"{name}.safetensors"
        yield Reader(f"table {key.partition(']')[0]}", "x.safetensors", whole, table)
    for place, command in {"": "REPORT", " of plots": "report run"}.items():
        style = f"{command} --style x.mplstyle"
        yield Reader(f"style{place}", "x.mplstyle", "figure.figsize: 3, 2\n", style, "run", outputs=("run",))
    row = '{{"task_id": "{}", "method": "pld", "passed": true, "round": 0}}\n'
    passed = "".join(map(row.format, (1, 2)))
    yield Reader("passed", "p.jsonl", passed, "REPORT --passed p.jsonl", "run", words=("p.jsonl", "--passed"))
    for name, each in FORMATS.items():
        whole = next((fixture.folder / "exported" / name).rglob(each.file))
        yield Reader(f"import {name}", each.file, whole, f"report --import {each.file}")
    answers = next(path for path in (fixture.folder / "answers").rglob("*.jsonl") if "vanilla" not in path.name)
    yield Reader("answers", "m.jsonl", answers, f"report --answers base.jsonl m.jsonl --tokenizer {TINY}")
    for kind, name in [("frozen_table", "c.jsonl"), ("automaton", "c.jsonl"), ("datastore", "c.jsonl"),
                       ("datastore", "c.json"), ("datastore", "c.txt"), ("datastore", "c.zip")]:  # fmt: skip
        text = '{"text": "The quick brown fox jumps over it."}\n' * (20 if "jsonl" in name else 1)
        build = f"build {kind} --tokenizer bundled:tiny --out new.safetensors {name}"
        yield Reader(f"build {kind} {name}", name, text, build, outputs=("new",))
    published = min((conf_dir().parent / "results/published").glob("*.csv"))
    yield Reader("published", "csv/x.csv", published, "PUBLISHED", words=("csv",))
    experiment = "DRY --config-dir mine ALONE HERE experiment=x"
    yield Reader("conf", "mine/experiment/x.yaml", "# @package _global_\ndecode:\n  seed: 3\n", experiment,
                 words=("x", "mine"))  # fmt: skip


def readers_of_runs(fixture: Fixture) -> Iterator[Reader]:
    """Yield the records and the manifest of a run, and of a part, for each command that reads them."""
    for group, name in {"records": "records.jsonl", "manifest": "manifest.json"}.items():
        path, whole, strict = f"run/{name}", fixture.folder / "run" / name, group == "records"
        yield Reader(group, path, whole, "REPORT", "run", strict, ("run",))
        resumed, grown = "ALONE HERE", "ALONE HERE suite.first=3"
        yield Reader(f"{group} resumed", path, whole, resumed, "run", strict, ("run",), changes=("run",))
        yield Reader(f"{group} grown", path, whole, grown, "run", strict, ("run",), changes=("run",), entries=False)
        yield Reader(f"{group} merged", f"part1/{name}", fixture.folder / "part1" / name, "merge part1 part2 --out new",
                     "part1 part2", strict, ("part1",), ("new", "latest"))  # fmt: skip
        for command, (words, copies) in COMMANDS.items():
            if "run" in copies and command != "report" and (strict or command != "tune"):
                yield Reader(f"{group} {command}", path, whole, " ".join((command, *words)), " ".join(copies),
                             words=("run",), entries=command in ("list", "diff", "compare"))  # fmt: skip


def files_of_commands(fixture: Fixture) -> Iterator[Kind]:
    """Yield each file with each damage, with what takes its place, and with each fault of each entry of its JSON."""
    answers = next((fixture.folder / "answers").rglob("vanilla*.jsonl"))
    base = {"q.jsonl": holds(GSM8K), "base.jsonl": holds(answers.read_bytes())}
    for each in readers(fixture):
        raw = each.of.read_bytes() if isinstance(each.of, Path) else each.of.encode()
        area, suffix = each.group.partition(" ")[0], Path(each.name).suffix
        text = area not in ("side", "build", "style", "conf")
        needed = (text or area == "build") and (
            area != "model" or each.name in ("model/config.json", "model/model.safetensors")
        )
        command = tuple(word for short in each.command.split() for word in WORDS.get(short, (short,)))

        files = {name: lay for name, lay in base.items() if name != each.name}
        words, copies = each.words or (Path(each.name).name,), tuple(each.copies.split())
        valid = Kind(area, each.group, NONE, command, DONE, words, copies, files | {each.name: holds(raw)},
                     outputs=each.outputs, changes=each.changes)  # fmt: skip
        made: list[tuple[str, str, Lay, bool]] = []
        made += [
            ("", fault, partial(write, partial(change, raw)), fault in WRONG and text)
            for fault, change in BYTES.items()
        ]
        made += [("", fault, lay, fault != "empty device" and needed) for fault, lay in THINGS.items()]
        if each.entries and suffix in (".json", ".jsonl"):
            first, rest = raw.decode().split("\n", 1) if suffix == ".jsonl" else (raw.decode(), "")
            for place, fault, wrong, changed in mutants_of(json.loads(first)):
                unparsed = fault in ("nan", "infinite", "half a character", TWICE) and each.group in PARSED
                wrong = unparsed or (wrong and each.strict and fault not in ("null", TWICE))
                made.append((f" {place}", fault, partial(write, partial(_join, changed, rest)), wrong))
        if suffix not in (".parquet", ".gz", ".zip") and area != "side":  # the content is of the file's format
            yield valid
        for place, fault, lay, wrong in made:
            yield replace(valid, place=f"{each.group}{place}", fault=fault, expected=REFUSED if wrong else ANY,
                          files=files | {each.name: lay})  # fmt: skip


def write(make: Callable[[], bytes], path: Path) -> None:
    """Write a content that is made only now."""
    path.write_bytes(make())


def _join(line: Callable[[], str], rest: str) -> bytes:
    return f"{line()}\n{rest}".encode(errors="surrogatepass")


KINDS = (files_of_commands, options, servers, calls, surroundings)
