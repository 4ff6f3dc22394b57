"""A run's cases, folded over the rounds, by category and method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench.records.record import CONTROL, OVERALL, VANILLA
from specbench.report.frames.predict import MODELLED, Prediction
from specbench.report.frames.trials import Columns, Trials, Values, fold_cases

# Spec-Bench's, in its order
TASKS = ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")
Rows = NDArray[np.int32]
_NO_METHOD = ""  # a name without records
_NO_ROWS = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Cases:
    """Some rows of the folded records, in their order. columns: of all rows. rows: (C,) places of
    the selected ones.
    """

    columns: Columns
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Values:
        """(C,) a column."""
        return self.columns[name][self.rows]

    def where(self, wanted: Values) -> Cases:
        """The cases for which ``wanted``, (C,) bool, is true."""
        return Cases(self.columns, self.rows[wanted])

    def succeeded(self) -> Cases:
        """The cases that failed in no round."""
        return self.where(self["ok"])

    def paired(self, other: Cases) -> tuple[Cases, Cases]:
        """The cases of both, in the order of this one: this method's and the other's."""
        _, ours, theirs = np.intersect1d(
            self["case"], other["case"], assume_unique=True, return_indices=True
        )
        order = np.argsort(ours)
        return Cases(self.columns, self.rows[ours[order]]), Cases(
            other.columns, other.rows[theirs[order]]
        )


class CasesOfRun:
    """All cases of a run, folded over the rounds, by category and method: each pair is looked up,
    not searched.

    drafting: the methods that proposed a token in any case. categories: in the printed order.
    labels: by number.
    """

    def __init__(self, trials: Trials, prediction: Prediction | None) -> None:
        """prediction: its figures become columns, NaN if a case has none."""
        self._names, self.labels = trials.cases, trials.categories
        self._columns: dict[str, Columns] = {}
        self._rows: dict[str, dict[str, Rows]] = {}
        for method in (*trials.methods, _NO_METHOD):
            columns = fold_cases(trials.columns(method))
            modelled = {name: np.full(len(columns["case"]), np.nan) for name in MODELLED}
            if prediction and method in prediction.cases:
                predicted = prediction.cases[method]
                rows = pd.Index(columns["case"]).get_indexer(predicted["place"])
                for name, values in modelled.items():
                    values[rows] = predicted[name]
            groups = pd.Series(columns["category"]).groupby(columns["category"]).indices
            self._columns[method] = {**columns, **modelled}
            self._rows[method] = {
                str(self.labels[n]): rows.astype(np.int32) for n, rows in groups.items()
            }
        self.categories = category_order(self.labels)
        self.drafting = {
            method for method, columns in self._columns.items() if columns["proposed"].any()
        }

    def names(self, cases: Cases) -> Values:
        """(C,) the names of these cases."""
        return self._names[cases["case"]]

    def of(self, category: str, method: str) -> Cases:
        """A method's cases in a category, failed ones too."""
        columns = self._columns.get(method, self._columns[_NO_METHOD])
        if category == OVERALL:
            return Cases(columns, np.arange(len(columns["case"]), dtype=np.int32))
        return Cases(columns, self._rows.get(method, {}).get(category, _NO_ROWS))


def overall(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are over all categories."""
    return rows[rows["category"] == OVERALL]


def list_categories(rows: pd.DataFrame) -> list[str]:
    """The categories of rows in the printed order."""
    return category_order(rows.loc[rows["category"] != OVERALL, "category"])


def without_references(rows: pd.DataFrame, *others: str) -> pd.DataFrame:
    """The rows of methods but vanilla, its control and ``others``."""
    return rows[~rows["method"].isin([VANILLA, CONTROL, *others])]


def category_order(names: Sequence[str] | pd.Series) -> list[str]:
    """Spec-Bench's tasks in its order, then any others by name."""
    present = set(names)
    return [*(task for task in TASKS if task in present), *sorted(present - set(TASKS))]
