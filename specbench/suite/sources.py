"""Where a suite is: a fixed order of places, and an error that names all of them.

The order: the file or folder that the user named; what is in the package; the data directory ``$SPECBENCH_DATA``; the
Hugging Face hub, when the suite has an address there, of a file or of a data set's split. Nothing is fetched unless the
suite's configuration has an address, and nothing while the hub is switched off.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.input import refuse_network
from specbench.suite.rows import SourceRow
from specbench.types import InputError

DATA_VARIABLE = "SPECBENCH_DATA"
_ASSETS = Path(__file__).resolve().parents[1] / "assets"
_QUESTIONS = "question.jsonl"

HubAddress = Mapping[str, str | Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class HubTables:
    """One split of a data set, table by table.

    tables: (configuration, its rows in order); the configuration's name is empty when the data set has but one.
    """

    repo: str
    split: str
    tables: tuple[tuple[str, Iterable[Mapping[str, object]]], ...]

    def __str__(self) -> str:
        return f"{self.repo} ({self.split}) on the hub"

    def rows(self) -> tuple[list[SourceRow], str]:
        """The rows of all tables, and the SHA-256 of their JSON: the data set's contents, however it is packed."""
        rows: list[SourceRow] = []
        digest = hashlib.sha256()
        for config, table in self.tables:
            source = f"{self.repo} ({', '.join(filter(None, (config, self.split)))})"
            for index, values in enumerate(table):
                rows.append(SourceRow(dict(values), source, f"row {index}", index, config))
                digest.update(json.dumps([config, dict(values)], sort_keys=True).encode())
        return rows, digest.hexdigest()


def locate(
    name: str,
    path: str | os.PathLike[str] | None = None,
    relative: str | None = None,
    hub: HubAddress | None = None,
    *,
    home: str | None = None,
    key: str = "suite.path",
    holds: str = "a .jsonl or .jsonl.gz file of questions",
) -> Path | HubTables:
    """The file or folder of a suite, or its rows on the hub.

    path: taken as it is. relative: below ``$SPECBENCH_DATA/suites``, by default ``<name>/question.jsonl``.
    hub: of a data set on the Hugging Face hub ``{repo, file}`` or ``{repo, split}`` with optional ``configs``, and
    optionally ``revision``. home: where its authors keep it; key: the setting that gives path; holds: what it must
    name; all for errors. Raises InputError, which lists every way to give the suite, when none of the places has it.
    """
    if path is not None:
        return Path(path).expanduser()
    bundled = _ASSETS / name / _QUESTIONS
    if bundled.is_file():
        return bundled
    relative = relative or f"{name}/{_QUESTIONS}"
    root = os.environ.get(DATA_VARIABLE)
    kept = Path(root).expanduser() / "suites" / relative if root else None
    if kept is not None and kept.exists():
        return kept
    found = _from_hub(hub)
    if not isinstance(found, str):
        return found
    raise InputError(_not_found(name, home, f"{key}=<file>: {holds}", relative, kept, found))


def _from_hub(hub: HubAddress | None) -> Path | HubTables | str:
    """The file or the tables, downloaded or cached, or why there are none."""
    given = {part: value for part, value in (hub or {}).items() if value}
    if not given.keys() & {"repo", "file", "split"}:
        return "this suite has no address on the hub; set suite.hub.repo and suite.hub.file"
    if "repo" not in given or len(given.keys() & {"file", "split"}) != 1:
        raise InputError(
            f"suite.hub={dict(hub or {})}: expected both repo and file, as in {{repo: org/data, file: q.jsonl}}, "
            "or both repo and split, as in {repo: org/data, split: test}."
        )
    repo = str(given["repo"])
    revision = str(given["revision"]) if "revision" in given else None
    if "split" in given:
        return _hub_tables(repo, str(given["split"]), tuple(given.get("configs") or ()), revision)
    return _hub_file(repo, str(given["file"]), revision)


def _hub_tables(repo: str, split: str, configs: Sequence[str] = (), revision: str | None = None) -> HubTables | str:
    """The downloaded or cached tables, or why there are none.

    configs: configurations of the data set, each a table; none for a data set that has but one.
    """
    try:
        import datasets
    except ImportError:
        return f"{repo} on the hub needs the package datasets; pip install datasets"
    offline = refuse_network()
    try:
        tables = tuple(
            (config, datasets.load_dataset(repo, *filter(None, (config,)), split=split, revision=revision))
            for config in configs or ("",)
        )
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        if offline:
            return f"data set {repo} is not here; {offline}"
        return f"data set {repo} could not be loaded: {(str(error) or type(error).__name__).splitlines()[0]}"
    return HubTables(repo, split, tables)


def _hub_file(repo: str, file: str, revision: str | None) -> Path | str:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        return f"{repo} on the hub needs the package huggingface_hub; pip install huggingface_hub"
    offline = refuse_network()
    try:
        fetched = hf_hub_download(repo, file, repo_type="dataset", revision=revision, local_files_only=bool(offline))
    except (OSError, ValueError) as error:  # the hub's own errors are both, by their base classes
        if offline:
            return f"{file} of {repo} is not here; {offline}"
        return f"{file} of data set {repo} could not be fetched: {str(error).splitlines()[0]}"
    return Path(fetched)


def _not_found(name: str, home: str | None, give: str, relative: str, kept: Path | None, refusal: str) -> str:
    where = f" (the official file is {home})" if home else ""
    looked = f"looked for {kept}, which does not exist" if kept else f"${DATA_VARIABLE} is not set"
    return (
        f"Suite {name}: its file was not found. Give it in one of these ways:\n"
        f"  1. {give}{where};\n"
        f"  2. {DATA_VARIABLE}=<directory> in the environment, the file at suites/{relative} below it ({looked});\n"
        f"  3. the Hugging Face hub ({refusal})."
    )
