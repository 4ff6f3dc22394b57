"""Files that ``specbench build`` makes: each kind drafts, and a wrong file or option is named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from builders.runs import Done, job_for, run_main
from methods.cacheback import FrozenTable
from methods.parts.built_file import BuiltFile
from methods.rest import Datastore
from methods.sam import StaticAutomaton
from specbench import commands
from specbench.types import InputError, Prefill

TEXTS = ("The river is wide.", "The river is wide and cold.")
VOCAB = 2048
KINDS = pytest.mark.parametrize(
    ("kind", "setting", "options", "said"),
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
def test_a_file_built_from_a_corpus_drafts(tmp_path, kind, setting, options, said):
    corpus, out = tmp_path / "c.jsonl", tmp_path / "built.safetensors"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    done = build(kind, "--out", out, "--field", "text", *options, corpus)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
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
    for arguments, said in (
        (["--field", "txt", corpus], "is a --field misspelt?"),
        ([tmp_path / "none.jsonl"], "no such file"),
        (["--ranked", "0", corpus], "--ranked 0; expected 1 or more"),
    ):
        done = build(StaticAutomaton, "--out", out, *arguments)
        assert (done.returncode, said in done.stderr) == (2, True)
    assert not out.exists()
    assert build(StaticAutomaton, "--out", out, "--ranked", "4", corpus).returncode == 0
    with pytest.raises(InputError, match=r"method.sam.children=8: .* ranks 4 a state"):
        job_for("method=[sam]", f"method.sam.static={out}")


@KINDS
def test_a_file_of_another_kind_or_vocabulary_is_refused(tmp_path, kind, setting, options, said):
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
