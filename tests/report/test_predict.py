"""Predicted speedups by hand, where they are shown, and whose profile is used."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from builders.profiles import FIT, MEASURED
from builders.records import failed, record, turn
from builders.reports import found_in, of_overall, tried
from specbench.profile import Fit, Grid, device_name, write_profile
from specbench.records.record import CONTROL, VANILLA
from specbench.records.store import Run, RunError
from specbench.report import build_report, gather, read_findings
from specbench.report.frames.facts import TIME_ONLY, choose_profiles, is_own, read_facts
from specbench.report.frames.load import MOST, model_load
from specbench.report.frames.predict import describe_leads
from specbench.report.frames.reported import find_remarks
from specbench.report.frames.steps import contexts_of_tokens
from specbench.report.tables.modelled import crossover_table, prediction_table


def row_of(records, manifest, profile, method="pld"):
    return of_overall(found_in(records, manifest, profile)).loc[method]


def own(manifest, profile):
    """The profile as if it had been measured on the run's machine."""
    there = {
        "device": device_name(manifest["machine"], "cpu"),
        "dtype": "float32",
        "engine": "eager",
    }
    return replace(profile, kind="measured", parameters=1_000_000, **there)


def test_context_is_what_the_cache_holds_before_each_step():
    steps = tried([record("pld", "a", [turn([3, 1], [4, 0], prompt_tokens=5)])]).turns.steps
    [(fed, context, emitted)] = steps.read("fed", "context", "emitted")
    each = contexts_of_tokens(context, emitted)
    assert fed.tolist() == [5, 1]
    assert context.tolist() == [5, 8]
    assert emitted.tolist() == [3, 1]
    assert each.tolist() == [5, 6, 7, 8]


def test_predicted_speedup_and_efficiency_by_hand(two_cases):
    records, manifest = two_cases
    # a step: 5 + 0.02 fed + 0.0005 context, host 1; drafting 250 ms a turn (draft; no update phase)
    row = row_of(records, manifest, own(manifest, FIT))
    contexts = {"a": [5, 8], "b": [5, 7]}
    fed = {"a": [5, 1], "b": [6, 6]}
    method = sum(
        6 + 0.02 * f + 0.0005 * c
        for case in "ab"
        for f, c in zip(fed[case], contexts[case], strict=True)
    )
    tokens = {"a": 4, "b": 8}
    vanilla = sum(6.02 + 0.0005 * (5 + place) for case in "ab" for place in range(tokens[case]))
    assert row["predicted_speedup"] == pytest.approx(vanilla / (method + 2 * 250))
    ideal = (vanilla - 12) / (method - 4)
    measured = (12.0 / 12) / (4.0 / 12)  # decode times of the two methods over their decode tokens
    assert row["decode_speedup"] == pytest.approx(measured)
    assert row["efficiency"] == pytest.approx(measured / ideal)


def with_processor(records, share):
    """The records, of whose time the processor worked for a share."""
    return [
        replace(each, turns=[replace(turn, cpu_s=share * turn.wall_s) for turn in each.turns])
        for each in records
    ]


def test_of_a_busy_machine_drafting_counts_with_the_processors_time(two_cases):
    """Without that figure the recorded time counts; a replay's tells that the machine was busy."""
    records, manifest = two_cases
    busy = manifest | {
        "warnings": ["load average is 3.1 a core: other processes compete, times are unsafe"]
    }
    quarter = with_processor(records, 0.25)
    for made, about, wanted in (
        (quarter, manifest, 500.0),
        (quarter, busy, 125.0),
        (records, busy, 500.0),
    ):
        found = found_in(made, about, FIT).reported[0]
        assert found.prediction.cases["pld"]["own_ms"].sum() == pytest.approx(wanted)
    replayed = manifest | {"config": manifest["config"] | {"engine": {"kind": "replay"}}}
    for share, unsafe in ((0.98, False), (0.5, True)):
        found = found_in(with_processor(records, share), replayed, FIT)
        assert ("The drafting times are unsafe" in " ".join(find_remarks(found.reported))) is unsafe


