"""OPT-Tree (Wang et al. 2025): at every step the tree of N nodes with the most expected accepted
tokens.

A node's weight is the product of the draft's probabilities on its path, and the weights' sum is
what the tree is expected to bring. It grows a layer a draft forward, as long as that raises the sum
of the N best weights enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.parts.draft_lm import DraftLM
from methods.parts.draft_method import DraftModelMethod, TargetTraits
from methods.parts.parameters import count, number
from specbench.method import Drafter
from specbench.models.facade import Target
from specbench.models.transfer import upload
from specbench.types import EMPTY, ROOT, Draft, Prefill, Step, require_nodes


class _Growth:
    """The candidates of one step, layer by layer: tokens, parents, weights; chances: probability
    after the parent.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.weights: list[float] = []
        self.chances: list[float] = []
        self.best: list[int] = []  # the ``room`` heaviest nodes, in order of their numbers
        self.expected = 0.0  # their weights' sum

    def add_layer(self, above: Sequence[int], rows: Tensor) -> list[int]:
        """The heaviest children of the nodes ``above``; rows: (m, V) logits after each. Those among
        the best so far.

        A node that is not among the best now never will be, nor any below it, so nothing else needs
        to be fed.
        """
        start = len(self.tokens)
        weights = [1.0 if node == ROOT else self.weights[node] for node in above]
        chances, ids = rows.double().softmax(-1).topk(min(self._room, rows.shape[-1]), dim=-1)
        paths = (chances * upload(weights, chances.device, chances.dtype)[:, None]).flatten()
        heavy = paths.topk(min(self._room, len(paths)))
        width = ids.shape[1]
        found = [each.flatten()[heavy.indices].double() for each in (ids, chances)]
        # exact: no id is beyond 2^53
        read = torch.stack([heavy.indices.double(), heavy.values, *found])
        places, weights, tokens, chances_of = read.tolist()
        self.tokens += map(int, tokens)
        self.parents += [above[int(place) // width] for place in places]
        self.weights += weights
        self.chances += chances_of
        # stable: parents first
        order = sorted(range(len(self.weights)), key=self.weights.__getitem__, reverse=True)
        self.best = sorted(order[: self._room])
        self.expected = sum(self.weights[node] for node in self.best)
        return [node for node in self.best if node >= start]


class _OptTree(Drafter):
    def __init__(self, method: OptTree) -> None:
        self._method, self._request = method, method.tree()
        self._settled = 0
        # of each proposed node, its number in the draft model's tree; -1 = not fed
        self._fed: list[int] = []
        self._depths: list[int] = []

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method = self._method
        room = min(method.nodes, budget)
        self._fed = []
        if not room:
            return EMPTY
        growth = _Growth(room)
        rows = self._request.feed(context, self._settled)[None]
        self._settled = len(context)
        number = {ROOT: ROOT}  # in the draft model's tree
        layer, depth = [ROOT], 0
        while True:
            before = growth.expected
            layer = growth.add_layer(layer, rows)
            depth += 1
            if (
                depth >= method.max_depth
                or not layer
                or growth.expected - before <= method.threshold
            ):
                break
            above = [number[growth.parents[node]] for node in layer]
            number |= {node: len(self._request) + place for place, node in enumerate(layer)}
            rows = self._request.expand([growth.tokens[node] for node in layer], above)
        self._depths.append(depth)
        best = growth.best
        place = {ROOT: ROOT} | {node: index for index, node in enumerate(best)}
        self._fed = [number.get(node, -1) for node in best]
        return Draft(
            [growth.tokens[node] for node in best],
            [place[growth.parents[node]] for node in best],
            source=[0] * len(best),
            score=[growth.chances[node] for node in best],
        )

    def observe(self, step: Step) -> None:
        fed = [self._fed[node] for node in step.path]
        fed = fed[: fed.index(-1)] if -1 in fed else fed
        self._request.commit(fed, step.emitted[: len(fed)])

    def stats(self) -> dict[str, float]:
        """Layers of a tree, grown by as many draft forwards."""
        return {"mean_layers": sum(self._depths) / len(self._depths)} if self._depths else {}


@dataclass(eq=False)
class OptTree(DraftModelMethod):
    """OPT-Tree; conf/method/opt_tree.yaml describes the parameters."""

    nodes: int = count(50)
    threshold: float = number(
        0.5, lambda value: 0 <= value < 1, "tokens from 0 to below 1, a layer's most"
    )
    max_depth: int = count(10)

    def bind(self, target: Target) -> None:
        require_nodes(f"nodes={self.nodes}", self.nodes, target.max_nodes)
        super().bind(target)

    def adopt(self, lm: DraftLM, traits: TargetTraits) -> None:
        """As ``DraftModelMethod.adopt``; layers of up to ``nodes`` nodes are recorded."""
        super().adopt(lm, traits)
        lm.prepare(
            (self.nodes, layers * self.nodes, self.nodes) for layers in range(1, self.max_depth)
        )

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        return _OptTree(self)
