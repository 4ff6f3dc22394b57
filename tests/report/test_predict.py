"""Predicted speedups by hand, where they are shown, and whose profile is used."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from builders.profiles import FIT, MEASURED
from builders.records import failed, record, turn
from builders.reports import tried
from specbench.commands.report import main
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


def row_of(records, manifest, profile, method="pld", category="overall"):
    frame = gather([Run(Path("r"), manifest, records)], [profile]).summary
    return frame[(frame["method"] == method) & (frame["category"] == category)].iloc[0]


def own(manifest, profile):
    """The profile as if it had been measured on the run's machine."""
    there = {"device": device_name(manifest["machine"], "cpu"), "dtype": "float32", "engine": "eager"}
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
    method = sum(6 + 0.02 * f + 0.0005 * c for case in "ab" for f, c in zip(fed[case], contexts[case], strict=True))
    tokens = {"a": 4, "b": 8}
    vanilla = sum(6.02 + 0.0005 * (5 + place) for case in "ab" for place in range(tokens[case]))
    assert row["predicted_speedup"] == pytest.approx(vanilla / (method + 2 * 250))
    ideal = (vanilla - 12) / (method - 4)
    measured = (12.0 / 12) / (4.0 / 12)  # decode times of the two methods over their decode tokens
    assert row["decode_speedup"] == pytest.approx(measured)
    assert row["efficiency"] == pytest.approx(measured / ideal)


def test_of_a_busy_machine_drafting_counts_with_the_processors_time(two_cases):
    """Of a turn's time the processor worked for a quarter; a run without that figure keeps the recorded time."""
    records, manifest = two_cases
    unsafe = manifest | {"warnings": ["load average is 3.1 a core: other processes compete, times are unsafe"]}
    quarter = [replace(each, turns=[replace(turn, cpu_s=turn.wall_s / 4) for turn in each.turns]) for each in records]
    own_ms = {}
    for name, made, about in (("quiet", quarter, manifest), ("busy", quarter, unsafe), ("unknown", records, unsafe)):
        found = gather([Run(Path("r"), about, made)], [FIT]).reported[0]
        own_ms[name] = found.prediction.cases["pld"]["own_ms"].sum()
    assert own_ms == pytest.approx({"quiet": 500.0, "busy": 125.0, "unknown": 500.0})


def test_the_processor_time_of_a_replay_tells_that_it_was_busy_and_the_lead_is_given_at_other_drafting_times(two_cases):
    records, manifest = two_cases
    replayed = manifest | {"config": manifest["config"] | {"engine": {"kind": "replay"}}}
    seen = {}
    for share in (0.98, 0.5):
        made = [
            replace(each, turns=[replace(turn, cpu_s=share * turn.wall_s) for turn in each.turns]) for each in records
        ]
        found = gather([Run(Path("r"), replayed, made)], [FIT])
        seen[share] = " ".join(find_remarks(found.reported))
    assert "The drafting times are unsafe: other processes competed for the processor." in seen[0.5]
    assert "unsafe" not in seen[0.98]


def test_who_leads_with_drafting_at_half_and_at_twice_the_measured_time():
    """The dear drafter is ahead only while its drafting is cheap."""
    frame = pd.DataFrame({"vanilla_ms": [30.0, 30.0], "method_ms": [15.0, 15.0], "own_ms": [1.0, 1.0]})
    dear = pd.DataFrame({"vanilla_ms": [30.0, 30.0], "method_ms": [14.5, 14.5], "own_ms": [4.0, 4.0]})
    assert describe_leads({"cheap": frame, "dear": dear}) == (
        "With drafting at half and at twice the measured time dear leads cheap by 1.160 and cheap leads dear by 1.156."
    )
    assert describe_leads({"cheap": frame}) == ""
    assert describe_leads({"one": frame, "other": 1.1 * frame.assign(vanilla_ms=27.0)}) == (
        "With drafting at half and at twice the measured time one leads other by 1.111 and 1.111."
    )


