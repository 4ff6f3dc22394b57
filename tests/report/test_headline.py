"""What a report begins with: the fastest method, ties, and a speedup as a product of factors."""

import html
import itertools
import re
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from report.conftest import build_run, printed

from builders.profiles import FIT
from builders.reports import of_overall
from specbench import stats
from specbench.profile import find_pair, write_profile
from specbench.records.record import OVERALL
from specbench.records.store import RunError, read_run
from specbench.report import build_report, explain, gather, rank, read_findings
from specbench.report.frames.findings import FACTORS, MEASURED, MODELLED
from specbench.report.frames.headline import SMALLER, _describe_modelled_loads, find_headlines
from specbench.report.frames.load import Load, model_load
from specbench.report.frames.pairs import find_contest, is_alone
from specbench.report.frames.reported import Control, find_remarks, read_size
from specbench.report.page.opening import opening
from specbench.report.plots.canvas import drawing
from specbench.report.plots.scatter import draw_front
from specbench.report.plots.scene import first_scene, scenes
from specbench.report.table import FEW
from specbench.report.tables.pairs import pair_frame
from specbench.report.tables.summary import build_tables
from specbench.report.writers import to_html
from specbench.stats import MIN_CASES

FAST, SAME, SLOW = (8.0, 0.9, 1e-4), (8.0, 0.9, 1e-4), (4.0, 0.05, 4e-2)


def findings_of(folder, methods, **options):
    return gather([read_run(build_run(folder / "run", methods, **options))])


def first(findings):
    (found,) = find_headlines(findings)
    return found


def test_rates_and_pairs_of_methods():
    random = np.random.default_rng(1)
    columns = random.uniform(1, 2, (4, 3, 30))
    found = stats.rates(columns, resamples=300)
    for place in range(3):
        alone = stats.speedup(*columns[:, place], resamples=300)
        assert found.values[place] == pytest.approx(alone.value)
        assert np.quantile(found.draws[:, place], [0.025, 0.975]) == pytest.approx(
            [alone.low, alone.high]
        )
    pair, back = found.over(0, 2), found.over(2, 0)
    assert pair.value == pytest.approx(found.values[0] / found.values[2])
    assert (pair.low, pair.high) == pytest.approx((1 / back.high, 1 / back.low), rel=1e-3)
    assert stats.rates(columns[:, :, :7]).over(0, 1).low is None
    # Cases that are hard for both move both figures together: their ratio hardly moves.
    hard = np.exp(np.random.default_rng(2).normal(0, 1, 40))
    one = np.ones(40)
    ones = np.stack([one, one])
    columns = np.stack([ones, ones, np.stack([hard, 1.1 * hard]), ones])
    found = stats.rates(columns)
    low, high = np.quantile(found.draws, [0.025, 0.975], axis=0)
    assert low[0] < high[1]  # the two intervals overlap
    assert found.over(0, 1).low == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        (
            {"a": FAST, "b": SLOW},
            {},
            r"a is fastest: [\d.]+ \[.*\] times vanilla, and .* times the next, b\.",
        ),
        (
            {"a": FAST, "b": SAME},
            {"per_category": 3},
            r"[ab] and [ab] tie for fastest: .* times [ab]\.",
        ),
        ({"a": SLOW}, {}, r"No method is faster than vanilla: the best, a, is 0\.\d\d"),
        ({"a": FAST}, {}, r"a is fastest: .*; no other method ran\."),
        (
            {"a": FAST, "b": SLOW},
            {"per_category": 1},
            r"Too few cases .*: a is .* with 6 of at least 8 cases",
        ),
        (
            {"a": SLOW},
            {"per_category": 1},
            r"No method is faster than vanilla here: .* a, is 0\.\d\d times vanilla, with 6",
        ),
    ],
)
def test_the_headline(tmp_path, methods, options, message):
    found = first(findings_of(tmp_path, methods, **{"per_category": 4} | options))
    assert re.search(message, found.lead + found.rest)
    assert "One request at a time, temperature 0" in found.under
    assert (SMALLER in found.rest) == ("No method" in found.lead)
    figures = [row["speedup"] for row in found.ranking]
    assert figures == sorted(figures, reverse=True)


