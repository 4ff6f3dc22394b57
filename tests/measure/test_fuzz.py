"""The fuzzer of bad input finds planted faults of each letter, and passes kinds that end as they must."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.lab import fuzz
from scripts.lab.kinds import damage, inputs, server, settings
from scripts.lab.kinds.kind import ANY, PYTHON, REFUSED, Fixture, Kind
from specbench import commands
from specbench.input import InputError

NOTHING = Fixture(Path(), ("pld",))


def end_of(kinds: list[Kind], folder: Path, limit_s: float = 60.0, address: str = "") -> dict[str, list[str]]:
    """Name -> faults of the kinds, run as the program runs them."""
    ended = fuzz.run_kinds(kinds, folder, NOTHING, address, 2, limit_s, None)
    return {kind.name: fuzz.judge(kind, end) for kind, end in ended}


def say(text: str, code: int) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        print(text, file=sys.stderr)
        return code

    return command


def write(path: str, code: int = 0) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("changed")
        return code

    return command


def raising(words: list[str]) -> int:
    raise ValueError("planted")


def refusing(words: list[str]) -> int:
    raise InputError("a.b=1: expected 2")


def eating(words: list[str]) -> int:
    return len(bytearray(b"x") * (5 << 29)) * 0


GOOD = "specbench: error: a.b=1: expected 2"
PLANTED = {
    "a traceback": (raising, "a: ValueError: planted"),
    "a printed traceback": (say("Traceback (most recent call last):\nKeyError: 'x'", 1), "a: KeyError: 'x'"),
    "an odd exit code": (say("", 7), "a: exit code 7"),
    "no end": (lambda words: time.sleep(600), "b: no end in 3 s"),
    "success": (say("", 0), "c: succeeds"),
    "memory": (eating, "d: "),
    "a file outside": (write("../other", 2), "e: writes in/other"),
    "a file that is left": (write("run/records.jsonl", 2), "e: is refused and leaves in/cwd/run/records.jsonl"),
    "a changed input": (write("input", 2), "e: changes in/cwd/input"),
    "no message": (say("", 2), "f: no message"),
    "no name": (say("specbench: error: no", 2), "f: names none of a.b"),
    "a long message": (say(f"{GOOD} {'x' * 3000}", 2), "f: 3026 characters"),
    "a control character": (say(f"{GOOD} \x1b[31m", 2), r"f: a control character: '\x1b'"),
    "markup": (say(f"{GOOD} [red]x[/]", 2), "f: markup: '[red]'"),
    "Python's words": (say(f"{GOOD} 'NoneType' object has no attribute 'x'", 2), "f: Python's own words: 'NoneType'"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(monkeypatch, tmp_path, name):
    command, expected = PLANTED[name]
    monkeypatch.setattr(commands, "main", command)
    kind = Kind("g", "p", "f", ("x",), REFUSED, ("a.b",), files={"input": lambda path: path.write_text("mine")})
    found = end_of([kind], tmp_path, 3.0 if name == "no end" else 60.0)[kind.name]
    assert any(fault.startswith(expected) for fault in found), found


@pytest.mark.parametrize(("command", "expected"), [(refusing, REFUSED), (refusing, ANY), (say("", 0), ANY)])
def test_a_kind_that_ends_as_it_must_has_no_fault(monkeypatch, tmp_path, command, expected):
    monkeypatch.setattr(commands, "main", command)
    kind = Kind("g", "p", "f", ("x",), expected, ("a.b",))
    assert end_of([kind], tmp_path) == {kind.name: []}


CLEAN = (
    *(f"settings/{key}: {fault}" for key in ("decode.max_new_tokens", "measure.rounds", "engine.max_nodes")
      for fault in ("text", "negative", "fraction", "nan", "list", "null", "empty text")),
    *(f"near names/model: {name}x" for name in ("tiny", "random", "replay")),
    "near names/decode.max_new_tokens: a letter twice",
    "lines/words: info", "lines/words: load and part", "lines/words: frozen head",
    "options/report argument 0: no file", "options/diff argument 0: no file", "options/list argument 0: folder",
    "python/run: unknown",
)  # fmt: skip


@pytest.mark.exhaustive
def test_kinds_of_each_source_end_cleanly(tmp_path):
    """A run of the program in small: thirty kinds that every version refuses."""
    pytest.importorskip("torch")
    made = (kind for make in (*settings.KINDS, inputs.options, inputs.calls) for kind in make(NOTHING))
    chosen = [kind for kind in made if kind.name in CLEAN]
    assert {kind.name for kind in chosen} == set(CLEAN)
    chosen = [Kind(kind.group, kind.place, kind.fault, kind.command, kind.expected, kind.words) for kind in chosen]
    assert {name: faults for name, faults in end_of(chosen, tmp_path).items() if faults} == {}


def test_a_choice_is_even_and_repeatable():
    made = {name: [Kind(name, str(place), "f", ("x",), ANY, ()) for place in range(size)]
            for name, size in {"a": 50, "b": 3, "c": 50}.items()}  # fmt: skip
    chosen = fuzz.choose(made, 21, seed=0)
    assert [sum(kind.group == name for kind in chosen) for name in made] == [9, 3, 9]
    assert chosen == fuzz.choose(made, 21, seed=0) != fuzz.choose(made, 21, seed=1)
    assert len(fuzz.choose(made, 0, seed=0)) == 103


def test_each_entry_of_a_value_is_damaged_in_each_way():
    value = {"a": [1, 2], "b": {"c": None}}
    found = {(place, fault): (wrong, make()) for place, fault, wrong, make in damage.mutants_of(value)}
    assert {place for place, _ in found} == {"a", "a.0", "b", "b.c"}
    assert found["a.0", "text"] == (True, '{"a": ["abc", 2], "b": {"c": null}}')
    assert found["a.0", "negative"] == (False, '{"a": [-1, 2], "b": {"c": null}}')
    assert found["b", damage.ABSENT] == (False, '{"a": [1, 2]}')
    assert found["b.c", damage.TWICE][1] == '{"a": [1, 2], "b": {"c": null, "c": null}}'


def test_the_hostile_server_does_what_the_path_says(tmp_path):
    ask = "import urllib.request as u; text = u.urlopen('{}/{}', timeout={}).read().decode(); assert {}, text"
    cut = [*server.TRANSPORT].index("status 500")
    silent = [*server.TRANSPORT].index("silent")
    asked = {
        "good": (server.GOOD + "/v1/models", 20, '"m" in text'),
        "status": (f"t.models.{cut}/v1/models", 20, "False"),
        "silence": (f"t.metrics.{silent}/metrics", 2, "False"),
        "other": (f"t.models.{cut}/metrics", 20, '"spec_decode" in text'),
    }
    with server.serving() as address:
        kinds = [Kind("s", name, "f", (PYTHON, ask.format(server.ADDRESS, *words)), ANY, ("",))
                 for name, words in asked.items()]  # fmt: skip
        found = end_of(kinds, tmp_path, address=address)
    raised = {
        "s/good: f": [],
        "s/status: f": ["a: urllib.error.HTTPError"],
        "s/other: f": [],
        "s/silence: f": ["a: TimeoutError"],
    }
    assert {name: [fault[: len(expected)] for fault, expected in zip(found[name], raised[name], strict=True)]
            for name in raised} == raised  # fmt: skip
