"""Files that ``specbench build`` makes from a corpus and that a method drafts from: arrays, stored with safetensors."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specbench.input import refuse_irregular
from specbench.models.load import locate_file
from specbench.records.store import replacing
from specbench.types import InputError, named


class BuiltFile:
    """The content of a file; its labels have the format, and the number of tokens of the tokenizer it was built with.

    A subclass has ``from_corpus``, which ``methods.build`` calls, and ``from_file``. kind: its name in messages;
    command: after ``specbench build``. names: of the arrays that ``load`` reads. stored: all arrays by name. path: of a
    loaded file.
    """

    kind: ClassVar[str]
    format: ClassVar[str]
    command: ClassVar[str]
    names: ClassVar[tuple[str, ...]] = ()
    from_file: ClassVar[Any]  # (path, arrays, labels, tokens of the vocabulary) -> content; raises InputError
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
        """Writes the file, in one step. vocab: tokens of the tokenizer it was built with, checked when it is loaded."""
        with replacing(path) as file:
            save_file(dict(self.stored), file.name, {"format": self.format, "vocab": str(vocab), **self.labels})

    @classmethod
    def refuse_output(cls, path: Path, inputs: Sequence[Path]) -> None:
        """Raises InputError for an output that would overwrite anything but an earlier file of this kind."""
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
        """Reads a file of ``save``. Raises InputError naming ``key`` for another file, or another vocabulary."""
        place = Path(locate_file(str(path)))
        build = f"build one with specbench build {cls.command}"
        with named(f"{key}={place}: "):
            if not place.is_file():
                raise InputError(f"no such file; {build}")
            refuse_irregular(place, "", build)
            try:
                with safe_open(place, framework="numpy") as file:  # checks the header against the file's length
                    labels = file.metadata() or {}
                    arrays = {name: file.get_tensor(name) for name in cls.names}
            except SafetensorError as error:
                raise InputError(f"not a {cls.kind} ({error}); {build}") from error
            if labels.get("format") != cls.format:
                raise InputError(f"not a {cls.kind}; {build}")
            if labels.get("vocab") != str(vocab):
                raise InputError(
                    f"built for {labels.get('vocab')} tokens, the target's tokenizer has {vocab}; build it anew with"
                    " that tokenizer"
                )
            loaded: Self = cls.from_file(place, arrays, labels, vocab)
        loaded.path = str(place)
        return loaded