def test_a_tied_cell_is_not_crowned(tmp_path):
    for name, methods, crowned in (
        ("tied", {"a": FAST, "b": SAME}, False),
        ("clear", {"a": FAST, "b": SLOW}, True),
    ):
        findings = findings_of(tmp_path / name, methods, per_category=4)
        (table,) = build_tables(findings.summary, findings.facts, findings.contests)["overall"]
        column = table.header.index("Speedup")
        assert any(place == column for _, place in table.best) is crowned
        # without contests the largest is bold
        (plain,) = build_tables(findings.summary, findings.facts)["overall"]
        assert any(place == column for _, place in plain.best)
        best = first(findings).ranking[0]
        assert is_alone(findings.contests, OVERALL, "speedup", best) is crowned


def test_pairs_are_over_the_cases_of_both_and_bars_shares_of_the_width(tmp_path):
    findings = findings_of(tmp_path, {"a": FAST, "b": SLOW, "c": SAME}, per_category=4)
    headline = first(findings)
    frame = pair_frame(findings, [headline])
    assert len(frame) == 3
    assert ((frame["ratio_low"] <= frame["ratio"]) & (frame["ratio"] <= frame["ratio_high"])).all()
    contest = find_contest(findings.contests, headline.place, "speedup", ("a", ""))
    row = frame[(frame["method"] == "a") & (frame["over"] == "b")].iloc[0]
    assert row["ratio"] == pytest.approx(contest.over(("a", ""), ("b", "")).value)
    page = opening(findings, [headline])
    widths = [
        float(found)
        for found in re.findall(r'<rect class="\w+" x="0" y="3" width="([\d.]+)%"', page)
    ]
    figures = [row["speedup"] for row in headline.ranking]
    assert widths[0] / widths[-1] == pytest.approx(figures[0] / figures[-1], rel=1e-2)
    assert max(float(found) for found in re.findall(r' x2?="([\d.]+)%"', page)) <= 100
    assert "style=" not in page


def test_the_first_screen_has_winner_why_losses_and_pictures(browser, tmp_path):
    """On a desk's screen all of it, the pictures next to the words; on a phone's the winner, why,
    and the ranks.
    """
    methods = {"a_long_method_name": FAST, "b": SAME, "c": SLOW}
    directory = build_run(tmp_path / "run", methods, per_category=3)
    build_report([directory], plots=False)

    def boxes(*names):
        rectangle = "document.querySelector('{}').getBoundingClientRect().toJSON()"
        return [browser.run(rectangle.format(name)) for name in names]

    desk = ("h1", ".headline h2", ".factors", ".losses", ".verdicts")
    for width, height, order in ((1400, 900, desk), (390, 844, ("h1", "h2", ".factors", ".ranks"))):
        browser.open(directory / "report.html", width, height)
        ends = [box["bottom"] for box in boxes(*order)]
        assert ends == sorted(ends), (width, ends)
        assert ends[-1] < height
        title, headline, ranks, dots = boxes("h1", ".headline h2", ".ranks", ".dots")
        if order is desk:
            assert ranks["left"] > title["left"] + 400
            assert headline["top"] - ranks["top"] < 10
            assert ranks["bottom"] < dots["bottom"] < height
    browser.run("location.hash = '#environment'")
    folded, end = "!document.querySelector('#environment > .fold').open", time.monotonic() + 60
    while browser.run(folded) and time.monotonic() < end:
        time.sleep(0.02)
    assert not browser.run(folded)
    assert browser.troubles == []


def test_a_run_that_is_not_paired_says_so(tmp_path):
    """Two runs on other cases share none: no tie is reported."""
    runs = [
        build_run(tmp_path / name, {"pld": FAST}, per_category=8, categories=(name,))
        for name in ("x", "y")
    ]
    found, *_ = find_headlines(read_findings(runs))
    assert "0 shared cases are too few" in found.rest


