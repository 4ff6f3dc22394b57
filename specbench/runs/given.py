"""The settings that a user gave, and whether each has an effect in the run: the schema has the
conditions (``When``).

Only what was given is looked at, not what an option of a group brings along, and not a value that
is the default.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from specbench.input import InputError, When
from specbench.runs.config import Config, HydraSettings, conf_dir
from specbench.runs.entry import Entry

_MISSING = object()
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_PREFIX = re.compile(r"^\+{0,2}")


@dataclass
class Composed(Config):
    """The settings of a run, and what the conditions need to know in addition.

    sweeps: the run is a job of a sweep. read: settings that a method refers to. draws: a method
    draws its drafts.
    """

    hydra: HydraSettings = field(default_factory=HydraSettings)
    sweeps: bool = False
    read: frozenset[str] = frozenset()
    draws: bool = False


_DEFAULTS = Composed()


@dataclass(frozen=True, slots=True)
class Idle:
    """The given settings of a run that have no effect, key -> why, and those that have one."""

    why: dict[str, str] = field(default_factory=dict)
    effective: set[str] = field(default_factory=set)


def find_idle(
    cfg: DictConfig, config: Config, entries: Iterable[Entry], sweeps: bool = False
) -> Idle:
    """The given settings that have no effect in a run.

    cfg: the composed configuration with Hydra's part. config: its checked settings. entries: its
    methods. sweeps: it is a job of a sweep.
    """
    nodes = OmegaConf.to_container(cfg.method, resolve=False)
    run = Composed(
        **{each.name: getattr(config, each.name) for each in fields(config)},
        sweeps=sweeps,
        read=frozenset(_REFERENCE.findall(str(nodes))),
        draws=any(getattr(entry.method, "draws", False) for entry in entries),
    )
    found = Idle()
    given = cfg.hydra.overrides
    for each in OverridesParser.create().parse_overrides([*given.hydra, *given.task]):
        key = each.key_or_group.replace("/", ".")
        text = _PREFIX.sub("", str(each.input_line))
        leaves = [] if each.is_delete() else _list_leaves(key, each.value(), text)
        for path, shown in leaves:
            failed = [when for when in _conditions(path.split(".")) if not when.fits(run, path)]
            value = _value_at(run, path)
            if failed and (value is _MISSING or value != _value_at(_DEFAULTS, path)):
                found.why[path] = _explain(shown, path, failed[0], run)
            elif not failed:
                found.effective.add(path)
    return found


def refuse_idle(jobs: Iterable[Idle]) -> None:
    """Raise InputError for the first setting that has an effect in none of the jobs."""
    found = Idle()
    for job in jobs:
        found.why.update(job.why)
        found.effective.update(job.effective)
        if found.effective and not found.why.keys() - found.effective:
            return
    for key, why in found.why.items():
        if key not in found.effective:
            raise InputError(why)


def _list_leaves(key: str, value: Any, text: str) -> Iterator[tuple[str, str]]:
    """(path, as it was given) of a setting, or of those that a mapping gives."""
    if not isinstance(value, dict):
        yield key, text
        return
    for name, inner in value.items():
        yield from _list_leaves(f"{key}.{name}", inner, f"{key}.{name}={inner}")


def _conditions(path: Sequence[str]) -> Iterator[When]:
    """The conditions on the way to a setting, those of its groups first."""
    kind: Any = Composed
    for part in path:
        group = next((each for each in (kind, *get_args(kind)) if is_dataclass(each)), None)
        hints = get_type_hints(group, include_extras=True) if group else {}
        if part not in hints:
            return
        yield from (
            each for each in getattr(hints[part], "__metadata__", ()) if isinstance(each, When)
        )
        kind = get_type_hints(group)[part]


def _value_at(node: Any, path: str) -> Any:
    """Return the value at a dotted path; ``_MISSING`` if the path does not exist, and for all
    settings of Hydra.
    """
    for part in path.split("."):
        node = (
            node.get(part, _MISSING) if isinstance(node, Mapping) else getattr(node, part, _MISSING)
        )
    return _MISSING if path.startswith("hydra.") else node


def _explain(shown: str, key: str, condition: When, run: Composed) -> str:
    value = "MULTIRUN" if run.sweeps else "RUN"
    if condition.key != "hydra.mode":
        value = _value_at(run, condition.key)
    if isinstance(value, Mapping):  # of methods
        value = f"[{','.join(value)}]"
    elif is_dataclass(value):
        value = "{...}"
    users = "{users}" in condition.needs and [
        path.stem
        for path in sorted((conf_dir() / "method").glob("*.yaml"))
        if f"${{{key}}}" in path.read_text("utf-8")
    ]
    needs = condition.needs.replace("{users}", ", ".join(users or ["none"]))
    return (
        f"{shown}: has no effect with {condition.key}={value}; it counts with {needs}. Without"
        " that, leave it out"
    )
