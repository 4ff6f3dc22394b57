"""Base classes of methods with trained heads: they find the head's file before any weights are
read, and load it.

Heads borrow the target's embedding and output head. The fixed trees of the published heads are
given as child counts (``TreeShape.from_counts``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from methods.parts.head_file import (
    HeadFile,
    HeadFormat,
    TensorShape,
    find_head,
    random_weights,
    require_finite,
    require_numbers,
    shapes_of,
)
from methods.parts.parameters import Parameters, count
from methods.parts.tree_shape import TreeShape
from specbench.method import Method
from specbench.models.facade import ModelCard, Target
from specbench.models.fast.host.forward import Product
from specbench.models.transfer import upload
from specbench.types import InputError

# github.com/FasterDecoding/Medusa, medusa_choices.py, mc_sim_7b_63, also Hydra's: 63 nodes, 4
# levels
MEDUSA_TREE = (
    (10,),
    (10, 7, 3, 2, 1, 1, 1, 1, 1, 1),
    (10, 3, 2, 1, 1, 1, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1, *[0] * 10),
    (2, *[0] * 22),
)
# github.com/SafeAILab/EAGLE, choices.py, a tree of the same name: 25 nodes, 5 levels
EAGLE_TREE = (
    (4,),
    (3, 2, 2, 1),
    (3, 2, 2, 1, 0, 0, 0, 0),
    (3, 0, 0, 0, 0, 0, 0, 0),
    (2, 0, 0),
)
WIDEST = 64  # children of a node


class TargetEnds:
    """Borrowed from the target; with its layers on several devices, the two stand on different
    ones.
    """

    def __init__(self, target: Target) -> None:
        """device: where features arrive last and the output head stands; a trained head belongs
        there too.
        """
        self._target, self.dtype = target, target.dtype
        self.vocab, self.width = target.vocab_size, target.hidden_size
        head, embedding = target.model.get_output_embeddings(), target.model.get_input_embeddings()
        self.device: torch.device = head.weight.device
        plain = type(embedding) is nn.Embedding and embedding.weight.device == self.device
        # Read without its module, whose call takes several times longer.
        self._embedding = embedding.weight.detach() if plain else None
        self._logits = Product(head.weight, head.bias) if self.device.type == "cpu" else target.head

    def embed(self, ids: Tensor) -> Tensor:
        """(rows,) ids -> (rows, D) input embeddings."""
        if self._embedding is not None:
            return functional.embedding(ids, self._embedding)
        return self._target.embed(ids.to(self._target.device)).to(self.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, D) states after the final norm -> (rows, V)."""
        return self._logits(hidden)

    def rows_of(self, known: Tensor) -> tuple[Tensor, Tensor | None]:
        """(Vd, D) and (Vd,), weight and bias of the output head for these (Vd,) ids alone."""
        head = self._target.model.get_output_embeddings()
        return head.weight[known], None if head.bias is None else head.bias[known]

    def require_copy(self, weight: Tensor, where: str) -> None:
        """Raises InputError where (V, D) is another output head than the target's, in the target's
        dtype.
        """
        own = self._target.model.get_output_embeddings().weight
        if weight.shape != own.shape or not torch.equal(weight.to(own.device, own.dtype), own):
            raise InputError(
                f"{where}: lm_head.weight is not the target's output head, which this kind of head"
                " drafts with; expected a copy of it, or none (was it trained for another target?)"
            )

    def final_norm(self) -> Tensor:
        """(D,) weights of the target's norm before its output head, 1 instead of 0. Raises
        InputError.
        """
        norm = getattr(getattr(self._target.model, "model", None), "norm", None)
        if norm is None:
            raise InputError(
                "head: reads states before the target's final norm; expected a target built as"
                " Llama is"
            )
        weight = norm.weight.detach().to(self.device)
        return torch.where(weight == 0, 1.0, weight).to(weight.dtype)

    def place(self, state: dict[str, Tensor], where: str, cast: bool = True) -> dict[str, Tensor]:
        """Weights on the output head's device, in the target's dtype; integers keep their type.

        where: for messages. cast: false = all keep their type. Raises InputError for other values
        (``require_numbers``).
        """
        require_numbers(state, where)
        placed = {
            name: weight.to(
                self.device, self.dtype if cast and weight.is_floating_point() else weight.dtype
            )
            for name, weight in state.items()
        }
        require_finite(placed, where)
        return placed


