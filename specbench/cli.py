"""The ``specbench`` command: composes the configuration, has it checked, and runs the job.
Only this file and ``sweep`` use Hydra.

The way of a run, from here down: ``cli`` composes; ``job`` checks and reads everything but weights (``material``);
``launch`` shows the run, and reports at its end; ``execution`` opens the directory and writes (``store``,
``manifest``); ``stage`` loads the target and binds the methods; ``session`` decodes.
A wrong setting ends with a message and exit code 2, where it can be seen without weights before a model is loaded.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_type_hints

import hydra
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench.config import Config, digest, near, refuse_extras, refuse_unusable
from specbench.execution import SHARDS, locked
from specbench.job import Job, prepare
from specbench.launch import FAILED, INTERRUPTED, report_jobs, run_job, say_failed
from specbench.material import suite_name
from specbench.measure.identity import hide_in_file
from specbench.merge import part_name
from specbench.names import Plain, file_name, printable
from specbench.record import EngineKind
from specbench.shards import begin_shards, join_shards, missing, needs_shards
from specbench.sweep import Ended, run_jobs, this_job
from specbench.types import InputError

PACKAGE = Path(__file__).resolve().parent
# Setting -> the option of its group, where the setting is given without one.
OWN = {"model.path": "hub", "suite.path": "file", "model.trace": "replay"}
USAGE = 2
OF_SHARDS = ("suite.part=", "run.shards=", "measure.fresh=", "report.plots=", "hydra.sweep.dir=", "hydra.sweep.subdir=")

# Of Hydra's messages.
NOISE = re.compile(r"\n\s*(full_key|reference_type|object_type)[:=].*|\nTo append to your config use .*")
OPTION = re.compile(r"Could not (?:load|find) '([\w./]+)/([^'/]*)'")
KEY = re.compile(r"Could not override '([^']+)'")
VALUE = re.compile(r"Error merging override (\S+)\n(.+)", re.DOTALL)


def conf_dir() -> Path:
    """The configuration tree: inside an installed package, beside it in a checkout."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def run_name(root: DictConfig) -> str:
    """``<model>-<suite>-<hash of the configuration>``: the same command finds its run."""
    plain = _plain(root)
    model = plain["model"]
    suite = plain["suite"]["name"] or suite_name(plain["suite"]["path"] or "")
    target = _target_name(model, plain["engine"]["kind"] == EngineKind.REPLAY)
    return f"{file_name(target.lower())}-{file_name(suite)}-{digest(plain)[:10]}"


def _target_name(model: Mapping[str, Any], replayed: bool) -> str:
    """The target's part of a directory's name; its card is not read yet."""
    if model["name"]:
        return str(model["name"])
    if replayed and model["trace"]:
        return f"replay-{Path(model['trace']).stem}"
    shape = model.get("random") or {}
    return Path(model["path"].removeprefix("bundled:")).name if model["path"] else f"random-{shape.get('family')}"


def _plain(root: DictConfig) -> dict[str, Any]:
    """The configuration without Hydra's part, as plain values."""
    keys = [str(key) for key in root if key != "hydra"]
    masked = OmegaConf.masked_copy(root, keys)
    masked._set_flag("allow_objects", True)
    return cast(dict[str, Any], OmegaConf.to_container(masked, resolve=True))


def register() -> None:
    """Register the schema, and the resolver of a run's directory name, with Hydra."""
    ConfigStore.instance().store(name="schema", node=Config)
    OmegaConf.register_new_resolver("run_name", lambda _root_: run_name(_root_), replace=True)
    OmegaConf.register_new_resolver("part_name", lambda _root_: part_name(_root_.suite.part), replace=True)


def make_job(cfg: DictConfig) -> Job:
    """Turn a composed configuration into a checked job. Raises InputError."""
    resolved = _plain(cfg)
    refuse_extras(resolved)
    refuse_unusable(resolved, "")
    if "hydra" in cfg:  # a cell of a sweep has its directory already
        refuse_unusable(str(cfg.hydra.run.dir), "hydra.run.dir")
    settings = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in ("hydra", "method")])
    config = cast(Config, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), settings)))
    whole = resolved | {"suite": resolved["suite"] | {"part": None}}
    return prepare(config, resolved, digest(resolved), digest(whole))


