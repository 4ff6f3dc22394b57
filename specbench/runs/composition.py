"""Composes the configuration with Hydra from groups, options and overrides, and explains an
override that is wrong.

The module does not import torch, so that ``--help`` and ``--cfg`` start fast.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import hydra
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench.input import LONGEST_PART, InputError, decode_text, read_file
from specbench.names import file_name, near, suite_name
from specbench.records.record import EngineKind
from specbench.runs.config import Config, conf_dir, list_options
from specbench.runs.digest import digest
from specbench.runs.parts import part_name
from specbench.screen import shorten_words

# Setting -> the option of its group, if the setting is given without one.
OWN = {"model.path": "hub", "suite.path": "file", "model.trace": "replay"}

# Of Hydra's messages.
NOISE = re.compile(
    r"\n\s*(full_key|reference_type|object_type)[:=].*|\nTo append to your config use .*"
)
WHERE = re.compile(r"\n\s*full_key: (\S+)")
OPTION = re.compile(r"Could not (?:load|find) '([\w./]+)/([^'/]*)'")
# "KeyError raised ...
RAISED = re.compile(r'\w+ raised while resolving interpolation: "?(.+?)"?$', re.MULTILINE)
REFERENCE = re.compile(r"Error resolving interpolation '(.+?)', possible")
TWICE = re.compile(
    r"(?:Multiple values for )?([\w@/]+)(?: appears more than once in the final|\. To override)"
)
KEY = re.compile(r"Could not override '([^']+)'")
GRAMMAR = "override_grammar"
VALUE = re.compile(r"Error merging override (\S+)\n(.+)", re.DOTALL)
DRY = "--dry-run"  # a flag of ours in addition to Hydra's
OPTIONS_IN = ("*.yaml", "*/*.yaml", "*/*/*.yaml")  # of a folder of one's own
CONFIG = "config"  # the name of the default configuration


def run_name(root: DictConfig) -> str:
    """Returns ``<model>-<suite>-<hash of the configuration>``, by which the same command finds its
    run.
    """
    plain = plain_values(root)
    model = plain["model"]
    suite = plain["suite"]["name"] or suite_name(plain["suite"]["path"] or "")
    if model["name"]:  # the card of the target is not read yet
        target = str(model["name"])
    elif plain["engine"]["kind"] == EngineKind.REPLAY and model["trace"]:
        target = f"replay-{Path(model['trace']).stem}"
    elif model["path"]:
        target = Path(model["path"].removeprefix("bundled:")).name
    else:
        target = f"random-{(model.get('random') or {}).get('family')}"
    return f"{file_name(target.lower())}-{file_name(suite)}-{digest(plain)[:10]}"


def plain_values(root: DictConfig) -> dict[str, Any]:
    """The configuration without Hydra's part, as plain values."""
    plain: dict[str, Any] = {
        str(key): OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        for key, node in root.items()
        if key != "hydra"
    }
    model, suite = plain.get("model") or {}, plain.get("suite") or {}
    if model.get("random") and not any(model["random"].values()):
        model["random"] = None
    if not any((suite.get("hub") or {}).values()):
        suite["hub"] = None
    return plain


@functools.cache
def register() -> None:
    """Register the schema, and the resolver of a run's directory name, with Hydra."""
    ConfigStore.instance().store(name="schema", node=OmegaConf.structured(Config))
    OmegaConf.register_new_resolver("run_name", lambda _root_: run_name(_root_), replace=True)
    OmegaConf.register_new_resolver(
        "part_name", lambda _root_: part_name(_root_.suite.part), replace=True
    )


def with_own_groups(overrides: Sequence[str]) -> list[str]:
    """The overrides, with the option of its group added to a path that is given alone.

    Without it, settings of the default model or suite would remain.
    """
    found = list(overrides)
    for key, own in OWN.items():
        group = key.partition(".")[0]
        if any(item.startswith(f"{key}=") for item in found) and not any(
            item.startswith((f"{group}=", f"{group}.name=", f"+{group}=")) for item in found
        ):
            found.insert(0, f"{group}={own}")
    return found


