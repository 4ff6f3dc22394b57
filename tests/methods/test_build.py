"""Files that ``specbench build`` makes: each kind drafts, and a wrong file or option is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from builders.runs import Done, job_for, run_main
from methods.cacheback import FrozenTable
from methods.parts.corpus import BuiltFile
from methods.rest import Datastore
from methods.sam import StaticAutomaton
from specbench import commands
from specbench.types import InputError, Prefill

TEXTS = ("The river is wide.", "The river is wide and cold.")
VOCAB = 2048
KINDS = pytest.mark.parametrize(
    ("kind", "setting", "options", "printed"),
    [
        (FrozenTable, "cacheback.frozen", ["--leader", "1"], "leaders, "),
        (Datastore, "rest.datastore", [], "2 documents of"),
        (StaticAutomaton, "sam.static", ["--ranked", "8"], "states, "),
    ],
    ids=["frozen_table", "datastore", "automaton"],
)


def build(kind: type[BuiltFile], *arguments: object) -> Done:
    return run_main(commands.main, "build", kind.command, "--tokenizer", "bundled:tiny", *arguments)


@KINDS
def test_a_file_built_from_a_corpus_drafts(tmp_path, kind, setting, options, printed):
    corpus, out = tmp_path / "c.jsonl", tmp_path / "built.safetensors"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    done = build(kind, "--out", out, "--field", "text", *options, corpus)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
    assert f"{kind.load(out, VOCAB, 'key').nbytes()} bytes from 2 documents" in done.stdout
    name = setting.partition(".")[0]
    job = job_for("suite.limit=1", f"method=[{name}]", f"method.{setting}={out}")
    method, known = job.entries[-1].method, job.source.card.tokenizer(TEXTS[1])["input_ids"]
    assert method.inputs == (str(out),)
    found = method.begin(known[:2], Prefill(known[2]), 0).propose(known[:3], 64)
    assert found.tokens[0] == known[3]


def test_a_corpus_or_an_option_that_cannot_be_is_named(tmp_path):
    corpus, out = tmp_path / "c.jsonl", tmp_path / "built.safetensors"
    corpus.write_text(json.dumps({"text": TEXTS[0]}))
    for arguments, printed in (
        (["--field", "txt", corpus], "is a --field misspelt?"),
        ([tmp_path / "none.jsonl"], "no such file"),
        (["--ranked", "999999999999", corpus], "--ranked=999999999999: expected"),
    ):
        done = build(StaticAutomaton, "--out", out, *arguments)
        assert (done.returncode, printed in done.stderr) == (2, True)
    done = build(FrozenTable, "--out", out, "--rate", "nan", corpus)
    assert (done.returncode, "--rate=nan: expected" in done.stderr) == (2, True), done.stderr
    assert not out.exists()
    assert build(StaticAutomaton, "--out", out, "--ranked", "4", corpus).returncode == 0
    with pytest.raises(InputError, match=r"method.sam.children=8: .* ranks 4 a state"):
        job_for("method=[sam]", f"method.sam.static={out}")


def place_at(kind: str, folder: Path) -> Path:
    """An output that exists, made in ``folder`` next to the corpus c.jsonl and the excluded
    x.jsonl.
    """
    out = folder / "out"
    match kind:
        case "an excluded file":
            return folder / "x.jsonl"
        case "a link to the corpus":
            out.symlink_to(folder / "c.jsonl")
        case "the corpus by another name":
            out.hardlink_to(folder / "c.jsonl")
        case "a pipe":
            os.mkfifo(out)
        case "records":
            out.write_text('{"case": "1"}')
    return out


OCCUPIED = {
    "an excluded file": "is an input", "a link to the corpus": "is an input",
    "the corpus by another name": "is an input", "a pipe": "is a directory, a pipe",
    "records": "exists and is not a suffix automaton",
}  # fmt: skip


@pytest.mark.parametrize("kind", OCCUPIED)
def test_what_is_not_an_earlier_build_is_never_overwritten(tmp_path, kind):
    for name in ("c.jsonl", "x.jsonl"):
        (tmp_path / name).write_text(json.dumps({"text": TEXTS[0]}))
    out = place_at(kind, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    done = build(
        StaticAutomaton, "--out", out, "--exclude", tmp_path / "x.jsonl", tmp_path / "c.jsonl"
    )
    assert (done.returncode, f"--out {out}: {OCCUPIED[kind]}" in done.stderr) == (2, True), (
        done.stderr
    )
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_an_earlier_build_is_replaced_in_one_step(tmp_path):
    """A build that fails leaves the earlier file, and nothing next to it."""
    corpus, out = tmp_path / "c.jsonl", tmp_path / "built.safetensors"
    corpus.write_text(json.dumps({"text": TEXTS[0]}))
    assert build(StaticAutomaton, "--out", out, corpus).returncode == 0
    earlier = out.read_bytes()
    assert build(StaticAutomaton, "--out", out, "--field", "none", corpus).returncode == 2
    assert (out.read_bytes(), sorted(path.name for path in tmp_path.iterdir())) == (
        earlier,
        ["built.safetensors", "c.jsonl"],
    )
    corpus.write_text(json.dumps({"text": TEXTS[1]}))
    assert build(StaticAutomaton, "--out", out, corpus).returncode == 0
    assert out.read_bytes() != earlier


@KINDS
def test_a_file_of_another_kind_or_vocabulary_is_refused(tmp_path, kind, setting, options, printed):
    path = tmp_path / "built.safetensors"

    def refused(words: str) -> None:
        with pytest.raises(InputError, match=rf"^key={path}: {words}"):
            kind.load(path, 10, "key")

    refused(f"no such file; build one with specbench build {kind.command}")
    path.write_text("no")
    refused(f"not a {kind.kind} ")
    arrays = {name: np.zeros(3) for name in kind.names or ("a",)}
    save_file(arrays, path)
    refused(f"not a {kind.kind}; build one")
    save_file(arrays, path, {"format": kind.format, "vocab": "11"})
    refused("built for 11 tokens, the target's tokenizer has 10; build it anew")
