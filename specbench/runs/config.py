"""The schema of the harness's settings: a typo or a wrong type is an error before anything is loaded.

A constraint of a value is part of its type. The settings of a method are those of its constructor (``runs.entry``).
The dataclasses are not frozen, because Hydra composes YAML over them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from specbench.input import InputError, must, one_of, within
from specbench.names import near
from specbench.records.record import LARGEST, EngineKind
from specbench.serving.settings import LoadConfig
from specbench.suite.settings import SuiteConfig

PACKAGE = Path(__file__).resolve().parents[1]
LONGEST_PART = 255  # [bytes] of a file's name
LONGEST_SHOWN = 60
MOST_ROUNDS = 10_000
MOST_SHARDS = 10_000
LOWEST_TEMPERATURE = 1e-3  # below it, logits over temperature leave the range of float32
GREEDY_OR_WARM = must(
    lambda value: value == 0 or value >= LOWEST_TEMPERATURE, f"0 (greedy) or at least {LOWEST_TEMPERATURE}"
)
SEED = within(-LARGEST, LARGEST)


@dataclass
class RandomModel:
    """A model with seeded random weights: any shape, to test and to time.

    family: the library's model_type (llama, mistral, phi3, qwen2, qwen3 ...). config: its config's arguments.
    """

    family: str = "llama"
    seed: Annotated[int, SEED] = 0
    config: dict[str, Any] = field(default_factory=dict)


@dataclass
class Sizes:
    """Sizes of a model, null = those that it has. head: [numbers] of an attention head. vocab: [tokens]."""

    hidden: Annotated[int | None, within(1)] = None
    intermediate: Annotated[int | None, within(1)] = None
    layers: Annotated[int | None, within(1)] = None
    heads: Annotated[int | None, within(1)] = None
    kv_heads: Annotated[int | None, within(1)] = None
    head: Annotated[int | None, within(1)] = None
    vocab: Annotated[int | None, within(1)] = None


@dataclass
class WidenConfig(Sizes):
    """Sizes of the larger model that computes what the trained one computes. draft: of the draft model, likewise."""

    draft: Sizes = field(default_factory=Sizes)


@dataclass
class HeadsConfig:
    """The usual trained heads for this target: folder, hub id, ``bundled:NAME``, or ``random``.

    mtp: null = in the target's checkpoint. safetensors: false = torch files, read with weights_only.
    """

    medusa: str | None = None
    hydra: str | None = None
    eagle: str | None = None
    eagle3: str | None = None
    pard: str | None = None
    p_eagle: str | None = None
    mtp: str | None = None
    dflash: str | None = None
    safetensors: bool = True


@dataclass
class ModelConfig:
    """path: hub id, local folder, or ``bundled:NAME``; null with ``random`` set.

    name: for tables; default the last part of the path. tokenizer: folder or hub id; default the path. template: of
    fschat by name, ``raw``, a file *.jinja, or null = the tokenizer's. context: [tokens], default that of config.json;
    overrides: entries of that file, to raise it. widen: compute the same with a larger shape. device: auto | cpu |
    cuda | cuda:N. gpus: share it between this many (on cpu: processes). cudnn_attention: let torch take cuDNN's
    kernels on a GPU. parallel: how they share it: auto | tensor | pipeline. check_ranks: compare them after every step
    (tensor). thinking: the template's switch. threads: of a CPU, null = measured. draft, heads: those usual for this
    target.
    frozen_table: of n-grams (Cacheback); datastore: a corpus (REST).
    """

    path: str | None = None
    name: str | None = None
    revision: str | None = None
    tokenizer: str | None = None
    template: str | None = None
    system: str | None = None
    thinking: bool | None = None
    context: int | None = None
    overrides: Any = None
    widen: WidenConfig = field(default_factory=WidenConfig)
    dtype: str = "auto"
    device: str = "auto"
    gpus: int | None = None
    parallel: str = "auto"
    check_ranks: bool = False
    attention: str = "sdpa"
    cudnn_attention: bool = False
    threads: Annotated[int | None, within(1, 1024)] = None
    draft: str | None = None
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    frozen_table: str | None = None
    datastore: str | None = None
    trace: str | None = None
    safetensors: bool = True
    trust_remote_code: bool = False
    random: RandomModel | None = None


@dataclass
class EngineConfig:
    """kind: auto | fast | eager | replay | timed | server. max_nodes: the largest draft a method may propose.

    pack: fast on a CPU keeps a second copy of the weights, reordered for short inputs, if it computes by torch.
    attention: of drafts in fast: sdpa | triton | fused | flex.
    compiled: fast on a CPU verifies a draft by one call of compiled code, if the model allows it.
    """

    kind: Annotated[str, one_of(*EngineKind)] = "auto"
    max_nodes: Annotated[int, within(1, 4096)] = 256
    pack: bool = True
    attention: str = "sdpa"
    compiled: bool = True


@dataclass
class DecodeConfig:
    """temperature 0 is greedy. max_new_tokens: per turn. seed: of verifying and drafting.

    first_draft: after the prefill's token | prefill: below the prompt's last token, as many references verify it.
    verify: drafts that were drawn: token by token | block: by whole paths.
    length: of drafts: fixed: the method's | adaedl | confidence | bandit | price, see docs/draft_length.md.
    length_threshold: of confidence. length_profile: of price, a latency profile.
    """

    max_new_tokens: Annotated[int, within(1, LARGEST)] = 256
    temperature: Annotated[float, within(0), GREEDY_OR_WARM] = 0.0
    top_p: Annotated[float, within(1e-6, 1)] = 1.0
    top_k: Annotated[int, within(0, LARGEST)] = 0
    seed: Annotated[int, SEED] = 0
    first_draft: Annotated[str, one_of("after", "prefill")] = "after"
    verify: str = "token"
    length: str = "fixed"
    length_threshold: float = 0.3
    length_profile: str | None = None


@dataclass
class MeasureConfig:
    """rounds: timings of each case. control: the A/A row. warmup: [cases] before the clock counts.

    lossless: check every id by teacher forcing. keep_trees: [cases] whose draft trees are recorded. fresh: start anew
    and keep the old run aside. seed: of the order within blocks. price_per_hour: of the machine, in any currency.
    """

    rounds: Annotated[int, within(1, MOST_ROUNDS)] = 1
    control: bool = False
    warmup: Annotated[int, within(0, MOST_ROUNDS)] = 2
    lossless: bool = True
    keep_trees: Annotated[int, within(0)] = 0
    seed: int = 0
    fresh: bool = False
    price_per_hour: Annotated[float | None, within(0)] = None


@dataclass
class ReportConfig:
    """The files that are written when the run ends; ``specbench report`` can always write it later.

    style: of the plots: screen | paper | a style file of matplotlib. identify: manifest and page may name home
    directory, user and host.
    """

    plots: bool = True
    progress: bool = True
    style: str = "screen"
    identify: bool = False


@dataclass
class RunConfig:
    """shards: workers that share the cases, jobs of ``hydra/launcher``. retry: continue at the first failed block."""

    shards: Annotated[int, within(1, MOST_SHARDS)] = 1
    retry: bool = False


@dataclass
class Config:
    """All settings; ``method`` is a list group, name -> constructor arguments."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # of all groups

    model: ModelConfig = field(default_factory=ModelConfig)
    suite: SuiteConfig = field(default_factory=SuiteConfig)
    method: dict[str, Any] = field(default_factory=dict)
    engine: EngineConfig = field(default_factory=EngineConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    run: RunConfig = field(default_factory=RunConfig)


_SETTINGS = TypeAdapter(Config)


def refuse_unusable(values: Any, path: str) -> None:
    """Raise InputError for a text that no file system takes as a path; any of them may become one, but a prompt."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            refuse_unusable(value, f"{path}.{key}" if path else str(key))
    if not isinstance(values, str) or path == "model.system":
        return
    shown = values if len(values) <= LONGEST_SHOWN else f"{values[:LONGEST_SHOWN]}..."
    longest = max(len(part.encode(errors="surrogatepass")) for part in values.split("/"))
    if longest > LONGEST_PART:
        raise InputError(f"{path}={shown}: a name of {longest} bytes; expected at most {LONGEST_PART}")
    if re.search("[\0\ud800-\udfff]", values):
        raise InputError(f"{path}={shown!a}: holds NUL or is not UTF-8; expected text without")
    if values.startswith("~") and os.path.expanduser(values) == values:  # noqa: PTH111 (a Path raises)
        raise InputError(f"{path}={shown}: no such user has a home directory; expected a full path")


def check_settings(values: Mapping[str, Any]) -> Config:
    """Return plain values as settings. Raises InputError for an unknown setting, or a value that is not allowed."""
    try:
        return _SETTINGS.validate_python(values)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        path = [str(part) for part in found["loc"]]
        key, reason = ".".join(path), found.get("ctx", {}).get("error", found["msg"])
    if found["type"] != "unexpected_keyword_argument":
        raise InputError(f"{key}={found['input']}: {reason}")
    group: Any = Config
    for part in path[:-1]:
        kind = get_type_hints(group)[part]
        group = next(each for each in (kind, *get_args(kind)) if is_dataclass(each))
    raise InputError(f"{key}: no such setting; {near(path[-1], [each.name for each in fields(group)])}")


def conf_dir() -> Path:
    """The configuration tree: inside an installed package, next to it in a checkout."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def list_options(group: str) -> list[str]:
    """The options of a group; of '' the groups that a user chooses from."""
    if not group:
        return sorted(path.name for path in conf_dir().iterdir() if path.is_dir() and path.name != "hydra")
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
