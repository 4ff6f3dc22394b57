"""``transformers serve`` with the bundled model, started here: its answers are our vanilla's in float32."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from scripts.lab.servers import copy_model, free_port, list_command, serving
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
    folder, port = copy_model("bundled:tiny", tmp_path / "m", as_gguf=False), free_port()
    command = list_command("transformers", sys.executable, port, folder, None)
    with serving(command if batching else command[: command.index("--continuous-batching")], port, tmp_path) as url:
        row = ["method=[server]", f"method.server.url={url}", f"method.server.model={folder}", "model=tiny"]
        few = ["suite.first=1", "suite.limit=1", "suite.categories=[qa,code]", "measure.control=false"]
        few += ["measure.warmup=1", "decode.max_new_tokens=45", "report.plots=false", f"hydra.run.dir={tmp_path}/run"]
        assert run_command.main([*row, *few]) == 0
    records = [record for record in read_run(tmp_path / "run").records if record.method == "server"]
    assert {record.status for record in records} == {"ok"}
    assert all(record.lossless.equal and record.lossless.violations == 0 for record in records)
