"""Everything that a user can get wrong ends with one message and an exit code, before weights load.

A row of the table is a command, the files that it finds, and words of its message: the setting or
file, the value, and the fix.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from report.conftest import manifest_of

from builders.damage import put
from builders.records import record, turn
from specbench import commands
from specbench.runs import sources
from specbench.runs.config import PACKAGE

LONGEST = 2_000  # [characters] of a message
TINY = PACKAGE / "assets/tiny"
DEEP = "[" * 100_000  # JSON that no parser may follow
HUGE = 10**12
Files = Mapping[str, str | bytes] | Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Bad:
    """command: paths in it are relative to the folder that files are written into.

    words: each is in the message. files: name -> content, or what writes them. loads: whether
    weights may be loaded.
    """

    name: str
    command: tuple[str, ...]
    words: tuple[str, ...]
    files: Files
    loads: bool = False

    def write(self, folder: Path) -> None:
        if not isinstance(self.files, Mapping):
            self.files(folder)
            return
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def bad(
    arguments: str, *words: str, name: str = "", files: Files | None = None, loads: bool = False
) -> Bad:
    """Of ``specbench ARGUMENTS`` into ``run``; of ``method=[pld]`` if it names no methods."""
    given = shlex.split(arguments)
    if not any(item.startswith("method=") for item in given):
        given.append("method=[pld]")
    if not any(item.startswith("hydra.run.dir=") for item in given):
        given.append("hydra.run.dir=run")
    return Bad(name or arguments, tuple(given), words, files or {}, loads=loads)


def bad_report(arguments: str, *words: str, name: str = "", files: Files | None = None) -> Bad:
    """Of ``specbench report ARGUMENTS``."""
    return Bad(name or arguments, ("report", *shlex.split(arguments)), words, files or {})


SETTINGS = (
    # names, with what is meant
    bad("method=[pdl]", "method=pdl", "did you mean pld?"),
    bad("method.pld.max_ngrams=3", "max_ngrams", "did you mean max_ngram?"),
    bad("sute.limit=3", "sute.limit", "did you mean suite?"),
    bad("suite.limit", "suite.limit", "SETTING=VALUE"),
    bad("suite.path=a=b.jsonl", "suite.path=a=b.jsonl", "quotes"),
    bad("experiment=cacheback_table1 size=small", "size", "+size=small"),
    bad("method='[[pld]]'", "method=[[pld]]", "sam"),
    bad("method.sam.max_ngram=3", "method.sam.max_ngram", "method=[sam]"),
    # values
    bad("method.pld.max_ngram=0", "method.pld.max_ngram=0", "from 1 to 4096"),
    bad("decode.temperature=nan", "decode.temperature=nan"),
    bad(f"decode.seed={10**30}", "decode.seed"),
    bad("model.dtype=float8", "model.dtype=float8", "bfloat16"),
    bad("measure.fresh=2", "measure.fresh=2", "true or false"),
    bad("suite.categories=[poetry]", "suite.categories", "poetry", "translation"),
    bad("suite.part='3/2'", "suite.part=3/2", "k/n"),
    bad("'suite=${nope}'", "suite=${nope}"),
    bad("load=closed 'load.budget=${oc.env:NOPE_X}'", "load.budget", "NOPE_X"),
    bad("'model.name=\"\ud800\"'", "model.name=", "UTF-8", name="half a character"),
    # settings without their partners, and without effect
    bad("model=hub", "model.path", "not set"),
    bad("model=replay", "model.trace", "model.trace=FILE"),
    bad("decode.top_p=0.9", "decode.top_p=0.9", "decode.temperature above 0"),
    bad("model.heads.eagle3=random", "model.heads.eagle3=random", "eagle3"),
    bad("engine=eager engine.compiled=false", "engine.compiled=false", "engine=fast"),
    bad("--config-dir /nope", "--config-dir /nope", "no such folder"),
    # classes
    bad("+method.x._target_=os.system", "method.x._target_=os.system", "PYTHONPATH"),
    bad(
        "method=[hybrid] +method.hybrid.members.x._target_=os.system",
        "method.hybrid.members.x._target_=os.system",
    ),
    # places
    bad("hydra.run.dir=/", "hydra.run.dir=", "bin"),
    bad("hydra.run.dir='\"~\"'", "hydra.run.dir=", "new folder"),
    bad("hydra.run.dir=file/run", "is not a folder", "hydra.run.dir", files={"file": ""}),
    bad(f"model.path=/{'x' * 300}", "model.path=/xxx", "300 bytes", name="a name of 300 bytes"),
    bad("'model.path=\"a\0b\"'", "model.path=", "NUL", name="a path with NUL"),
    *(
        Bad(
            f"option: {name}",
            ("--config-dir", "mine", "experiment=x", "hydra.run.dir=run"),
            ("mine/experiment/x.yaml", word),
            {"mine/experiment/x.yaml": content},
        )
        for name, content, word in (
            ("nested", "[" * 10_000, "YAML"),
            ("key twice", "a: 1\na: 2", "duplicate"),
            ("not UTF-8", b"a: \xff", "UTF-8"),
        )
    ),
)


def model(
    name: str, *words: str, loads: bool = False, **files: str | bytes | Callable[[bytes], bytes]
) -> Bad:
    """Of the bundled model with other files; a name's last underscore is its dot."""

    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        for file in TINY.iterdir():
            (folder / "model" / file.name).symlink_to(file)
        for key, content in files.items():
            path = folder / "model" / ".".join(key.rsplit("_", 1))
            content = content(path.read_bytes()) if callable(content) else content
            path.unlink()
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return bad("model.path=model", *words, name=f"model: {name}", files=write, loads=loads)


