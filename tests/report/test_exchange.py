"""Files of other harnesses: what is written is read back, what is no such file is refused with its
key.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from doc_tables import SGLANG, SMALL, requests_of, turn_of
from hypothesis import given
from hypothesis import strategies as st
from report.conftest import manifest_of

from builders.records import record
from specbench.input import InputError
from specbench.records.store import Run
from specbench.report.exchange.figures import Measured, conditionals, count_values, survival
from specbench.report.exchange.formats import FORMATS, imported_frame, imported_table, read_imported
from specbench.report.frames.counting import DEFINITIONS, count_all_ways, kept_lengths
from specbench.report.frames.facts import read_facts
from specbench.report.writers import to_markdown

# NVIDIA/Model-Optimizer c170403, examples/specdec_bench/tests/test_speculation_profile.py:
# histogram of lengths -> the marginal and the conditional rates, and the mean of the steps
PUBLISHED = [
    ({1: 40, 2: 30, 3: 30}, [0.6, 0.3], [0.6, 0.5], 1.9),
    ({1: 50, 3: 50}, [0.5, 0.5], [0.5, 1.0], 2.0),
    ({1: 8611, 2: 7814, 3: 5337, 4: 8891}, None, None, 2.4733),
]
TWO = [
    record("pld", "a", [turn_of([3, 1, 2, 1], [4, 0, 4, 2])], "math"),
    record("pld", "b", [turn_of([1, 4, 1], [4, 4, 4]), turn_of([2, 2], [1, 3])], "qa"),
]


def measured(records=TWO, **changes):
    facts = read_facts(Run(Path("r"), manifest_of({"pld": {}}), []))
    return Measured(facts, "pld", records, **changes)


def written(name, folder):
    path = folder / FORMATS[name].file
    path.write_text(FORMATS[name].write(measured()), encoding="utf-8")
    return path


def test_conventions_disagree_on_the_length_of_one_trace():
    """SGLang's pull request 13754: 200 tokens, 188 verify steps, 940 draft tokens, 11 accepted."""

    def lengths_of(requests):
        return {name: length for name, length, _ in count_all_ways(requests)}

    rates = {name: rate for name, _, rate in count_all_ways(SGLANG)}
    assert rates["SGLang"] == 11 / 940
    lengths = lengths_of(SGLANG)
    wanted = dict.fromkeys(("specbench", "vLLM", "llama.cpp"), 1 + 11 / 188)
    wanted |= dict.fromkeys(("TensorRT-LLM", "Spec-Bench"), 200 / 189) | {"SGLang": 200 / 188}
    assert {name: lengths[name] for name in wanted} == wanted
    assert (round(200 / 188, 4), round(1 + 11 / 188, 4)) == (1.0638, 1.0585)
    assert lengths_of(SMALL) == pytest.approx(
        {
            "specbench": 8 / 5,
            "vLLM": 1 + 3 / 4,  # the step without a draft is none of its steps
            "SGLang": 10 / 5,
            "TensorRT-LLM": 10 / 7,
            "llama.cpp": 1 + 3 / 4,
            "specdec_bench": (6 / 3 + 1) / 2,
            "AIPerf": (2 + 1) / 2,
            "SpecForge": (8 / 4 + 2 / 1) / 2,
            "Spec-Bench": 10 / 7,
        }
    )
    # pooled or averaged: vLLM's issue 42508
    uneven = {"tokens": np.array([8, 30]), "steps": np.array([4, 10])}
    assert [DEFINITIONS[name].length(uneven) for name in ("SGLang", "SpecForge")] == [
        38 / 14,
        (2 + 3) / 2,
    ]
    wanted = {"specbench": 3 / 14, "vLLM": 3 / 14, "SGLang": 3 / 20, "AIPerf": (3 / 10 + 0) / 2}
    assert {name: DEFINITIONS[name].rate(SMALL) for name in wanted} == pytest.approx(wanted)
    assert all(map(math.isnan, lengths_of(requests_of()).values()))


