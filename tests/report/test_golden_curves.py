"""Golden acceptance curves: written as they are defined, read back, and compared with an interval."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from doc_tables import turn_of
from report.conftest import manifest_of

from builders.records import record
from specbench.commands.report import main
from specbench.input import InputError
from specbench.records.store import Run
from specbench.report.exchange.golden import golden_frame, measure_golden, read_golden, write_golden
from specbench.report.frames.findings import gather

# SemiAnalysisAI/InferenceX, golden_al_distribution/qwen3.827b_fp8_mtp.yaml: counts and length of its comment
PUBLISHED = (133034, 87994, 2.51)
FILE = "qwen3.8-27b-fp8:\n  thinking_on:\n    3: 2.51\n    1: '1.70'\n  thinking_off: {3: 2.4}\n"


def findings_of(*steps_of_cases, category="coding", method="mtp", directory="r", thinking=None, **changes):
    """A run of one method; each case is one turn: (accepted, drafted) of its steps."""
    records = []
    for number, steps in enumerate(steps_of_cases):
        made = turn_of([taken + 1 for taken, _ in steps], [drafted for _, drafted in steps])
        made.thinking = thinking
        records += [record(name, f"c{number}", [made], category) for name in ("vanilla", method)]
    return gather([Run(Path(directory), manifest_of({method: {}}, **changes), records)])


def test_the_length_is_pooled_and_leaves_out_steps_without_a_draft():
    """Not the mean of the cases' lengths, 3 and 1.5. Steps: 2 of 2, 0 of 2, and one without a draft; 2 of 2."""
    cells, left = measure_golden(findings_of([(2, 2)], [(2, 2), (0, 2), (0, 0)]))
    assert not left
    [cell] = cells
    assert (cell.size, cell.accepted, cell.drafts, cell.thinking) == (2, 4, 3, "thinking_off")
    assert cell.length.value == 1 + 4 / 3
    accepted, drafts, length = PUBLISHED
    assert round(1 + accepted / drafts, 2) == length


def test_only_coding_counts_and_other_conditions_are_named():
    mixed = findings_of([(1, 3)], [(3, 3)], thinking=1)
    for number, each in enumerate(mixed.reported[0].run.records):
        each.category = "coding" if number < 2 else "qa"
    [cell] = measure_golden(gather([mixed.reported[0].run]))[0]
    assert (cell.length.value, cell.thinking) == (2.0, "thinking_on")
    [cell] = measure_golden(findings_of([(1, 3)], category="qa"))[0]
    assert "category: qa, not coding" in cell.differs
    assert "temperature 0, not the model's own sampling" in cell.differs
    assert any("not 4096" in text for text in cell.differs)


def test_a_curve_is_read_as_it_was_written(tmp_path):
    one, two = findings_of([(1, 1)] * 3, [(0, 1)] * 3), findings_of([(2, 2)] * 3, [(1, 2)] * 3, directory="s")
    both = gather([entry.run for found in (one, two) for entry in found.reported])
    texts, left = write_golden(both)
    assert (list(texts), left) == (["mtp"], [])
    path = tmp_path / "golden.yaml"
    path.write_text(texts["mtp"])
    cells = read_golden(path)
    assert [(cell.size, cell.length.value) for cell in cells] == [(1, 1.5), (2, 2.5)]
    assert cells[0].model == both.facts[0].model
    assert "k=2: 2.5000; accepted=9; drafts=6; 2 cases" in texts["mtp"]
    with pytest.raises(InputError, match="both have drafts of 1 tokens"):
        write_golden(gather([one.reported[0].run, findings_of([(1, 1)], directory="t").reported[0].run]))


def test_trees_plain_decoding_and_drawn_acceptance_have_no_curve():
    tree = findings_of([(1, 3)])
    for each in tree.reported[0].run.records:
        each.turns[0].depth = [1]
    drawn = findings_of([(1, 3)])
    drawn.reported[0].run.manifest["methods"]["mtp"]["synthetic"] = "simulate_acc_len: 2"
    for found, reason in (
        (gather([tree.reported[0].run]), "drafts trees"),
        (findings_of([(0, 0)]), "recorded no drafts"),
        (gather([Run(Path("d"), drawn.reported[0].run.manifest, drawn.reported[0].run.records)]), "is not the model's"),
    ):
        cells, [left] = measure_golden(found)
        assert not cells
        assert reason in left


