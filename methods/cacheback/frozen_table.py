"""The frozen table of Cacheback (Ma, Gim, Zhong 2025, section 3.3): leaders to followers, the most frequent first.

It is built offline from a corpus, packed into arrays, and never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from methods.parts.lookup.corpus import FORMATS, read_built

Gram = tuple[int, ...]


class FrozenTable:
    """Packed: leaders (n, LL) sorted, offsets (n+1,), followers (m, FL) with each leader's most frequent first."""

    def __init__(self, leaders: np.ndarray, offsets: np.ndarray, followers: np.ndarray) -> None:
        self.leaders, self.offsets, self.followers = leaders, offsets, followers
        bounds = offsets.tolist()
        keys = map(tuple, leaders.tolist())
        self._bounds = dict(zip(keys, pairwise(bounds), strict=True))

    @property
    def leader_length(self) -> int:
        """LL [tokens]."""
        return self.leaders.shape[1]

    @property
    def follower_length(self) -> int:
        """FL [tokens]."""
        return self.followers.shape[1]

    def get(self, leader: Gram, most: int | None = None) -> list[Gram]:
        """Followers, most frequent first, at most ``most``; None = all."""
        start, end = self._bounds.get(leader, (0, 0))
        if most is not None:
            end = min(end, start + most)
        return list(map(tuple, self.followers[start:end].tolist())) if start < end else []

    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.leaders.nbytes + self.offsets.nbytes + self.followers.nbytes

    def save(self, path: Path, vocab: int) -> None:
        """Write one safetensors file. vocab: tokens of the tokenizer it was built with, checked when it is loaded."""
        arrays = {"leaders": self.leaders, "offsets": self.offsets, "followers": self.followers}
        save_file(arrays, path, {"format": FORMATS["frozen table"], "vocab": str(vocab)})

    @classmethod
    def load(cls, path: Path, vocab: int, key: str) -> FrozenTable:
        """Read a file of ``save``. Raises InputError naming ``key`` if it is none, or of another vocabulary."""
        names = ("leaders", "offsets", "followers")
        _, arrays = read_built(path, vocab, key, "frozen table", names)
        return cls(*(arrays[name] for name in names))


def count_windows(
    documents: Sequence[np.ndarray], length: int, rate: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Windows of ``length`` tokens and how often each occurs; none crosses a document. rate: share of windows kept."""
    random = np.random.default_rng(seed)
    pieces = [np.lib.stride_tricks.sliding_window_view(ids, length) for ids in documents if len(ids) >= length]
    if not pieces:
        return np.zeros((0, length), np.int32), np.zeros(0, np.int64)
    windows = np.concatenate(pieces).astype(np.int32)
    if rate < 1:
        windows = windows[random.random(len(windows)) < rate]
    return np.unique(windows, axis=0, return_counts=True)


def build_frozen_table(
    documents: Sequence[np.ndarray],
    leader_length: int = 1,
    follower_length: int = 3,
    leader_capacity: int = 2**20,
    follower_capacity: int = 128,
    rate: float = 1.0,
    seed: int = 0,
) -> FrozenTable:
    """The most frequent leaders, and for each the most frequent n-grams behind it (section 3.3).

    documents: token ids of each. rate: share of the windows sampled, separately for leaders and followers, as the
    authors' builder does. Ties are broken by token ids, so the same corpus gives the same table.
    """
    grams, counts = count_windows(documents, leader_length, rate, seed)
    kept = np.argsort(-counts, kind="stable")[:leader_capacity]
    known = {tuple(gram) for gram in grams[kept].tolist()}
    windows, counts = count_windows(documents, leader_length + follower_length, rate, seed + 1)
    order = np.lexsort((-counts, *windows[:, :leader_length].T[::-1]))
    leaders: list[list[int]] = []
    offsets = [0]
    chosen: list[int] = []
    for row in order.tolist():
        leader = windows[row, :leader_length].tolist()
        if tuple(leader) not in known:
            continue
        if not leaders or leaders[-1] != leader:
            leaders.append(leader)
            offsets.append(len(chosen))
        if len(chosen) - offsets[-2] < follower_capacity:
            chosen.append(row)
            offsets[-1] = len(chosen)
    small = np.uint16 if not len(windows) or windows.max() < 2**16 else np.uint32
    return FrozenTable(
        np.array(leaders, dtype=small).reshape(-1, leader_length),
        np.array(offsets, dtype=np.uint32),
        windows[chosen, leader_length:].astype(small).reshape(-1, follower_length),
    )
