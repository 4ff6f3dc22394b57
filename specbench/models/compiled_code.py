"""``njit`` with a cache on disk that is safe for several processes, a full disk, and changes of imported modules.

numba numbers the files of compiled code and writes its index first. Two processes that compile one function for
different types may both take the next number, and the index of one then names the code of the other; where the disk is
full, the index may name code of an older source. Here a file is named by the types of its code and written before the
index. numba also recompiles a function only when its own file changes. Here it does so when any module in or below the
file's folder changes, since compiled functions include those that they call.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba import types
from numba.core.caching import FunctionCache, IndexDataCacheFile

Key = tuple[Any, ...]  # types, processor, hashes of the bytecode and of what it closes over


class _CodeFiles(IndexDataCacheFile):
    """The index and the code files of one function."""

    def save(self, key: Key, data: Any) -> None:
        """Save compiled code. An entry that another process adds at the same time may be lost: it is compiled again."""
        name = self._data_name_pattern.replace("{number:d}", hashlib.sha256(repr(key).encode()).hexdigest()[:16])
        self._save_data(name, data)
        self._save_index(self._load_index() | {key: name})


def _widen(kind: Any) -> Any:
    kind = types.unliteral(kind)
    return types.int64 if isinstance(kind, types.Integer) else kind


class _CachedCode(FunctionCache):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = _hash_modules(Path(function.__code__.co_filename).parent)
        self._cache_file = _CodeFiles(self.cache_path, self._impl.filename_base, stamp)

    def save_overload(self, types: Any, compiled: Any) -> None:
        """Save compiled code; if the disk is full, the code serves this process alone."""
        with contextlib.suppress(OSError):
            super().save_overload(types, compiled)


@cache
def _hash_modules(folder: Path) -> str:
    modules = sorted(folder.rglob("*.py"))
    return hashlib.sha256(b"".join(hashlib.sha256(module.read_bytes()).digest() for module in modules)).hexdigest()


def njit(widen: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit`` with these options and a cache on disk. Raises RuntimeError if no folder for it is writable.

    widen: integers that compiled functions pass are int64, so that the function is compiled once; by default numba
    compiles it anew for every width, and for every constant.
    """

    def compile_cached(function: Callable[..., Any]) -> Any:
        dispatcher: Any = numba.njit(**options)(function)
        if dispatcher is function:  # numba's compiler is disabled
            return function
        dispatcher._cache = _CachedCode(function)
        if widen:
            resolve = dispatcher.get_call_template
            dispatcher.get_call_template = lambda args, names: resolve(
                [_widen(kind) for kind in args], {name: _widen(kind) for name, kind in names.items()}
            )
        return dispatcher

    return compile_cached
