"""Runs of several methods at once, shared by the tests of a file: they have vanilla, the model and
its checks once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from builders.runs import job_for
from specbench.records.record import VANILLA, CaseRecord
from specbench.records.store import read_run
from specbench.runs.execution import execute

SIZE = 12  # methods a run
# a compiler takes longer than a run; its tests compile
UNCOMPILED = "method.hf_compiled.compile=false"

Records = dict[tuple[str, str], CaseRecord]


class Together:
    """Runs of groups of methods, each done once. chosen: the methods whose tests of a function were
    chosen.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.chosen: tuple[str, ...] = ()
        self._done: dict[tuple, tuple[Path, Records]] = {}

    def run(
        self,
        name: str,
        *overrides: str,
        fits: Callable[[str], bool] | None = None,
        within: Callable[[], AbstractContextManager] = contextlib.nullcontext,
    ) -> tuple[Path, Records]:
        """Directory of the run that ``name`` is in, and its and vanilla's records by (method,
        case).

        fits: which methods of its group run with it, None = all. within: makes what is entered
        during the run.
        """
        first = self.chosen.index(name) // SIZE * SIZE
        group = self.chosen[first : first + SIZE]
        group = tuple(each for each in group if fits is None or fits(each))
        key = (group, overrides, within)
        if key not in self._done:
            folder = self._folder / str(len(self._done))
            settings = [f"method=[{','.join(group)}]", *overrides]
            with within():
                execute(
                    job_for(*settings, *([UNCOMPILED] if "hf_compiled" in group else [])),
                    folder,
                    lambda *_: None,
                )
            self._done[key] = (
                folder,
                {(each.method, each.case): each for each in read_run(folder).records},
            )
        folder, records = self._done[key]
        return folder, {key: record for key, record in records.items() if key[0] in (name, VANILLA)}
