"""A model that was driven along recorded answers: its times are figures, and no speedup is claimed
from them.
"""

import pandas as pd
import pytest
from report.conftest import build_run
from report.test_golden import TWO, timed

from specbench.records.store import RunError, read_run
from specbench.report.exchange.spec_bench import compare, export_answers
from specbench.report.frames.findings import gather
from specbench.report.plots.bars import missing
from specbench.report.plots.scene import scenes

BLANK_FOR_READERS = (
    *("mat", "mat_low", "mat_high", "acceptance_rate", "tokens_per_s", "decode_tokens_per_s"),
    *("time_only_speedup", "time_only_speedup_low", "time_only_speedup_high"),
)


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    """Not to be changed."""
    folder = tmp_path_factory.mktemp("timed")
    return gather([read_run(build_run(folder, TWO, edit=timed, per_category=2))])


def overall(summary: pd.DataFrame, method: str) -> pd.Series:
    return summary.query("category == 'overall' and method == @method").iloc[0]


def test_speedups_are_moved_and_never_claimed(findings, tmp_path):
    """The same records as those of a model that answered by itself."""
    live = read_run(build_run(tmp_path, TWO, per_category=2))
    ours, theirs = overall(findings.summary, "pld"), overall(gather([live]).summary, "pld")
    assert (
        ours[["speedup", "speedup_low", "speedup_hf", "decode_speedup", "cost_per_million"]]
        .isna()
        .all()
    )
    for name in ("speedup", "speedup_low", "speedup_high"):
        assert ours[f"time_only_{name}"] == theirs[name]
    assert ours["tokens_per_s"] == theirs["tokens_per_s"]
    assert theirs[["time_only_speedup", "time_only_step_ms"]].isna().all()
    turns = [turn for record in live.records if record.method == "pld" for turn in record.turns]
    step_ms = 1e3 * sum(turn.decode_s for turn in turns) / sum(len(turn.accept) for turn in turns)
    assert ours["time_only_step_ms"] == pytest.approx(step_ms)
    assert "no speedup is claimed" in missing(next(scenes(findings)), "speedup")


def test_of_a_method_that_reads_the_model_only_the_step_is_known(findings):
    row = overall(findings.summary, "sam")
    assert row[list(BLANK_FOR_READERS)].isna().all()
    assert row[["time_only_step_ms", "tokens_fed", "forward_ms", "mean_draft"]].notna().all()
    for name in ("accept_lengths", "accept_positions", "tails", "by_length"):
        assert "sam" not in set(findings.detail[name]["method"])
    assert findings.detail["time_split"].set_index("method").loc["sam", "step_ms"] > 0


def test_other_harnesses_formulas_and_answers_claim_no_times(findings, tmp_path, monkeypatch):
    monkeypatch.setattr("specbench.report.exchange.spec_bench.find_tokenizer", lambda run: None)
    monkeypatch.setattr(
        "specbench.report.exchange.spec_bench.read_counter", lambda path: lambda text: 1 + len(text)
    )
    frame, _ = compare(findings)
    assert set(frame["method"]) == {"vanilla", "vanilla_aa", "pld"}
    assert frame[["speedup", "tokens_per_s"]].isna().all(axis=None)
    assert frame["mat"].notna().all()
    with pytest.raises(RunError, match="time only"):
        export_answers(findings.runs[0], findings.facts[0], tmp_path)
