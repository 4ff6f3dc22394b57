"""Spec-Bench's answer files, there and back, and its formulas worked out by hand from the files
alone.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report.conftest import build_run, fail_one
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

MULTI_TURN = [
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
    "multi-turn",
]


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
    """A run in two rounds, its answer files and their tokenizer, compared by the command."""

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
    """speed.py's loops, written again from the protocol: tokens/s, the baseline's, accept
    lengths.
    """

    def chosen(path):
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        names = MULTI_TURN if task == "multi-turn" else {task}
        return [
            line["choices"][0] for line in lines if task == "overall" or line["category"] in names
        ]

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
    run, folder, tokenizer = exported
    frame = pd.read_csv(run / "tables/compat_spec_bench.csv")
    assert len(frame) == 5 * 7
    for row in frame.to_dict("records"):
        parts = [folder / f"run_{number}" for number in (1, 2)]
        files = [(each / f"{row['method']}.jsonl", each / f"{VANILLA}.jsonl") for each in parts]
        found = [by_hand(*pair, tokenizer, row["category"]) for pair in files]
        speeds, bases, lengths = zip(*found, strict=True)
        ratios = [speed / base for speed, base, _ in found]
        assert row["tokens_per_s"] == pytest.approx(sum(speeds) / 2)
        assert row["baseline_tokens_per_s"] == pytest.approx(sum(bases) / 2)
        assert row["speedup"] == pytest.approx(sum(ratios) / 2)
        assert row["speedup_std"] == pytest.approx(abs(ratios[0] - ratios[1]) / math.sqrt(2))
        assert row["mat"] == pytest.approx(sum(map(sum, lengths)) / sum(map(len, lengths)))
    path = folder / "run_1/token_recycling.jsonl"
    answers = read_answers(path)
    assert [answer.question_id for answer in answers] == list(range(100, 112))
    assert (answers[0].category, answers[0].task) == ("writing", "multi-turn")
    assert answers[0].model_id == "tiny-token_recycling-float32-temp-0.0"
    for answer in answers:
        assert answer.new_tokens == sum(answer.accept_lengths)
        assert sum(turn.decoding_steps for turn in answer.turns) == len(answer.accept_lengths)
    again = "".join(answer.to_json() + "\n" for answer in answers)
    assert again == path.read_text("utf-8")


def test_compat_is_next_to_ours(exported):
    run, _, _ = exported
    assert main([str(run), "--no-plots"]) == 0
    files = (run / "tables/compat_spec_bench.csv", run / "summary.csv")
    frame, summary = (pd.read_csv(file).set_index(["method", "category"]) for file in files)
    for figure in ("tokens_per_s", "mat", "speedup"):
        ours = summary[figure].reindex(frame.index)
        assert frame[f"{figure}_ours"].equals(ours.rename(f"{figure}_ours"))
        difference = 100 * (frame[figure] / ours - 1)
        assert np.allclose(frame[f"{figure}_difference"], difference, atol=1e-9)
    assert frame.loc[(VANILLA, "overall"), "speedup"] > 1  # the baseline's text has no EOS to count


@pytest.mark.parametrize(
    ("case", "question"),
    [("0", 0), ("12", 12), ("9" * 18, int("9" * 18))]
    + [(name, name) for name in ("01", "\u0661", "9" * 5000)],
    ids=lambda value: ascii(value)[:12],
)
def test_a_case_that_is_a_number_is_its_question(case, question, make_manifest):
    run = Run(Path("run"), make_manifest({}), [record(VANILLA, case, [turn([1])])])
    assert answers_of(run, read_facts(run), VANILLA, 0)[0].question_id == question


def test_failed_cases_are_left_out_and_a_replayed_run_has_mat_only(
    make_run, tokenizer, tmp_path, output, refused
):
    compat = ("--compat", "spec_bench", "--tokenizer", tokenizer)
    run = make_run(per_category=2, edit=fail_one)
    text = output("report", run, "--export-answers", tmp_path / "out")
    assert "pld: 1 failed cases" in text
    assert len(read_answers(tmp_path / "out/pld.jsonl")) == 11
    assert "only one of method (11) and baseline (12)" in " ".join(
        output("report", run, *compat).split()
    )
    run = make_run(per_category=1, engine="replay")
    output("report", run, *compat)
    frame = pd.read_csv(run / "tables/compat_spec_bench.csv")
    assert frame["speedup"].isna().all()
    assert frame["mat"].notna().all()
    assert "replayed" in refused("report", run, "--export-answers", tmp_path / "x")


def test_a_missing_tokenizer_says_how_to_give_it(make_run, output, refused, tokenizer, tmp_path):
    def run_of(path):
        return make_run(per_category=1, manifest={"model": {"name": "m", "path": str(path)}})

    compat = ("--compat", "spec_bench")
    for gone in (tmp_path / "gone", "nobody/no-such-model"):  # a folder, and a model of the hub
        error = refused("report", run_of(gone), *compat)
        assert re.search(f"{gone}.*--tokenizer DIR", error, re.S)
    assert "contains no tokenizer.json" in refused(
        "report", run_of(tokenizer), *compat, "--tokenizer", tmp_path
    )
    output("report", run_of(tokenizer), *compat)


def test_answer_files_alone(exported, output, refused, tmp_path):
    _, folder, tokenizer = exported
    vanilla, pld = files = [folder / f"run_1/{name}.jsonl" for name in (VANILLA, "pld")]
    options = ["--tokenizer", tokenizer, "--output", tmp_path / "out"]
    output("report", "--answers", *files, *options)
    frame = pd.read_csv(tmp_path / "out/tables/compat_spec_bench.csv").set_index(
        ["file", "category"]
    )
    speed, base, lengths = by_hand(pld, vanilla, tokenizer, "rag")
    assert frame.loc[("pld", "rag"), "speedup"] == pytest.approx(speed / base)
    assert frame.loc[("pld", "rag"), "mat"] == pytest.approx(sum(lengths) / len(lengths))
    for wrong, named in (
        ([pld, vanilla, *options], "no baseline"),
        (files, "--tokenizer DIR"),
        ([vanilla], "one file"),
        ([vanilla, tmp_path / "gone.jsonl", *options], "gone.jsonl"),
        ([*files, "--compat", "spec_bench"], "alone"),
    ):
        assert named in refused("report", "--answers", *wrong)


def test_real_answer_files(data, tmp_path):
    folder, tokenizer = data / "traces/vicuna-7b-v1.3", data / "tokenizers/vicuna"
    files = [folder / f"spec_bench_{name}.jsonl" for name in ("vanilla_run2", "sps_vicuna68m")]
    arguments = [
        "--answers",
        *map(str, files),
        "--tokenizer",
        str(tokenizer),
        "--output",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    frame = pd.read_csv(tmp_path / "tables/compat_spec_bench.csv")
    rows = frame[frame["file"] == "spec_bench_sps_vicuna68m"].set_index("category")
    assert round(rows.loc["overall", "mat"], 3) == 2.278
    assert list(rows["questions"]) == [80] * 6 + [480]
    for task in rows.index:
        speed, base, lengths = by_hand(files[1], files[0], tokenizer, task)
        assert rows.loc[task, "speedup"] == pytest.approx(speed / base)
        assert rows.loc[task, "mat"] == pytest.approx(sum(lengths) / len(lengths))
