"""The summary against figures worked out by hand, of few records and of many that are read in
blocks.
"""

import math

import numpy as np
import pytest
from report.conftest import build_run

from builders.profiles import FIT
from builders.records import EQUAL, failed, record, turn
from builders.reports import check, found_in, of_overall, rows_of
from specbench.records.record import OVERALL, VANILLA, Lossless
from specbench.records.store import open_run, read_run
from specbench.report import gather
from specbench.report.frames import steps
from specbench.report.frames.load import model_load
from specbench.report.frames.trials import Tally, read_trials


def test_figures_blanks_and_categories_by_hand(two_cases):
    rows = rows_of(*two_cases)
    vanilla, pld = rows[OVERALL, VANILLA], rows[OVERALL, "pld"]
    check(
        pld,
        cases=2,
        tokens=14,
        steps=4,
        errors=0,
        mat=12 / 4,
        tokens_per_s=14 / 5.0,
        decode_tokens_per_s=12 / 4.0,
    )
    check(
        pld,
        speedup=13.0 / 5.0,
        acceptance_rate=(12 - 4) / 14,
        draft_rate=3 / 4,
        mean_draft=14 / 4,
        prefill_ms=500,
    )
    check(pld, tokens_fed=18 / 4, target_compute=1e-3 * 18 / 4, draft_ms=1e3 * 0.5 / 4)
    check(pld, state_bytes=64, lossless=1, equal=1, violations=0)
    check(
        pld,
        "speedup_low",
        "mat_low",
        "mat_high",
        "speedup_hf",
        "prepare_ms",
        "verify_ms",
        "update_ms",
    )
    check(vanilla, "speedup_low", "speedup_high", "speedup_hf", *RATES, mat=1, speedup=1)
    check(rows["rag", "pld"], mat=4, speedup=8.5 / 3.5)
    check(rows["qa", "pld"], acceptance_rate=2 / 4)
    records, manifest = two_cases
    row = rows_of(records, manifest | {"temperature": 1.0})[OVERALL, "pld"]
    check(row, "lossless", "violations", equal=1)


RATES = ("acceptance_rate", "draft_rate", "mean_draft")


def test_errors_leave_figures_and_pairs(two_cases):
    records, manifest = two_cases
    records += [record(VANILLA, "c", [turn([1] * 99, decode_s=500.0)]), failed("pld", "c")]
    rows = rows_of(records, manifest)
    check(rows[OVERALL, "pld"], cases=2, errors=1, speedup=13.0 / 5.0)  # case c is in neither side
    check(rows[OVERALL, VANILLA], cases=3, errors=0)
    check(rows["qa", "pld"], errors=1)


def test_case_that_fails_in_one_round_is_out(two_cases):
    records, manifest = two_cases
    records += [record(VANILLA, "a", [turn([1] * 4)], round=1), failed("pld", "a", round=1)]
    check(rows_of(records, manifest)[OVERALL, "pld"], cases=1, errors=1, tokens=9)


def test_method_that_always_fails_is_blank(two_cases):
    """And one whose vanilla always failed has no speedup."""
    records, manifest = two_cases
    manifest["methods"]["broken"] = {}
    rows = rows_of([*records, failed("broken", "a"), failed("broken", "b", "rag")], manifest)
    blank = (
        "mat",
        "tokens_per_s",
        "speedup",
        "draft_rate",
        "tokens_fed",
        "prefill_ms",
        "state_bytes",
        "lossless",
    )
    check(rows[OVERALL, "broken"], *blank, cases=0, errors=2, tokens=0)
    records = [
        failed(VANILLA, each.case, each.category) if each.method == VANILLA else each
        for each in records
    ]
    check(rows_of(records, manifest)[OVERALL, "pld"], "speedup", mat=3)


