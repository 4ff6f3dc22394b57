"""Twins of the methods whose match may be as long as it will: SAM-Decoding and SuffixDecoding.

``knobs`` and the arguments behind the star are the mutants'; left out, the rules are those of the
papers and codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from twins.loop import Propose, Request, Route, Twin, ids_of, places, prefixes, text_of

Place = tuple[int, int]  # number of a text, and a position in it


def longest_match(whole: str, text: str) -> int:
    """The length of the longest end of ``whole`` that occurs in ``text``."""
    size = 0
    while size < len(whole) and whole[-size - 1 :] in text:
        size += 1
    return size


def likeliest_tree(
    corpus: str, match: str, count: int, children: int, wide: bool = False
) -> list[Route]:
    """Most probable nodes first, equally probable ones as they were found, at most ``children`` a
    level.

    A probability is the product of shares that the code computes, its rounding included.
    """
    frontier, nodes, seen = [(1.0, (), places(corpus, match))], list[Route](), dict[int, int]()
    while frontier and len(nodes) < count:
        likely, route, here = frontier.pop(frontier.index(max(frontier, key=lambda node: node[0])))
        if route:
            if seen.get(len(route), 0) == children and not wide:
                continue
            seen[len(route)] = seen.get(len(route), 0) + 1
            nodes.append(route)
        after: dict[str, list[int]] = {}
        for start in here:
            place = start + len(match) + len(route)
            after.setdefault(corpus[place : place + 1], []).append(start)
        after.pop("", None)
        for token in sorted(after, key=lambda token: -len(after[token]))[:children]:
            share = len(after[token]) / len(here)
            frontier.append((likely * share, (*route, ord(token)), after[token]))
    return nodes


def sam(
    n_predicts=40, alpha=4.0, children=8, len_bias=0, corpus: str = "", *, latest=False,
    through_root=False, shorter=False, corpus_first=False, wide=False,
) -> Twin:  # fmt: skip
    """Hu et al. 2024 without auxiliary: what followed the longest match, first seen, or the
    corpus's likeliest tree.
    """

    def matched(whole: str, text: str) -> int:
        size = longest_match(whole, text)
        return size - (shorter and size > 1)

    def propose(context: list[int], last: int) -> list[Route]:
        whole = text_of(context)
        text = whole[:-1]
        size, far = matched(whole, text), matched(whole, corpus)
        if far - len_bias > size or (corpus_first and far - len_bias == size):
            count = min(n_predicts, 1 + int(alpha * (far - len_bias))) - 1
            return likeliest_tree(corpus, whole[-far:], count, children, wide)
        count = min(n_predicts, 1 + int(alpha * size)) - 1
        find = text.rfind if latest else text.find
        start = find(whole[len(whole) - size :]) + size
        source = whole if through_root else text
        return prefixes(ids_of(source[start : start + count])) if size else []

    return lambda request: propose


@dataclass(frozen=True)
class Rules:
    """Of SuffixDecoding's drafts."""

    num_draft: int = 16
    factor: float = 1.0
    offset: float = 0.0
    min_prob: float = 0.1
    depth: int = 64
    shape: str = "path"
    knobs: Mapping[str, bool] = field(default_factory=dict)

    def children(self, texts: Sequence[list[int]], ends: list[Place]) -> list[list[Place]]:
        """Places behind each next token, the most frequent one first, of equals the one seen
        last.
        """
        by_token: dict[int, list[Place]] = {}
        for text, end in ends:
            if end < len(texts[text]):
                by_token.setdefault(texts[text][end], []).append((text, end + 1))
        newest = sorted(
            by_token.values(),
            key=lambda found: found[-1],
            reverse=not self.knobs.get("oldest_child"),
        )
        return sorted(newest, key=len, reverse=True)

    def grow(self, texts, ends: list[Place], matched: int) -> tuple[Fraction, list[Route]]:
        """Expected length and nodes of the draft behind a match that ended at ``ends``."""
        count = min(self.num_draft, int(self.factor * matched + self.offset))
        score, routes, frontier = Fraction(0), list[Route](), [((), ends)]
        while frontier and len(routes) < count:
            route, here = frontier.pop(frontier.index(max(frontier, key=lambda node: len(node[1]))))
            if route:
                score += Fraction(len(here), len(ends))
                routes.append(route)
            if matched + len(route) < self.depth:
                kids = [
                    child
                    for child in self.children(texts, here)
                    if len(child) / len(ends) >= self.min_prob
                ]
                for child in kids[:1] if self.shape == "path" else kids:
                    text, end = child[0]
                    frontier.append(((*route, texts[text][end - 1]), child))
        return score, routes

    def best(self, texts: Sequence[list[int]], context: list[int]) -> tuple[Fraction, list[Route]]:
        """Of all matches' drafts the one with the highest score, at ties that of the longer
        match.
        """
        found: tuple[Fraction, list[Route]] = (Fraction(0), [])
        ends = [(text, end) for text, ids in enumerate(texts) for end in range(1, len(ids) + 1)]
        for matched in range(1, min(len(context), self.depth)):
            ends = [
                (text, end)
                for text, end in ends
                if end >= matched and texts[text][end - matched] == context[-matched]
            ]
            if self.knobs.get("end_uncounted"):
                ends = [(text, end) for text, end in ends if end < len(texts[text])]
            if not ends:
                break
            drafted = self.grow(texts, ends, matched)
            if drafted[0] > found[0] or (
                drafted[0] == found[0] and not self.knobs.get("shorter_wins")
            ):
                found = drafted
        return found


def suffix_decoding(
    global_tree=False, cached_requests=100000, *, prompts_too=False, global_first=False,
    finished_only=False, oldest_child=False, end_uncounted=False, shorter_wins=False, **params,
) -> Twin:  # fmt: skip
    """Oliaro et al. 2024: counts of this request's text and of the latest answers, this one among
    them.
    """
    knobs = {
        "oldest_child": oldest_child,
        "end_uncounted": end_uncounted,
        "shorter_wins": shorter_wins,
    }
    rules = Rules(**params, knobs=knobs)

    def begin(request: Request) -> Propose:
        earlier = [
            [*prompt, *answer] if prompts_too else answer for prompt, answer in request.earlier
        ]

        def propose(context: list[int], last: int) -> list[Route]:
            local = rules.best([context], context)
            if not global_tree:
                return local[1]
            answers = [*earlier, [] if finished_only else context[len(request.prompt) :]]
            whole = rules.best(answers[-cached_requests:], context)
            return (
                whole[1]
                if whole[0] > local[0] or (global_first and whole[0] == local[0])
                else local[1]
            )

        return propose

    return begin
