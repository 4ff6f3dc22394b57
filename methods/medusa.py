"""Medusa (Cai et al. 2024): further output heads on the target's last state, each for one token
further ahead.

All heads read the same state, so a fixed tree is filled in one step: the child of rank r at depth d
is head d - 1's r-th best token, whatever stands above it. Acceptance is the run's;
``decode.accept=typical`` is the paper's (section 3.3.2).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from methods.parts.draft_layer import RowFunction, RowsCall
from methods.parts.head_file import HeadFile, HeadFormat, TensorShape, require_shapes
from methods.parts.head_method import StackedHeads
from methods.parts.tree_shape import TreeShape
from specbench.method import Drafter, Drafting, SharedDrafter
from specbench.models.facade import Target
from specbench.types import EMPTY, Draft, InputError, Needs, Prefill, Step

FORMAT = HeadFormat(
    "Medusa",
    ("medusa_lm_head.safetensors", "model.safetensors"),
    ("medusa_lm_head.pt", "pytorch_model.bin"),
    "unused",
)


def head_count(names: Sequence[str]) -> tuple[int, int]:
    """(heads, residual blocks of each) by the names of a checkpoint; a configuration's number is
    often wrong.
    """
    heads = [
        int(name.split(".")[0])
        for name in names
        if re.fullmatch(r"\d+\.\d+\.(linear\.)?(weight|bias)", name)
    ]
    blocks = [
        int(name.split(".")[1]) for name in names if re.fullmatch(r"\d+\.\d+\.linear\.weight", name)
    ]
    return max(heads, default=-1) + 1, max(blocks, default=-1) + 1


class MedusaHeads:
    """The heads that the tree uses, stacked: one product does a layer of all of them."""

    def __init__(
        self,
        state: Mapping[str, Tensor],
        heads: int,
        blocks: int,
        shared: Callable[[Tensor], Tensor],
    ) -> None:
        """state: with the names of ``Medusa.shapes``; ``heads`` may be fewer than there are.

        shared: (rows, D) -> (rows, V), the target's output head, of heads that have no matrix of
        their own.
        """

        def stacked(name: str) -> Tensor:
            return torch.stack([state[f"{head}.{name}"] for head in range(heads)])

        self._blocks = [
            (
                stacked(f"{block}.linear.weight").transpose(1, 2),
                stacked(f"{block}.linear.bias")[:, None],
            )
            for block in range(blocks)
        ]
        self._heads, self._shared = heads, shared
        self._out = (
            stacked(f"{blocks}.weight").transpose(1, 2) if f"0.{blocks}.weight" in state else None
        )

    def __call__(self, hidden: Tensor) -> Tensor:
        """(n, D) last states -> (n, heads, V) logits: row d for the token d + 2 places after that
        state's.
        """
        state = hidden.expand(self._heads, -1, -1)
        for weight, bias in self._blocks:
            state = state + functional.silu(torch.baddbmm(bias, state, weight))
        if self._out is not None:
            return torch.bmm(state, self._out).transpose(0, 1)
        return self._shared(state.transpose(0, 1).flatten(0, 1)).view(len(hidden), self._heads, -1)


class _Heads(SharedDrafter):
    def __init__(self, method: Medusa, hidden: Tensor) -> None:
        self._method, self._hidden = method, hidden

    def drafting(self, context: Sequence[int], budget: int) -> Drafting:
        if budget < 1:
            return EMPTY
        method = self._method
        logits = yield RowsCall(method.output, self._hidden)
        best = logits[0].topk(method.width).indices
        shape, depths, ranks = method.plan(min(budget, len(method.shape)))
        return Draft(best[depths, ranks], shape.parents, source=[0] * len(shape))

    def observe(self, step: Step) -> None:
        last = step.path[-1] + 1 if step.path else 0
        hidden = step.hidden[self._method.needs.hidden[0]]
        # so that the other rows are freed
        self._hidden = hidden[last : last + 1].to(self._hidden.device, copy=True)


@dataclass(eq=False)
class Medusa(StackedHeads):
    """Medusa-1; conf/method/medusa.yaml describes the parameters."""

    format = FORMAT
    random_sizes = (1, True)

    @property
    def needs(self) -> Needs:
        return Needs(hidden=self._layers)

    def shapes(self, heads: int, blocks: int, own: bool) -> dict[str, TensorShape]:
        """Each head is ``blocks`` times x + SiLU(A x + b), then an output matrix: its own, or the
        target's.
        """
        hidden, shapes = int(self.config.hidden_size), dict[str, TensorShape]()
        for head in range(heads):
            for block in range(blocks):
                shapes[f"{head}.{block}.linear.weight"] = (hidden, hidden)
                shapes[f"{head}.{block}.linear.bias"] = (hidden,)
            if own:
                shapes[f"{head}.{blocks}.weight"] = (int(self.config.vocab_size), hidden)
        return shapes

    def sizes(self, shapes: Mapping[str, TensorShape], file: HeadFile) -> tuple[int, int, bool]:
        """(heads, blocks, whether each has an output matrix of its own)."""
        heads, blocks = head_count(list(shapes))
        if not heads or not blocks:
            found = ", ".join(sorted(shapes)[:4])
            raise InputError(
                f"{file.where}: no Medusa head: holds {found} ...; expected names like"
                " 0.0.linear.weight"
            )
        own = any(re.fullmatch(rf"\d+\.{blocks}\.weight", name) for name in shapes)
        require_shapes(shapes, self.shapes(heads, blocks, own), (), file)
        return heads, blocks, own

    def bind(self, target: Target) -> None:
        state, (heads, blocks, _), self.shape, ends = self.load(target)
        self.output = RowFunction(MedusaHeads(state, heads, blocks, ends.logits))
        self.width = max(self.shape.ranks) + 1
        self._device, self._plans = ends.device, dict[int, tuple[TreeShape, Tensor, Tensor]]()
        self.plan(len(self.shape))

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        hidden = prefill.hidden[self._layers[0]][-1:]
        return _Heads(self, hidden.to(self._device, copy=True))

    def plan(self, nodes: int) -> tuple[TreeShape, Tensor, Tensor]:
        """The tree's likeliest nodes; of each the head that drafts it, and its rank there, kept for
        the next call.
        """
        if nodes not in self._plans:
            shape = self.shape.part(self.shape.likeliest(nodes))
            heads = [depth for depth, level in enumerate(shape.levels) for _ in level.ranks]
            self._plans[nodes] = (
                shape, torch.tensor(heads, device=self._device),
                torch.tensor(shape.ranks, device=self._device)
            )  # fmt: skip
        return self._plans[nodes]
