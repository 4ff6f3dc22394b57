"""``transformers serve`` with the bundled model, started by a run: its answers are our vanilla's in
float32.
"""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec

import pytest

from specbench.commands import run as run_command
from specbench.records.store import read_run
from specbench.runs.config import PACKAGE

NEEDED = ("fastapi", "uvicorn", "openai")
SERVE = [sys.executable, "-m", "transformers.cli.transformers", "serve"]
LOOPBACK = ["--host", "127.0.0.1", "--port", "{port}", "--device", "cpu", "--dtype", "float32"]
BATCHING = ["--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "512"]

pytestmark = [
    pytest.mark.skipif(
        any(find_spec(name) is None for name in NEEDED),
        reason="transformers[serving] not installed",
    ),
    pytest.mark.exhaustive,
    pytest.mark.slow,
]


@pytest.mark.parametrize("batching", [False, True], ids=["plain", "batching"])
def test_its_answers_are_vanillas(batching, tmp_path):
    folder = tmp_path / "m"
    tables = shutil.ignore_patterns("datastore*", "frozen_table*")  # not the model's weights
    shutil.copytree(PACKAGE / "assets/tiny", folder, ignore=tables)
    (tmp_path / "hub").mkdir()  # of the empty cache
    own = ["env", f"HF_HOME={tmp_path}", "HF_HUB_OFFLINE=1", "OMP_NUM_THREADS=1"]
    command = json.dumps([*own, *SERVE, str(folder), *LOOPBACK, *(BATCHING if batching else ())])
    row = [
        "method=[server]",
        f"method.server.command={command}",
        f"method.server.model={folder}",
        "model=tiny",
    ]
    few = ["suite.first=1", "suite.limit=1", "suite.categories=[qa,code]", "measure.control=false"]
    few += [
        "measure.warmup=1",
        "decode.max_new_tokens=45",
        "report.plots=false",
        f"hydra.run.dir={tmp_path}/run",
    ]
    assert run_command.main([*row, *few]) == 0
    records = [record for record in read_run(tmp_path / "run").records if record.method == "server"]
    assert {record.status for record in records} == {"ok"}
    assert all(record.lossless.equal and record.lossless.violations == 0 for record in records)
    assert (tmp_path / "run" / "logs" / "server.log").stat().st_size > 0