def test_who_leads_with_drafting_at_half_and_at_twice_the_measured_time():
    """The dear drafter is ahead only while its drafting is cheap."""
    frame = pd.DataFrame({"vanilla_ms": [30.0, 30.0], "method_ms": 15.0, "own_ms": 1.0})
    dear = frame.assign(method_ms=14.5, own_ms=4.0)
    sentence = describe_leads({"cheap": frame, "dear": dear})
    assert "dear leads cheap by 1.160 and cheap leads dear by 1.156" in sentence
    assert describe_leads({"cheap": frame}) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "H"},
        {"dtype": "bfloat16"},
        {"engine": "fast"},
        {"parameters": 2},
        {"kind": "published"},
    ],
)
def test_what_was_measured_is_not_compared_with_a_profile_of_something_else(two_cases, changes):
    there = own(two_cases[1], FIT)
    # a model is its size, whatever its name
    here, away = (
        found_in(*two_cases, replace(there, **each))
        for each in ({"model": "random-shape"}, changes)
    )
    assert of_overall(here)["efficiency"].notna()["pld"]
    assert away.summary["efficiency"].isna().all()
    assert away.summary["predicted_speedup"].equals(here.summary["predicted_speedup"])
    for found, compared in ((here, True), (away, False)):
        assert any("cannot be compared" in text for text in found.warnings) is not compared
        assert ("Measured" in prediction_table(found).header) is compared


def test_a_profile_of_two_devices_is_not_that_of_one(two_cases):
    records, manifest = two_cases
    alone = own(manifest, FIT)
    pair = replace(alone, device=device_name(manifest["machine"], "cpu", "tensor", 2))
    shared = manifest | {"parallel": {"way": "tensor", "gpus": 2}}
    for sheet, profile, fits in (
        (manifest, pair, False),
        (shared, pair, True),
        (shared, alone, False),
    ):
        run = Run(Path("r"), sheet, records)
        assert is_own(run, read_facts(run), profile) is fits


def test_a_model_driven_along_a_record_has_its_engines_profile(two_cases, tmp_path):
    records, manifest = two_cases
    timed = manifest | {"engine": "timed", "config": {"engine": {"kind": "timed"}}}
    run = Run(tmp_path / "run", timed, records)
    write_profile(replace(own(manifest, MEASURED), engine="fast"), tmp_path / "profiles")
    (profile,) = choose_profiles([run], [read_facts(run)], None)
    assert profile.engine == "fast"
    assert is_own(run, read_facts(run), profile)
    assert TIME_ONLY in prediction_table(gather([run], [profile])).where


def test_nothing_is_predicted_for_vanilla_its_control_and_peers_or_without_a_profile(make_manifest):
    records = [record(name, "a", [turn([1] * 4)]) for name in (VANILLA, CONTROL, "pld", "peer")]
    manifest = make_manifest({"pld": {}, "peer": {"peer": True}})
    found = of_overall(found_in(records, manifest, own(manifest, FIT)))[
        ["predicted_speedup", "efficiency"]
    ]
    assert found.loc[[VANILLA, CONTROL, "peer"]].isna().all(axis=None)
    assert found.loc["pld"].notna().all()
    assert np.isnan(row_of(records, manifest, None)["predicted_speedup"])


def test_steps_beyond_the_profile_are_flagged(make_manifest):
    records = [
        record(VANILLA, "a", [turn([1] * 4)]),
        record("pld", "a", [turn([3, 1], [20, 0], prompt_tokens=200)]),
    ]
    for profile, outside in ((MEASURED, True), (FIT, False)):
        found = found_in(records, make_manifest({"pld": {}}), profile)
        assert any("50.0 % of the steps lie outside" in text for text in found.warnings) is outside