def updated(**changes: object) -> Callable[[bytes], bytes]:
    """Of a JSON file: with other entries."""
    return lambda content: json.dumps(json.loads(content) | changes).encode()


def config(*words: str, loads: bool = False, **changes: object) -> Bad:
    return model(f"{changes}", *words, loads=loads, config_json=updated(**changes))


def data_of(byte: bytes) -> Callable[[bytes], bytes]:
    """Of a safetensors file: with every byte of its tensors replaced."""

    def change(content: bytes) -> bytes:
        header = 8 + int.from_bytes(content[:8], "little")
        return content[:header] + byte * (len(content) - header)

    return change


def tiny_without(word: str) -> Callable[[Path], object]:
    """The bundled model without files of this word."""

    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        for file in TINY.iterdir():
            if word not in file.name:
                (folder / "model" / file.name).symlink_to(file)

    return write


WEIGHTS, FILE = "safetensors", "model.safetensors"
SHAPE = "model=random ++model.random.config"
MODELS = (
    bad("model.path=model", WEIGHTS, name="no weights", files=tiny_without(WEIGHTS)),
    bad("model.path=model", "tokenizer", name="no tokenizer", files=tiny_without("tokenizer")),
    model("weights text", FILE, "not a complete safetensors", model_safetensors="hello " * 99),
    model("weights NaN", "not finite", loads=True, model_safetensors=data_of(b"\xff")),
    model("weights zero", "all equal", loads=True, model_safetensors=data_of(b"\0")),
    model(
        "config key twice", "'vocab_size' twice", config_json='{"vocab_size": 1, "vocab_size": 2}'
    ),
    model("tokenizer text", "model.tokenizer=model", tokenizer_json="hello"),
    model(
        "endless answers", "eos_token_id", "'abc'", generation_config_json='{"eos_token_id": "abc"}'
    ),
    model(
        "endless template",
        "Range too big",
        tokenizer_config_json=updated(chat_template="{% for each in range(10**12) %}{% endfor %}"),
    ),
    config("embed_tokens.weight", "[2048, 256]", "[2048, 128]", loads=True, hidden_size=128),
    config("model.layers.5", loads=True, num_hidden_layers=9),
    config("eos_token_id is 99999999", "0 to 2047", eos_token_id=99999999),
    bad("'model.overrides={hidden_size: 12}'", "model.overrides.hidden_size=12", "multiple"),
    bad(f"{SHAPE}.vocab_size=-5", "model.random.config", "vocab_size is -5"),
    bad(f"{SHAPE}.intermediate_size={HUGE}", "model.random.config", "GB"),
    bad(
        "method=[eagle] model.heads.eagle=head",
        "method.eagle.head=head",
        files={"head/config.json": "hello"},
    ),
)

SAID = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}
LIVE = {"case": "1", "turns": [{"prompt_ids": [1, 5], "ids": [7, 2], "finish": "eos"}]}


