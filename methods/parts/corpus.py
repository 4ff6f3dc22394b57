"""Reads the documents of a corpus as token ids, leaving out documents that overlap with a benchmark."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import from_json

from specbench.input import ALWAYS, MOST_TIMES, read_file, unpack_gzip
from specbench.types import InputError

LONGEST = 1 << 24  # [characters] of a document: more take minutes and gigabytes to tokenize
OVERLAP = 13  # [words in a row] that two texts share by copying, hardly by chance (Brown et al. 2020, appendix C)


def drop_overlapping(documents: Iterable[str], excluded: Iterable[str], words: int = OVERLAP) -> tuple[list[str], int]:
    """The documents that share no ``words`` words in a row with any text of ``excluded``, and how many do.

    Case, punctuation and line breaks do not count. A benchmark's questions, passages and answers are kept out of a
    corpus so: a drafter that has read them would copy what it should guess.
    """
    known = {gram for text in excluded for gram in _grams(text, words)}
    every = list(documents)
    if not known:
        return every, 0
    kept = [document for document in every if known.isdisjoint(_grams(document, words))]
    return kept, len(every) - len(kept)


def _grams(text: str, words: int) -> Iterator[tuple[str, ...]]:
    found = re.findall(r"\w+", text.lower())
    return zip(*(found[start:] for start in range(words)), strict=False)


def read_documents(paths: Sequence[Path], fields: Sequence[str] = ()) -> Iterator[str]:
    """The texts of ``paths`` in order.

    .jsonl and .json: one document a line or list element, the strings below ``fields`` (dotted names; all strings if
    none are named) joined by newlines. Anything else: text, one document a paragraph (blank lines between); .zip: all
    text files in it.
    Raises InputError naming file and line.
    """
    for path in paths:
        kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
        texts, named = list(_read_texts(path)), fields
        if kind == ".jsonl":
            lines = [(number, line) for number, line in enumerate(texts[0].split("\n"), 1) if line.strip()]
            items = [_parse(line, path, number) for number, line in lines]
        elif kind == ".json":
            loaded = _parse(texts[0], path, 1)
            items = loaded if isinstance(loaded, list) else [loaded]
        else:
            items, named = [part for text in texts for part in text.split("\n\n")], ()
        for item in items:
            chosen = [_below(item, field.split(".")) for field in named] if named else [item]
            text = "\n".join(text for part in chosen for text in _strings(part))
            if len(text) > LONGEST:
                raise InputError(
                    f"corpus {path}: a document of {len(text)} characters, which begins {text[:20]!r}; expected at most"
                    f" {LONGEST}: split it"
                )
            if text.strip():
                yield text


def _read_texts(path: Path) -> Iterator[str]:
    """The text of a file, unpacked, or the texts of an archive, by name."""
    raw = read_file(path, "corpus ", "expected text, .jsonl or .json (or these with .gz)")
    if path.suffix == ".zip":
        try:
            archive = zipfile.ZipFile(io.BytesIO(raw))
            packed = sum(entry.file_size for entry in archive.infolist())
            if packed > max(MOST_TIMES * len(raw), ALWAYS):
                raise InputError(f"corpus {path}: unpacks to {packed} bytes, more than {MOST_TIMES} times its size")
            texts = [archive.read(name) for name in sorted(archive.namelist()) if Path(name).suffix == ".txt"]
        except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
            raise InputError(f"corpus {path}: not a zip archive ({error}); unpack it, or fetch it again") from error
        yield from (text.decode("utf-8", errors="replace").replace("\r\n", "\n") for text in texts)
        return
    unpacked = unpack_gzip(raw, f"corpus {path}", "expected text") if path.suffix == ".gz" else raw
    yield unpacked.decode("utf-8", errors="replace")


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        raise InputError(f"corpus {path}, line {line}: not JSON ({error})") from error


def _below(item: Any, names: Sequence[str]) -> Any:
    """Yields the values at a dotted name; a list on the way is entered element by element (``messages.content``)."""
    if not names:
        return item
    if isinstance(item, list):
        return [_below(element, names) for element in item]
    return _below(item.get(names[0]), names[1:]) if isinstance(item, dict) else None


def _strings(item: Any) -> Iterator[str]:
    if isinstance(item, str):
        yield item
    elif isinstance(item, dict):
        for value in item.values():
            yield from _strings(value)
    elif isinstance(item, list):
        for value in item:
            yield from _strings(value)


def tokenize(documents: Iterator[str], tokenizer: Any, batch: int = 1000) -> Iterator[np.ndarray]:
    """(T,) int32 ids of each document, with the special tokens that the tokenizer adds."""
    rest = iter(documents)
    while texts := list(islice(rest, batch)):
        yield from (np.array(ids, dtype=np.int32) for ids in tokenizer(texts, verbose=False)["input_ids"])


@dataclass(frozen=True, slots=True)
class Corpus:
    """The documents of a corpus as token ids.

    documents: token ids of each, none empty. dropped: documents kept out for what they share.
    """

    tokenizer: Any
    documents: list[np.ndarray]
    dropped: int

    def __str__(self) -> str:
        tokens = sum(map(len, self.documents))
        return f"{len(self.documents)} documents of {tokens} tokens, {self.dropped} kept out"
