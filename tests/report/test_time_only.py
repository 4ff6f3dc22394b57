"""The report of a model that was driven along recorded answers: times, and no claim of a speedup."""

import re
from pathlib import Path

import pandas as pd
import pytest
from report.conftest import build_run
from report.test_report_files import printed

from specbench.records.store import RunError, read_run
from specbench.report import build_report
from specbench.report.exchange.spec_bench import compare, export_answers
from specbench.report.frames.facts import TIME_ONLY
from specbench.report.frames.findings import gather

SKIPPED = "specbench.report.plots.catalogue"  # the log that says why a plot is left out
TRACE = "answers: 12 conversations, 14 answers, 640 tokens; 13 of 14 answers have the recorded number of tokens"
METHODS = {"pld": (4.0, 0.35, 4e-6), "reader": (20.0, 0.5, 9e-6)}
BLANK_FOR_READERS = (
    *("mat", "mat_low", "mat_high", "acceptance_rate", "tokens_per_s", "decode_tokens_per_s"),
    *("time_only_speedup", "time_only_speedup_low", "time_only_speedup_high"),
)


def timed(manifest, records):
    """Records as engine=timed writes them; ``reader`` drafts from the model's results."""
    manifest["config"]["engine"]["kind"] = manifest["engine"] = "timed"
    manifest["trace"] = TRACE
    manifest["methods"]["reader"]["reads_target"] = True
    for record in records:
        record.lossless = None
        for turn in record.turns:
            turn.step_s = [turn.decode_s / len(turn.accept)] * len(turn.accept)


def write_timed(directory: Path, edit=timed) -> Path:
    return build_run(directory, METHODS, peers=(), edit=edit, per_category=2)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Not to be changed."""
    return build_report([write_timed(tmp_path_factory.mktemp("timed") / "run")])


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """The same records as those of a model that answered by itself."""
    return build_run(tmp_path_factory.mktemp("live") / "run", METHODS, peers=(), per_category=2)


def overall(summary: pd.DataFrame, method: str) -> pd.Series:
    return summary.query("category == 'overall' and method == @method").iloc[0]


def test_speedups_are_moved_and_never_claimed(report, live):
    theirs = overall(gather([read_run(live)]).summary, "pld")
    ours = overall(report.summary, "pld")
    assert ours[["speedup", "speedup_low", "speedup_hf", "decode_speedup", "cost_per_million"]].isna().all()
    for name in ("speedup", "speedup_low", "speedup_high"):
        assert ours[f"time_only_{name}"] == theirs[name]
    assert ours["tokens_per_s"] == theirs["tokens_per_s"]
    assert theirs[["time_only_speedup", "time_only_step_ms"]].isna().all()
    records = [record for record in read_run(live).records if record.method == "pld"]
    seconds = sum(turn.decode_s for record in records for turn in record.turns)
    steps = sum(len(turn.accept) for record in records for turn in record.turns)
    assert ours["time_only_step_ms"] == pytest.approx(1e3 * seconds / steps)


def test_of_a_method_that_reads_the_model_only_the_step_is_known(report):
    row = overall(report.summary, "reader")
    assert row[list(BLANK_FOR_READERS)].isna().all()
    assert row[["time_only_step_ms", "tokens_fed", "forward_ms", "mean_draft"]].notna().all()
    for name in ("accept_lengths", "accept_positions", "tails", "by_length"):
        assert "reader" not in set(pd.read_csv(report.output / f"tables/{name}.csv")["method"])
    split = pd.read_csv(report.output / "tables/time_split.csv").set_index("method")
    assert split.loc["reader", "step_ms"] > 0
    assert any(warning.startswith("reader: it drafts from") for warning in report.warnings)


def test_every_table_says_so_and_the_page_ranks_nothing(report):
    text = printed(report)
    assert f"{TIME_ONLY}, answers: 12" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "time only [95 %]" in text
    assert not re.search(r"(?<!only )speedup", text.split("warning")[0])
    tables = list((report.output / "tables").glob("*.md")) + list((report.output / "tables").glob("*.tex"))
    assert {path.stem.removesuffix(".notes") for path in tables} == {"overall", "mat_by_category", "tails", "audit"}
    for path in (path for path in tables if not path.stem.endswith(".notes")):
        assert TIME_ONLY in " ".join(path.read_text(encoding="utf-8").lower().split()), path.name
    assert not list((report.output / "tables").glob("speedup_by_category.*"))
    text = (report.output / "report.html").read_text(encoding="utf-8")
    heads = re.findall(r"<h2>([^<]*)</h2>", text)
    assert "Leaderboard" not in heads
    assert "Time only" in heads
    cards = re.findall(r'<li class="[a-z]*"><b>([^<]*)</b>', text)
    assert cards[0] == "Time only"
    assert "<strong>" not in text
    assert "board-filters" not in text.split("<script")[0]
    for section in re.findall(r'<section id="(?:time-only|a-mean-step|mat-by-category)">.*?</section>', text, re.S):
        assert TIME_ONLY in section.lower() or "accepted lengths were replayed" in section


def test_beside_a_live_run_only_the_live_one_is_ranked(report, live, tmp_path):
    build_report([live, report.output], tmp_path / "both", plots=False)
    text = (tmp_path / "both/report.html").read_text(encoding="utf-8")
    board = text[text.index('id="leaderboard"') : text.index('id="time-only"')]
    assert "engine.kind=timed" not in board
    assert "pld" in board
    assert "engine.kind=timed" in text[text.index('id="time-only"') :]
    said = re.search(r"<strong>(.*?)</p>", text)
    assert said
    assert "timed" not in said.group(1)


def test_no_plot_of_speedups(report, tmp_path, caplog):
    with caplog.at_level("DEBUG", logger=SKIPPED):
        again = build_report([report.output], tmp_path)
    names = {path.stem for path in again.files if path.suffix == ".png"}
    assert not {"speedup", "speedup_by_category"} & names
    assert {"mat", "time_split", "by_length"} <= names
    assert "no speedup is claimed" in caplog.text


def test_it_is_no_answer_file(report, tmp_path):
    with pytest.raises(RunError, match="time only"):
        export_answers(read_run(report.output), report.findings.facts[0], tmp_path)


def test_other_harnesses_formulas_claim_no_times(report, monkeypatch):
    monkeypatch.setattr("specbench.report.exchange.spec_bench.find_tokenizer", lambda run: None)
    monkeypatch.setattr("specbench.report.exchange.spec_bench.read_counter", lambda path: lambda text: 1 + len(text))
    frame, _ = compare(gather([read_run(report.output)]))
    assert set(frame["method"]) == {"vanilla", "vanilla_aa", "pld"}
    assert frame[["speedup", "tokens_per_s"]].isna().all(axis=None)
    assert frame["mat"].notna().all()