@dataclass(eq=False)
class HeadMethod(Parameters, Method):
    """A method with trained heads.

    head: folder, hub id, ``bundled:NAME`` or ``random``. safetensors: false reads torch files too.
    ``check`` of a subclass finds the file and names the layers.
    """

    sources = ("head",)

    head: str | None
    _: KW_ONLY
    safetensors: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layers: tuple[int, ...] = ()
        self._file: HeadFile | None = None
        self._device = torch.device("cpu")

    @property
    def inputs(self) -> tuple[str, ...]:
        return () if self._file is None or self._file.random else (self._file.path,)

    @property
    def warnings(self) -> tuple[str, ...]:
        if self._file is None or not self._file.random:
            return ()
        return ("head=random: its drafts are meaningless, only their cost is a head's",)

    def remember(
        self,
        run: Any,
        hidden: Mapping[int, Tensor],
        rows: list[int] | None,
        following: Sequence[int],
    ) -> None:
        """Queue features of committed tokens and the tokens that follow them. rows: of each layer,
        None = all.
        """
        taken = [hidden[layer].to(self._device) for layer in self._layers]
        if rows is not None:
            index = upload(rows, self._device)
            taken = [layer.index_select(0, index) for layer in taken]
        run.remember(taken, upload(following, self._device))


@dataclass(eq=False)
class StackedHeads(HeadMethod):
    """Several heads, one a level of a fixed tree. heads: how many of them draft, None = all.

    tree: child counts level by level, None = Medusa's 63 nodes; levels beyond the heads are left
    out. Sizes are those of a checkpoint: how many heads, then what else its shapes follow from.
    """

    format: ClassVar[HeadFormat]
    random_sizes: ClassVar[tuple[Any, ...]]  # of random weights, without the number of heads

    heads: int | None = count(None, high=WIDEST)
    tree: list[list[int]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._shape = TreeShape.from_counts(MEDUSA_TREE if self.tree is None else self.tree, WIDEST)

    @abstractmethod
    def shapes(self, *sizes: Any) -> dict[str, TensorShape]:
        """Names and shapes of a checkpoint of these sizes."""

    @abstractmethod
    def sizes(self, shapes: Mapping[str, TensorShape], file: HeadFile) -> tuple[Any, ...]:
        """The sizes of a checkpoint that is whole. Raises InputError."""

    def check_kind(self, file: HeadFile) -> None:
        """Raise InputError where the file's configuration names another kind of head."""

    def check(self, model: ModelCard) -> None:
        """The heads must be there, be of the published kind, and fit the target's shape."""
        self.config = model.config.get_text_config()
        file = find_head(self.head, self.format, self.safetensors, model)
        self._layers = (int(self.config.num_hidden_layers),)
        self.check_kind(file)
        names = file.shapes()
        if names is not None:
            self._checked_sizes(names, file)
        self._file = file

    def _checked_sizes(self, shapes: Mapping[str, TensorShape], file: HeadFile) -> tuple[Any, ...]:
        sizes = self.sizes(shapes, file)
        if self.heads is not None and self.heads > sizes[0]:
            raise InputError(
                f"heads={self.heads}: {file.where} has {sizes[0]}; expected at most that"
            )
        return sizes

    def load(
        self, target: Target
    ) -> tuple[dict[str, Tensor], tuple[Any, ...], TreeShape, TargetEnds]:
        """The weights of the heads that draft; their sizes; the part of the tree that they fill;
        where they are.
        """
        ends, file = TargetEnds(target), self._file
        assert file is not None
        if file.random:
            sizes = (self.heads or len(self._shape.levels), *self.random_sizes)
            state = random_weights(self.shapes(*sizes))
        else:
            state = file.load()
            sizes = self._checked_sizes(shapes_of(state), file)
        used = min(self.heads or sizes[0], len(self._shape.levels))
        sizes = (used, *sizes[1:])
        tree = self._shape.part(range(sum(len(level.ranks) for level in self._shape.levels[:used])))
        placed = ends.place({name: state[name] for name in self.shapes(*sizes)}, file.where)
        return placed, sizes, tree, ends
