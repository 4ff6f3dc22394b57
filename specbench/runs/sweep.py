"""Starts the jobs of a sweep or the shards of a run on one of Hydra's launchers, and reports how
each ended.

A launcher may pickle the task and run it anywhere, so all that a job reports comes back as its
value (``Ended``).

Of a run in shards several workers share the cases, and their parts merge into the run. A shard is a
part of the run in its own directory below the run's (``shards/k-of-n``), with ``suite.part=k/n``
and everything that a run has: a lock, a manifest, resuming. So a worker needs nothing of the
others, and a second command does what earlier ones have left.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import logging
import math
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, TypeAdapter, ValidationError

# the standard library's lacks what pydantic needs before Python 3.12
from typing_extensions import TypedDict

from specbench.input import describe
from specbench.measure.identity import hide_in_file
from specbench.measure.plan import LASTING
from specbench.names import printable
from specbench.records.record import LARGEST
from specbench.records.store import MANIFEST, RECORDS, SET_ASIDE, SHARDS
from specbench.runs.composition import check_overrides, explain
from specbench.runs.config import conf_dir
from specbench.runs.execution import OURS, locked, refuse_foreign_sweep, set_aside, share
from specbench.runs.given import refuse_idle
from specbench.runs.job import Job, begin_job, idle_of, limit_of, profile_of, quiet_libraries
from specbench.runs.launch import open_console, plain, print_unwritten, run_job
from specbench.runs.parts import is_whole, merge, part_name, split_part
from specbench.screen import DONE, FAILED, INTERRUPTED, ending_as_interrupts, fail, showing
from specbench.types import InputError

# Of Hydra's own settings: what may be called. Hydra takes no launcher and no sweeper that is not
# one of its plugins.
MAY_CALL = re.compile(
    r"hydra\.(launcher|sweeper)\._target_=hydra(_plugins|\._internal)\.\S+|hydra\.\w+_logging\.handlers\.\w+\.class=logging\.\w+"
)
SUBMITIT = "hydra_plugins.hydra_submitit_launcher"
INSTALLED_BY = {
    SUBMITIT: "pip install 'specbench[slurm]'",
    "hydra_plugins.hydra_ray_launcher": "pip install 'specbench[ray]'",
    "hydra_plugins.hydra_joblib_launcher": "pip install hydra-joblib-launcher",
}
SWEEP_PLOTS = ("sweep-", "heatmap_", "load")  # how the names of its own plots begin
KILLED = 1  # exit code of a job that gave none
MOST_JOBS = 10_000
Positive = Annotated[float | None, Field(ge=1, le=LARGEST)]
Count = Annotated[float | None, Field(ge=0, le=LARGEST)]
log = logging.getLogger(__name__)
ASKED_EVERY_S = 30  # Slurm forgets a job that ended after five minutes (its MinJobAge)


class LauncherCounts(TypedDict, total=False):
    """The counts among the settings of launchers; each has others as well."""

    nodes: Positive
    tasks_per_node: Positive
    cpus_per_task: Positive
    timeout_min: Positive
    array_parallelism: Positive
    mem_gb: Count
    gpus_per_node: Count
    max_num_timeout: Count
    signal_delay_s: Count


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a job. overrides: those that distinguish it from the others. directory: None if it
    is unknown.

    code: its exit code. reason: in one line, '' if it is done.
    """

    overrides: tuple[str, ...]
    directory: Path | None
    code: int
    reason: str = ""


def run_sweep(name: str, overrides: list[str]) -> int:
    """Run the jobs of a sweep on Hydra's launcher, and report over all of them; returns the highest
    exit code.
    """
    task = functools.partial(run_one, launch=uuid.uuid4().hex)
    ended, cfg = run_jobs(task, name, overrides, _check_jobs)
    print_failed(ended)
    runs = [job.directory for job in ended if job.directory and (job.directory / RECORDS).is_file()]
    code, to = max((job.code for job in ended), default=DONE), list(cfg.report.to)
    if len(runs) > 1 or (runs and to):
        from specbench.report import build_report
        from specbench.report.sinks import send_report
        from specbench.report.tables.terminal import print_findings, print_page

        console = open_console()
        with showing(console, f"writing the report of {len(runs)} runs", "specbench.report.build"):
            report = build_report(
                runs, _name_report(runs), plots=cfg.report.plots, style=cfg.report.style
            )
        print_findings(report.findings, console)
        for path in [
            path
            for path in report.files
            if path.suffix == ".png" and path.stem.startswith(SWEEP_PLOTS)
        ]:
            console.print(plain(path), highlight=False, soft_wrap=True)
        print_page(report.output, console)
        code = max(code, send_report(report, to, console, [Path(cfg.hydra.sweep.dir)]))
    return code


