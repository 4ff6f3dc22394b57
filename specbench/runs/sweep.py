"""Jobs on one of Hydra's launchers, and how each of them ended: also one that was killed on another machine.

A launcher may pickle the task and run it anywhere, so all that a job says comes back as its value (``Ended``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench.screen import ending_as_interrupts
from specbench.types import InputError

# Of Hydra's own settings: what may be called. Hydra takes no launcher and no sweeper that is not one of its plugins.
MAY_CALL = re.compile(
    r"hydra\.(launcher|sweeper)\._target_=hydra(_plugins|\._internal)\.\S+|hydra\.\w+_logging\.handlers\.\w+\.class=logging\.\w+"
)
SUBMITIT = "hydra_plugins.hydra_submitit_launcher"
INSTALLED_BY = {
    SUBMITIT: "pip install 'specbench[slurm]'",
    "hydra_plugins.hydra_ray_launcher": "pip install 'specbench[ray]'",
    "hydra_plugins.hydra_joblib_launcher": "pip install hydra-joblib-launcher",
}
KILLED = 1  # exit code of a job that gave none
log = logging.getLogger(__name__)
ASKED_EVERY_S = 30  # Slurm forgets a job that ended after five minutes (its MinJobAge)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended. overrides: what sets it apart from the others. directory: None where it is not known.

    code: its exit code. reason: in one line, '' where it is done.
    """

    overrides: tuple[str, ...]
    directory: Path | None
    code: int
    reason: str = ""


def this_job() -> tuple[tuple[str, ...], Path]:
    """Overrides and directory of the job that runs here."""
    found = HydraConfig.get()
    return tuple(found.overrides.task), Path(found.runtime.output_dir)


def run_jobs(
    task: Callable[..., Ended],
    conf: Path,
    name: str,
    overrides: Sequence[str],
    check: Callable[[DictConfig], Any] = lambda _: None,
) -> tuple[list[Ended], DictConfig]:
    """Run a sweep to its end, whatever becomes of its jobs; returns them and the sweep's own configuration.

    task: also takes ``total`` and ``swept``: how many jobs there are, and the settings in which they differ. conf: the
    configuration tree. name: of the configuration in it. check: is given each way of drafting before the first job.
    Raises InputError, and Hydra's errors, for a sweep that cannot
    be begun.
    """
    with initialize_config_dir(str(conf), job_name="specbench", version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        cfg = _compose(hydra.config_loader, name, overrides)
        _refuse_calls(cfg)
        package = _require_launcher(cfg.hydra.launcher._target_)
        jobs, swept = _list_jobs(hydra.config_loader, cfg, overrides)
        told = {tuple(item for item in job if re.match(r"decode(=|\.length)", item)): job for job in jobs or ()}
        for job in told.values():
            check(hydra.config_loader.load_configuration(name, job, RunMode.RUN))
        counted = functools.partial(task, total=None if jobs is None else len(jobs), swept=swept)
        try:
            with ending_as_interrupts(), _killed_as_results() if package == SUBMITIT else contextlib.nullcontext():
                batches = hydra.multirun(name, counted, list(overrides))
        except (InputError, HydraException, OmegaConfBaseException):
            raise
        except Exception as error:  # the boundary of a launcher, which may give up with its first killed job
            log.exception("the launcher gave up")
            reason = f"the launcher gave up ({type(error).__name__}): see above; jobs that are done are kept"
            return [Ended(("all jobs",), None, KILLED, reason)], cfg
    return [job.return_value for batch in batches for job in batch], cfg


def _require_launcher(target: str) -> str:
    """The package of a launcher. Raises InputError where it is not installed."""
    package = target.rpartition(".")[0].rpartition(".")[0]
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # of the package that it is in
        found = None
    if found is None:
        raise InputError(f"hydra/launcher: {package} is not installed; {INSTALLED_BY.get(package, 'install it')}")
    return package


def _compose(loader: ConfigLoader, name: str, overrides: Sequence[str]) -> DictConfig:
    return loader.load_configuration(name, list(overrides), RunMode.MULTIRUN)


def _list_jobs(
    loader: ConfigLoader, cfg: DictConfig, overrides: Sequence[str]
) -> tuple[list[list[str]] | None, list[str]]:
    """The overrides of each job, and what they differ in; None, [] where another sweeper than Hydra's own chooses."""
    if not str(cfg.hydra.sweeper._target_).endswith(f".{BasicSweeper.__name__}"):
        return None, []
    fixed = [f"{key}={value}" for key, value in (cfg.hydra.sweeper.params or {}).items()]
    parsed = OverridesParser.create(config_loader=loader).parse_overrides([*fixed, *overrides])
    swept = [each.get_key_element() for each in parsed if each.is_sweep_override()]
    return BasicSweeper.split_arguments(parsed, None)[0], swept


def _refuse_calls(cfg: DictConfig) -> None:
    """Raise InputError where a setting of Hydra names code to be called: a sweep would call it."""
    for call in _calls(OmegaConf.to_container(cfg.hydra), "hydra"):
        if not MAY_CALL.fullmatch(call):
            raise InputError(f"{call}: names code to be called; expected a plugin of Hydra as launcher or sweeper only")


def _calls(node: Any, path: str) -> Iterator[str]:
    """``key=value`` of all that Hydra's ``instantiate`` or ``logging.config`` would call below a node."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from [f"{path}.{key}={value}"] if key in ("_target_", "()", "class") else _calls(value, f"{path}.{key}")


@contextlib.contextmanager
def _killed_as_results() -> Iterator[None]:
    """A job of submitit that gave no result is one that ended; left alone, it hides how all others end."""
    from submitit.core.core import Job
    from submitit.core.utils import FailedJobError, UncompletedJobError
    from submitit.slurm.slurm import SlurmJob

    wait = Job.results

    def results(job: Job) -> list[Any]:
        try:
            return wait(job)
        except (FailedJobError, UncompletedJobError) as error:
            return [JobReturn(_return_value=_ended(job, error), status=JobStatus.COMPLETED)]

    watcher = SlurmJob.watcher if _accounts() else _queue_watcher()
    with mock.patch.object(Job, "results", results), mock.patch.object(SlurmJob, "watcher", watcher):
        yield


def _ended(job: Any, error: Exception) -> Ended:
    overrides = tuple(job.submission().args[0])
    lines = [line for line in str(error).splitlines() if line.strip(" -")]
    state = re.search(r"\(state: (\w+)", lines[1] if len(lines) > 1 else "")
    said = f"state {state[1]}" if state else lines[-1]
    return Ended(overrides, None, KILLED, f"ended without a result, {said}: see {job.paths.stderr}")


def _accounts() -> bool:
    """Whether Slurm keeps accounts: without them ``sacct`` fails, and no end of a killed job would be seen."""
    if shutil.which("sacct") is None:
        return False
    return subprocess.run(["sacct", "--noheader"], capture_output=True, check=False).returncode == 0


def _queue_watcher() -> Any:
    """What asks Slurm's queue in place of its accounts."""
    from submitit.slurm.slurm import SlurmInfoWatcher

    class QueueWatcher(SlurmInfoWatcher):
        def _make_command(self) -> list[str] | None:
            asked = super()._make_command()
            return asked and ["squeue", "--me", "--array", "--states=all", "--noheader", "--format=%i|%T|%N"]

        def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
            text = string if isinstance(string, str) else string.decode()
            found = super().read_info(f"JobID|State|NodeList\n{text}")
            return {job: {"State": "FORGOTTEN"} for job in self._registered - self._finished} | found

    return QueueWatcher(delay_s=ASKED_EVERY_S)
