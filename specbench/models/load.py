"""Loads a causal language model: first a card (configuration, tokenizer, checks), then the weights.

Everything that can be wrong without weights is found with the card, so that a mistake costs a
second, not a download.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
)
from transformers.utils import cached_file

from specbench.input import cut, refuse_network
from specbench.models.entries import read_vocab_size
from specbench.models.facade import ModelCard
from specbench.models.family import check_family, choose_context
from specbench.models.gguf import SUFFIX, convert, find_gguf, is_gguf, read_note
from specbench.models.packaged import PACKAGED, find_packaged
from specbench.models.weights import (
    refuse_folder,
    refuse_missing,
    refuse_shapes,
    refuse_size,
    refuse_tokenizer,
    refuse_unused,
)
from specbench.models.widen import Widening
from specbench.names import ASSETS, BUNDLED
from specbench.types import InputError

# Causal LMs that the library lacks, and the family that each equals, except its modules that
# predict further tokens.
SAME_AS = {"MiMoForCausalLM": "qwen2"}


class LibraryConfig:
    """Reads configurations as the library's ``AutoConfig`` does; a family that it lacks, as the one
    that it equals.
    """

    @staticmethod
    def from_pretrained(path: str, **options: Any) -> Any:
        """Return the configuration of a folder or hub id. Raises what the library raises."""
        if not options.get("trust_remote_code"):
            stored, _ = PreTrainedConfig.get_config_dict(path, revision=options.get("revision"))
            names = stored.get("architectures")
            if family := SAME_AS.get(str(names[0])) if isinstance(names, list) and names else None:
                plain = {
                    key: value
                    for key, value in stored.items()
                    if key not in ("auto_map", "model_type")
                }
                return CONFIG_MAPPING[family].from_dict(plain)
        return AutoConfig.from_pretrained(path, **options)


def override(config: Any, entries: Any, key: str) -> Any:
    """Return the configuration with other ``entries``; an entry that is a mapping is updated, not
    replaced.

    key: the setting that has the entries. Raises InputError for an entry that the configuration
    lacks or refuses.
    """
    if not isinstance(entries, Mapping):
        raise InputError(
            f"{key}={entries}: expected entries of a config.json, as {{max_position_embeddings:"
            " 32768}"
        )
    stored = config.to_dict()
    if unknown := [name for name in entries if name not in stored]:
        raise InputError(
            f"{key}.{unknown[0]}: the family {config.model_type} has no such entry; expected one of"
            " its config.json, as max_position_embeddings or rope_parameters"
        )
    for name, value in entries.items():
        inner = isinstance(value, Mapping) and isinstance(stored[name], Mapping)
        stored[name] = {**stored[name], **value} if inner else value
    try:
        return type(config).from_dict(stored)
    except UNREADABLE as error:
        reason, given = explain(error), list(entries)
        wrong = [name for name in given if reason.startswith(f"{name} ")] or given * (
            len(given) == 1
        )
        place = f"{key}.{wrong[0]}={cut(str(entries[wrong[0]]))}" if wrong else key
        raise InputError(f"{place}: no {config.model_type} has these entries ({reason})") from error


def draw_weights(card: ModelCard, seed: int, device: str, **options: Any) -> Any:
    """Build the causal LM of a card with seeded random weights, drawn on ``device``: CPUs and GPUs
    draw other numbers.

    options: of the library's ``from_config``.
    """
    place, dtype = torch.device(device), getattr(torch, card.dtype)
    options["experts_implementation"] = choose_experts(dtype)
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []), place:
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(card.config, dtype=dtype, **options)


def choose_experts(dtype: torch.dtype) -> str | None:
    """Return how transformers computes mixtures of experts; None = as it chooses, by grouped
    products.

    These route every row by itself, and differ with the rows in a forward as much as any product:
    by rounding. Torch has none in float64, where each expert is a product.
    """
    return "eager" if dtype == torch.float64 else None


TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
ATTENTIONS = ("sdpa", "eager")
UNREADABLE = (
    OSError, ValueError, LookupError, ImportError, TypeError, AttributeError, RecursionError,
    ArithmeticError, StrictDataclassError,
)  # fmt: skip
_MISSING = ("gated_repo", "missing_entries", "connection_errors")  # which leave a hub's file out
_FIELD = re.compile(
    r"Field '(.+?)' (?:with value (.*) doesn't match any type in \((.*?)\)\. Errors|"
    r"expected (.*), got \w+ \(value: (.*)\)$)",
    re.DOTALL,
)


def read_card(
    *,
    path: str | None,
    name: str | None = None,
    gguf: str | None = None,
    revision: str | None = None,
    tokenizer: str | None = None,
    context: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    gpus: int | None = None,
    attention: str = "sdpa",
    safetensors: bool = True,
    trust_remote_code: bool = False,
    random: dict[str, Any] | None = None,
    overrides: Any = None,
    widen: Mapping[str, Any] | None = None,
    prefix: str = "model.",
    path_key: str = "path",
) -> ModelCard:
    """Read and check everything about a model except its weights.

    path: a folder, GGUF file, hub id or ``bundled:NAME``; gguf: the file in it. random: {family,
    seed, config} instead of a path. overrides: entries of the path's configuration, see
    ``override``. widen: see ``Widening.to``. prefix: of the settings' names in messages. path_key:
    the path's name there (a draft model's is ``draft``). Raises InputError that names the wrong
    setting.
    """
    named = f"{prefix}{path_key}"
    _one_of(f"{prefix}dtype", dtype, DTYPES)
    _one_of(f"{prefix}attention", attention, ATTENTIONS)
    chosen = choose_device(device, gpus, prefix)
    if random and overrides is not None:
        raise InputError(
            f"{prefix}overrides: a random model has no configuration; expected"
            f" {prefix}random.config"
        )
    if random and path:
        key, value = next(
            ((key, value) for key, value in random.items() if value not in (None, {})),
            ("family", None),
        )
        raise InputError(
            f"{named}={path}: and {prefix}random.{key}={value}; expected one of them: a model's own"
            f" weights, or random ones ({prefix}path=null)"
        )
    if random:
        config, path, tokenizer = (
            _random_config(random, prefix),
            "random",
            tokenizer or BUNDLED + "tiny",
        )
    else:
        if not path:
            raise InputError(
                f"{named}: not set; expected a hub id, a folder or {BUNDLED}tiny (or model=random)"
            )
        path = locate(path, named, gguf, revision)
        if Path(path).is_dir():  # else a hub id
            refuse_folder(Path(path), safetensors, f"{named}={path}")
        config = _read(
            LibraryConfig, path, named, revision=revision, trust_remote_code=trust_remote_code
        )
        if overrides is not None:
            config = override(config, overrides, f"{prefix}overrides")
    widening = Widening.to(config, widen, f"{prefix}widen") if widen else None
    if widening:
        config = widening.config()
    config.return_dict = True  # the forwards read named outputs
    source = locate(tokenizer or path, f"{prefix}tokenizer")
    reader = read_tokenizer(
        source, f"{prefix}tokenizer", revision=revision, trust_remote_code=trust_remote_code
    )
    own = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    stored = dtype if dtype != "auto" else "float32" if chosen == "cpu" else own
    given = (
        f"{prefix}random.config"
        if random
        else f"{prefix}overrides"
        if overrides
        else f"{named}={path}"
    )
    given = f"{prefix}widen" if widening else given
    refuse_size(config, stored, chosen, gpus, given)
    check_family(config, named)
    length, warning = choose_context(
        config, context, int(reader.model_max_length), f"{prefix}context"
    )
    refuse_tokenizer(len(reader), config, f"{prefix}tokenizer={source}")
    return ModelCard(
        name=name or (f"random-{config.model_type}" if random else Path(path).name.lower()),
        path=path,
        config=config,
        tokenizer=reader,
        context=length,
        eos=find_eos(config, reader, path, revision, given),
        dtype=stored,
        device=chosen,
        warnings=tuple(
            text
            for text in (
                warning,
                widening.note(path) if widening else None,
                warn_half(stored, chosen),
            )
            if text
        ),
        widening=widening,
    )


def warn_half(dtype: str, device: str) -> str | None:
    """Return a warning if a processor computes this dtype by others: a step takes many times as
    long.
    """
    level = torch.backends.cpu.get_cpu_capability()
    if device != "cpu" or dtype not in ("bfloat16", "float16") or level.startswith("AVX512"):
        return None
    return (
        f"model.dtype={dtype}: this processor ({level}) has no products of it, so that a step takes"
        " many times as long as in float32, and its speedups are those of no other machine."
    )


def load_model(
    card: ModelCard,
    *,
    revision: str | None = None,
    gpus: int | None = None,
    attention: str = "sdpa",
    safetensors: bool = True,
    trust_remote_code: bool = False,
    seed: int = 0,
) -> Any:
    """Load the causal LM of a card, in eval mode on its device(s)."""
    dtype, spread = getattr(torch, card.dtype), gpus is not None and gpus > 1
    try:
        if card.path == "random":
            model = draw_weights(
                card, seed, "cpu" if spread else card.device, attn_implementation=attention
            ).eval()
            return _spread(model, _memory(card.device, gpus)) if spread else model
        if card.widening is not None:
            place = "cpu" if spread else card.device
            files: Any = {
                "revision": revision,
                "safetensors": safetensors,
                "trust_remote_code": trust_remote_code,
            }
            model = load_wide(card, place, attention=attention, seed=seed, **files)
            return _spread(model, _memory(card.device, gpus)) if spread else model
        refuse_shapes(card, f"model={card.name}")
        placing = (
            {"device_map": "balanced", "max_memory": _memory(card.device, gpus)} if spread else {}
        )
        model, info = cast(
            tuple[Any, dict[str, Any]],
            AutoModelForCausalLM.from_pretrained(
                card.path,
                revision=revision,
                dtype=dtype,
                attn_implementation=attention,
                experts_implementation=choose_experts(dtype),
                use_safetensors=True if safetensors else None,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                config=card.config,
                **placing,
            ),
        )
        refuse_missing(info["missing_keys"], f"model={card.name}")
        refuse_unused(info["unexpected_keys"], card.config, f"model={card.name}")
        return model.eval() if spread else model.eval().to(card.device)
    except InputError:
        raise
    except (ValueError, ImportError, KeyError, OSError) as error:
        raise InputError(
            f"model={card.name}: cannot be built ({_cause(error, card.config, attention)})"
        ) from error


def load_wide(
    card: ModelCard, device: str, *, attention: str = "sdpa", seed: int = 0, **options: Any
) -> Any:
    """Load a widened causal LM, in eval mode. options: of ``load_model``, for the trained one."""
    assert card.widening is not None
    own = replace(card, config=card.widening.stored, dtype="float32", device="cpu", widening=None)
    model = draw_weights(card, seed, device, attn_implementation=attention).eval()
    card.widening.fill(model, load_model(own, **options).state_dict())
    return model


def _cause(error: Exception, config: Any, attention: str) -> str:
    """Explain why the library cannot build a model: its message, and the setting that the message
    is about.
    """
    reason = explain(error)
    if "attention" in reason:
        return (
            f"model.attention={attention}: {reason}; expected {' or '.join(ATTENTIONS)}, as the"
            " family supports"
        )
    if not isinstance(error, KeyError):
        return reason
    text = config.get_text_config().to_dict()
    settings = [*text.items(), *(text.get("rope_parameters") or {}).items()]
    found = [
        f"{key}={value}: unknown to the library"
        for key, value in settings
        if value == error.args[0]
    ]
    return ", ".join(found) or f"no {reason}"


def _memory(device: str, gpus: int | None) -> dict[int, int]:
    """Return the free memory [bytes] of ``gpus`` devices from ``device`` on; the others are not
    used.
    """
    first = torch.device(device).index or 0
    return {
        index: int(torch.cuda.mem_get_info(index)[0] * 0.9)
        for index in range(first, first + (gpus or 1))
    }


def _spread(model: Any, room: dict[int, int]) -> Any:
    """Spread layers over the devices of ``room`` in order, as ``from_pretrained`` does."""
    import accelerate  # here, since one device does not need it

    whole = list(model._no_split_modules)
    room = accelerate.utils.get_balanced_memory(model, room, no_split_module_classes=whole)
    where = accelerate.infer_auto_device_map(model, room, no_split_module_classes=whole)
    return accelerate.dispatch_model(
        model, where, skip_keys=list(model._skip_keys_device_placement or ())
    )


def locate(path: str, key: str, gguf: str | None = None, revision: str | None = None) -> str:
    """Return the folder from which a model is read, or its hub id.

    ``bundled:NAME`` is a folder of this package. A GGUF file, ``package:NAME`` and a folder or hub
    id with ``gguf`` are converted, at the first call, into a folder of the cache. Any other folder
    and hub id are returned as they are.

    Args:
        path: a setting's value.
        key: the setting, for errors.
        gguf: the file in the folder or hub id.
        revision: of the hub id.

    Raises:
        InputError: the folder is missing, or it is a file that is no model.
    """
    if gguf and (path.startswith((BUNDLED, PACKAGED)) or os.path.isfile(path)):  # noqa: PTH113
        raise InputError(f"model.gguf={gguf}: {key}={path} is a file or has one; leave it out")
    if path.startswith(BUNDLED):
        folder = ASSETS / path.removeprefix(BUNDLED)
        if not (folder / "config.json").is_file():
            known = sorted(item.parent.name for item in ASSETS.glob("*/config.json"))
            raise InputError(f"{key}={path}: no such bundled model; expected one of {known}")
        return str(folder)
    if path.startswith(PACKAGED):
        return str(convert(find_packaged(path, key), f"{key}={path}"))
    path = os.path.expandvars(path)  # of a manifest
    local = path.startswith(("/", ".", "~")) or path.count("/") > 1
    if not local and not os.path.exists(path):  # noqa: PTH110 (a Path raises for a name that is too long)
        if gguf is None:
            return path
        try:
            file = Path(str(cached_file(path, gguf, revision=revision)))
        except OSError as error:
            raise InputError(
                f"{key}={path} with model.gguf={gguf}: cannot be read ({explain(error)}); expected"
                " a file of this hub id"
            ) from error
        return str(convert(file, f"{key}={path}"))
    folder = Path(path).expanduser()
    if os.path.isfile(folder):  # noqa: PTH113 (likewise)
        if is_gguf(folder) or folder.suffix.lower() == SUFFIX:
            return str(convert(folder, f"{key}={path}"))
        raise InputError(f"{key}={path}: {explain_file(folder)}")
    if not os.path.isdir(folder):  # noqa: PTH112 (likewise)
        raise InputError(
            f"{key}={path}: no such file or folder; expected a folder with config.json, weights and"
            " a tokenizer, or a GGUF file"
        )
    found = find_gguf(folder, gguf, f"{key}={path}")
    return str(convert(found, f"{key}={path}") if found else folder)


def explain_file(file: Path) -> str:
    """Say what a file is that is no model by itself, and what to give in its place."""
    suffix, folder = file.suffix.lower(), file.parent
    if suffix == ".json" or suffix == ".safetensors" or suffix in TORCH_SUFFIXES:
        kind = "part of a model"
        fix = f"its folder, with config.json, weights and a tokenizer: {folder}"
    elif suffix in (".onnx", ".xml", ".engine", ".llamafile"):
        kind = "a model of another runtime"
        fix = "its safetensors or GGUF file; a server of that runtime is measured by model=server"
    else:
        kind = "a file that is no model"
        fix = "a folder with config.json, weights and a tokenizer, a hub id, or a GGUF file"
    return f"{kind}; expected {fix}"


def locate_file(path: str) -> str:
    """Return the path of a bundled file (``bundled:tiny/NAME``); any other path unchanged."""
    return str(ASSETS / path.removeprefix(BUNDLED)) if path.startswith(BUNDLED) else path


def read_tokenizer(path: str, key: str, **options: Any) -> Any:
    """Read the tokenizer of a folder or hub id. Raises InputError that names ``key``."""
    if (note := read_note(path)) and "split" in note:
        raise InputError(
            f"{key}: {note['file']} splits text by tokenizer.ggml.pre={note['split']}, which"
            " transformers does not know; expected model.tokenizer=FOLDER or the hub id of the"
            " original model"
        )
    found = _read(AutoTokenizer, path, key, **options)
    if not (isinstance(longest := found.model_max_length, int | float) and 1 <= longest <= 1e31):
        raise InputError(
            f"{key}={path}: model_max_length is {longest!r}; expected a number of tokens"
        )
    return found


def _read(reader: Any, path: str, key: str, **options: Any) -> Any:
    """Call ``from_pretrained`` with errors that name the key."""
    offline = "" if os.path.exists(path) else refuse_network()  # noqa: PTH110 (likewise)
    try:
        return reader.from_pretrained(path, **options)
    except Exception as error:
        # the latter is of the tokenizers library
        if not (isinstance(error, UNREADABLE) or type(error) is Exception):
            raise
        what = "tokenizer" if reader is AutoTokenizer else "model configuration"
        raise InputError(
            f"{key}={path}: no {what} could be read; expected a folder with its files, or a hub id"
            f" that this machine can reach or has in its cache ({offline or explain(error)})"
        ) from error


def explain(error: BaseException) -> str:
    """What a library found wrong in a configuration or a tokenizer, without Python's own words."""
    if isinstance(error, StrictDataclassError) and error.__cause__:
        error = error.__cause__
        if field := _FIELD.match(str(error)):
            name, either, types, kind, value = field.groups()
            wanted = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", types or kind).replace(
                "NoneType", "null"
            )
            return (
                f"{name} is {cut(either or value)}, which should be"
                f" {' or '.join(wanted.split(', '))}"
            )
    if type(error) in (TypeError, AttributeError, IndexError):
        return "an entry has a value of a wrong type"
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join([first, *map(str.strip, others[:1])]) if first.endswith(":") else first


