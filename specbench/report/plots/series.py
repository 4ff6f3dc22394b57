"""What every plot draws: one method with its name, its look, and its figures by category."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from specbench.report.plots.palette import Style


@dataclass(frozen=True, slots=True)
class Series:
    """One method of one model and suite. rows: its rows of the summary, indexed by category."""

    name: str
    style: Style
    rows: pd.DataFrame