def explain(error: BaseException, overrides: list[str]) -> str:
    """A composition error in plain words if its kind is known; else Hydra's message without its
    noise.
    """
    # Hydra keeps the reason in the error's cause.
    reasons = [
        str(part).strip()
        for part in (error, error.__cause__)
        if part is not None and str(part).strip()
    ]
    message = shorten_words(
        reasons[0] if len(reasons) < 2 or reasons[1] in reasons[0] else "\n".join(reasons)
    )
    if found := OPTION.search(message):
        group, name = found.groups()
        return f"{group}={name}: there is no {group}/{name}; {near(name, list_options(group))}"
    if found := REFERENCE.search(message):  # in the place of an option, before there are settings
        item = next((item for item in overrides if found[1] in item), found[1])
        return f"{item}: the reference cannot be resolved; expected the name of an option"
    if found := TWICE.search(message):
        return (
            f"+{found[1]}=...: the group has an option already; expected {found[1]}=..., without"
            " the plus"
        )
    if found := KEY.search(message):
        path = found[1]
        parent, _, key = path.rpartition(".")
        if not parent and (choices := list_options(key)):
            return (
                f"{key}: not in the default configuration; add the group with a plus:"
                f" +{key}={' | '.join(choices)}"
            )
        group, _, name = parent.rpartition(".")
        if group == "method" and name in list_options(group) and not _settings(parent, overrides):
            return f"{path}: the method is not in the run; choose it first, as method=[{name}]"
        while not (siblings := _settings(parent, overrides)):
            parent, _, key = parent.rpartition(".")  # the mistake is in the name of a group
        if key in siblings:
            return (
                f"{path}: no such setting; choose the method or group that has it first (see"
                " specbench --cfg job)"
            )
        return f"{path}: no such setting; {near(key, siblings)}"
    if GRAMMAR in message and (wrong := _find_wrong(overrides)):
        return (
            f"{wrong}: expected SETTING=VALUE, such as method=[pld] or 'method=[pld,sam]'; a value"
            " that contains = or a bracket of its own stands in quotes within quotes:"
            " 'suite.path=\"a=b.jsonl\"'"
        )
    where = WHERE.search(message)
    message = RAISED.sub(
        r"the reference cannot be resolved (\1); set what it names, or give a value", message
    )
    message = NOISE.sub("", message).strip()
    if found := VALUE.search(message):
        return f"{found[1]}: {found[2].strip()}"
    return f"{where[1]}: {message}" if where and not message.startswith(where[1]) else message


def _find_wrong(overrides: list[str]) -> str | None:
    """The first override that is not one."""
    parser = OverridesParser.create()
    for item in overrides:
        try:
            parser.parse_override(item)
        except HydraException:
            return item
    return None


def _settings(path: str, overrides: list[str]) -> list[str]:
    """The settings of the node at a dotted path; empty if the path does not exist."""
    if not path:
        return [*get_type_hints(Config)]
    try:
        node = OmegaConf.select(
            compose_config(
                CONFIG,
                [item for item in overrides if re.match(r"(hydra\.searchpath|[\w/@]+)=", item)],
            ),
            path,
        )
    except (HydraException, OmegaConfBaseException):
        return []
    return sorted(str(key) for key in node) if isinstance(node, DictConfig) else []


