"""Hydra++ (Ankner et al. 2024): Medusa's heads made to depend on the tokens drafted before them.

A decoder layer of its own reads the target's last states; head i then takes that layer's output at
the last true token and the embeddings of the i + 1 tokens from the root down to the node below
which it drafts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from methods.parts.draft_layer import (
    DraftLayers,
    Forwards,
    LayerMemory,
    RowFunction,
    RowsCall,
    layer_shapes,
)
from methods.parts.head_file import HeadFile, HeadFormat, TensorShape, require_shapes
from methods.parts.head_method import StackedHeads, TargetEnds
from methods.parts.tree_method import DraftVocabulary, HeadRun, TreeDrafter
from methods.parts.tree_shape import ShapePlan
from specbench.method import Drafter
from specbench.models.facade import Target
from specbench.models.fast.host.forward import Norm
from specbench.types import InputError, Needs, Prefill

FORMAT = HeadFormat(
    "Hydra",
    ("hydra_lm_head.safetensors", "model.safetensors"),
    ("hydra_lm_head.pt", "pytorch_model.bin"),
    "read",
)
PREFIX = "prefix_embeding_layer."  # the checkpoints' spelling
LAYER = f"{PREFIX}layers.0."
# the target's is used
IGNORED = (r"input_embed_fn\.weight", r"prefix_embeding_layer\.embed_tokens\.weight")
ARCHITECTURE = "prefix-mlp"
BLOCKS = 4  # of a head's MLP in the published checkpoints


def head_count(names: Sequence[str]) -> tuple[int, int]:
    """(heads, blocks of each) by the names of a checkpoint; dropouts have the even places of a
    head.
    """
    found = [re.match(r"hydra_mlp\.(\d+)\.(\d+)\.", name) for name in names]
    places = [(int(match[1]), int(match[2])) for match in found if match]
    return (
        max((head for head, _ in places), default=-1) + 1,
        (max((at for _, at in places), default=-1) + 1) // 2,
    )


class HydraHeads(DraftVocabulary):
    """The weights: the prefix layer, and the heads that the tree uses."""

    def __init__(
        self,
        state: Mapping[str, Tensor],
        config: Any,
        heads: int,
        blocks: int,
        biased: bool,
        ends: TargetEnds,
    ) -> None:
        """state: with the names of ``HydraTree.shapes``, placed by ``ends``."""
        self.layers = DraftLayers(state, [LAYER], config, biased)
        before, after = state[f"{LAYER}input_layernorm.weight"], state[f"{PREFIX}norm.weight"]
        self._norms = [Norm(each, float(config.rms_norm_eps)) for each in (before, after)]
        self.embed = ends.embed
        self._first: list[tuple[Tensor, Tensor]] = []  # skip connection and linear in one matrix
        self._rest: list[list[tuple[Tensor, Tensor]]] = []
        self._out: list[tuple[Tensor, Tensor]] = []
        for head in range(heads):
            name, pair = f"hydra_mlp.{head}.", ("res_connection", "linear")
            weight, bias = (
                torch.cat([state[f"{name}1.{part}.{kind}"] for part in pair])
                for kind in ("weight", "bias")
            )
            self._first.append((weight, bias))
            later = [f"{name}{2 * block + 1}.linear." for block in range(1, blocks)]
            self._rest.append([(state[f"{block}weight"], state[f"{block}bias"]) for block in later])
            self._out.append(
                (state[f"hydra_lm_head.{head}.1.weight"], state[f"hydra_lm_head.{head}.1.bias"])
            )
        self.outputs = [RowFunction(partial(self.logits, head)) for head in range(heads)]

    def prefix(self, features: Tensor, memory: LayerMemory) -> Forwards:
        """Remember (T, D) states of committed tokens; the prefix layer's (1, D) output at the last
        one.
        """
        normed = self._norms[0](features)
        hidden = yield from self.layers.read(normed, features, memory)
        return self._norms[1](hidden)

    def logits(self, head: int, paths: Tensor) -> Tensor:
        """(rows, V). paths: (rows, (head + 2) D) prefix output and the path's embeddings, root
        first.
        """
        skip, linear = functional.linear(paths, *self._first[head]).chunk(2, dim=-1)
        state = skip + functional.silu(linear)
        for weight, bias in self._rest[head]:
            state = state + functional.silu(functional.linear(state, weight, bias))
        return functional.linear(state, *self._out[head])


class HydraRun(HeadRun):
    """One request's place: the tree grows head by head."""

    def root(self) -> Forwards:
        if self.queue:
            (features,), following = self.taken()
            self._token, self._prefix = (
                following[-1:],
                (yield from self.head.prefix(features, self.memory)),
            )
        self._head = 0
        return (yield from self._below(self._prefix, self._token))

    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        self._head += 1
        return (yield from self._below(self._paths.index_select(0, rows), ids))

    def _below(self, paths: Tensor, ids: Tensor) -> Forwards:
        self._paths = torch.cat([paths, self.head.embed(ids)], dim=-1)
        return (yield RowsCall(self.head.outputs[self._head], self._paths))