def test_a_run_agrees_if_its_interval_contains_the_golden_length(tmp_path):
    path = tmp_path / "qwen.yaml"
    path.write_text(FILE)
    cells = read_golden(path)
    assert [(cell.thinking, cell.size, cell.length.value) for cell in cells] == [
        ("thinking_on", 3, 2.51), ("thinking_on", 1, 1.7), ("thinking_off", 3, 2.4),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    cases = [[(int(taken), 3) for taken in rng.integers(0, 4, 20)] for _ in range(40)]  # 2.5 expected
    frame = golden_frame(cells, measure_golden(findings_of(*cases, thinking=1))[0])
    assert frame["agrees"].tolist() == ["yes", "", ""]
    low, high = frame.loc[0, ["length_low", "length_high"]]
    assert low < frame.loc[0, "length"] < high
    shifted = [[(0, 3)] * 20 for _ in range(40)]
    assert golden_frame(cells, measure_golden(findings_of(*shifted, thinking=1))[0])["agrees"][0] == "no"


def test_the_command(make_run, tmp_path, capsys):
    run, out = make_run(per_category=1), tmp_path / "out"
    assert main([str(run), "--export", "golden", "--output", str(out)]) == 0
    written = out / "pld/golden.yaml"
    assert list(yaml.safe_load(written.read_text()).values())
    assert main([str(run), "--import", str(written), "--output", str(out)]) == 0
    frame = pd.read_csv(out / "tables/golden.csv")
    assert frame.loc[frame["method"] == "pld", "ratio"].tolist() == pytest.approx([1], abs=0.01)
    assert main(["--import", str(written)]) == 0
    assert "Golden" in capsys.readouterr().out
    written.write_text("mine")
    assert main([str(run), "--export", "golden", "--output", str(out)]) == 2
    assert "was not written by specbench" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no entries"),
        ("[]", "has no entries"),
        ("m: {}", "m: has no entries"),
        ("m: 3", "m: has no entries"),
        ("m:\n  thinking_on: null", "m.thinking_on: has no entries"),
        ("m:\n  thinking_maybe: {1: 1.5}", "m.thinking_maybe: unknown key"),
        ("m:\n  thinking_on: {1: .nan}", "thinking_on.1 is .nan; expected an accepted length from 1 to 2"),
        ("m:\n  thinking_on: {1: -1.5}", "is -1.5"),
        ("m:\n  thinking_on: {1: .inf}", "is .inf"),
        ("m:\n  thinking_on: {1: 1e9}", "is 1e9"),
        ("m:\n  thinking_on: {1: 2.5}", "from 1 to 2"),
        ("m:\n  thinking_on: {1: [1.5]}", "is no number"),
        ("m:\n  thinking_on: {1: true}", "is true"),
        ("m:\n  thinking_on: {0: 1}", "0: is no draft length"),
        ("m:\n  thinking_on: {-1: 1}", "-1: is no draft length"),
        ("m:\n  thinking_on: {1000000000: 1.5}", "1000000000: is no draft length"),
        ("m:\n  thinking_on: {1.5: 1}", "1.5: is no draft length"),
        ("m:\n  thinking_on: {1: 1.5, 1: 1.6}", "the key 1 is there twice"),
        ("m: {thinking_on: {1: 1.5}}\nm: {}", "the key m is there twice"),
        ("? [1]\n: 2", "the key of a list"),
        ("m: !!python/object/apply:os.system [true]", "m: has no entries"),
        ("m: &a\n  thinking_on: *b", "is not YAML"),
        ("[" * 50_000, "is not YAML"),
        ("m: {\x00", "is not YAML"),
        ("x" * (1 << 21), "expected"),
    ],
)
def test_what_is_no_curve_is_refused(text, message, tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read_golden(path)
    assert len(str(caught.value)) < 1000
