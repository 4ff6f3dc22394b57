"""Finds the runs of a report: in folders, for a notebook those that the environment names, and in an object store.

Runs in a store, named by any URL of fsspec, are copied here to be reported, and written there by an export. An export
that was killed is recognised: a mark is written before the first file and removed after the last, which is the
manifest.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from specbench.measure.identity import hide_identity
from specbench.names import file_name
from specbench.profile import published_profiles
from specbench.records.manifest import Manifest
from specbench.records.store import EVAL_RESULTS, MANIFEST, PAGE, PIECES, RECORDS, SET_ASIDE, RunError, read_manifest

DEFAULT_RUN = Path("results/latest")
RUN, PROFILE = "SPECBENCH_RUN", "SPECBENCH_PROFILE"


def find_runs(directories: Sequence[Path]) -> list[Path]:
    """The directories; one without a manifest, such as a sweep's, is replaced by the runs directly in it, no links.

    Raises RunError if the newest run is wanted and no run exists.
    """
    if DEFAULT_RUN in directories and not DEFAULT_RUN.exists():
        raise RunError(f"{DEFAULT_RUN}: there is no run here yet; expected a run's directory; `specbench` makes one")
    found: list[Path] = []
    for directory in directories:
        inside = [] if (directory / MANIFEST).is_file() else [path.parent for path in directory.glob(f"*/{MANIFEST}")]
        runs = [run for run in inside if not SET_ASIDE.search(run.name) and not run.is_symlink()]
        found += sorted(runs, key=_start) or [directory]
    return found


def _start(run: Path) -> tuple[str, int, str]:
    """The order in which a sweep's jobs ran; of jobs that began together, 2 comes before 10."""
    number = int(run.name) if run.name.isdecimal() else sys.maxsize
    return read_manifest(run).created, number, run.name


def chosen_runs() -> list[Path]:
    """The runs or sweeps in the environment variable SPECBENCH_RUN, several joined as in PATH; else ``results/latest``.

    Raises RunError if there is neither.
    """
    named = [Path(part) for part in os.environ.get(RUN, "").split(os.pathsep) if part]
    if named:
        return find_runs(named)
    found = [folder / DEFAULT_RUN for folder in (Path.cwd(), *Path.cwd().parents) if (folder / DEFAULT_RUN).is_dir()]
    if not found:
        raise RunError(f"{RUN} is not set and there is no {DEFAULT_RUN} here or above; run `specbench`, or name a run")
    return find_runs(found[:1])


def chosen_profile() -> Path | None:
    """The latency profile in SPECBENCH_PROFILE, else the first published one that is installed; None without any."""
    if os.environ.get(PROFILE):
        return Path(os.environ[PROFILE])
    return next(iter(published_profiles()), None)


UNFINISHED = ".unfinished"  # the mark of an export; it has the date of the run
_FILES = (RECORDS, PIECES, "summary.csv", PAGE, "tables/*", "plots/*", f"{EVAL_RESULTS}/*")
_HEAD = 1 << 16  # [bytes] by which the records of two runs differ: they begin with times
_EXPECTED = "expected a run's or a sweep's folder"


def is_remote(named: str) -> bool:
    """Returns whether a run is named by a URL: s3://bucket/run, memory://run, file:///folder/run."""
    return "://" in named


def fetch_runs(url: str, folder: Path) -> Path:
    """Copy what a report reads of a run, or of a sweep's runs, into this local folder.

    Nothing is written there. Raises RunError if it cannot be read, or an export to it has not ended.
    """
    with _open(url, "read", _EXPECTED) as (files, root):
        found = [root] if files.isfile(f"{root}/{MANIFEST}") else files.glob(f"{root}/*/{MANIFEST}")
        places = [each.removesuffix(f"/{MANIFEST}").rstrip("/") for each in found]
        for place in dict.fromkeys([root, *places]):
            if files.isfile(f"{place}/{UNFINISHED}"):
                raise RunError(f"run {url}: an export to it has not ended; repeat the command `specbench export`")
        for place in places:
            run = folder / file_name(place.rpartition("/")[2])
            run.mkdir()
            for name in (MANIFEST, RECORDS, PIECES):
                if files.isfile(f"{place}/{name}"):
                    files.get_file(f"{place}/{name}", str(run / name))
    if not found:
        raise RunError(f"run {url}: contains no {MANIFEST}; {_EXPECTED}")
    return folder