@dataclass(eq=False)
class HydraTree(StackedHeads):
    """Hydra++; conf/method/hydra_heads.yaml describes the parameters."""

    format = FORMAT
    random_sizes = (BLOCKS, False)
    grown, by_place = None, False

    @property
    def needs(self) -> Needs:
        return Needs(hidden=self._layers, prompt_hidden=True)

    def check_kind(self, file: HeadFile) -> None:
        """The heads must be grounded, follow a prefix layer and read the last state."""
        kind = file.config.get("hydra_head_arch", ARCHITECTURE)
        if kind != ARCHITECTURE or not file.config.get("grounded_heads", True):
            raise InputError(
                f"{file.where}: heads of the kind {kind},"
                f" grounded_heads={file.config.get('grounded_heads', True)}; expected grounded"
                f" heads of the kind {ARCHITECTURE}"
            )
        if file.config.get("hidden_state_offset", 0):
            raise InputError(
                f"{file.where}: hidden_state_offset={file.config['hidden_state_offset']}; expected"
                " 0, the last state"
            )

    def shapes(self, heads: int, blocks: int, biased: bool) -> dict[str, TensorShape]:
        hidden, vocab = int(self.config.hidden_size), int(self.config.vocab_size)
        shapes = layer_shapes(self.config, LAYER, hidden, biased)
        shapes |= {f"{LAYER}input_layernorm.weight": (hidden,), f"{PREFIX}norm.weight": (hidden,)}
        for head in range(heads):
            for name in ("linear", "res_connection"):
                shapes[f"hydra_mlp.{head}.1.{name}.weight"] = (hidden, (head + 2) * hidden)
                shapes[f"hydra_mlp.{head}.1.{name}.bias"] = (hidden,)
            for block in range(1, blocks):
                shapes[f"hydra_mlp.{head}.{2 * block + 1}.linear.weight"] = (hidden, hidden)
                shapes[f"hydra_mlp.{head}.{2 * block + 1}.linear.bias"] = (hidden,)
            shapes[f"hydra_lm_head.{head}.1.weight"] = (vocab, hidden)
            shapes[f"hydra_lm_head.{head}.1.bias"] = (vocab,)
        return shapes

    def sizes(self, shapes: Mapping[str, TensorShape], file: HeadFile) -> tuple[int, int, bool]:
        """(heads, blocks, biased)."""
        heads, blocks = head_count(list(shapes))
        biased = f"{LAYER}self_attn.q_proj.bias" in shapes
        require_shapes(shapes, self.shapes(max(heads, 1), max(blocks, 1), biased), IGNORED, file)
        return heads, blocks, biased

    def bind(self, target: Target) -> None:
        state, (heads, blocks, biased), tree, ends = self.load(target)
        self._device = ends.device
        self._heads = HydraHeads(state, self.config, heads, blocks, biased, ends)
        self.plan = ShapePlan(tree, self._device)
        # of finished requests: allocated once, their content forgotten
        self.free: list[LayerMemory] = []

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The prompt's states are read with the first draft."""
        run = HydraRun(
            self._heads, self.free.pop() if self.free else LayerMemory(self._heads.layers, 0, 1)
        )
        self.remember(run, prefill.hidden, None, [*prompt[1:], prefill.token])
        return TreeDrafter(self, run, seed)