def _random_config(random: dict[str, Any], prefix: str) -> Any:
    family = random["family"]
    if not family or family not in CONFIG_MAPPING:
        known = ["llama", "mistral", "phi3", "qwen2", "qwen3"]
        raise InputError(
            f"{prefix}random.family={family}: unknown to transformers; expected e.g."
            f" {', '.join(known)}"
        )
    try:
        config = AutoConfig.for_model(family, **random["config"])
    except UNREADABLE as error:
        raise InputError(
            f"{prefix}random.config: no {family} has this shape ({explain(error)})"
        ) from error
    ends, size = config.get_text_config().eos_token_id, config.get_text_config().vocab_size
    # the family's usual one
    if "eos_token_id" not in random["config"] and isinstance(ends, int) and ends >= size:
        config.get_text_config().eos_token_id = None
    return config


def choose_device(device: str, gpus: int | None, prefix: str = "model.") -> str:
    """Resolve ``auto`` to a device. Raises InputError if the device or ``gpus`` is not
    available.
    """
    present = torch.cuda.device_count()
    if gpus is not None and not 1 <= gpus <= 4:
        raise InputError(f"{prefix}gpus={gpus}: expected 1 to 4")
    if gpus is not None and gpus > present and device.partition(":")[0] != "cpu":
        raise InputError(
            f"{prefix}gpus={gpus}: this machine has {present}; expected at most that (or leave it"
            f" out; with {prefix}device=cpu they are processes)"
        )
    if device == "auto":
        return "cuda:0" if present else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise InputError(f"{prefix}device={device}: expected auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(index or 0) >= present:
        raise InputError(
            f"{prefix}device={device}: this machine has {present} GPUs; expected cpu or a smaller"
            " number"
        )
    if kind == "cuda" and int(index or 0) + (gpus or 1) > present:
        raise InputError(
            f"{prefix}gpus={gpus} from {prefix}device={device} on: this machine has {present} GPUs;"
            f" expected fewer, or {prefix}device=cuda:0"
        )
    return "cuda:0" if device == "cuda" else device


def find_eos(
    config: Any, tokenizer: Any, path: str, revision: str | None, key: str
) -> frozenset[int]:
    """Return every id that ends an answer: of the generation config (Llama 3 has several), config
    and tokenizer.

    key: the setting that has the configuration. Raises InputError for what is not a token's id.
    """
    found: list[Any] = [config.get_text_config().eos_token_id, tokenizer.eos_token_id]
    if Path(path).is_dir() and (Path(path) / "generation_config.json").is_file():
        try:
            found.append(GenerationConfig.from_pretrained(path).eos_token_id)
        except UNREADABLE as error:
            raise InputError(
                f"{path}/generation_config.json: cannot be read ({explain(error)})"
            ) from error
    elif path != "random" and not Path(path).is_dir():
        with contextlib.suppress(OSError):  # many older models have no generation_config.json
            found.append(
                GenerationConfig.from_pretrained(path, revision=revision or "main").eos_token_id
            )
    ids = [
        each for entry in found for each in (entry if isinstance(entry, list | tuple) else [entry])
    ]
    size = config.get_text_config().vocab_size
    if strange := [
        each for each in ids if each is not None and not (type(each) is int and 0 <= each < size)
    ]:
        raise InputError(
            f"{key}: eos_token_id is {strange[0]!r}; expected a token's id, 0 to {size - 1}, or a"
            " list"
        )
    return frozenset(each for each in ids if each is not None)


def find_vocab_size(path: str, revision: str | None, tokenizer: Any) -> int:
    """Return the number of ids that a model may emit, padding included, if its config is next to
    its tokenizer.

    Else that of the tokenizer. Raises InputError for a config without sense.
    """
    quiet = dict.fromkeys((f"_raise_exceptions_for_{each}" for each in _MISSING), False)
    found = cached_file(path, "config.json", revision=revision, **quiet)
    return max(
        1 + max(tokenizer.get_vocab().values()), read_vocab_size(Path(found)) if found else 0
    )


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        close = difflib.get_close_matches(value, allowed, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"{key}={value}: expected one of {', '.join(allowed)}{hint}")
