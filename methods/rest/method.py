"""REST, retrieval-based speculative decoding (He et al. 2024): draft what followed the same words in a large corpus.

The longest suffix of the context that occurs in the datastore is looked up in its suffix array; the beginnings of what
followed there, most frequent first, are the draft tree.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from methods.parts.lookup.suffix_array import CROSSING, Tree, cut_paths
from methods.rest.datastore import Datastore
from specbench.method import Drafter, Method
from specbench.target.facade import ModelCard, Target
from specbench.target.load import locate_file
from specbench.types import EMPTY, ROOT, Draft, InputError, Prefill, require_count


class _Retriever(Drafter):
    def __init__(self, method: Rest, seed: int) -> None:
        self._method = method
        self._random = random.Random(seed)
        self._steps = self._matched = self._tokens = self._found = 0

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        self._steps += 1
        tree = self._method.retrieve(context, budget, self._random.getrandbits(31))
        if not tree.matched:
            return EMPTY
        self._matched += 1
        self._tokens += tree.matched
        self._found += tree.found
        return Draft(tree.tokens, tree.parents, source=[0] * len(tree.tokens), score=tree.scores)

    def stats(self) -> dict[str, float]:
        """matched_steps: share of steps with a match; query_tokens, matches: means of these steps."""
        if not self._matched:
            return {"matched_steps": 0.0}
        return {
            "matched_steps": self._matched / self._steps,
            "query_tokens": self._tokens / self._matched,
            "matches": self._found / self._matched,
        }


class Rest(Method):
    """datastore: file made by ``scripts/build_datastore.py``. longest, shortest: suffixes looked up [tokens].

    depth: tokens of a continuation. nodes: of the tree. max_matches: occurrences looked at. subset: which of them,
    uniform (an even share from a seeded start) | first (in sorted order, as the code does). cut: paper (the most
    frequent nodes) | reference (the code's smaller tree). cross_documents: continuations run into the next text.
    """

    sources = ("datastore",)

    def __init__(
        self,
        datastore: str | None = None,
        longest: int = 16,
        shortest: int = 2,
        depth: int = 10,
        nodes: int = 64,
        max_matches: int = 5000,
        subset: Literal["uniform", "first"] = "uniform",
        cut: Literal["paper", "reference"] = "paper",
        cross_documents: bool = True,
    ) -> None:
        for name, value, low in (
            ("shortest", shortest, 1),
            ("longest", longest, shortest),
            ("depth", depth, 1),
            ("nodes", nodes, 1),
            ("max_matches", max_matches, 1),
        ):
            require_count(name, value, low)
        self.longest, self.shortest, self.depth, self.nodes = longest, shortest, depth, nodes
        self.max_matches, self.subset, self.cut, self.cross_documents = max_matches, subset, cut, cross_documents
        self.datastore: Datastore | None = None
        self._path = datastore
        self._read: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The datastore's file."""
        return (self._read,) if self._read else ()

    def check(self, model: ModelCard) -> None:
        """Map the datastore: it must be of the target's tokenizer."""
        if not self._path:
            raise InputError(
                f"datastore: not set and model={model.name} names none; build one from any corpus with"
                " scripts/build_datastore.py and set model.datastore=FILE"
            )
        path = locate_file(self._path)
        self.datastore = Datastore.load(Path(path), len(model.tokenizer), "datastore")
        self._read = path

    def bind(self, target: Target) -> None:
        """Compile the queries before the clock runs."""
        self.retrieve(range(self.longest), target.max_nodes, 0)
        cut_paths(Tree([0], [ROOT], [1]), 1)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Nothing to prepare: the datastore never changes."""
        return _Retriever(self, seed)

    def retrieve(self, context: Sequence[int], budget: int, draw: int) -> Tree:
        """The draft tree for ``context``. draw: which of too many matches are looked at, below 2**31."""
        if self.datastore is None:
            raise RuntimeError("no datastore yet: check() reads it")
        room = min(budget, self.nodes)
        tree = self.datastore.array.tree(
            context[-self.longest :],
            self.shortest,
            self.depth,
            room,
            self.max_matches,
            draw if self.subset == "uniform" else None,
            CROSSING if self.cross_documents else self.datastore.borders,
        )
        return tree.part(cut_paths(tree, room)) if self.cut == "reference" else tree

    def state_bytes(self) -> int:
        """Bytes of the datastore, most of them on disk until they are touched."""
        return self.datastore.nbytes() if self.datastore else 0