def test_what_random_weights_and_another_size_mean_stands_where_the_figure_does(tmp_path):
    """In the first box of the page, and above the table on a terminal; each run alone, and what two
    differ in.
    """

    def random_weights(manifest, records):
        manifest["model"] |= {"path": "random", "parameters": 5_000_000}
        manifest["temperature"] = 0.5

    plain, drawn = (
        read_run(build_run(tmp_path / str(edit), {"pld": FAST}, per_category=2, edit=edit))
        for edit in (None, random_weights)
    )
    assert not first(gather([plain])).remarks
    random, sized = first(gather([drawn], [find_pair("h100-8b")])).remarks
    assert random.startswith("The weights are random")
    assert "Llama-3.1-8B has 8.0 billion parameters" in sized
    assert "5.0 million" in sized
    *_, differing = first(gather([plain, drawn])).remarks
    assert differing.startswith("The runs differ in temperature (0, 0.5)")
    findings = gather([drawn])
    assert random in html.unescape(opening(findings, find_headlines(findings)))
    sentence, table = printed(findings, 400).split(random)
    assert "speedup [95 %]" in table
    assert "speedup [95 %]" not in sentence


def test_the_size_of_a_model_is_read_from_its_name():
    sizes = {
        "vicuna-7b-v1.3": 7e9,
        "random-110m": 1.1e8,
        "Qwen2.5-0.5B": 5e8,
        "tiny": None,
        "bloom-560mm": None,
    }
    assert {name: read_size(name) for name in sizes} == sizes


@pytest.mark.parametrize(("text", "stated"), [(" \n", True), ("words", False)])
def test_a_run_without_answers_says_so_in_its_first_lines(tmp_path, text, stated):
    def edit(manifest, records):
        for each in records:
            each.turns = [replace(turn, text=text) for turn in each.turns]

    shown = printed(findings_of(tmp_path, {"pld": FAST}, per_category=2, edit=edit), 300)
    lines = [line for line in shown.splitlines() if line][:3]
    assert any("Every answer is empty or of one token" in line for line in lines) == stated, lines


def test_unsafe_times_and_the_weights_behind_a_replay_stand_next_to_the_sentence(tmp_path):
    def busy(manifest, records):
        manifest["warnings"] = [
            "load average is 3.1 a core: other processes compete, times are unsafe"
        ]
        manifest["model"]["weights"] = "random"

    findings = findings_of(tmp_path, {"pld": FAST}, per_category=2, edit=busy)
    (entry,) = findings.reported
    unsafe, random = first(findings).remarks[:2]
    assert unsafe.startswith("The times are unsafe: other processes competed for the processor")
    assert random.startswith("The weights are random")
    replayed = replace(entry, facts=replace(entry.facts, timed=False))
    assert find_remarks([replayed])[0].startswith("The drafting times are unsafe")
    entry = replace(entry, control=Control(stats.Estimate(1.0, 0.97, 1.04, 50)))
    assert "vanilla against itself differs by up to 4.0 %." in find_remarks([entry])[0]
    assert "(unsteady: 1 of 2 runs)" in find_remarks([entry, replace(entry, control=None)])[0]


def test_a_figure_of_too_few_cases_is_in_brackets_and_not_the_best(tmp_path):
    for count, few in ((2, True), (MIN_CASES, False)):
        findings = findings_of(tmp_path / str(count), {"a": FAST, "b": SLOW}, per_category=count)
        tables = build_tables(findings.summary, findings.facts, findings.contests)[
            "speedup_by_category"
        ]
        qa, overall = tables[0].header.index("qa"), tables[0].header.index(OVERALL)
        assert {
            (row[qa].text[0] == "(", row[overall].text[0] == "(") for row in tables[0].rows
        } == {(few, False)}
        assert any(column == qa for _, column in tables[0].best) is not few
        assert (FEW in tables[0].meaning) is (FEW in printed(findings, 200)) is few
        # tinted
        assert not re.search(r'<td class="(?:gain|loss)\d">(?:<b>)?\(', to_html(tables[:1]))


