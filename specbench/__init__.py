"""specbench: which speculative-decoding method makes this model faster, by how much, and why.

``from specbench import run, load`` runs a comparison from Python, or reads one, with the same
settings, directories and files as the command ``specbench run``. Both return a ``Result``, whose
figures are data frames. ``import specbench`` alone is light: pandas and torch are imported with the
first call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.names import VERSION as __version__

if TYPE_CHECKING:
    import pandas as pd

    from specbench.report.frames.findings import Findings

__all__ = ["Result", "__version__", "load", "run"]


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run.

    path: its directory. findings: all figures of its report, as the notebooks use them. code: the
    exit code of the command: 1 where a method failed or tokens are not the target's; None for a run
    that was read.
    """

    path: Path
    findings: Findings
    code: int | None = None

    @property
    def summary(self) -> pd.DataFrame:
        """The rows of ``summary.csv``: one per category and method; ``category`` is ``overall`` for
        all cases.
        """
        return self.findings.summary

    @property
    def overall(self) -> pd.DataFrame:
        """One row per method, over all cases."""
        from specbench.records.record import OVERALL

        return self.summary[self.summary["category"] == OVERALL].reset_index(drop=True)

    @property
    def cases(self) -> pd.DataFrame:
        """One row per case, method and round: tokens, steps, MAT, seconds and speedup; blank where
        the case failed.

        The speedup is over vanilla in the same case and round, blank where a run has none.
        """
        import pandas as pd

        from specbench.records.record import VANILLA

        rows: list[dict[str, Any]] = []
        for number, entry in enumerate(self.findings.reported):
            claimed = entry.facts.timed and not entry.facts.time_only
            for record in entry.run.records:
                ok, turns = record.status == "ok", record.turns
                steps, accepted = (
                    sum(len(turn.accept) for turn in turns),
                    sum(sum(turn.accept) for turn in turns),
                )
                tokens, seconds = (
                    sum(len(turn.ids) for turn in turns),
                    sum(turn.wall_s for turn in turns),
                )
                paced = ok and tokens and claimed and record.method not in entry.facts.unaccepted
                figures = {
                    "tokens": tokens,
                    "steps": steps,
                    "mat": accepted / steps if steps else None,
                    "seconds": seconds,
                }
                named = {"case": record.case, "category": record.category, "method": record.method}
                about = {**named, "round": record.round, "ok": ok}
                pace = seconds / tokens if paced else math.nan
                rows.append(
                    {
                        **about,
                        **(figures if ok else dict.fromkeys(figures)),
                        "run": number,
                        "pace": pace,
                    }
                )
        found = pd.DataFrame(rows)
        if found.empty:
            return found
        places = ["run", "case", "round"]
        vanilla = (
            found[found["method"] == VANILLA].drop_duplicates(places).set_index(places)["pace"]
        )
        speedup = (
            vanilla.reindex(pd.MultiIndex.from_frame(found[places])).to_numpy(dtype=float)
            / found["pace"]
        )
        return found.assign(speedup=speedup).drop(columns=["run", "pace"])


def load(path: str | Path) -> Result:
    """Read a run's directory, also of an unfinished run. Raises InputError naming what is wrong."""
    from specbench.input import InputError, require_directory

    if not isinstance(path, str | Path):
        raise InputError(f"load({path!r}): expected the directory of a run, as text or a Path")
    require_directory()
    from specbench.report.build import read_findings
    from specbench.report.locate import find_runs
    from specbench.runs.config import refuse_unusable

    refuse_unusable(str(path), "load")
    return Result(Path(path), read_findings(find_runs([Path(path)])))


def run(*settings: str) -> Result:
    """Do what ``specbench run SETTINGS`` does, with its display and report; an earlier call is
    continued.

    Raises:
        InputError: The settings cannot be run.
        KeyboardInterrupt: The run was interrupted.
    """
    from specbench.input import InputError, require_directory

    if wrong := [each for each in settings if not isinstance(each, str)]:
        raise InputError(
            f"run({wrong[0]!r}): expected settings, each a text, as in run('model=tiny',"
            " 'method=[pld]')"
        )
    require_directory()
    from specbench.runs.job import job_at
    from specbench.runs.launch import run_job
    from specbench.runs.search import run_search
    from specbench.screen import INTERRUPTED

    job, directory = job_at(settings)
    reported: list[Findings] = []
    do = run_search if job.config.load.find else run_job
    code = do(job, directory, keep=reported.append)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return Result(directory, reported[0] if reported else load(directory).findings, code)
