"""Kinds of wrong settings: every setting of the schema, of a method, of a launcher, and command lines without sense.

Single mistakes that users make are cases of ``tests/bad_input/settings.py``, with the words of their messages.
"""

from __future__ import annotations

import pkgutil
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from scripts.lab.kinds.damage import STEERING
from scripts.lab.kinds.kind import ALONE, ANY, DONE, DRY, HERE, NONE, REFUSED, SMALL, Fixture, Kind, holds
from specbench.runs.config import Config, conf_dir, list_options

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
    "no UTF-8": ('"\udcff"', "biflm"),
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
BASES = {
    "model.random": ("model=random",), "load.rate": ("load=poisson", "load.requests=2"), "load": ("load=closed",),
    "decode.top": ("decode=sample",), "decode.length_threshold": ("decode.length=confidence",),
    "suite.shots_seed": ("suite=gsm8k_8shot",), "suite.hub": ("suite=gsm8k",), "decode.verify": ("decode=sample",),
}  # fmt: skip


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
    yield Kind("settings", "all", NONE, (DRY, *ALONE, HERE), DONE, ())
    for key, letter in settings_of(Config):
        base = next((more for name, more in BASES.items() if key.startswith(name)), ())
        for fault, (value, _) in FAULTS.items():
            expected = REFUSED if is_wrong(key, letter, fault) else ANY
            yield Kind(
                "settings",
                key,
                fault,
                (DRY, *ALONE, HERE, *base, f"++{key}={value}"),
                expected,
                (key, f"{key.rpartition('.')[0]}={{"),
            )


REAL = ("zero", "1e9", "10^30", "inf", "1e300")  # of a method: decoded if no check refuses them


def methods(fixture: Fixture) -> Iterator[Kind]:
    """Yield each parameter of each method with each fault."""
    for name in fixture.usable:
        yield Kind("methods", name, NONE, (DRY, *SMALL, HERE, f"method=[{name}]"), DONE, ())
        node = yaml.safe_load((conf_dir() / f"method/{name}.yaml").read_text())
        kind = pkgutil.resolve_name(node["_target_"])
        hints = get_type_hints(kind if "__dataclass_fields__" in vars(kind) else kind.__init__)
        for key in ("reset", "_target_", *(key for key in node if key not in ("reset", "_target_", "defaults"))):
            letter = letter_of(hints.get(key, str))
            for fault, (value, _) in FAULTS.items():
                words = f"method.{name}.{key}", f"method.{name}: ", f" {key}={value}"
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
            yield Kind(
                "groups", group, fault, (DRY, *ALONE, HERE, f"{group}={value}"), expected, (group, group.split(".")[0])
            )
        for option in list_options(group)[:60] if "/" not in group and "." not in group else ():
            near = f"{option[:-1]}{option[-1]}x"
            value = f"[{near}]" if group == "method" else near
            sign = "+" * (group in ("experiment", "size"))
            yield Kind("near names", group, near, (DRY, *SMALL, HERE, f"{sign}{group}={value}"), REFUSED, (option,))
    for key, _ in settings_of(Config):
        for fault, near in {
            "a letter twice": f"{key}{key[-1]}",
            "a letter less": key[:-1],
            "upper case": key.upper(),
        }.items():
            words = key.rpartition(".")[2], key.partition(".")[0]
            yield Kind("near names", key, fault, (DRY, *ALONE, HERE, f"{near}=1"), REFUSED, words)