def export_runs(directory: Path, url: str) -> int:
    """Write a run with its report, or the runs of a sweep, to a folder of a store; returns the number of files.

    A folder of an earlier export of the same run is updated, one with anything else is refused.

    Args:
        directory: of the run or the sweep; nothing in it is changed.
        url: of the folder, as fsspec takes it.

    Raises:
        RunError: The directory contains no run, or the folder cannot be written or has other contents.
    """
    manifests = {run: read_manifest(run) for run in find_runs([directory])}
    sweep = directory not in manifests
    with _open(url, "written", "expected a folder of a store that you may write, such as s3://BUCKET/RUN") as (
        files,
        root,
    ):
        if isinstance(files, LocalFileSystem):
            here, there = directory.resolve(), Path(root).resolve()
            if here == there or here in there.parents or there in here.parents:
                raise RunError(f"export {url}: the folder overlaps with {directory}; choose another URL")
        places = {run: f"{root}/{run.name}" if sweep else root for run in manifests}
        for run, place in places.items():
            _refuse_other(files, place, run, manifests[run].created, url)
        if sweep:
            _refuse_other_sweep(files, root, [run.name for run in places], url)
        marked = dict.fromkeys([root, *places.values()])
        for place in marked:
            created = next((manifests[run].created for run in places if places[run] == place), "")
            files.pipe_file(f"{place}/{UNFINISHED}", json.dumps({"created": created}).encode())
        count = sum(_put(files, run, place) for run, place in places.items())
        if sweep and (report := directory / "report").is_dir():
            count += _put(files, report, f"{root}/report")
        for run, place in places.items():
            files.pipe_file(f"{place}/{MANIFEST}", _manifest_bytes(manifests[run]))
        for place in reversed(marked):
            files.rm_file(f"{place}/{UNFINISHED}")
    return count + len(places)


@contextlib.contextmanager
def _open(url: str, done: str, expected: str) -> Iterator[tuple[Any, str]]:
    """The file system and the path of a URL; errors of the store become a RunError."""
    if not is_remote(url):
        raise RunError(f"{url}: no URL; expected a folder of a store, such as s3://BUCKET/RUN or file:///FOLDER/RUN")
    try:
        own = {"auto_mkdir": True} if url.startswith(("file:", "local:")) else {}
        files, root = fsspec.core.url_to_fs(url, **own)
        files.invalidate_cache()
        yield files, root.rstrip("/")
    except RunError:
        raise
    except Exception as error:  # a driver has errors of its own, which share no base; ImportError: it is not installed
        if type(error).__module__ == "builtins" and not isinstance(error, OSError | ValueError | ImportError):
            raise
        raise RunError(f"run {url}: cannot be {done} ({error}); {expected}") from error


def _refuse_other(files: Any, place: str, run: Path, created: str, url: str) -> None:
    """Raise RunError unless a folder is empty or has an earlier state of this run."""
    found = {path.removeprefix(place).lstrip("/") for path in map(str, files.find(place, withdirs=False))}
    if found <= {UNFINISHED}:
        return
    mark = next((name for name in (UNFINISHED, MANIFEST) if name in found), None)
    other = f"export {url}: {place} has another run or other files; expected an empty folder: choose another URL"
    if mark is None:
        raise RunError(other)
    try:
        known = json.loads(files.cat_file(f"{place}/{mark}"))["created"]
    except (ValueError, LookupError, TypeError):
        raise RunError(other) from None
    if known != created:
        raise RunError(other)
    if RECORDS not in found:
        return
    size, local = files.size(f"{place}/{RECORDS}"), run / RECORDS
    shared = min(size, local.stat().st_size, _HEAD)
    with local.open("rb") as file:
        same = not shared or files.cat_file(f"{place}/{RECORDS}", start=0, end=shared) == file.read(shared)
    if not same:
        raise RunError(other)
    if size > local.stat().st_size:
        raise RunError(f"export {url}: {place} has more records of this run than {run}; choose another URL")


def _refuse_other_sweep(files: Any, root: str, runs: Sequence[str], url: str) -> None:
    """Raise RunError unless a folder is empty or has an earlier state of a sweep with one of these runs."""
    found = {path.removeprefix(root).lstrip("/") for path in map(str, files.find(root, withdirs=False))}
    own = tuple(f"{name}/" for name in (*runs, "report"))
    earlier = UNFINISHED in found or any(f"{run}/{mark}" in found for run in runs for mark in (MANIFEST, UNFINISHED))
    if any(name != UNFINISHED and not name.startswith(own) for name in found) or (found and not earlier):
        raise RunError(f"export {url}: has files that are not of this sweep; expected an empty folder")


def _put(files: Any, directory: Path, place: str) -> int:
    """Copy the files of a run or a report but the manifest; returns their number."""
    found = [path for name in _FILES for path in sorted(directory.glob(name)) if path.is_file()]
    for path in found:
        files.put_file(str(path), f"{place}/{path.relative_to(directory).as_posix()}")
    return len(found)


def _manifest_bytes(manifest: Manifest) -> bytes:
    """A manifest for others to read: home directory and user, which older runs name, are removed."""
    values = manifest.as_dict()
    values = values if manifest.config.report.identify else hide_identity(values)
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
