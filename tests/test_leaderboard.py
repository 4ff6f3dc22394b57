"""The leaderboard's page has the figures of the files next to it, and its settings are runs."""

from pathlib import Path

import pandas as pd
import pytest

from scripts.leaderboard import OUT, PAGE, category_table, list_runs, mat_table, put, timed_table
from specbench.runs.composition import plain_settings


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("context", (mat_table, category_table)),
        ("timed", (timed_table,)),
    ],
)
def test_the_page_is_made_of_the_files(name, tables):
    rows = pd.read_csv(OUT / f"{name}.csv")
    text = PAGE.read_text(encoding="utf-8")
    for table in tables:
        made = table(rows)
        assert len(made.splitlines()) > 4
        assert f"scripts/leaderboard.py -->\n\n{made}\n<!-- end -->" in text


def test_each_part_is_a_run():
    for name, settings in list_runs(Path("answers"), 10, 4).items():
        composed = plain_settings(settings)
        assert len(composed["method"]) > (name != "answers")
        assert composed["model"]["name"] or composed["model"]["trace"] == "answers"


def test_a_table_takes_the_place_of_the_one_before():
    text = "a\n<!-- x: written by scripts/leaderboard.py -->\nold\n<!-- end -->\nb\n<!-- end -->"
    found = put(text, "x", "| new |")
    assert found.startswith("a\n<!-- x")
    assert found.endswith("b\n<!-- end -->")
    assert ("| new |" in found, "old" in found) == (True, False)
    with pytest.raises(ValueError, match="lacks the line"):
        put(text, "y", "")
