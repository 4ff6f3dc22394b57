"""Two profiles to predict with: a small measured one and a linear fit."""

import numpy as np

from specbench.profile import Ceilings, Fit, Grid, Profile

_MS = np.array([[2.0, 5.0, 6.0], [4.0, 7.0, 10.0]])
MEASURED = Profile(
    device="a processor",
    model="tiny",
    engine="eager",
    dtype="float32",
    kind="measured",
    surface=Grid(
        np.array([1.0, 4.0, 8.0]), np.array([100.0, 500.0]), _MS, 0.1 * _MS, np.full((2, 3), 0.01)
    ),
    date="2026-01-02",
    rounds=11,
    control=(1.01, 0.99),
    ceilings=Ceilings(40.0, 38.0, 100.0),
)
FIT = Profile(
    "H",
    "big",
    "served",
    "bfloat16",
    "published",
    Fit(5.0, 20.0, 0.5, 1.0),
    "2026",
    source="a paper",
)
