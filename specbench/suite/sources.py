"""Finds the file of a suite: places are searched in a fixed order, and an error names all of them.

The order: the file or folder that the user named; what is in the package; the data directory
``$SPECBENCH_DATA``; the Hugging Face hub, if the suite has the address of a file or of a data set's
split there. Nothing is fetched unless the suite's configuration has an address, and nothing while
the hub is switched off.
"""

from __future__ import annotations

import os
from pathlib import Path

from specbench.input import refuse_network
from specbench.suite.format import HubTables
from specbench.suite.settings import HubConfig, bundled_file
from specbench.types import InputError

DATA_VARIABLE = "SPECBENCH_DATA"


def locate(
    name: str,
    path: str | None = None,
    relative: str | None = None,
    hub: HubConfig | None = None,
    *,
    home: str | None = None,
    key: str = "suite.path",
    holds: str = "a .jsonl or .jsonl.gz file of questions",
) -> Path | HubTables:
    """Finds a suite: a file or folder, or the tables on the hub.

    path: returned unchanged if it is given. relative: below ``$SPECBENCH_DATA/suites``, by default
    ``<name>/question.jsonl``. For errors: home: where its authors publish it; key: the setting that
    gives ``path``; holds: what that setting must name. Raises InputError, with every way to give
    it, if none of the places has it.
    """
    if path is not None:
        return Path(path).expanduser()
    bundled = bundled_file(name)
    if bundled.is_file():
        return bundled
    relative = relative or f"{name}/{bundled.name}"
    root = os.environ.get(DATA_VARIABLE)
    kept = Path(root).expanduser() / "suites" / relative if root else None
    if kept is not None and kept.exists():
        return kept
    found = _from_hub(hub)
    if not isinstance(found, str):
        return found
    looked = f"looked for {kept}, which does not exist" if kept else f"${DATA_VARIABLE} is not set"
    raise InputError(
        f"Suite {name}: its file was not found. Give it in one of these ways:\n  1. {key}=<file>:"
        f" {holds}{f' (the official file is {home})' if home else ''};\n  2."
        f" {DATA_VARIABLE}=<directory> in the environment, the file at suites/{relative} below it"
        f" ({looked});\n  3. the Hugging Face hub ({found})."
    )


def _from_hub(hub: HubConfig | None) -> Path | HubTables | str:
    """Returns the downloaded or cached file or tables, or the reason why there are none."""
    given = {part: value for part, value in vars(hub or HubConfig()).items() if value}
    if hub is None or not given.keys() & {"repo", "file", "split"}:
        return "this suite has no address on the hub; set suite.hub.repo and suite.hub.file"
    if hub.repo is None or len(given.keys() & {"file", "split"}) != 1:
        raise InputError(
            f"suite.hub={given}: expected both repo and file, as in {{repo: org/data, file:"
            " q.jsonl}, or both repo and split, as in {repo: org/data, split: test}."
        )
    package = "huggingface_hub" if hub.file else "datasets"
    try:
        return (
            _fetch_file(hub.repo, hub.file, hub.revision)
            if hub.file
            else _load_tables(hub.repo, hub)
        )
    except ImportError:
        return f"{hub.repo} on the hub needs the package {package}; pip install {package}"


def _load_tables(repo: str, hub: HubConfig) -> HubTables | str:
    """Loads a split: a table for each configuration of the data set, or one if it has no
    configurations.
    """
    import datasets

    offline = refuse_network()
    try:
        tables = tuple(
            (
                config,
                datasets.load_dataset(
                    repo, *filter(None, (config,)), split=hub.split, revision=hub.revision
                ),
            )
            for config in hub.configs or ("",)
        )
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        if offline:
            return f"data set {repo} is not here; {offline}"
        return (
            f"data set {repo} could not be loaded:"
            f" {(str(error) or type(error).__name__).splitlines()[0]}"
        )
    return HubTables(repo, str(hub.split), tables)


def _fetch_file(repo: str, file: str, revision: str | None) -> Path | str:
    from huggingface_hub import hf_hub_download

    offline = refuse_network()
    try:
        fetched = hf_hub_download(
            repo, file, repo_type="dataset", revision=revision, local_files_only=bool(offline)
        )
    except (OSError, ValueError) as error:  # the hub's own errors are both, by their base classes
        if offline:
            return f"{file} of {repo} is not here; {offline}"
        return f"{file} of data set {repo} could not be fetched: {str(error).splitlines()[0]}"
    return Path(fetched)
