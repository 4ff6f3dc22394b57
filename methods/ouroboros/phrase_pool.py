"""Ouroboros' phrases: for each token the n-grams that followed it, newest last (Zhao et al. 2024)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

Phrase = tuple[int, ...]
LINK_BYTES = 200  # what a key takes in the dict, list included, at the usual fill


class PhrasePool:
    """At most ``width`` phrases a token; the oldest goes first."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._phrases: dict[int, list[Phrase]] = {}

    def add(self, key: int, phrase: Phrase) -> None:
        """``phrase`` is the newest of ``key``."""
        held = self._phrases.setdefault(key, [])
        if phrase in held:
            held.remove(phrase)
        elif len(held) >= self._width:
            del held[0]
        held.append(phrase)

    def newest(self, key: int, count: int) -> list[Phrase]:
        """The ``count`` newest phrases of ``key``, newest last."""
        return self._phrases.get(key, [])[-count:] if count else []

    def replace(self, key: int, old: Phrase, new: Phrase) -> None:
        """``new`` takes the place of ``old``; nothing if that has gone. A phrase is never held twice."""
        held = self._phrases.get(key, [])
        if old == new or old not in held:
            return
        if new in held:
            held.remove(new)
        held[held.index(old)] = new

    def learn(self, drafted: Sequence[int], said: Sequence[int], length: int) -> None:
        """Take in what a model said after rejected tokens: said[i] follows drafted[i].

        A phrase runs from a drafted token through what was said, as long as that is what was drafted; only phrases of
        ``length`` tokens are kept. ``learn([7, 1, 5], [1, 2, 9], 2)`` adds 7 -> (1, 2), since 1 was drafted after 7.
        """
        for start in range(len(drafted) - length + 1):
            phrase = tuple(said[start : start + length])
            if phrase[:-1] == tuple(drafted[start + 1 : start + length]):
                self.add(drafted[start], phrase)

    def clear(self) -> None:
        """Forget everything."""
        self._phrases.clear()

    def nbytes(self) -> int:
        """Bytes of keys and phrases (an estimate)."""
        if not self._phrases:
            return 0
        phrase = next(iter(self._phrases.values()))[0]
        count = sum(map(len, self._phrases.values()))
        return len(self._phrases) * LINK_BYTES + count * (sys.getsizeof(phrase) + 8)
