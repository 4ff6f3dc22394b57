"""Several drafts as one tree: equal paths are one, a path's chance is the product of its nodes' chances.

A node that several drafters propose is as likely as if they erred independently: 1 - (1 - a)(1 - b).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from methods.parts.acceptance import AcceptanceRates
from specbench.types import ROOT, CaseError, Draft


@dataclass(slots=True)
class Claim:
    """One member's draft on the host. classes: of each node, see ``AcceptanceRates``; depths: from 0."""

    member: int
    tokens: Sequence[int]
    parents: Sequence[int]
    depths: list[int]
    classes: list[int]

    def judge(self, emitted: Sequence[int], rates: AcceptanceRates) -> list[int]:
        """Tell ``rates`` which nodes were right, as far as ``emitted`` tells; the right ones, root side first."""
        path: list[int] = []
        last = ROOT  # the deepest right node: only its children can be judged
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if parent != last and (parent not in path and parent != ROOT):
                continue
            depth = self.depths[node]
            if depth >= len(emitted):
                continue
            right = token == emitted[depth]
            rates.learn(self.classes[node], right)
            if right and depth == len(path):
                path.append(node)
                last = node
        return path


def claim(member: int, draft: Draft) -> Claim:
    """A draft with its nodes' classes. Raises CaseError for one that no tree can hold."""
    if draft.passenger is not None:
        raise CaseError("a member of a hybrid drafts passengers; expected a method whose nodes can all be accepted")
    tokens = draft.tokens.tolist() if isinstance(draft.tokens, Tensor) else draft.tokens
    parents = draft.parents.tolist() if isinstance(draft.parents, Tensor) else draft.parents
    depths: list[int] = []
    classes: list[int] = []
    siblings: dict[int, int] = {}
    class_of = AcceptanceRates.class_of
    for node, parent in enumerate(parents):
        depth = 0 if parent == ROOT else depths[parent] + 1
        rank = siblings.get(parent, 0)
        siblings[parent] = rank + 1
        depths.append(depth)
        classes.append(class_of(member, depth, rank, draft.score[node] if draft.score is not None else None))
    return Claim(member, tokens, parents, depths, classes)


@dataclass(slots=True)
class MergedTree:
    """tokens, parents, chances, members: of each node; parents before children."""

    claims: Sequence[Claim]
    rates: Sequence[float]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    members: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        known: dict[tuple[int, int], int] = {}
        for mine in self.claims:
            place: list[int] = []
            for token, parent, number in zip(mine.tokens, mine.parents, mine.classes, strict=True):
                above = ROOT if parent == ROOT else place[parent]
                chance = self.rates[number]
                node = known.get((above, token))
                if node is None:
                    node = known[above, token] = len(self.tokens)
                    self.tokens.append(token)
                    self.parents.append(above)
                    self.chances.append(chance)
                    self.members.append(mine.member)
                else:
                    self.chances[node] = 1 - (1 - self.chances[node]) * (1 - chance)
                place.append(node)

    def best(self, budget: int, threshold: float) -> Draft:
        """The ``budget`` likeliest paths' nodes, those below ``threshold`` left out."""
        whole: list[float] = []
        for parent, chance in zip(self.parents, self.chances, strict=True):
            whole.append(chance if parent == ROOT else chance * whole[parent])
        order = sorted(range(len(whole)), key=whole.__getitem__, reverse=True)[:budget]  # stable: parents stay first
        kept = sorted(node for node in order if whole[node] >= threshold)
        place = {node: number for number, node in enumerate(kept)}
        place[ROOT] = ROOT
        return Draft(
            [self.tokens[node] for node in kept],
            [place[self.parents[node]] for node in kept],
            source=[self.members[node] for node in kept],
            score=[self.chances[node] for node in kept],
        )
