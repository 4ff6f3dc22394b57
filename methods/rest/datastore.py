"""REST's datastore: a tokenized corpus with its suffix array in one safetensors file, read by memory map.

Texts follow one another without a separator, as in the reference; where each begins is kept beside them.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from methods.parts.lookup.suffix_array import SuffixArray
from specbench.types import InputError

FORMAT = "datastore"
TYPES = {"U16": np.uint16, "U32": np.uint32, "I32": np.int32, "I64": np.int64}
ALLOWED = {"tokens": ("U16", "U32"), "order": ("I32", "I64"), "borders": ("I64",)}


class Datastore:
    """array: the corpus and its suffix array. borders: (texts + 1,) int64, where texts begin, and the end."""

    def __init__(self, array: SuffixArray, borders: np.ndarray) -> None:
        self.array, self.borders = array, borders

    @classmethod
    def build(cls, documents: Iterable[np.ndarray], vocab: int) -> Datastore:
        """Concatenate token ids and sort them. vocab: of the tokenizer, it decides the width of a stored token."""
        kind = np.uint16 if vocab <= 2**16 else np.uint32
        texts = [ids.astype(kind) for ids in documents if len(ids)]
        borders = np.cumsum([0, *(len(ids) for ids in texts)], dtype=np.int64)
        return cls(SuffixArray.build(np.concatenate([np.zeros(0, kind), *texts])), borders)

    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.array.nbytes() + self.borders.nbytes

    def save(self, path: Path, vocab: int) -> None:
        """Write one safetensors file. vocab: tokens of the tokenizer it was built with, checked when it is loaded."""
        arrays = {"tokens": self.array.tokens, "order": self.array.order, "borders": self.borders}
        save_file(arrays, path, {"format": FORMAT, "vocab": str(vocab)})

    @classmethod
    def load(cls, path: Path, vocab: int, key: str) -> Datastore:
        """Map a file of ``save``. Raises InputError naming ``key`` if it is none, or of another vocabulary."""
        if not path.is_file():
            raise InputError(f"{key}={path}: no such file; build one with scripts/build_datastore.py")
        try:
            with safe_open(path, framework="numpy") as file:  # checks the header against the file's length
                built = file.metadata() or {}
        except SafetensorError as error:
            raise InputError(f"{key}={path}: not a datastore ({error}); build one anew") from error
        if built.get("format") != FORMAT:
            raise InputError(f"{key}={path}: not a datastore; build one with scripts/build_datastore.py")
        if built.get("vocab") != str(vocab):
            raise InputError(
                f"{key}={path}: built for {built.get('vocab')} tokens, the target's tokenizer has {vocab};"
                " build it anew with that tokenizer"
            )
        arrays = _map(path, key)
        return cls(SuffixArray(arrays["tokens"], arrays["order"]), arrays["borders"])


def _map(path: Path, key: str) -> dict[str, np.ndarray]:
    """The file's arrays, not read: pages come from disk when they are touched, and the system may read ahead."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_WILLNEED"):
        mapped.madvise(mmap.MADV_WILLNEED)
    length = int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8 : 8 + length])
    arrays = {}
    for name, allowed in ALLOWED.items():
        entry = header.get(name, {"dtype": "nothing", "data_offsets": [0, 0]})
        if entry["dtype"] not in allowed:
            raise InputError(f"{key}={path}: {name} is {entry['dtype']}; expected {' or '.join(allowed)}")
        kind = np.dtype(TYPES[entry["dtype"]])
        start, end = entry["data_offsets"]
        arrays[name] = np.frombuffer(mapped, kind, (end - start) // kind.itemsize, 8 + length + start)
    borders, count = arrays["borders"], len(arrays["tokens"])
    whole = len(arrays["order"]) == count and len(borders) and (borders[0], borders[-1]) == (0, count)
    if not whole or (np.diff(borders) <= 0).any():
        raise InputError(f"{key}={path}: tokens, order and borders do not fit each other; build it anew")
    return arrays
