"""The kinds of bad input, generated: each setting, option, file, entry and answer of a server with each fault.

``KINDS`` has the generators. A kind states what must happen: it is refused (exit code 2, or 1 for a server's
row, and a message with one of its words), or it does no harm (``ANY``: refused as well, or done).
"""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import sys
import types
import typing
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints
from unittest.mock import patch

import yaml

from scripts.lab import hostile
from scripts.lab.damage import BYTES, STEERING, THINGS, WRONG, mutants_of
from specbench import commands
from specbench.report.exchange.formats import FORMATS
from specbench.runs.config import PACKAGE, Config, check_settings, conf_dir, list_options

REFUSED, ANY = "refused", "any"
PYTHON = "python"
TINY = PACKAGE / "assets/tiny"
SMALL = ("model=tiny", "suite.first=1", "measure=quick", "decode.max_new_tokens=8", "report.plots=false",
         "model.threads=1", "engine.compiled=false")  # fmt: skip
HERE = "hydra.run.dir=run"
ALONE = (*SMALL, "method=[pld]")
DRY = "--dry-run"


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

    command: of ``specbench``; or PYTHON and a program. expected: REFUSED or ANY. words: the message has one of them.
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
    inside: Lay | None = field(default=None, hash=False, compare=False)
    outputs: tuple[str, ...] = ("run",)
    changes: tuple[str, ...] = ()

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
            path.unlink(missing_ok=True)
            write(path)

    def enter(self) -> None:
        """Prepare the process in its folder."""
        if self.inside:
            self.inside(Path.cwd())


def prepare(folder: Path, apart: Callable[[Callable[[], object]], object]) -> Fixture:
    """Make the finished runs and files that kinds are made of. apart: makes a call in another process."""
    folder.mkdir()

    def make() -> None:
        from specbench.input import InputError
        from specbench.runs.job import job_of

        os.chdir(folder)
        for name, settings in {"run": (), "other": ("decode.seed=1",)}.items():
            assert commands.main([*ALONE, *settings, f"hydra.run.dir={folder / name}"]) == 0
        for part in (1, 2):
            named = "suite.ids=null", f"suite.part={part}/2", "suite.first=2"
            assert commands.main([*ALONE, *named, f"hydra.run.dir={folder / f'part{part}'}"]) == 0
        for name in FORMATS:
            assert commands.main(["report", "run", "--export", name, "--output", f"exported/{name}"]) == 0
        assert commands.main(["report", "run", "--export-answers", "answers"]) == 0
        for found in folder.rglob("run.log"):
            found.unlink()
        usable = []
        for name in list_options("method"):
            try:
                job_of([*SMALL, f"method=[{name}]"])
                usable.append(name)
            except InputError:
                continue
        (folder / "usable.json").write_text(json.dumps(usable))

    apart(make)
    (folder / "model").mkdir()
    for path in TINY.iterdir():
        (folder / "model" / path.name).symlink_to(path)
    return Fixture(folder, tuple(json.loads((folder / "usable.json").read_text())))


def holds(content: str | bytes) -> Lay:
    """Return what writes a content."""
    return lambda path: path.write_bytes(content.encode(errors="surrogatepass") if isinstance(content, str) else content)


# --- settings

# Fault -> the value in Hydra's grammar, and the types of settings that do not have it: b(ool) i(nt) f(loat) s(tring)
# l(ist) m(apping) o(ther), N: it may be null.
FAULTS: dict[str, tuple[str, str]] = {
    "null": ("null", "bifslm"),
    "empty text": ("''", "biflm"),
    "text": ("abc", "biflm"),
    "true": ("true", "iflm"),
    "two": ("2", "blm"),
    "negative": ("-1", "blm"),
    "zero": ("0", "lm"),
    "fraction": ("1.5", "bilm"),
    "1e9": ("1000000000", "blm"),
    "1e300": ("1e300", "bilm"),
    "10^30": (f"{10**30}", "bilm"),
    "nan": ("nan", "biflm"),
    "inf": ("inf", "bilm"),
    "minus inf": ("-inf", "biflm"),
    "list": ("[1]", "bifsm"),
    "empty list": ("[]", "bifsm"),
    "list of lists": ("[[1]]", "bifslm"),
    "mapping": ("{a: 1}", "bifslm"),
    "long text": ("x" * 5000, "biflm"),
    "right to left": ('"\u202eabc"', "biflm"),
    "NUL": ('"a\0b"', "biflm"),
    "half a character": ('"\ud800"', "biflm"),
    "escape": (f'"{STEERING}"', "biflm"),
    "markup": ('"[bold red]x[/]"', "biflm"),
    "two lines": ('"a\nb"', "biflm"),
    "unknown reference": ("${nope}", "bifslmo"),
    "unset variable": ("${oc.env:FUZZ_UNSET}", "bifslmo"),
    "unknown resolver": ("${nope:1}", "bifslmo"),
    "missing": ("???", "biflm"),
    "folder": (".", "biflm"),
    "pipe": ("pipe", "biflm"),
    "endless device": ("/dev/zero", "biflm"),
    "its own output": ("run", "biflm"),
    "home of nobody": ('"~nosuch/x"', "biflm"),
}
# Beginning of a setting -> what makes it count.
BASES = {"model.random": ("model=random",), "load.rate": ("load=poisson", "load.requests=2"), "load": ("load=closed",),
         "decode.top": ("decode.temperature=1",), "decode.length_threshold": ("decode.length=confidence",),
         "suite.shots_seed": ("suite=gsm8k_8shot",), "suite.hub": ("suite=gsm8k",), "decode.verify": ("decode=sample",)}  # fmt: skip
