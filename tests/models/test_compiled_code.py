"""Code that numba keeps on disk: two processes that save at once, and a disk without room."""

from __future__ import annotations

import contextlib
import errno
import runpy

import numba
import numpy as np
import pytest
from numba.core import event
from numba.core.caching import CacheImpl, IndexDataCacheFile

from specbench.models import compiled_code
from specbench.models.compiled_code import _CodeFiles, njit
from specbench.types import InputError

KINDS = pytest.mark.parametrize(
    "kind", [_CodeFiles, pytest.param(IndexDataCacheFile, id="numba's, the wrong variant")]
)


def full(*given):
    raise OSError(errno.ENOSPC, "No space left on device")


@KINDS
def test_two_processes_that_save_at_once_leave_no_code_under_the_types_of_other_code(
    kind, tmp_path
):
    """Both have read the index before either writes; the second one writes between the first one's
    two files.
    """
    one, two = (kind(str(tmp_path), "kernel", 1) for _ in range(2))
    two._load_index = dict
    save = one._save_data
    one._save_data = lambda name, data: (two.save("bfloat16", "two"), save(name, data))
    one.save("float32", "one")
    found = kind(str(tmp_path), "kernel", 1)
    sound = found.load("bfloat16") in ("two", None) and found.load("float32") in ("one", None)
    assert sound is (kind is _CodeFiles)


@KINDS
def test_a_full_disk_leaves_no_code_of_an_older_source(kind, tmp_path):
    kind(str(tmp_path), "kernel", 1).save("float32", "old")
    new = kind(str(tmp_path), "kernel", 2)
    save, new._save_data = new._save_data, full
    with contextlib.suppress(OSError):
        new.save("float32", "new")
    assert new.load("float32") == (None if kind is _CodeFiles else "old")
    new._save_data = save
    new.save("float32", "new")
    assert kind(str(tmp_path), "kernel", 2).load("float32") == "new"


@pytest.fixture
def inner(tmp_path):
    """A function whose file is new, and so are the files of its code."""
    (tmp_path / "inner.py").write_text("def inner(number):\n    return number + 1\n")
    return runpy.run_path(str(tmp_path / "inner.py"))["inner"]


def test_code_that_cannot_be_saved_runs(inner, monkeypatch):
    for kind in (_CodeFiles, IndexDataCacheFile):
        monkeypatch.setattr(kind, "_save_data", full)
    cached = njit()(inner)
    assert cached(2) == 3
    assert not cached._cache._cache_file._load_index()
    with pytest.raises(OSError, match="No space left"):
        numba.njit(cache=True)(inner)(2)


def test_without_a_folder_for_compiled_code_the_remedy_is_named(inner, monkeypatch):
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    with pytest.raises(InputError, match="expected one that can be written to in NUMBA_CACHE_DIR"):
        njit()(inner)


def test_code_is_found_again(inner):
    assert njit()(inner)(2) == 3
    again = njit()(inner)
    assert again(2) == 3
    assert sum(again.stats.cache_hits.values()) == 1


@pytest.mark.parametrize(("options", "compiled"), [({"widen": True}, 1), ({}, 3)])
def test_integers_of_compiled_callers_are_one_type(options, compiled, inner):
    called = njit(**options)(inner)

    @numba.njit
    def outer(narrow):
        return called(narrow) + called(2) + called(3)

    with event.install_recorder("numba:compile") as recorder:
        assert outer(np.int32(1)) == 9
    begun = [each.data["dispatcher"].py_func for _, each in recorder.buffer if each.is_start]
    assert begun.count(inner) == compiled


@pytest.mark.parametrize("changed", ["inner.py", "imported.py", "parts/imported.py"])
def test_code_that_was_compiled_before_a_change_is_not_run(changed, inner, tmp_path, monkeypatch):
    """A change of any module in or below the folder counts, as compiled code includes the functions
    that it calls.
    """
    (tmp_path / "parts").mkdir()
    for imported in ("imported.py", "parts/imported.py"):
        (tmp_path / imported).write_text("FACTOR = 1\n")
    compiled_code._hash_modules.cache_clear()
    assert njit()(inner)(2) == 3
    (tmp_path / changed).write_text((tmp_path / changed).read_text() + "# changed\n")
    compiled_code._hash_modules.cache_clear()  # as in a new process
    again = njit()(inner)
    assert again(2) == 3
    assert not again.stats.cache_hits
