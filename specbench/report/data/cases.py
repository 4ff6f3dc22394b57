"""A run's cases as arrays: each method's in each category is looked up, so many categories cost no more than few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench.record import OVERALL
from specbench.report.data.predict import MODELLED, Prediction
from specbench.report.data.rows import category_order

Column = NDArray[Any]
_PLACE = "place"  # of a case among the run's, the same under every method
_NO_ROWS = np.empty(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Cases:
    """Some rows of the folded records, in their order. columns: of all rows. rows: (C,) those that are meant."""

    columns: Mapping[str, Column]
    rows: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Column:
        """(C,) a column."""
        return self.columns[name][self.rows]

    def where(self, wanted: Column) -> Cases:
        """Those for which ``wanted``, (C,) bool, is true."""
        return Cases(self.columns, self.rows[wanted])

    def paired(self, other: Cases) -> tuple[Cases, Cases]:
        """The cases of both, in the order of this one: this method's and the other's."""
        _, ours, theirs = np.intersect1d(self[_PLACE], other[_PLACE], assume_unique=True, return_indices=True)
        order = np.argsort(ours)
        return Cases(self.columns, self.rows[ours[order]]), Cases(other.columns, other.rows[theirs[order]])


class CasesOfRun:
    """All cases of a run, by category and method."""

    def __init__(self, folded: pd.DataFrame, prediction: Prediction | None) -> None:
        """folded: a row a (method, case), of ``fold_cases``. prediction: its figures become columns.

        drafting: the methods that proposed a token in any case. categories: in the order that they are printed in.
        """
        self._columns: dict[str, Column] = {str(name): folded[name].to_numpy() for name in folded}
        self._names = folded.index.get_level_values("case").to_numpy()
        self._columns[_PLACE] = pd.factorize(self._names)[0]
        if prediction is not None:
            modelled = prediction.cases[list(MODELLED)].reindex(folded.index)
            self._columns |= {name: modelled[name].to_numpy() for name in MODELLED}
        self.categories = category_order(folded["category"])
        whole = folded.groupby("method", sort=False).indices
        self._rows = {(OVERALL, method): rows for method, rows in whole.items()}
        self._rows |= folded.groupby(["category", "method"], sort=False).indices
        self.drafting = {method for method in whole if self.of(OVERALL, method)["proposed"].any()}

    def names(self, cases: Cases) -> Column:
        """(C,) which cases these are."""
        return self._names[cases.rows]

    def of(self, category: str, method: str) -> Cases:
        """A method's cases in a category, failed ones too."""
        return Cases(self._columns, self._rows.get((category, method), _NO_ROWS))
