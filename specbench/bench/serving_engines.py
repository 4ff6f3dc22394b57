"""Serving engines started on loopback with the bundled models, and their rows beside ours."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from specbench.bench.gguf_file import write_gguf
from specbench.record import CaseRecord
from specbench.target.load import locate
from specbench.types import InputError

ENGINES = ("llama_cpp", "vllm", "transformers")
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
BATCHING = ("--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "512")
START_S = 300.0
LENGTH = 4  # tokens a draft
OURS, PLAIN, DRAFTING = "speculative_sampling", "server_plain", "server_draft"


def list_command(engine: str, program: str, port: int, target: Path, draft: Path | None) -> list[str]:
    """What starts the engine. draft: the draft model's folder; None = plain decoding."""
    place = ["--host", "127.0.0.1", "--port", str(port)]
    if engine == "llama_cpp":
        cache = ["-t", "1", "-np", "4", "-c", "8192", "-ctk", "f32", "-ctv", "f32", "--metrics"]
        speculation = ["--spec-type", "draft-simple", "-md", f"{draft}.gguf", "--spec-draft-n-max", str(LENGTH)]
        speculation += ["--spec-draft-n-min", str(LENGTH), "-ctkd", "f32", "-ctvd", "f32"]
        return [program, "-m", f"{target}.gguf", *place, *cache, *(speculation if draft else [])]
    if engine == "vllm":
        given = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": LENGTH}
        speculation = ["--speculative-config", json.dumps(given), "--per-request-spec-decode-metrics", "detailed"]
        server = [program, "-m", "vllm.entrypoints.openai.api_server", "--model", str(target), *place]
        server += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"]
        return server + (speculation if draft else [])
    server = [program, "-m", "transformers.cli.transformers", "serve", str(target), *place]
    return [*server, "--device", "cpu", "--dtype", "float32", *BATCHING]


@contextlib.contextmanager
def serving(command: Sequence[str], port: int, folder: Path) -> Iterator[str]:
    """The URL of the engine, once it answers; it is ended behind. Raises InputError where it does not start."""
    (folder / "hub").mkdir(exist_ok=True)
    home = {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    log, url = folder / f"{port}.log", f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | home)
    try:
        end = time.monotonic() + START_S
        while not answers(url):
            if process.poll() is not None or time.monotonic() > end:
                last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                raise InputError(f"{command[0]}: no server, exit code {process.poll()}; its last lines:\n{last}")
            time.sleep(0.3)
        yield url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    """Whether a server is ready there."""
    try:
        return httpx.get(f"{url}/health", trust_env=False).is_success
    except httpx.HTTPError:
        return False


def copy_model(named: str, folder: Path, as_gguf: bool) -> Path:
    """A folder of the model's own files alone: some engines read every ``*.safetensors`` beside them."""
    source = Path(locate(named, "model.path"))
    folder.mkdir()
    for name in FILES:
        shutil.copy(source / name, folder)
    if as_gguf:
        write_gguf(folder, folder.with_name(f"{folder.name}.gguf"))
    return folder


def free_port() -> int:
    """A port of loopback that nothing uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def compare_rows(records: Sequence[CaseRecord]) -> int:
    """Print the table; 1 where the drafting server's steps are not ours, or ids of any row are not vanilla's."""
    steps, wrong = {}, 0
    print("| row | requests | verify steps | accepted | kept account | ids are vanilla's |\n|:--|--:|--:|--:|:--|--:|")
    for name in (OURS, PLAIN, DRAFTING):
        own = [record for record in records if record.method == name]
        if not own:
            continue
        turns = [turn for record in own for turn in record.turns]
        steps[name] = sum(len(turn.accept) for turn in turns)
        accepted = sum(sum(turn.accept) - len(turn.accept) for turn in turns)
        same = sum(record.lossless is not None and record.lossless.equal for record in own)
        wrong += same < len(own)
        accounts = sorted({key for turn in turns for key in turn.stats if key.startswith("source_")})
        kept = ", ".join(key.removeprefix("source_") for key in accounts)
        print(f"| {name} | {len(turns)} | {steps[name]} | {accepted} | {kept} | {same} of {len(own)} |")
    return int(wrong > 0 or steps.get(DRAFTING, steps[OURS]) != steps[OURS])
