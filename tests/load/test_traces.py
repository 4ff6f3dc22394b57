"""Recorded arrivals: what is used of them, and damaged files."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from specbench.serving import traces
from specbench.serving.settings import (
    LoadConfig,
    check_load,
    count_measured,
    draw_arrivals,
    find_limits,
    find_patience,
    make_arrivals,
)
from specbench.serving.traces import read_arrivals
from specbench.types import InputError

# In its publisher's order of columns, one of which no run reads.
TABLE = """time_s,model,prompt_tokens,answer_tokens
5,a,472,18
45,a,1087,230
46.5,b,417,0
118,a,417,276
"""


@pytest.mark.parametrize(
    ("text", "times_s", "tokens"),
    [
        (TABLE, [0, 40, 113], (18, 230, 276)),  # the request without an answer had failed
        ("[1.5, 2, 4]", [0, 0.5, 2.5], ()),
        ("\ufeff[1.5, 2]", [0, 0.5], ()),
        ("\ufeff" + TABLE.replace("\n", "\r\n"), [0, 40, 113], (18, 230, 276)),
        # not in order
        ("\n" + TABLE + TABLE.splitlines()[2], [0, 40, 40, 113], (18, 230, 230, 276)),
    ],
    ids=["table", "list", "marked_list", "windows", "unordered"],
)
def test_times_and_answers_of_a_file(tmp_path, text, times_s, tokens):
    path = tmp_path / "t"
    path.write_text(text)
    found = read_arrivals(str(path))
    assert np.array(found.times_s) - found.times_s[0] == pytest.approx(times_s, abs=1e-6)
    assert found.tokens == tokens


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has the columns none"),
        ("[1, 1]", "at least two of them apart"),
        ("[1, 0]", "entry 1: got 0, after 1; expected ascending times"),
        ("[1", "not JSON"),
        (f"[0, 1{400 * '0'}]", "entry 1: got 10{39}...; expected a number of seconds"),
        (
            "[-1e308, 1e308]",
            (
                r"has 0 arrivals a second in the mean, from -1e\+308 to 1e\+308 s; expected a JSON"
                r" list"
            ),
        ),
        (
            "a,b\n1,2\n",
            "has the columns a, b; expected .* csv file with the columns time_s and answer_tokens",
        ),
        (
            TABLE.replace("46.5", "nan"),
            "line 4, column time_s: got 'nan'; expected a number of seconds",
        ),
        (
            TABLE.replace(",230", ",-1"),
            "line 3, column answer_tokens: got '-1'; expected a number of tokens",
        ),
        (TABLE.replace(",230", ",3,230"), "line 3: has 5 values under 4 columns; expected as many"),
    ],
)
def test_damaged_files(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=f"load.times=.*t.csv.*{message}") as caught:
        read_arrivals(str(path))
    assert len(str(caught.value)) < 600
    path.write_bytes(text.encode("utf-16"))
    with pytest.raises(InputError, match=r"load\.times="):
        read_arrivals(str(path))


def test_a_long_file_is_read_up_to_a_number_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MOST_ARRIVALS", 2)
    (tmp_path / "t").write_text(TABLE + "damaged")
    assert read_arrivals(str(tmp_path / "t")).times_s == (5, 45)


def test_each_stretch_begins_where_the_one_before_ended(tmp_path):
    """Ten arrivals, one a second from 100 s on but for the fifth; a stretch has 1 and 3 of them."""
    times = [100, 101, 102, 103, 104.5, 105, 106, 107, 108, 109]
    rows = [f"{time},{10 + number}\n" for number, time in enumerate(times)]
    (tmp_path / "t").write_text("time_s,answer_tokens\n" + "".join(rows))
    load = LoadConfig(kind="trace", requests=1, block=3, times=str(tmp_path / "t"))
    first = [list(itertools.islice(make_arrivals(load, 0, place), 4)) for place in range(3)]
    # the third: 8, 9, and the first two again
    assert first == [[0, 1, 2, 3], [0, 0.5, 1.5, 2.5], [0, 1, 2, 3]]
    assert list(itertools.islice(find_limits(load, 2), 4)) == [18, 19, 10, 11]
    load.rate = 2.0
    assert list(itertools.islice(make_arrivals(load, 0, 1), 4)) == [0, 0.25, 0.75, 1.25]
    load.answers = "free"
    assert find_limits(load, 0) is None
    (tmp_path / "t").write_text(json.dumps(times))
    load.answers = "recorded"
    assert find_limits(load, 0) is None  # a list of times has none


def test_a_stretch_by_time_has_what_arrives_in_it():
    load = LoadConfig(kind="constant", requests=2, ramp=3, rate=10.0, seconds=1.0)
    assert count_measured(load, 0) == 10
    load.kind = "poisson"
    counts = [count_measured(load, seed) for seed in range(400)]
    # the first of them, and ten in the second after it
    assert np.mean(counts) == pytest.approx(11, abs=0.5)
    assert len(set(counts)) > 5
    load.seconds = None
    assert count_measured(load, 0) == 16


def test_stretches_by_time_of_a_trace_do_not_overlap(tmp_path):
    """Bursts of 5 arrivals every 10 s at twice the rate: a stretch has one for the ramp, and those
    of 10 s.
    """
    times = [10.0 * burst + 0.1 * place for burst in range(4) for place in range(5)]
    (tmp_path / "t").write_text(json.dumps(times))
    rate = 2 * read_arrivals(str(tmp_path / "t")).rate
    load = LoadConfig(kind="trace", requests=1, seconds=10.0, rate=rate, times=str(tmp_path / "t"))
    trace, first = read_arrivals(str(tmp_path / "t")), 0
    for place in range(12):
        arrivals = list(itertools.islice(make_arrivals(load, 0, place), 100))
        assert arrivals == pytest.approx(list(itertools.islice(trace.repeat(first, rate), 100)))
        count = count_measured(load, 0, place)
        assert count == sum(time < arrivals[1] + 10 for time in arrivals[1:])
        first += 1 + count


def test_patience_is_the_time_in_which_a_stretch_arrives(tmp_path):
    """3 + 10 requests at 10 a second; without an end by time, and unless a load is searched, there
    is no limit.
    """
    load = LoadConfig(kind="poisson", requests=2, ramp=3, rate=10.0, seconds=1.0)
    assert find_patience(load) == pytest.approx(1.3)
    load.seconds, load.find = None, "slo"
    assert find_patience(load) == pytest.approx(1.9)
    load.find = None
    assert find_patience(load) == np.inf
    load.patience = 0.5
    assert find_patience(load) == 0.5


@pytest.mark.parametrize("shape", [0.25, 4.0])
def test_gaps_have_their_mean_and_variance(shape):
    """The squared coefficient of variation of gamma's gaps is 1 / shape, of Poisson's 1, of
    constant ones 0.
    """
    for kind, expected in (("gamma", 1 / shape), ("poisson", 1.0), ("constant", 0.0)):
        gaps = np.diff(list(itertools.islice(draw_arrivals(kind, 5.0, 1, shape), 20_000)))
        assert gaps.mean() == pytest.approx(0.2, rel=0.06)
        assert gaps.var() / gaps.mean() ** 2 == pytest.approx(expected, rel=0.1, abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kind": "poisson", "find": "slo", "rate": 3.0},
            "load.rate=3.0: load.find=slo finds the rate",
        ),
        (
            {"kind": "poisson", "rate": 1.0, "seconds": 1e5},
            "load.seconds=100000.0: the .* requests of a stretch",
        ),
        (
            {"kind": "poisson", "rate": 1e9, "seconds": 1e3},
            r"load.seconds=1000: 1e\+12 requests arrive .* at most 1000000",
        ),
        (
            {"kind": "gamma", "rate": 5e-324, "shape": 0.01},
            "load.rate=5e-324: the 17 requests of a stretch",
        ),
    ],
)
def test_loads_that_are_none(settings, message):
    with pytest.raises(InputError, match=message):
        check_load(LoadConfig(**settings))