def test_a_load_names_who_is_best_without_drafting_and_with_it():
    rows = [
        ("a", 1, 2.0, 1.0),
        ("b", 1, 1.9, 1.8),
        ("a", 8, 1.5, 0.5),
        ("a", 32, 0.9, 0.1),
        ("a", 64, 0.8, 0.1),
    ]
    columns = ["method", "concurrency", "modelled_speedup", "with_drafting"]
    frame = pd.DataFrame(rows, columns=columns).assign(variant="")
    sentence = _describe_modelled_loads(Load(frame, frame, frame, "M on H, fit"), frozenset())
    assert "1 at once: a 2.00 (b 1.80); 8 at once: a 1.50 (none); 32 and 64 at once" in sentence
    alone = _describe_modelled_loads(Load(frame[:1], frame, frame, ""), frozenset())
    assert "1 at once" not in alone


METHODS = {"pld": (4.0, 0.35, 4e-4), "sam": (20.0, 0.5, 9e-3), "hf_assisted": (5.0, 0.6, 4e-3)}


@pytest.fixture
def three_methods(make_run, tmp_path):
    return read_findings([make_run(methods=METHODS, per_category=3)], write_profile(FIT, tmp_path))


def test_the_factors_multiply_to_the_speedups_of_the_summary(three_methods):
    rows = explain(three_methods).set_index(["method", "basis"])
    assert set(rows.index) == set(itertools.product(("pld", "sam"), (MEASURED, MODELLED)))
    assert np.allclose(rows[list(FACTORS)].prod(axis=1), rows["speedup"])
    overall = of_overall(three_methods)
    for (method, basis), row in rows.iterrows():
        column = "decode_speedup" if basis == MEASURED else "predicted_speedup"
        assert row["speedup"] == pytest.approx(overall.loc[method, column])
        assert row["mat"] == pytest.approx(overall.loc[method, "mat"])
    assert np.allclose(rows.xs(MODELLED, level="basis")["remainder"], 1)
    measured = rows.xs(MEASURED, level="basis")
    # 9 ms of drafting against 0.4
    assert measured.loc["sam", "overhead"] < measured.loc["pld", "overhead"] < 1
    assert np.allclose(measured["remainder"], 1, atol=0.1)


def test_what_a_forward_costs_is_drawn_next_to_the_methods(three_methods):
    with drawing():
        front = draw_front(next(scenes(three_methods)))
    (cost,) = [line for line in front.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert cost.get_ydata()[0] == pytest.approx(1.0)
    fed, context = cost.get_xdata()[-1], next(scenes(three_methods)).priced[1]
    price = FIT.forward_ms([fed], [context])[0] / FIT.forward_ms([1.0], [context])[0]
    assert cost.get_ydata()[-1] == pytest.approx(price)


def test_settings_are_ranked_by_a_figure(three_methods):
    rows = rank(three_methods, "predicted_speedup").set_index("method")
    known = rows["predicted_speedup"].dropna()
    assert known.is_monotonic_decreasing
    assert rows.index[-1] == "hf_assisted"  # blank: the last, and never on the front
    assert not rows.loc["hf_assisted", "front"]
    best, second, _ = rows["as_good"]
    assert best is True
    assert second == (rows["predicted_speedup_high"].iloc[1] >= known.iloc[0])
    cheap, dear = rows.loc["pld"], rows.loc["sam"]
    assert cheap["tokens_fed"] < dear["tokens_fed"]
    assert cheap["front"]
    assert dear["front"] == (dear["mat"] > cheap["mat"])


def test_a_run_without_a_finished_case_has_no_scene_and_no_load(make_run, tmp_path):
    findings = read_findings([make_run(per_category=0)], write_profile(FIT, tmp_path))
    assert model_load(findings) is None
    with pytest.raises(RunError, match="no case has finished yet"):
        first_scene(findings)
