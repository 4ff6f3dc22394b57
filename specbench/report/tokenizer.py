"""Counts the tokens of a text with a model's ``tokenizer.json``; neither the model nor a network is needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specbench.records.store import Run, RunError

FILE = "tokenizer.json"
_ASSETS = Path(__file__).resolve().parents[1] / "assets"
_BUNDLED = "bundled:"
_FIX = f"give the folder that holds the model's {FILE}: --tokenizer DIR"


def read_counter(path: Path) -> Callable[[str], int]:
    """Text -> its tokens, without the specials (BOS) that the tokenizer would add. path: folder or file.

    Raises RunError if the tokenizer is missing or cannot be read.
    """
    tokenizer = read_tokenizer(path)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def read_tokenizer(path: Path) -> Any:
    """The ``tokenizers.Tokenizer`` of a folder or file. Raises RunError."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise RunError(f"tokenizer {path}: holds no {FILE}; {_FIX}")
    try:
        from tokenizers import Tokenizer  # only what tokenises text needs it
    except ImportError as error:
        raise RunError("the package `tokenizers` is not installed; pip install tokenizers") from error
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise RunError(f"{file}: not a tokenizer ({error}); {_FIX}") from error


def find_tokenizer(run: Run) -> Path:
    """Finds the run's tokenizer on this machine: its own folder, the bundled one, or the hub's cache.

    Raises RunError saying how to name it.
    """
    model, configured = run.section("model"), run.section("config", "model")
    recorded = [configured.get("tokenizer"), model.get("path"), configured.get("path")]
    named = [str(name) for name in recorded if name]
    for name in named:
        path = _ASSETS / name.removeprefix(_BUNDLED) if name.startswith(_BUNDLED) else _here(name)
        if (path / FILE).is_file():
            return path
        cached = _cached(name, configured.get("revision"))
        if cached is not None:
            return cached
    where = " nor ".join(named[:2]) if named else "the manifest's model, which has no path,"
    raise RunError(f"run {run.directory}: no {FILE} found at {where}; {_FIX}")


def _here(name: str) -> Path:
    """A path of a manifest, which does not name the home directory, the user and the host."""
    return Path(os.path.expanduser(os.path.expandvars(name)))  # noqa: PTH111 (a Path raises)


def _cached(name: str, revision: object) -> Path | None:
    """The file of a hub id that was downloaded before; None where it was not."""
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, FILE, revision=str(revision) if revision else None)
    except (ImportError, ValueError):  # not a hub id
        return None
    return Path(found) if isinstance(found, str) else None
