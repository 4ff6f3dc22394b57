"""The manifest of a run, ``manifest.json``: what the records were made with. One model checks,
reads and writes it.

An entry that a manifest lacks has the default below, and stays absent when the manifest is written
again; entries that are not listed here are kept. The code of a table checks the entries that the
table requires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from specbench.input import InputError, describe, parse_json
from specbench.records.record import (
    CONTROL,
    SCHEMA,
    Amount,
    Count,
    EngineKind,
    Figure,
    LoadKind,
    Reset,
)

Size = Annotated[int, Field(ge=0, lt=1 << 63)]


Device = Annotated[str, Field(pattern=r"^\w*(:\d{1,4})?$")]  # cpu, cuda, cuda:1


class Section(BaseModel):
    """A JSON object of a manifest. The order of the fields is that of the written keys."""

    model_config = ConfigDict(extra="allow")


class Gpu(Section):
    """One GPU, with what its driver reports."""

    name: str = ""


class Machine(Section):
    """The hardware of a process, as ``measure.environment.machine`` describes it."""

    system: str | None = None
    cpu: str | dict[str, Any] | None = None
    cores: int | None = None
    threads: Count | None = None
    memory_bytes: int | None = None
    load_1min: float | None = None
    attention: list[str] = []
    gpus: list[Gpu] = []

    def same_hardware(self, other: Machine) -> bool:
        """Returns whether both have the same processor and GPUs."""
        return self.cpu == other.cpu and [gpu.name for gpu in self.gpus] == [
            gpu.name for gpu in other.gpus
        ]


class Git(Section):
    """The checkout that the code came from; empty outside one."""

    commit: str | None = None
    dirty: bool = False


class Process(Section):
    """One process of a run. launch: the command that began it. shard: of a merged run, the part
    that it worked on.
    """

    started: str = ""
    git: Git = Git()
    machine: Machine = Machine()
    versions: dict[str, Any] = {}
    launch: str | None = None
    shard: Count | None = None


class TargetModel(Section):
    """The target. weights: "random" if it has no trained ones. template: fingerprint of a chat
    template's file. gguf: {file, sha256, quantisation} of weights that were in a GGUF file.
    """

    name: str | None = None
    path: str | None = None
    family: str | None = None
    parameters: Size | None = None
    dtype: str | None = None
    device: Device | None = None
    context: int | None = None
    tokenizer: str | None = None
    fingerprint: str | None = None
    weights: str | None = None
    template: str | None = None
    gguf: dict[str, str] | None = None


class Questions(Section):
    """The suite. cases, turns: how many of them the run has. origin: path of the file. sha256: its
    hash.
    """

    name: str | None = None
    cases: Count | None = None
    turns: Count | None = None
    origin: str | None = None
    sha256: str | None = None


class Part(Section):
    """The place of a part in its complete run. of: ``k/n``. config_hash, places of its cases: of
    the complete run.
    """

    of: str
    config_hash: str
    places: list[Count]
    cases: list[str]

    @model_validator(mode="after")
    def _require_places(self) -> Part:
        if len(self.places) != len(self.cases):
            raise PydanticCustomError("part", "Input should have a place for each of its cases")
        return self


class Growth(Section):
    """The additions of a later command to the run.

    block: its first one. methods: new ones. cases, rounds: how many more. again: blocks in which
    vanilla runs again.
    """

    block: Count
    methods: list[str]
    cases: int
    rounds: int
    again: Count


class ShardOfRun(Section):
    """A part that a merged run was made of."""

    part: str
    cases: Count


class MethodOfRun(Section):
    """A method. reads_target: it drafts from what the target computes. inputs: file -> fingerprint.

    nodes: the most that its drafts have in this run. node_speedups: of limits that were tried, as
    modelled. synthetic: how its server reports that it draws acceptance from a table.
    """

    parameters: dict[str, Any] = {}
    reset: Reset = "case"
    lossless: bool = True
    peer: bool = False
    reads_target: bool = False
    inputs: dict[str, str | None] = {}
    nodes: Count | None = None
    node_speedups: dict[str, Figure] | None = None
    synthetic: str | None = None


class Parallel(Section):
    """The way in which several GPUs share the target."""

    way: str | None = None
    gpus: Count | None = None


class Threads(Section):
    """CPU threads that the target decodes on. ratios: count -> time of a plain step over that with
    one thread.
    """

    count: Count
    ratios: dict[str, Figure]


class EngineSettings(Section):
    """Group ``engine`` of the configuration."""

    kind: EngineKind | None = None
    acceptance: float | list[float] | None = None


class DecodeSettings(Section):
    """Group ``decode`` of the configuration."""

    max_new_tokens: Count | None = None
    temperature: Figure | None = None
    first_draft: Literal["after", "prefill"] = "after"
    length: str = "fixed"
    verify: Literal["token", "block"] = "token"


class MeasureSettings(Section):
    """Group ``measure`` of the configuration. price_per_hour: of the machine, in any currency."""

    price_per_hour: Amount | None = None


class ModelSettings(Section):
    """Group ``model`` of the configuration."""

    path: str | None = None
    tokenizer: str | None = None
    revision: str | None = None
    heads: dict[str, Any] | None = None


class LoadSettings(Section):
    """Group ``load`` of the configuration. rate: arrivals a second."""

    kind: LoadKind = LoadKind.ONE
    requests: Annotated[Count, Field(ge=1)] | None = None
    rate: Amount | None = None
    slo: dict[str, Amount | None] = {}


class SuiteSettings(TypedDict, total=False):
    """Group ``suite`` of the configuration. part: ``k/n``."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    part: str | None


