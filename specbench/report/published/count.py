"""How much of what was published can be measured again, where, and how much was: counts, nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.report.published.figures import DEFINITION, HARDWARE, TRACE, WEIGHTS, Figure
from specbench.report.published.match import REPRODUCED, Match
from specbench.report.text.label import Cell
from specbench.report.text.table import Table

_MEANING = (
    "By definition: the baseline's own 1.00. Times: speedups and tokens/s, which need the weights and the source's "
    "GPU. Weights: token counts that need the model's weights. Replay: MATs that recorded answers of the model give. "
    "No method: figures, of whichever kind, of something that is not built here. Compared and reproduced: replayable "
    "MATs that these runs have a counterpart of, and those of them within the tolerance in every run that has one."
)
_HEADER = ("Source", "Figures", "By definition", "Times", "Weights", "Replay", "No method", "Compared", "Reproduced")


def count_table(figures: Sequence[Figure], matches: Sequence[Match]) -> Table:
    """A row a source, all of them last. matches: of the runs that were given, none without."""
    sources = list(dict.fromkeys(figure.source for figure in figures))
    rows = [_row(source, [f for f in figures if f.source == source], matches) for source in sources]
    rows.append(_row("all", figures, matches))
    return Table("published-count", "Published figures.", _MEANING, _HEADER, tuple(rows), frozenset(), spread=False)


def _row(source: str, figures: Sequence[Figure], matches: Sequence[Match]) -> tuple[Cell, ...]:
    kinds = [sum(figure.needs == kind for figure in figures) for kind in (DEFINITION, HARDWARE, WEIGHTS, TRACE)]
    verdicts = {
        id(figure): [match.verdict for match in matches if match.figure is figure]
        for figure in figures
        if figure.needs == TRACE
    }
    compared = [found for found in verdicts.values() if found]
    agree = [found for found in compared if set(found) == {REPRODUCED}]
    missing = sum(not figure.method for figure in figures)
    counts = (len(figures), *kinds, missing, len(compared), len(agree))
    return (Cell(source), *(Cell(str(count)) for count in counts))
