"""Check the GPU path on a GPU: the Triton kernels, the latency of each engine, and the methods.

    python -m scripts.lab gpu --out day
    python -m scripts.lab gpu --parts kernels-float16 latency-fused --limit 300
    python -m scripts.lab gpu --device cpu   # tiny sizes, the kernels in Triton's interpreter

kernels-DTYPE: each Triton kernel against float64 on drawn cases, as ``engine.attention=auto``
checks them, and on the shapes of a 7B; the error over its limit is at most 1. latency-ENGINE:
``specbench profile``, T(tokens fed) of the eager engine, and of the fast one with each of its
attentions. methods: methods of each kind compared by ``specbench``, with the lossless check.
Further arguments are settings of model and engine for both commands.

Each part is a process with a time limit. What it prints is shown and written to OUT/PART.txt line
by line, so a part that fails, dies or is ended loses only its later lines. The exit code is 1 if
one did.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from scripts.lab.bench import print_table
from specbench.input import InputError
from specbench.measure.clock import Clock

ROOT = Path(__file__).resolve().parents[2]
DTYPES = ("float32", "float16", "bfloat16")
FAST = ("engine=fast", "engine.compiled=false")
ENGINES: Mapping[str, tuple[str, ...]] = {
    "eager": ("engine=eager",),
    "sdpa": (*FAST, "engine.attention=sdpa"),
    "triton": (*FAST, "engine.attention=triton"),
    "fused": (*FAST, "engine.attention=fused"),
}
KERNELS = tuple(f"kernels-{dtype}" for dtype in DTYPES)
PARTS = (*KERNELS, *(f"latency-{name}" for name in ENGINES), "methods")
DONE = "done"


@dataclass(frozen=True, slots=True)
class Size:
    """The measurements on a device. profile, methods: arguments of the commands."""

    parts: tuple[str, ...]
    model: str
    profile: tuple[str, ...]
    methods: tuple[str, ...]
    environment: Mapping[str, str]


METHODS = "pld,suffix_decoding,token_recycling,speculative_sampling,eagle,eagle3,pard,mtp"
SIZES = {
    "cuda": Size(
        PARTS,
        "tiny_7b",
        ("--fed", "1,2,4,8,16,32,64,96,128"),
        (
            f"method=[{METHODS},hf_generate]",
            "suite.limit=1",
            "measure=quick",
            "decode.max_new_tokens=128",
        ),
        {},
    ),
    "cpu": Size(
        tuple(part for part in PARTS if part != "kernels-bfloat16"),  # wrong in the interpreter
        "tiny",
        ("--fed", "1,4", "--contexts", "25", "--rounds", "2"),
        ("method=[pld,eagle3]", "suite.first=1", "measure=quick", "decode.max_new_tokens=12"),
        {"TRITON_INTERPRET": "1"},
    ),
}


def run(parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Run the parts one after another; returns 1 if one of them did not end well."""
    parser.add_argument("overrides", nargs="*", help="settings of model and engine, for specbench")
    parser.add_argument("--device", choices=SIZES, default="cuda")
    parser.add_argument("--parts", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--limit", type=float, default=600, help="[s] of a part")
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder of the results")
    parser.add_argument("--kernels", choices=DTYPES, help="check these in this process, and end")
    given = parser.parse_intermixed_args(arguments)
    if given.kernels:
        return check_kernels(getattr(torch, given.kernels), torch.device(given.device))
    if given.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this machine has no GPU that torch can use; --device cpu")
    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the running part ends too
    environment, ends = SIZES[given.device].environment, dict[str, str]()
    for part in given.parts or SIZES[given.device].parts:
        command = find_command(part, given.device, given.overrides, given.out.resolve())
        ends[part] = run_part(part, command, environment, given.limit, given.out)
    print_table(("part", "end"), ends.items(), left=(0, 1))
    return int(any(end != DONE for end in ends.values()))


def find_command(part: str, device: str, overrides: Sequence[str], out: Path) -> list[str]:
    """Return the arguments of Python for a part."""
    kind, _, name = part.partition("-")
    if kind == "kernels":
        return ["-m", "scripts.lab", "gpu", "--kernels", name, "--device", device]
    size = SIZES[device]
    settings = [f"model={size.model}", f"model.device={device}", *overrides]
    if kind == "latency":
        profile = ["profile", *settings, *ENGINES[name], *size.profile]
        return ["-m", "specbench", *profile, "--out", str(out / part)]
    run_dir = f"hydra.run.dir={out / part}"
    return ["-m", "specbench", *settings, *size.methods, run_dir, "measure.fresh=true"]


def run_part(
    part: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
    out: Path,
) -> str:
    """Run Python with a limit, and show and write what it prints; returns its end in words."""
    start = time.monotonic()
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    print(f"## {part}\n", flush=True)
    with (out / f"{part}.txt").open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-u", *command],
            env={**os.environ, **environment, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        timer = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                file.write(line)
                file.flush()
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        spent = time.monotonic() - start
        result = DONE if code == 0 else f"exit code {code}"
        if code == -signal.SIGKILL and spent >= limit_s:
            result = f"ended after {limit_s:g} s"
        print(f"\n{part}: {result}, {spent:.0f} s\n", flush=True)
        file.write(f"\n{part}: {result}\n")
    return result


def check_kernels(dtype: torch.dtype, device: torch.device) -> int:
    """Print the error of each case; returns 1 if one exceeds its limit or cannot be computed."""
    wrong = []

    def rows() -> Iterator[tuple[object, str, str]]:
        for case in list_cases(dtype, device):
            try:
                with torch.inference_mode():
                    error = case.measure(device)
                cell, right = f"{error:.3g}", error <= 1
            except Exception as failure:
                Clock(device).synchronize()  # raises if the failure has ended the GPU's context
                cell, right = f"{type(failure).__name__}: {failure}".splitlines()[0], False
            if not right:
                wrong.append(case)
            yield case, cell, "yes" if right else "NO"

    print_table(("case", "error over its limit", "right"), rows(), left=(0, 2))
    print(f"{len(wrong)} cases are wrong")
    return int(bool(wrong))


def list_cases(dtype: torch.dtype, device: torch.device) -> Iterable[Any]:
    """List drawn cases of every shape and of a 7B; for Triton's interpreter, a few small ones."""
    from specbench.models.fast.kernels import judge  # needs Triton

    if device.type == "cpu":
        return judge.list_few(dtype, 1, 2, 16, [8], (3,), 72, 100, 70, 99)
    widths = (1, 8, 64, 96)
    of_7b = judge.list_few(dtype, 32, 1, 128, [None], widths, 4096, 11008, 4096, 32000)
    return chain(judge.list_wide(dtypes=[dtype]), of_7b)
