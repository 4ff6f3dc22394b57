"""How a method fares along an answer: MAT and time a step by tokens emitted before the step, and by its context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specbench.record import CaseRecord
from specbench.report.data.predict import steps_of

EDGES = {  # of the bins; powers of two, the last is open
    "position": (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "context": (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
}
LENGTHS = ("axis", "from", "steps", "emitted", "mat", "step_ms")


def count_lengths(records: Sequence[CaseRecord], timed: bool) -> Iterator[tuple[str | float, ...]]:
    """A row an axis and bin that has steps. step_ms: mean; blank where the target was not timed."""
    fed, context, emitted, _ = steps_of(records)
    if not len(fed):
        return
    prompts = np.concatenate([np.full(len(turn.accept), turn.prompt_tokens) for each in records for turn in each.turns])
    times = np.array([seconds for record in records for turn in record.turns for seconds in turn.step_s])
    known = timed and len(times) == len(fed)
    for axis, values in (("position", context - prompts), ("context", context)):
        place = np.searchsorted(EDGES[axis], values, side="right") - 1
        for number in np.unique(place):
            own = place == number
            yield (
                *(axis, EDGES[axis][number], int(own.sum()), int(emitted[own].sum())),
                float(emitted[own].mean()),
                1e3 * float(times[own].mean()) if known else float("nan"),
            )
