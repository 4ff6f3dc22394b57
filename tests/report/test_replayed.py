"""The report of a replayed target: real figures are shown, figures that only the target has are missing."""

import copy
import re
from pathlib import Path

import pandas as pd
import pytest
from report.conftest import CATEGORIES, build_run
from report.test_report_files import outline, printed
from report.test_tables import check_latex

from specbench.records.record import VANILLA
from specbench.report import build_report

SKIPPED = "specbench.report.plots.catalogue"  # the log that says why a plot is left out
TRACE = "answers: 12 conversations, 14 answers, 640 tokens; 13 of 14 answers have the recorded number of tokens"
METHODS = {"pld": (4.0, 0.35, 4e-6), "sam": (20.0, 0.5, 9e-6)}
GONE = ("speedup", "Speedup", "tokens/s", "Tokens/s", "lossless", "Lossless", "HF", "ms")


def replay(manifest, records):
    """The record of a replay: no lossless check, only the times of its own loop, sources of every draft."""
    manifest["config"]["engine"]["kind"] = "replay"
    manifest["trace"] = TRACE
    manifest["model"] |= {"dtype": "auto", "device": "cpu", "parameters": None}
    for record in records:
        record.lossless = None
        for turn in record.turns:
            turn.prefill_s = 1e-5
            turn.phases_s |= {"forward": 1e-6 * len(turn.accept), "update": 2e-6 * len(turn.accept)}
            turn.phases_s["draft"] = (0.0 if record.method == VANILLA else METHODS[record.method][2]) * len(turn.accept)
            turn.decode_s = sum(turn.phases_s.values())
            if record.method != VANILLA and sum(turn.proposed):
                turn.sources = {"dynamic": [3, 1], "static": [2, 0]}


