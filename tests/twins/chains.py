"""Twins of the methods that look a suffix of the context up: PLD, SSD, N-Grammys' context rows.

Arguments behind the star are the mutants' knobs; their defaults are the rules of the papers and
codes.
"""

from __future__ import annotations

from collections import Counter

from twins.loop import Propose, Request, Route, Twin, ids_of, places, prefixes, text_of

END = chr(0x10FFFF)  # no token


def pld(
    max_ngram=3, num_draft=10, rule="original", min_ngram=1, *, shortest_first=False, guard=1
) -> Twin:
    """Saxena 2023: longest suffix, earliest match with a full tail (original) or any tail (hf), or
    the latest.
    """

    def propose(context: list[int], last: int) -> list[Route]:
        text, size = text_of(context), len(context)
        for n in sorted(range(min_ngram, max_ngram + 1), reverse=not shortest_first):
            found = places(text[:-1], text[-n:])
            for start in found[::-1] if rule == "recent" else found:
                tail = start + n
                if rule != "original" or (tail + num_draft <= size and tail < size - guard * n):
                    return prefixes(ids_of(text[tail : tail + num_draft]))
        return []

    return lambda request: propose


def n_grammys(
    k=10, w=10, q=1, verify="batch", ties="recent", *, latest_first=False, short_tails=False
) -> Twin:
    """Stewart et al. 2024, context rows alone: the most frequent w tokens that followed the last q
    tokens.
    """

    def propose(context: list[int], last: int) -> list[Route]:
        text, seen = text_of(context), dict[str, tuple[int, int]]()
        for start in places(text[:-1], text[-q:]):
            row = text[start + q : start + q + w]
            if len(row) == w or short_tails:
                seen[row] = (seen.get(row, (0, 0))[0] + 1, start)
        order = (
            sorted(seen) if ties == "lexicographic" else sorted(seen, key=lambda row: -seen[row][1])
        )
        if not latest_first:
            order.sort(key=lambda row: -seen[row][0])
        paths = [path for row in order[:k] for path in prefixes(ids_of(row))]
        return paths if verify == "batch" else list(dict.fromkeys(paths))

    return lambda request: propose


def ssd(
    query_length=10, min_query=1, draft_length=10, rebuild_every=1, buffer_tokens=4194304,
    vote="whole", *, oldest_of_equals=False, latest_hit=False, across=False, stale=0,
    shortest_first=False, answers_only=False,
) -> Twin:  # fmt: skip
    """TitanML's blog: the most frequent whole continuation of the longest query found in earlier
    requests.
    """

    def begin(request: Request) -> Propose:
        built = max(0, len(request.earlier) // rebuild_every * rebuild_every - stale)
        texts = [
            text_of(answer if answers_only else prompt + answer)
            for prompt, answer in request.earlier[:built]
        ]
        log = "".join(text + ("" if across else END) for text in texts)[-buffer_tokens:]

        def propose(context: list[int], last: int) -> list[Route]:
            text = text_of(context)
            lengths = range(min(query_length, len(text)), min_query - 1, -1)
            for q in lengths[::-1] if shortest_first else lengths:
                hits = [hit + q for hit in places(log, text[-q:])]
                if hits:
                    tails = [log[hit : hit + draft_length].split(END)[0] for hit in hits]
                    return prefixes(ids_of(elect(tails)))
            return []

        return propose

    def elect(tails: list[str]) -> str:
        tails = [tail for tail in tails if tail][:: 1 if oldest_of_equals else -1]
        if not tails or latest_hit:
            return tails[0] if tails else ""
        if vote == "whole":
            return Counter(tails).most_common(1)[0][0]  # of equals the first counted
        first = Counter(tail[0] for tail in tails).most_common(1)[0][0]
        return first + elect(
            [tail[1:] for tail in tails if tail[0] == first][:: 1 if oldest_of_equals else -1]
        )

    return begin
