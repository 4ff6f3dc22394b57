"""What every method with trained heads is: a file that is found before the weights, and the states that it reads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.parts.heads.head_file import HeadFile
from methods.parts.trees.tree_shape import TreeShape
from methods.parts.trees.tree_template import TreeTemplate
from specbench.method import Method
from specbench.target.facade import Target

MEDUSA = (  # github.com/FasterDecoding/Medusa, medusa_choices.py, mc_sim_7b_63; Hydra uses the same: 63 nodes, 4 levels
    (10,),
    (10, 7, 3, 2, 1, 1, 1, 1, 1, 1),
    (10, 3, 2, 1, 1, 1, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1, *[0] * 10),
    (2, *[0] * 22),
)
EAGLE = (  # github.com/SafeAILab/EAGLE, choices.py, a tree of the same name: 25 nodes, 5 levels
    (4,),
    (3, 2, 2, 1),
    (3, 2, 2, 1, 0, 0, 0, 0),
    (3, 0, 0, 0, 0, 0, 0, 0),
    (2, 0, 0),
)


WIDEST = 64  # children of a node


def fixed_tree(
    counts: Sequence[Sequence[int]] | None, published: Sequence[Sequence[int]], key: str = "tree"
) -> TreeShape:
    """The tree of the setting ``key``, or the published one. Raises InputError."""
    return TreeShape.of(TreeTemplate.from_counts(counts if counts is not None else published, WIDEST, key).parents)


class TargetEnds:
    """Borrowed from the target; with its layers on several devices, the two stand on different ones."""

    def __init__(self, target: Target) -> None:
        """device: where features arrive last and the output head stands; a trained head belongs beside it."""
        self._target = target
        self.vocab, self.width, self.dtype = target.vocab_size, target.hidden_size, target.dtype
        self.device: torch.device = target.model.get_output_embeddings().weight.device

    def embed(self, ids: Tensor) -> Tensor:
        """(rows,) ids -> (rows, D) input embeddings."""
        return self._target.embed(ids.to(self._target.device)).to(self.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, D) states after the final norm -> (rows, V)."""
        return self._target.head(hidden)

    def place(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights beside the output head, in the target's dtype; whole numbers keep theirs."""
        return {
            name: weight.to(self.device, self.dtype if weight.is_floating_point() else weight.dtype)
            for name, weight in state.items()
        }


class HeadMethod(Method):
    """head: folder, hub id, ``bundled:NAME`` or ``random``. safetensors: false reads torch files too.

    ``check`` of a subclass finds the file and names the layers.
    """

    sources: tuple[str, ...] = ("head",)

    def __init__(self, head: str | None, safetensors: bool) -> None:
        self.head, self._safetensors = head, safetensors
        self._layers: tuple[int, ...] = ()
        self._file: HeadFile | None = None

    @property
    def layer(self) -> int:
        """The hidden state that is read, where it is one."""
        return self._layers[0]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The head's file."""
        return () if self._file is None or self._file.random else (self._file.path,)
