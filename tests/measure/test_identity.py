"""A run's files do not identify the user unless requested, and their paths still lead to the
files.
"""

from __future__ import annotations

import os

import pytest

from specbench.measure import identity
from specbench.measure.identity import hide_identity, hide_in_file


@pytest.fixture(autouse=True)
def somebody(monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijk")
    monkeypatch.setenv("SHORT_KEY", "1")
    monkeypatch.setenv("SLASHED_KEY", "a/b+c/d==")
    monkeypatch.setattr(identity.getpass, "getuser", lambda: "alice")
    monkeypatch.setattr(identity.platform, "node", lambda: "box17")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("/home/alice/models/tiny", "~/models/tiny"),
        ("/home/alicebob/x", "/home/alicebob/x"),
        ("/data/alice/models", "/data/$USER/models"),
        ("/net/box17/alice", "/net/$HOSTNAME/$USER"),
        ("cannot read /home/alice/q.jsonl, line 3", "cannot read ~/q.jsonl, line 3"),
        ("key hf_abcdefghijk", "key $HF_TOKEN"),
        ("key a/b+c/d==", "key $SLASHED_KEY"),
        ("alice in wonderland", "alice in wonderland"),
        ({"/home/alice/x": ["/home/alice", 1, None, True]}, {"~/x": ["~", 1, None, True]}),
        ("results/run", "results/run"),
    ],
)
def test_what_is_shown(value, shown):
    assert hide_identity(value) == shown
    assert hide_identity(shown) == shown


def test_a_sweeps_file(tmp_path):
    path = tmp_path / "multirun.yaml"
    hide_in_file(path)  # a run has none
    path.write_text("runtime:\n  cwd: /home/alice/x\n")
    hide_in_file(path)
    assert path.read_text() == "runtime:\n  cwd: ~/x\n"


@pytest.mark.parametrize("path", ["/home/alice/models/tiny", "/data/alice/models"])
def test_a_path_still_leads_to_its_place(path):
    assert os.path.expanduser(os.path.expandvars(hide_identity(path))) == path  # noqa: PTH111 (as find_tokenizer does)
