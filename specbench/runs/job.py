"""From settings to a checked job: everything that can be checked without weights is checked here.

An InputError names the key, its value, what was expected and the fix.
"""

from __future__ import annotations

import logging
import re
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench.decode.acceptance import make_rule
from specbench.decode.lengths import PRICE, Limit, make_limit
from specbench.decode.loop import derive_seed
from specbench.decode.sampling import Sampling, make_sampling
from specbench.measure.plan import RESETS, Block, make_plan, plan_stretches
from specbench.method import Peer, Remote
from specbench.models.choose import check_attention, choose_parallelism
from specbench.models.load import choose_device
from specbench.names import Plain, near, printable
from specbench.profile import Profile, open_profile
from specbench.records.record import CONTROL, VANILLA, CaseRecord, EngineKind
from specbench.runs import composition
from specbench.runs.config import (
    AUTO,
    BY_DEVICE,
    USUAL_NODES,
    Config,
    DecodeConfig,
    check_settings,
    refuse_unusable,
)
from specbench.runs.digest import digest
from specbench.runs.entry import Entry, make_entry
from specbench.runs.given import Idle, find_idle, refuse_idle
from specbench.runs.ledger import Ledger
from specbench.runs.sources import Source, gather
from specbench.serving.settings import ONE, check_load, count_measured
from specbench.suite import Suite
from specbench.types import InputError, Lossy, Relaxed, Typical

MOST_BLOCKS = 1_000_000
SCREEN = "screen"  # the look of plots that needs no file


@dataclass(frozen=True, slots=True)
class Job:
    """A run that has passed every check that needs no weights. resolved: the configuration as plain
    values.

    entries: the methods; rows: the same with the A/A control, if there is one. source: where tokens
    come from. limit: of drafts. profile: the cost of a step as given, if it is. way, why: as of
    ``choose_parallelism``; None if no model is loaded. whole: the digest without ``suite.part``.
    launch: identifies the command that began it, None = this process. wanted: blocks at the
    beginning of the plan that run now; None = all. left_out: method of the default list -> why it
    cannot run here; no other field has it.
    """

    config: Config
    resolved: dict[str, Any]
    digest: str
    entries: tuple[Entry, ...]
    rows: tuple[Entry, ...]
    source: Source
    plan: tuple[Block, ...]
    sampling: Sampling | None
    rule: Lossy | None
    limit: Limit
    profile: Profile | None
    way: str | None
    why: str | None
    whole: str
    launch: str | None = None
    wanted: int | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    def compare(self, records: Iterable[CaseRecord]) -> Ledger:
        """The blocks that are done, by these records, and those that are left."""
        return Ledger(self.plan, records, {row.name: row.reset for row in self.rows}, self.wanted)

    @property
    def priced(self) -> bool:
        """Whether the run decides by the cost of a step."""
        return self.config.decode.length == PRICE or self.config.engine.max_nodes == AUTO


def job_of(overrides: Sequence[str], like: Job | None = None) -> Job:
    """The checked job of ``specbench run OVERRIDES``, for scripts and tests. like: as of
    ``make_job``.
    """
    with composition.composing(overrides) as cfg:
        return make_job(cfg, like)


def job_at(overrides: Sequence[str]) -> tuple[Job, Path]:
    """The checked job of ``specbench run OVERRIDES``, and its directory. Raises InputError."""
    quiet_libraries()
    with composition.composing(overrides) as cfg:
        return begin_job(cfg, uuid.uuid4().hex), Path(cfg.hydra.run.dir).expanduser().resolve()


def begin_job(cfg: DictConfig, launch: str) -> Job:
    """The job that a command begins: it prints which methods are left out. launch: names the
    command.
    """
    if "hydra" in cfg:  # the cells of a sweep are looked at together, before the first
        refuse_idle([idle_of(cfg, sweeps=False)])
    job = replace(make_job(cfg), launch=launch)
    for reason in job.left_out.values():
        print(printable(f"specbench: left out: {reason}"))
    return job


def quiet_libraries() -> None:
    """Only errors of the libraries are logged; warnings of specbench go to stderr."""
    # Hydra checks our files of launchers by the schema of their package, and reports each time that
    # it does.
    warnings.filterwarnings("ignore", r"\s*'hydra/launcher/\w+' is validated", UserWarning)
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.basicConfig(force=True)
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.WARNING)
        handler.setFormatter(Plain("specbench: %(levelname)s: %(message)s"))


def make_job(cfg: DictConfig, like: Job | None = None) -> Job:
    """Check a composed configuration and read everything but weights. Raises InputError.

    cfg: the configuration; a method that is left out is deleted from it. like: as of ``build_job``.
    """
    resolved = composition.plain_values(cfg)
    refuse_unusable(resolved, "")
    if "hydra" in cfg:  # a cell of a sweep has its directory already
        refuse_unusable(str(cfg.hydra.run.dir), "hydra.run.dir")
    job = build_job(resolved, like, _unnamed(cfg, resolved["method"]))
    OmegaConf.set_struct(cfg, False)
    # so that the directory's name is that of the same run with its methods named
    for name in job.left_out:
        del cfg.method[name]
    return job


