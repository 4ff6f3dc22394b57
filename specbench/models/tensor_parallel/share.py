"""One rank's share of a model: which part of each weight it has, and how it is read without the
whole model in memory.

q, k, v, gate and up are split by rows of the weight, out and down by columns (Megatron-LM, Shoeybi
et al. 2019): a rank computes its own heads and inner columns, and one sum over the ranks closes
each half of a layer. Embeddings and norms are on every rank; the output head is whole on rank 0
alone, which chooses the tokens. The library's modules are built without memory; then each
parameter's part is read from the file, cast, and put on the rank's device, one after the other.
Random weights are drawn whole, on the host: all parts are of one model, and on CPUs it is that of
one process.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.utils.hub import cached_file

from specbench.models.facade import ModelCard
from specbench.models.family import find_head_size
from specbench.models.load import draw_weights, load_wide
from specbench.models.weights import refuse_shapes, refuse_unused
from specbench.types import InputError

BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "qkv_proj", "gate_up_proj")
BY_COLUMNS = ("o_proj", "down_proj")
HEAD = "lm_head"
SAFE = ("model.safetensors", "model.safetensors.index.json")
TORCH = ("pytorch_model.bin", "pytorch_model.bin.index.json")

# a dimension and the ranges kept along it; none: the parameter is left out
Cut = tuple[int, list[tuple[int, int]]]


def explain_uneven(config: Any, ranks: int) -> str | None:
    """Explain why ``ranks`` cannot share the weights of a supported family; None = they can."""
    text = config.get_text_config()
    counts = {
        "query heads": text.num_attention_heads,
        "key-value heads": text.num_key_value_heads,
        "inner columns (intermediate_size)": text.intermediate_size,
    }
    uneven = [
        f"its {count} {what} do not divide by {ranks}"
        for what, count in counts.items()
        if count % ranks
    ]
    return uneven[0] if uneven else None


def find_cut(name: str, size: tuple[int, ...], config: Any, rank: int, ranks: int) -> Cut | None:
    """Return what rank ``rank`` keeps of parameter ``name`` of ``size``; None = all of it."""
    *_, module, kind = name.split(".")
    if module in BY_ROWS:  # Phi-3 stores several weights joined, each of which is split
        sections = {"gate_up_proj": [size[0] // 2] * 2}.get(module, [size[0]])
        if module == "qkv_proj":
            text = config.get_text_config()
            counts = text.num_attention_heads, text.num_key_value_heads, text.num_key_value_heads
            sections = [count * find_head_size(text) for count in counts]
        return 0, _portions(sections, rank, ranks)
    if module in BY_COLUMNS and kind == "weight":
        return 1, _portions([size[1]], rank, ranks)
    if module in BY_COLUMNS and rank:
        return 0, []  # a bias after a sum is added once
    return (0, [(0, 1)]) if module == HEAD and rank else None  # its logits are never read


def _portions(sections: Sequence[int], rank: int, ranks: int) -> list[tuple[int, int]]:
    starts = accumulate(sections, initial=0)
    parts = [(start, count // ranks) for start, count in zip(starts, sections, strict=False)]
    return [(start + rank * part, start + (rank + 1) * part) for start, part in parts]


def _part(weight: Any, cut: Cut | None) -> Tensor:
    """Return a part of a weight, on the host; of a file's slice only the part is read."""
    if cut is None:
        return weight[:]
    dim, ranges = cut
    parts = [weight[start:end] if dim == 0 else weight[:, start:end] for start, end in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def load_share(
    card: ModelCard,
    device: str,
    rank: int,
    ranks: int,
    *,
    revision: str | None,
    safetensors: bool,
    seed: int,
) -> Any:
    """The library's model with one rank's share of the weights on ``device``, in eval mode; for
    ``CompactModel`` only.

    Its own forward would leave the other ranks out. Raises InputError for files that lack a weight.
    """
    dtype = getattr(torch, card.dtype)
    whole = card.path == "random" or card.widening is not None
    if card.widening is not None:
        wide = load_wide(card, "cpu", seed=seed, revision=revision, safetensors=safetensors)
        source: Mapping[str, Any] = wide.state_dict()
    elif whole:
        source = draw_weights(card, seed, "cpu").state_dict()
    else:
        source = _open(card.path, revision, safetensors)
        refuse_shapes(card, f"model={card.name}")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(card.config, dtype=dtype)
    if not whole:
        refuse_unused(source.keys() - model.state_dict().keys(), card.config, f"model={card.name}")
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if (
            name.startswith(f"{HEAD}.")
            and name not in source
            and card.config.get_text_config().tie_word_embeddings
        ):
            continue
        if name not in source:
            raise InputError(
                f"model.path={card.path}: its files hold no weight {name}; expected the family's"
                " own names"
            )
        cut = find_cut(name, tuple(parameter.shape), card.config, rank, ranks)
        _put(
            model,
            name,
            None if cut and not cut[1] else _part(source[name], cut).to(device, dtype, copy=True),
        )
    body: Any = model.model
    # the embeddings' own, and where it is never read one row of them
    if model.lm_head.weight.is_meta:
        embedding = model.get_input_embeddings().weight
        _put(model, f"{HEAD}.weight", embedding.data[:1] if rank else embedding.data)
    with torch.device("cpu"):
        body.rotary_emb = type(body.rotary_emb)(config=card.config.get_text_config()).to(device)
    model.config = copy.deepcopy(card.config)  # of a model of fewer heads, and of the same width
    text = model.config.get_text_config()
    text.head_dim = find_head_size(text)
    text.num_attention_heads //= ranks
    text.num_key_value_heads //= ranks
    return model.eval()


def _put(model: Any, name: str, weight: Tensor | None) -> None:
    owner, _, kind = name.rpartition(".")
    parameter = None if weight is None else nn.Parameter(weight, requires_grad=False)
    model.get_submodule(owner).register_parameter(kind, parameter)


def _open(path: str, revision: str | None, safetensors: bool) -> dict[str, Any]:
    """The weights of a folder or hub id by name: slices of safetensors files, or tensors mapped
    from torch files.
    """
    found: dict[str, Any] = {}
    if files := _files(path, revision, SAFE):
        for file in files:
            opened = safe_open(file, framework="pt")
            found.update({name: opened.get_slice(name) for name in opened.keys()})  # noqa: SIM118 - no mapping
    elif not safetensors and (files := _files(path, revision, TORCH)):
        for file in files:
            found.update(torch.load(file, map_location="cpu", weights_only=True, mmap=True))
    else:
        kind = "*.safetensors" if safetensors else "*.safetensors or torch files"
        raise InputError(
            f"model.path={path}: no weights found to share between ranks; expected {kind}"
        )
    return found


def _files(path: str, revision: str | None, names: tuple[str, str]) -> list[str]:
    """Return all files of one kind: a single one, or those that an index lists; [] if there are
    none.
    """
    options: Any = {"revision": revision, "_raise_exceptions_for_missing_entries": False}
    single, index = (cached_file(path, name, **options) for name in names)
    if single:
        return [single]
    if not index:
        return []
    listed = sorted(set(json.loads(Path(index).read_text())["weight_map"].values()))
    found = [cached_file(path, name, revision=revision) for name in listed]
    return [file for file in found if file]
