"""Kinds of wrong files: every file that a command reads, with each damage, and each entry of it with each fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from scripts.lab.kinds.calls import COMMANDS
from scripts.lab.kinds.damage import BYTES, THINGS, TWICE, WRONG, mutants_of
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
from specbench.report.exchange.formats import FORMATS
from specbench.runs.config import PACKAGE, conf_dir

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


KINDS = (files_of_commands,)