PLAIN = tuple(item for item in ALONE if not item.startswith("engine."))  # idle with some engines itself
# Words of a command line -> what its message names, '' if it is no fault.
LINES: dict[str, tuple[tuple[str, ...], str]] = {
    **{f"alone {word!a}": ((word,), word[:1] if len(word) < 3 or word[1] == "=" else word.lstrip("~")[:5]) for word in
       ("=", "==", "=1", "model", "model=", "+", "~", "~model", "-", "--", "---", "a=b", "@", "{", "[", "${", "'", '"',
        "nope", "modle=tiny", "+model=tiny", "++model.path", "model.path.x=1", "suite@x=mini", "\0", "\udcff=1", "é=1",
        "--nope", "--config-dir", "--config-name", "--cfg", "--package", "-x", "decode.seed=1,2", "x" * 100_000)},
    "configuration folder a file": (("--config-dir", "/etc/hostname"), "/etc/hostname"),
    "configuration folder empty": (("--config-dir", "."), ""),
    "configuration name": (("--config-name", "nope"), "nope"),
    "configuration name of a group": (("--config-name", "model"), "model"),
    "configuration shown of nothing": (("--cfg", "nope"), "nope"),
    "info": (("--info", "nope"), "nope"),
    "package": (("--cfg", "job", "--package", "nope"), "nope"),
    "two models": (("model=tiny", "model=tiny_draft"), ""),
    "a list of models": (("model=[tiny,tiny_draft]",), "model"),
    "a method twice": (("method=[pld,pld]",), ""),
    "a setting twice": (("decode.seed=1", "decode.seed=2"), ""),
    "a setting twice, of two": (("decode.max_new_tokens=1", "decode.max_new_tokens=abc"), "max_new_tokens"),
    **{f"sweep of {text}": (("-m", f"decode.seed={text}"), "decode.seed") for text in
       ("range(0,1e9)", "range(0,1000000000)", "range(0,10,0)", "range(1,0)", "glob(*)", "choice()", "interval(0,1)",
        "range(0,inf)", "range(0,nan)", "a,b", "1,1", "shuffle(range(0,100000000))", ",", "1,,2")},
    "sweep of nothing": (("-m",), ""),
    "sweep and dry run": (("-m", DRY, "decode.seed=1,2"), "dry-run"),
    **{f"directory {place!r}": ((f"hydra.run.dir={place}",), "hydra.run.dir") for place in
       ("../..", "/proc", "/dev/null", "/etc/hostname", "/root", "pipe", "/dev/shm/../..")},
    "part and shards": (("suite.part=1/2", "run.shards=2"), ""),
    "more shards than cases": (("run.shards=5",), ""),
    "replay and sampling": (("model=replay", "model.trace=run/records.jsonl", "measure=replay", "decode.temperature=1"),
                            "temperature"),
    "load and part": (("load=closed", "suite.part=1/2"), "suite.part"),
    "load and prefill": (("load=closed", "decode.first_draft=prefill"), "first_draft"),
    "trace and model": (("model.trace=run/records.jsonl", "model.path=bundled:tiny"), "model"),
    "poisson of a rate of 1e-300": (("load=poisson", "load.rate=1e-300"), "load.rate"),
    "poisson of a rate of 1e300": (("load=poisson", "load.rate=1e300"), ""),
    "frozen head": (("method=[eagle]", "model.heads.eagle=bundled:tiny"), "method.eagle.head"),
    "another vocabulary": (("method=[speculative_sampling]", "model.draft=bundled:tiny_eagle"), "draft"),
    "draft of itself": (("method=[speculative_sampling]", "model.draft=bundled:tiny"), ""),
    "longer than the context": (("model.context=64", "decode.max_new_tokens=100000"), ""),
    "no method": (("method=[]",), ""),
    "limit beyond": (("suite.limit=1000000",), ""), "sample beyond": (("suite.sample=1000000",), ""),
    **{f"override {entry}": ((f"model.overrides={{{entry}}}",), "model.overrides") for entry in
       ("eos_token_id: 99999999", "eos_token_id: -5", "rms_norm_eps: nan", "rms_norm_eps: 1e30", "rms_norm_eps: -1",
        "rope_parameters: {rope_type: linear, factor: -3}", "num_hidden_layers: 0", "num_key_value_heads: 3",
        "rope_parameters: {rope_type: linear, factor: 0}", "rope_theta: -1", "rope_theta: 0", "vocab_size: 10",
        "max_position_embeddings: -1", "hidden_act: nope", "nope: 1", "1: 2", "num_hidden_layers: 1",
        "initializer_range: -1", "pad_token_id: 99999999", "bos_token_id: -7", "attention_dropout: 7", "head_dim: 3",
        "tie_word_embeddings: 3", "model_type: nope", "architectures: 3", "hidden_size: 12",
        "max_position_embeddings: 1e300", "rope_parameters: 3", "attention_bias: true")},
}  # fmt: skip


def lines(fixture: Fixture) -> Iterator[Kind]:
    """Yield command lines without sense, contradictions, and settings that no run can have."""
    for fault, (words, named) in LINES.items():
        own = any(word.startswith("hydra.run.dir=") for word in words)
        more = () if own or "-m" in words else (HERE,)
        base = () if fault.startswith("alone") else (DRY, *PLAIN) if "-m" not in words else PLAIN
        if words[-1].startswith("model.overrides"):
            base = ALONE  # decoded, if no check refuses it
        named = named if named != "model.overrides" else fault.split()[1].rstrip(":")
        named_too = ("model.tokenizer",) if fault.startswith("override") else ()  # of another vocabulary
        expected = REFUSED if named else ANY
        yield Kind("lines", "words", fault, (*base, *more, *words), expected, (named, *named_too), ("run",),
                   {"empty/a": holds("")}, outputs=("run", "results"))  # fmt: skip


TWO = (*ALONE, HERE, "run.shards=2")


def launchers(fixture: Fixture) -> Iterator[Kind]:
    """Yield each setting of each launcher with each fault."""
    for name in ("submitit_local", "submitit_slurm"):
        node = yaml.safe_load((conf_dir() / f"hydra/launcher/{name}.yaml").read_text())
        yield Kind("launchers", name, NONE, (DRY, *TWO, f"hydra/launcher={name}"), DONE, ())
        for key, default in node.items():
            letter = letter_of(type(default)) if default is not None and key != "_target_" else "oN"
            for fault, (value, _) in FAULTS.items():
                words = f"hydra/launcher={name}", f"hydra.launcher.{key}={value}"
                number = letter == "b" and fault in ("two", "negative", "1e9", "10^30")  # their schema reads it as true
                wrong = is_wrong(key, letter, fault) and not number
                expected = REFUSED if wrong else ANY
                yield Kind(
                    "launchers", f"{name}.{key}", fault, (DRY, *TWO, *words), expected, (key, name, "hydra/launcher")
                )


KINDS = (settings, methods, groups, lines, launchers)
