"""The command ``specbench run``: has a composed configuration checked, and runs the job, its shards, or a sweep.

The way of a run, from here down: ``composition`` composes; ``job`` checks and reads everything but weights
(``material``); ``launch`` shows the run, and reports at its end; ``execution`` opens the directory and writes
(``store``, ``manifest``); ``stage`` loads the target and binds the methods; ``session`` decodes.
A wrong setting ends with a message and exit code 2, where it can be seen without weights before a model is loaded.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import uuid
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench.measure.identity import hide_in_file
from specbench.names import Plain, printable
from specbench.records.record import VANILLA
from specbench.records.store import SHARDS
from specbench.runs.composition import (
    DRY,
    compose_config,
    explain,
    inform,
    plain_values,
    register,
    run_name,
    schema,
    spell_cell,
    with_own_groups,
)
from specbench.runs.config import Config, conf_dir, refuse_extras, refuse_unusable
from specbench.runs.execution import locked
from specbench.runs.growth import find_grown
from specbench.runs.job import Job, limit_of, prepare
from specbench.runs.launch import report_jobs, run_job, say_failed, say_unwritten
from specbench.runs.preview import preview
from specbench.runs.shards import begin_shards, join_shards, missing, needs_shards
from specbench.runs.sweep import Ended, run_jobs, this_job
from specbench.screen import FAILED, INTERRUPTED, fail
from specbench.types import InputError

CONFIG = "config"  # the name of the default configuration
OF_SHARDS = ("suite.part=", "run.shards=", "measure.fresh=", "report.plots=", "hydra.sweep.dir=", "hydra.sweep.subdir=")


def make_job(cfg: DictConfig, like: Job | None = None) -> Job:
    """Turn a composed configuration into a checked job; a method that is left out leaves it too. Raises InputError.

    like: see ``prepare``.
    """
    resolved = plain_values(cfg)
    refuse_extras(resolved)
    refuse_unusable(resolved, "")
    if "hydra" in cfg:  # a cell of a sweep has its directory already
        refuse_unusable(str(cfg.hydra.run.dir), "hydra.run.dir")
    settings = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in ("hydra", "method")])
    config = cast(Config, OmegaConf.to_object(OmegaConf.merge(schema(), settings)))
    job = prepare(config, resolved, _unnamed(cfg, resolved["method"]), like)
    OmegaConf.set_struct(cfg, False)
    for name in job.left_out:  # so that the directory's name is that of the same run with its methods named
        del cfg.method[name]
    return job


def _unnamed(cfg: DictConfig, methods: Collection[str]) -> frozenset[str]:
    """The methods of the default list that no setting names."""
    composed = cfg.hydra if "hydra" in cfg else HydraConfig.get()
    keys = [item.lstrip("+~").partition("=")[0] for item in composed.overrides.task]
    if composed.job.config_name != CONFIG or any(re.match(r"(method|experiment)(@|$)", key) for key in keys):
        return frozenset()
    return frozenset(methods) - {VANILLA, *(key.split(".")[1] for key in keys if key.startswith("method."))}


def _say_left_out(job: Job) -> None:
    for reason in job.left_out.values():
        print(printable(f"specbench: left out: {reason}"))


def job_of(overrides: Sequence[str], like: Job | None = None) -> Job:
    """The checked job of ``specbench OVERRIDES``, for scripts and tests; like: see ``prepare``. Raises InputError."""
    register()
    try:
        return make_job(compose_config(CONFIG, list(overrides)), like)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(explain(error, list(overrides))) from error


def job_at(overrides: Sequence[str]) -> tuple[Job, Path]:
    """The checked job of ``specbench run OVERRIDES``, and its directory. Raises InputError."""
    register()
    _quiet()
    given = with_own_groups(overrides)
    try:
        cfg = compose_config(CONFIG, given)
        job = replace(make_job(cfg), launch=uuid.uuid4().hex)
        _say_left_out(job)
        return job, Path(cfg.hydra.run.dir).resolve()
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(explain(error, given)) from error


def _quiet() -> None:
    """Only errors of the libraries are logged; warnings of specbench go to stderr."""
    # Hydra checks our files of launchers by the schema of their package, and says each time that it does.
    warnings.filterwarnings("ignore", r"\s*'hydra/launcher/\w+' is validated", UserWarning)
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.basicConfig(force=True)
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.WARNING)
        handler.setFormatter(Plain("specbench: %(levelname)s: %(message)s"))


def _run_one(
    cfg: DictConfig, launch: str, report: bool = True, total: int | None = None, swept: Sequence[str] = ()
) -> Ended:
    """One job of a sweep, perhaps in another process or on another machine. launch: which command began it.

    total: of jobs, where it is known. swept: settings in which they differ. report: the run is a whole one; a shard is
    reported once it is merged.
    """
    _quiet()
    overrides, directory = this_job()
    own = [item for item in overrides if item.partition("=")[0] in swept] or overrides
    number = HydraConfig.get().job.num + 1
    print(f"\n{number}{f' of {total}' if total else ''}: {printable(' '.join(own))}", flush=True)
    if not cfg.report.identify and HydraConfig.get().job.num == 0:
        hide_in_file(Path(HydraConfig.get().sweep.dir) / "multirun.yaml")
    try:
        job = replace(make_job(cfg), launch=launch)
        _say_left_out(job)
        if job.config.run.shards != 1:
            raise InputError(f"run.shards={job.config.run.shards}: a job of a sweep is one worker; expected 1")
        code, reason = run_job(job, directory, report, again=False), ""
    except InputError as error:
        code, reason = fail(str(error)), str(error)
    except Exception as error:  # the boundary of a job: the others go on
        logging.exception("%s", directory)
        code, reason = FAILED, f"{type(error).__name__}: {error}"
    if code == INTERRUPTED:
        sys.exit(INTERRUPTED)
    return Ended(overrides, directory, code, reason)


def _run_shards(job: Job, directory: Path, name: str, overrides: list[str]) -> int:
    """Workers on Hydra's launcher share the cases, those that are not done; then the run is what they make together."""
    with locked(directory):
        shards = begin_shards(job, directory)
        left = missing(job, shards)
        own = [item for item in overrides if not item.startswith(OF_SHARDS)]
        own += [f"suite.part={','.join(left)}", "run.shards=1", "measure.fresh=false", "report.plots=false"]
        own += [f"hydra.sweep.dir={directory / SHARDS}", "hydra.sweep.subdir=${part_name:}"]
        worker = functools.partial(_run_one, launch=str(job.launch), report=False)
        ended = run_jobs(worker, conf_dir(), name, own)[0] if left else []
        say_failed([(job.overrides, job.directory, job.code, job.reason) for job in ended])
        if left := missing(job, shards):
            return max([FAILED, *(job.code for job in ended)])
        try:
            join_shards(job, shards, directory)
        except OSError as error:  # a full disk; the shards are as they were
            return say_unwritten(error, directory)
    return run_job(job, directory)


