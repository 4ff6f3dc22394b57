"""Functions that numba compiles, and what it has compiled on disk: code is there before an index names it.

numba numbers the files of code and writes the index first. Two processes that compile one function for different types
may both take the next number, and one's index then names the other's code; where the disk is full, the index may name
code of an older source. Here a file is named by the types of its code.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

Key = tuple[Any, ...]  # types, processor, hashes of the bytecode and of what it closes over


class _CodeFiles(IndexDataCacheFile):
    """Of one function."""

    def save(self, key: Key, data: Any) -> None:
        """An entry that another process adds at the same time may be lost, and is compiled again."""
        name = self._data_name_pattern.replace("{number:d}", hashlib.sha256(repr(key).encode()).hexdigest()[:16])
        self._save_data(name, data)
        self._save_index(self._load_index() | {key: name})


class _KeptCode(FunctionCache):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _CodeFiles(self.cache_path, self._impl.filename_base, stamp)

    def save_overload(self, types: Any, compiled: Any) -> None:
        """What a full disk does not take serves this process alone."""
        with contextlib.suppress(OSError):
            super().save_overload(types, compiled)


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit`` with these options, its code kept on disk. Raises RuntimeError where there is no folder for it."""

    def compile_kept(function: Callable[..., Any]) -> Any:
        dispatcher: Any = numba.njit(**options)(function)
        if dispatcher is not function:  # numba was not told to compile nothing
            dispatcher._cache = _KeptCode(function)
        return dispatcher

    return compile_kept
