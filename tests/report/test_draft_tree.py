"""One step of one answer, as it is read."""

from pathlib import Path

import pytest
from report.handmade import failed as failed_record
from report.handmade import record, turn

from specbench.report.page.draft_tree import MOST_LINES, best_step, find_record, make_speller, show_step
from specbench.store import Run, RunError

TREE = {"tokens": [7, 8, 9, 10], "parents": [-1, 0, -1, 0], "path": [0, 3]}


def test_a_tree_is_indented_under_its_parents():
    shown = show_step(turn([1, 3], [0, 4], trees=[{"tokens": [], "parents": [], "path": []}, TREE]), 1, str)
    assert shown.splitlines() == ["step 1: root 1, emitted 2 3 4", "+   7", "      8", "+     10", "    9"]


def test_a_wide_tree_is_cut_but_never_its_path():
    wide = {"tokens": list(range(100)), "parents": [-1] * 100, "path": [99]}
    lines = show_step(turn([2], [100], trees=[wide]), 0, str).splitlines()
    assert len(lines) == MOST_LINES + 2
    assert "+   99" in lines
    assert lines[-1].strip() == f"... and {100 - MOST_LINES} more nodes"


def test_without_a_tree_the_counts_are_said():
    assert "4 nodes drafted, no tree recorded" in show_step(turn([2], [4]), 0, str)


def test_a_step_follows_all_tokens_of_the_prefill():
    """Some loops draft with the prompt's forward, too: three tokens came before the first step."""
    assert show_step(turn([1, 2], ids=[1, 2, 3, 4, 5, 6]), 1, str).startswith("step 1: root 4, emitted 5 6;")


def test_a_late_token_is_said_to_be_one():
    tree = {"tokens": [7], "parents": [-1], "path": [0], "late": True}
    assert "emitted 1 2, the last drafted late" in show_step(turn([2], [1], trees=[tree]), 0, str)


def test_a_case_is_found_or_named(two_cases):
    records, manifest = two_cases
    records.append(record("pld", "c", [turn([2], [4], trees=[TREE])]))
    run = Run(Path("r"), manifest, records)
    assert find_record(run, "pld").case == "c"
    assert find_record(run, "pld", "b").case == "b"
    assert find_record(run, "vanilla").case == "a"
    with pytest.raises(RunError, match="no finished case z; expected one of a, b, c"):
        find_record(run, "pld", "z")
    with pytest.raises(RunError, match="expected one of vanilla, pld"):
        find_record(run, "plt")
    failed = [failed_record("pld", "d"), failed_record("vanilla", "d")]
    with pytest.raises(RunError, match="nor has any other method"):
        find_record(Run(Path("r"), manifest, failed), "pld")
    with pytest.raises(RunError, match=r"expected one of vanilla$"):
        find_record(Run(Path("r"), manifest, [failed[0], records[0]]), "pld")
    assert best_step(turn([1, 3, 3])) == 1
    assert make_speller(run)(5) == "<5>"


def test_tokens_are_spelled_by_the_runs_tokenizer(two_cases):
    records, manifest = two_cases
    manifest["config"]["model"] = {"path": "bundled:tiny"}
    spell = make_speller(Run(Path("r"), manifest, records))
    assert all(text.startswith(("'", '"')) for text in map(spell, range(300, 320)))
