"""Token Recycling (Luo et al. 2025, "Turning Trash into Treasure"): a matrix of every token's last top-k successors.

Each forward computes a distribution at every node, rejected ones too; their top-k are written back as the candidates
of the node's token, and the next draft fills a static tree from them breadth first (section 3; the template of 80
nodes is the authors' code's, `docs/methods/token_recycling.md`).
"""

from __future__ import annotations

from collections.abc import Sequence

from methods.parts.recycling import RecyclingMatrix, Update
from methods.parts.tree_shape import TreeShape
from specbench.method import Drafter, Method
from specbench.models.facade import Target
from specbench.types import Draft, Needs, Prefill, Step, require_count, require_nodes


class _Recycler(Drafter):
    def __init__(self, matrix: RecyclingMatrix) -> None:
        self._matrix = matrix

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        return self._matrix.draft(context[-1])

    def observe(self, step: Step) -> None:
        if step.fed is not None and step.topk is not None:
            self._matrix.learn(step.fed, step.topk)


class TokenRecycling(Method):
    """nodes, depth: of the tree, the reference's brought to that size (``TreeShape.sized``). k: candidates a token.

    update: which of a repeated token's rows stays: last | first | merge (a stand-in for the unordered device write:
    each rank from another occurrence). update_from_prefill: also learn from the prompt's own distributions
    (SAM-Decoding's variant). tree: child counts level by level, in place of nodes and depth.
    """

    learned = ("matrix",)

    def __init__(
        self,
        nodes: int = 80,
        depth: int = 6,
        k: int = 8,
        update: Update = "last",
        update_from_prefill: bool = False,
        tree: list[list[int]] | None = None,
    ) -> None:
        require_count("k", k)
        self.shape = TreeShape.sized(nodes, depth, k) if tree is None else TreeShape.from_counts(tree, k)
        self._given = f"nodes={nodes}" if tree is None else "tree"
        self.k, self.update, self.update_from_prefill = k, update, update_from_prefill

    @property
    def needs(self) -> Needs:
        """The top-k of every node."""
        return Needs(node_topk=self.k, prompt_topk=self.k if self.update_from_prefill else 0)

    def bind(self, target: Target) -> None:
        """Allocate the matrix beside the target."""
        require_nodes(self._given, len(self.shape), target.max_nodes)
        self.matrix = RecyclingMatrix(self.shape, self.k, self.update, target.vocab_size, target.device)

    def reset(self) -> None:
        """A cold matrix: every token's candidates are token 0, as in the reference."""
        self.matrix.clear()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Learn what follows the last prompt token, as the reference's first forward does, or every prompt token.

        Where that token is given, its row comes with the first step.
        Prompt row i of ``prefill.topk`` holds what follows prompt token i.
        """
        if prefill.topk is not None and (self.update_from_prefill or not prefill.given):
            learned = prompt if self.update_from_prefill else prompt[-1:]
            self.matrix.learn_prompt(learned, prefill.topk)
        return _Recycler(self.matrix)

    def state_bytes(self) -> int:
        """Bytes of the matrix."""
        return self.matrix.nbytes()
