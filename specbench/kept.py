"""Files that a run makes or downloads once and later runs read: converted models, models of a
package index.

They lie below ``$SPECBENCH_CACHE`` (default ``~/.cache/specbench``). Together they take at most
``$SPECBENCH_CACHE_GB``: those that were used the longest ago go first.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from specbench.input import InputError

PLACE, LIMIT = "SPECBENCH_CACHE", "SPECBENCH_CACHE_GB"
DEFAULT_LIMIT = "50"  # [GB]
_MODELS = "models"
_GB = 1e9


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A folder of the cache. size: [bytes]. used: when a run last read it [s since 1970]."""

    folder: Path
    size: int
    used: float


def find_place() -> Path:
    """Return the folder of what is kept; it may not exist."""
    usual = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    place = os.environ.get(PLACE) or f"{usual}/specbench"
    return Path(place).expanduser() / _MODELS


def find_limit() -> float:
    """Return the most bytes that are kept. Raises InputError for a variable that is no number."""
    text = os.environ.get(LIMIT, DEFAULT_LIMIT)
    try:
        found = float(text) * _GB
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise InputError(f"{LIMIT}={text}: expected a number of gigabytes")
    return found


def list_kept() -> list[KeptFile]:
    """List what is kept, the latest used first."""
    place = find_place()
    folders = [path for path in place.glob("[!.]*") if path.is_dir()]
    found = [KeptFile(each, _size_of(each), each.stat().st_mtime) for each in folders]
    return sorted(found, key=lambda each: each.used, reverse=True)


def find_kept(name: str) -> Path | None:
    """Return the folder of ``name``, which is used now; None if it is not kept."""
    found = find_place() / name
    if not found.is_dir():
        return None
    with contextlib.suppress(OSError):  # of another user: it is only read
        os.utime(found)
    return found


def keep(
    name: str, need: int, make: Callable[[Path], None], key: str, source: Path | None = None
) -> Path:
    """Return the folder of ``name``, made at the first call; processes that ask at once make it
    once.

    Args:
        name: of the folder.
        need: [bytes] about how large it will be.
        make: fills an empty folder; if it fails, nothing is kept.
        key: the setting that needs it, for errors.
        source: a file that ``make`` reads, which stays if it is in the cache.

    Raises:
        InputError: it is larger than all that may be kept.
    """
    if found := find_kept(name):
        return found
    place = find_place()
    found = place / name
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{place}: no folder can be made there ({error.strerror}); expected a folder that can"
            f" be written, named by {PLACE}"
        ) from error
    with FileLock(place / ".lock"):
        if not found.is_dir():
            _make_room(need, key, source)
            with tempfile.TemporaryDirectory(prefix=".", dir=place) as draft:
                made = Path(draft) / name
                made.mkdir()
                make(made)
                made.replace(found)
    return found


def _make_room(need: int, key: str, source: Path | None) -> None:
    most = find_limit()
    if need > most:
        raise InputError(
            f"{key}: takes {need / _GB:.1f} GB, and {LIMIT} allows {most / _GB:g} in {PLACE}"
            f" ({find_place()}); expected a larger {LIMIT}"
        )
    kept = list_kept()
    total = sum(each.size for each in kept)
    kept = [each for each in kept if source is None or each.folder not in source.parents]
    while kept and total + need > most:
        oldest = kept.pop()
        shutil.rmtree(oldest.folder, ignore_errors=True)
        total -= oldest.size


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
