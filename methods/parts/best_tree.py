"""Trees of the likeliest paths: of candidates that a head has expanded, or from a distribution for
each place.

DDTree (Ringel and Romano 2026, arXiv 2604.12989): a drafter that drafts all places in one forward
gives each place a distribution that does not depend on the drafted tokens before it. So the
probability of a path is a product of one factor a place, and the tree of N nodes with the greatest
sum of probabilities is the N likeliest paths: a path is at most as likely as its beginning, so each
path's beginnings are among them. They are found best first: when a node is taken, its first child
and its next sibling become candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.method import DraftLevel, GoesOn
from specbench.models.compiled_code import njit
from specbench.models.tree import compute_depths
from specbench.types import EMPTY, ROOT, Draft


def find_top(values: Any, count: int) -> Any:
    """(count,) places of the greatest values (n,), in descending order; of equal ones on a CPU the
    first.
    """
    return (
        values.topk(count).indices
        if isinstance(values, Tensor)
        else np.argsort(-values, kind="stable")[:count]
    )


def keep_best(candidates: Sequence[Any], nodes: int, depth: int) -> Draft:
    """The best of C candidates in level order, as a draft: on a device from tensors, on the host
    from arrays.

    candidates: ids (C,) int64, log probabilities of their paths (C,) and their own (C,), parents
    (C,) int64. depth: levels of them.
    """
    ids, scores, steps, parents = candidates
    if isinstance(ids, Tensor):
        # of equal ones the shallower first
        order = torch.sort(scores, descending=True, stable=True).indices
        chosen = torch.sort(order[:nodes]).values
        above = torch.where(parents[chosen] < 0, ROOT, torch.searchsorted(chosen, parents[chosen]))
        return Draft(ids[chosen], above, source=[0] * len(chosen), depth=depth)
    kept = np.sort(find_top(scores, nodes))
    places = np.where(parents[kept] < 0, ROOT, np.searchsorted(kept, parents[kept])).tolist()
    chances = np.exp(steps[kept].astype(np.float64)).tolist()
    return Draft(ids[kept].tolist(), places, score=chances, source=[0] * len(kept))


def log_probs(logits: Tensor) -> Tensor:
    """Log probabilities in at least single precision."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def draft_places(
    logits: Tensor,
    nodes: int,
    goes_on: GoesOn | None = None,
    ids: Callable[[Tensor], Tensor] | None = None,
) -> Draft:
    """The tree of the ``nodes`` likeliest paths.

    logits: (L, Vd) of each place's token.
    goes_on: see ``Drafter``; it is asked about the best path's places. What is deeper than it
    allows is left out. ids: turns tokens of the drafter into the target's.
    """
    laws, levels = log_probs(logits), len(logits)
    if goes_on:
        reach = laws.amax(-1).cumsum(0).exp().tolist()
        asked = (
            DraftLevel(place, reach[place - 1], laws[place - 1].exp(), True)
            for place in range(1, levels)
        )
        levels = next((level.depth for level in asked if not goes_on(level)), levels)
    if nodes < 1:
        return EMPTY
    logs, tokens = laws[:nodes].topk(min(nodes, laws.shape[1]))
    tokens = ids(tokens) if ids else tokens
    if laws.device.type == "cpu":
        found, steps = find_best(logs.double().numpy(), nodes)
        if levels < len(logs):  # what is left are the likeliest paths of these places
            found, steps = find_best(
                logs[:levels].double().numpy(), int((found[:, LEVEL] < levels).sum())
            )
        chosen = tokens.numpy()[found[:, LEVEL], found[:, RANK]]
        return Draft(
            chosen.tolist(),
            found[:, PARENT].tolist(),
            score=np.exp(steps).tolist(),
            source=[0] * len(chosen),
        )
    return draft_levels(logs, tokens, nodes, levels)


def draft_levels(logs: Tensor, tokens: Tensor, nodes: int, levels: int) -> Draft:
    """The same tree by operations on tensors. They wait for the device only if nodes below
    ``levels`` are left out.

    logs, tokens: (L, k), in descending order.
    """
    scores, parents = logs[0], torch.full_like(tokens[0], ROOT)
    kept, start = [(tokens[0], scores, logs[0], parents)], 0
    for step, below in zip(logs[1:], tokens[1:], strict=True):
        paths, above = (scores[:, None] + step).view(-1), start
        start += len(scores)
        scores, place = paths.topk(min(nodes, len(paths)))
        rank = place % len(step)
        kept.append((below[rank], scores, step[rank], above + place // len(step)))
    whole = keep_best([torch.cat(parts) for parts in zip(*kept, strict=True)], nodes, len(logs))
    if levels >= len(logs):
        return whole
    listed = whole.parents.tolist() if isinstance(whole.parents, Tensor) else whole.parents
    left = sum(depth <= levels for depth in compute_depths(listed))
    return draft_levels(logs[:levels], tokens[:levels], left, levels)


LEVEL, RANK, PARENT = range(3)  # columns of a node


@njit()
def find_best(logs, nodes):
    """The likeliest paths, best first: (n, 3) int64 of their last nodes, and (n,) the nodes' own
    log probabilities.

    logs: (L, k) float64, of each place in descending order. Of equal paths the one that became a
    candidate first.
    """
    found, scores, steps = np.empty((nodes, 3), np.int64), np.empty(nodes), np.empty(nodes)
    waiting, chances = np.empty((2 * nodes + 1, 3), np.int64), np.full(2 * nodes + 1, -np.inf)
    waiting[0, LEVEL], waiting[0, RANK], waiting[0, PARENT], chances[0] = 0, 0, ROOT, logs[0, 0]
    count = 0
    while count < nodes:
        best = np.argmax(chances)
        if chances[best] == -np.inf:
            break
        level, rank, parent = waiting[best, LEVEL], waiting[best, RANK], waiting[best, PARENT]
        found[count], scores[count], steps[count] = waiting[best], chances[best], logs[level, rank]
        chances[best] = -np.inf
        if rank + 1 < logs.shape[1]:  # the next sibling has the place of the node
            waiting[best, RANK] = rank + 1
            chances[best] = logs[level, rank + 1] + (0.0 if parent == ROOT else scores[parent])
        if level + 1 < len(logs):
            child = count + 1
            waiting[child, LEVEL], waiting[child, RANK], waiting[child, PARENT] = (
                level + 1,
                0,
                count,
            )
            chances[child] = scores[count] + logs[level + 1, 0]
        count += 1
    return found[:count], steps[:count]
