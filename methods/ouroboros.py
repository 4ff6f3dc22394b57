"""Ouroboros (Zhao et al. 2024): the draft model drafts phrase by phrase, and the draft is
lengthened by phrases.

The draft model runs lookahead decoding on a pool of phrases; the pool's newest phrases after the
last drafted token are verified as alternative endings; and what the target predicts after rejected
tokens and endings becomes phrases again. This is the algorithm of the paper (EMNLP 2024), not the
variant that its authors put into Spec-Bench.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from methods.parts.draft_lm import DraftLM, TreeRequest
from methods.parts.draft_method import DraftModelMethod, TargetTraits
from methods.parts.lookahead_window import Window, hang_below, largest_window, list_chains
from methods.parts.parameters import count
from specbench.decode.walk import Walk
from specbench.method import Drafter
from specbench.models.facade import Target
from specbench.types import EMPTY, ROOT, Draft, Needs, Prefill, Step, require_nodes

Phrase = tuple[int, ...]
LINK_BYTES = 200  # what a key takes in the dict, list included, at the usual fill


class PhrasePool:
    """At most ``width`` phrases a token; the oldest goes first."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._phrases: dict[int, list[Phrase]] = {}

    def add(self, key: int, phrase: Phrase) -> None:
        """``phrase`` is the newest of ``key``."""
        phrases = self._phrases.setdefault(key, [])
        if phrase in phrases:
            phrases.remove(phrase)
        elif len(phrases) >= self._width:
            del phrases[0]
        phrases.append(phrase)

    def newest(self, key: int, count: int) -> list[Phrase]:
        """The ``count`` newest phrases of ``key``, newest last."""
        return self._phrases.get(key, [])[-count:] if count else []

    def replace(self, key: int, old: Phrase, new: Phrase) -> None:
        """``new`` takes the place of ``old``; nothing if that has gone. A phrase is never stored
        twice.
        """
        phrases = self._phrases.get(key, [])
        if old == new or old not in phrases:
            return
        if new in phrases:
            phrases.remove(new)
        phrases[phrases.index(old)] = new

    def learn(self, drafted: Sequence[int], predicted: Sequence[int], length: int) -> None:
        """Learn from what a model predicts after rejected tokens: predicted[i] follows drafted[i].

        A phrase is a run of predictions after a drafted token, each the token that was drafted
        there but the last; only those of ``length`` tokens are kept. ``learn([7, 1, 5], [1, 2, 9],
        2)`` adds 7 -> (1, 2), since 1 was drafted after 7.
        """
        for start in range(len(drafted) - length + 1):
            phrase = tuple(predicted[start : start + length])
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


DRAFT, ENDING = 0, 1


class _Lookahead:
    """Lookahead decoding with the draft model: its window and cache are the request's, the pool is
    shared.
    """

    def __init__(
        self, request: TreeRequest, window: Window, pool: PhrasePool, guesses: int
    ) -> None:
        self.request = request
        self._window, self._pool, self._guesses = window, pool, guesses
        self._settled = 0
        self.forwards = 0

    def read(self, context: Sequence[int]) -> None:
        """Go back to what ``context`` has in common with what was drafted; a long text is read in
        one forward.
        """
        cached = self.request.rewind(context, self._settled)
        if not cached and len(context) > 1:
            self.request.feed(context[:-1], 0)
        self._settled = len(context) - 1

    def draft(self, context: Sequence[int], least: int, eos: frozenset[int]) -> list[int]:
        """At least ``least`` tokens after ``context``, or up to an EOS."""
        fresh = context[self.request.cached :]
        drafted: list[int] = []
        while len(drafted) < least:
            new = self._forward(fresh)
            ends = [place for place, token in enumerate(new) if token in eos]
            drafted += new[: ends[0] + 1] if ends else new
            if ends:
                break
            fresh = new[-1:]
        return drafted

    def _forward(self, fresh: Sequence[int]) -> list[int]:
        """One forward over ``fresh``, the tokens not read yet, with the window and the root's
        phrases after it.

        fresh: the root last. The tokens that follow the root, one at least; all but the last have
        been read.
        """
        self.forwards += 1
        window, root = self._window, len(fresh) - 1
        phrases = self._pool.newest(fresh[root], self._guesses) if window.full else []
        # A phrase is fed without its last token: the draft's own prediction replaces it.
        branch, below = list_chains([phrase[:-1] for phrase in phrases], sys.maxsize)
        cells = window.tokens()
        first, behind = len(fresh), len(fresh) + len(cells)  # nodes: fresh, cells, branch
        parents = [
            *range(ROOT, root),
            *hang_below(root, window.parents, first),
            *hang_below(root, below, behind),
        ]
        picks = self.request.expand([*fresh, *cells, *branch], parents).argmax(-1).tolist()
        predicted = [picks[root], *picks[behind:]]
        path = Walk.follow(branch, below, None, predicted)
        drafted = [
            *(branch[node] for node in path),
            predicted[path[-1] + 1] if path else predicted[0],
        ]
        for key, phrase in window.move(fresh[root], picks[first:behind][window.newest()]):
            self._pool.add(key, phrase)
        self.request.commit(
            [*range(first), *(behind + node for node in path)], [*fresh, *drafted[:-1]]
        )
        return drafted


