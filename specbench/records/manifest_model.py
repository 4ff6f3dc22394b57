"""The schema of a manifest: the entries that resuming and reporting read, and their types; others may stand beside.

An entry may be missing, as in the manifests of older versions. What a table cannot do without is asked for there.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from specbench.input import InputError, describe
from specbench.records.record import SCHEMA, Amount, Count, Figure

Size = Annotated[int, Field(ge=0, lt=1 << 63)]
Device = Annotated[str, Field(pattern=r"^\w*(:\d{1,4})?$")]  # cpu, cuda, cuda:1


class _Gpu(TypedDict, total=False):
    name: str


class _Machine(TypedDict, total=False):
    cpu: str | dict[str, Any] | None
    threads: Count | None
    gpus: list[_Gpu]


class _Git(TypedDict, total=False):
    commit: str | None
    dirty: bool


class _Process(TypedDict, total=False):
    started: str
    launch: str
    shard: Count
    git: _Git
    machine: _Machine
    versions: dict[str, Any]


class _Model(TypedDict, total=False):
    name: str | None
    path: str | None
    parameters: Size | None
    dtype: str | None
    device: Device | None
    tokenizer: str | None
    fingerprint: str | None
    template: str | None
    weights: str | None


class _Suite(TypedDict, total=False):
    name: str | None
    cases: Count | None
    turns: Count | None
    sha256: str | None


class _Part(TypedDict):
    of: str
    config_hash: str
    places: list[Count]
    cases: NotRequired[list[str]]


class _Growth(TypedDict):
    block: Count
    methods: list[str]
    cases: int
    rounds: int
    again: Count


class _Shard(TypedDict):
    part: str
    cases: Count


class _Method(TypedDict, total=False):
    parameters: dict[str, Any]
    reset: str
    lossless: bool
    peer: bool
    reads_target: bool
    inputs: dict[str, str | None]


class _Parallel(TypedDict, total=False):
    way: str | None
    gpus: Count


class _Threads(TypedDict):
    count: Count
    ratios: dict[str, Figure]


class _EngineSettings(TypedDict, total=False):
    kind: str


class _DecodeSettings(TypedDict, total=False):
    temperature: Figure


class _MeasureSettings(TypedDict, total=False):
    price_per_hour: Amount | None


class _ModelSettings(TypedDict, total=False):
    path: str | None
    tokenizer: str | None
    revision: str | None


class _LoadSettings(TypedDict, total=False):
    kind: str
    requests: Annotated[Count, Field(ge=1)]
    rate: Amount | None
    slo: dict[str, Amount | None]


class _Settings(TypedDict, total=False):
    model: _ModelSettings
    suite: dict[str, Any]
    engine: _EngineSettings
    decode: _DecodeSettings
    measure: _MeasureSettings
    load: _LoadSettings


class _Manifest(TypedDict, total=False):
    schema: Annotated[int, Field(ge=1, le=SCHEMA)]
    specbench: str
    created: str
    config: _Settings
    config_hash: str
    model: _Model
    engine: str | None
    forward: str | None
    parallel: _Parallel | None
    threads: _Threads
    part: _Part
    shards: list[_Shard]
    grown: list[_Growth]
    suite: _Suite
    trace: str | None
    methods: dict[Annotated[str, Field(min_length=1)], _Method]
    control: bool
    rounds: Annotated[Count, Field(ge=1)] | None
    temperature: Annotated[Figure, Field(ge=0)] | None
    versions: dict[str, Any]
    git: _Git
    machine: _Machine
    processes: list[_Process]
    warnings: list[str]


@functools.cache
def _schema() -> TypeAdapter[_Manifest]:
    return TypeAdapter(_Manifest)


def check_manifest(manifest: Any, where: str, fix: str) -> dict[str, Any]:
    """The manifest as it is, if it fits. Raises InputError naming the first entry that does not."""
    try:
        _schema().validate_python(manifest, strict=True)
    except ValidationError as error:
        raise InputError(f"{where}: {describe(error)}; {fix}") from None
    return manifest
