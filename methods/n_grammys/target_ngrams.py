"""N-grams that a model holds in its own weights: what it says after one token, and which tokens its head is near to.

N-Grammys (Stewart et al. 2024), section 4.1 and appendix B.1. Kept are ids only: best tokens, not distributions.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from specbench.target.facade import Target

Measure = Literal["distance", "inner_product"]
BATCH_LOGITS = 2**25  # logits a forward, so that a batch fits beside any model
PROBES = 64
CHUNK = 8192  # embeddings at a time


def fingerprint(target: Target) -> str:
    """Tells one target from another by what it computes: config, dtype, all embeddings' sums, logits of a few tokens.

    The logits pass every layer and the whole head. Hexadecimal; the same model on other hardware may give another.
    """
    probes = torch.linspace(0, target.vocab_size - 1, PROBES, device=target.device).long()
    device = target.device.type
    digest = hashlib.sha256(
        f"{target.card.config.to_json_string()} {target.dtype} {device} {torch.__version__}".encode()
    )
    for ids in torch.arange(target.vocab_size, device=target.device).split(CHUNK):
        digest.update(target.embed(ids).double().sum(-1).cpu().numpy().tobytes())
    digest.update(target.logits(probes[:, None]).double().cpu().numpy().tobytes())
    return digest.hexdigest()


def bigram_ids(target: Target, columns: int, first: int | None) -> np.ndarray:
    """(V, columns) int32: the target's best tokens after each token alone, or after ``first`` and the token.

    One forward a vocabulary id, in batches.
    """
    table = np.empty((target.vocab_size, columns), dtype=np.int32)
    batch = max(1, BATCH_LOGITS // target.vocab_size)
    for ids in torch.arange(target.vocab_size, device=target.device).split(batch):
        block = ids[:, None] if first is None else torch.stack([torch.full_like(ids, first), ids], dim=1)
        best = target.logits(block).topk(columns, dim=-1).indices
        table[int(ids[0]) : int(ids[-1]) + 1] = best.cpu().numpy()
    return table


@torch.inference_mode()
def unigram_ids(target: Target, columns: int, measure: Measure) -> np.ndarray:
    """(columns,) int32: tokens by their output embedding u, best first, in the metric C of the input embeddings.

    distance: smallest (u - mean)' C (u - mean), the paper's formula. inner_product: smallest mean' C u, its code.
    """
    width = torch.promote_types(target.dtype, torch.float32)
    metric = torch.zeros(target.hidden_size, target.hidden_size, dtype=width, device=target.device)
    for ids in torch.arange(target.vocab_size, device=target.device).split(CHUNK):
        embedded = target.embed(ids).to(width)
        metric += embedded.T @ embedded
    output = _output_embeddings(target)
    mean = output.to(width).mean(0)
    scores = []
    for chunk in output.split(CHUNK):
        apart = chunk.to(width) - mean
        scores.append(((apart @ metric) * apart).sum(-1) if measure == "distance" else chunk.to(width) @ metric @ mean)
    return (-torch.cat(scores)).topk(columns).indices.cpu().numpy().astype(np.int32)


def _output_embeddings(target: Target) -> Tensor:
    """(V, D), the head's matrix, without its bias if it has one."""
    unit = torch.eye(target.hidden_size, dtype=target.dtype, device=target.device)
    return (target.head(unit) - target.head(torch.zeros_like(unit[:1]))).T.to(target.device)


def greedy_rows(best: np.ndarray, width: int) -> np.ndarray:
    """(V,) best successor of each token -> (V, width) int32: the token, its successor, that one's successor and so on.

    Example: best ``[1, 2, 0]``, width 3 -> ``[[0, 1, 2], [1, 2, 0], [2, 0, 1]]``.
    """
    rows = np.empty((len(best), width), dtype=np.int32)
    rows[:, 0] = np.arange(len(best))
    for place in range(1, width):
        rows[:, place] = best[rows[:, place - 1]]
    return rows