def build_job(
    resolved: dict[str, Any], like: Job | None = None, optional: Collection[str] = ()
) -> Job:
    """The job of a configuration's plain values. Raises InputError.

    like: a job with the same questions and model, whose source is not read again. optional: methods
    that are left out if they cannot run.
    """
    config = _settle_nodes(check_settings(resolved))
    check_load(config.load)
    if config.report.style != SCREEN:
        # brings pandas, which a run does without until its end
        from specbench.report.plots import check_style

        check_style(config.report.style)
    if config.report.to:
        from specbench.report.sinks import check_sinks  # likewise

        check_sinks(config.report.to, [resolved])
    _refuse_under_load(config)
    entries, left_out = _fitting(
        _read_methods(resolved["method"]), optional, lambda entry: _check_loop(config, entry)
    )
    _check_nodes(config, [entry.name for entry in entries])
    source = like.source if like else gather(config)
    check_attention(config.engine.attention, config.engine.kind, source.card)
    entries, others = _fitting(entries, optional, lambda entry: entry.check_model(source.card))
    left_out |= others
    resolved = resolved | {
        "method": {name: node for name, node in resolved["method"].items() if name not in left_out}
    }
    way = why = None
    if source.loads:
        way, why = choose_parallelism(
            source.card,
            parallel=config.model.parallel,
            gpus=config.model.gpus,
            engine=config.engine.kind,
            attention=config.model.attention,
            peers=[entry.name for entry in entries if isinstance(entry.method, Peer)],
        )
    # vanilla's own method
    rows = [*entries, *([replace(entries[0], name=CONTROL)] if config.measure.control else [])]
    decode = config.decode
    return Job(
        config=config,
        resolved=resolved,
        digest=digest(resolved),
        entries=tuple(entries),
        rows=tuple(rows),
        source=source,
        plan=tuple(_plan(config, source.suite, {row.name: row.reset for row in rows})),
        sampling=make_sampling(decode.temperature, decode.top_k, decode.top_p, decode.verify),
        rule=make_rule(
            decode.accept,
            decode.temperature,
            Typical(decode.accept_threshold, decode.accept_alpha),
            Relaxed(decode.accept_top, decode.accept_delta),
        ),
        limit=limit_of(decode),
        profile=profile_of(decode),
        way=way,
        why=why,
        whole=digest(resolved | {"suite": resolved["suite"] | {"part": None}}),
        left_out=left_out,
    )


def refuse_idle_in(overrides: Sequence[str]) -> None:
    """Raise InputError for a setting of a single run that has no effect, for commands that are not
    ``run``.
    """
    with composition.composing(overrides) as cfg:
        refuse_idle([idle_of(cfg, sweeps=False)])


def idle_of(cfg: DictConfig, sweeps: bool) -> Idle:
    """As of ``find_idle``, for a composed job; nothing for one whose settings will be refused."""
    try:
        resolved = composition.plain_values(cfg)
        return find_idle(cfg, check_settings(resolved), _read_methods(resolved["method"]), sweeps)
    except (InputError, OmegaConfBaseException):
        return Idle()


def limit_of(decode: DecodeConfig) -> Limit:
    """The policy of draft lengths. Raises InputError."""
    return make_limit(decode.length, decode.length_threshold)


def profile_of(decode: DecodeConfig) -> Profile | None:
    """The latency profile that is given. Raises InputError."""
    return None if decode.length_profile is None else open_profile(decode.length_profile)


def _unnamed(cfg: DictConfig, methods: Collection[str]) -> frozenset[str]:
    """The methods of the default list that no setting names: they are left out if they cannot
    run.
    """
    composed = cfg.hydra if "hydra" in cfg else HydraConfig.get()
    keys = [item.lstrip("+~").partition("=")[0] for item in composed.overrides.task]
    if composed.job.config_name != composition.CONFIG or any(
        re.match(r"(method|experiment)(@|$)", key) for key in keys
    ):
        return frozenset()
    return frozenset(methods) - {
        VANILLA,
        *(key.split(".")[1] for key in keys if key.startswith("method.")),
    }


def _read_methods(nodes: Mapping[str, Any]) -> list[Entry]:
    """The methods of a configuration, vanilla first. Raises InputError."""
    entries = [make_entry(name, node) for name, node in nodes.items()]
    entries.sort(key=lambda entry: entry.name != VANILLA)
    if VANILLA not in {entry.name for entry in entries}:
        raise InputError(
            f"method.{VANILLA}: not in the run; expected always, as every speedup is against it"
        )
    for entry in entries:
        if entry.name == CONTROL:
            raise InputError(
                f"method.{CONTROL}: is the name of measure.control's row; expected another name"
            )
        if entry.reset not in RESETS:
            raise InputError(
                f"method.{entry.name}.reset={entry.reset}: expected one of {', '.join(RESETS)}"
            )
    return entries


