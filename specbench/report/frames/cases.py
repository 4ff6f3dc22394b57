"""A run's cases as arrays: each method's in each category is looked up, so many categories cost no more than few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench.records.record import OVERALL
from specbench.report.frames.predict import MODELLED, Prediction
from specbench.report.frames.rows import category_order
from specbench.report.frames.trials import Column, Columns, Trials, fold_cases

Rows = NDArray[np.int32]

NOBODY = ""  # whose records there are none of
_NO_ROWS = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Cases:
    """Some rows of the folded records, in their order. columns: of all rows. rows: (C,) those that are meant."""

    columns: Columns
    rows: Rows

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
        _, ours, theirs = np.intersect1d(self["case"], other["case"], assume_unique=True, return_indices=True)
        order = np.argsort(ours)
        return Cases(self.columns, self.rows[ours[order]]), Cases(other.columns, other.rows[theirs[order]])


class CasesOfRun:
    """All cases of a run, by category and method."""

    def __init__(self, trials: Trials, prediction: Prediction | None) -> None:
        """prediction: its figures become columns.

        drafting: the methods that proposed a token in any case. categories: in the order that they are printed in.
        """
        self._names, self._labels = trials.cases, trials.categories
        predicted = prediction.cases if prediction else {}
        self._columns = {
            method: _with_modelled(fold_cases(trials.columns(method)), predicted.get(method))
            for method in (*trials.methods, NOBODY)
        }
        self.categories = category_order(self._labels)
        self._rows = {method: self._by_category(columns["category"]) for method, columns in self._columns.items()}
        self.drafting = {method for method, columns in self._columns.items() if columns["proposed"].any()}

    def _by_category(self, numbers: Column) -> dict[str, Rows]:
        groups = pd.Series(numbers).groupby(numbers).indices
        return {str(self._labels[number]): rows.astype(np.int32) for number, rows in groups.items()}

    def names(self, cases: Cases) -> Column:
        """(C,) which cases these are."""
        return self._names[cases["case"]]

    def categories_of(self, cases: Cases) -> Column:
        """(C,) their categories."""
        return self._labels[cases["category"]]

    def of(self, category: str, method: str) -> Cases:
        """A method's cases in a category, failed ones too."""
        columns = self._columns.get(method, self._columns[NOBODY])
        if category == OVERALL:
            return Cases(columns, np.arange(len(columns["case"]), dtype=np.int32))
        return Cases(columns, self._rows.get(method, {}).get(category, _NO_ROWS))


def _with_modelled(columns: Columns, predicted: pd.DataFrame | None) -> Columns:
    """The columns with those of a prediction, NaN where a case has none."""
    found = {name: np.full(len(columns["case"]), np.nan) for name in MODELLED}
    if predicted is not None:
        rows = pd.Index(columns["case"]).get_indexer(predicted["place"])
        for name, values in found.items():
            values[rows] = predicted[name]
    return {**columns, **found}