class _Ouroboros(Drafter):
    def __init__(self, method: Ouroboros, prompt: Sequence[int], first: int, seed: int) -> None:
        self._method = method
        window = Window(method.level, method.window, prompt or [first], seed)
        self._lookahead = _Lookahead(method.tree(), window, method.pool, method.window)
        self._drafted: list[int] = []
        self._endings: list[Phrase] = []
        self._lengths: list[int] = []

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method = self._method
        self._drafted, self._endings = [], []
        if not budget:
            return EMPTY
        self._lookahead.read(context)
        drafted = self._lookahead.draft(context, min(method.gamma, budget), method.eos)
        drafted = self._drafted = drafted[: method.gamma if method.overshoot == "cut" else budget][
            :budget
        ]
        self._lengths.append(len(drafted))
        count = len(drafted)
        if drafted[-1] not in method.eos:
            room = (budget - count) // (method.level - 1)
            self._endings = method.pool.newest(drafted[-1], min(method.endings, room))
        tokens, parents = list_chains(self._endings, budget)
        return Draft(
            drafted + tokens,
            [*range(ROOT, count - 1), *hang_below(count - 1, parents, count)],
            source=[DRAFT] * count + [ENDING] * len(tokens),
        )

    def observe(self, step: Step) -> None:
        drafted = self._drafted
        if step.done or not drafted:
            return
        assert step.topk is not None
        predicted = step.topk.ids[:, 0].tolist()  # row 0 is the root, row i + 1 node i
        pool, length, count = self._method.pool, self._method.level - 1, len(drafted)
        right = sum(node < count for node in step.path)
        pool.learn(drafted[right:], predicted[right + 1 : count + 1], length)
        for number, ending in enumerate(self._endings):
            start = count + number * length + 1
            pool.replace(
                drafted[-1], ending, (predicted[count], *predicted[start : start + length - 1])
            )

    def stats(self) -> dict[str, float]:
        """Tokens drafted a step, endings aside, and the draft's forwards for them."""
        steps = len(self._lengths)
        if not steps:
            return {}
        return {
            "mean_draft_length": sum(self._lengths) / steps,
            "mean_forwards": self._lookahead.forwards / steps,
        }


@dataclass(eq=False)
class Ouroboros(DraftModelMethod):
    """Ouroboros; conf/method/ouroboros.yaml describes the parameters."""

    learned = ("pool",)
    by_node = True
    sources = ("draft model", "phrases")  # type: ignore[assignment]

    gamma: int = count(12)
    window: int = count(20)
    level: int = count(7, low=3)
    endings: int = count(3, low=0)
    overshoot: Literal["kept", "cut"] = "kept"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pool = PhrasePool(self.window)

    @property
    def needs(self) -> Needs:
        """The best token of every row: what follows rejected tokens too."""
        return Needs(node_topk=1, read_topk=True)

    def bind(self, target: Target) -> None:
        nodes = self.gamma + self.level - 2 + self.endings * (self.level - 1)
        require_nodes(
            f"gamma={self.gamma}, level={self.level}, endings={self.endings}",
            nodes,
            target.max_nodes,
        )
        super().bind(target)

    def adopt(self, lm: DraftLM, traits: TargetTraits) -> None:
        """As ``DraftModelMethod.adopt``; a forward is recorded from the first window to the last
        one with all phrases.

        Before the root there are at most the token that was drafted last, and an ending.
        """
        super().adopt(lm, traits)
        first = self.level + self.window - 2
        most = (
            self.level
            + 1
            + largest_window(self.level, self.window)
            + self.window * (self.level - 2)
        )
        lm.prepare((rows, rows, rows) for rows in range(first, most + 1))

    def reset(self) -> None:
        self.pool.clear()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The window is the request's own, its first level drawn from the prompt by ``seed``."""
        return _Ouroboros(self, prompt, prefill.token, seed)

    def state_bytes(self) -> int:
        return self.pool.nbytes()