def _name_report(runs: Sequence[Path]) -> Path | None:
    """The folder of the report: None, the default, unless the folder of the sweep has runs of
    another sweep too.
    """
    others = {found.parent.resolve() for found in runs[0].parent.glob(f"*/{MANIFEST}")}
    if len(runs) < 2 or all(
        SET_ASIDE.search(path.name) for path in others.difference(run.resolve() for run in runs)
    ):
        return None
    names = "\n".join(sorted(run.name for run in runs))
    return runs[0].parent / f"report-{hashlib.sha256(names.encode()).hexdigest()[:8]}"


def _check_jobs(
    jobs: Sequence[Sequence[str]], compose: Callable[[Sequence[str]], DictConfig]
) -> None:
    """Raise InputError for a policy of lengths that cannot be made, or a setting without effect in
    any job.
    """
    compose = functools.cache(compose)

    def differ_in(keys: str) -> Iterator[DictConfig]:
        """One job of each combination of the settings whose names match."""
        return map(
            compose,
            {
                tuple(item for item in job if re.match(keys, item)): tuple(job) for job in jobs
            }.values(),
        )

    for cfg in differ_in(r"decode(=|\.length)"):
        limit_of(cfg.decode)
        profile_of(cfg.decode)
    refuse_idle(idle_of(cfg, sweeps=True) for cfg in differ_in(r"(?!method\.)"))


def print_failed(jobs: Sequence[Ended]) -> None:
    """Print a line for each job that failed."""
    console = open_console()
    alike = (
        set[str]()
        .union(*(job.overrides for job in jobs))
        .intersection(*(job.overrides for job in jobs))
    )
    failed = [job for job in jobs if job.code]
    for job in failed:
        name = " ".join(each for each in job.overrides if each not in alike) or " ".join(
            job.overrides
        )
        reason = job.reason or f"see {job.directory}"
        console.print(
            f"[red]failed[/]: {plain(name)}: {plain(reason)}", highlight=False, soft_wrap=True
        )
    if failed:
        console.print(
            f"{len(failed)} of {len(jobs)} jobs failed; the same command takes them up again",
            highlight=False,
        )


def run_one(
    cfg: DictConfig,
    launch: str,
    report: bool = True,
    total: int | None = None,
    swept: Sequence[str] = (),
) -> Ended:
    """One job of a sweep, perhaps in another process or on another machine. launch: which command
    began it.

    total: of jobs, if it is known. swept: settings in which they differ. report: the run is
    complete; a shard is reported once it is merged.
    """
    quiet_libraries()
    found = HydraConfig.get()
    overrides, directory = tuple(found.overrides.task), Path(found.runtime.output_dir)
    own = [item for item in overrides if item.partition("=")[0] in swept] or overrides
    number = found.job.num + 1
    print(f"\n{number}{f' of {total}' if total else ''}: {printable(' '.join(own))}", flush=True)
    if not cfg.report.identify and found.job.num == 0:
        hide_in_file(Path(found.sweep.dir) / "multirun.yaml")
    try:
        job = begin_job(cfg, launch)
        if job.config.run.shards != 1:
            raise InputError(
                f"run.shards={job.config.run.shards}: a job of a sweep is one worker; expected 1"
            )
        if job.config.load.find:
            raise InputError(
                f"load.find={job.config.load.find}: load.find cannot be used with -m; run each"
                " search alone"
            )
        code, reason = run_job(job, directory, report, alone=False, brief=total != 1), ""
    except (InputError, OmegaConfBaseException) as error:
        reason = str(error) if isinstance(error, InputError) else explain(error, list(overrides))
        code = fail(reason)
    except Exception as error:  # the boundary of a job: the others continue
        logging.exception("%s", directory)
        code, reason = FAILED, f"{type(error).__name__}: {error}"
    if code == INTERRUPTED:
        sys.exit(INTERRUPTED)
    return Ended(overrides, directory, code, reason)