def test_a_run_next_to_a_profile_of_its_own_machine_picks_it_up(make_run, tmp_path):
    machine = {"machine": {"cpu": "a processor", "threads": 1, "gpus": []}}
    run = make_run(manifest=machine, per_category=2)
    own = replace(MEASURED, device="a processor, 1 thread", parameters=1_000_000)
    for folder, changes in (("profiles", {}), ("elsewhere", {"date": "2030-01-01"})):
        write_profile(replace(own, **changes), tmp_path / folder)
    report = build_report([run], plots=False)
    assert report.findings.predictions[0].profile.date == own.date
    assert own.label in (run / "tables" / "overall.md").read_text()
    other = make_run("other", manifest=machine | {"engine": "fast"}, per_category=2)
    assert read_findings([other]).predictions == (None,)


def test_table_and_csv_have_the_predictions_and_their_median_error(make_run, tmp_path):
    run = make_run(per_category=2)
    profile = own(json.loads((run / "manifest.json").read_text()), MEASURED)
    report = build_report([run], plots=False, profile=write_profile(profile, tmp_path))
    rows = of_overall(report.findings).loc[["pld", "token_recycling"]]
    error = (rows["predicted_speedup"] / rows["decode_speedup"] - 1).abs().mean()
    assert (
        f"Median absolute error: {100 * error:.1f} %." in prediction_table(report.findings).meaning
    )
    row = (
        pd.read_csv(run / "summary.csv").query("category == 'overall' and method == 'pld'").iloc[0]
    )
    assert row["predicted_speedup_low"] < row["predicted_speedup"] < row["predicted_speedup_high"]
    assert row["efficiency"] > 0


def test_the_command_writes_and_prints_the_load(make_run, tmp_path, output, refused):
    run = make_run(per_category=2)
    assert "none.json" in refused("report", run, "--profile", tmp_path / "none.json")
    profile = write_profile(FIT, tmp_path)
    out = output("report", run, "--profile", profile, "--concurrency", "8,1,8", "--no-plots")
    assert "Modelled, batch of equal requests" in out
    assert "Modelled, decode steps only" in out
    rows = pd.read_csv(run / "tables/crossover.csv")[["method", "concurrency"]]
    assert rows.values.tolist() == [
        [method, count] for method in ("pld", "token_recycling") for count in (1, 8)
    ]
    assert "--profile" in refused("report", run, "--concurrency", "1,8")
    for wrong in ("0", "1,-8", "1,,2", "9" * 40):
        assert "whole numbers from 1 to 999999" in refused("report", run, f"--concurrency={wrong}")
    profile.write_text(json.dumps(json.loads(profile.read_text()) | {"schema": 9}))
    assert "--profile" in refused("report", run, "--profile", profile)


# Load: with T = a + b fed + c context, B requests share a and the host.


def linear(base=6.0, fed=0.02, context=0.0005):
    return replace(FIT, surface=Fit(base, 1e3 * fed, 1e3 * context, 0.0))


def measured_grid(fed, contexts, ms):
    return replace(MEASURED, surface=Grid(fed, contexts, ms, 0 * ms, 0 * ms))


def pair_of(make_manifest, vanilla, pld):
    """A run of a case: the turns of vanilla and of pld."""
    records = [record(VANILLA, "a", [vanilla]), record("pld", "a", [pld])]
    return Run(Path("r"), make_manifest({"pld": {}}), records)


def equal_steps(make_manifest, accept=3, draft=7, steps=40):
    vanilla = turn([1] * accept * steps, prompt_tokens=0)
    return pair_of(make_manifest, vanilla, turn([accept] * steps, [draft] * steps, prompt_tokens=0))


def load_of(run, profile, *counts):
    return model_load(gather([run], [profile]), counts)


def test_a_load_by_hand_and_where_it_stops_paying(make_manifest):
    run = equal_steps(make_manifest)
    found = load_of(run, linear(base=6.03, context=0.0), 1, 8, 64)
    by_hand = [3 * (6.03 + 0.02 * count) / (6.03 + 0.02 * 8 * count) for count in (1, 8, 64)]
    assert found.speedups["modelled_speedup"].tolist() == pytest.approx(by_hand)
    assert found.pays["pays_to"].item() == 120  # 3 (6.03 + 0.02 B) = 6.03 + 0.16 B at B = 120.6
    even = found.break_even.set_index(["concurrency", "fed"])["break_even_mat"]
    assert even[(8, 16)] == pytest.approx((6.03 + 0.02 * 128) / (6.03 + 0.02 * 8))
    for profile, most in ((linear(base=0.01), 0), (linear(fed=0.0), MOST)):
        assert load_of(run, profile, 1).pays["pays_to"].item() == most


