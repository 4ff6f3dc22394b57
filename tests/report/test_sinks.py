"""Reports that are sent to MLflow, or written in the form of the Hugging Face hub."""

from __future__ import annotations

import itertools
import json
import socket
from pathlib import Path

import pandas as pd
import pytest
import yaml
from huggingface_hub import parse_eval_result_entries

from specbench.commands import main
from specbench.input import InputError
from specbench.records.store import EVAL_RESULTS, MANIFEST, RECORDS
from specbench.report import build_report, sinks
from specbench.report.sinks import log_to_mlflow
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
    run = make_run(methods=TWO, per_category=2, manifest={"warnings": ["load is high: times are unsafe"]})
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
        assert f"[{low:.2f}, {high:.2f}], 12 cases, temperature 0, float32, cpu, lossless 100 %" in found[0].notes
        assert "The times are unsafe" in found[0].notes
        assert found[0].date == "2026-01-02T03:04:05+00:00"


def test_a_file_of_that_name_is_not_overwritten(make_run, capsys):
    run = make_run(methods=TWO, per_category=1)
    (run / EVAL_RESULTS).mkdir()
    own = run / EVAL_RESULTS / "tiny-mini-pld.yaml"
    own.write_text("- mine\n")
    assert report(run, "--to", "hub", "--dataset", "you/bench") == USAGE
    assert "exists and was not written by specbench" in capsys.readouterr().err
    assert own.read_text() == "- mine\n"


def test_the_data_set_is_the_suite_s_own_or_named(make_run, capsys):
    run = make_run(methods=TWO, per_category=1)
    before = sorted(run.iterdir())
    assert report(run, "--to", "hub") == USAGE
    assert "report.dataset=OWNER/NAME, or specbench report --dataset OWNER/NAME" in capsys.readouterr().err
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
        (["report.to=[hub]", "report.dataset=bench"], "report.dataset=bench: expected OWNER/NAME"),
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
def given(monkeypatch):
    """What the client of MLflow was given, which is not started."""
    found: list[dict] = []
    monkeypatch.setattr(sinks, "_run_client", lambda values: found.append(values) or "mlflow: there")
    return found


def test_a_run_s_settings_figures_and_files_go_to_mlflow(make_run, given):
    run = make_run(methods=TWO, per_category=2)
    found = build_report([run], plots=False)
    log_to_mlflow(found)
    (logged,) = given[0]["runs"]
    assert logged["params"]["decode.max_new_tokens"] == "256"
    assert {"model": "tiny", "suite": "mini", "mlflow.source.git.commit": "c0ffee"}.items() <= logged["tags"].items()
    assert logged["tags"]["version.torch"] == "2.9.0"
    rows = figures(run)
    for method, name in itertools.product(TWO, ("speedup", "speedup_low", "speedup_high", "mat", "tokens_per_s")):
        assert logged["metrics"][f"{method}/{name}"] == pytest.approx(rows.loc[method, name])
    assert logged["metrics"]["pld/lossless"] == 1
    assert {("summary.csv", ""), ("report.html", ""), ("overall.tex", "tables")} <= {
        (Path(file).name, folder) for file, folder in logged["files"]
    }


def test_each_run_of_a_sweep_has_its_own_figures(make_run, given):
    runs = [make_run(f"sweep/{number}", methods=TWO, per_category=1, seed=number) for number in (1, 2)]
    for run in runs:
        build_report([run], plots=False)
    log_to_mlflow(build_report(runs, plots=False))
    over, *each = given[0]["runs"]
    assert (over["name"], over["metrics"]) == ("sweep", {})
    assert any(file.endswith("report/report.html") for file, _ in over["files"])
    for run, logged in zip(runs, each, strict=True):
        assert logged["metrics"]["pld/mat"] == pytest.approx(figures(run).loc["pld", "mat"])
        assert [str(run / "report.html"), ""] in [list(file) for file in logged["files"]]
    log_to_mlflow(build_report(runs, runs[0].parent, plots=False))  # as a search for a load reports
    assert given[1]["runs"][0]["name"] == "sweep"


