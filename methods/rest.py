"""REST, retrieval-based speculative decoding (He et al. 2024): draft what followed the same words
in a large corpus.

The longest suffix of the context that occurs in the datastore is looked up in its suffix array; the
beginnings of what followed there, most frequent first, are the draft tree.
"""

from __future__ import annotations

import argparse
import json
import mmap
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from methods.parts.array_draft import ArrayDrafter, CountedTree
from methods.parts.corpus import BuiltFile, Corpus
from methods.parts.parameters import KEPT, Parameters, count
from methods.parts.suffix_array import CROSSING, MatchCounts, SuffixArray, cut_paths
from specbench.method import Drafter, Method
from specbench.models.facade import ModelCard, Target
from specbench.types import ROOT, InputError, Prefill, require_count

TYPES = {"U16": np.uint16, "U32": np.uint32, "I32": np.int32, "I64": np.int64}
ALLOWED = {"tokens": ("U16", "U32"), "order": ("I32", "I64"), "borders": ("I64",)}


class Datastore(BuiltFile):
    """A corpus to retrieve from.

    array: the corpus and its suffix array. borders: (texts + 1,) int64, where texts begin, and the
    end.
    """

    kind = format = command = "datastore"

    def __init__(self, array: SuffixArray, borders: np.ndarray) -> None:
        self.array, self.borders = array, borders
        self.stored = {"tokens": array.tokens, "order": array.order, "borders": borders}

    @classmethod
    def build(cls, documents: Iterable[np.ndarray], vocab: int) -> Datastore:
        """Concatenate token ids and sort them. vocab: of the tokenizer, it decides the width of a
        stored token.
        """
        kind = np.uint16 if vocab <= 2**16 else np.uint32
        texts = [ids.astype(kind) for ids in documents if len(ids)]
        borders = np.cumsum([0, *(len(ids) for ids in texts)], dtype=np.int64)
        return cls(SuffixArray.build(np.concatenate([np.zeros(0, kind), *texts])), borders)

    @classmethod
    def from_corpus(cls, corpus: Corpus, given: argparse.Namespace) -> tuple[Datastore, str]:
        """Returns no text, because the corpus describes the datastore."""
        return cls.build(corpus.documents, len(corpus.tokenizer)), ""

    @classmethod
    def from_file(
        cls, path: Path, arrays: dict[str, np.ndarray], labels: dict[str, str], vocab: int
    ) -> Datastore:
        """Maps the arrays: the system reads a page from disk when it is first used, and some pages
        ahead.
        """
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_WILLNEED"):
            mapped.madvise(mmap.MADV_WILLNEED)
        length = int.from_bytes(mapped[:8], "little")
        header = json.loads(mapped[8 : 8 + length])
        found = {}
        for name, allowed in ALLOWED.items():
            entry = header.get(name, {"dtype": "nothing", "data_offsets": [0, 0]})
            if entry["dtype"] not in allowed:
                raise InputError(f"{name} is {entry['dtype']}; expected {' or '.join(allowed)}")
            kind = np.dtype(TYPES[entry["dtype"]])
            start, end = entry["data_offsets"]
            found[name] = np.frombuffer(
                mapped, kind, (end - start) // kind.itemsize, 8 + length + start
            )
        borders, count = found["borders"], len(found["tokens"])
        whole = (
            len(found["order"]) == count
            and len(borders)
            and (borders[0], borders[-1]) == (0, count)
        )
        if not whole or (np.diff(borders) <= 0).any():
            raise InputError("tokens, order and borders do not fit each other; build it anew")
        return cls(SuffixArray(found["tokens"], found["order"]), borders)


class _Retriever(ArrayDrafter):
    def __init__(self, method: Rest, seed: int) -> None:
        super().__init__(method.nodes, scored=True)
        self._method = method
        self._random = random.Random(seed)
        self._counts = MatchCounts()

    def fill(self, context: Sequence[int], budget: int) -> int:
        tree = self._method.retrieve(context, budget, self._random.getrandbits(31))
        self._counts.add(tree)
        return tree.write(0, self.nodes, self.score)

    def stats(self) -> dict[str, float]:
        return self._counts.stats()


@dataclass(eq=False)
class Rest(Parameters, Method):
    """REST; conf/method/rest.yaml describes the parameters."""

    sources = ("datastore",)

    datastore: str | None = None
    longest: int = count(16)
    shortest: int = count(2)
    depth: int = count(10)
    nodes: int = count(64)
    max_matches: int = count(5000, high=KEPT)
    subset: Literal["uniform", "first"] = "uniform"
    cut: Literal["paper", "reference"] = "paper"
    cross_documents: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("longest", self.longest, low=self.shortest)
        self.store: Datastore | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.store.path,) if self.store else ()

    def check(self, model: ModelCard) -> None:
        """Map the datastore: it must be of the target's tokenizer."""
        if not self.datastore:
            raise InputError(
                f"datastore: not set and model={model.name} names none; build one from any corpus"
                " with specbench build datastore and set model.datastore=FILE"
            )
        self.store = Datastore.load(self.datastore, len(model.tokenizer), "datastore")

    def bind(self, target: Target) -> None:
        """Compile the queries before the clock runs."""
        self.retrieve(range(self.longest), target.max_nodes, 0).to_draft(0)
        cut_paths(CountedTree(np.array([[0], [ROOT], [1]])), 1)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Nothing to prepare: the datastore never changes."""
        return _Retriever(self, seed)

    def retrieve(self, context: Sequence[int], budget: int, draw: int) -> CountedTree:
        """The draft tree for ``context``. draw: which of too many matches are looked at, below
        2**31.
        """
        assert self.store is not None  # ``check`` reads it
        room = min(budget, self.nodes)
        tree = self.store.array.tree(
            context[-self.longest :],
            self.shortest,
            self.depth,
            room,
            self.max_matches,
            draw if self.subset == "uniform" else None,
            CROSSING if self.cross_documents else self.store.borders,
        )
        return tree.part(cut_paths(tree, room)) if self.cut == "reference" else tree

    def state_bytes(self) -> int:
        """Bytes of the datastore, most of them on disk until they are touched."""
        return self.store.nbytes() if self.store else 0
