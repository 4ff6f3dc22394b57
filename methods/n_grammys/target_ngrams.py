"""N-grams that a model holds in its own weights: what it predicts after one token, and its nearest output embeddings.

N-Grammys (Stewart et al. 2024), section 4.1 and appendix B.1. Kept are ids only: best tokens, not distributions.
``TableCache`` keeps the tables on disk between runs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from specbench.models.facade import Target
from specbench.records.store import write_atomically

log = logging.getLogger(__name__)

FORMAT = "specbench token ids 1"
Measure = Literal["distance", "inner_product"]
BATCH_LOGITS = 2**25  # logits a forward, so that a batch fits beside any model
PROBES = 64
CHUNK = 8192  # embeddings at a time


def fingerprint(target: Target) -> str:
    """A digest of what a target computes: config, dtype, all embeddings' sums, logits of a few tokens.

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


class TableCache:
    """A folder of tables, one file each; None = nothing is kept."""

    def __init__(self, folder: str | None) -> None:
        self._folder = Path(folder).expanduser() if folder else None

    @property
    def kept(self) -> bool:
        """Whether there is a folder."""
        return self._folder is not None

    def get(self, name: str, shape: tuple[int, ...], vocab: int, build: Callable[[], np.ndarray]) -> np.ndarray:
        """The int32 table ``name``, ids below ``vocab``; ``build`` makes it when the folder has none that is whole.

        A file that is no such table is replaced, and a folder that cannot be written is not used; both are logged.
        """
        if self._folder is None:
            return build()
        path = self._folder / f"{name}.safetensors"
        try:
            return _read(path, shape, vocab)
        except FileNotFoundError:
            pass  # the first time
        except (OSError, SafetensorError, ValueError) as error:
            log.warning("%s: not a whole table (%s); built again", path, error)
        table = build()
        try:
            _write(path, table)
        except (OSError, SafetensorError) as error:
            log.warning("%s: cannot be written (%s); it is built again in every run", path, error)
        return table


def _read(path: Path, shape: tuple[int, ...], vocab: int) -> np.ndarray:
    """Raises ValueError when the content is not what ``get`` was asked for."""
    with safe_open(path, framework="numpy") as file:
        kind = (file.metadata() or {}).get("format")
        if kind != FORMAT:
            raise ValueError(f"format {kind}; expected {FORMAT}")
        table = file.get_tensor("ids")
    if table.shape != shape or table.dtype != np.int32:
        raise ValueError(f"{table.dtype} of shape {table.shape}; expected int32 of {shape}")
    if table.min() < 0 or table.max() >= vocab:
        raise ValueError(f"ids from {table.min()} to {table.max()}; expected 0 to {vocab - 1}")
    return table


def _write(path: Path, table: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save({"ids": np.ascontiguousarray(table)}, {"format": FORMAT}))