def _settle_nodes(config: Config) -> Config:
    """Return the settings with the meaning that ``engine.max_nodes=by_device`` has here: ``auto``
    where one request at a time is decoded by a model on a processor, and in one process.
    """
    if config.engine.max_nodes != BY_DEVICE:
        return config
    parts = config.suite.part is not None or config.run.shards > 1 or config.load.kind != ONE
    computes = config.engine.kind in (EngineKind.AUTO, EngineKind.FAST, EngineKind.EAGER)
    here = computes and not parts and choose_device(config.model.device, None) == "cpu"
    return replace(config, engine=replace(config.engine, max_nodes=AUTO if here else USUAL_NODES))


def _fitting(
    entries: Sequence[Entry], optional: Collection[str], check: Callable[[Entry], None]
) -> tuple[list[Entry], dict[str, str]]:
    """The methods that pass ``check``, and why others of ``optional`` do not. Raises the InputError
    of any other.
    """
    found, left_out = [], {}
    for entry in entries:
        try:
            check(entry)
            found.append(entry)
        except InputError as error:
            if entry.name not in optional:
                raise
            left_out[entry.name] = str(error)
    return found, left_out


def _refuse_under_load(config: Config) -> None:
    """Raise InputError for settings that no shared forward serves."""
    refused = (
        ("decode.first_draft", config.decode.first_draft != "after", "after"),
        ("suite.part", config.suite.part is not None, "the whole suite"),
        ("run.shards", config.run.shards != 1, "1"),
        ("engine.max_nodes", not isinstance(config.engine.max_nodes, int), "a number"),
    )
    for key, wrong, expected in refused:
        if wrong and config.load.kind != ONE:
            raise InputError(
                f"{key}: expected {expected} with load={config.load.kind}, or load=one"
            )


def _check_nodes(config: Config, names: Sequence[str]) -> None:
    """Raise InputError for limits of nodes that cannot be chosen here, or of a method that is not
    in the run.
    """
    engine, decode = config.engine, config.decode
    if isinstance(engine.max_nodes, Mapping):
        for name in engine.max_nodes:
            if name not in names or name == VANILLA:
                raise InputError(
                    f"engine.max_nodes.{name}: no method of this run that drafts;"
                    f" {near(name, names)}"
                )
    if engine.max_nodes == AUTO:
        for key, given in (
            ("suite.part", config.suite.part),
            ("run.shards", config.run.shards > 1),
        ):
            if given:
                raise InputError(
                    f"{key}: every part would choose its own number of nodes with"
                    f" engine.max_nodes={AUTO}; expected the numbers that a run without parts has"
                    " printed, as engine.max_nodes={METHOD: NUMBER, ...}"
                )
    priced = decode.length == PRICE or engine.max_nodes == AUTO
    if priced and decode.length_profile is None and engine.kind == EngineKind.REPLAY:
        raise InputError(
            f"decode.length_profile={decode.length_profile}: expected a latency profile, as a"
            " replay has no times of its own: a file of specbench profile, the name of a published"
            " fit, or a pair such as h100-8b"
        )


def _check_loop(config: Config, entry: Entry) -> None:
    """Raise InputError for a method that the loop of this configuration does not drive."""
    peer = isinstance(entry.method, Peer)
    if config.decode.first_draft == "prefill" and peer:
        raise InputError(
            f"method.{entry.name}: has a loop of its own, which decode.first_draft=prefill does not"
            " reach; expected methods of the harness's loop, or decode.first_draft=after"
        )
    if config.load.kind != ONE and peer and not isinstance(entry.method, Remote):
        raise InputError(
            f"method.{entry.name}: has a loop of its own, for one request; expected load=one"
        )
    if config.load.kind != ONE and entry.reset == "category":
        raise InputError(
            f"method.{entry.name}.reset=category: requests of several categories are in flight at"
            " once; expected turn, case, never or run, or load=one"
        )


def seed_arrivals(decode: DecodeConfig, place: int) -> int:
    """The seed of the arrivals of a stretch, the same for every method. place: of its block in the
    plan.
    """
    return derive_seed(decode.seed, "arrivals", place)


def _plan(config: Config, suite: Suite, resets: Mapping[str, str]) -> Sequence[Block]:
    cases, rounds = len(suite.cases), config.measure.rounds
    if cases * rounds > MOST_BLOCKS:
        raise InputError(
            f"measure.rounds={rounds}: of {cases} cases are {cases * rounds} blocks; expected at"
            f" most {MOST_BLOCKS}, so fewer rounds or cases (suite.limit)"
        )
    if config.load.kind != ONE:
        count = count_measured(config.load, seed_arrivals(config.decode, 0))
        # a search knows no rate yet
        if config.load.seconds and not config.load.find and count > cases:
            raise InputError(
                f"load.seconds={config.load.seconds:g}: {count} requests arrive in the first"
                f" stretch, and the suite has {cases} cases, each of which a stretch measures once;"
                " expected fewer seconds, a lower load.rate, or a larger suite"
            )
        return plan_stretches(
            suite.cases,
            tuple(resets),
            rounds,
            lambda place: count_measured(config.load, seed_arrivals(config.decode, place), place),
        )
    return make_plan(suite.cases, resets, rounds, config.measure.seed, suite.whole)
