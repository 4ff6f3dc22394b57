"""Spec-Bench's answer files, there and back, and its formulas worked out by hand from the files alone."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from report.conftest import build_run, fail
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from builders.records import record, turn
from specbench.commands.report import main
from specbench.records.record import VANILLA
from specbench.records.store import Run
from specbench.report import read_answers
from specbench.report.exchange.spec_bench import answers_of
from specbench.report.frames.facts import read_facts

MULTI_TURN = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities", "multi-turn"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A folder with a tokenizer that puts BOS before a text, as Vicuna's does."""
    made = Tokenizer(WordLevel({"<s>": 0, "<unk>": 1, "word": 2}, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def exported(tokenizer, tmp_path_factory):
    """A run in two rounds and its answer files, compared by the command."""

    def edit(manifest, records):
        for entry in records:
            entry.case = str(100 + entry.block // 2)
            entry.subcategory = "writing" if entry.category == "multi-turn" else entry.category
            for each in entry.turns:
                each.text = " ".join(["word"] * (len(each.ids) - 1)) + " "

    folder = tmp_path_factory.mktemp("exported")
    run = build_run(folder / "run", per_category=2, rounds=2, edit=edit)
    assert main([str(run), "--export-answers", str(folder / "answers")]) == 0
    assert main([str(run), "--compat", "spec_bench", "--tokenizer", str(tokenizer)]) == 0
    return run, folder / "answers", tokenizer


def by_hand(method_file, baseline_file, tokenizer, task):
    """speed.py's loops, written again from the protocol: tokens/s, the baseline's, accept lengths."""

    def chosen(path):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        names = MULTI_TURN if task == "multi-turn" else {task}
        return [line["choices"][0] for line in lines if task == "overall" or line["category"] in names]

    encode = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode
    speeds, lengths = [], []
    for choice in chosen(method_file):
        speeds.append(sum(choice["new_tokens"]) / sum(choice["wall_time"]))
        lengths += choice["accept_lengths"]
    base = [
        sum(len(encode(text).ids) - 1 for text in choice["turns"]) / sum(choice["wall_time"])
        for choice in chosen(baseline_file)
    ]
    return sum(speeds) / len(speeds), sum(base) / len(base), lengths


def test_compat_is_spec_bench_by_hand_and_files_read_back(exported):
    run, answers, tokenizer = exported
    frame = pd.read_csv(run / "tables/compat_spec_bench.csv")
    assert len(frame) == 5 * 7
    for row in frame.to_dict("records"):
        folders = [answers / f"run_{number}" for number in (1, 2)]
        files = [(each / f"{row['method']}.jsonl", each / f"{VANILLA}.jsonl") for each in folders]
        found = [by_hand(*pair, tokenizer, row["category"]) for pair in files]
        ratios = [speed / base for speed, base, _ in found]
        lengths = [length for *_, part in found for length in part]
        assert row["tokens_per_s"] == pytest.approx(sum(speed for speed, *_ in found) / 2)
        assert row["baseline_tokens_per_s"] == pytest.approx(sum(base for _, base, _ in found) / 2)
        assert row["speedup"] == pytest.approx(sum(ratios) / 2)
        assert row["speedup_std"] == pytest.approx(abs(ratios[0] - ratios[1]) / math.sqrt(2))
        assert row["mat"] == pytest.approx(sum(lengths) / len(lengths))
    _, folder, _ = exported
    path = folder / "run_1/token_recycling.jsonl"
    answers = read_answers(path)
    assert [answer.question_id for answer in answers] == list(range(100, 112))
    assert (answers[0].category, answers[0].task) == ("writing", "multi-turn")
    for answer in answers:
        assert answer.new_tokens == sum(answer.accept_lengths)
        assert sum(turn.decoding_steps for turn in answer.turns) == len(answer.accept_lengths)
    assert answers[0].model_id == "tiny-token_recycling-float32-temp-0.0"
    again = "".join(answer.to_json() + "\n" for answer in answers)
    assert again == path.read_text(encoding="utf-8")


def test_compat_is_next_to_ours(exported):
    run, _, _ = exported
    frame = pd.read_csv(run / "tables/compat_spec_bench.csv").set_index(["method", "category"])
    assert main([str(run), "--no-plots"]) == 0
    summary = pd.read_csv(run / "summary.csv").set_index(["method", "category"])
    for figure in ("tokens_per_s", "mat", "speedup"):
        pd.testing.assert_series_equal(
            frame[f"{figure}_ours"].sort_index(), summary[figure].sort_index(), check_names=False
        )
        difference = 100 * (frame[figure] / frame[f"{figure}_ours"] - 1)
        assert frame[f"{figure}_difference"].to_numpy() == pytest.approx(difference.to_numpy(), abs=1e-9)
    assert frame.loc[(VANILLA, "overall"), "speedup"] > 1  # the baseline's text has no EOS to count
    text = (run / "tables/compat_spec_bench.md").read_text(encoding="utf-8")
    assert "prefill's forward as a step" in text
    assert "vanilla (A/A)" in text


@pytest.mark.parametrize(
    ("case", "question"),
    [("0", 0), ("12", 12), ("9" * 18, int("9" * 18))]
    + [(name, name) for name in ("01", "-1", "\u0661", "1.5", "\u00b2", "", "9" * 5000)],
    ids=lambda value: ascii(value)[:12],
)
def test_a_case_that_is_a_number_is_its_question(case, question, make_manifest):
    run = Run(Path("run"), make_manifest({}), [record(VANILLA, case, [turn([1])])])
    assert answers_of(run, read_facts(run), VANILLA, 0)[0].question_id == question


def test_failed_cases_are_left_out_and_a_replayed_run_has_mat_only(make_run, tokenizer, tmp_path, capsys):
    def edit(manifest, records):
        fail(next(record for record in records if record.method == "pld"), "no")

    run = make_run(per_category=2, edit=edit)
    assert main([str(run), "--export-answers", str(tmp_path / "out")]) == 0
    assert "pld: 1 failed cases" in capsys.readouterr().out
    assert len(read_answers(tmp_path / "out/pld.jsonl")) == 11
    assert main([str(run), "--compat", "spec_bench", "--tokenizer", str(tokenizer)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "pld: 1 questions are in only one of method (11) and baseline (12)" in printed
    run = make_run(per_category=1, manifest={"config": {"engine": {"kind": "replay"}}})
    assert main([str(run), "--compat", "spec_bench", "--tokenizer", str(tokenizer)]) == 0
    frame = pd.read_csv(run / "tables/compat_spec_bench.csv")
    assert frame["speedup"].isna().all()
    assert frame["mat"].notna().all()
    assert main([str(run), "--export-answers", str(tmp_path / "x")]) == 2
    assert "replayed" in capsys.readouterr().err


def test_a_missing_tokenizer_says_how_to_give_it(make_run, capsys, tokenizer, tmp_path):
    run = make_run(per_category=1, manifest={"model": {"name": "m", "path": str(tmp_path / "gone")}})
    assert main([str(run), "--compat", "spec_bench"]) == 2
    error = capsys.readouterr().err
    assert "gone" in error
    assert "--tokenizer DIR" in error
    assert main([str(run), "--compat", "spec_bench", "--tokenizer", str(tmp_path)]) == 2
    assert "contains no tokenizer.json" in capsys.readouterr().err
    named = make_run("named", per_category=1, manifest={"model": {"name": "m", "path": str(tokenizer)}})
    assert main([str(named), "--compat", "spec_bench"]) == 0


def test_answer_files_alone(exported, capsys, tmp_path):
    _, folder, tokenizer = exported
    vanilla, pld = (str(folder / f"run_1/{name}.jsonl") for name in (VANILLA, "pld"))
    options = ["--tokenizer", str(tokenizer), "--output", str(tmp_path / "out")]
    assert main(["--answers", vanilla, pld, *options]) == 0
    frame = pd.read_csv(tmp_path / "out/tables/compat_spec_bench.csv").set_index(["file", "category"])
    speed, base, lengths = by_hand(folder / "run_1/pld.jsonl", folder / "run_1/vanilla.jsonl", tokenizer, "rag")
    assert frame.loc[("pld", "rag"), "speedup"] == pytest.approx(speed / base)
    assert frame.loc[("pld", "rag"), "mat"] == pytest.approx(sum(lengths) / len(lengths))
    capsys.readouterr()
    for wrong, named in (
        ([pld, vanilla, *options], "no baseline"),
        ([vanilla, pld], "--tokenizer DIR"),
        ([vanilla], "got one file"),
        ([vanilla, str(tmp_path / "gone.jsonl"), *options], "gone.jsonl: no such file"),
        ([vanilla, pld, "--compat", "spec_bench"], "alone"),
    ):
        assert main(["--answers", *wrong]) == 2
        assert named in capsys.readouterr().err


def test_a_hub_model_that_was_never_downloaded_has_no_tokenizer(make_run, capsys):
    run = make_run(per_category=1, manifest={"model": {"name": "m", "path": "nobody/no-such-model"}})
    assert main([str(run), "--compat", "spec_bench"]) == 2
    assert "nobody/no-such-model" in capsys.readouterr().err


def test_real_answer_files(data, tmp_path):
    folder, tokenizer = data / "traces/vicuna-7b-v1.3", data / "tokenizers/vicuna"
    files = [folder / f"spec_bench_{name}.jsonl" for name in ("vanilla_run2", "sps_vicuna68m")]
    arguments = ["--answers", *map(str, files), "--tokenizer", str(tokenizer), "--output", str(tmp_path)]
    assert main(arguments) == 0
    frame = pd.read_csv(tmp_path / "tables/compat_spec_bench.csv")
    rows = frame[frame["file"] == "spec_bench_sps_vicuna68m"].set_index("category")
    assert round(rows.loc["overall", "mat"], 3) == 2.278
    assert list(rows["questions"]) == [80] * 6 + [480]
    for task in rows.index:
        speed, base, lengths = by_hand(files[1], files[0], tokenizer, task)
        assert rows.loc[task, "speedup"] == pytest.approx(speed / base)
        assert rows.loc[task, "mat"] == pytest.approx(sum(lengths) / len(lengths))
