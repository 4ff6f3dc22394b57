"""LogitSpec (Liu et al. 2025, arXiv 2507.01449): the last logits also rank the token after next.

The first branch copies what followed the context's longest suffix before. Every further one starts with a token that
the logits after the last token ranked high, and continues with what followed it in the context (section 3).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from methods.parts.branches import Branches
from methods.parts.ngrams import NgramIndex
from methods.parts.parameters import Parameters, count
from specbench.method import Drafter, Method
from specbench.models.facade import Target
from specbench.types import MOST, ROOT, Draft, InputError, Needs, Prefill, Step, require_nodes

NEXT, RANKED, BEHIND = 0, 1, 2


class _Speculator(Drafter):
    def __init__(self, method: LogitSpec, ranked: Tensor) -> None:
        self._method = method
        self._ranked = ranked  # (k,) of the logits that chose the context's last token
        self._index = NgramIndex(method.max_ngram, keep_first=False, tail=method.num_draft)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method, root = self._method, context[-1]
        self._index.extend(context, len(context) - 1)  # the root itself is not retrieved from
        room = min(budget, method.capacity - 1)
        tree = Branches(method.merge)
        tree.add(ROOT, self._behind(context, tuple(context[-method.max_ngram :]), method.num_draft), NEXT, room)
        before = tuple(context[1 - method.max_ngram :]) if method.max_ngram > 1 else ()
        for rank, token in enumerate(self._ranked.tolist()):
            start = len(tree)
            if start >= room:
                break
            if token == root:
                continue
            length = method.length_at[rank]
            copied = self._behind(context, (*before, token), length - 1) if length > 1 else ()
            tree.add(ROOT, [token, *copied], BEHIND, room - start)
            if start < len(tree) and tree.parents[start] == ROOT:
                tree.source[start] = RANKED
        return tree.to_draft()

    def _behind(self, context: Sequence[int], gram: tuple[int, ...], length: int) -> Sequence[int]:
        """At most ``length`` tokens that followed the longest suffix of ``gram`` that occurred."""
        start = self._index.find_longest(gram)
        return () if start is None else context[start : min(start + length, len(context) - 1)]

    def observe(self, step: Step) -> None:
        if step.topk is not None:
            self._ranked = step.topk.ids[step.path[-1] + 1 if step.path else 0]


@dataclass(eq=False)
class LogitSpec(Parameters, Method):
    """LogitSpec; conf/method/logit_spec.yaml describes the parameters."""

    by_node = True
    sources = ("next", "ranked", "behind_ranked")

    max_ngram: int = count(3)
    num_draft: int = count(20)
    capacity: int = count(64, low=2)
    ranks: Sequence[int] = (8, 32)
    lengths: Sequence[int] = (4, 3, 1)
    merge: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        ranks, lengths = list(self.ranks), list(self.lengths)
        if ranks != sorted(set(ranks)) or not all(0 <= rank <= MOST for rank in ranks):
            raise InputError(f"ranks={ranks}: expected rising whole numbers from 0 to {MOST}")
        if len(lengths) != len(ranks) + 1 or not all(1 <= each <= MOST for each in lengths):
            raise InputError(f"lengths={lengths}: expected {len(ranks) + 1} from 1 to {MOST}, one more than ranks")
        self.length_at = [lengths[bisect_left(ranks, rank)] for rank in range(self.capacity)]
        self._ranked = self.capacity

    @property
    def needs(self) -> Needs:
        """The ranking of every node, since any may turn out to be the last accepted one."""
        return Needs(node_topk=self._ranked, read_topk=True)

    def bind(self, target: Target) -> None:
        """No more tokens can be ranked than there are. Raises InputError where the engine takes fewer nodes."""
        require_nodes(f"capacity={self.capacity}", self.capacity - 1, target.max_nodes)
        self._ranked = min(self.capacity, target.vocab_size)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The ranking after the prompt's last token comes with the prefill."""
        assert prefill.topk is not None  # by ``needs``
        return _Speculator(self, prefill.topk.ids[-1])
