"""Start a serving engine on the bundled pair, on loopback, and compare its rows with those of our own runtime.

    python -m scripts.lab servers llama_cpp --install FOLDER
    python -m scripts.lab servers vllm --install FOLDER
    python -m scripts.lab servers transformers --program .venv/bin/python

The engine runs twice: without drafts, and with the draft model, four tokens per draft (except transformers, which has
no such option). One run here decodes the same questions with vanilla, with ``speculative_sampling`` of four tokens, and
with both servers. The table has the verify steps of each row and whether its ids are vanilla's. The exit code is 1 if
steps or ids differ. --install makes a separate environment for the engine below FOLDER, once: vLLM's takes 4 GB,
llama.cpp's some minutes of compiling. --program takes an installed engine. llama.cpp needs the package gguf here, for
its files.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

import specbench
from methods.server.engine import PORT
from scripts.lab.materials import print_table
from specbench.models.load import locate
from specbench.records.record import CaseRecord
from specbench.types import InputError

ENGINES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("servers.yaml").read_text(encoding="utf-8"))
GGUF = ENGINES.pop("gguf")
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
LENGTH = 4  # tokens a draft
OURS, PLAIN, DRAFTING = "speculative_sampling", "server_plain", "server_draft"
METHOD = (f"method=[{OURS}]", f"method.{OURS}.length={LENGTH}", f"method.{OURS}.schedule=fixed")
QUICK = ("model=tiny", "model.threads=1", "suite.limit=4", "measure=quick", "measure.warmup=0", "report.plots=false")
PEER = "_target_: methods.server.method.ServerPeer"


def run(parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Start the engine twice, decode with it and here, and compare."""
    parser.add_argument("engine", choices=ENGINES)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--program", help="llama-server, or a Python that has the engine")
    where.add_argument("--install", type=Path, metavar="FOLDER", help="folder of the engine's own environment")
    parser.add_argument("overrides", nargs="*", default=[], help="of specbench")
    given = parser.parse_intermixed_args(arguments)
    program = install(given.engine, given.install) if given.install else given.program
    if shutil.which(program) is None:
        raise InputError(f"--program {program}: not a program; expected the engine's (see docs/servers.md)")
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        gguf = given.engine == "llama_cpp"
        (folder / "hub").mkdir()  # of the empty cache that engines look into
        target, draft = (copy_model(f"bundled:{name}", folder / name, gguf) for name in ("tiny", "tiny_draft"))
        rows = []
        for name, model in ((PLAIN, None), (DRAFTING, draft)):
            if model is None or given.engine != "transformers":
                command = list_command(given.engine, program, target, model)
                rows.append(f"+method.{name}={{{PEER}, command: {command}{'' if gguf else f', model: {target}'}}}")
        found = specbench.run(*METHOD, *QUICK, *rows, *given.overrides)
        return compare_rows([record for each in found.findings.runs for record in each.records])


def fill(command: str, **values: object) -> list[str]:
    """Split a command at spaces, and fill in its names."""
    return [word.format(**values) for word in command.split()]


def install(engine: str, folder: Path) -> str:
    """Make a separate environment for the engine below ``folder``, unless it exists; returns the engine's program.

    Raises InputError for an engine that needs no environment, and if a command fails.
    """
    if "install" not in ENGINES[engine]:
        raise InputError(f"--install: {engine} is a package of this environment; expected --program {sys.executable}")
    home = folder.absolute() / engine
    home.mkdir(parents=True, exist_ok=True)
    finished = home / "finished"  # an interrupted command may leave a program behind
    if not finished.is_file():
        steps = [fill(command, home=home) for command in ENGINES[engine]["install"]]
        for step in ([sys.executable, "-m", "venv", "--clear", str(home / "env")], *steps):
            print("+", shlex.join(step), flush=True)
            if code := subprocess.run(step).returncode:
                raise InputError(f"--install {folder}: {shlex.join(step)}: exit code {code}; its output is above")
        finished.touch()
    return ENGINES[engine]["program"].format(home=home)


def list_command(engine: str, program: str, target: Path, draft: Path | None) -> str:
    """Return the words of the command that starts the engine, as JSON. draft: its folder; None = plain decoding."""
    command = ENGINES[engine]["serve"] + (f" {ENGINES[engine]['draft']}" if draft else "")
    words = fill(command, program=program, port=PORT, target=target, draft=draft, length=LENGTH)
    own = {"HF_HOME": target.parent, "HF_HUB_OFFLINE": 1, "VLLM_CPU_KVCACHE_SPACE": 1, "OMP_NUM_THREADS": 1}
    return json.dumps(["env", *(f"{name}={value}" for name, value in own.items()), *words])


def copy_model(named: str, folder: Path, as_gguf: bool) -> Path:
    """Copy only the model's own files, since some engines read every ``*.safetensors`` of a folder."""
    source = Path(locate(named, "model.path"))
    folder.mkdir()
    for name in FILES:
        shutil.copy(source / name, folder)
    if as_gguf:
        write_gguf(folder, folder.with_name(f"{folder.name}.gguf"))
    return folder


def compare_rows(records: Sequence[CaseRecord]) -> int:
    """Print the table; returns 1 if the drafting server's steps differ from ours, or ids of any row from vanilla's."""
    steps: dict[str, int] = {}
    rows, wrong = [], 0
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
        rows.append([name, len(turns), steps[name], accepted, kept, f"{same} of {len(own)}"])
    columns = ("row", "requests", "verify steps", "accepted", "kept account", "ids are vanilla's")
    print_table(columns, rows, left=(0, 4))
    return int(wrong > 0 or steps.get(DRAFTING, steps[OURS]) != steps[OURS])


def write_gguf(folder: Path, path: Path) -> None:
    """Write a model of the Llama family in llama.cpp's format, in single precision, with its byte-level BPE tokenizer.

    llama.cpp splits digits differently, so it must get ids, not text. Raises InputError without the package gguf.
    """
    try:
        from gguf import GGUFWriter, TokenType  # an extra that nothing else needs
    except ImportError as error:
        raise InputError(
            "the package gguf, which writes the files of llama.cpp, is not installed: pip install gguf"
        ) from error

    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    writer = GGUFWriter(path, "llama")
    writer.add_name(folder.name)
    for theirs, ours in GGUF["sizes"].items():
        getattr(writer, f"add_{theirs}")(config[ours])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    special = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    names = tokenizer["model"]["vocab"] | special
    tokens = sorted(names, key=names.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if each in special else TokenType.NORMAL for each in tokens])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    writer.add_add_bos_token(False)
    for name, weight in load_file(folder / "model.safetensors").items():
        writer.add_tensor(*_renamed(name, weight.astype(np.float32), config))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()


def _renamed(name: str, weight: np.ndarray, config: dict) -> tuple[str, np.ndarray]:
    """A tensor's name and rows in llama.cpp, which rotates neighbouring pairs, not pairs half a head apart."""
    stem = name.removesuffix(".weight")
    if stem in GGUF["outside"]:
        return f"{GGUF['outside'][stem]}.weight", weight
    _, _, number, part = stem.split(".", 3)
    heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}.get(part)
    if heads:
        shape = config[heads], 2, config["head_dim"] // 2
        weight = weight.reshape(*shape, -1).swapaxes(1, 2).reshape(weight.shape)
    return f"blk.{number}.{GGUF['layer'][part]}.weight", weight