def job_of(overrides: Sequence[str]) -> Job:
    """The checked job of ``specbench OVERRIDES``, for scripts and tests. Raises InputError."""
    register()
    try:
        return make_job(_compose("config", list(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(_explain(error, list(overrides))) from error


def with_own_groups(overrides: Sequence[str]) -> list[str]:
    """The overrides, with the option of its group added to a path that is given alone.

    So no setting of the default model, or suite, remains beside it.
    """
    found = list(overrides)
    for key, own in OWN.items():
        group = key.partition(".")[0]
        if any(item.startswith(f"{key}=") for item in found) and not any(
            item.startswith((f"{group}=", f"{group}.name=", f"+{group}=")) for item in found
        ):
            found.insert(0, f"{group}={own}")
    return found


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


def _fail(message: str, program: str = "specbench") -> int:
    print(printable(f"{program}: error: {message}"), file=sys.stderr)
    return USAGE


def with_exit_code(main: Callable[[], None]) -> Callable[[], int]:
    """``main`` of a script: 0, or a line on stderr and 2 where it raises an error of the input."""

    @functools.wraps(main)
    def call() -> int:
        try:
            main()
        except InputError as error:
            return _fail(str(error), Path(sys.argv[0]).stem)
        return 0

    return call


def _explain(error: BaseException, overrides: list[str]) -> str:
    """A composition error in plain words where its kind is known; else Hydra's message without its noise."""
    # Hydra keeps the reason in the error's cause.
    reasons = [str(part).strip() for part in (error, error.__cause__) if part is not None and str(part).strip()]
    message = reasons[0] if len(reasons) < 2 or reasons[1] in reasons[0] else "\n".join(reasons)
    if found := OPTION.search(message):
        group, name = found.groups()
        return f"{group}={name}: there is no {group}/{name}; {near(name, _options(group))}"
    if found := KEY.search(message):
        path = found[1]
        parent, _, key = path.rpartition(".")
        if not parent and (choices := _options(key)):
            return f"{key}: not in the default configuration; add the group with a plus: +{key}={' | '.join(choices)}"
        if siblings := _settings(parent, overrides):
            return f"{path}: no such setting; {near(key, siblings)}"
        return f"{path}: no such setting; choose the method or group that has it first (see specbench --cfg job)"
    message = NOISE.sub("", message)
    if found := VALUE.search(message):
        return f"{found[1]}: {found[2].strip()}"
    return message.strip()


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def _settings(path: str, overrides: list[str]) -> list[str]:
    """The settings of the node at a dotted path; empty if there is none."""
    if not path:
        return [*get_type_hints(Config)]
    try:
        node = OmegaConf.select(_compose("config", [item for item in overrides if re.match(r"[\w/@]+=", item)]), path)
    except (HydraException, OmegaConfBaseException):
        return []
    return sorted(str(key) for key in node) if isinstance(node, DictConfig) else []


def _compose(name: str, overrides: list[str]) -> DictConfig:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose(name, overrides, return_hydra_config=True)


def _run_one(cfg: DictConfig, launch: str, report: bool = True) -> Ended:
    """One job of a sweep, perhaps in another process or on another machine. launch: which command began it.

    report: the run is a whole one; a shard is reported once it is merged.
    """
    _quiet()
    overrides, directory = this_job()
    if not cfg.report.identify and HydraConfig.get().job.num == 0:
        hide_in_file(Path(HydraConfig.get().sweep.dir) / "multirun.yaml")
    try:
        job = replace(make_job(cfg), launch=launch)
        if job.config.run.shards != 1:
            raise InputError(f"run.shards={job.config.run.shards}: a job of a sweep is one worker; expected 1")
        code, reason = run_job(job, directory, report), ""
    except InputError as error:
        code, reason = _fail(str(error)), str(error)
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
        join_shards(job, shards, directory)
    return run_job(job, directory)


def _sweep(name: str, overrides: list[str]) -> int:
    """The jobs of a sweep, on Hydra's launcher, and a report over all of them; returns the highest exit code."""
    ended, cfg = run_jobs(functools.partial(_run_one, launch=uuid.uuid4().hex), conf_dir(), name, overrides)
    report_jobs([(job.overrides, job.directory, job.code, job.reason) for job in ended], cfg.report.plots)
    return max((job.code for job in ended), default=0)


def _inform(overrides: list[str]) -> None:
    """Hydra's own command line, for what it prints of a configuration: help, values, completions."""
    sys.argv[1:] = [item for item in sys.argv[1:] if item not in overrides] + with_own_groups(overrides)
    hydra.main(config_path=str(conf_dir()), config_name="config", version_base="1.3")(lambda cfg: None)()


def main() -> None:
    """Entry point."""
    register()
    arguments = get_args_parser().parse_args()
    informational = arguments.help or arguments.hydra_help or arguments.cfg or arguments.info
    if informational or arguments.shell_completion:
        _inform(arguments.overrides)
        sys.exit()
    _quiet()
    name, overrides = arguments.config_name or "config", with_own_groups(arguments.overrides)
    if arguments.config_dir:
        overrides.append(f"hydra.searchpath=[file://{Path(arguments.config_dir).resolve()}]")
    try:
        cfg = None if arguments.multirun else _compose(name, overrides)
        if cfg is None or cfg.hydra.mode == RunMode.MULTIRUN:  # an experiment that is a grid sweeps without -m
            sys.exit(_sweep(name, overrides))
        job = replace(make_job(cfg), launch=uuid.uuid4().hex)
        directory = Path(cfg.hydra.run.dir).resolve()
        code = _run_shards(job, directory, name, overrides) if needs_shards(job, directory) else run_job(job, directory)
    except InputError as error:
        code = _fail(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        code = _fail(_explain(error, overrides))
    except KeyboardInterrupt:  # while the jobs of a launcher are waited for
        print("specbench: interrupted; the same command goes on from what is done", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