PATHS = ("path", "trace", "tokenizer", "draft", "times", "shots_from", "length_profile")


def letter_of(hint: Any) -> str:
    """The type of a setting as ``FAULTS`` names it, with N if it may be null."""
    parts = [part for part in get_args(hint) if part is not type(None)]
    union = get_origin(hint) in (typing.Union, types.UnionType)
    if union:
        found = letter_of(parts[0]).rstrip("N") if len(parts) == 1 else "o"
        return found + "N" * (len(parts) < len(get_args(hint)))
    if is_dataclass(hint) or get_origin(hint) in (dict, typing.Mapping, Mapping):
        return "m"
    if get_origin(hint) in (list, Sequence):
        return "l"
    return {bool: "b", int: "i", float: "f", str: "s"}.get(hint, "oN")


def settings_of(kind: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield (setting, its type's letter) of a dataclass of settings and of those below it."""
    for each in fields(kind):
        hint, name = get_type_hints(kind)[each.name], f"{above}{each.name}"
        if above:
            yield name, letter_of(hint)
        for part in (hint, *get_args(hint)):
            if is_dataclass(part):
                yield from settings_of(part, f"{name}.")


def is_wrong(key: str, letter: str, fault: str) -> bool:
    """Whether a setting of this type does not have this value."""
    types_ = FAULTS[fault][1]
    if fault == "null" and "N" in letter:
        return False
    if fault in ("negative", "10^30") and letter[0] == "i":
        return not key.endswith(("seed", "reset"))
    return letter[0] in types_


def settings(fixture: Fixture) -> Iterator[Kind]:
    """Yield each setting of the schema with each fault."""
    for key, letter in settings_of(Config):
        base = next((more for name, more in BASES.items() if key.startswith(name)), ())
        for fault, (value, _) in FAULTS.items():
            expected = REFUSED if is_wrong(key, letter, fault) else ANY
            yield Kind("settings", key, fault, (DRY, *ALONE, HERE, *base, f"++{key}={value}"), expected, (key,))


REAL = ("zero", "1e9", "10^30", "inf", "1e300")  # of a method: decoded if no check refuses them


def methods(fixture: Fixture) -> Iterator[Kind]:
    """Yield each parameter of each method with each fault."""
    for name in fixture.usable:
        node = yaml.safe_load((conf_dir() / f"method/{name}.yaml").read_text())
        kind = pkgutil.resolve_name(node["_target_"])
        hints = get_type_hints(kind if "__dataclass_fields__" in vars(kind) else kind.__init__)
        for key in ("reset", "_target_", *(key for key in node if key not in ("reset", "_target_", "defaults"))):
            letter = letter_of(hints.get(key, str))
            for fault, (value, _) in FAULTS.items():
                words = f"method.{name}.{key}", f"method.{name}: "
                dry = () if fault in REAL else (DRY,)
                settings = (*dry, *SMALL, HERE, f"method=[{name}]", f"++method.{name}.{key}={value}")
                expected = REFUSED if is_wrong(key, letter, fault) else ANY
                yield Kind("methods", f"{name}.{key}", fault, settings, expected, words)


def groups(fixture: Fixture) -> Iterator[Kind]:
    """Yield each group of the configuration with each fault in place of an option, and a near name of each option."""
    names = [*list_options(""), "hydra/launcher", "hydra/help", "model.random", "method.pld", "method.nope"]
    for group in names:
        for fault, (value, _) in FAULTS.items():
            expected = REFUSED if fault not in ("null", "missing", "empty list", "its own output") else ANY
            yield Kind("groups", group, fault, (DRY, *ALONE, HERE, f"{group}={value}"), expected, (group, group.split(".")[0]))
        for option in list_options(group)[:60] if "/" not in group and "." not in group else ():
            near = f"{option[:-1]}{option[-1]}x"
            value = f"[{near}]" if group == "method" else near
            sign = "+" * (group in ("experiment", "size"))
            yield Kind("near names", group, near, (DRY, *SMALL, HERE, f"{sign}{group}={value}"), REFUSED, (option,))
    for key, _ in settings_of(Config):
        for fault, near in {"a letter twice": f"{key}{key[-1]}", "a letter less": key[:-1], "upper case": key.upper()}.items():
            words = key.rpartition(".")[2], key.partition(".")[0]
            yield Kind("near names", key, fault, (DRY, *ALONE, HERE, f"{near}=1"), REFUSED, words)


# Setting that does nothing -> what else is set.
IDLE: dict[str, tuple[str, ...]] = {
    **{f"load.{item}": () for item in ("requests=5", "budget=score", "nodes=9", "chunk=7", "block=3", "ramp=2",
                                       "tokens=100", "rate=3", "times=t.json", "slo.ttft_ms=5", "slo.tpot_ms=5")},
    **{f"decode.{item}": () for item in ("top_p=0.5", "top_k=5", "verify=block", "length_threshold=0.9",
                                         "length_profile=h100-8b")},
    **{f"model.{item}": () for item in ("revision=main", "trace=t.jsonl", "parallel=tensor", "check_ranks=true",
                                        "cudnn_attention=true", "draft=bundled:tiny_eagle", "heads.medusa=bundled:x",
                                        "heads.eagle=random", "heads.safetensors=false", "frozen_table=x", "datastore=x",
                                        "random.seed=3", "random.family=mistral", "system=Hello", "thinking=true")},
    **{f"suite.{item}": () for item in ("shots_seed=3", "seed=5", "fields.prompt=x", "frame=x", "hub.repo=x/y",
                                        "hub.split=x", "shots_from=x", "form=bare", "home=x", "relative=x")},
    **{f"engine.{item}": ("engine=eager",) for item in ("pack=false", "compiled=false", "attention=triton")},
    "load.nodes=3": ("load=closed",), "load.rate=2": ("load=closed",), "load.times=t.json ": ("load=closed",),
    "hydra/launcher=submitit_local": (), "hydra/launcher=submitit_slurm": (), "hydra.sweep.dir=x": (),
    "hydra.sweep.subdir=x": (), "+hydra.launcher.timeout_min=3": (), "report.style=paper": ("report.plots=false",),
    "method.pld.max_ngram=3": ("method=[sam]",), "method.server.url=http://x": (), "run.retry=true": ("measure.fresh=true",),
    "measure.price_per_hour=3": ("model=replay", "model.trace=run/records.jsonl"),
    "engine.max_nodes=100": ("model=replay", "model.trace=run/records.jsonl", "method=[]"),
    "decode.length=confidence": ("method=[]",), "measure.seed=3": ("method=[]",),
}  # fmt: skip


def idle(fixture: Fixture) -> Iterator[Kind]:
    """Yield settings that are given and do nothing."""
    for setting, base in IDLE.items():
        key = setting.lstrip("+").partition("=")[0]
        words = key, key.replace("/", ".")
        files = {"t.json": holds("[0, 1, 2]"), "t.jsonl": holds("{}")}
        yield Kind("idle", setting, "does nothing", (DRY, *ALONE, HERE, *base, setting.strip()), REFUSED, words,
                   ("run",) if any("run/" in item for item in base) else (), files, outputs=("run", "new"))  # fmt: skip


# Words of a command line -> what its message names, '' if it is no fault.
LINES: dict[str, tuple[tuple[str, ...], str]] = {
    **{f"alone {word!a}": ((word,), word[:1] if len(word) < 3 else word[:5]) for word in
       ("=", "==", "=1", "model", "model=", "+", "~", "~model", "-", "--", "---", "a=b", "@", "{", "[", "${", "'", '"',
        "nope", "modle=tiny", "+model=tiny", "++model.path", "model.path.x=1", "suite@x=mini", "\0", "\ud800=1", "é=1",
        "--nope", "--config-dir", "--config-name", "--cfg", "--package", "-x", "decode.seed=1,2", "x" * 100_000)},
    "configuration folder missing": (("--config-dir", "/nope"), "/nope"),
    "configuration folder a file": (("--config-dir", "/etc/hostname"), "/etc/hostname"),
    "configuration folder empty": (("--config-dir", "."), ""),
    "configuration path": (("--config-path", "/nope"), "config-path"),
    "configuration name": (("--config-name", "nope"), "nope"),
    "configuration name of a group": (("--config-name", "model"), "model"),
    "configuration shown of nothing": (("--cfg", "nope"), "nope"),
    "info": (("--info", "nope"), "nope"),
    "package": (("--cfg", "job", "--package", "nope"), "nope"),
    "two models": (("model=tiny", "model=tiny_draft"), "model"),
    "a list of models": (("model=[tiny,tiny_draft]",), "model"),
    "a method twice": (("method=[pld,pld]",), ""),
    "a setting twice": (("decode.seed=1", "decode.seed=2"), ""),
    "a setting twice, of two": (("decode.max_new_tokens=1", "decode.max_new_tokens=abc"), "max_new_tokens"),
    **{f"sweep of {text}": (("-m", f"decode.seed={text}"), "decode.seed") for text in
       ("range(0,1e9)", "range(0,1000000000)", "range(0,10,0)", "range(1,0)", "glob(*)", "choice()", "interval(0,1)",
        "range(0,inf)", "range(0,nan)", "a,b", "1,1", "shuffle(range(0,100000000))", ",", "1,,2")},
    "sweep of two settings": (("-m", "decode.seed=range(0,100000)", "measure.seed=range(0,100000)"), "seed"),
    "sweep of nothing": (("-m",), ""),
    "sweep and dry run": (("-m", DRY, "decode.seed=1,2"), "dry-run"),
    **{f"directory {place!r}": ((f"hydra.run.dir={place}",), "hydra.run.dir") for place in
       ("/", ".", "..", "''", "../..", "/proc", "/dev/null", "/etc/hostname", "/root", "pipe", "/dev/shm/../..", "/sys")},
    "directory of another program": (("hydra.run.dir=full",), "full"),
    "part and shards": (("suite.part=1/2", "run.shards=2", "suite.first=2"), ""),
    "more shards than cases": (("run.shards=5",), ""),
    "replay and sampling": (("model=replay", "model.trace=run/records.jsonl", "decode.temperature=1"), "temperature"),
    "fresh and retry": (("measure.fresh=true", "run.retry=true"), "retry"),
    "load and part": (("load=closed", "suite.part=1/2"), "suite.part"),
    "load and prefill": (("load=closed", "decode.first_draft=prefill"), "first_draft"),
    "trace and model": (("model.trace=run/records.jsonl", "model.path=bundled:tiny"), "model"),
    "random and path": (("model=random", "model.path=bundled:tiny"), "model"),
    "poisson without rate": (("load=poisson", "load.rate=null"), "load.rate"),
    "poisson of a rate of 1e-300": (("load=poisson", "load.rate=1e-300"), "load.rate"),
    "poisson of a rate of 1e300": (("load=poisson", "load.rate=1e300"), ""),
    "frozen head": (("method=[eagle]", "model.heads.eagle=bundled:tiny"), "method.eagle.head"),
    "another vocabulary": (("method=[speculative_sampling]", "model.draft=bundled:tiny_eagle"), "draft"),
    "draft of itself": (("method=[speculative_sampling]", "model.draft=bundled:tiny"), ""),
    "longer than the context": (("model.context=64", "decode.max_new_tokens=100000"), ""),
    "no method": (("method=[]",), ""), "no vanilla": (("~method.vanilla",), "method.vanilla"),
    "no case": (("suite.categories=[nope]",), "suite.categories"), "unknown ids": (("suite.ids=[nope]",), "suite.ids"),
    "limit beyond": (("suite.limit=1000000",), ""), "sample beyond": (("suite.sample=1000000",), ""),
    "GPUs": (("model.gpus=4",), "model.gpus"), "device": (("model.device=cuda:7",), "model.device"),
    "precision": (("model.dtype=float8",), "model.dtype"), "end": (("model.overrides={eos_token_id: 99999999}",), "eos_token_id"),
    **{f"override {entry}": ((f"model.overrides={{{entry}}}",), "model.overrides") for entry in
       ("eos_token_id: -5", "rms_norm_eps: 1e30", "rms_norm_eps: -1", "rope_parameters: {rope_type: linear, factor: -3}",
        "rope_parameters: {rope_type: linear, factor: 0}", "rope_theta: -1", "rope_theta: 0", "vocab_size: 10",
        "max_position_embeddings: -1", "hidden_act: nope", "nope: 1", "1: 2", "num_hidden_layers: 1", "num_hidden_layers: 0",
        "initializer_range: -1", "pad_token_id: 99999999", "bos_token_id: -7", "attention_dropout: 7", "head_dim: 3",
        "tie_word_embeddings: 3", "model_type: nope", "architectures: 3", "hidden_size: 12", "num_key_value_heads: 3",
        "max_position_embeddings: 1e300", "rms_norm_eps: nan", "rope_parameters: 3", "attention_bias: true")},
}  # fmt: skip


def lines(fixture: Fixture) -> Iterator[Kind]:
    """Yield command lines without sense, contradictions, and settings that no run can have."""
    for fault, (words, named) in LINES.items():
        own = any(word.startswith("hydra.run.dir=") for word in words)
        more = () if own or "-m" in words else (HERE,)
        base = () if fault.startswith("alone") else (DRY, *ALONE) if "-m" not in words else ALONE
        if words[-1].startswith("model.overrides"):
            base = ALONE  # decoded, if no check refuses it
        yield Kind("lines", "words", fault, (*base, *more, *words), REFUSED if named else ANY, (named or "",), ("run",),
                   {"full/notes.txt": holds("mine"), "empty/a": holds("")}, outputs=("run", "results"))  # fmt: skip


# --- options of commands

# Command -> words that it needs, and the folders of the fixture that they name.
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "report": (("run", "--no-plots"), ("run",)),
    "list": ((".",), ("run", "other")),
    "diff": (("run", "other"), ("run", "other")),
    "compare": (("pld", "vanilla", "run"), ("run",)),
    "merge": (("part1", "part2", "--out", "new"), ("part1", "part2")),
    "choose": (("run/records.jsonl", "model.tokenizer=bundled:tiny", "method=[pld]"), ("run",)),
    "tune": (("--profile", "h100-8b", "--grid", "pld.max_ngram=1,2", "model=replay", "model.trace=run/records.jsonl",
              "method=[pld]"), ("run",)),
    "profile": ((*SMALL, "--fed", "1,2", "--contexts", "25", "--rounds", "1", "--out", "new"), ()),
    "build": (("datastore", "--tokenizer", "bundled:tiny", "--out", "new.safetensors", "corpus.txt"), ()),
    "completion": (("bash",), ()),
    "fetch": (ALONE, ()),
}  # fmt: skip
OPTIONS = {"empty": "", "text": "abc", "negative": "-1", "zero": "0", "1e9": "1000000000", "fraction": "1.5", "nan": "nan",
           "list": "1,2,,3", "long text": "x" * 5000, "steering": STEERING, "half a character": "\ud800",
           "NUL": "a\0b", "folder": ".", "root": "/", "pipe": "pipe", "endless device": "/dev/zero", "no file": "gone/gone",
           "kernel's log": "/proc/kmsg", "an input": "corpus.txt", "records": "run/records.jsonl", "markup": "[bold red]x[/]",
           "override": "a=b", "range": "1" + ",1" * 3000}  # fmt: skip
WRITERS = ("--output", "--out", "--export-answers")


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
            times = taken[option] if isinstance(taken.get(option), int) else 1
            made |= {(option, fault): (*given, option, *(value,) * times) for fault, value in OPTIONS.items()}
            made |= {(option, "without a value"): (*given, option)}
        for place, word in enumerate(words):
            if not word.startswith("--") and (place == 0 or not words[place - 1].startswith("--") or "plots" in words[place - 1]):
                made |= {(f"argument {place}", fault): (*words[:place], value, *words[place + 1 :])
                         for fault, value in OPTIONS.items()}  # fmt: skip
                made |= {(f"argument {place}", "missing"): (*words[:place], *words[place + 1 :])}
        made |= {("options", "unknown"): (*words, "--nope"), ("options", "abbreviated"): (*words, "--ou", "x")}
        for (place, fault), given in made.items():
            wrong = fault in ("steering", "NUL", "half a character", "no file", "text", "unknown", "without a value") and (
                place not in (*WRITERS, "--field", "--line", "--category") and command not in ("list", "fetch", "completion")
            )
            word = place if place.startswith("--") else OPTIONS.get(fault, "")[:10] or command
            yield Kind("options", f"{command} {place}", fault, (command, *given), REFUSED if wrong else ANY,
                       (word, place.lstrip("-"), "usage"), copies, files, outputs=("run", "new", "results", "abc", "1", "0", "x", "[", "-1", "nan", "a=b", "gone", "summary", "tables", "plots", "report"))  # fmt: skip


# --- files

QUESTION = '{"question_id": 1, "category": "qa", "turns": ["Where is the harbour?", "Why?"], "reference": ["a", "b"]}\n'
OWN = '{"prompt": "Where is the harbour?", "id": "1", "category": "qa", "reference": "there"}\n'
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
CHAT = json.dumps({"id": "1", "category": "qa", "messages": [*MESSAGES, {"role": "assistant", "content": "Ho ho"}]}) + "\n"
SHAREGPT = '{"id": "1", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}\n'
TRACE = '{"case": "1", "category": "qa", "turns": [{"prompt_ids": [1, 5], "ids": [7, 8, 2], "finish": "eos"}]}\n'
PASSED = '{"task_id": "x", "method": "pld", "passed": true, "round": 0}\n'
TIMES = "[0.0, 0.1, 0.3, 0.5]"
GSM8K = '{"question": "What is 1 + 1?", "answer": "1 + 1 = 2\\n#### 2"}\n'
HUMANEVAL = '{"task_id": "HumanEval/0", "prompt": "def f():\\n", "canonical_solution": "  pass", "test": "", "entry_point": "f"}\n'
MBPP = '{"task_id": 11, "text": "Write f.", "code": "f", "test_list": ["assert f()"], "test_setup_code": "", "challenge_test_list": []}\n'
MT_BENCH = '{"question_id": 81, "category": "writing", "turns": ["a", "b"]}\n'
REPLAYED = ("model=replay", "model.tokenizer=bundled:tiny", "method=[pld]", "suite.first=1", "report.plots=false", HERE)
REPORT = ("report", "run", "--no-plots")


@dataclass(frozen=True, slots=True)
class Reader:
    """A file and the command that reads it. strict: a value of another type is refused. of: content, or fixture's file.

    harmless: damages that are none here.
    """

    group: str
    name: str
    of: str | Path
    command: tuple[str, ...]
    copies: tuple[str, ...] = ()
    strict: bool = False
    words: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("run",)
    changes: tuple[str, ...] = ()
    entries: bool = True
    harmless: tuple[str, ...] = ()


def questions(name: str, content: str, *settings: str) -> Reader:
    """Return the reader of a file of questions."""
    path = f"q.{name.rpartition('.')[2]}" if "." in name else "q.jsonl"
    given = [item for item in ALONE if item != "suite.first=1"]
    return Reader(f"questions {name}", path, content, (*given, HERE, *settings, f"suite.path={path}"), outputs=("run",))


def readers(fixture: Fixture) -> Iterator[Reader]:
    """Yield the files that commands read."""
    yield questions("spec_bench", QUESTION, "suite=spec_bench", "suite.hub=null")
    yield questions("own", OWN, "suite=file")
    yield questions("own.json", f"[{OWN.strip()}]", "suite=file")
    yield questions("messages", json.dumps({"messages": MESSAGES, "id": "1"}) + "\n", "suite=file")
    yield questions("chat", CHAT, "suite=file")
    yield questions("conversations", SHAREGPT, "suite=file")
    yield questions("gsm8k", GSM8K, "suite=gsm8k")
    yield questions("humaneval", HUMANEVAL, "suite=humaneval")
    yield questions("mbpp", MBPP, "suite=mbpp")
    yield questions("mt_bench", MT_BENCH, "suite=mt_bench")
    for name, content in {"own.csv": "prompt,id,category\nWhere?,1,qa\n", "own.tsv": "prompt\tid\nWhere?\t1\n",
                          "own.txt": "Where?\n", "own.parquet": "x", "own.md": "Where?\n", "own.jsonl.gz": "x"}.items():  # fmt: skip
        yield questions(name, content, "suite=file")
    yield Reader("questions shots", "s.jsonl", GSM8K * 9, (DRY, *ALONE, HERE, "suite=gsm8k_8shot", "suite.path=q.jsonl", "suite.shots_from=s.jsonl"))  # fmt: skip
    yield Reader("trace ids", "t.jsonl", TRACE, (*REPLAYED, "model.trace=t.jsonl"), strict=True)
    yield Reader("trace chat", "t.jsonl", CHAT, (*REPLAYED, "model.trace=t.jsonl"))
    yield Reader("trace conversations", "t.jsonl", SHAREGPT, (*REPLAYED, "model.trace=t.jsonl"))
    yield Reader("trace records", "t/records.jsonl", fixture.folder / "run/records.jsonl", (*REPLAYED, "model.trace=t/records.jsonl"))
    yield Reader("timed records", "t/records.jsonl", fixture.folder / "run/records.jsonl", (DRY, "model=tiny", "engine=timed", "model.trace=t/records.jsonl", "method=[pld]", HERE))  # fmt: skip
    runs = {"records": "run/records.jsonl", "manifest": "run/manifest.json"}
    for group, name in runs.items():
        whole, strict = fixture.folder / name, group == "records"
        yield Reader(group, name, whole, REPORT, ("run",), strict, ("run",))
        yield Reader(f"{group} resumed", name, whole, (*ALONE, HERE), ("run",), strict, ("run",), changes=("run",))
        yield Reader(f"{group} grown", name, whole, (*ALONE, HERE, "suite.first=2"), ("run",), strict, ("run",), changes=("run",))
        for command, (words, copies) in COMMANDS.items():
            if "run" in copies and command != "report" and (strict or command != "tune"):
                yield Reader(f"{group} {command}", name, whole, (command, *words), copies, False, ("run",),
                             entries=command in ("list", "diff", "compare"))  # fmt: skip
        part = name.replace("run/", "part1/")
        yield Reader(f"{group} merged", part, fixture.folder / part, ("merge", "part1", "part2", "--out", "new"),
                     ("part1", "part2"), strict, ("part1",), ("new", "latest"))  # fmt: skip
    for name in (".deaths.json", ".at", ".lock", "summary.csv", "run.log", "report.html", "tables", "plots"):
        content = '{"0": 1}' if "json" in name else "0"
        yield Reader(f"side {name}", f"run/{name}", content, (*ALONE, HERE, "suite.first=2"), ("run",), words=("run",), changes=("run",))
        yield Reader(f"side {name} report", f"run/{name}", content, REPORT, ("run",), words=("run",), changes=("run",), entries=False)
    profile = next((conf_dir().parent / "results/profiles/published").glob("*.json"))
    yield Reader("profile report", "p.json", profile, (*REPORT, "--profile", "p.json"), ("run",), True)
    yield Reader("profile price", "p.json", profile, (DRY, *ALONE, HERE, "decode.length=price", "decode.length_profile=p.json"), strict=True)
    yield Reader("load times", "t.json", TIMES, (DRY, *ALONE, HERE, "load=trace", "load.times=t.json", "load.requests=2"), strict=True)
    for name, whole in {path.name: path for path in TINY.iterdir() if path.suffix in (".json", ".safetensors")}.items():
        yield Reader(f"model {name}", f"model/{name}", whole, (*ALONE, HERE, "model.path=model", "model.dtype=float32"), ("model",), words=("model",))  # fmt: skip
    yield Reader("model chat template", "t.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}", (*ALONE, HERE, "model.template=t.jinja"))  # fmt: skip
    yield Reader("head config.json", "head/config.json", PACKAGE / "assets/tiny_eagle/config.json", (*SMALL, HERE, "method=[eagle]", "model.heads.eagle=head"), words=("head",))  # fmt: skip
    for method, key, name in (("cacheback", "model.frozen_table", "frozen_table"), ("rest", "model.datastore", "datastore"),
                              ("sam", "method.sam.static", "datastore")):  # fmt: skip
        yield Reader(f"table {method}", "x.safetensors", TINY / f"{name}.safetensors", (*SMALL, HERE, f"method=[{method}]", f"{key}=x.safetensors"))  # fmt: skip
    yield Reader("style", "x.mplstyle", "figure.figsize: 3, 2\n", ("report", "run", "--no-plots", "--style", "x.mplstyle"), ("run",))
    yield Reader("style of plots", "x.mplstyle", "figure.figsize: 3, 2\n", ("report", "run", "--style", "x.mplstyle"), ("run",))
    yield Reader("passed", "p.jsonl", PASSED, (*REPORT, "--passed", "p.jsonl"), ("run",))
    for name, each in FORMATS.items():
        whole = next((fixture.folder / "exported" / name).rglob(each.file))
        yield Reader(f"import {name}", each.file, whole, ("report", "--import", each.file))
    answers = sorted((fixture.folder / "answers").rglob("*.jsonl"))
    yield Reader("answers", "m.jsonl", next(path for path in answers if "vanilla" not in path.name),
                 ("report", "--answers", "base.jsonl", "m.jsonl", "--tokenizer", str(TINY)))  # fmt: skip
    for kind in ("frozen_table", "datastore", "automaton"):
        yield Reader(f"build {kind}", "c.jsonl", '{"text": "The quick brown fox jumps over it."}\n' * 20,
                     ("build", kind, "--tokenizer", "bundled:tiny", "--out", "new.safetensors", "c.jsonl"), outputs=("new",))  # fmt: skip
    for name in ("c.json", "c.txt", "c.jsonl.gz", "c.zip"):
        yield Reader(f"build {name}", name, '[{"text": "The quick brown fox."}]',
                     ("build", "datastore", "--tokenizer", "bundled:tiny", "--out", "new.safetensors", name), outputs=("new",))  # fmt: skip
    published = next(iter(sorted((conf_dir().parent / "results/published").glob("*.csv"))))
    call = "from specbench.report.published import read_published as r; r(Path('csv'))"
    yield Reader("published", "csv/x.csv", published, (PYTHON, call))
    yield Reader("conf", "mine/experiment/x.yaml", "# @package _global_\ndecode:\n  seed: 3\n", (DRY, *ALONE, HERE, "--config-dir", "mine", "+experiment=x"), words=("x", "mine"))  # fmt: skip


def files(fixture: Fixture) -> Iterator[Kind]:
    """Yield each file with each damage of its bytes, what takes its place, and each entry of its JSON with each fault."""
    base = {"q.jsonl": holds(GSM8K), "base.jsonl": holds(b"")}
    if found := sorted((fixture.folder / "answers").rglob("vanilla*.jsonl")):
        base["base.jsonl"] = holds(found[0].read_bytes())
    for each in readers(fixture):
        raw = each.of.read_bytes() if isinstance(each.of, Path) else each.of.encode()
        area = each.group.partition(" ")[0]
        named = each.words or (Path(each.name).name,)

        def kind(place: str, fault: str, write: Lay, expected: str, each=each, area=area, named=named) -> Kind:
            files = {name: lay for name, lay in base.items() if name != each.name} | {each.name: write}
            return Kind(area, f"{each.group}{place}", fault, each.command, expected, named, each.copies, files,
                        outputs=each.outputs, changes=each.changes)  # fmt: skip

        side = area == "side"
        for fault, change in BYTES.items():
            wrong = fault in WRONG and not side and area not in ("build", "style", "conf")
            yield kind("", fault, lambda path, change=change, raw=raw: path.write_bytes(change(raw)), REFUSED if wrong else ANY)
        for fault, lay in THINGS.items():
            wrong = fault != "empty device" and not side and (area != "model" or "config" in each.name or "model.s" in each.name)
            yield kind("", fault, lay, REFUSED if wrong else ANY)
        if each.entries and Path(each.name).suffix in (".json", ".jsonl") and not side:
            text = raw.decode()
            first, rest = (text.split("\n", 1)) if each.name.endswith("l") else (text, "")
            for place, fault, wrong, changed in mutants_of(json.loads(first)):
                unparsed = fault in ("nan", "infinite", "half a character", "twice") and area in ("records", "manifest")
                wrong = unparsed or (wrong and each.strict and fault != "null")
                write = lambda path, changed=changed, rest=rest: holds(f"{changed()}\n{rest}")(path)  # noqa: E731
                yield kind(f" {place}", fault, write, REFUSED if wrong else ANY)


# --- servers, launchers, Python, surroundings

SERVED = ("model=server", "model.tokenizer=bundled:tiny", "suite.first=1", "decode.max_new_tokens=8", "measure=quick",
          "report.plots=false", HERE, f"method.vanilla.url={hostile.ADDRESS}/{hostile.GOOD}")  # fmt: skip
PATIENCE = tuple(f"method.{name}.{key}" for name in ("vanilla", "server") for key in ("timeout_s=3", "longest_s=6"))


def servers(fixture: Fixture) -> Iterator[Kind]:
    """Yield each fault of the connection at each endpoint, and each entry of each answer with each fault."""
    def kind(group: str, place: str, fault: str, mode: str, expected: str = ANY, *more: str) -> Kind:
        command = (*SERVED, *PATIENCE, f"method.server.url={hostile.ADDRESS}/{mode}", *more)
        return Kind(group, place, fault, command, expected, ("127.0.0.1", "method.server"))

    for endpoint in hostile.ENDPOINTS:
        for number, fault in enumerate(hostile.TRANSPORT):
            wrong = endpoint == "answer" and fault not in ("endless comments", "unknown charset")
            yield kind("transport", endpoint, fault, f"t,{endpoint},{number}", REFUSED if wrong else ANY)
    for number, (place, fault, *_) in enumerate(hostile.tables()):
        yield kind("replies", place, fault, f"j,{number}")
    for number, (place, fault, wrong, *_) in enumerate(hostile.replies()):
        ids = any(word in place for word in ("token_ids", "output_ids", "tokens", "finish_reason", "choices")) and "num_" not in place
        refused = (wrong and ids and fault not in ("null", "empty list", "empty object")) or fault in ("nan", "infinite")
        yield kind("replies", place, fault, f"r,{number}", REFUSED if refused else ANY)
    for fault, address in {"nobody": hostile.free_address(), "no host": "http://nope.invalid", "no scheme": "localhost:1",
                           "file": "file:///etc/passwd", "port 0": "http://127.0.0.1:0", "port 99999": "http://127.0.0.1:99999",
                           "password": "http://a:b@127.0.0.1", "steering": f"http://{STEERING}", "IPv6": "http://[::1",
                           "empty host": "http://", "query": "http://127.0.0.1?x=1"}.items():  # fmt: skip
        words = *SERVED, *PATIENCE, f'method.server.url="{address}"'
        yield Kind("transport", "address", fault, words, REFUSED, ("url", address[:30]))


def launchers(fixture: Fixture) -> Iterator[Kind]:
    """Yield each setting of each launcher with each fault."""
    for name in ("submitit_local", "submitit_slurm"):
        node = yaml.safe_load((conf_dir() / f"hydra/launcher/{name}.yaml").read_text())
        for key, default in node.items():
            letter = "oN" if default is None else "s" if key == "_target_" else letter_of(type(default)) if not isinstance(default, dict) else "m"  # fmt: skip
            for fault, (value, _) in FAULTS.items():
                settings = (DRY, *ALONE, HERE, "run.shards=2", "suite.first=2", f"hydra/launcher={name}", f"hydra.launcher.{key}={value}")
                expected = REFUSED if is_wrong(key, letter, fault) else ANY
                yield Kind("launchers", f"{name}.{key}", fault, settings, expected, (key,))


VALUES = {"nothing": "", "None": "None", "number": "3", "list": "['method=[pld]']", "bytes": "b'run'", "path": "Path('gone')",
          "empty": "''", "NUL": "'a\\0b'", "half a character": "'\\ud800'", "mapping": "{'a': 1}", "nan": "float('nan')",
          "object": "object()", "long": "'x' * 100_000", "folder": "'.'", "file": "'pipe'", "device": "'/dev/zero'",
          "two": "'a', 'b'", "unknown": "'nope=1'", "flag": "'--help'", "dry": "'--dry-run'", "sweep": "'-m', 'decode.seed=1,2'",
          "keyword": "x=1", "true": "True", "generator": "(x for x in 'ab')"}  # fmt: skip
CALLS = {"run": "import specbench; specbench.run({})", "load": "import specbench; specbench.load({})",
         "load of a run": "import specbench; specbench.load('run').summary; specbench.load('run', {})",
         "run of a job": f"import specbench; specbench.run(*{[*ALONE, HERE]!r}, {{}})"}  # fmt: skip


def calls(fixture: Fixture) -> Iterator[Kind]:
    """Yield calls from Python with each wrong value."""
    for place, call in CALLS.items():
        for fault, value in VALUES.items():
            harmless = fault in ("nothing", "folder") or (place == "run of a job" and fault in ("dry", "empty"))
            if place != "load of a run" or fault not in ("nothing",):
                yield Kind("python", place, fault, (PYTHON, call.format(value)), ANY if harmless or fault == "keyword" else REFUSED,
                           ("",), ("run",), changes=("run",), outputs=("run", "results"))  # fmt: skip


def gone(path: Path) -> None:
    """Delete the working directory."""
    shutil.rmtree(path)


def closing(number: int) -> Lay:
    """Return what closes a standard stream."""
    return lambda path: os.close(number)


def onto(number: int, target: str) -> Lay:
    """Return what puts a device in the place of a standard stream."""
    return lambda path: os.dup2(os.open(target, os.O_RDWR), number)


def variable(name: str, value: str) -> Lay:
    """Return what sets a variable of the environment."""
    return lambda path: os.environ.update({name: value})


AROUND: dict[str, Lay] = {
    "deleted working directory": gone,
    **{f"closed stream {number}": closing(number) for number in (0, 1, 2)},
    **{f"stream {number} on {target}": onto(number, target) for number in (1, 2) for target in ("/dev/full", "/dev/null")},
    **{f"{name}={value}": variable(name, value)
       for name, values in {"COLUMNS": ("0", "-1", "abc", "1", "1000000000"), "LINES": ("abc",), "TERM": ("", "nope", "dumb"),
                            "SPECBENCH_DATA": ("", "/nope", "pipe", "/dev/zero", "x" * 300), "HOME": ("", "/nope", "pipe", "/dev/null"),
                            "XDG_CACHE_HOME": ("", "/dev/null", "pipe"), "TMPDIR": ("/nope", "/dev/null"), "TZ": ("nope", "\u202e"),
                            "OMP_NUM_THREADS": ("0", "-1", "abc"), "CUDA_VISIBLE_DEVICES": ("abc", "99"), "LANG": ("nope", "C"),
                            "LC_ALL": ("nope", "C"), "HF_HUB_OFFLINE": ("abc",), "HF_HOME": ("/dev/null",), "HF_ENDPOINT": ("abc", "http://127.0.0.1:1"),
                            "MPLBACKEND": ("nope",), "MPLCONFIGDIR": ("/dev/null",), "NUMBA_CACHE_DIR": ("/dev/null",),
                            "SPECBENCH_API_KEY": ("a\nb", "\u202e", ""), "HYDRA_FULL_ERROR": ("1",), "SLURM_JOB_ID": ("abc",),
                            "PYTHONPATH": ("/dev/null",), "USER": ("", "[bold]"), "PATH": ("",), "SOURCE_DATE_EPOCH": ("abc",)}.items()
       for value in values},
}  # fmt: skip


def surroundings(fixture: Fixture) -> Iterator[Kind]:
    """Yield a run, its estimate and its report in surroundings that no program expects."""
    kinds = {"run": (*ALONE, HERE), "dry run": (DRY, *ALONE, HERE), "report": REPORT, "list": ("list", ".")}
    for place, command in kinds.items():
        for fault, inside in AROUND.items():
            changes = ("",) if fault.startswith("deleted") else ("run",)
            copies = ("run",) if place in ("report", "list") else ()
            yield Kind("surroundings", place, fault, command, ANY, ("",), copies, {}, inside, ("run", ".cache"), changes)


KINDS = (settings, methods, groups, idle, lines, options, files, servers, launchers, calls, surroundings)


def make_kinds(fixture: Fixture) -> dict[str, list[Kind]]:
    """Returns all kinds by their groups."""
    found: dict[str, list[Kind]] = {}
    for make in KINDS:
        for kind in make(fixture):
            found.setdefault(kind.group, []).append(kind)
    return found