def _sweep(name: str, overrides: list[str]) -> int:
    """The jobs of a sweep, on Hydra's launcher, and a report over all of them; returns the highest exit code."""
    task = functools.partial(_run_one, launch=uuid.uuid4().hex)
    ended, cfg = run_jobs(task, conf_dir(), name, overrides, lambda cfg: limit_of(cfg.decode))
    report_jobs([(job.overrides, job.directory, job.code, job.reason) for job in ended], cfg.report.plots)
    return max((job.code for job in ended), default=0)


def main(argv: Sequence[str] | None = None) -> int:
    """``specbench run ARGUMENTS``; its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if inform(argv):
        return 0
    register()
    _quiet()
    dry = DRY in argv
    argv = [item for item in argv if item != DRY]
    arguments = get_args_parser().parse_args(argv)
    name, overrides = arguments.config_name or CONFIG, with_own_groups(arguments.overrides)
    if arguments.config_dir:
        overrides.append(f"hydra.searchpath=[file://{Path(arguments.config_dir).resolve()}]")
    try:
        cfg = None if arguments.multirun else compose_config(name, overrides)
        if cfg is None or cfg.hydra.mode == RunMode.MULTIRUN:  # an experiment that is a grid sweeps without -m
            if dry:
                raise InputError(f"{DRY}: these are the jobs of a sweep; expected the settings of one of them")
            return _sweep(name, overrides)
        job = replace(make_job(cfg), launch=uuid.uuid4().hex)
        _say_left_out(job)
        if cell := spell_cell(cfg):
            print(printable(cell))
            job = replace(job, suite=replace(job.suite, warnings=(*job.suite.warnings, cell)))  # for the report
        named = Path(cfg.hydra.run.dir).resolve()
        directory = find_grown(job, named) if named.name == run_name(cfg) else named
        if dry:
            print(*(f"{what:9} {printable(said)}" for what, said in preview(job, directory)), sep="\n")
            return 0
        return _run_shards(job, directory, name, overrides) if needs_shards(job, directory) else run_job(job, directory)
    except InputError as error:
        return fail(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        return fail(explain(error, overrides))
    except KeyboardInterrupt:  # while the jobs of a launcher are waited for
        print("specbench: interrupted; the same command goes on from what is done", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
