"""Reads the documents of a corpus as token ids, and stores the files that ``specbench build`` makes
from it.

Documents that overlap with a benchmark are left out. A method drafts from such a file; it has
arrays, stored with safetensors.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from pydantic_core import from_json
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specbench.input import ALWAYS, MOST_TIMES, read_file, refuse_irregular, unpack_gzip
from specbench.models.load import locate_file
from specbench.records.store import replacing
from specbench.types import InputError, named

LONGEST = 1 << 24  # [characters] of a document: more take minutes and gigabytes to tokenize
# [words in a row] that two texts share by copying, hardly by chance (Brown et al. 2020, appendix C)
OVERLAP = 13


def drop_overlapping(documents: Iterable[str], excluded: Iterable[str]) -> tuple[list[str], int]:
    """The documents that share no ``OVERLAP`` words in a row with any text of ``excluded``, and how
    many do.

    Case, punctuation and line breaks do not count. A benchmark's questions, passages and answers
    are kept out of a corpus so: a drafter that has read them would copy what it should guess.
    """
    known = {gram for text in excluded for gram in _grams(text)}
    every = list(documents)
    if not known:
        return every, 0
    kept = [document for document in every if known.isdisjoint(_grams(document))]
    return kept, len(every) - len(kept)


def _grams(text: str) -> Iterator[tuple[str, ...]]:
    found = re.findall(r"\w+", text.lower())
    return zip(*(found[start:] for start in range(OVERLAP)), strict=False)


def read_documents(paths: Sequence[Path], fields: Sequence[str] = ()) -> Iterator[str]:
    """The texts of ``paths`` in order.

    .jsonl and .json: one document a line or list element, the strings below ``fields`` (dotted
    names; all strings if none are named) joined by newlines. Anything else: text, one document a
    paragraph (blank lines between); .zip: all text files in it. Raises InputError naming file and
    line.
    """
    for path in paths:
        kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
        texts, named = list(_read_texts(path)), fields
        if kind == ".jsonl":
            lines = [
                (number, line)
                for number, line in enumerate(texts[0].split("\n"), 1)
                if line.strip()
            ]
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
                    f"corpus {path}: a document of {len(text)} characters, which begins"
                    f" {text[:20]!r}; expected at most {LONGEST}: split it"
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
                raise InputError(
                    f"corpus {path}: unpacks to {packed} bytes, more than {MOST_TIMES} times its"
                    " size"
                )
            texts = [
                archive.read(name)
                for name in sorted(archive.namelist())
                if Path(name).suffix == ".txt"
            ]
        except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
            raise InputError(
                f"corpus {path}: not a zip archive ({error}); unpack it, or fetch it again"
            ) from error
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
    """Yields the values at a dotted name; a list on the way is entered element by element
    (``messages.content``).
    """
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
        yield from (
            np.array(ids, dtype=np.int32) for ids in tokenizer(texts, verbose=False)["input_ids"]
        )


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


class BuiltFile:
    """The content of a file; its labels have the format, and the number of tokens of the tokenizer
    it was built with.

    A subclass has ``from_corpus``, which ``methods.build`` calls, and ``from_file``. kind: its name
    in messages; command: after ``specbench build``. names: of the arrays that ``load`` reads.
    stored: all arrays by name. path: of a loaded file.
    """

    kind: ClassVar[str]
    format: ClassVar[str]
    command: ClassVar[str]
    names: ClassVar[tuple[str, ...]] = ()
    # (path, arrays, labels, tokens of the vocabulary) -> content; raises InputError
    from_file: ClassVar[Any]
    stored: Mapping[str, np.ndarray]
    labels: Mapping[str, str] = {}
    path: str = ""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Adds the command's options for this kind of file, in addition to those of the corpus."""

    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.stored.values())

    def save(self, path: Path, vocab: int) -> None:
        """Writes the file, in one step. vocab: tokens of the tokenizer it was built with, checked
        when it is loaded.
        """
        with replacing(path) as file:
            save_file(
                dict(self.stored),
                file.name,
                {"format": self.format, "vocab": str(vocab), **self.labels},
            )

    @classmethod
    def refuse_output(cls, path: Path, inputs: Sequence[Path]) -> None:
        """Raises InputError for an output that would overwrite anything but an earlier file of this
        kind.
        """
        key, fix = f"--out {path}: ", "name a new file"
        if not path.parent.is_dir():
            raise InputError(f"{key}its folder does not exist; make it first")
        if not os.access(path.parent, os.W_OK):
            raise InputError(f"{key}its folder cannot be written; {fix} in another one")
        if not path.exists():
            return
        if found := [str(each) for each in inputs if each.exists() and path.samefile(each)]:
            raise InputError(f"{key}is an input, {found[0]}; {fix}")
        refuse_irregular(path, "--out ", fix)
        try:
            with safe_open(path, framework="numpy") as file:
                earlier = (file.metadata() or {}).get("format") == cls.format
        except (SafetensorError, OSError):
            earlier = False
        if not earlier:
            raise InputError(f"{key}exists and is not a {cls.kind}; {fix}")

    @classmethod
    def load(cls, path: Path | str, vocab: int, key: str) -> Self:
        """Reads a file of ``save``. Raises InputError naming ``key`` for another file, or another
        vocabulary.
        """
        place = Path(locate_file(str(path)))
        build = f"build one with specbench build {cls.command}"
        with named(f"{key}={place}: "):
            if not place.is_file():
                raise InputError(f"no such file; {build}")
            try:
                # checks the header against the file's length
                with safe_open(place, framework="numpy") as file:
                    labels = file.metadata() or {}
                    arrays = {name: file.get_tensor(name) for name in cls.names}
            except SafetensorError as error:
                raise InputError(f"not a {cls.kind} ({error}); {build}") from error
            if labels.get("format") != cls.format:
                raise InputError(f"not a {cls.kind}; {build}")
            if labels.get("vocab") != str(vocab):
                raise InputError(
                    f"built for {labels.get('vocab')} tokens, the target's tokenizer has {vocab};"
                    " build it anew with that tokenizer"
                )
            loaded: Self = cls.from_file(place, arrays, labels, vocab)
        loaded.path = str(place)
        return loaded
