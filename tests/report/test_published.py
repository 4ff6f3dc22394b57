"""Published figures: kept as printed, refused when broken, matched with measured ones and
checked.
"""

from __future__ import annotations

import csv
import re
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from report.conftest import build_run, fail_one

from builders.reports import of_overall
from specbench.input import InputError
from specbench.report import published
from specbench.report.build import read_findings
from specbench.report.published import (
    MAT_TOLERANCE,
    TRACE,
    PublishedFigure,
    compare,
    published_tables,
    read_published,
    summarise_verdicts,
    write_published,
)

ROOT = Path(__file__).resolve().parents[2]
MODEL = "vicuna-7b-v1.3"


def figure(value: float, metric: str = "mat", **changes) -> PublishedFigure:
    """A published figure of pld on Spec-Bench."""
    stated = {
        "source": "A Paper",
        "table": "table 1",
        "model": MODEL,
        "suite": "spec_bench",
        "category": "overall",
        "method": "pld",
        "name": "PLD",
        "metric": metric,
        "value": value,
        "printed": str(value),
        "needs": "trace" if metric == "mat" else "hardware",
        "hardware": "a GPU",
        "date": "2024-01",
    }
    return PublishedFigure(**dict.fromkeys(PublishedFigure.model_fields, "") | stated | changes)


@pytest.fixture
def measured(tmp_path):
    """A run of pld and hf_generate on Spec-Bench; config: changes, others as of ``build_run``."""

    def make(name: str = "run", model: str = MODEL, config: dict | None = None, **options):
        settings = {
            "model": {"template": "vicuna_v1.1", "tokenizer": None},
            "suite": {"limit": None, "order": "file"},
            "decode": {"temperature": 0.0, "max_new_tokens": 1024},
            "engine": {"kind": "eager"},
        }
        manifest = {
            "model": {"name": model, "dtype": "float16", "device": "cuda:0", "parameters": 10**9},
            "suite": {"name": "spec_bench", "cases": 12, "turns": 14, "sha256": "ab" * 32},
            "machine": {"cpu": "a processor", "gpus": [{"name": "GPU X"}]},
            "config": settings | (config or {}),
        }
        specs = {"pld": (4.0, 0.35, 4e-4), "hf_generate": (0.0, 0.0, 0.0)}
        options |= {"per_category": 2, "peers": ("hf_generate",), "manifest": manifest}
        return read_findings([build_run(tmp_path / name, specs, **options)])

    return make


def mat_of(findings, method: str = "pld", figure: str = "mat") -> float:
    return float(of_overall(findings).loc[method, figure])


def test_verdicts(measured):
    """Within the tolerance it is reproduced, just beyond it is not, whichever side; times are never
    judged.
    """
    findings = measured()
    mat = mat_of(findings)
    wanted = {
        -1.01: "differs",
        -0.99: "reproduced",
        0: "reproduced",
        0.99: "reproduced",
        1.01: "differs",
    }
    figures = [figure(mat + share * MAT_TOLERANCE) for share in wanted] + [figure(1.7, "speedup")]
    *matches, speedup = compare(findings, figures)
    assert [match.verdict for match in matches] == [*wanted.values()]
    assert [match.difference for match in matches] == pytest.approx(
        [-share * MAT_TOLERANCE for share in wanted]
    )
    assert matches[0].notes == ("nothing that the manifest or the source states",)
    assert matches[1].notes == ()
    assert (
        speedup.ours == mat_of(findings, figure="speedup_hf") != mat_of(findings, figure="speedup")
    )
    assert (speedup.verdict, speedup.notes, speedup.ran_on) == ("", ("another machine",), "GPU X")
    # a figure that one of two runs misses is not reproduced
    twice = [matches[2], replace(matches[2], verdict="differs")]
    for found, text in ((twice[:1], "1 of 1 compared MATs"), (twice, "0 of 1 compared MATs")):
        assert summarise_verdicts(found).startswith(text)


PART = {"suite": {"limit": 2, "order": "file"}}