@pytest.mark.parametrize(
    ("name", "taken", "drafted", "length", "rate", "positions"),
    [
        # vllm-project/vllm 02cf515, docs/features/speculative_decoding/acceptance_metrics.md, the
        # response shown there
        ("vLLM", {0: 39, 1: 1, 3: 3}, [3] * 43, 1.2325581395348837, 0.07751937984496124, None),
        # ggml-org/llama.cpp PR 24536, the log shown there: 167 accepted of 259 generated
        (
            "llama.cpp",
            {0: 17, 1: 15, 2: 13, 3: 42},
            [2, 2] + [3] * 85,
            2.92,
            0.64479,
            (0.805, 0.632, 0.483),
        ),
    ],
)
def test_figures_that_engines_show_themselves(name, taken, drafted, length, rate, positions):
    accept = [each + 1 for each, steps in taken.items() for _ in range(steps)]
    found = {
        each: figures for each, *figures in count_all_ways(requests_of(turn_of(accept, drafted)))
    }[name]
    assert found == pytest.approx([length, rate], abs=5e-3 if positions else 1e-12)
    if positions:
        assert survival(taken) == pytest.approx(positions, abs=5e-4)


@pytest.mark.parametrize(
    ("accept", "ids", "kept"),
    [
        ([3, 1, 2], 7, [3, 1]),
        ([], 1, [1]),
        ([1, 3, 1], 5, [3]),
    ],
)
def test_what_specdec_bench_keeps(accept, ids, kept):
    """ids as many as accept adds up to: the first step verified its draft with the prompt."""
    turn = turn_of(accept, [5] * len(accept))
    turn.ids = list(range(ids))
    assert kept_lengths(turn) == kept


@pytest.mark.parametrize(("histogram", "marginals", "rates", "mean"), PUBLISHED)
def test_rates_of_published_histograms(histogram, marginals, rates, mean):
    found = survival({length - 1: steps for length, steps in histogram.items()})
    assert 1 + sum(found) == pytest.approx(mean, abs=5e-5)
    if marginals:
        assert found == pytest.approx(marginals)
        assert conditionals(found) == pytest.approx(rates)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), min_size=2, max_size=40))
def test_a_profile_is_read_as_it_was_written(steps):
    """Whatever was accepted: the length is 1 and the sum of the marginal rates, and both are the
    steps' own.
    """
    turn = turn_of([taken + 1 for taken, _ in steps], [taken + more for taken, more in steps])
    lengths = kept_lengths(turn)
    text = FORMATS["speculation_profile"].write(measured([record("pld", "a", [turn])]))
    [whole, category] = FORMATS["speculation_profile"].read(text.encode(), "p")
    assert whole.length == pytest.approx(sum(lengths) / len(lengths), abs=1e-5)
    assert 1 + sum(whole.positions) == pytest.approx(whole.length, abs=1e-4)
    assert (whole.steps, category.group) == (len(lengths), "qa")
    made = json.loads(text)["acceptance_length_histogram"]
    assert {int(length): count for length, count in made.items()} == count_values(lengths)


def test_every_format_reads_back_what_it_wrote(tmp_path):
    found = {name: read_imported(written(name, tmp_path)) for name in FORMATS}
    assert {name: each.format for name, each in found.items()} == {name: name for name in FORMATS}
    assert found["timing"].name == "timing.json"
    assert found["timing"].groups[0].tokens_per_s == pytest.approx(20 / 4.5)
    rates = found["acceptance_rate"].groups
    assert [group.group for group in rates] == ["overall", "math", "qa"]
    # of chunks 3 1 2, of 1 4 without the first, and of 2
    assert rates[0].length == pytest.approx((2 + 7 / 3) / 2)


def test_verification_by_paths_has_no_rates_by_position():
    text = FORMATS["speculation_profile"].write(measured(by_path=True))
    assert json.loads(text)["marginal_accept_rates"] is None
    [whole, *_] = FORMATS["speculation_profile"].read(text.encode(), "p")
    assert whole.positions == ()
    assert whole.length == pytest.approx(13 / 6, abs=1e-6)


