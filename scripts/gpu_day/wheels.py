"""The packages that a bare image with torch, Triton and transformers lacks: what is missing, and their wheels."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("wheels.txt")
TARGET = ["--python-version", "3.12", "--implementation", "cp"]
GLIBC = ("2_28", "2_27", "2_17", "2_12", "2_5")  # pip matches each version exactly
LIMIT_BYTES = 64 << 20
OWN = ("specbench", "methods", "scripts")
OPTIONAL = ("ctranslate2", "math_verify", "mlflow", "onnxruntime_genai", "openvino", "openvino_tokenizers", "submitit")


def list_imports() -> Iterator[tuple[str, str]]:
    """List modules of other packages that the sources import, also within functions, and each name, or an empty one.

    Those of extras are left out.
    """
    files = [path for folder in OWN[:2] for path in (ROOT / folder).rglob("*.py")]
    files += [
        *Path(__file__).parent.glob("*.py"),
        *(ROOT / "scripts/lab" / f"{name}.py" for name in ("materials", "overhead")),
    ]
    found = {("triton", "")}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update((each.name, "") for each in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.update((str(node.module), each.name) for each in node.names)
    excluded = {*sys.stdlib_module_names, *OWN, *OPTIONAL}
    return iter(sorted(each for each in found if each[0].split(".")[0] not in excluded))


def list_missing() -> list[str]:
    """Import all that the calls import; returns the modules that cannot be, with the reason, and names they lack."""
    missing = dict[str, str]()
    for module, name in list_imports():
        try:
            found = importlib.import_module(module)
            if name and not hasattr(found, name):
                importlib.import_module(f"{module}.{name}")
        except ImportError as error:
            missing[module] = str(error)
    return [f"{module}: {reason}" for module, reason in missing.items()]


def fetch(folder: Path) -> int:
    """Fetch the wheels of ``wheels.txt`` for Linux on x86-64, and build those that no index has.

    Returns the bytes of the wheels and the checkout. Raises RuntimeError if a wheel is for this machine only, or if
    they are too large together.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    platforms = [word for version in GLIBC for word in ("--platform", f"manylinux_{version}_x86_64")]
    for name in LIST.read_text(encoding="utf-8").split():
        got = [*pip, "download", "-q", "--no-deps", "--only-binary=:all:", *TARGET, *platforms, "-d", str(folder), name]
        if subprocess.run(got, capture_output=True, check=False).returncode:
            subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(folder), name], check=True)
    wheels = list(folder.glob("*.whl"))
    if own := [path.name for path in wheels if "linux" in path.name and "x86_64" not in path.name]:
        raise RuntimeError(f"{', '.join(own)}: expected wheels of x86_64 or of any machine; add a version that has one")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    size = sum(path.stat().st_size for path in wheels)
    total = size + sum((ROOT / name).stat().st_size for name in listed.split("\0") if (ROOT / name).is_file())
    print(f"{len(wheels)} wheels, {size / 2**20:.1f} MiB; with the checkout {total / 2**20:.1f} MiB")
    if total > LIMIT_BYTES:
        raise RuntimeError(f"expected at most {LIMIT_BYTES >> 20} MiB; shorten {LIST.name}")
    return total
