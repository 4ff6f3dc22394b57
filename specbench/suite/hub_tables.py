"""The rows of a data set on the Hugging Face hub, by the package ``datasets``, which is imported only here and late."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specbench.suite.row import Row


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

    def rows(self) -> tuple[list[Row], str]:
        """The rows of all tables, and the SHA-256 of their JSON: the data set's contents, however it is packed."""
        rows: list[Row] = []
        digest = hashlib.sha256()
        for config, table in self.tables:
            source = f"{self.repo} ({', '.join(filter(None, (config, self.split)))})"
            for index, values in enumerate(table):
                rows.append(Row(dict(values), source, f"row {index}", index, config))
                digest.update(json.dumps([config, dict(values)], sort_keys=True).encode())
        return rows, digest.hexdigest()


def fetch(repo: str, split: str, configs: Sequence[str] = (), revision: str | None = None) -> HubTables | str:
    """The downloaded or cached tables, or in words why there are none.

    configs: configurations of the data set, each a table; none for a data set that has but one.
    """
    try:
        import datasets
    except ImportError:
        return f"{repo} on the hub needs the package datasets; pip install datasets"
    try:
        tables = tuple(
            (config, datasets.load_dataset(repo, *filter(None, (config,)), split=split, revision=revision))
            for config in configs or ("",)
        )
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        return f"data set {repo} could not be loaded: {(str(error) or type(error).__name__).splitlines()[0]}"
    return HubTables(repo, split, tables)