def test_peer_shows_only_what_was_seen(make_manifest):
    unseen = turn([4, 4], phases_s={}, decode_s=2.0)
    records = [
        record(VANILLA, "a", [turn([1] * 8, decode_s=8.0)]),
        record("hf_generate", "a", [unseen]),
    ]
    rows = rows_of(records, make_manifest({"hf_generate": {"peer": True}}))
    blank = (*RATES, "tokens_fed", "draft_ms", "forward_ms", "state_bytes")
    check(rows[OVERALL, "hf_generate"], *blank, mat=4, speedup=8.5 / 2.5, speedup_hf=1)
    check(rows[OVERALL, VANILLA], speedup_hf=2.5 / 8.5)


def test_rounds_are_folded_by_their_median(make_manifest):
    records = []
    for number, (slow, quick) in enumerate([(8.0, 2.0), (9.0, 50.0), (8.5, 3.0)]):
        records.append(
            record(VANILLA, "a", [turn([1] * 3, prefill_s=0.0, decode_s=slow)], round=number)
        )
        records.append(
            record("pld", "a", [turn([3], [2], prefill_s=0.0, decode_s=quick)], round=number)
        )
    row = rows_of(records, make_manifest({"pld": {}}, rounds=3))[OVERALL, "pld"]
    # counts are of all rounds
    check(row, cases=1, tokens=12, steps=3, speedup=8.5 / 3.0, tokens_per_s=4 / 3.0, mat=3)


def test_answers_of_one_token_and_of_no_time(make_manifest):
    def rows(accept, **times):
        made = turn(accept, phases_s={}, **times)
        return rows_of(
            [record(name, "a", [made]) for name in (VANILLA, "pld")], make_manifest({"pld": {}})
        )

    found = rows([], decode_s=0.0)
    for method in (VANILLA, "pld"):
        row = found[OVERALL, method]
        check(row, "mat", "decode_tokens_per_s", tokens=1, steps=0, tokens_per_s=2, speedup=1)
    row = rows([1, 1], prefill_s=5e-324, decode_s=5e-324)[OVERALL, "pld"]
    check(row, "tokens_per_s", "decode_tokens_per_s")


def test_intervals_from_eight_cases_and_no_rates_without_drafts(make_manifest):
    records = [record(name, "a", [turn([1, 1], [0, 0])]) for name in (VANILLA, "pld")]
    check(rows_of(records, make_manifest({"pld": {}}))[OVERALL, "pld"], *RATES, tokens_fed=1)
    records = [
        record(name, f"c{i}", [turn(accept, [2] * len(accept), decode_s=float(len(accept)))])
        for i in range(8)
        for name, accept in ((VANILLA, [1] * (6 + i)), ("pld", [2] * 3 + [1] * i))
    ]
    row = rows_of(records, make_manifest({"pld": {}}))[OVERALL, "pld"]
    for name in ("speedup", "mat"):
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]


def test_category_without_drafts_has_a_rate_of_zero(two_cases):
    records, manifest = two_cases
    records += [record(name, "c", [turn([1, 1], [0, 0])], "zebra") for name in (VANILLA, "pld")]
    check(rows_of(records, manifest)["zebra", "pld"], "acceptance_rate", draft_rate=0, mean_draft=0)


@pytest.mark.parametrize(
    ("verdicts", "lossless", "equal", "violations"),
    [
        ([EQUAL, EQUAL], 1.0, 1.0, 0),
        ([EQUAL, Lossless(False, [0, 3], 9, 2, 0, 1e-5)], 1.0, 0.5, 0),
        ([EQUAL, Lossless(False, [0, 3], 9, 0, 4, 2.5)], 0.5, 0.5, 4),
        # differs and was never checked: unknown
        ([Lossless(False, [0, 3], 0, 0, 0, 0.0), EQUAL], 0.5, 0.5, 0),
        ([None, EQUAL], 1.0, 1.0, 0),
        ([None, None], math.nan, math.nan, math.nan),
    ],
)
def test_lossless(make_manifest, verdicts, lossless, equal, violations):
    records = [
        record("pld", f"c{i}", [turn([1, 1])], lossless=verdict)
        for i, verdict in enumerate(verdicts)
    ]
    row = rows_of(records, make_manifest({"pld": {}}))[OVERALL, "pld"]
    check(row, lossless=lossless, equal=equal, violations=violations)


