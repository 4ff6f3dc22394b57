"""Corpora of every shape become the same documents; errors name file and line."""

from __future__ import annotations

import gzip
import json
import zipfile

import pytest

from methods.parts.corpus import LONGEST, drop_overlapping, read_documents, tokenize
from specbench.types import InputError


def test_shapes_archives_and_errors(tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"text": "c"},
    ]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "x.json").write_text(json.dumps(rows))
    (tmp_path / "x.txt").write_text("one\nline\n\ntwo\n")
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress((tmp_path / "x.jsonl").read_bytes()))
    for name in ("x.jsonl", "x.json", "x.jsonl.gz"):
        path = [tmp_path / name]
        assert list(read_documents(path)) == ["user\na\nassistant\nb", "c"]
        assert list(read_documents(path, ["messages.content", "text"])) == ["a\nb", "c"]
    assert [text.strip() for text in read_documents([tmp_path / "x.txt"])] == ["one\nline", "two"]
    with zipfile.ZipFile(tmp_path / "books.zip", "w") as archive:
        archive.writestr("books/b.txt", "three")
        archive.writestr("books/a.txt", "one\r\n\r\ntwo")
        archive.writestr("books/readme.xml", "<no/>")
    assert list(read_documents([tmp_path / "books.zip"])) == ["one", "two", "three"]
    (tmp_path / "bad.jsonl").write_text('{"a": "b"}\n{\n')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2: not JSON"):
        list(read_documents([tmp_path / "bad.jsonl"]))


def test_order_across_batches_and_documents_that_share_thirteen_words():
    def tokenizer(texts, verbose):
        return {"input_ids": [[len(text)] for text in texts]}

    texts = ["x" * n for n in range(1, 8)]
    assert [ids.tolist() for ids in tokenize(iter(texts), tokenizer, batch=3)] == [
        [n] for n in range(1, 8)
    ]
    copied = (
        "He wrote: The quick brown fox, jumps over the LAZY dog\nwhile nobody looks at ... and"
        " left."
    )
    shorter = "the quick brown fox jumps over the lazy dog while nobody sleeps at all in there"
    kept, dropped = drop_overlapping([copied, shorter, "another text", ""], [LINE])
    assert (kept, dropped) == ([shorter, "another text", ""], 1)
    assert drop_overlapping([copied], []) == ([copied], 0)
    # too short to be distinguished from chance
    assert drop_overlapping([LINE], ["the quick brown fox"]) == ([LINE], 0)


LINE = "the quick brown fox jumps over the lazy dog while nobody looks at it"  # fourteen words


def test_a_document_that_takes_gigabytes_to_tokenize_is_refused(tmp_path):
    corpus = tmp_path / "long.txt"
    corpus.write_text("short\n\n" + "x" * (LONGEST + 1))
    with pytest.raises(InputError, match=r"long.txt: a document of 16777217 .*: split it$"):
        list(read_documents([corpus]))