def compose_config(name: str, overrides: list[str]) -> DictConfig:
    """Compose a configuration, with Hydra's part. Raises InputError, as of ``check_overrides``."""
    check_overrides(overrides)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose(name, overrides, return_hydra_config=True)


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise InputError for what Hydra ends with a traceback or ignores: an option that is not a
    name, a missing folder.

    Raises:
        HydraException: an override is not one.
    """
    for each in OverridesParser.create().parse_overrides(list(overrides)):
        if not each.key_or_group:
            raise InputError(
                f"{each.input_line}: expected SETTING=VALUE, or ~SETTING to leave one out"
            )
        options = [] if each.is_delete() else list_options(each.key_or_group)
        if options and not _is_option(each.value()):
            raise InputError(
                f"{each.input_line}: expected the name of an option, or a list of names such as"
                f" [pld,sam]; there are: {', '.join(options)}"
            )
        places = each.value() if each.key_or_group == "hydra.searchpath" else None
        for place in places if isinstance(places, list) else ():
            folder = Path(str(place).removeprefix("file://"))
            if not str(place).startswith("pkg://") and not any(
                any(folder.glob(depth)) for depth in OPTIONS_IN
            ):
                fault = (
                    "has no options, as method/mine.yaml" if folder.is_dir() else "no such folder"
                )
                raise InputError(
                    f"--config-dir {folder} (hydra.searchpath): {fault}; expected a folder of"
                    " options"
                )
            for path in (path for depth in OPTIONS_IN[1:] for path in folder.glob(depth)):
                # an option of one of our groups
                if (conf_dir() / path.parent.relative_to(folder)).is_dir():
                    _check_option(path)


def _check_option(path: Path) -> None:
    """Raise InputError for a file of settings that Hydra would end with a traceback of."""
    fix = "expected a file of settings, each NAME: VALUE"
    text = decode_text(read_file(path, "", fix), str(path))
    try:
        OmegaConf.load(io.StringIO(text))
    except (yaml.YAMLError, OSError, RecursionError) as error:  # OSError: a number
        raise InputError(
            f"{path}: not YAML of settings ({' '.join(str(error).split())}); {fix}"
        ) from None


def _is_option(value: Any) -> bool:
    """Whether a value is a name that a file may have, a list of names, or a choice of these."""
    if isinstance(value, ChoiceSweep):
        return all(_is_option(each) for each in value.list)
    parts = value if isinstance(value, list) else [value]
    return all(
        isinstance(part, str | QuotedString | Glob)
        and len(str(part)) < LONGEST_PART
        and "\0" not in str(part)
        for part in parts
    )


def spell_cell(cfg: DictConfig) -> str:
    """Names the cell of an experiment that ``+size=small`` runs, in one line; '' without it."""
    chosen = cfg.hydra.runtime.choices
    if chosen.get("size") != "small" or not chosen.get("experiment"):
        return ""
    experiment = OmegaConf.load(conf_dir() / "experiment" / f"{chosen.experiment}.yaml")
    axes = OmegaConf.select(experiment, "hydra.sweeper.params") or {}
    cells = [
        f"{key}={chosen[key] if key in chosen else OmegaConf.select(cfg, key)} (of {values})"
        for key, values in axes.items()
    ]
    where = ", ".join(cells) or "it is a single run"
    return (
        f"size=small: one cell of {chosen.experiment}, on a small model and few questions: {where}"
    )


@contextlib.contextmanager
def composing(overrides: Sequence[str]) -> Iterator[DictConfig]:
    """The configuration of ``specbench run OVERRIDES``. What Hydra refuses, also in the context, is
    an InputError.
    """
    register()
    given = with_own_groups(overrides)
    try:
        yield compose_config(CONFIG, given)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(explain(error, given)) from error


def plain_settings(overrides: Sequence[str]) -> dict[str, Any]:
    """The values of ``specbench run OVERRIDES``, composed and nothing more. Raises InputError."""
    with composing(overrides) as cfg:
        return plain_values(cfg)


def inform(argv: Sequence[str]) -> bool:
    """Prints the answer to Hydra's own flags, such as --help and --cfg; returns whether the
    arguments have one.
    """
    given = read_flags(argv)
    asked = given.help or given.hydra_help or given.cfg or given.info or given.shell_completion
    if asked:
        register()
        with contextlib.suppress(HydraException):  # which Hydra reports itself
            check_overrides(given.overrides)
        flags = [item for item in argv if item != DRY and item not in given.overrides]
        sys.argv[1:] = flags + with_own_groups(given.overrides)
        hydra.main(config_path=str(conf_dir()), config_name=CONFIG, version_base="1.3")(
            lambda cfg: None
        )()
    return bool(asked)


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Hydra's own flags, as ``multirun``, and the ``overrides``, among them the folder of
    ``--config-dir``.

    Raises:
        InputError: A flag has no effect here.
    """
    given = get_args_parser().parse_intermixed_args([item for item in argv if item != DRY])
    idle = {"--config-path": given.config_path, "--experimental-rerun": given.experimental_rerun}
    if not given.cfg:
        idle |= {"--package": given.package, "--resolve": given.resolve}
    for flag, value in idle.items():
        if value:
            needs = "--cfg" if flag in ("--package", "--resolve") else "--help or --cfg"
            raise InputError(
                f"{flag}: has no effect on a run; it counts with {needs}. --config-dir adds a"
                " folder of options"
            )
    if given.config_dir:
        place = (
            str(Path(given.config_dir).expanduser().resolve())
            .replace("\\", "\\\\")
            .replace('"', '\\"')
        )
        given.overrides.append(f'hydra.searchpath=["file://{place}"]')
    return given
