"""Progress off a terminal: that the model is being loaded, then a line now and then with the time
left.
"""

import io

import pytest
from rich.console import Console

from builders.records import record, turn
from specbench.runs import launch


@pytest.mark.parametrize(
    ("done", "message"),
    [
        (
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
            [
                "1 of 10 blocks, 0:10 passed, about 1:12 left",
                "5 of 10 blocks, 0:50 passed, about 0:50 left",
                "9 of 10 blocks, 1:30 passed, about 0:10 left",
                "10 of 10 blocks, 1:40 passed",
            ],
        ),
        # resumed at 6
        (
            [6, 7, 8],
            ["6 of 10 blocks, 1:00 passed", "7 of 10 blocks, 1:10 passed, about 0:24 left"],
        ),
        ([10], ["10 of 10 blocks, 1:40 passed"]),
    ],
)
def test_lines_of_progress(monkeypatch, done, message):
    """A block takes ten seconds, of which eight are its records'; the first estimate, after one
    block, is by these.
    """
    now = 0.0
    block = [
        record(name, "a", [turn([1], prefill_s=1.0, decode_s=3.0)]) for name in ("vanilla", "pld")
    ]
    monkeypatch.setattr(launch.time, "monotonic", lambda: now)
    out = io.StringIO()
    with launch.Progress(Console(file=out, width=100), True) as progress:
        assert not out.getvalue()  # a run that is complete loads nothing
        progress.show("loading the weights")
        for count in done:
            now = 10.0 * count
            progress.observe(block, count, 10)
    assert out.getvalue().splitlines() == ["loading", *message]


def test_hours_are_spelled():
    assert [launch._spell_s(seconds) for seconds in (0, 35, 725, 11045)] == [
        "0:00",
        "0:35",
        "12:05",
        "3:04:05",
    ]
