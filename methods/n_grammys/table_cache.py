"""Tables of token ids kept on disk between runs: read if they are whole, else built again and written in one move."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from specbench.store import write_atomically

log = logging.getLogger(__name__)
FORMAT = "specbench token ids 1"


class TableCache:
    """A folder of tables, one file each; None = nothing is kept."""

    def __init__(self, folder: str | None) -> None:
        self._folder = Path(folder).expanduser() if folder else None

    @property
    def kept(self) -> bool:
        """Is there a folder?"""
        return self._folder is not None

    def get(self, name: str, shape: tuple[int, ...], vocab: int, build: Callable[[], np.ndarray]) -> np.ndarray:
        """The int32 table ``name``, ids below ``vocab``; ``build`` makes it when the folder has none that is whole.

        A file that is no such table is replaced, and a folder that cannot be written is done without; both are said.
        """
        if self._folder is None:
            return build()
        path = self._folder / f"{name}.safetensors"
        try:
            return _read(path, shape, vocab)
        except FileNotFoundError:
            pass  # the first time
        except (OSError, SafetensorError, ValueError) as error:
            log.warning("%s: not a whole table (%s); built again", path, error)
        table = build()
        try:
            _write(path, table)
        except (OSError, SafetensorError) as error:
            log.warning("%s: cannot be written (%s); it is built again in every run", path, error)
        return table


def _read(path: Path, shape: tuple[int, ...], vocab: int) -> np.ndarray:
    """Raises ValueError when the content is not what ``get`` was asked for."""
    with safe_open(path, framework="numpy") as file:
        kind = (file.metadata() or {}).get("format")
        if kind != FORMAT:
            raise ValueError(f"format {kind}; expected {FORMAT}")
        table = file.get_tensor("ids")
    if table.shape != shape or table.dtype != np.int32:
        raise ValueError(f"{table.dtype} of shape {table.shape}; expected int32 of {shape}")
    if table.min() < 0 or table.max() >= vocab:
        raise ValueError(f"ids from {table.min()} to {table.max()}; expected 0 to {vocab - 1}")
    return table


def _write(path: Path, table: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save({"ids": np.ascontiguousarray(table)}, {"format": FORMAT}))