@pytest.mark.parametrize(
    ("counts", "share"), [([0, 1], 0.25), ([None, 1], 0.5), ([None, None], math.nan)]
)
def test_close_steps_are_a_share_of_the_steps_that_were_counted(make_manifest, counts, share):
    verdicts = [Lossless(True, None, 3, 0, 0, 0.0, count) for count in counts]
    records = [
        record(VANILLA, f"c{i}", [turn([1, 1])], lossless=verdict)
        for i, verdict in enumerate(verdicts)
    ]
    found = found_in(records, make_manifest({}, model={"name": "m", "dtype": "bfloat16"}))
    assert of_overall(found).loc[VANILLA, "close_steps"] == pytest.approx(share, nan_ok=True)
    warned = [text for text in found.warnings if "rounding step of bfloat16" in text]
    assert len(warned) == (not math.isnan(share))
    assert all(text.startswith(f"{100 * share:.2g} % of vanilla's steps") for text in warned)


def test_replayed_target_has_the_drafters_times_alone(two_cases):
    records, manifest = two_cases
    for entry in records:
        entry.turns[0].phases_s |= {"update": 0.125, "verify": 0.25, "prepare": 0.25}
    row = rows_of(records, manifest | {"config": {"engine": {"kind": "replay"}}})[OVERALL, "pld"]
    check(
        row,
        mat=3,
        tokens_fed=4.5,
        acceptance_rate=8 / 14,
        draft_ms=1e3 * 0.5 / 4,
        update_ms=1e3 * 0.25 / 4,
    )
    check(row, "tokens_per_s", "decode_tokens_per_s", "speedup", "speedup_low", "speedup_hf")
    check(row, "prepare_ms", "forward_ms", "verify_ms", "prefill_ms")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return build_run(tmp_path_factory.mktemp("many") / "run", per_category=2, rounds=2)


def test_blocks_change_no_figure(directory, monkeypatch):
    """But for the order in which times are added."""
    run = read_run(directory)
    whole = gather([run], [FIT])
    monkeypatch.setattr(steps, "_PART", 16)
    monkeypatch.setattr(steps, "_BLOCK", 100)
    monkeypatch.setattr(steps, "_MEMORY_BYTES", 1000)
    cut = gather([run], [FIT])
    blocks = list(cut.reported[0].trials.of("pld").turns.steps.blocks())
    assert len(blocks) > 2
    assert whole.summary.equals(cut.summary)
    for name, frame in whole.detail.items():
        inexact = frame.columns.intersection(["step_ms"])
        assert frame.drop(columns=inexact).equals(cut.detail[name].drop(columns=inexact)), name
        assert np.allclose(
            frame[inexact].astype(float),
            cut.detail[name][inexact].astype(float),
            rtol=1e-12,
            equal_nan=True,
        )
    one, other = (model_load(found) for found in (whole, cut))
    assert np.allclose(
        one.speedups["modelled_speedup"], other.speedups["modelled_speedup"], rtol=1e-12
    )
    assert one.pays.equals(other.pays)


def test_a_median_of_counts_is_that_of_the_values():
    assert steps.median({5: 3, 1: 2, 9: 1}) == np.median([5, 5, 5, 1, 1, 9])


def test_a_streamed_run_has_the_records_of_the_file(directory):
    tally, stored = Tally(), read_run(directory)
    run = open_run(directory, tally.add)
    assert len(run.records) == len(stored.records)
    assert list(run.records) == stored.records
    assert run.records[-1] == stored.records[-1]
    assert run.records[2:9:3] == stored.records[2:9:3]
    streamed, whole = tally.end(run.records), read_trials(stored.records)
    for name, column in whole.columns("pld").items():
        assert np.array_equal(streamed.columns("pld")[name], column, equal_nan=True), name
