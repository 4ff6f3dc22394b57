"""A loaded model in another runtime's format, in a folder that is written once and then found again.

The folder's name has the runtime, its version, the dtype and a fingerprint of configuration and weights, so that
whatever changes one of them is converted anew.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors.torch import save_file

from specbench.models.facade import ModelCard

_UNRELATED = ("_name_or_path", "transformers_version")  # of a configuration
Write = Callable[[ModelCard, Any, Path], None]


def find_cache() -> Path:
    """The folder of all conversions: ``$XDG_CACHE_HOME/specbench/converted``, by default below ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specbench" / "converted"


def convert(card: ModelCard, model: Any, runtime: str, write: Write) -> Path:
    """The folder with ``model`` as ``write`` writes it, which is called where there is none yet.

    runtime: name and version, the beginning of the folder's name. write: fills an empty folder.
    """
    folder = find_cache() / f"{runtime}-{card.dtype}-{take_fingerprint(card, model)[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"), _silence():
        if not folder.is_dir():
            scratch = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
            try:
                write(card, model, scratch)
                scratch.rename(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder


def take_fingerprint(card: ModelCard, model: Any) -> str:
    """sha256 of the configuration, the context and every weight."""
    settings = {name: value for name, value in model.config.to_dict().items() if name not in _UNRELATED}
    digest = hashlib.sha256(json.dumps([card.context, settings], sort_keys=True, default=str).encode())
    for name, weight in model.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


@contextlib.contextmanager
def saved_checkpoint(card: ModelCard, model: Any) -> Iterator[str]:
    """A folder with the model as transformers reads it, for a converter; dropped afterwards.

    The library's own way refuses weights that are views of one matrix.
    """
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], model.dtype
    with tempfile.TemporaryDirectory(dir=find_cache()) as folder:
        save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)
        card.tokenizer.save_pretrained(folder)
        yield folder


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Converters print what they do."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