def test_a_measured_grid_counts_each_requests_attention_to_its_own_tokens_only(make_manifest):
    # T = 1 + 0.01 fed + 0.001 context + 0.0001 fed (context + fed): the last term is the attention
    fed, contexts = np.array([1.0, 10.0, 50.0, 1000.0]), np.array([1.0, 1000.0, 2000.0])
    ms = 1 + 0.01 * fed + 0.001 * contexts[:, None] + 0.0001 * fed * (contexts[:, None] + fed)
    steps = (turn([1], [q], prompt_tokens=100, phases_s={}) for q in (0, 4))
    found = load_of(pair_of(make_manifest, *steps), measured_grid(fed, contexts, ms), 10)

    def shared(q):
        return 1 + 0.01 * 10 * q + 0.001 * 1000 + 0.0001 * (10 * q * (100 + q) + 9 * q + 900)

    assert found.speedups["modelled_speedup"].item() == pytest.approx(shared(1) / shared(5))
    assert found.speedups["outside"].item() == 0


@pytest.mark.parametrize(("wide", "starred"), [(1, False), (4, True)])
def test_a_few_steps_beyond_the_profile_are_no_reason_to_doubt(make_manifest, wide, starred):
    fed = [4] * (40 - wide) + [20] * wide
    steps = (turn([1] * 40, q, prompt_tokens=100, phases_s={}) for q in ([0] * 40, fed))
    table = crossover_table(load_of(pair_of(make_manifest, *steps), MEASURED, 1))
    assert ("*" in table.rows[0][2].text) is starred
    assert ("one step in 20" in table.meaning) is starred


def test_what_pays_under_load_alone_is_found(make_manifest):
    """A machine on which eight tokens cost as much as 64, and one much less: nothing pays alone,
    but in company.
    """
    fed, ms = np.array([1.0, 2.0, 8.0, 64.0, 640.0]), np.array([1.0, 6.0, 10.0, 10.0, 100.0])
    profile = measured_grid(fed, np.array([1.0, 500.0]), np.stack([ms, ms]))
    found = load_of(equal_steps(make_manifest), profile, 1, 8)
    alone, eight = found.speedups["modelled_speedup"]
    assert alone < 1 < eight  # 3 x 1 / 10, 3 x 10 / 10
    # 3 T(B) = T(8 B) with T(B) = 10 up to B = 64 and T(8 B) = 8 B x 10 / 64 beyond it
    assert found.pays["pays_to"].item() == 23


def test_a_load_without_a_step_that_drafts_is_an_error(make_manifest):
    with pytest.raises(RunError, match="nothing to model"):
        load_of(pair_of(make_manifest, turn([]), turn([])), FIT, 1, 8)


def test_a_case_that_failed_in_one_round_is_in_no_load(make_manifest):
    run = equal_steps(make_manifest)
    whole = load_of(run, FIT, 1)
    run.records.extend(
        [record("pld", "b", [turn([1] * 9, [200] * 9)]), failed("pld", "b", round=1)]
    )
    assert load_of(run, FIT, 1).speedups.equals(whole.speedups)


def test_both_tables_have_one_definition(make_manifest):
    """With drafting, the table of loads has at one request what the other table has; more requests
    draft in turn.
    """
    found = gather([equal_steps(make_manifest)], [FIT])
    load = model_load(found, (1, 4))
    predicted = found.summary.set_index("method").loc["pld", "predicted_speedup"].iloc[0]
    alone, four = load.speedups["with_drafting"]
    assert alone == pytest.approx(predicted)
    assert (load.speedups["modelled_speedup"] > load.speedups["with_drafting"]).all()
    assert four < alone
    cells = crossover_table(load).rows[0]
    assert cells[2].text.endswith(f"({predicted:.2f})")
