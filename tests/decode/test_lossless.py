"""The judge of losslessness: what is a tie, what a violation, and which steps rounding may
decide.
"""

from __future__ import annotations

import pytest
import torch

from specbench.measure.lossless import ROUNDING_STEP, TOLERANCE, count_close, judge_block
from specbench.models.verify import compute_gaps
from specbench.records.record import VANILLA, CaseRecord, TurnRecord
from specbench.types import CaseError


def test_a_gap_is_to_the_best_of_the_others():
    rows = [[1.0, 4.0, 3.5], [1.0, 4.0, 3.5], [2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [5.0, 0.0, 1.0]]
    ids = [1, 2, 0, 1, 1]
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        assert compute_gaps(torch.tensor(rows, dtype=dtype), ids) == [-0.5, 0.5, 0, 0, 5]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_are_an_error(bad):
    with pytest.raises(CaseError, match="NaN or infinite"):
        compute_gaps(torch.tensor([[1.0, 2.0], [1.0, bad]]), [0, 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_rounding_step_is_the_dtypes_spacing_from_16_to_32(dtype):
    step, size = ROUNDING_STEP[str(dtype).removeprefix("torch.")], torch.tensor(20.0, dtype=dtype)
    assert (
        torch.nextafter(size, size + 1) - size == step
        if dtype.itemsize > 2
        else size + step - size == step
    )
    assert size + 0.49 * step == size


@pytest.mark.parametrize(
    ("gaps", "accept", "steps"),
    [
        ([0.0, -9, -9, -9], [2, 1], 0),  # the prefill's id belongs to no step
        ([-9.0, -9, -0.125, -9], [2, 1], 1),
        ([-9.0, -9, -9, 0.126], [2, 1], 0),
        ([0.0, 0.0, -9, -0.1], [1], 1),  # a peer's prefill emitted three
    ],
)
def test_close_steps(gaps, accept, steps):
    assert count_close(gaps, accept, 0.125) == steps


def judged(gaps: list[float], dtype: str):
    """The verdict on an answer whose ids have these gaps, next to a vanilla that diverges from it
    at the last one.
    """

    def record(method: str, last: int) -> CaseRecord:
        ids = [*range(len(gaps) - 1), last]
        turn = TurnRecord(3, ids, "length", [1] * (len(ids) - 1), [], [], [], 0.0, 0.0, {})
        return CaseRecord("c", "qa", "qa", method, 0, 0, 0, "ok", [turn])

    records = [record(VANILLA, -1), record("pld", -2)]
    judge_block(records, {each.method: [[1, 2]] for each in records}, lambda *_: gaps, dtype)
    return records[1].lossless


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_tolerance_parts_ties_from_violations(dtype):
    tolerance = TOLERANCE[dtype]
    verdict = judged([-5.0, 0.0, 0.9 * tolerance, tolerance, 1.1 * tolerance, -3.0], dtype)
    assert (verdict.ties, verdict.violations, verdict.positions, verdict.divergence) == (
        2,
        1,
        6,
        [0, 5],
    )
    assert verdict.worst_gap == 1.1 * tolerance
    assert verdict.close_steps == 1  # the gap of 0
    assert judged([-5.0, -3.0], dtype).worst_gap == 0
