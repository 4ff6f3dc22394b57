"""Verification on the host: the token that each row picks, the accepted path, and where a request ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

import torch
from torch import Tensor

from specbench.target.engine import Verifier
from specbench.types import CaseError, Draft, TopK


def cut(emitted: Sequence[int], eos: Collection[int], left: int) -> tuple[list[int], bool]:
    """Cut one step's tokens at the first EOS (kept) and at ``left`` tokens; return them and whether it ends."""
    kept = list(emitted[:left])
    for place, token in enumerate(kept):
        if token in eos:
            return kept[: place + 1], True
    return kept, len(kept) >= left


def require_fitting(draft: Draft, max_nodes: int) -> Sequence[int]:
    """The parents of a draft, on the host. Raises CaseError for one that is not a draft or too large."""
    nodes = len(draft.tokens)
    if nodes != len(draft.parents):
        raise CaseError(f"draft of {nodes} tokens has {len(draft.parents)} parents; expected as many")
    if nodes > max_nodes:
        raise CaseError(f"draft of {nodes} nodes; expected at most {max_nodes} (engine.max_nodes)")
    return draft.parents.tolist() if isinstance(draft.parents, Tensor) else draft.parents


def needs_distributions(walk: Verifier, draft: Draft, late: Draft | None) -> bool:
    """Whether nodes are judged by the target's whole distribution rather than by one token picked in each row."""
    drawn = draft.probs is not None or (late is not None and late.probs is not None)
    return walk.sampling is not None and (drawn or walk.lossy)


def judge(
    walk: Verifier,
    logits: Tensor,
    draft: Draft,
    parents: Sequence[int],
    depths: Sequence[int],
    fed: Tensor,
    late: Draft | None,
) -> tuple[Sequence[int], list[int], int, bool]:
    """(the draft's tokens on the host, accepted path, token behind it, whether that is the late chain's).

    logits: (N+1, V), row 0 the root's. parents, depths: (N,). fed: (N+1,) tokens on the device.
    """
    if needs_distributions(walk, draft, late):
        require_finite(logits.max(-1).values.tolist(), logits.dtype)
        fixed = draft.tokens.tolist() if isinstance(draft.tokens, Tensor) else draft.tokens
        verdict = walk.judge(logits, draft, fixed, late)
        return fixed, verdict.path, verdict.token, verdict.late
    picks, back = pick(walk, logits, [0, *depths], fed if isinstance(draft.tokens, Tensor) else None)
    tokens: Sequence[int] = back[1:] if back is not None else cast(Sequence[int], draft.tokens)
    path = walk.follow(tokens, parents, draft.passenger, picks)
    bonus = picks[path[-1] + 1] if path else picks[0]
    return tokens, path, bonus, late is not None and continues(late, len(path) == len(tokens), bonus)


def pick(
    walk: Verifier, logits: Tensor, depths: Sequence[int], fed: Tensor | None
) -> tuple[list[int], list[int] | None]:
    """The rows' tokens, and ``fed`` on the host, in one read-back: the step's only synchronisation.

    Raises CaseError when a row's logits are not finite.
    """
    best = logits.max(-1).values.double()
    rows = [best, walk.pick(logits, depths).double(), *([fed.double()] if fed is not None else [])]
    peaks, picks, *rest = torch.stack(rows).tolist()
    require_finite(peaks, logits.dtype)
    return [int(token) for token in picks], [int(token) for token in rest[0]] if rest else None


def require_finite(peaks: Sequence[float], dtype: torch.dtype) -> None:
    """Raise CaseError where a number is NaN or infinite."""
    if not all(abs(peak) < float("inf") for peak in peaks):
        raise CaseError(
            "the target's logits are NaN or infinite; expected finite numbers"
            f" (model.dtype={str(dtype).removeprefix('torch.')}: try bfloat16 or float32)"
        )


def top(logits: Tensor, k: int) -> TopK | None:
    """The best ``k`` tokens of each row; None for none."""
    if not k:
        return None
    best = logits.topk(k, dim=-1)
    return TopK(best.indices, best.values)


def gaps_to_best(logits: Tensor, ids: Sequence[int]) -> list[float]:
    """For each row of (n, V) how far the logit of its id is below the row's largest. Raises CaseError."""
    logits = logits.float()
    chosen = logits.gather(-1, torch.tensor(ids, device=logits.device)[:, None])[:, 0]
    gaps = (logits.max(-1).values - chosen).tolist()
    if not all(abs(gap) < float("inf") for gap in gaps):
        raise CaseError("the target's logits are NaN or infinite where the answer was judged; expected finite numbers")
    return gaps


def continues(late: Draft, whole: bool, token: int) -> bool:
    """Whether a late chain's first token is the one that was emitted behind a draft accepted as a whole."""
    return whole and len(late) > 0 and int(late.tokens[0]) == token
