"""The schema of the harness's settings: a typo or a wrong type is an error before anything is
loaded.

A constraint of a value is part of its type. The settings of a method are those of its constructor
(``runs.entry``). The dataclasses are not frozen, because Hydra composes YAML over them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError

from specbench.input import InputError, When, must, one_of, refuse_name, when, within
from specbench.names import is_dataset, near
from specbench.records.record import LARGEST, EngineKind, Sink
from specbench.serving.settings import ONE, LoadConfig
from specbench.suite.settings import SuiteConfig
from specbench.types import MOST

PACKAGE = Path(__file__).resolve().parents[1]
MOST_ROUNDS = 10_000
MOST_SHARDS = 10_000
LOWEST_TEMPERATURE = 1e-3  # below it, logits over temperature leave the range of float32
GREEDY_OR_WARM = must(
    lambda value: value == 0 or value >= LOWEST_TEMPERATURE,
    f"0 (greedy) or at least {LOWEST_TEMPERATURE}",
)
AUTO, BY_DEVICE, USUAL_NODES = "auto", "by_device", 256
SEED = within(-LARGEST, LARGEST)
SINKS = must(lambda value: {*value} <= {*Sink}, f"a list of {', '.join(Sink)}")
OF_HUB = must(is_dataset, "OWNER/NAME of a data set of the hub")


def _check_nodes(value: Any) -> Any:
    limits, least = (value.values(), 0) if isinstance(value, Mapping) else ([value], 1)
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in limits)
    if value in (AUTO, BY_DEVICE) or (whole and all(least <= each <= MOST for each in limits)):
        return value
    raise ValueError(
        f"expected a whole number, at least 1 and at most {MOST}, or auto, by_device, or"
        " {METHOD: NUMBER, ...}"
    )


def _check_acceptance(value: Any) -> Any:
    rates = list(value) if isinstance(value, (list, tuple)) else None
    numbers = [value] if rates is None else rates
    known = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in numbers)
    if value is None or (rates is None and known and 1 <= value <= MOST):
        return value
    falling = (
        rates
        and known
        and all(0 <= each <= 1 for each in rates)
        and sorted(rates, reverse=True) == rates
    )
    if rates and falling and len(rates) <= MOST:
        return rates
    raise ValueError(
        f"expected the mean tokens of a step, from 1 to {MOST}, or a list of rates from 0 to 1 that"
        " do not rise"
    )


def _check_switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


if TYPE_CHECKING:
    Switch = bool
else:  # OmegaConf would take any number, and some words, as a bool
    Switch = Annotated[Any, AfterValidator(_check_switch)]


# The conditions under which a setting has an effect, which ``runs.given`` tests on what was given.
# run: a ``Composed``.
FOLLOWING = (EngineKind.REPLAY, EngineKind.TIMED)  # engines along recorded answers
MAYBE_FAST = (EngineKind.AUTO, EngineKind.FAST, EngineKind.TIMED)


def _loads(run: Any) -> bool:
    return run.engine.kind not in (EngineKind.REPLAY, EngineKind.SERVER)


def _has_path(run: Any) -> bool:
    """Whether ``model.path`` is read: of a replay, only for its tokenizer."""
    return _loads(run) or (run.engine.kind == EngineKind.REPLAY and run.model.tokenizer is None)


def _from_hub(run: Any) -> bool:
    """Whether the model or its tokenizer may be on the hub; a trace may name its tokenizer
    itself.
    """
    model = run.model
    read = [model.tokenizer, model.path if _has_path(run) and model.random is None else None]
    places = [os.path.expandvars(each) for each in read if each]
    own = [
        each
        for each in places
        if each.startswith(("bundled:", "package:")) or Path(each).expanduser().exists()
    ]
    return len(own) < len(places) or (run.engine.kind in FOLLOWING and not places)


def _has_texts(run: Any) -> bool:
    """Whether prompts are made from texts: not from records, which have their ids."""
    from specbench.trace import find_trace, kind_of  # brings torch

    trace = run.model.trace
    return run.engine.kind not in FOLLOWING or not trace or kind_of(find_trace(trace)) != "records"


def _on_gpu(run: Any) -> bool:
    import torch  # which --help does without

    device = run.model.device
    return torch.cuda.is_available() if device == "auto" else str(device).startswith("cuda")


LOADS = when("engine.kind", _loads, "a model that is loaded here (engine=auto)")
HAS_PATH = when(
    "engine.kind", _has_path, "a model that is loaded here; others have model.tokenizer"
)
NOT_RANDOM = when(
    "model.random", lambda run: run.model.random is None, "a model that is not random, as model=hub"
)
HUB = when("model.path", _from_hub, "a model or tokenizer of the hub, as model.path=OWNER/NAME")
TEXTS = when(
    "model.trace", _has_texts, "a trace of texts, or a model; records have the ids of their prompts"
)
FOLLOWS = when(
    "engine.kind",
    lambda run: run.engine.kind in FOLLOWING,
    "model=replay, or with a model and engine=timed",
)
NO_REPLAY = when(
    "engine.kind", lambda run: run.engine.kind != EngineKind.REPLAY, "another engine than replay"
)
NO_SERVER = when(
    "engine.kind", lambda run: run.engine.kind != EngineKind.SERVER, "an engine that runs here"
)
TIMES = when(
    "engine.kind", lambda run: run.engine.kind == EngineKind.TIMED, "a model and engine=timed"
)
ALONE = when("load.kind", lambda run: run.load.kind == "one", "load=one")
FAST = when(
    "engine.kind",
    lambda run: run.engine.kind in MAYBE_FAST,
    "engine=fast, engine=auto or engine=timed",
)
SEVERAL = when("model.gpus", lambda run: (run.model.gpus or 1) > 1, "model.gpus=N")
RANKS = when(
    "model.parallel", lambda run: run.model.parallel != "pipeline", "model.parallel=tensor"
)
ON_GPU = when("model.device", _on_gpu, "model.device=cuda")
ON_CPU = when("model.device", lambda run: not _on_gpu(run), "model.device=cpu")
USED = When("method", lambda run, key: key in run.read, "a method that uses it: {users}")
COMPARED = when(
    "method", lambda run: len(run.method) > 1 or run.measure.control, "a method next to vanilla"
)
DRAFTS = when("method", lambda run: len(run.method) > 1, "a method that drafts, as method=[pld]")
RESUMES = when(
    "measure.fresh",
    lambda run: not run.measure.fresh,
    "measure.fresh=false: a new run has no failed block",
)
DRAWS = when(
    "method",
    lambda run: run.draws,
    "a method that draws its drafts, as method=[speculative_sampling]",
)
SAMPLES = when(
    "decode.temperature", lambda run: run.decode.temperature > 0, "decode.temperature above 0"
)
COMPUTES = when(
    "engine.kind", lambda run: _loads(run) and run.engine.kind != EngineKind.TIMED, "engine=auto"
)
TYPICALLY = when(
    "decode.accept", lambda run: run.decode.accept == "typical", "decode.accept=typical"
)
RELAXEDLY = when(
    "decode.accept", lambda run: run.decode.accept == "relaxed", "decode.accept=relaxed"
)
EXACTLY = when("decode.accept", lambda run: run.decode.accept == "exact", "decode.accept=exact")
LOSSILY = when(
    "decode.accept", lambda run: run.decode.accept != "exact", "decode.accept=typical or relaxed"
)
BY_CONFIDENCE = when(
    "decode.length", lambda run: run.decode.length == "confidence", "decode.length=confidence"
)
PRICED = when(
    "decode.length",
    lambda run: run.decode.length == "price" or run.engine.max_nodes in (AUTO, BY_DEVICE),
    "decode.length=price or engine.max_nodes=auto",
)
IN_TURN = when("load.kind", lambda run: run.load.kind == ONE, "load=one")
PLOTTED = when("report.plots", lambda run: run.report.plots, "report.plots=true")
TO_HUB = when("report.to", lambda run: Sink.HUB in run.report.to, "report.to=[hub]")
SWEEP = when("hydra.mode", lambda run: run.sweeps, "a sweep (-m)")
SINGLE = when("hydra.mode", lambda run: not run.sweeps, "a single run; a sweep has hydra.sweep.dir")
WORKERS = when(
    "run.shards", lambda run: run.sweeps or run.run.shards > 1, "run.shards=N, or a sweep (-m)"
)


@dataclass
class RandomModel:
    """A model with seeded random weights: any shape, to test and to time.

    family: the library's model_type (llama, mistral, phi3, qwen2, qwen3 ...); null = no such model.
    config: its config's arguments.
    """

    family: str | None = None
    seed: Annotated[int, SEED] = 0
    config: Annotated[
        Any, must(lambda value: isinstance(value, Mapping), "arguments, as {vocab_size: 512}")
    ] = None


@dataclass
class Sizes:
    """Sizes of a model, null = those that it has. head: [numbers] of an attention head. vocab:
    [tokens].
    """

    hidden: Annotated[int | None, within(1)] = None
    intermediate: Annotated[int | None, within(1)] = None
    layers: Annotated[int | None, within(1)] = None
    heads: Annotated[int | None, within(1)] = None
    kv_heads: Annotated[int | None, within(1)] = None
    head: Annotated[int | None, within(1)] = None
    vocab: Annotated[int | None, within(1)] = None


@dataclass
class WidenConfig(Sizes):
    """Sizes of the larger model that computes what the trained one computes. draft: of the draft
    model, likewise.
    """

    draft: Sizes = field(default_factory=Sizes)


@dataclass
class HeadsConfig:
    """The usual trained heads for this target: folder, hub id, ``bundled:NAME``, or ``random``.

    mtp: null = in the target's checkpoint. safetensors: false = torch files, read with
    weights_only.
    """

    medusa: Annotated[str | None, USED] = None
    hydra: Annotated[str | None, USED] = None
    eagle: Annotated[str | None, USED] = None
    eagle3: Annotated[str | None, USED] = None
    pard: Annotated[str | None, USED] = None
    p_eagle: Annotated[str | None, USED] = None
    mtp: Annotated[str | None, USED] = None
    dflash: Annotated[str | None, USED] = None
    safetensors: Annotated[Switch, USED] = True


@dataclass
class ModelConfig:
    """path: hub id, local folder, GGUF file, or ``bundled:NAME``; null with ``random`` set.

    gguf: the GGUF file of a folder or hub id that has several. name: for tables; default the last
    part of the path. tokenizer: folder or hub id; default the path. template: of fschat by name,
    ``raw``, a file *.jinja, or null = the tokenizer's. context: [tokens], default that of
    config.json; overrides: entries of that file, to raise it. widen: compute the same with a larger
    shape. device: auto | cpu | cuda | cuda:N. gpus: share it between this many (on cpu: processes).
    cudnn_attention: let torch take cuDNN's kernels on a GPU. parallel: how they share it: auto |
    tensor | pipeline. check_ranks: compare them after every step (tensor). thinking: the template's
    switch. threads: of a CPU, null = measured. draft, heads: those usual for this target.
    frozen_table: of n-grams (Cacheback); datastore: a corpus (REST).
    """

    path: Annotated[str | None, HAS_PATH, NOT_RANDOM] = None
    name: str | None = None
    gguf: Annotated[str | None, HAS_PATH, NOT_RANDOM] = None
    revision: Annotated[str | None, HUB] = None
    tokenizer: str | None = None
    template: Annotated[str | None, TEXTS] = None
    system: Annotated[str | None, TEXTS] = None
    thinking: Annotated[
        Any, must(lambda value: isinstance(value, bool), "true, false or null"), TEXTS
    ] = None
    context: Annotated[int | None, NO_REPLAY] = None
    overrides: Annotated[Any, LOADS] = None
    widen: Annotated[WidenConfig, LOADS, NOT_RANDOM] = field(default_factory=WidenConfig)
    dtype: Annotated[str, NO_REPLAY] = "auto"
    device: Annotated[str, LOADS] = "auto"
    gpus: Annotated[int | None, LOADS] = None
    parallel: Annotated[str, LOADS] = "auto"
    check_ranks: Annotated[Switch, LOADS, SEVERAL, RANKS] = False
    attention: Annotated[str, LOADS] = "sdpa"
    cudnn_attention: Annotated[Switch, LOADS, ON_GPU] = False
    threads: Annotated[int | None, within(1, 1024), NO_SERVER] = None
    draft: Annotated[str | None, USED] = None
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    frozen_table: Annotated[str | None, USED] = None
    datastore: Annotated[str | None, USED] = None
    trace: Annotated[str | None, FOLLOWS] = None
    safetensors: Annotated[Switch, LOADS, NOT_RANDOM] = True
    trust_remote_code: Switch = False
    # OmegaConf puts no mapping in the place of a null
    random: Annotated[RandomModel | None, LOADS] = field(default_factory=RandomModel)


@dataclass
class EngineConfig:
    """kind: auto | fast | eager | replay | timed | server.

    max_nodes: the largest draft a method may propose: a number, {METHOD: number}, auto = of each
    method what pays, or by_device = auto on a processor, 256 on a GPU. pack: fast on a CPU keeps a
    second copy of the weights, reordered for short inputs, if it computes by torch. attention: of
    drafts in fast: auto | sdpa | triton | fused | flex. compiled: fast on a CPU verifies a draft by
    one call of compiled code, if the model allows it. acceptance: timed accepts as much of a chain
    as is drawn from this: mean tokens of a step, or rates by position. keep_prefix: a turn of a
    recorded conversation reads only what its prompt adds to the turn before.
    """

    kind: Annotated[str, one_of(*EngineKind)] = "auto"
    max_nodes: Annotated[Any, AfterValidator(_check_nodes), NO_SERVER] = USUAL_NODES
    pack: Annotated[Switch, FAST, ON_CPU] = True
    attention: Annotated[str, FAST] = "auto"
    compiled: Annotated[Switch, FAST, ON_CPU] = True
    acceptance: Annotated[Any, AfterValidator(_check_acceptance), TIMES, ALONE] = None
    keep_prefix: Annotated[Switch, LOADS, IN_TURN] = True

    @property
    def largest_draft(self) -> int:
        """The nodes that the engine has to take, of any method."""
        if isinstance(self.max_nodes, int):
            return self.max_nodes
        return max(
            [USUAL_NODES, *(self.max_nodes.values() if isinstance(self.max_nodes, Mapping) else ())]
        )


@dataclass
class DecodeConfig:
    """temperature 0 is greedy. max_new_tokens: per turn. seed: of verifying and drafting.

    first_draft: after the prefill's token | prefill: below the prompt's last token, as many
    references verify it. verify: drafts that were drawn: token by token | block: by whole paths.
    length: of drafts: fixed: the method's | adaedl | confidence | bandit | price, see
    docs/draft_length.md. accept: exact, or a lossy rule, see docs/tree_attention.md: typical: above
    min(accept_threshold, accept_alpha * exp(-entropy)) | relaxed: one of the accept_top likeliest
    tokens, at most accept_delta below the best one's probability. accept_thinking: lossy only up to
    the end of the thinking. length_threshold: of confidence. length_profile: of price and of
    engine.max_nodes=auto, a latency profile; null = measured when the run starts.
    """

    max_new_tokens: Annotated[int, within(1, LARGEST)] = 256
    temperature: Annotated[float, within(0), GREEDY_OR_WARM] = 0.0
    top_p: Annotated[float, within(1e-6, 1), SAMPLES] = 1.0
    top_k: Annotated[int, within(0, LARGEST), SAMPLES] = 0
    seed: Annotated[int, SEED] = 0
    first_draft: Annotated[str, one_of("after", "prefill")] = "after"
    verify: Annotated[str, SAMPLES, DRAWS, EXACTLY] = "token"
    accept: Annotated[str, one_of("exact", "typical", "relaxed"), COMPUTES, DRAFTS] = "exact"
    accept_threshold: Annotated[float, within(0, 1), TYPICALLY] = 0.09
    accept_alpha: Annotated[float, within(0, 1), TYPICALLY] = 0.3
    accept_top: Annotated[int, within(1, LARGEST), RELAXEDLY] = 10
    accept_delta: Annotated[float, within(0, 1), RELAXEDLY] = 0.6
    accept_thinking: Annotated[Switch, LOSSILY] = False
    length: Annotated[str, NO_SERVER, DRAFTS] = "fixed"
    length_threshold: Annotated[float, BY_CONFIDENCE] = 0.3
    length_profile: Annotated[str | None, PRICED] = None


@dataclass
class MeasureConfig:
    """rounds: timings of each case. control: the A/A row. warmup: [cases] before the clock counts.

    lossless: check every id by teacher forcing. keep_trees: [cases] whose draft trees are recorded.
    fresh: start anew and keep the old run aside. seed: of the order within blocks. price_per_hour:
    of the machine, in any currency.
    """

    rounds: Annotated[int, within(1, MOST_ROUNDS)] = 1
    control: Switch = False
    warmup: Annotated[int, within(0, MOST_ROUNDS)] = 2
    lossless: Switch = True
    keep_trees: Annotated[int, within(0), NO_SERVER] = 0
    seed: Annotated[int, IN_TURN, COMPARED] = 0
    fresh: Switch = False
    price_per_hour: Annotated[float | None, within(0), NO_REPLAY] = None


@dataclass
class ReportConfig:
    """The files that are written when the run ends; ``specbench report`` can always write it later.

    style: of the plots: screen | paper | a style file of matplotlib. identify: manifest and page
    may name home directory, user and host. to: where it is sent: mlflow, hub. dataset: of the hub,
    null = that of the suite.
    """

    plots: Switch = True
    progress: Switch = True
    style: Annotated[str, PLOTTED] = "screen"
    identify: Switch = False
    to: Annotated[list[str], SINKS] = field(default_factory=list)
    dataset: Annotated[str | None, OF_HUB, TO_HUB] = None


@dataclass
class RunConfig:
    """shards: workers that share the cases, jobs of ``hydra/launcher``. retry: continue at the
    first failed block.
    """

    shards: Annotated[int, within(1, MOST_SHARDS)] = 1
    retry: Annotated[Switch, RESUMES] = False


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


@dataclass
class HydraSettings:
    """Hydra's own settings, of which a single run takes ``run``, and the workers of a run
    ``launcher``.
    """

    run: Annotated[Any, SINGLE] = None
    launcher: Annotated[Any, WORKERS] = None
    sweep: Annotated[Any, SWEEP] = None
    sweeper: Annotated[Any, SWEEP] = None
    callbacks: Annotated[Any, SWEEP] = None
    job: Annotated[Any, SWEEP] = None
    job_logging: Annotated[Any, SWEEP] = None
    hydra_logging: Annotated[Any, SWEEP] = None
    output_subdir: Annotated[Any, SWEEP] = None
    verbose: Annotated[Any, SWEEP] = None


_SETTINGS = TypeAdapter(Config)


def refuse_unusable(values: Any, path: str) -> None:
    """Raise InputError for a text that no file system takes as a path; any of them may become one,
    but a prompt.
    """
    if isinstance(values, Mapping):
        for key, value in values.items():
            refuse_unusable(value, f"{path}.{key}" if path else str(key))
    if not isinstance(values, str) or path == "model.system":
        return
    refuse_name(values, f"{path}=")


def check_settings(values: Mapping[str, Any]) -> Config:
    """Return plain values as settings. Raises InputError for an unknown setting, or a value that is
    not allowed.
    """
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
    raise InputError(
        f"{key}: no such setting; {near(path[-1], [each.name for each in fields(group)])}"
    )


def conf_dir() -> Path:
    """The configuration tree: inside an installed package, next to it in a checkout."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def list_options(group: str) -> list[str]:
    """The options of a group; of '' the groups that a user chooses from."""
    if not group:
        return sorted(
            path.name for path in conf_dir().iterdir() if path.is_dir() and path.name != "hydra"
        )
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