def write_replay(directory: Path, edit=replay, **options) -> Path:
    return build_run(directory, METHODS, peers=(), control=False, edit=edit, **{"per_category": 2} | options)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Not to be changed."""
    return build_report([write_replay(tmp_path_factory.mktemp("replay") / "run")])


def header(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("| Method") or line.lstrip().startswith("method"))


def test_terminal_shows_what_is_real_and_mat_alone_by_category(report):
    text = printed(report)
    title, said, *_ = text.strip("\n").splitlines()
    told = next(line for line in text.splitlines() if line.startswith("replay of"))
    assert title == "tiny on mini, temperature 0"
    assert "most tokens a step" in said
    assert f"replay of {TRACE}" in " ".join(text.split())
    assert told.startswith("replay of answers")
    assert re.split(r"  +", header(text).strip()) == [
        *("method", "MAT", "accepted", "tokens fed", "drafting µs", "errors")
    ]
    row = report.summary.query("category == 'overall' and method == 'pld'").iloc[0]
    line = next(line for line in text.splitlines() if line.split()[:1] == ["pld"])
    assert line.split()[1] == f"{row['mat']:.2f}"
    assert line.split()[4:6] == [f"{row['tokens_fed']:.2f}", "6.00"]  # 4 us of draft and 2 of update a step
    assert max(map(len, text.splitlines())) <= 100
    table = text[text.index(" MAT ", text.index("errors")) :]
    row = next(line for line in table.splitlines() if line.split()[:1] == ["pld"])
    assert len(row.split()) == 2 + len(CATEGORIES)
    assert "–" not in row
    assert "speedup MAT" not in text


def test_tables_have_no_column_of_blanks_and_csv_files_every_column(report):
    folder = report.output / "tables"
    text = (folder / "overall.md").read_text(encoding="utf-8")
    names = [cell.strip() for cell in header(text).strip("|").split("|")]
    assert names == ["Method", "Cases", "MAT", "Acceptance", "Tokens fed", "Drafting µs", "Errors"]
    assert "Speedup" not in text
    assert "replayed" in text.splitlines()[0]
    check_latex((folder / "overall.tex").read_text(encoding="utf-8"))
    assert r"\shortstack[r]{Drafting\\\ensuremath{\mu}s}" in (folder / "overall.tex").read_text(encoding="utf-8")
    assert not list(folder.glob("speedup_by_category.*"))
    assert (folder / "mat_by_category.tex").is_file()
    frame = pd.read_csv(report.output / "summary.csv")
    assert frame["speedup"].isna().all()
    split = pd.read_csv(report.output / "tables/time_split.csv").set_index("method")
    assert split.loc["sam", "draft_ms"] == pytest.approx(9e-3)
    assert split.loc["sam", "update_ms"] == pytest.approx(2e-3)
    assert split[["forward_ms", "verify_ms", "prepare_ms", "step_ms"]].isna().all(axis=None)
    frame = pd.read_csv(report.output / "tables/accept_sources.csv")
    assert set(zip(frame["method"], frame["source"], strict=True)) == {
        (method, source) for method in METHODS for source in ("dynamic", "static")
    }
    assert (frame.loc[frame["source"] == "dynamic", "acceptance_rate"] == 1 / 3).all()
    (said,) = [warning for warning in report.warnings if "replayed target" in warning]
    assert "drafters" in said
    assert not any("A/A" in warning for warning in report.warnings)


def test_page_leaves_out_what_no_model_told(report):
    text = (report.output / "report.html").read_text(encoding="utf-8")
    outline(report.output / "report.html")
    assert f"Replay of {TRACE}." in text
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", text)
    assert {"MAT", "Tokens fed", "Drafting µs", "Draft µs", "Update µs"} <= set(heads)
    assert not [head for head in heads for gone in GONE if head.endswith(gone)]
    assert "Speedup by category" not in text
    cards = re.findall(r'<li class="[a-z]*"><b>([^<]*)</b>', text)
    assert cards == ["Lossless", "Errors"]
    assert "no speedup without a latency profile" in text
    assert "the recorded tokens are emitted" in text
    assert "<dt>trace</dt>" in text


def test_plots_that_need_times_are_left_out_with_a_reason(report, tmp_path, caplog):
    with caplog.at_level("DEBUG", logger=SKIPPED):
        again = build_report([report.output], tmp_path)
    names = {path.stem for path in again.files if path.suffix == ".png"}
    assert names == {
        *("mat", "mat_by_category", "mat_against_fed", "radar"),
        *("time_split", "accept_lengths", "accept_positions", "accept_sources", "by_length"),
    }
    for name in ("speedup", "speedup_by_category"):
        assert re.search(rf"plot {name} of .* skipped: the target was replayed", caplog.text)


def test_vanilla_is_told_once_in_a_sweep(tmp_path):
    def edit(number):
        def change(manifest, records):
            replay(manifest, records)
            manifest["methods"]["pld"]["parameters"] = {"n": number}

        return change

    runs = [write_replay(tmp_path / str(number), edit(number), seed=1) for number in (1, 2, 3)]
    report = build_report(runs, plots=False)
    text = printed(report)
    assert sum(line.split()[:1] == [VANILLA] for line in text.splitlines()) == 1
    table = (report.output / "tables/overall.md").read_text(encoding="utf-8")
    assert table.count("| vanilla") == 1
    assert "pld [n=3]" in text
    assert report.summary.query("category == 'overall' and method == 'vanilla'").shape[0] == 3


def test_beside_a_timed_run_both_kinds_of_figures_stand(report, tmp_path):
    live = build_run(tmp_path / "live", METHODS, peers=(), per_category=2)
    both = build_report([live, report.output], tmp_path / "both")
    text = (tmp_path / "both/tables/overall.md").read_text(encoding="utf-8")
    assert {"Speedup", "Drafting µs"} <= {cell.strip() for cell in header(text).split("|")}
    replayed = next(line for line in text.splitlines() if line.startswith("| pld") and " 6.00 " in line)
    assert "–" in replayed
    assert any(path.name == "speedup.png" for path in both.files)


def test_a_timed_run_has_neither_column(make_run):
    directory = make_run(per_category=2)
    build_report([directory], plots=False)
    text = (directory / "tables/overall.md").read_text(encoding="utf-8")
    assert "Drafting" not in text
    assert "Tokens fed" not in text
    assert "Speedup over HF" not in text  # blank in every row


def test_a_method_with_failed_cases_leads_nothing(tmp_path):
    def edit(manifest, records):
        replay(manifest, records)
        for record in [record for record in records if record.method == "sam"][3:]:
            record.status, record.turns = "error", []
            record.error = {"type": "ValueError", "message": "no", "traceback": "", "turn": 0}

    directory = write_replay(tmp_path / "run", edit)
    build_report([directory], plots=False)
    text = (directory / "report.html").read_text(encoding="utf-8")
    assert "<strong>pld brings the most tokens a step</strong>" in text


def test_replays_of_two_traces_name_both(tmp_path):
    def other(manifest, records):
        replay(manifest, records)
        manifest["trace"] = TRACE.replace("13 of 14", "14 of 14")
        manifest["config"]["model"] = {"trace": "/somewhere/far/away/second.jsonl"}

    def first(manifest, records):
        replay(manifest, records)
        manifest["config"]["model"] = {"trace": "/somewhere/far/away/first.jsonl"}

    report = build_report(
        [write_replay(tmp_path / name, copy.copy(edit)) for name, edit in (("a", first), ("b", other))]
    )
    text = printed(report)
    assert "13 of 14" in text
    assert "14 of 14" in text
    assert "model.trace=first.jsonl" in set(report.summary["variant"])  # its name, not the way to it
