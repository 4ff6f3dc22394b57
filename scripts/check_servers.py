"""Start a serving engine on the bundled pair, on loopback, and hold its rows to this harness's own runtime.

    python scripts/check_servers.py llama_cpp --install FOLDER
    python scripts/check_servers.py vllm --install FOLDER
    python scripts/check_servers.py transformers --program .venv/bin/python

The engine runs twice: plainly, and with the draft model, four tokens a draft (not transformers, which has no such
option). One run here decodes the same questions with vanilla, with ``speculative_sampling`` of four tokens, and with
both servers. The table has the verify steps of each row and whether ids are vanilla's. With exit code 1 steps or ids
differ. --install makes an environment of the engine's own below FOLDER, once: vLLM's takes 4 GB, llama.cpp's some
minutes of compiling. --program takes an engine that is there. llama.cpp needs the package gguf here, for its files.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.lab.serving_engines import (
    DRAFTING,
    ENGINES,
    LENGTH,
    OURS,
    PLAIN,
    compare_rows,
    copy_model,
    free_port,
    install,
    list_command,
    serving,
)
from specbench import run
from specbench.screen import with_exit_code
from specbench.types import InputError

METHOD = (f"method=[{OURS}]", f"method.{OURS}.length={LENGTH}", f"method.{OURS}.schedule=fixed")
QUICK = ("model=tiny", "model.threads=1", "suite.limit=4", "measure=quick", "measure.warmup=0", "report.plots=false")
PEER = "_target_: methods.server.method.ServerPeer"


@with_exit_code
def main() -> int:
    """Start, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--program", help="llama-server, or a Python that has the engine")
    where.add_argument("--install", type=Path, metavar="FOLDER", help="of the engine's own environment")
    parser.add_argument("overrides", nargs="*", default=[], help="of specbench")
    given = parser.parse_intermixed_args()
    program = install(given.engine, given.install) if given.install else given.program
    if shutil.which(program) is None:
        raise InputError(f"--program {program}: is no program; expected the engine's (see docs/servers.md)")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gguf = given.engine == "llama_cpp"
        target, draft = (copy_model(f"bundled:{name}", folder / name, gguf) for name in ("tiny", "tiny_draft"))
        rows = []
        for name, model in ((PLAIN, None), (DRAFTING, draft)):
            if model is None or given.engine != "transformers":
                port = free_port()
                command = list_command(given.engine, program, port, target, model)
                url = stack.enter_context(serving(command, port, folder))
                rows.append(f"+method.{name}={{{PEER}, url: '{url}'{'' if gguf else f', model: {target}'}}}")
        found = run(*METHOD, *QUICK, *rows, *given.overrides)
        return compare_rows([record for each in found.findings.runs for record in each.records])


if __name__ == "__main__":
    sys.exit(main())