@pytest.mark.parametrize(
    "changes", [{"device": "H"}, {"dtype": "bfloat16"}, {"engine": "fast"}, {"parameters": 2}, {"kind": "published"}]
)
def test_what_was_measured_is_not_compared_with_a_profile_of_something_else(two_cases, changes):
    records, manifest = two_cases
    run, there = Run(Path("r"), manifest, records), own(manifest, FIT)
    here = gather([run], [replace(there, model="random-shape")])  # a model is its size, whatever its name
    away = gather([run], [replace(there, **changes)])
    assert np.isfinite(here.summary["efficiency"].iloc[1])
    assert away.summary["efficiency"].isna().all()
    assert away.summary["predicted_speedup"].iloc[1] == here.summary["predicted_speedup"].iloc[1]
    assert [any("cannot be compared" in text for text in found.warnings) for found in (here, away)] == [False, True]
    assert ["Measured" in prediction_table(found).header for found in (here, away)] == [True, False]


def test_a_profile_of_two_devices_is_not_that_of_one(two_cases):
    records, manifest = two_cases
    alone = own(manifest, FIT)
    pair = replace(alone, device=device_name(manifest["machine"], "cpu", "tensor", 2))
    shared = manifest | {"parallel": {"way": "tensor", "gpus": 2}}
    for sheet, profile, fits in ((manifest, pair, False), (shared, pair, True), (shared, alone, False)):
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
    for name in (VANILLA, CONTROL, "peer"):
        assert np.isnan(row_of(records, manifest, own(manifest, FIT), name)["predicted_speedup"])
        assert np.isnan(row_of(records, manifest, own(manifest, FIT), name)["efficiency"])
    assert np.isfinite(row_of(records, manifest, FIT)["predicted_speedup"])
    assert np.isnan(row_of(records, manifest, None)["predicted_speedup"])


def test_vanillas_own_steps_would_be_predicted_as_1(make_manifest):
    own = [record(name, "a", [turn([1] * 9, phases_s={})]) for name in (VANILLA, "pld")]
    assert row_of(own, make_manifest({"pld": {}}), MEASURED)["predicted_speedup"] == pytest.approx(1)


def test_steps_beyond_the_profile_are_flagged(make_manifest):
    records = [record(VANILLA, "a", [turn([1] * 4)]), record("pld", "a", [turn([3, 1], [20, 0], prompt_tokens=200)])]
    found = gather([Run(Path("r"), make_manifest({"pld": {}}), records)], [MEASURED])
    assert any("50.0 % of the steps lie outside" in text for text in found.warnings)
    fitted = gather([Run(Path("r"), make_manifest({"pld": {}}), records)], [FIT])
    assert not any("lie outside" in text for text in fitted.warnings)


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
    findings = read_findings([run], write_profile(profile, tmp_path))
    rows = findings.summary.query("category == 'overall'").set_index("method").loc[["pld", "token_recycling"]]
    errors = [abs(row["predicted_speedup"] / row["decode_speedup"] - 1) for _, row in rows.iterrows()]
    assert f"Median absolute error: {100 * sum(errors) / 2:.1f} %." in prediction_table(findings).meaning
    build_report([run], plots=False, profile=write_profile(profile, tmp_path))
    frame = pd.read_csv(run / "summary.csv")
    row = frame[(frame["method"] == "pld") & (frame["category"] == "overall")].iloc[0]
    assert row["predicted_speedup_low"] < row["predicted_speedup"] < row["predicted_speedup_high"]
    assert row["efficiency"] > 0


