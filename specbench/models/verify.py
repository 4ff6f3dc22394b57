"""Verification on the host: the token that each row picks, the accepted path, and the end of a
request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor

from specbench.models.engine import Laps, Verifier
from specbench.models.transfer import download, read_numbers
from specbench.types import EMPTY, ROOT, CaseError, Draft, Needs, Prefill, Step, TopK


@dataclass(slots=True)
class ActiveRequest:
    """The request that an engine decodes, and its last draft.

    parents: (N,) of ``draft``, on the host; parents that the device lays out are there from the
    read-back on. chunks: the best tokens and the states that a method asks for, of all parts of a
    prompt before the last.
    """

    needs: Needs
    laps: Laps
    walk: Verifier = field(init=False)  # not set if only the forwards run
    root: int = ROOT  # the last emitted token
    draft: Draft = EMPTY
    parents: Sequence[int] | Tensor = ()
    topk: TopK | None = None  # of the last forward's rows, see ``Step``
    chunks: list[tuple[TopK | None, Mapping[int, Tensor]]] = field(default_factory=list)

    def take(self, draft: Draft, max_nodes: int, on_device: bool = False) -> None:
        """Make ``draft`` the last one. on_device: its parents may stay there.

        Raises CaseError where its lengths differ or it is too large.
        """
        nodes = len(draft.tokens)
        if nodes != len(draft.parents):
            raise CaseError(
                f"draft of {nodes} tokens has {len(draft.parents)} parents; expected as many"
            )
        if nodes > max_nodes:
            raise CaseError(
                f"draft of {nodes} nodes; expected at most {max_nodes} (engine.max_nodes)"
            )
        self.draft = draft
        self.parents = draft.parents
        stays = (
            on_device
            and draft.depth is not None
            and draft.passenger is None
            and draft.probs is None
        )
        if isinstance(draft.parents, Tensor) and not (
            stays and not self.needs.rows and not self.walk.lossy
        ):
            self.parents = draft.parents.tolist()

    def keep_chunk(self, logits: Tensor | None, hidden: Mapping[int, Tensor]) -> None:
        """Store what the method asks for of a part of the prompt before the last, but not its
        logits.

        logits: (m, V), None if they are not asked for. hidden: layer -> (m, D).
        """
        top = None if logits is None else find_top(logits, self._count_best())
        self.chunks.append((top, hidden if self.needs.prompt_hidden else {}))

    def emit_first(self, logits: Tensor, hidden: Mapping[int, Tensor]) -> Prefill:
        """Pick the first token; returns the result of reading the prompt.

        logits: (1, V) after the prompt, or (m, V) of its last part's tokens where
        ``needs.prompt_topk``. hidden: layer -> (m, D).
        """
        tops = [*(top for top, _ in self.chunks), find_top(logits, self._count_best())]
        if len(found := [top for top in tops if top is not None]) > 1:
            found = [
                TopK(
                    torch.cat([each.ids for each in found]),
                    torch.cat([each.logits for each in found]),
                )
            ]
        self.topk = found[0] if found else None
        picks, _ = self._pick(logits[-1:], [0], None)
        self.root = picks[0]
        self.walk.advance(picks)
        if not self.needs.prompt_hidden:
            hidden = {layer: states[-1:] for layer, states in hidden.items()}
        elif self.chunks:
            hidden = {
                layer: torch.cat([*(each[layer] for _, each in self.chunks if each), hidden[layer]])
                for layer in hidden
            }
        self.chunks = []
        return Prefill(self.root, hidden, self.topk)

    def _count_best(self) -> int:
        return max(self.needs.prompt_topk, self.needs.node_topk)

    def verify(
        self, logits: Tensor, depths: Sequence[int] | Tensor, fed: Tensor, late: Draft | None
    ) -> tuple[list[int], list[int], bool]:
        """Return (accepted path, tokens to emit, whether the last token is the late chain's).

        logits: (N+1, V) raw, row 0 the root's.
        depths: (N+1,) of the rows, 0 = the root.
        fed: (N+1,) int64 tokens of the rows, on the device.
        """
        if self.is_drawn(late):
            return self.verify_drawn(logits, fed, late)
        return self.follow(
            *self._pick(logits, depths, fed if isinstance(self.draft.tokens, Tensor) else None),
            late,
        )

    def is_drawn(self, late: Draft | None) -> bool:
        """True if the walk compares distributions, because nodes were drawn or the rule is
        lossy.
        """
        walk = self.walk
        return walk.lossy or (
            walk.sampling is not None and (_is_drawn(self.draft) or _is_drawn(late))
        )

    def verify_drawn(
        self, logits: Tensor, fed: Tensor, late: Draft | None
    ) -> tuple[list[int], list[int], bool]:
        """Verify by distributions; see ``verify``."""
        parents = self.parents.tolist() if isinstance(self.parents, Tensor) else self.parents
        verdict = self.walk.verify(logits, self.draft, parents, fed, late)
        return verdict.path, verdict.tokens, verdict.late

    def follow(
        self, picks: Sequence[int], back: Sequence[int] | None, late: Draft | None
    ) -> tuple[list[int], list[int], bool]:
        """Verify by the rows' picks (N+1,); see ``verify``. back: ``fed`` on the host, if tokens
        are on the device.
        """
        tokens = cast(Sequence[int], self.draft.tokens) if back is None else back[1:]
        path = self.walk.follow(tokens, self.host_parents, self.draft.passenger, picks)
        last = picks[path[-1] + 1] if path else picks[0]
        kept = continues(late, len(path) == len(tokens), last)
        return path, [*(int(tokens[node]) for node in path), last], kept

    @property
    def host_parents(self) -> Sequence[int]:
        """``parents`` after the read-back."""
        assert not isinstance(self.parents, Tensor)
        return self.parents

    def _pick(
        self, logits: Tensor, depths: Sequence[int] | Tensor, fed: Tensor | None
    ) -> tuple[list[int], list[int] | None]:
        """Return the rows' tokens, and ``fed`` on the host.

        logits: (rows, V). depths: (rows,) 0 = the root. fed: (rows,) int64 or None.
        Raises CaseError when a row's logits are not finite.
        """
        best, picked = logits.max(-1).values, self.walk.pick(logits, depths)
        peaks, picks, *rest = self.read(best, picked, *([fed] if fed is not None else []))
        require_finite(peaks, logits.dtype)
        return [int(token) for token in picks], [int(token) for token in rest[0]] if rest else None

    def read(self, *given: Tensor | np.ndarray) -> list[list[float]]:
        """Read (n,) tensors back, with ``parents`` and ``topk`` if the host needs them: the only
        synchronisation.
        """
        parts = [*given, self.parents] if isinstance(self.parents, Tensor) else given
        found, self.topk = read_with_top(parts, self.topk, self.needs.read_topk)
        if isinstance(self.parents, Tensor):
            self.parents = [int(parent) for parent in found.pop()]
        return found

    def close_step(
        self,
        emitted: Sequence[int],
        path: Sequence[int],
        done: bool,
        late: bool,
        fed: Tensor | None,
        hidden: Mapping[int, Tensor],
    ) -> Step:
        """Make the step that emitted these tokens; the last one is the next root. See ``Step``."""
        root, self.root = self.root, emitted[-1]
        shape = self.host_parents if isinstance(self.draft.parents, Tensor) else None
        self.walk.advance(emitted)
        kept = tuple(path[: len(emitted) - 1])
        return Step(root, tuple(emitted), kept, done, fed, self.topk, hidden, int(late), shape)


def _is_drawn(draft: Draft | None) -> bool:
    return draft is not None and draft.probs is not None


def find_accepted_path(
    tokens: Sequence[int],
    parents: Sequence[int],
    passenger: Sequence[bool] | None,
    picks: Sequence[int],
    scores: Sequence[float] | None = None,
) -> list[int]:
    """Return the path to the deepest node that, like all its ancestors, is its parent's pick, root
    side first.

    tokens, parents, passenger: (N,) of the draft; passengers are never accepted.
    picks: (N+1,) row 0 the root's, row i + 1 node i's.
    scores: (N,) of the nodes. Among equally deep nodes the largest sum over the path wins; without
    scores, the first.
    """
    # 0 = not accepted; the root is the last one, where a parent of -1 finds it
    depths = [0] * len(parents) + [1]
    sums = [0.0] * len(depths)
    best, deepest = ROOT, 1
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        above = depths[parent]
        if not above or token != picks[parent + 1] or (passenger is not None and passenger[node]):
            continue
        depths[node] = above + 1
        if scores is not None:
            sums[node] = sums[parent] + scores[node]
        if above + 1 > deepest or (above + 1 == deepest and sums[node] > sums[best]):
            best, deepest = node, above + 1
    path: list[int] = []
    while best != ROOT:
        path.append(best)
        best = parents[best]
    return path[::-1]


def find_recorded_path(
    tokens: Sequence[int],
    parents: Sequence[int],
    passenger: Sequence[bool] | None,
    picks: Sequence[int],
) -> list[int]:
    """Return the path of ``find_accepted_path`` if all rows at one depth pick the same token.

    picks: the picks at depth 0, 1, ...; nothing is accepted after their end.
    """
    reached = [ROOT]
    for pick in picks:
        below: list[int] = []
        node = ROOT
        for _ in range(tokens.count(pick)):
            node = tokens.index(pick, node + 1)
            if parents[node] in reached and not (passenger is not None and passenger[node]):
                below.append(node)
        if not below:
            break
        reached = below
    path: list[int] = []
    node = reached[0]
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def continues(late: Draft | None, whole: bool, token: int) -> bool:
    """Returns whether the first token of a late chain is ``token``, emitted after a completely
    accepted draft.
    """
    return late is not None and whole and len(late) > 0 and int(late.tokens[0]) == token


def cut(emitted: Sequence[int], eos: frozenset[int], left: int) -> tuple[list[int], bool]:
    """Return (a step's tokens up to and including the first EOS, at most ``left``; whether the
    request ends).
    """
    kept = list(emitted[:left])
    if eos.isdisjoint(kept):
        return kept, len(kept) >= left
    return kept[: 1 + next(place for place, token in enumerate(kept) if token in eos)], True


def require_finite(peaks: Sequence[float], dtype: torch.dtype) -> None:
    """Raise CaseError if a number is NaN or infinite. peaks: largest logits, of ``dtype``."""
    if not all(abs(peak) < float("inf") for peak in peaks):
        raise explain_infinite(dtype)


def explain_infinite(dtype: torch.dtype) -> CaseError:
    """Return the error of a request whose logits, of ``dtype``, are not finite."""
    return CaseError(
        "the target's logits are NaN or infinite; expected finite numbers"
        f" (model.dtype={str(dtype).removeprefix('torch.')}: try bfloat16 or float32)"
    )


def read_with_top(
    parts: Sequence[Tensor | np.ndarray], top: TopK | None, wanted: bool
) -> tuple[list[list[float]], TopK | None]:
    """Read (n,) tensors back in one wait for the device; if ``wanted``, the ids of ``top``, too."""
    if wanted and top is not None and top.ids.device.type != "cpu":
        *parts, ids = download(*cast(Sequence[Tensor], parts), top.ids)
        top = TopK(ids.long(), top.logits)
    return read_numbers(*parts), top


def find_top(logits: Tensor, k: int) -> TopK | None:
    """Return the best ``k`` tokens of each row of (rows, V) logits; None for k = 0."""
    if not k:
        return None
    best = logits.topk(k, dim=-1)
    return TopK(best.indices, best.values)


def compute_gaps(logits: Tensor, ids: Sequence[int]) -> list[float]:
    """Return (n,) how far the logit of each id is below the best of the others; negative if the id
    is the best.

    logits: (n, V). Raises CaseError if they are not finite.
    """
    chosen = torch.tensor(ids, device=logits.device)[:, None]
    best = logits.topk(2, dim=-1)
    rival = torch.where(best.indices[:, :1] == chosen, best.values[:, 1:], best.values[:, :1])
    gaps: list[float] = (rival.double() - logits.gather(-1, chosen).double())[:, 0].tolist()
    if not all(abs(gap) < float("inf") for gap in gaps):
        raise CaseError(
            "the target's logits are NaN or infinite where the answer was judged; expected finite"
            " numbers"
        )
    return gaps
