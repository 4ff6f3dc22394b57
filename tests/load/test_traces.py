"""Arrivals as publishers record them: their own first rows, what is used of them, and damaged files."""

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

# Rows as in FAST25-release/traces/conversation_trace.jsonl of Mooncake, in Azure's files, and in BurstGPT's.
MOONCAKE = """{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14, 15]}
{"timestamp": 3000, "input_length": 13544, "output_length": 71, "hash_ids": [0, 219]}
{"timestamp": 5999, "input_length": 1053, "output_length": 26, "hash_ids": [0, 773, 774]}
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
2023-11-16 18:15:51.3910170,91,16
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
AZURE_2025 = """TIMESTAMP,NumImages,ContextTokens,GeneratedTokens
2024-10-15 00:00:00.5,1,374,44
2024-10-15 00:00:01,0,396,109
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
46.5,GPT-4,417,0,417,Conversation log
118,ChatGPT,417,276,693,API log"""


@pytest.mark.parametrize(
    ("text", "times_s", "tokens"),
    [
        (MOONCAKE, [0, 0, 3, 5.999], (500, 490, 71, 26)),
        (AZURE, [0, 4.314579, 4.541877, 4.710427], (44, 109, 55, 16)),
        (AZURE_2024, [0, 0.007405], (5, 6)),
        (AZURE_2025, [0, 0.5], (44, 109)),
        (BURSTGPT, [0, 40, 113], (18, 230, 276)),  # the request without an answer had failed
        ("[1.5, 2, 4]", [0, 0.5, 2.5], ()),
        ("\ufeff[1.5, 2]", [0, 0.5], ()),
        ("\ufeff" + MOONCAKE, [0, 0, 3, 5.999], (500, 490, 71, 26)),
        ("\ufeff" + BURSTGPT.replace("\n", "\r\n"), [0, 40, 113], (18, 230, 276)),
        (MOONCAKE + MOONCAKE.splitlines()[2], [0, 0, 3, 3, 5.999], (500, 490, 71, 71, 26)),  # not in order
    ],
    ids=[
        "mooncake",
        "azure",
        "azure_2024",
        "azure_2025",
        "burstgpt",
        "list",
        "marked_list",
        "marked_lines",
        "windows",
        "unordered",
    ],
)
def test_times_and_answers_of_each_form(tmp_path, text, times_s, tokens):
    path = tmp_path / "t"
    path.write_text(text)
    found = read_arrivals(str(path))
    assert np.array(found.times_s) - found.times_s[0] == pytest.approx(times_s, abs=1e-6)
    assert found.tokens == tokens


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 arrivals"),
        ("[]", "has 0 arrivals"),
        ("[1, 1]", "at least two of them apart"),
        ("[1, 0]", "entry 1: got 0, after 1; expected ascending times"),
        ('[1, "2"]', "entry 1: got '2'; expected a number of seconds"),
        ("[1, true]", "entry 1: got True"),
        ("[1", "not JSON"),
        (f"[0, 1{400 * '0'}]", "entry 1: got 10{39}...; expected a number of seconds"),
        ("[-1e308, 1e308]", r"has 0 arrivals a second in the mean, from -1e\+308 to 1e\+308 s; expected a JSON list"),
        ("[0, 1e-320]", "has inf arrivals a second in the mean, .* with 1e-06 to 1e.09 a second"),
        ("a,b\n1,2\n", "line 2: has a, b; expected the columns of a trace .mooncake: timestamp, output_length; burst"),
        (MOONCAKE.replace("3000", '"x"'), "line 3, column timestamp: got 'x'; expected milliseconds"),
        (MOONCAKE.replace("3000", '"3000"'), "line 3, column timestamp: got '3000'; expected milliseconds"),
        (MOONCAKE.replace("71,", '"71",'), "line 3, column output_length: got '71'; expected a number of tokens"),
        (MOONCAKE.replace("3000", "true"), "line 3, column timestamp: got True; expected milliseconds"),
        (MOONCAKE.replace("71,", "7.5,"), "line 3, column output_length: got 7.5; expected a number of tokens"),
        (MOONCAKE.replace('"output_length": 71, ', ""), "line 3: column output_length is missing"),
        (MOONCAKE + "[1]", r"line 5: got \[1\]; expected an object with a timestamp"),
        (MOONCAKE + "{", "line 5: not JSON"),
        (
            AZURE.replace("18:15:50.99", "18:99"),
            "line 3, column TIMESTAMP: got '2023-.*; expected a date such as 2023-",
        ),
        (AZURE.replace(",109", ",-1"), "line 3, column GeneratedTokens: got '-1'; expected a number of tokens"),
        (AZURE.replace(",109", ""), "line 3: column GeneratedTokens is missing"),
        (AZURE.replace("ContextTokens", "TIMESTAMP"), "line 1: has column TIMESTAMP twice; expected each column once"),
        (AZURE.replace(",109", ",3,109"), "line 3: has 4 values under 3 columns; expected as many"),
        (BURSTGPT.replace("46.5", "nan"), "line 4, column Timestamp: got 'nan'; expected seconds"),
        (BURSTGPT.replace("46.5", "9" * 500), "line 4, column Timestamp: got '9{39}"),
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
    monkeypatch.setattr(traces, "MOST_ARRIVALS", 3)
    (tmp_path / "t").write_text(MOONCAKE + "damaged")
    assert read_arrivals(str(tmp_path / "t")).times_s == (0, 0, 3)


def test_each_stretch_begins_where_the_one_before_ended(tmp_path):
    """Ten arrivals, one a second from 100 s on but for the fifth; a stretch has 1 and 3 of them."""
    times = [100, 101, 102, 103, 104.5, 105, 106, 107, 108, 109]
    lines = [{"timestamp": 1000 * time, "output_length": 10 + number} for number, time in enumerate(times)]
    (tmp_path / "t").write_text("".join(json.dumps(line) + "\n" for line in lines))
    load = LoadConfig(kind="trace", requests=1, block=3, times=str(tmp_path / "t"))
    first = [list(itertools.islice(make_arrivals(load, 0, place), 4)) for place in range(3)]
    assert first == [[0, 1, 2, 3], [0, 0.5, 1.5, 2.5], [0, 1, 2, 3]]  # the third: 8, 9, and the first two again
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
    assert np.mean(counts) == pytest.approx(11, abs=0.5)  # the first of them, and ten in the second after it
    assert len(set(counts)) > 5
    load.seconds = None
    assert count_measured(load, 0) == 16


def test_stretches_by_time_of_a_trace_do_not_overlap(tmp_path):
    """Bursts of 5 arrivals every 10 s at twice the rate: a stretch has one for the ramp, and those of 10 s."""
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
    """3 + 10 requests at 10 a second; without an end by time, and unless a load is searched, there is no limit."""
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
    """The squared coefficient of variation of gamma's gaps is 1 / shape, of Poisson's 1, of constant ones 0."""
    for kind, expected in (("gamma", 1 / shape), ("poisson", 1.0), ("constant", 0.0)):
        gaps = np.diff(list(itertools.islice(draw_arrivals(kind, 5.0, 1, shape), 20_000)))
        assert gaps.mean() == pytest.approx(0.2, rel=0.06)
        assert gaps.var() / gaps.mean() ** 2 == pytest.approx(expected, rel=0.1, abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "poisson", "find": "slo", "rate": 3.0}, "load.rate=3.0: load.find=slo finds the rate"),
        ({"kind": "closed", "find": "slo"}, "load.find=slo: no limit is set; expected load.slo.ttft_ms="),
        ({"kind": "poisson", "rate": 1.0, "seconds": 1e5}, "load.seconds=100000.0: the .* requests of a stretch"),
        (
            {"kind": "poisson", "rate": 1e9, "seconds": 1e3},
            r"load.seconds=1000: 1e\+12 requests arrive .* at most 1000000",
        ),
        ({"kind": "gamma", "rate": 5e-324, "shape": 0.01}, "load.rate=5e-324: the 17 requests of a stretch"),
    ],
)
def test_loads_that_are_none(settings, message):
    with pytest.raises(InputError, match=message):
        check_load(LoadConfig(**settings))
