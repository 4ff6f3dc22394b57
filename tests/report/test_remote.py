"""Runs that are exported to an object store, and read there again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import fsspec
import pytest
from report.conftest import THREE

from specbench.commands import main
from specbench.records.store import MANIFEST, RECORDS, RunError
from specbench.report import locate
from specbench.report.locate import UNFINISHED, export_runs, fetch_runs
from specbench.screen import DONE, USAGE

PLD = {"pld": (4.0, 0.5, 0.001)}


@pytest.fixture
def store():
    """The files of memory://, empty."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def report(*arguments: object) -> int:
    return main(["report", *map(str, arguments), "--no-plots"])


@pytest.mark.parametrize("kind", [pytest.param("memory", marks=pytest.mark.exhaustive), "file"])
def test_an_export_is_read_back_with_equal_figures(make_run, store, tmp_path, capsys, kind):
    run = make_run(methods=PLD, per_category=1)
    assert report(run) == DONE
    url = "memory://bucket/a/run" if kind == "memory" else (tmp_path / "bucket/run").as_uri()
    for _ in range(2):  # repeated, it changes nothing
        assert main(["export", str(run), url]) == DONE
        assert f"files in {url}" in capsys.readouterr().out
        assert report(url, "--output", tmp_path / "back") == DONE
        for name in ("summary.csv", "tables/overall.csv", "tables/overall.md"):
            assert (tmp_path / "back" / name).read_bytes() == (run / name).read_bytes()
    files, root = fsspec.core.url_to_fs(url)
    written = {path.removeprefix(root).lstrip("/") for path in files.find(root)}
    assert written == {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    assert {MANIFEST, RECORDS, "report.html", "tables/overall.tex"} <= written


def test_a_run_that_has_grown_replaces_its_export(make_run, store, tmp_path):
    run = make_run(methods=PLD, per_category=2)
    more = (run / RECORDS).read_bytes()
    lines = more.splitlines(keepends=True)
    (run / RECORDS).write_bytes(b"".join(lines[: len(lines) // 2]))
    export_runs(run, "memory://bucket/run")
    (run / RECORDS).write_bytes(more)
    export_runs(run, "memory://bucket/run")
    assert store.cat_file(f"/bucket/run/{RECORDS}") == more
    (run / RECORDS).write_bytes(b"".join(lines[: len(lines) // 2]))
    with pytest.raises(RunError, match="has more records of this run than"):
        export_runs(run, "memory://bucket/run")
    assert store.cat_file(f"/bucket/run/{RECORDS}") == more


def test_a_sweep_is_exported_with_its_report(make_run, store, tmp_path):
    runs = [make_run(f"sweep/{number}", methods=PLD, per_category=1, seed=number) for number in (1, 2)]
    sweep = runs[0].parent
    assert report(sweep) == DONE
    assert main(["export", str(sweep), "memory://bucket/sweep"]) == DONE
    assert report("memory://bucket/sweep", "--output", tmp_path / "back") == DONE
    assert (tmp_path / "back/summary.csv").read_bytes() == (sweep / "report/summary.csv").read_bytes()
    assert store.isfile("/bucket/sweep/report/report.html")
    with pytest.raises(RunError, match="another run or other files"):  # its folder has runs, and is none
        export_runs(runs[0], "memory://bucket/sweep")


@pytest.mark.parametrize("sweep", [False, True])
@pytest.mark.parametrize("killed_at", [1, 3])
def test_a_killed_export_is_no_run_until_it_is_repeated(
    make_run, store, tmp_path, monkeypatch, capsys, sweep, killed_at
):
    """Each time: of the first export, and of a repetition over an older one."""
    runs = [make_run(f"sweep/{number}", methods=PLD, per_category=1) for number in ((1, 2) if sweep else (1,))]
    directory, url = runs[0].parent if sweep else runs[0], "memory://bucket/x"
    put = type(store).put_file
    for again in (False, True):
        calls = []

        def kill(self, *given, calls=calls, **options):
            calls.append(given)
            if len(calls) == killed_at:
                raise KeyboardInterrupt
            put(self, *given, **options)

        (runs[0] / "summary.csv").write_text("model,suite,\n")
        (runs[0] / "report.html").write_text("a page")
        monkeypatch.setattr(type(store), "put_file", kill)
        assert main(["export", str(directory), url]) == 130
        monkeypatch.setattr(type(store), "put_file", put)
        assert any(path.endswith(UNFINISHED) for path in store.find("/bucket/x"))
        assert any(path.endswith(MANIFEST) for path in store.find("/bucket/x")) is again
        assert report(url, "--output", tmp_path / "back") == USAGE
        assert "an export to it has not ended; repeat" in capsys.readouterr().err
        assert main(["export", str(directory), url]) == DONE
        assert report(url, "--output", tmp_path / "back") == DONE
        assert not any(path.endswith(UNFINISHED) for path in store.find("/bucket/x"))


@pytest.mark.parametrize("there", ["another run", "another run of that second", "other files", "a cut mark"])
def test_a_folder_with_something_else_is_refused_unchanged(make_run, store, tmp_path, there):
    run = make_run(methods=PLD, per_category=1)
    if there == "other files":
        store.pipe_file("/bucket/run/notes.txt", b"mine")
    elif there == "a cut mark":
        store.pipe_file(f"/bucket/run/{UNFINISHED}", b"")
        store.pipe_file(f"/bucket/run/{RECORDS}", b"mine")
    else:
        date = {} if there.endswith("second") else {"manifest": {"created": "2026-02-02T03:04:05+00:00"}}
        export_runs(make_run("other", methods=THREE, per_category=1, seed=1, **date), "memory://bucket/run")
    before = {path: store.cat_file(path) for path in store.find("/bucket")}
    with pytest.raises(RunError, match="has another run or other files; expected an empty folder"):
        export_runs(run, "memory://bucket/run")
    assert {path: store.cat_file(path) for path in store.find("/bucket")} == before


def test_a_sweep_overwrites_no_file_of_others(make_run, tmp_path):
    for name in ("one", "two"):
        make_run(f"sweep/{name}", THREE)
    there = tmp_path / "there" / "report" / "report.html"
    there.parent.mkdir(parents=True)
    there.write_text("mine")
    with pytest.raises(RunError, match="has files that are not of this sweep"):
        export_runs(tmp_path / "sweep", f"file://{tmp_path}/there")
    assert there.read_text() == "mine"


@pytest.mark.parametrize("place", ["run", "run/inside", "."])
def test_a_run_is_not_exported_onto_itself(make_run, tmp_path, place):
    run = make_run("run", THREE)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(RunError, match="overlaps with"):
        export_runs(run, f"file://{tmp_path}/{place}")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_keys_in_urls_are_not_printed(make_run, store, tmp_path, capsys):
    run = make_run("run", THREE)
    assert main(["export", str(run), "memory://user:SECRET@x/run?token=SECRET"]) == DONE
    assert main(["export", str(run), "ftp://user:SECRET@127.0.0.1:9/run"]) == USAGE
    found = capsys.readouterr()
    assert "SECRET" not in found.out + found.err


def test_an_export_names_nobody(make_run, store, monkeypatch):
    """The manifest of a run of an older version, which has the home directory and a key."""
    monkeypatch.setenv("MY_API_KEY", "sk-0123456789")
    launch = f"{Path.home()}/bin/specbench sk-0123456789"
    if len(Path.home().parts) < 2:
        pytest.skip("no home directory")
    run = make_run(methods=PLD, per_category=1, manifest={"warnings": [launch]})
    export_runs(run, "memory://bucket/run")
    text = store.cat_file(f"/bucket/run/{MANIFEST}").decode()
    assert json.loads(text)["warnings"] == ["~/bin/specbench $MY_API_KEY"]


class DriverError(Exception):
    """As botocore's, which have no base but Exception."""


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("bucket/run", "bucket/run: no URL; expected a folder of a store, such as s3://BUCKET/RUN"),
        ("nothing://bucket", "run nothing://bucket: cannot be written (Protocol not known: nothing"),
        ("memory://bucket/run", "run memory://bucket/run: cannot be written (no credentials); expected a folder"),
    ],
)
def test_a_store_that_cannot_be_written(make_run, store, monkeypatch, capsys, url, message):
    run = make_run(methods=PLD, per_category=1)

    def fail(*_, **__):
        raise DriverError("no credentials")

    monkeypatch.setattr(type(store), "find", fail)
    assert main(["export", str(run), url]) == USAGE
    assert message in capsys.readouterr().err


def test_a_mistake_of_ours_is_no_error_of_the_store(make_run, store, monkeypatch):
    monkeypatch.setattr(locate, "_put", lambda *_: {}["a mistake"])
    with pytest.raises(KeyError):
        export_runs(make_run(methods=PLD, per_category=1), "memory://bucket/run")


@pytest.mark.exhaustive
def test_a_real_server_of_s3(make_run, tmp_path, monkeypatch, capsys):
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "a-long-secret", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_ENDPOINT_URL": f"http://{host}:{port}", "NO_PROXY": host}.items():
        monkeypatch.setenv(name, value)
    import boto3

    try:
        boto3.client("s3").create_bucket(Bucket="bucket")
        run = make_run(methods=PLD, per_category=1)
        assert report(run) == DONE
        for _ in range(2):
            assert main(["export", str(run), "s3://bucket/runs/1"]) == DONE
        fetched = fetch_runs("s3://bucket/runs/1", tmp_path)
        assert (fetched / "1" / RECORDS).read_bytes() == (run / RECORDS).read_bytes()
        assert report("s3://bucket/runs/1", "--output", tmp_path / "back") == DONE
        assert (tmp_path / "back/summary.csv").read_bytes() == (run / "summary.csv").read_bytes()
        shutil.rmtree(run)
        other = make_run(methods=PLD, per_category=1, seed=1)
        assert main(["export", str(other), "s3://bucket/runs/1"]) == USAGE
        assert main(["export", str(other), "s3://nobucket/1"]) == USAGE
        for name in keys:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        assert main(["export", str(other), "s3://bucket/2"]) == USAGE
        assert "Unable to locate credentials" in capsys.readouterr().err
    finally:
        server.stop()
        fsspec.get_filesystem_class("s3").clear_instance_cache()
