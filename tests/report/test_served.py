"""Figures of requests that shared a server, from records small enough to work out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.conftest import stretch_of

from builders.records import failed
from builders.reports import check
from specbench.records.record import CONTROL, VANILLA
from specbench.records.store import Run
from specbench.report.frames.findings import gather
from specbench.report.frames.headline import find_headlines
from specbench.report.frames.pairs import find_contest
from specbench.report.frames.served import fewest
from specbench.report.plots.canvas import drawing
from specbench.report.plots.scene import scenes
from specbench.report.plots.served import draw_load_speedup, draw_served

SLO = {"ttft_ms": 600.0, "tpot_ms": None}


def run_of(make_manifest: Any, requests: int = 4, blocks: int = 8, cases: int = 4) -> Run:
    records = []
    for block in range(blocks):
        records += stretch_of(VANILLA, block, 2.0, 100, cases)
        records += stretch_of("pld", block, 1.0 + 0.1 * (block % 2), 75, cases)
    manifest = make_manifest({"pld": {}})
    manifest["config"]["load"] = {"kind": "closed", "requests": requests, "rate": None, "slo": SLO}
    return Run(Path(f"r{requests}"), manifest, records)


@pytest.fixture
def rows(make_manifest):
    frame = gather([run_of(make_manifest)]).detail["load"]
    return {row["method"]: row for row in frame.to_dict("records")}


def test_throughput_and_waits_of_the_stretches(rows):
    vanilla, pld = rows[VANILLA], rows["pld"]
    assert (vanilla["tokens_per_s"], vanilla["stretches"], vanilla["served"]) == (50.0, 8, 32)
    check(
        pld,
        tokens_per_s=75 / 1.05,
        speedup=75 / 1.05 / 50,
        mat=2.0,
        mean_requests=4.0,
        mean_rows=7.0,
    )
    assert 75 / 1.1 / 50 <= pld["speedup_low"] < pld["speedup"] < pld["speedup_high"] <= 1.5
    assert np.isnan(vanilla["speedup_low"])
    # of decode_s = 1 for 4 tokens
    assert pld["user_tokens_per_s"] == vanilla["user_tokens_per_s"] == 4.0
    # Prompts take 500 ms, the requests of a stretch have waited 0, 40, 80 and 120 ms.
    check(pld, ttft_p50_ms=560, queue_p50_ms=60, itl_p50_ms=500)
    assert pld["kept"] == 0.75  # 620 ms is beyond the objective of 600
    assert pld["goodput"] == pytest.approx(24 / 8.4)


@pytest.mark.parametrize(("burst_s", "kept"), [(0.4, 1.0), (0.6, 0.0), (None, None)])
def test_the_goodput_is_by_the_bursts_of_a_server_and_blank_if_they_are_not_known(
    make_manifest, burst_s, kept
):
    runs = [run_of(make_manifest, requests) for requests in (4, 8)]
    for run in runs:
        run.manifest["config"]["load"]["slo"] = {"itl_ms": 501.0, "share": 0.6}
        for made in (each.turns[0] for each in run.records if each.method == "pld"):
            made.step_s = []
            made.load |= {} if burst_s is None else {"burst_s": burst_s}
    detail = gather(runs).detail
    rows = detail["load"].set_index(["method", "requests"])
    assert rows.loc[(VANILLA, 4), "kept"] == 1
    wanted = np.nan if kept is None else kept
    assert rows.loc[("pld", 4), "kept"] == pytest.approx(wanted, nan_ok=True)
    found = detail["objective"].set_index("method")
    assert ("pld" in found.index) == (kept is not None)
    assert kept is None or (found.loc["pld", "holds"] == 8) == bool(kept)


def test_the_headline_and_the_csv_say_what_is_of_a_request_and_what_of_the_server(make_manifest):
    findings = gather([run_of(make_manifest)])
    (headline,) = find_headlines(findings)
    assert "Each request is 1.00 times as fast with pld" in headline.under
    (few,) = find_headlines(gather([run_of(make_manifest, blocks=7)]))
    assert re.search(r"Too few stretches .* 7 of at least 8 stretches", few.lead + few.rest)
    contest = find_contest(findings.contests, headline.place, "speedup", ("pld", ""))
    ratio, (row,) = contest.over(("pld", ""), (VANILLA, "")), headline.ranking
    assert (ratio.value, *ratio.bounds) == pytest.approx(
        (row["speedup"], row["speedup_low"], row["speedup_high"])
    )
    assert set(findings.summary["load"]) == {"each request, 4 requests at once"}
    several = gather([run_of(make_manifest), run_of(make_manifest, requests=8)])
    (headline,) = find_headlines(several)  # ranked under the least load
    assert [row["variant"] for row in headline.ranking] == ["load.requests=4"]
    slow = run_of(make_manifest, requests=16)
    for each in slow.records:
        if each.method == "pld":
            each.stretch["seconds"] = 9.0
    (headline,) = find_headlines(gather([run_of(make_manifest), slow]))
    assert headline.loads.endswith("; 16 at once: none is faster than vanilla.")


def test_a_stretch_in_which_a_method_failed_where_vanilla_did_not_has_no_throughput(make_manifest):
    """Its server had less to do: 4 cases that fail at once would be the fastest of all."""
    run = run_of(make_manifest)
    places = {(entry.method, entry.case): place for place, entry in enumerate(run.records)}
    # 5-0 is too long for both
    for method, case in (("pld", "3-0"), ("pld", "5-0"), (VANILLA, "5-0")):
        about = {"seconds": 0.01, "tokens": 75, "forwards": 10, "requests": 40, "rows": 70}
        about = about if case == "3-0" else run.records[places[method, case]].stretch
        run.records[places[method, case]] = failed(method, case, block=int(case[0]), stretch=about)
    rows = {row["method"]: row for row in gather([run]).detail["load"].to_dict("records")}
    assert (rows[VANILLA]["stretches"], rows["pld"]["stretches"]) == (8, 7)
    assert rows["pld"]["tokens_per_s"] == pytest.approx(7 * 75 / (4 * 1.0 + 3 * 1.1))
    assert rows["pld"]["goodput"] == pytest.approx(20 / 7.3)  # 3 each of 6 whole stretches, and 2
    assert rows["pld"]["kept"] == 20 / 28  # the one that failed did not


def test_the_control_is_over_stretches(make_manifest):
    """All requests of a stretch are slow together: over cases the interval would be too narrow, and
    there of 2.
    """
    for blocks, bounded in ((8, True), (2, False)):
        run = run_of(make_manifest, blocks=blocks)
        factors = [0.9, 1.2, 1.0, 0.8, 1.1, 1.3, 0.95, 1.05]
        for each in [each for each in run.records if each.method == VANILLA]:
            (made,), factor = each.turns, factors[each.block]
            slow = replace(made, prefill_s=made.prefill_s / factor, decode_s=made.decode_s / factor)
            run.records.append(replace(each, method=CONTROL, turns=[slow]))
        control = gather([run]).reported[0].control
        assert (control.unit, control.retimed.count) == ("stretches", blocks)
        assert control.retimed.value == pytest.approx(np.exp(np.median(np.log(factors[:blocks]))))
        assert (control.retimed.low is not None) is bounded
        assert f"{blocks} stretches" in control.sentence()


def test_a_percentile_of_too_few_requests_is_blank(rows, make_manifest):
    assert [fewest(share) for share in (50, 90, 95, 99)] == [11, 64, 130, 662]
    assert np.isnan(rows["pld"]["ttft_p95_ms"])
    few = gather([run_of(make_manifest, blocks=2)]).detail["load"]
    assert few["ttft_p50_ms"].isna().all()
    assert few["speedup_low"].isna().all()
    many = gather([run_of(make_manifest, blocks=5, cases=26)]).detail["load"]
    assert many["ttft_p95_ms"].notna().all()
    assert many["ttft_p99_ms"].isna().all()


def test_a_line_a_method_over_the_loads(make_manifest):
    findings = gather([run_of(make_manifest, count) for count in (2, 4)])
    frame = findings.detail["load"]
    assert frame[["requests", "method", "variant"]].values.tolist() == [
        [count, method, ""] for count in (2, 4) for method in (VANILLA, "pld")
    ]
    (scene,) = scenes(findings)  # of the least load, but for the plots over loads
    assert [series.name for series in scene.series] == ["pld [load.requests=2]"]
    assert set(scene.detail["load"]["requests"]) == {2, 4}
    assert set(scene.detail["accept_lengths"]["variant"]) == {"load.requests=2"}
    assert ("2 requests at once" in scene.where, "several loads" in scene.everywhere) == (
        True,
        True,
    )
    with drawing():
        for draw in (draw_served, draw_load_speedup):
            (legend,) = draw(scene).legends
            assert "pld" in [text.get_text() for text in legend.get_texts()]
