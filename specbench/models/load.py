"""Loads a causal language model: first a card (configuration, tokenizer, checks), then the weights.

Everything that can be wrong without weights is found with the card, so that a mistake costs a second, not a download.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
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

from specbench.input import refuse_network
from specbench.models.facade import ModelCard
from specbench.models.family import check_family, choose_context
from specbench.models.weights import (
    refuse_folder,
    refuse_layers,
    refuse_missing,
    refuse_shapes,
    refuse_size,
    refuse_tokenizer,
    refuse_unused,
)
from specbench.types import InputError

# Classes of causal LMs that the library lacks, and the family that each is, beside modules that predict further tokens.
SAME_AS = {"MiMoForCausalLM": "qwen2"}


class LibraryConfig:
    """Where the library's ``AutoConfig`` would be asked."""

    @staticmethod
    def from_pretrained(path: str, **options: Any) -> Any:
        """The configuration of a folder or hub id. Raises what the library raises."""
        if not options.get("trust_remote_code"):
            held, _ = PreTrainedConfig.get_config_dict(path, revision=options.get("revision"))
            if family := _find_same(held.get("architectures")):
                plain = {key: value for key, value in held.items() if key not in ("auto_map", "model_type")}
                return CONFIG_MAPPING[family].from_dict(plain)
        return AutoConfig.from_pretrained(path, **options)


def override(config: Any, entries: Any, key: str) -> Any:
    """A configuration with other ``entries``; of one that is a mapping itself, those of its own that are given.

    key: the setting that has them. Raises InputError for an entry that the configuration lacks or refuses.
    """
    if not isinstance(entries, Mapping):
        raise InputError(f"{key}={entries}: expected entries of a config.json, as {{max_position_embeddings: 32768}}")
    held = config.to_dict()
    if unknown := [name for name in entries if name not in held]:
        raise InputError(
            f"{key}.{unknown[0]}: the family {config.model_type} has no such entry; expected one of its config.json,"
            " as max_position_embeddings or rope_parameters"
        )
    for name, value in entries.items():
        inner = isinstance(value, Mapping) and isinstance(held[name], Mapping)
        held[name] = {**held[name], **value} if inner else value
    try:
        return type(config).from_dict(held)
    except (ValueError, TypeError, KeyError, ZeroDivisionError, StrictDataclassError) as error:
        raise InputError(f"{key}: no {config.model_type} has these entries ({error})") from error


def _find_same(architectures: Any) -> str | None:
    return SAME_AS.get(str(architectures[0])) if isinstance(architectures, list) and architectures else None


def draw_weights(card: ModelCard, seed: int, device: str, **options: Any) -> Any:
    """The causal LM of a card, its weights drawn on ``device`` itself: a CPU and a GPU draw other numbers.

    options: of the library's ``from_config``.
    """
    place = torch.device(device)
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []), place:
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(card.config, dtype=getattr(torch, card.dtype), **options)


ASSETS = Path(__file__).resolve().parent.parent / "assets"
BUNDLED = "bundled:"
DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
ATTENTIONS = ("sdpa", "eager")
UNREADABLE = (OSError, ValueError, KeyError, ImportError, TypeError, AttributeError, RecursionError)


# Long: each of its settings is a line, in the signature and in the card.
def read_card(
    *,
    path: str | None,
    name: str | None = None,
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
    prefix: str = "model.",
    path_key: str = "path",
) -> ModelCard:
    """What is known before weights are loaded; raises InputError naming the setting that is wrong, behind ``prefix``.

    path: folder, hub id or ``bundled:NAME``; path_key: what the user calls it (a draft model's is ``draft``).
    random: {family, seed, config} in place of a path. overrides: entries of the path's configuration, see ``override``.
    """
    named = f"{prefix}{path_key}"
    _one_of(f"{prefix}dtype", dtype, DTYPES)
    _one_of(f"{prefix}attention", attention, ATTENTIONS)
    chosen = choose_device(device, gpus, prefix)
    if random and overrides is not None:
        raise InputError(f"{prefix}overrides: a random model has no configuration; expected {prefix}random.config")
    if random:
        config, path, tokenizer = _random_config(random, prefix), "random", tokenizer or BUNDLED + "tiny"
    else:
        path = _locate_weights(path, safetensors, named)
        config = _read(LibraryConfig, path, named, revision=revision, trust_remote_code=trust_remote_code)
        if overrides is not None:
            config = override(config, overrides, f"{prefix}overrides")
    source = locate(tokenizer or path, f"{prefix}tokenizer")
    reader = read_tokenizer(source, f"{prefix}tokenizer", revision=revision, trust_remote_code=trust_remote_code)
    stored = _dtype_name(dtype, config, chosen)
    refuse_size(config, stored, chosen, gpus, f"{prefix}random.config" if random else f"{named}={path}")
    check_family(config, named)
    length, warning = choose_context(config, context, int(reader.model_max_length), f"{prefix}context")
    refuse_tokenizer(len(reader), config, f"{prefix}tokenizer={source}")
    return ModelCard(
        name=name or (f"random-{config.model_type}" if random else Path(path).name.lower()),
        path=path,
        config=config,
        tokenizer=reader,
        context=length,
        eos=find_eos(config, reader, path, revision),
        dtype=stored,
        device=chosen,
        warnings=(warning,) if warning else (),
    )


