"""``transformers serve`` with the bundled model, started here: its answers are our vanilla's in float32."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from specbench import cli
from specbench.store import read_run
from specbench.target.load import locate

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
NEEDED = ("fastapi", "uvicorn", "openai")
BATCHING = ("--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "512")
START_S = 120.0

pytestmark = [
    pytest.mark.skipif(any(find_spec(name) is None for name in NEEDED), reason="transformers[serving] not installed"),
    pytest.mark.exhaustive,
    pytest.mark.slow,
]


def wait_for(url: str, process: subprocess.Popen) -> None:
    """Until the server answers; raises where it has ended or takes too long."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", trust_env=False).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise RuntimeError(f"{url}: no server after {START_S} s, exit code {process.poll()}")


@pytest.fixture(params=[(), BATCHING], ids=["plain", "batching"])
def served(request, tmp_path):
    """(URL, folder) of a server of the bundled model on loopback."""
    bundled, folder = Path(locate("bundled:tiny", "model.path")), tmp_path / "m"
    folder.mkdir()
    for name in FILES:  # the frozen table and datastore beside them are no weights of the model
        shutil.copy(bundled / name, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "hf/hub").mkdir(parents=True)  # without it /v1/models fails
    options = ("--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port), *request.param)
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder), *options]
    with (tmp_path / "log").open("wb") as log:
        home = os.environ | {"HF_HOME": str(tmp_path / "hf")}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=home)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, process)
        yield url, folder
    finally:
        process.terminate()
        process.wait(30)


def test_its_answers_are_vanillas(served, tmp_path):
    url, folder = served
    row = ["method=[server]", f"method.server.url={url}", f"method.server.model={folder}", "model=tiny"]
    few = ["suite.first=1", "suite.limit=1", "suite.categories=[qa,code]", "measure.control=false"]
    few += ["measure.warmup=1", "decode.max_new_tokens=45", "report.plots=false", f"hydra.run.dir={tmp_path}/run"]
    assert cli.main([*row, *few]) == 0
    records = [record for record in read_run(tmp_path / "run").records if record.method == "server"]
    assert {record.status for record in records} == {"ok"}
    assert all(record.lossless.equal and record.lossless.violations == 0 for record in records)
