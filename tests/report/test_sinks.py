"""Reports that are sent to MLflow, or written in the form of the Hugging Face hub."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from huggingface_hub import parse_eval_result_entries

from specbench.commands import main
from specbench.input import InputError
from specbench.records.store import EVAL_RESULTS, MANIFEST, RECORDS
from specbench.report import build_report, sinks
from specbench.runs.job import job_at
from specbench.screen import DONE, FAILED, USAGE

TWO = {"pld": (4.0, 0.5, 0.001), "token_recycling": (20.0, 0.5, 9e-4)}
SECRET = "sk-0123456789"


def report(*arguments: object) -> int:
    return main(["report", *map(str, arguments), "--no-plots"])


def figures(folder: Path) -> pd.DataFrame:
    rows = pd.read_csv(folder / "summary.csv")
    return rows[rows["category"] == "overall"].set_index("method")


def test_results_for_the_hub_are_read_by_its_own_parser(make_run, capsys):
    run = make_run(
        methods=TWO, per_category=2, manifest={"warnings": ["load is high: times are unsafe"]}
    )
    assert report(run, "--to", "hub", "--dataset", "you/bench") == DONE
    assert f"hub: 2 files in {run / EVAL_RESULTS}" in capsys.readouterr().out
    assert report(run, "--to", "hub", "--dataset", "you/bench") == DONE  # again
    rows = figures(run)
    for method in TWO:
        text = (run / EVAL_RESULTS / f"tiny-mini-{method}.yaml").read_text(encoding="utf-8")
        found = parse_eval_result_entries(yaml.safe_load(text))
        assert [each.dataset_id for each in found] == ["you/bench"] * 2
        values = {each.task_id: each.value for each in found}
        assert values == pytest.approx(rows.loc[method, ["speedup", "mat"]].to_dict(), abs=1e-4)
        low, high = rows.loc[method, ["speedup_low", "speedup_high"]]
        assert (
            f"[{low:.2f}, {high:.2f}], 12 cases, temperature 0, float32, cpu, lossless 100 %"
            in found[0].notes
        )
        assert "The times are unsafe" in found[0].notes
        assert found[0].date == "2026-01-02T03:04:05+00:00"
    (run / EVAL_RESULTS / "tiny-mini-pld.yaml").write_text("- mine\n")
    assert report(run, "--to", "hub", "--dataset", "you/bench") == USAGE
    assert "exists and was not written by specbench" in capsys.readouterr().err
    assert (run / EVAL_RESULTS / "tiny-mini-pld.yaml").read_text() == "- mine\n"


def test_the_data_set_is_the_suite_s_own_or_named(make_run, capsys):
    run = make_run(methods=TWO, per_category=1)
    before = sorted(run.iterdir())
    assert report(run, "--to", "hub") == USAGE
    assert (
        "report.dataset=OWNER/NAME, or specbench report --dataset OWNER/NAME"
        in capsys.readouterr().err
    )
    assert sorted(run.iterdir()) == before
    manifest = json.loads((run / MANIFEST).read_text())
    manifest["config"]["suite"] = {"hub": {"repo": "openai/gsm8k"}}
    (run / MANIFEST).write_text(json.dumps(manifest))
    assert report(run, "--to", "hub") == DONE
    text = (run / EVAL_RESULTS / "tiny-mini-pld.yaml").read_text(encoding="utf-8")
    assert parse_eval_result_entries(yaml.safe_load(text))[0].dataset_id == "openai/gsm8k"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["report.to=[wandb]"], "expected a list of mlflow, hub"),
        (["report.to=[hub]"], "suite mini is not a data set of the hub; name the one"),
        (["report.dataset=you/bench"], "has no effect with report.to="),
        (["report.to=[mlflow]"], "mlflow is not installed; pip install 'specbench[mlflow]'"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_the_run(monkeypatch, settings, message):
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    with pytest.raises(InputError) as refused:
        job_at(["method=[pld]", *settings])
    assert message in str(refused.value)


@pytest.fixture
def database(tmp_path, monkeypatch):
    """A local database of MLflow, and its client."""
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    return lambda: mlflow.MlflowClient(uri)


@pytest.mark.exhaustive
def test_mlflow_has_the_run_once_also_when_it_is_sent_again(make_run, database, capsys):
    run = make_run(methods=TWO, per_category=2)
    for _ in range(2):
        assert report(run, "--to", "mlflow") == DONE
    assert "mlflow: experiment specbench, run " in capsys.readouterr().out
    client = database()
    (logged,) = client.search_runs([client.get_experiment_by_name("specbench").experiment_id])
    assert logged.info.status == "FINISHED"
    assert logged.data.params["decode.max_new_tokens"] == "256"
    rows = figures(run)
    for method, name in itertools.product(
        TWO, ("speedup", "speedup_low", "mat", "tokens_per_s", "lossless")
    ):
        assert logged.data.metrics[f"{method}/{name}"] == pytest.approx(rows.loc[method, name])
    tags = {
        "model": "tiny",
        "suite": "mini",
        "version.torch": "2.9.0",
        "mlflow.source.git.commit": "c0ffee",
    }
    assert {**tags, "mlflow.user": ""}.items() <= logged.data.tags.items()
    assert "times vanilla" in logged.data.tags["mlflow.note.content"]
    names = {each.path for each in client.list_artifacts(logged.info.run_id)}
    assert names == {"report.html", "summary.csv", "tables"}


def test_mlflow_gets_no_name_of_a_user_or_a_folder(make_run, database, monkeypatch):
    monkeypatch.setenv("LOGNAME", "someone")
    monkeypatch.setattr(sys, "argv", ["/home/someone/bin/specbench"])
    run = make_run(methods=TWO, per_category=1)
    assert report(run, "--to", "mlflow") == DONE
    client = database()
    (logged,) = client.search_runs([client.get_experiment_by_name("specbench").experiment_id])
    assert logged.data.tags["mlflow.source.name"] == "specbench"
    assert "someone" not in json.dumps([logged.data.params, logged.data.tags])


def test_the_caller_s_mlflow_is_left_unchanged(make_run, monkeypatch):
    """A URL with a password is not printed by MLflow, and its environment is that of before."""
    mlflow_sink = pytest.importorskip("specbench.report.mlflow_sink")
    monkeypatch.setenv("MLFLOW_RUN_ID", "the caller's")
    seen = []
    monkeypatch.setattr(mlflow_sink, "log_report", lambda *_: seen.append(dict(os.environ)) or "x")
    before = dict(os.environ)
    sinks.log_to_mlflow(build_report([make_run(methods=TWO, per_category=1)], plots=False))
    assert seen[0]["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] == "true"
    assert "MLFLOW_RUN_ID" not in seen[0]
    assert dict(os.environ) == before


@pytest.mark.exhaustive
def test_mlflow_has_the_runs_of_a_sweep_below_one(make_run, database):
    runs = [
        make_run(f"sweep/{number}", methods=TWO, per_category=1, seed=number) for number in (1, 2)
    ]
    for run in runs:
        build_report([run], plots=False)
    assert report(runs[0].parent, "--to", "mlflow") == DONE
    client = database()
    logged = client.search_runs([client.get_experiment_by_name("specbench").experiment_id])
    (over,) = [each for each in logged if "specbench.runs" in each.data.tags]
    assert (over.info.run_name, over.data.metrics) == ("sweep", {})
    below = {each.info.run_name: each for each in logged if each is not over}
    for run in runs:
        assert below[run.name].data.tags["mlflow.parentRunId"] == over.info.run_id
        assert below[run.name].data.metrics["pld/mat"] == pytest.approx(
            figures(run).loc["pld", "mat"]
        )
        assert client.list_artifacts(below[run.name].info.run_id)


@pytest.mark.exhaustive
def test_a_server_that_does_not_answer_costs_no_result(make_run, database, monkeypatch, capsys):
    run = make_run(methods=TWO, per_category=1)
    records, uri = (run / RECORDS).read_bytes(), database().tracking_uri
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:{SECRET}@127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert report(run, "--to", "mlflow") == FAILED
    out = capsys.readouterr().out.replace("\n", " ")
    assert f"The results are complete; to send them: specbench report {run} --to mlflow" in out
    assert "127.0.0.1:9" in out
    assert SECRET not in out
    assert (run / "report.html").is_file()
    assert (run / RECORDS).read_bytes() == records
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert report(run, "--to", "mlflow") == DONE


def test_a_run_that_cannot_be_sent_is_complete_and_fails(tmp_path, monkeypatch, capsys):
    """A package of the name mlflow that ends with an error takes the place of the true one."""
    from specbench.commands import run as run_command

    for name in ("mlflow", "specbench.report.mlflow_sink"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mlflow.py").write_text("raise RuntimeError('the server is away')")
    given = ["model=tiny", "method=[pld]", "suite.first=1", "decode.max_new_tokens=8"]
    given += ["measure=quick", "report.plots=false", "report.to=[mlflow,hub]"]
    given += ["report.dataset=you/bench"]
    assert run_command.main([*given, f"hydra.run.dir={tmp_path / 'run'}"]) == FAILED
    out = capsys.readouterr().out.replace("\n", " ")
    assert (
        "not sent to mlflow: the database in this folder: RuntimeError: the server is away." in out
    )
    assert (tmp_path / "run/report.html").is_file()
    assert len(list((tmp_path / "run" / EVAL_RESULTS).glob("*.yaml"))) == 1