def changed(value: Any, **changes: Any) -> Any:
    """A copy of a JSON object with other entries, in places such as ``turns__0__ids``."""
    for place, entry in changes.items():
        path = tuple(int(part) if part.isdigit() else part for part in place.split("__"))
        value = json.loads(put(value, path, json.dumps(entry)))
    return value


def trace(name: str, line: Any, *words: str, before: Any = None) -> Bad:
    lines = [each for each in (before, line) if each is not None]
    text = "".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in lines)
    command = "model=replay model.trace=t.jsonl model.tokenizer=bundled:tiny"
    return bad(command, "t.jsonl", *words, name=f"trace: {name}", files={"t.jsonl": text})


FILES = (
    bad("suite=spec_bench", "suite.path", "SPECBENCH_DATA"),
    bad("suite.path=/dev/zero", "/dev/zero", "device"),
    trace("empty", "", "line 1"),
    trace("nested", DEEP, "line 1", "recursion"),
    trace("no text", changed(SAID, messages__0__content=3), "messages.0.content", before=SAID),
    trace("finish", changed(LIVE, turns__0__finish="stop"), "turns.0.finish", "'stop'", "'eos'"),
    trace("foreign id", changed(LIVE, turns__0__ids=[9_999_999, 2]), "model.tokenizer", "9999999"),
    trace("early end", changed(LIVE, turns__0__ids=[7, 2, 7, 2]), "id 2", "finish=length"),
)


def report(name: str, *words: str, manifest: Any = None, whole: str = "", **changes: Any) -> Bad:
    """Of two cases under vanilla and pld. changes: of the second record. whole: a last line."""
    records = [
        record(method, case, [turn([1, 1])], block=block, position=position)
        for block, case in enumerate("ab")
        for position, method in enumerate(("vanilla", "pld"))
    ]
    lines = [json.loads(entry.to_json()) for entry in records]
    lines[1] = changed(lines[1], **changes)
    files = {
        "run/manifest.json": json.dumps(manifest_of({"pld": {}}, control=False) | (manifest or {})),
        "run/records.jsonl": "".join(json.dumps(line) + "\n" for line in lines) + whole,
    }
    return bad_report("run --no-plots", *words, name=f"report: {name}", files=files)


def manifest(content: str, *words: str) -> Bad:
    files = {"run/manifest.json": content}
    return bad_report("run", *words, name=f"manifest: {content[:30]}", files=files)


LINE = "records.jsonl, line 2"
RUNS = (
    report("garbage at the end", "line 5", "JSON", whole="garbage\n"),
    report("other ids", LINE, "lossless.equal is true", turns__0__ids=[1, 2, 9]),
    report("accept more", LINE, "accept adds up to 4", turns__0__accept=[2, 2]),
    report("method", LINE, "sam is not in the manifest", method="sam"),
    report("rounds", "rounds is 0", manifest={"rounds": 0}),
    manifest('{"rounds": 1, "rounds": 2}', "'rounds' twice"),
    bad("", "another configuration", files={"run/manifest.json": '{"config_hash": "other"}'}),
    bad("", "measure.fresh=true", name="resume: cut", files={"run/manifest.json": "{"}),
)


def end(case: Bad, monkeypatch, capsys) -> tuple[int, str]:
    """Exit code of the command in this process, and what it printed: stderr, then stdout."""

    def loaded(*args, **kwargs):
        raise AssertionError("weights were loaded before the error was found")

    if not case.loads:
        monkeypatch.setattr(sources, "load_model", loaded)
    try:
        code = commands.main(case.command)
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    return code, printed.err + printed.out


def stamps(folder: Path) -> Iterator[tuple[str, int]]:
    for path in folder.rglob("*"):
        if not path.is_dir():
            yield path.relative_to(folder).as_posix(), path.lstat().st_mtime_ns


@pytest.mark.parametrize("case", [*SETTINGS, *MODELS, *FILES, *RUNS], ids=lambda case: case.name)
def test_bad_input(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPECBENCH_DATA", raising=False)
    case.write(tmp_path)
    before = set(stamps(tmp_path))
    code, message = end(case, monkeypatch, capsys)
    assert code == 2, message
    assert "Traceback" not in message
    assert len(message) < LONGEST
    for word in case.words:
        assert word in message, message
    assert message.startswith(("specbench: error: ", "specbench report: ")), message
    left = {name for name, _ in set(stamps(tmp_path)) - before}
    assert left <= {"run/.lock", *(["run/run.log"] if case.loads else [])}, "files were written"