WRONG = [
    ("speculation_profile", lambda f: f.pop("mean_accept_length"), "mean_accept_length is missing"),
    (
        "speculation_profile",
        lambda f: f.update(marginal_accept_rates=[1.5]),
        "marginal_accept_rates.0 is 1.5",
    ),
    (
        "acceptance_rate",
        lambda f: f[0]["Acceptance_Length_Histogram"].update({"0": 3}),
        "Acceptance_Length_Histogram",
    ),
    ("timing", lambda f: f[0].update({"Output TPS": "fast"}), "Output TPS is 'fast'"),
]


@pytest.mark.parametrize(("name", "change", "message"), WRONG)
def test_a_bad_file_is_refused_with_its_key(tmp_path, name, change, message):
    path = written(name, tmp_path)
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        read_imported(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("[]", "has the keys none"),
        ('{"a": 1}', "has the keys a; expected those of one format .*timing: Output TPS"),
        ('{"' + "x" * 200_000 + '": 1}', "has the keys x"),
        (b'{"\xff', "not UTF-8"),
    ],
)
def test_what_no_harness_wrote_is_refused(tmp_path, content, message):
    path = tmp_path / "f.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as caught:
        read_imported(path)
    assert len(str(caught.value)) < 1000


def test_names_of_a_file_are_printed_safely(tmp_path):
    path = written("speculation_profile", tmp_path)
    content = json.loads(path.read_text("utf-8"))
    path.write_text(
        json.dumps(content | {"per_category": {"\x1b[2J<script>": 2.0}}), encoding="utf-8"
    )
    text = to_markdown([imported_table(imported_frame([read_imported(path)], None))])
    assert "script" in text
    assert "\x1b" not in text
    assert "<script" not in text


def test_command_exports_and_imports(make_run, tmp_path, output):
    run, out = make_run(per_category=1), tmp_path / "out"
    output("report", run, "--export", "timing", "--output", out)
    names = {"vanilla", "pld", "token_recycling", "hf_assisted"}
    assert {path.parent.name for path in out.rglob("timing.json")} == names
    text = output("report", run, "--export", "speculation_profile")
    assert "hf_assisted: recorded no drafts" in " ".join(text.split())
    profile = run / "exchange/pld/speculation_profile.json"
    output("report", run, "--import", out / "pld/timing.json", profile, "--output", out)
    frame = pd.read_csv(out / "tables/imported.csv")
    whole = frame[frame["group"] == "overall"]
    for name, figure in (("timing", "tokens_per_s"), ("speculation_profile", "length")):
        alike = whole[whole["row"].isin([f"{name}.json", "pld"]) & (whole["format"] == name)]
        assert len(alike) == 2
        assert alike[figure].nunique() == 1
    assert frame.loc[frame["row"] == "vanilla", "length"].isna().all()


@pytest.mark.parametrize(
    ("options", "file"),
    [
        (["--no-plots", "--output"], "summary.csv"),
        (["--export", "speculation_profile", "--output"], "pld/speculation_profile.json"),
        (["--export-answers"], "pld.jsonl"),
    ],
)
def test_a_file_that_another_wrote_is_never_replaced(
    make_run, tmp_path, output, refused, options, file
):
    run, out = make_run(per_category=1), tmp_path / "out"
    (out / file).parent.mkdir(parents=True)
    (out / file).write_text("mine")
    given = ("report", run, *options, out)
    assert f"{out / file}: exists and was not written by specbench" in refused(*given)
    assert [path.read_text() for path in out.rglob("*") if path.is_file()] == ["mine"]
    (out / file).unlink()
    output(*given)
    output(*given)  # its own are


def test_a_replay_has_no_times_to_export(make_run, output, refused):
    run = make_run(per_category=1, engine="replay")
    assert "vanilla: not timed" in refused("report", run, "--export", "timing")
    output("report", run, "--export", "acceptance_rate")


def test_a_profile_names_its_checkpoints_by_their_ids_alone():
    made = measured(target=("/home/me/models/org/target", "f0"), draft=("org/draft", None))
    profile = json.loads(FORMATS["speculation_profile"].write(made))
    assert profile["target_model"] == {"id": "org/target", "fingerprint": "f0"}
    assert profile["draft_checkpoint"] == {"id": "org/draft", "fingerprint": None}
    assert json.loads(FORMATS["speculation_profile"].write(measured()))["draft_checkpoint"] is None