def _locate_weights(path: str | None, safetensors: bool, named: str) -> str:
    """Folder or hub id of a model whose weights, where they are here, can be read."""
    if not path:
        raise InputError(f"{named}: not set; expected a hub id, a folder or {BUNDLED}tiny (or model=random)")
    found = locate(path, named)
    if Path(found).is_dir():  # else a hub id
        refuse_folder(Path(found), safetensors, f"{named}={found}")
    return found


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
    """The causal LM of a card, in eval mode on its device(s)."""
    dtype, spread = getattr(torch, card.dtype), gpus is not None and gpus > 1
    try:
        if card.path == "random":
            model = draw_weights(card, seed, "cpu" if spread else card.device, attn_implementation=attention).eval()
            return _spread(model, _memory(card.device, gpus)) if spread else model
        refuse_shapes(card, f"model={card.name}")
        placing = {"device_map": "balanced", "max_memory": _memory(card.device, gpus)} if spread else {}
        model, info = cast(
            tuple[Any, dict[str, Any]],
            AutoModelForCausalLM.from_pretrained(
                card.path,
                revision=revision,
                dtype=dtype,
                attn_implementation=attention,
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
        raise InputError(f"model={card.name}: cannot be built ({_cause(error, card.config, attention)})") from error


def _cause(error: Exception, config: Any, attention: str) -> str:
    """Why the library cannot build a model: its own words, and the setting that they are about."""
    reason = _reason(error)
    if "attention" in reason:
        return f"model.attention={attention}: {reason}; expected {' or '.join(ATTENTIONS)}, as the family supports"
    if not isinstance(error, KeyError):
        return reason
    text = config.get_text_config().to_dict()
    settings = [*text.items(), *(text.get("rope_parameters") or {}).items()]
    found = [f"{key}={value}: unknown to the library" for key, value in settings if value == error.args[0]]
    return ", ".join(found) or f"no {reason}"


def _memory(device: str, gpus: int | None) -> dict[int, int]:
    """Room [bytes] on ``gpus`` devices from ``device`` on; the others are not used."""
    first = torch.device(device).index or 0
    return {index: int(torch.cuda.mem_get_info(index)[0] * 0.9) for index in range(first, first + (gpus or 1))}


def _spread(model: Any, room: dict[int, int]) -> Any:
    """Layer after layer over the devices of ``room``, as ``from_pretrained`` puts what it reads."""
    import accelerate  # here, since one device does not need it

    whole = list(model._no_split_modules)
    room = accelerate.utils.get_balanced_memory(model, room, no_split_module_classes=whole)
    where = accelerate.infer_auto_device_map(model, room, no_split_module_classes=whole)
    return accelerate.dispatch_model(model, where, skip_keys=list(model._skip_keys_device_placement or ()))


def locate(path: str, key: str) -> str:
    """A bundled name's folder; anything else is left as it is. Raises InputError for an unknown or missing one."""
    if path.startswith(BUNDLED):
        folder = ASSETS / path.removeprefix(BUNDLED)
        if not (folder / "config.json").is_file():
            known = sorted(item.parent.name for item in ASSETS.glob("*/config.json"))
            raise InputError(f"{key}={path}: no such bundled model; expected one of {known}")
        return str(folder)
    path = os.path.expandvars(path)  # of a manifest
    local = path.startswith(("/", ".", "~")) or path.count("/") > 1
    if not local and not Path(path).exists():
        return path
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise InputError(f"{key}={path}: no such folder; expected one with config.json, weights and a tokenizer")
    return str(folder)


def locate_file(path: str) -> str:
    """A bundled file's path (``bundled:tiny/NAME``); anything else is left as it is."""
    return str(ASSETS / path.removeprefix(BUNDLED)) if path.startswith(BUNDLED) else path


def read_tokenizer(path: str, key: str, **options: Any) -> Any:
    """The tokenizer of a folder or hub id. Raises InputError naming ``key``."""
    return _read(AutoTokenizer, path, key, **options)


def _read(reader: Any, path: str, key: str, **options: Any) -> Any:
    """``from_pretrained`` whose failure names the key."""
    offline = "" if Path(path).exists() else refuse_network()
    try:
        return reader.from_pretrained(path, **options)
    except (*UNREADABLE, StrictDataclassError) as error:
        what = "tokenizer" if reader is AutoTokenizer else "model configuration"
        raise InputError(
            f"{key}={path}: no {what} could be read; expected a folder with its files, or a hub id that this machine"
            f" can reach or has in its cache ({offline or _reason(error)})"
        ) from error


def _reason(error: BaseException) -> str:
    """The first line of an error's message; the next, too, behind a colon."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join([first, *map(str.strip, others[:1])]) if first.endswith(":") else first


def _random_config(random: dict[str, Any], prefix: str) -> Any:
    family = random["family"]
    if family not in CONFIG_MAPPING:
        known = ["llama", "mistral", "phi3", "qwen2", "qwen3"]
        raise InputError(f"{prefix}random.family={family}: unknown to transformers; expected e.g. {', '.join(known)}")
    refuse_layers(random["config"], f"{prefix}random.config")
    try:
        return AutoConfig.for_model(family, **random["config"])
    except (ValueError, TypeError, ZeroDivisionError, StrictDataclassError) as error:
        raise InputError(f"{prefix}random.config: no {family} has this shape ({_reason(error)})") from error


def choose_device(device: str, gpus: int | None, prefix: str = "model.") -> str:
    """``auto`` made definite. Raises InputError when it or ``gpus`` is not there."""
    present = torch.cuda.device_count()
    if gpus is not None and not 1 <= gpus <= 4:
        raise InputError(f"{prefix}gpus={gpus}: expected 1 to 4")
    if gpus is not None and gpus > present and device.partition(":")[0] != "cpu":
        raise InputError(
            f"{prefix}gpus={gpus}: this machine has {present}; expected at most that (or leave it out;"
            f" with {prefix}device=cpu they are processes)"
        )
    if device == "auto":
        return "cuda:0" if present else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise InputError(f"{prefix}device={device}: expected auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(index or 0) >= present:
        raise InputError(f"{prefix}device={device}: this machine has {present} GPUs; expected cpu or a smaller number")
    if kind == "cuda" and int(index or 0) + (gpus or 1) > present:
        raise InputError(
            f"{prefix}gpus={gpus} from {prefix}device={device} on: this machine has {present} GPUs; expected fewer, or"
            f" {prefix}device=cuda:0"
        )
    return "cuda:0" if device == "cuda" else device


def _dtype_name(dtype: str, config: Any, device: str) -> str:
    if dtype != "auto":
        return dtype
    stored = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return "float32" if device == "cpu" else stored


def find_eos(config: Any, tokenizer: Any, path: str, revision: str | None) -> frozenset[int]:
    """Every id that ends an answer: the generation config's (Llama 3 has several), the config's, the tokenizer's."""
    found: list[Any] = [config.get_text_config().eos_token_id, tokenizer.eos_token_id]
    if Path(path).is_dir() and (Path(path) / "generation_config.json").is_file():
        try:
            found.append(GenerationConfig.from_pretrained(path).eos_token_id)
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}/generation_config.json: cannot be read ({_reason(error)})") from error
    elif path != "random" and not Path(path).is_dir():
        found.append(_hub_eos(path, revision))
    ids = [each for entry in found for each in (entry if isinstance(entry, list | tuple) else [entry])]
    if strange := [each for each in ids if not isinstance(each, int | None)]:
        raise InputError(f"{path}: eos_token_id is {strange[0]!r}; expected a token's id, or a list of them")
    return frozenset(each for each in ids if each is not None)


def _hub_eos(path: str, revision: str | None) -> Any:
    try:
        return GenerationConfig.from_pretrained(path, revision=revision or "main").eos_token_id
    except OSError:  # many older models have no generation_config.json
        return None


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        close = difflib.get_close_matches(value, allowed, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"{key}={value}: expected one of {', '.join(allowed)}{hint}")
