"""``njit`` with a cache on disk that is safe for several processes, a full disk, and changes of
imported modules.

numba numbers the files of compiled code and writes its index first. Two processes that compile one
function for different types may both take the next number, and the index of one then names the code
of the other; where the disk is full, the index may name code of an older source. Here a file is
named by the types of its code and written before the index. numba also recompiles a function only
when its own file changes. Here it does so when any module in or below the file's folder changes,
since compiled functions include those that they call.

numba also optimises and translates to machine code each function that another one calls, once by
itself and again in every caller, and saves both. Here a function has machine code of its own only
if Python calls it, or if it is parallel. For compiled callers it is lowered to LLVM's instructions,
which are optimised and translated as a part of each caller. That halves the time of compiling.
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
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

from specbench.types import InputError

Key = tuple[Any, ...]  # types, processor, hashes of the bytecode and of what it closes over


class _CodeFiles(IndexDataCacheFile):
    """The index and the code files of one function."""

    def save(self, key: Key, data: Any) -> None:
        """Save compiled code. An entry that another process adds at the same time may be lost: it
        is compiled again.
        """
        name = self._data_name_pattern.replace(
            "{number:d}", hashlib.sha256(repr(key).encode()).hexdigest()[:16]
        )
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


class _LinkedCode(JITCodeLibrary):
    """Code that is linked into its callers, and is optimised and translated with them only."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LinkedLowering(NativeLowering):
    _name = "linked_lowering"

    def run_pass(self, state: Any) -> bool:
        """As numba's own, without an entry point."""
        state.library = _LinkedCode(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        state.cr = state.cr._replace(cfunc=object())  # by which callers find the code
        state.targetctx.insert_user_function(state.cr.cfunc, state.cr.fndesc, [state.library])
        return True


class _LinkedCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        """The usual passes, but for the lowering."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [
            (_LinkedLowering if each is NativeLowering else each, name)
            for each, name in passes.passes
        ]
        passes.finalize()
        return [passes]


@cache
def _hash_modules(folder: Path) -> str:
    modules = sorted(folder.rglob("*.py"))
    return hashlib.sha256(
        b"".join(hashlib.sha256(module.read_bytes()).digest() for module in modules)
    ).hexdigest()


def njit(widen: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit`` with these options and a cache on disk. Raises InputError if no folder for it
    is writable.

    widen: integers that compiled functions pass are int64, so that the function is compiled once;
    by default numba compiles it anew for every width, and for every constant.
    """

    def compile_cached(function: Callable[..., Any]) -> Any:
        dispatcher: Any = numba.njit(**options)(function)
        if dispatcher is function:  # numba's compiler is disabled
            return function
        try:
            dispatcher._cache = _CachedCode(function)
        except RuntimeError as error:  # whose message contains a path, and no remedy
            raise InputError(
                "numba has no folder for what it compiles; expected one that can be written to in"
                " NUMBA_CACHE_DIR"
            ) from error
        linked = dispatcher if options.get("parallel") else _link(function, options)
        resolve, dispatcher.get_overload = linked.get_call_template, linked.get_overload
        dispatcher.get_call_template = lambda args, names: resolve(
            [_widen(kind) if widen else kind for kind in args],
            {name: _widen(kind) if widen else kind for name, kind in names.items()},
        )
        return dispatcher

    return compile_cached


def _link(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """The dispatcher of a function for calls from compiled code: it is compiled without what
    Python's calls need.
    """
    bare: dict[str, Any] = {
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
        "pipeline_class": _LinkedCompiler,
    }
    linked: Any = numba.njit(**options, **bare)(function)
    # numba's own would enter machine code, which a linked function does not have.
    linked.add_overload = lambda compiled: linked.overloads.update(
        {compiled.signature.args: compiled}
    )
    return linked
