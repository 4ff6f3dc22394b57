"""What the labs share: Markdown tables that are printed row by row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def print_table(
    columns: Sequence[str], rows: Iterable[Iterable[object]], left: Collection[int] = (0,)
) -> None:
    """Print a Markdown table row by row, while ``rows`` is still being computed.

    left: the numbers of the columns of text, which are aligned to the left.
    """
    marks = ("---" if place in left else "--:" for place in range(len(columns)))
    print(f"| {' | '.join(columns)} |\n|{'|'.join(marks)}|")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)
