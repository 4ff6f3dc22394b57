"""What several runs and a run's manifest bring: variants, warnings, the A/A control, and the shards
of a merged run.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from report.conftest import manifest_of

from builders.records import failed, record, turn
from builders.reports import found_in, rows_of
from specbench.records.record import CONTROL, OVERALL, VANILLA, Lossless
from specbench.records.store import Run, RunError
from specbench.report import gather
from specbench.report.frames.facts import read_facts
from specbench.report.frames.reported import Control, MeasuredShard, doubt_shards, read_shards
from specbench.report.frames.trials import read_trials
from specbench.report.locate import find_runs
from specbench.report.tables.detail import shards_tables
from specbench.stats import Estimate


def sweep(make_manifest, records, *parameters):
    return [
        Run(Path(f"sweep/{number}"), make_manifest({"pld": {"parameters": values}}), records)
        for number, values in enumerate(parameters)
    ]


def test_a_bare_manifest_is_enough_and_one_run_has_no_variant(two_cases):
    assert {row["variant"] for row in rows_of(*two_cases).values()} == {""}
    records, _ = two_cases
    manifest = {"model": {"name": "m"}, "suite": {"name": "s"}, "methods": {VANILLA: {}, "pld": {}}}
    assert rows_of(records, json.loads(json.dumps(manifest)))[OVERALL, "pld"]["mat"] == 3


def test_a_variant_names_what_differs(two_cases, make_manifest):
    def of(*sheets):
        frame = gather(
            [Run(Path(name), sheet, two_cases[0]) for name, sheet in zip("xy", sheets, strict=True)]
        ).summary
        assert not frame.duplicated(["model", "suite", "category", "method", "variant"]).any()
        return frame

    frame = of(*(make_manifest({"pld": {"parameters": {"n": n, "k": 5}}}) for n in (2, 3)))
    overall = frame[frame["category"] == OVERALL]
    assert list(overall[overall["method"] == "pld"]["variant"]) == ["n=2", "n=3"]
    assert list(overall[overall["method"] == VANILLA]["variant"]) == ["run=x", "run=y"]
    heats = (
        make_manifest({"pld": {}}, config={"decode": {"temperature": t}}, temperature=t)
        for t in (0.0, 1.0)
    )
    assert set(of(*heats)["variant"]) == {"decode.temperature=0.0", "decode.temperature=1.0"}
    frame = of(
        make_manifest({"cacheback": {}}, config={"model": {"frozen_table": "old"}}),
        make_manifest({"pld": {}}, config={"model": {"frozen_table": "new"}}),
    )
    assert not frame[frame["method"] == "pld"]["variant"].str.contains("frozen_table").any()
    frame = of(make_manifest({"pld": {}}), make_manifest({"pld": {}}, model={"name": "big"}))
    assert list(dict.fromkeys(frame["model"])) == ["tiny", "big"]
    assert set(frame["variant"]) == {""}


@pytest.mark.parametrize(
    ("commands", "variants"),
    [
        (
            ("/bin/serve -m /a/m --port {port} -n 2", "/bin/serve -m /a/m --port {port} -n 4"),
            ["-n 2", "-n 4"],
        ),
        (("serve {port}", "serve {port} --fast"), ["serve {port}", "serve {port} --fast"]),
        (("serve {port}", None), ["serve {port}", "null"]),
    ],
)
def test_the_variant_of_a_command_has_the_words_that_differ(
    two_cases, make_manifest, commands, variants
):
    frame = gather(
        sweep(make_manifest, two_cases[0], *({"command": each} for each in commands))
    ).summary
    overall = frame[(frame["category"] == OVERALL) & (frame["method"] == "pld")]
    assert list(overall["variant"]) == [f"command={each}" for each in variants]


@pytest.mark.parametrize(
    ("key", "named"), [("model", "model.name"), ("suite", "suite.name"), ("methods", "methods")]
)
def test_missing_essentials_are_named(two_cases, key, named):
    records, manifest = two_cases
    del manifest[key]
    with pytest.raises(RunError, match=named):
        gather([Run(Path("r"), manifest, records)])


def test_warnings_name_what_is_wrong(two_cases, make_manifest):
    records, _ = two_cases
    records[1].lossless = Lossless(False, [0, 1], 9, 0, 4, 2.5)
    records += [failed("pld", "c"), record(VANILLA, "c", [turn([1])])]
    manifest = make_manifest({"pld": {}}, warnings=["dirty tree"], control=False)
    text = "\n".join(found_in(records, manifest).warnings)
    parts = (
        "dirty tree",
        "3 of 60 cases",
        "pld: 1 of 3 cases failed",
        "4 ids",
        "3 cases: no",
        "no A/A control",
    )
    assert all(expected in text for expected in parts), text


def test_warnings_of_several_runs_and_of_a_failed_control(two_cases, make_manifest):
    """Asked for, and yet without a pair of answers."""
    records, _ = two_cases

    def warned(*of_runs, **changes):
        sheets = [make_manifest({"pld": {}}, warnings=texts, **changes) for texts in of_runs]
        return gather(
            [Run(Path(name), sheet, records) for name, sheet in zip("xy", sheets, strict=False)]
        ).warnings

    for asked, message in (
        (True, "the A/A control has no finished case"),
        (False, "measure.control=true"),
    ):
        text = "\n".join(warned([], control=asked))
        assert message in text
        assert asked is ("measure.control=true" not in text)
    assert {"all runs: hot", "y: busy"} <= set(warned(["hot"], ["hot", "busy"]))
    busy = "load average is {} a core: other processes compete, times are unsafe".format
    for own, message in (
        ([[busy("10.20")], [busy("0.61"), busy("9.00")]], f"all runs: {busy('0.61 to 10.20')}"),
        ([[], [busy("0.61")]], f"y: {busy('0.61')}"),
    ):
        assert [text for text in warned(*own) if "load average" in text] == [message]


def test_control_is_judged_by_retiming(make_manifest):
    def control(*times):
        records = []
        for number, again in enumerate(times):
            for name, seconds in ((VANILLA, 10.0), (CONTROL, again)):
                made = turn([1] * 5, prefill_s=0.0, decode_s=seconds)
                records.append(record(name, f"c{number}", [made], block=number))
        return found_in(records, make_manifest({})).reported[0].control

    slow, wide = control(*[11.0] * 12), control(*[10.0, 9.0, 11.0] * 4)
    assert control(*[10.01, 9.99] * 6).steady is True
    assert slow.steady is False
    assert "it should contain 1" in slow.sentence()
    assert "narrower" in wide.sentence()
    assert control(10.0, 10.0, 10.0).steady is None


def test_sweep_starts_are_its_order(make_run):
    later = {"manifest": {"created": "2026-05-05T00:00:00+00:00"}, "per_category": 1}
    sweep = make_run("sweep/a", **later).parent
    make_run("sweep/b", per_category=1)
    assert [run.name for run in find_runs([sweep])] == ["b", "a"]


def test_only_lossless_methods_are_blamed(two_cases, make_manifest):
    records, _ = two_cases
    records[1].lossless = Lossless(False, [0, 1], 9, 0, 4, 2.5)
    for lossless in (True, False):
        findings = found_in(records, make_manifest({"pld": {"lossless": lossless}}))
        assert any("beyond the tolerance" in warning for warning in findings.warnings) is lossless


def shard(part: str, seconds: float, noise: float = 0.001, width: float = 0.0001) -> MeasuredShard:
    control = Control(Estimate(1.0, 1 - noise, 1 + noise, 50))
    return MeasuredShard(
        part,
        f"machine {part}",
        50,
        Estimate(seconds, seconds - width, seconds + width, 50),
        control,
    )


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        (
            [shard("1/2", 0.0100), shard("2/2", 0.0110)],
            ["vanilla 100.0 tokens/s in part 1/2", "90.9 in 2/2"],
        ),
        ([shard("1/2", 0.0100), shard("2/2", 0.01005)], []),  # within 1 %
        ([shard("1/2", 0.0100, noise=0.2), shard("2/2", 0.0110)], ["unsteady"]),  # within its A/A
        # other cases alone explain it
        ([shard("1/2", 0.0100, width=0.001), shard("2/2", 0.0110)], []),
        (
            [
                replace(shard("1/2", 0.0100), control=None),
                replace(shard("2/2", 0.0110), control=None),
            ],
            ["how much of it is noise is unknown"],
        ),
    ],
)
def test_speeds_that_differ_beyond_noise_are_a_warning(shards, message):
    found = list(doubt_shards(shards))
    assert len(found) == bool(message)
    assert all(part in found[0] for part in message)


def test_the_report_says_which_machine_measured_what():
    records = [
        record(
            method, str(case), [turn([1, 1], prefill_s=case % 2 + 1.0)], block=case, shard=case % 2
        )
        for case in range(4)
        for method in (VANILLA, CONTROL)
    ]
    manifest = manifest_of({})
    manifest["shards"] = [{"part": part, "cases": 2} for part in ("1/2", "2/2")]
    manifest["processes"] = [
        {"shard": shard, "machine": {"cpu": cpu, "threads": 1}}
        for shard, cpu in enumerate(("fast", "slow"))
    ]
    run = Run(Path("runs/one"), manifest, records)
    found = read_shards(run, read_facts(run), read_trials(records))
    assert [each.per_token_s.value for each in found] == [2 / 3, 1.0]
    assert [each.control.retimed.value for each in found] == [1.0, 1.0]
    [table] = shards_tables(gather([run]))
    assert [[cell.text for cell in row[1:4]] for row in table.rows] == [
        ["1/2", "fast, 1 thread", "2"],
        ["2/2", "slow, 1 thread", "2"],
    ]
    assert shards_tables(gather([Run(run.directory, {**manifest, "shards": []}, records)])) == []
