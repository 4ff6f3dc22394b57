"""``transformers serve`` with the bundled model, started by a run: its answers are our vanilla's in float32."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import pytest

from scripts.lab.servers import copy_model, list_command
from specbench.commands import run as run_command
from specbench.records.store import read_run

NEEDED = ("fastapi", "uvicorn", "openai")

pytestmark = [
    pytest.mark.skipif(any(find_spec(name) is None for name in NEEDED), reason="transformers[serving] not installed"),
    pytest.mark.exhaustive,
    pytest.mark.slow,
]


@pytest.mark.parametrize("batching", [False, True], ids=["plain", "batching"])
def test_its_answers_are_vanillas(batching, tmp_path):
    folder = copy_model("bundled:tiny", tmp_path / "m", as_gguf=False)
    (tmp_path / "hub").mkdir()
    words = json.loads(list_command("transformers", sys.executable, folder, None))
    command = json.dumps(words if batching else words[: words.index("--continuous-batching")])
    row = ["method=[server]", f"method.server.command={command}", f"method.server.model={folder}", "model=tiny"]
    few = ["suite.first=1", "suite.limit=1", "suite.categories=[qa,code]", "measure.control=false"]
    few += ["measure.warmup=1", "decode.max_new_tokens=45", "report.plots=false", f"hydra.run.dir={tmp_path}/run"]
    assert run_command.main([*row, *few]) == 0
    records = [record for record in read_run(tmp_path / "run").records if record.method == "server"]
    assert {record.status for record in records} == {"ok"}
    assert all(record.lossless.equal and record.lossless.violations == 0 for record in records)
    assert (tmp_path / "run" / "logs" / "server.log").stat().st_size > 0