class ReportSettings(Section):
    """Group ``report`` of the configuration."""

    identify: bool = False


class Settings(Section):
    """The configuration of a run: typed where it is read; ``written`` has all of it, unchanged."""

    model: ModelSettings = ModelSettings()
    suite: SuiteSettings = SuiteSettings()
    method: dict[str, Any] = {}
    engine: EngineSettings = EngineSettings()
    decode: DecodeSettings = DecodeSettings()
    measure: MeasureSettings = MeasureSettings()
    load: LoadSettings = LoadSettings()
    report: ReportSettings = ReportSettings()
    run: dict[str, Any] = {}
    _written: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, values: Any, validate: Callable[[Any], Settings]) -> Settings:
        found = validate(values)
        found._written = values if isinstance(values, dict) else values.written
        return found

    @model_serializer
    def _write(self) -> dict[str, Any]:
        return self._written

    @property
    def written(self) -> dict[str, Any]:
        """The plain values as they were given."""
        return self._written


class Manifest(Section):
    """Everything that the records of a run were made with, and the warnings that make its numbers
    unsafe.

    step_ms: rows of a step -> its time, if the run measured it to decide by it.
    """

    schema_: Annotated[int, Field(ge=1, le=SCHEMA)] = Field(default=SCHEMA, alias="schema")
    specbench: str | None = None
    created: str = ""
    config: Settings = Settings()
    config_hash: str | None = None
    model: TargetModel = TargetModel()
    engine: str | None = None
    forward: str | None = None
    threads: Threads | None = None
    step_ms: dict[str, Figure] | None = None
    parallel: Parallel | None = None
    part: Part | None = None
    suite: Questions = Questions()
    trace: str | None = None
    methods: dict[Annotated[str, Field(min_length=1)], MethodOfRun] = {}
    grown: list[Growth] = []
    blocks: Count | None = None
    control: bool = False
    rounds: Annotated[Count, Field(ge=1)] | None = None
    temperature: Annotated[Figure, Field(ge=0)] | None = None
    baseline: str | None = None
    versions: dict[str, Any] = {}
    git: Git = Git()
    machine: Machine = Machine()
    processes: list[Process] = []
    warnings: list[str] = []
    shards: list[ShardOfRun] = []

    @classmethod
    def parse(cls, text: bytes, where: str, fix: str) -> Manifest:
        """The manifest in a file's bytes. Raises InputError, which begins with ``where`` and ends
        with ``fix``.
        """
        # refuses NaN and repeated keys anywhere, also in entries that are not listed
        parse_json(text, where, fix)
        try:
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise InputError(f"{where}: {describe(error)}; {fix}") from None

    def as_dict(self) -> dict[str, Any]:
        """The plain values that its file has: entries that were given, no defaults."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def warn(self, warnings: Iterable[str]) -> None:
        """Add the warnings that the manifest does not have yet."""
        self.warnings = list(dict.fromkeys([*self.warnings, *warnings]))

    @property
    def rows(self) -> frozenset[str]:
        """The methods with records: those of the manifest, and the A/A control."""
        return frozenset(self.methods) | ({CONTROL} if self.control else frozenset())

    @property
    def first_blocks(self) -> Mapping[str, int]:
        """Method that was added to the run -> the first block that may have it."""
        return {name: growth.block for growth in self.grown for name in growth.methods}


UNSET = "unset"


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one level of dotted keys; lists stay values."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def differing(choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each mapping with only the keys on which not all agree."""
    keys = dict.fromkeys(key for choice in choices for key in choice)
    kept = [key for key in keys if len({repr(choice.get(key, UNSET)) for choice in choices}) > 1]
    return [{key: choice.get(key, UNSET) for key in kept} for choice in choices]


def spell_value(value: object) -> str:
    """A value as the command line takes it."""
    return "null" if value is None else str(value)