def test_nobody_and_no_key_is_logged(make_run, given, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", SECRET)
    monkeypatch.setenv("HOME", "/home/someone")
    settings = {"model": {"path": "/home/someone/model", "revision": SECRET}, "decode": {"temperature": 0.0}}
    run = make_run(methods=TWO, per_category=1, manifest={"config": settings})
    log_to_mlflow(build_report([run], plots=False))
    (logged,) = given[0]["runs"]
    assert (logged["params"]["model.path"], logged["params"]["model.revision"]) == ("~/model", "$MY_API_KEY")
    texts = [Path(file).read_text(encoding="utf-8") for file, _ in logged["files"]]
    for text in (*texts, json.dumps({**logged, "files": []})):
        assert SECRET not in text
        assert "/home/someone" not in text


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
    assert logged.data.metrics["pld/speedup_low"] == pytest.approx(figures(run).loc["pld", "speedup_low"])
    assert "times vanilla" in logged.data.tags["mlflow.note.content"]
    names = {each.path for each in client.list_artifacts(logged.info.run_id)}
    assert {"report.html", "summary.csv", "tables"} <= names


@pytest.mark.exhaustive
def test_mlflow_has_the_runs_of_a_sweep_below_one(make_run, database):
    runs = [make_run(f"sweep/{number}", methods=TWO, per_category=1) for number in (1, 2)]
    sweep = runs[0].parent
    assert report(sweep, "--to", "mlflow") == DONE
    client = database()
    logged = client.search_runs([client.get_experiment_by_name("specbench").experiment_id])
    parents = [each.data.tags.get("mlflow.parentRunId") for each in logged]
    (over,) = [each.info.run_id for each in logged if "specbench.runs" in each.data.tags]
    assert sorted(parents, key=str) == sorted([None, over, over], key=str)


@pytest.mark.exhaustive
@pytest.mark.parametrize("server", ["closed", "silent"])
def test_a_server_that_does_not_answer_costs_no_result_and_bounded_time(
    make_run, database, monkeypatch, capsys, server
):
    run = make_run(methods=TWO, per_category=1)
    records = (run / RECORDS).read_bytes()
    uri = database().tracking_uri
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1] if server == "silent" else 9
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:{SECRET}@127.0.0.1:{port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with monkeypatch.context() as patched:  # the second call may take its time
            patched.setattr(sinks, "LONGEST_S", 15 if server == "closed" else 6)
            assert report(run, "--to", "mlflow") == FAILED
    out = capsys.readouterr().out.replace("\n", " ")
    assert f"The results are complete; to send them: specbench report {run} --to mlflow" in out
    assert ("no answer within 6 s" if server == "silent" else "Connection refused") in out
    assert SECRET not in out
    assert (run / "report.html").is_file()
    assert (run / RECORDS).read_bytes() == records
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert report(run, "--to", "mlflow") == DONE


def test_a_run_that_cannot_be_sent_is_complete_and_fails(tmp_path, monkeypatch, capsys):
    """A package of the name mlflow that ends with an error takes the place of the true one."""
    from specbench.commands import run as run_command

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sinks, "CLIENT", {"PYTHONPATH": str(tmp_path)})
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "mlflow.py").write_text("raise RuntimeError('the server is away')")
    settings = ["method=[pld]", "suite.limit=1", "suite.categories=[qa]", "decode.max_new_tokens=8", "measure=quick"]
    given = [*settings, "model=tiny", "report.plots=false", "report.to=[mlflow,hub]", "report.dataset=you/bench"]
    assert run_command.main([*given, f"hydra.run.dir={tmp_path / 'run'}"]) == FAILED
    out = capsys.readouterr().out.replace("\n", " ")
    assert "not sent to mlflow: the database in this folder: RuntimeError: the server is away." in out
    assert (tmp_path / "run/report.html").is_file()
    assert len(list((tmp_path / "run" / EVAL_RESULTS).glob("*.yaml"))) == 1