def test_the_command_writes_and_prints_the_load(make_run, tmp_path, capsys):
    assert main([str(make_run(per_category=1)), "--profile", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    run = make_run(per_category=2)
    profile = str(write_profile(FIT, tmp_path))
    assert main([str(run), "--profile", profile, "--concurrency", "8,1,8", "--no-plots"]) == 0
    out = capsys.readouterr().out
    assert "Modelled, batch of equal requests" in out
    assert "Modelled, decode steps only" in out
    rows = list(csv.DictReader((run / "tables" / "crossover.csv").open()))
    assert [(row["method"], row["concurrency"]) for row in rows] == [
        (method, count) for method in ("pld", "token_recycling") for count in ("1", "8")
    ]


# Load: with T = a + b fed + c context, B requests share a and the host.


def linear(base=6.0, fed=0.02, context=0.0005):
    return replace(FIT, surface=Fit(base, 1e3 * fed, 1e3 * context, 0.0))


def equal_steps(make_manifest, accept=3, draft=7, steps=40):
    records = [
        record(VANILLA, "a", [turn([1] * accept * steps, prompt_tokens=0)]),
        record("pld", "a", [turn([accept] * steps, [draft] * steps, prompt_tokens=0)]),
    ]
    return Run(Path("r"), make_manifest({"pld": {}}), records)


def test_a_load_by_hand_and_where_it_stops_paying(make_manifest):
    profile = linear(base=6.03, context=0.0)
    found = model_load(gather([equal_steps(make_manifest)], [profile]), (1, 8, 64))
    by_hand = [3 * (6.03 + 0.02 * count) / (6.03 + 0.02 * 8 * count) for count in (1, 8, 64)]
    assert found.speedups["modelled_speedup"].tolist() == pytest.approx(by_hand)
    assert found.pays["pays_to"].item() == 120  # 3 (6.03 + 0.02 B) = 6.03 + 0.16 B at B = 120.6
    even = found.break_even.set_index(["concurrency", "fed"])["break_even_mat"]
    assert even[(8, 16)] == pytest.approx((6.03 + 0.02 * 128) / (6.03 + 0.02 * 8))
    dear = gather([equal_steps(make_manifest)], [linear(base=0.01)])
    free = gather([equal_steps(make_manifest)], [linear(fed=0.0)])
    assert model_load(dear, (1,)).pays["pays_to"].item() == 0
    assert model_load(free, (1,)).pays["pays_to"].item() == MOST


def test_a_measured_grid_counts_each_requests_attention_to_its_own_tokens_only(make_manifest):
    # T = 1 + 0.01 fed + 0.001 context + 0.0001 fed (context + fed): the last term is the attention
    fed, contexts = np.array([1.0, 10.0, 50.0, 1000.0]), np.array([1.0, 1000.0, 2000.0])
    ms = 1 + 0.01 * fed + 0.001 * contexts[:, None] + 0.0001 * fed * (contexts[:, None] + fed)
    profile = replace(MEASURED, surface=Grid(fed, contexts, ms, 0 * ms, 0 * ms))
    step = [
        record(name, "a", [turn([1], [q], prompt_tokens=100, phases_s={})]) for name, q in ((VANILLA, 0), ("pld", 4))
    ]
    found = model_load(gather([Run(Path("r"), make_manifest({"pld": {}}), step)], [profile]), (10,))

    def shared(q):
        return 1 + 0.01 * 10 * q + 0.001 * 1000 + 0.0001 * (10 * q * (100 + q) + 9 * q + 900)

    assert found.speedups["modelled_speedup"].item() == pytest.approx(shared(1) / shared(5))
    assert found.speedups["outside"].item() == 0


@pytest.mark.parametrize(("wide", "starred"), [(1, False), (4, True)])
def test_a_few_steps_beyond_the_profile_are_no_reason_to_doubt(make_manifest, wide, starred):
    fed = [4] * (40 - wide) + [20] * wide
    steps = [record(name, "a", [turn([1] * len(q), q, prompt_tokens=100, phases_s={})])
             for name, q in ((VANILLA, [0] * 40), ("pld", fed))]  # fmt: skip
    table = crossover_table(model_load(gather([Run(Path("r"), make_manifest({"pld": {}}), steps)], [MEASURED]), (1,)))
    assert ("*" in table.rows[0][2].text) is starred
    assert ("one step in 20" in table.meaning) is starred


def test_what_pays_under_load_alone_is_found(make_manifest):
    """A machine on which eight tokens cost as much as 64, and one much less: nothing pays alone, but in company."""
    fed, ms = np.array([1.0, 2.0, 8.0, 64.0, 640.0]), np.array([1.0, 6.0, 10.0, 10.0, 100.0])
    planes = np.stack([ms, ms])
    profile = replace(MEASURED, surface=Grid(fed, np.array([1.0, 500.0]), planes, 0 * planes, 0 * planes))
    found = model_load(gather([equal_steps(make_manifest)], [profile]), (1, 8))
    alone, eight = found.speedups["modelled_speedup"]
    assert alone < 1 < eight  # 3 x 1 / 10, 3 x 10 / 10
    # 3 T(B) = T(8 B) with T(B) = 10 up to B = 64 and T(8 B) = 8 B x 10 / 64 beyond it
    assert found.pays["pays_to"].item() == 23


def test_a_load_without_a_step_that_drafts_is_an_error(make_manifest):
    nothing = Run(
        Path("r"), make_manifest({"pld": {}}), [record(VANILLA, "a", [turn([])]), record("pld", "a", [turn([])])]
    )
    with pytest.raises(RunError, match="nothing to model"):
        model_load(gather([nothing], [FIT]), (1, 8))


def test_a_case_that_failed_in_one_round_is_in_no_load(make_manifest):
    run = equal_steps(make_manifest)
    broken = [record("pld", "b", [turn([1] * 9, [200] * 9)]), failed("pld", "b", round=1)]
    whole, with_broken = (
        model_load(gather([Run(Path("r"), run.manifest, [*run.records, *more])], [FIT]), (1,)) for more in ([], broken)
    )
    assert with_broken.speedups.equals(whole.speedups)


def test_several_models_have_columns_of_their_own(make_manifest):
    run = equal_steps(make_manifest)
    other = Run(Path("other"), run.manifest | {"model": run.manifest["model"] | {"name": "other"}}, run.records)
    findings = gather([run, other], [FIT, FIT])
    for table in (crossover_table(model_load(findings, (1, 8))), prediction_table(findings)):
        assert table.header[:2] == ("Model", "Method")
        assert [row[0].text for row in table.rows] == ["tiny", "other"]
        assert table.labels == 2


def test_a_load_needs_a_profile_and_whole_numbers(make_run, capsys):
    run = str(make_run(per_category=1))
    assert main([run, "--concurrency", "1,8"]) == 2
    assert "--profile" in capsys.readouterr().err
    for wrong in ("0", "1,-8", "1e9", "1,,2", "", "many", "9" * 40):
        with pytest.raises(SystemExit):
            main([run, f"--concurrency={wrong}"])
        assert "expected whole numbers from 1 to 999999" in capsys.readouterr().err


def test_profile_and_answers_do_not_go_together(tmp_path, capsys):
    assert main(["--answers", "a", "b", "--profile", "p"]) == 2
    assert "--profile" in capsys.readouterr().err


def test_a_broken_named_profile_names_the_option(make_run, tmp_path):
    path = write_profile(FIT, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 9}))
    with pytest.raises(RunError, match="--profile"):
        build_report([make_run(per_category=1)], profile=path)


def test_both_tables_have_one_definition(make_manifest):
    """With drafting, the table of loads has at one request what the other table has; more requests draft in turn."""
    found = gather([equal_steps(make_manifest)], [FIT])
    load = model_load(found, (1, 4))
    predicted = found.summary.set_index("method").loc["pld", "predicted_speedup"].iloc[0]
    alone, four = load.speedups["with_drafting"]
    assert alone == pytest.approx(predicted)
    assert (load.speedups["modelled_speedup"] > load.speedups["with_drafting"]).all()
    assert four < alone
    cells = crossover_table(load).rows[0]
    assert cells[2].text.endswith(f"({predicted:.2f})")