def halve(manifest, records):
    del records[len(records) // 2 :]


def test_part_of_a_suite_and_failed_cases_reproduce_nothing(measured):
    for options, note in (
        ({"config": PART}, "12 of the suite's questions"),
        ({"config": {"suite": {"limit": None, "expected": 480}}}, "12 of the suite's questions"),
        ({"edit": fail_one}, "1 case failed"),
        ({"edit": halve}, "6 of 12 cases are recorded"),
    ):
        findings = measured(**options)
        [match] = compare(findings, [figure(mat_of(findings))])
        assert (match.verdict, match.notes) == ("partial", (note,))
    assert "0 of 1 compared MATs are reproduced, 1 more in part" in summarise_verdicts([match])


def test_a_part_of_a_suite_is_compared_within_its_interval(measured):
    """A complete run is within the tolerance alone, and too few cases have no interval."""
    part, whole, half = measured(config=PART), measured(), measured(edit=halve)
    high = mat_of(part, figure="mat_high")
    inside, outside = compare(part, [figure(high - 1e-6), figure(high + 0.1)])
    assert (inside.verdict, inside.notes[-1]) == ("partial", "in our 95 % interval")
    assert outside.verdict == compare(whole, [figure(high - 1e-6)])[0].verdict == "differs"
    [match] = compare(half, [figure(mat_of(half) + 1)])
    assert (match.verdict, match.notes[-1]) == ("", "under 8 cases are too few to compare")


def test_what_differs_is_read_off_the_manifest(measured):
    theirs = {"model.template": "raw", "model.dtype": "bfloat16", "decode.max_new_tokens": "512"}
    ours = {"model.template": "vicuna_v1.1", "model.dtype": "float16"}
    ours |= {"decode.max_new_tokens": "1024", "reset": "case"}

    def own(manifest, _):
        store = {"inputs": {"/some/where/store.safetensors": "ab"}, "reset": "case"}
        manifest["methods"]["pld"] |= store

    findings = measured(edit=own)
    setup = theirs | {"reset": "never", "prefill": "a step"}
    [match] = compare(findings, [figure(9.0, setup=setup, corpus="UltraChat")])
    assert match.notes == (
        "template vicuna_v1.1, not raw",
        "dtype float16, not bfloat16",
        "decode.max_new_tokens 1024, not 512",
        "reset case, not never",
        "they count the prefill as a step (decode.first_draft=prefill does)",
        "corpus of store.safetensors, not UltraChat",
    )
    [match] = compare(findings, [figure(mat_of(findings), setup=ours)])
    assert match.notes == ()
    findings = measured(config={"decode": {"temperature": 0.0, "first_draft": "prefill"}})
    for setup, noted in (({"prefill": "a step"}, 0), ({}, 1)):
        [match] = compare(findings, [figure(mat_of(findings), setup=setup)])
        assert sum("decode.first_draft=prefill" in note for note in match.notes) == noted


def test_a_replay_tells_its_tokenizer_and_keeps_its_trace_name(measured):
    """Its model is the trace's with a tail; lengths and number format are the recording's; it has
    no times.
    """

    def replayed(manifest, _):
        manifest["trace"] = (
            "answers: 12 conversations, 14 answers; 13 of 14 answers have the recorded number of"
            " tokens"
        )

    decode = {"temperature": 0.0, "max_new_tokens": 10**6}
    config = {"engine": {"kind": "replay"}, "model": {"tokenizer": "t"}, "decode": decode}
    findings = measured(model=f"{MODEL}-vanilla-float16", config=config, edit=replayed)
    setup = {"model.dtype": "float16", "decode.max_new_tokens": "1024"}
    figures = [
        figure(mat_of(findings), setup=setup),
        figure(1.5, "speedup"),
        figure(2.0, model="vicuna-7b-v1"),
    ]
    [match] = compare(findings, figures)
    assert match.verdict == "reproduced"
    assert match.notes == (
        "tokenizer: answers tokenised anew, 13 of 14 answers have the recorded number of tokens",
    )
    assert match.ran_on == "replayed answers"


def test_a_row_is_compared_only_where_the_run_was_set_so(measured):
    findings = measured(parameters={"pld": {"num_draft": 10}})
    settings = [{"num_draft": "10"}, {"num_draft": "5"}, {"k": "3"}, {"decode.temperature": "1"}]
    settings += [{"suite.order": "file"}, {"suite.order": "shuffled"}]
    matches = compare(findings, [figure(2.0, setting=setting) for setting in settings])
    assert [match.figure.setting for match in matches] == [settings[0], settings[4]]
    others = [
        figure(2.0, suite="mt_bench"),
        figure(2.0, method="sam"),
        figure(1.0, needs="definition"),
    ]
    assert not compare(findings, others)


def test_a_run_is_not_compared_by_another_runs_row(measured, tmp_path):
    """Side by side, as a replay with a corpus and those without."""
    one = measured("one")
    manifest = {key: one.runs[0].manifest[key] for key in ("model", "suite", "machine", "config")}
    other = build_run(
        tmp_path / "other", {"sam": (6.0, 0.5, 4e-4)}, per_category=2, manifest=manifest
    )
    findings = read_findings([one.runs[0].directory, other])
    matches = compare(findings, [figure(2.0), figure(2.0, method="sam", corpus="a corpus")])
    assert [match.figure.method for match in matches] == ["pld", "sam"]
    assert [match.ours for match in matches] == [mat_of(findings), mat_of(findings, "sam")]


def test_other_models_only_where_the_suite_has_none_of_ones_own(measured):
    figures = [figure(2.0), figure(2.0, model="vicuna-13b-v1.3")]
    assert [match.figure.model for match in compare(measured("own"), figures)] == [MODEL]
    other = measured("other", model="a-model")
    matches = compare(other, [figure(mat_of(other)), figures[1]])
    assert [match.verdict for match in matches] == ["differs", "differs"]
    assert matches[0].notes[0] == f"model a-model, not {MODEL}"


def test_tables_say_where_both_were_measured(measured, tmp_path):
    figures = [
        figure(2.0, corpus="a & b", name="P|L_D"),
        figure(1.5, "speedup"),
        figure(2.0, table="table 2"),
        figure(3.0, method="sam"),
    ]
    matches = compare(measured(), figures)
    summary, *details = tables = published_tables(matches, figures)
    for number, (table, count) in enumerate(zip(details, ("2 of 3", "1 of 1"), strict=True), 1):
        assert table.where == f"A Paper, table {number} (2024-01), measured on: a GPU; ours: GPU X."
        assert table.meaning == f"Figures with a counterpart here: {count}."
    assert "a: no corpus, theirs a & b." in summary.meaning
    assert [(row[0].text, row[-1].text) for row in summary.rows] == [
        ("A Paper, table 1", "a"),
        ("A Paper, table 1", "b"),
        ("A Paper, table 2", "c"),
    ]
    files = {
        path.name.partition(".")[2]: path.read_text()
        for path in write_published(matches, tables, tmp_path)
    }
    assert r"P\|L\_D" not in files["md"]
    assert r"P\|L_D" in files["md"]
    assert r"a \& b" in files["notes.tex"]
    assert files["tex"].count(r"\begin{tabular}") == 3
    assert [files[name].count("no corpus, theirs") for name in ("md", "notes.tex")] == [1, 1]
    rows = list(csv.DictReader(files["csv"].splitlines()))
    wanted = [
        "no corpus, theirs a & b",
        "another machine",
        "nothing that the manifest or the source states",
    ]
    assert [row["note"] for row in rows] == wanted
    assert [float(row["ours"]) for row in rows] == [match.ours for match in matches]
    assert {row["published_on"] for row in rows} == {"a GPU"}


def test_a_summary_has_every_source_and_what_all_share_once(measured):
    findings = measured()
    figures = [
        figure(2.0, source="A Board", table="board 2024"),
        figure(1.2, "speedup", category="qa"),
    ]
    summary = published_tables(compare(findings, figures), figures)[0]
    assert [row[0].text for row in summary.rows] == ["A Board 2024", "A Paper, table 1"]
    assert summary.rows[1][1].text == "PLD: pld, qa"  # the source has no overall figure
    shared = [figure(2.0, source=name, corpus="c") for name in "AB"]
    summary = published_tables(compare(findings, shared), shared)[0]
    assert summary.meaning.endswith("All: no corpus, theirs c.")
    assert [row[-1].text for row in summary.rows] == ["", ""]


def test_command(make_run, output, refused):
    """Files next to the run, a table on the terminal; a message without published figures, and for
    wrong options.
    """
    run = make_run("vicuna", manifest={"model": {"name": MODEL}, "suite": {"name": "spec_bench"}})
    text = output("report", run, "--published").split()
    notes = (
        "MAT within 0.03",
        "All: ",
        ": another machine.",
        "decode.max_new_tokens 256, not 1024",
    )
    assert [" ".join(text).count(note) for note in notes] == [1] * 4
    assert not {"translation", "rag"} & set(text)  # of a category: in the file
    assert "translation" in (run / "tables/published.md").read_text()
    assert {path.suffix for path in (run / "tables").glob("published.*")} == {".csv", ".md", ".tex"}
    assert not (run / "report.html").exists()
    tiny = make_run("tiny", per_category=1)
    text = output("report", tiny, "--published")
    assert re.search(r"suite=spec_bench \(.*pld.*\): .*Token Recycling table 1", text)
    assert not (tiny / "tables").exists()
    assert "--answers" in refused("report", "--published", "--answers", "a", "b")


@pytest.mark.exhaustive
def test_replay_reproduces_the_leaderboard(data, tmp_path, monkeypatch):
    """Prompt lookup on the recorded answers of Vicuna 7B: every published MAT of it, within the
    tolerance.
    """
    from builders.runs import job_for
    from specbench.runs.execution import execute

    monkeypatch.setenv("SPECBENCH_DATA", str(data))
    trace = data / "traces/vicuna-7b-v1.3/spec_bench_vanilla_run1.jsonl"
    settings = [
        f"model.trace={trace}",
        f"model.tokenizer={data / 'tokenizers/vicuna'}",
        "model.template=vicuna_v1.1",
    ]
    execute(
        job_for("model=replay", *settings, "suite=spec_bench", "method=[pld]"),
        tmp_path,
        lambda *_: None,
    )
    matches = compare(read_findings([tmp_path]), read_published())
    assert len(matches) == 7
    assert {match.figure.name.lower() for match in matches} == {"pld"}
    assert {match.verdict for match in matches} == {"reproduced"}


def test_a_manifest_without_settings_is_compared_by_what_it_has(measured):
    findings = measured()
    for key in ("machine", "config"):
        findings.runs[0].manifest.pop(key)
    [match] = compare(findings, [figure(9.0, setup={"model.template": "raw"})])
    assert match.notes == ("template null, not raw",)
    assert match.ran_on == "unknown"


RENAMED = {"eagle3_figures.csv": "eagle_figures.csv"}  # the original -> ours


def test_originals_are_kept_to_the_figure(data):
    """Every cell of the originals that is no label stands here as printed, as often as there."""
    originals = sorted((data / "published").glob("*.csv"))
    assert originals
    for original in originals:
        cells: Counter[str] = Counter()
        header, *rows = csv.reader(original.open())
        for row in (
            [cell for name, cell in zip(header, row, strict=True) if name != "hardware"]
            for row in rows
        ):
            parts = [
                part.strip()
                for cell in row
                for part in (cell.split(" / ") if " / " in cell else [cell])
            ]
            cells.update(
                part for part in parts if re.fullmatch(r"[\d.]+(±[\d.]+)?|\d+x\d+ \(\d+\)", part)
            )
        ours = list(
            csv.DictReader(
                (ROOT / "results/published" / RENAMED.get(original.name, original.name)).open()
            )
        )
        found = Counter(row["printed"] for row in ours)
        if original.name == "card_k_sweep_from_logs.csv":  # K is a setting there, not a figure
            found.update(row["setting"].partition("=")[2] for row in ours if row["metric"] == "mat")
        assert found == cells, original.name


def test_names_are_this_harnesss():
    """Methods and suites that are named exist; models that can be run are spelled as conf/model/
    does.
    """
    methods = {path.stem for path in (ROOT / "conf/method").glob("*.yaml")}
    models = {OmegaConf.load(path).get("name") for path in (ROOT / "conf/model").glob("*.yaml")}
    figures = read_published()
    assert {found.method for found in figures} <= {*methods, ""}
    assert {found.category for found in figures if found.method and found.model} <= {
        *("overall", "multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")
    }
    assert {MODEL, "mistral-7b-instruct-v0.2", "llama-2-70b-chat"} <= {
        found.model for found in figures
    } & models
    trace = [found for found in figures if found.needs == TRACE]
    assert {(found.model, found.metric) for found in trace} == {(MODEL, "mat")}
    assert all(found.value == 1 for found in figures if found.needs == "definition")


HEADER = ",".join(published.COLUMNS).encode() + b"\n"


def line(**changes):
    cells = dict.fromkeys(published.COLUMNS, "") | {"value": "1", "needs": "trace"} | changes
    return HEADER + ",".join(cells.values()).encode()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (line(value="fast"), "line 2: value is 'fast'"),
        (line(needs="luck"), "line 2: needs is 'luck'.*trace"),
        (line().replace(b"url", b"link"), "columns.*expected source"),
        (HEADER + b"," * 18, "line 2: has not 18 cells"),  # an unquoted comma
        (HEADER + b"\xff\xfe", "not UTF-8"),
    ],
    ids=lambda value: ascii(value)[-12:],
)
def test_a_broken_file_is_named(tmp_path, content, named):
    (tmp_path / "own.csv").write_bytes(content)
    with pytest.raises(InputError, match=f"own.csv.*{named}"):
        read_published(tmp_path)


def test_a_wheel_holds_what_is_needed_and_nothing_else(tmp_path):
    """Packages, configuration, published figures and profiles, where the code looks for them."""
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    [built] = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = {name for name in zipfile.ZipFile(built).namelist() if ".dist-info/" not in name}
    moved = {
        "conf": "specbench/conf",
        "results/published": "specbench/published",
        "results/profiles/published": "specbench/published/profiles",
        "specbench": "specbench",
        "methods": "methods",
    }
    wanted = {
        f"{to}/{path.relative_to(ROOT / place).as_posix()}"
        for place, to in moved.items()
        for path in (ROOT / place).rglob("*")
        if path.is_file()
    }
    assert names == {name for name in wanted if "__pycache__" not in name}


def test_an_installation_looks_inside_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "PACKAGE", tmp_path / "specbench")
    assert published.published_dir() == tmp_path / "results/published"
    (tmp_path / "specbench/published").mkdir(parents=True)
    assert published.published_dir() == tmp_path / "specbench/published"