def run_jobs(
    task: Callable[..., Ended],
    name: str,
    overrides: Sequence[str],
    check: Callable[
        [Sequence[Sequence[str]], Callable[[Sequence[str]], DictConfig]], Any
    ] = lambda *_: None,
) -> tuple[list[Ended], DictConfig]:
    """Run a sweep to its end, even if jobs fail; returns them and the sweep's own configuration.

    task: also takes ``total`` and ``swept``: how many jobs there are, and the settings in which
    they differ. name: of the configuration. check: is given the overrides of all jobs, and what
    composes them, before the first. Raises InputError, and Hydra's errors, for a sweep that cannot
    be begun.
    """
    with initialize_config_dir(str(conf_dir()), job_name="specbench", version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        check_overrides(overrides)
        cfg = hydra.config_loader.load_configuration(name, list(overrides), RunMode.MULTIRUN)
        for call in _calls(OmegaConf.to_container(cfg.hydra), "hydra"):
            if not MAY_CALL.fullmatch(call):  # a sweep would call it
                raise InputError(
                    f"{call}: names code to be called; expected a plugin of Hydra as launcher or"
                    " sweeper only"
                )
        if cfg.hydra.sweep.dir.startswith("~"):
            raise InputError(
                f"hydra.sweep.dir={cfg.hydra.sweep.dir}: expected a full path, or one from here"
            )
        refuse_foreign_sweep(Path(cfg.hydra.sweep.dir))
        package = check_launcher(cfg)
        jobs, swept = _list_jobs(hydra.config_loader, cfg, overrides)
        load = hydra.config_loader.load_configuration
        check(jobs or (), lambda job: load(name, list(job), RunMode.RUN))
        counted = functools.partial(task, total=None if jobs is None else len(jobs), swept=swept)
        try:
            with (
                ending_as_interrupts(),
                _killed_as_results() if package == SUBMITIT else contextlib.nullcontext(),
            ):
                batches = hydra.multirun(name, counted, list(overrides))
        except (InputError, HydraException, OmegaConfBaseException):
            raise
        except Exception as error:
            # the boundary of a launcher, which may give up with its first killed job
            log.exception("the launcher gave up")
            reason = (
                f"the launcher gave up ({type(error).__name__}): see above; jobs that are done are"
                " kept"
            )
            return [Ended(("all jobs",), None, KILLED, reason)], cfg
    return [job.return_value for batch in batches for job in batch], cfg


def check_launcher(cfg: DictConfig) -> str:
    """The package of the launcher. Raises InputError if it is not installed, or for a count that no
    launcher takes.

    Raises:
        OmegaConfBaseException: a setting of the launcher is missing, or refers to what does not
        exist.
    """
    node = OmegaConf.to_container(cfg.hydra.launcher, resolve=True, throw_on_missing=True)
    try:
        TypeAdapter(LauncherCounts).validate_python(node)
    except ValidationError as error:
        raise InputError(
            f"hydra.launcher.{describe(error)}; expected a number that the launcher takes"
        ) from None
    package = str(cfg.hydra.launcher._target_).rpartition(".")[0].rpartition(".")[0]
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # of the package that it is in
        found = None
    if found is None:
        raise InputError(
            f"hydra/launcher: {package} is not installed; {INSTALLED_BY.get(package, 'install it')}"
        )
    return package


def _list_jobs(
    loader: ConfigLoader, cfg: DictConfig, overrides: Sequence[str]
) -> tuple[list[list[str]] | None, list[str]]:
    """The overrides of each job, and what they differ in; None, [] if another sweeper than Hydra's
    own chooses.
    """
    if not str(cfg.hydra.sweeper._target_).endswith(f".{BasicSweeper.__name__}"):
        return None, []
    fixed = [f"{key}={value}" for key, value in (cfg.hydra.sweeper.params or {}).items()]
    parsed = OverridesParser.create(config_loader=loader).parse_overrides([*fixed, *overrides])
    last = {each.get_key_element(): each for each in parsed}
    counts = {key: _count_values(each) for key, each in last.items() if each.is_sweep_override()}
    if not 1 <= math.prod(counts.values()) <= MOST_JOBS:
        named = " times ".join(f"{key} of {count}" for key, count in counts.items())
        raise InputError(
            f"a sweep over {named} values: expected from 1 to {MOST_JOBS} jobs in all; choose other"
            " values"
        )
    return BasicSweeper.split_arguments(parsed, None)[0], list(counts)


def _count_values(swept: Override) -> float:
    """The number of values of a setting that is swept, which are not listed; 1 if the sweeper finds
    them (a glob).
    """
    values = swept.value()
    if isinstance(values, RangeSweep):
        start, stop, step = (value or 0 for value in (values.start, values.stop, values.step))
        count = (stop - start) / step if step else math.inf
        return max(0, math.ceil(count)) if math.isfinite(count) else math.inf
    return len(values.list) if isinstance(values, ChoiceSweep) else 1


def _calls(node: Any, path: str) -> Iterator[str]:
    """``key=value`` of all that Hydra's ``instantiate`` or ``logging.config`` would call below a
    node.
    """
    items = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, value in items:
        yield from (
            [f"{path}.{key}={value}"]
            if key in ("_target_", "()", "class")
            else _calls(value, f"{path}.{key}")
        )


@contextlib.contextmanager
def _killed_as_results() -> Iterator[None]:
    """A job of submitit that gave no result is one that ended; left alone, it hides how all others
    end.
    """
    from submitit.core.core import Job
    from submitit.core.utils import FailedJobError, UncompletedJobError
    from submitit.slurm.slurm import SlurmJob

    wait = Job.results

    def results(job: Job) -> list[Any]:
        try:
            return wait(job)
        except (FailedJobError, UncompletedJobError) as error:
            lines = [line for line in str(error).splitlines() if line.strip(" -")]
            state = re.search(r"\(state: (\w+)", lines[1] if len(lines) > 1 else "")
            how = f"state {state[1]}" if state else lines[-1]
            reason = f"ended without a result, {how}: see {job.paths.stderr}"
            ended = Ended(tuple(job.submission().args[0]), None, KILLED, reason)
            return [JobReturn(_return_value=ended, status=JobStatus.COMPLETED)]

    # The launcher makes its jobs itself, so their class is changed while it runs.
    # Without accounts Slurm's ``sacct`` fails, and no end of a killed job would be seen.
    sacct = ["sacct", "--noheader"]
    accounts = (
        shutil.which("sacct")
        and not subprocess.run(sacct, capture_output=True, check=False).returncode
    )
    watcher = SlurmJob.watcher if accounts else _queue_watcher()
    replaced = ((Job, "results", wait, results), (SlurmJob, "watcher", SlurmJob.watcher, watcher))
    for owner, name, _, ours in replaced:
        setattr(owner, name, ours)
    try:
        yield
    finally:
        for owner, name, theirs, _ in replaced:
            setattr(owner, name, theirs)


def _queue_watcher() -> Any:
    """The command that asks Slurm's queue instead of its accounts."""
    from submitit.slurm.slurm import SlurmInfoWatcher

    class QueueWatcher(SlurmInfoWatcher):
        def _make_command(self) -> list[str] | None:
            asked = super()._make_command()
            return asked and [
                "squeue",
                "--me",
                "--array",
                "--states=all",
                "--noheader",
                "--format=%i|%T|%N",
            ]

        def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
            text = string if isinstance(string, str) else string.decode()
            found = super().read_info(f"JobID|State|NodeList\n{text}")
            return {
                job: {"State": "FORGOTTEN"} for job in self._registered - self._finished
            } | found

    return QueueWatcher(delay_s=ASKED_EVERY_S)


OF_SHARDS = (
    "suite.part=",
    "run.shards=",
    "measure.fresh=",
    "report.plots=",
    "hydra.sweep.dir=",
    "hydra.sweep.subdir=",
)


def needs_shards(job: Job, directory: Path) -> bool:
    """Whether the run is to be made in shards; one that is merged, or has begun without them,
    continues without them.

    Raises:
        InputError: a method learns across cases.
    """
    count = job.config.run.shards
    for row in job.rows:
        if count > 1 and row.reset in LASTING:
            raise InputError(
                f"run.shards={count}: method.{row.name}.reset={row.reset} learns across cases, and"
                " a shard does not see those of the others; expected run.shards=1, or"
                f" method.{row.name}.reset=case"
            )
    return count > 1 and (job.config.measure.fresh or not (directory / RECORDS).exists())


def run_shards(job: Job, directory: Path, name: str, overrides: list[str]) -> int:
    """Run the shards that are not done on Hydra's launcher, and merge all of them; returns the exit
    code.
    """
    with locked(directory):
        shards = _begin_shards(job, directory)

        def find_missing() -> list[str]:
            return [part for part, shard in shards.items() if not is_whole(shard, job.whole)]

        left = find_missing()
        own = [item for item in overrides if not item.startswith(OF_SHARDS)]
        own += [
            f"suite.part={','.join(left)}",
            "run.shards=1",
            "measure.fresh=false",
            "report.plots=false",
        ]
        own += [f"hydra.sweep.dir={directory / SHARDS}", "hydra.sweep.subdir=${part_name:}"]
        worker = functools.partial(run_one, launch=str(job.launch), report=False)
        ended = run_jobs(worker, name, own)[0] if left else []
        print_failed(ended)
        if find_missing():
            return max([FAILED, *(job.code for job in ended)])
        about = share({"config": job.resolved, "config_hash": job.digest})
        try:
            merge(list(shards.values()), directory, own=about, part=job.config.suite.part)
        except OSError as error:  # a full disk; the shards are unchanged
            return print_unwritten(error, directory)
    return run_job(job, directory)


def _begin_shards(job: Job, directory: Path) -> dict[str, Path]:
    """Part -> directory of each shard; with ``measure.fresh`` an earlier run is set aside. Raises
    InputError.
    """
    if job.config.measure.fresh and any((directory / name).exists() for name in OURS):
        set_aside(directory)
    parts = split_part(
        job.config.suite.part, min(job.config.run.shards, len(job.source.suite.cases))
    )
    found = {part: directory / SHARDS / part_name(part) for part in parts}
    others = {path for path in (directory / SHARDS).glob("*-of-*") if path not in found.values()}
    if others:
        raise InputError(
            f"run.shards={job.config.run.shards}: {directory / SHARDS} has {min(others).name};"
            " expected the number of shards that the run was begun with, or measure.fresh=true"
        )
    return found
