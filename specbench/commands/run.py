"""``specbench run``: run a composed configuration, its shards, or a sweep.

The way of a run: ``composition`` composes the settings; ``job`` checks them and reads everything
but weights from a source (``sources``); ``launch`` shows the run and reports at its end;
``execution`` opens the directory and writes the records of the blocks, which ``session`` decodes. A
wrong setting ends with a message and exit code 2, where possible before a model is loaded. Hydra's
own flags, such as --help and --cfg, are answered before torch is imported.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from specbench.input import InputError
from specbench.names import printable
from specbench.runs import composition
from specbench.screen import DONE, INTERRUPTED, fail

DRY = composition.DRY


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 1 a method failed, 2 the settings do not allow it, 130 interrupted."""
    try:
        if composition.inform(argv):
            return DONE
    except InputError as error:
        return fail(str(error))
    from specbench.runs.job import quiet_libraries  # these bring torch
    from specbench.runs.sweep import run_sweep

    composition.register()
    quiet_libraries()
    flags = composition.read_flags(argv)
    name, overrides = (
        flags.config_name or composition.CONFIG,
        composition.with_own_groups(flags.overrides),
    )
    try:
        cfg = None if flags.multirun else composition.compose_config(name, overrides)
        # an experiment that is a grid sweeps without -m
        if cfg is None or cfg.hydra.mode == RunMode.MULTIRUN:
            if DRY in argv:
                raise InputError(
                    f"{DRY}: these are the jobs of a sweep; expected the settings of one of them"
                )
            return run_sweep(name, overrides)
        return run_single(cfg, name, overrides, dry=DRY in argv)
    except InputError as error:
        return fail(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        return fail(composition.explain(error, overrides))
    except KeyboardInterrupt:  # while the jobs of a launcher are waited for
        print(
            "specbench: interrupted; the same command continues from what is done", file=sys.stderr
        )
        return INTERRUPTED


def run_single(cfg: DictConfig, name: str, overrides: list[str], dry: bool) -> int:
    """Run one composed configuration, its shards, or the loads that it searches; returns the exit
    code.

    name: of the configuration. dry: only print what would run. Raises InputError.
    """
    from specbench.runs.earlier import find_grown, preview
    from specbench.runs.execution import refuse_foreign
    from specbench.runs.job import begin_job
    from specbench.runs.launch import run_job
    from specbench.runs.search import run_search
    from specbench.runs.sweep import check_launcher, needs_shards, run_shards

    job = begin_job(cfg, uuid.uuid4().hex)
    if cell := composition.spell_cell(cfg):
        print(printable(cell))
        # for the report
        suite = replace(job.source.suite, warnings=(*job.source.suite.warnings, cell))
        job = replace(job, source=replace(job.source, suite=suite))
    named = Path(cfg.hydra.run.dir).expanduser().resolve()
    if job.config.load.find:
        if dry:
            raise InputError(
                f"{DRY}: load.find={job.config.load.find} finds its loads while it runs; expected"
                " one load"
            )
        return run_search(job, named)
    refuse_foreign(named)
    directory = find_grown(job, named, dry) if named.name == composition.run_name(cfg) else named
    if needs_shards(job, directory):
        check_launcher(cfg)
    if dry:
        print(*(f"{what:9} {printable(text)}" for what, text in preview(job, directory)), sep="\n")
        return DONE
    return (
        run_shards(job, directory, name, overrides)
        if needs_shards(job, directory)
        else run_job(job, directory)
    )
