"""Methods that fill a tree from a head over the target's features: files, requests, features, budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from methods.parts.heads.draft_layer import LayerMemory
from methods.parts.heads.forwards import Forwards
from methods.parts.heads.grown_tree import BestChoice, DrawnChoice, fill
from methods.parts.heads.head_file import HEAD, OFFSETS, HeadFile, find_head, random_weights, require_shapes, shapes_of
from methods.parts.heads.head_method import WIDEST, HeadMethod, TargetEnds
from methods.parts.heads.layer_config import layer_config
from methods.parts.heads.tree_head import TreeHead
from methods.parts.trees.tree_shape import ShapePlan, TreeShape
from specbench.method import Drafter, Drafting, GoesOn, SharedDrafter
from specbench.models.facade import ModelCard, Target
from specbench.types import EMPTY, Draft, InputError, Needs, Prefill, Step, require_count

EVERY = torch.zeros(1)  # offsets of a vocabulary that is the target's


class HeadRun(ABC):
    """One request's place: committed tokens are queued, and read with the next draft (``Growing``)."""

    ready = False

    def __init__(self, head: Any, memory: LayerMemory) -> None:
        """head: a ``TreeHead``. memory: of ``head.layers``; it is emptied."""
        self.head, self.memory = head, memory
        memory.forget()
        self.queue: list[tuple[Sequence[Tensor], Tensor]] = []

    def remember(self, features: Sequence[Tensor], following: Tensor) -> None:
        """Queue committed tokens.

        features: (T, D) of each layer.
        following: (T,) int64, the tokens that FOLLOW them.
        """
        self.queue.append((features, following))

    def taken(self) -> tuple[list[Tensor], Tensor]:
        """Features and following tokens that were not read yet; they leave the queue."""
        layers = zip(*(features for features, _ in self.queue), strict=True)
        features = [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in layers]
        following = torch.cat([following for _, following in self.queue])
        self.queue.clear()
        return features, following

    @abstractmethod
    def root(self) -> Forwards:
        """(1, Vd) logits of what follows the root, the last token remembered."""

    @abstractmethod
    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        """Logits (w, Vd) below w nodes one level down.

        ids: (w,) int64, their tokens.
        rows: (w,) int64, where their parents stood in the last call (zeros for children of the root).
        """

    def chances(self, ids: Tensor | None) -> Tensor | None:
        """(w,) that a token below each of w nodes is accepted, of a head trained to say so; else None.

        ids: (w,) int64, tokens of the last call's level; None = the root.
        """
        return None

    def ids(self, choice: Tensor) -> Tensor:
        """The head's ids -> the target's."""
        return self.head.ids(choice)

    def spread(self, logits: Tensor) -> Tensor:
        """See ``TreeHead.spread``."""
        return self.head.spread(logits)


class LevelsRun(HeadRun):
    """One request's place in a head whose levels come with the root's, whatever is drafted."""

    ready = True

    def __init__(self, head: Any, memory: LayerMemory, levels: int) -> None:
        super().__init__(head, memory)
        self.count, self._level = levels, 0
        self._levels = torch.empty(0)

    @abstractmethod
    def levels(self) -> Forwards:
        """(levels, Vd) logits of the first level, the second ...; reads the queue."""

    def root(self) -> Forwards:
        """See ``HeadRun.root``."""
        if self.queue:
            self._levels = yield from self.levels()
        self._level = 0
        return self._levels[:1]

    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        """The next level's logits (w, Vd), the same below every node."""
        self._level += 1
        yield from ()
        return self._levels[self._level].expand(len(ids), -1)


class TreeDrafter(SharedDrafter):
    """A request's drafter. method: with a plan, and the memory of finished requests. run: its place in the head."""

    def __init__(self, method: Any, run: Any, seed: int) -> None:
        self._method, self._run = method, run
        self._random = torch.Generator(run.memory.pairs.device).manual_seed(seed)

    def drafting(self, context: Sequence[int], budget: int) -> Drafting:
        method, run = self._method, self._run
        if budget < 1:
            return EMPTY
        if method.grows:
            return (yield from method.grown(run, budget, self.goes_on))
        plan = method.plan.cut(budget)
        parents = plan.shape.parents
        drawn = DrawnChoice(run, method.sampling, self._random) if method.draws and method.sampling else None
        tokens, chances = yield from fill(run, plan, drawn or BestChoice(run), self.goes_on)
        score = None if chances is None or chances.device.type != "cpu" else chances.tolist()
        probs = None if drawn is None else torch.cat(drawn.probs)
        return Draft(tokens, parents[: len(tokens)], probs, source=[0] * len(tokens), score=score)

    def observe(self, step: Step) -> None:
        if not step.done:
            rows = [0, *(node + 1 for node in step.path)]
            self._method.remember(self._run, step.hidden, rows, step.emitted)

    def finish(self, context: Sequence[int]) -> None:
        self._method.free.append(self._run.memory)


class TreeMethod(HeadMethod):
    """A head of one kind, and a fixed tree; or one that it grows itself (``grows``)."""

    kind: type[TreeHead]
    grows = False

    def __init__(self, head: str | None, shape: TreeShape, drawn: bool, safetensors: bool) -> None:
        """drawn: at temperature > 0 nodes are drawn, siblings without replacement; else the best tokens are taken."""
        super().__init__(head, safetensors)
        self.shape, self.draws = shape, drawn

    @property
    def widest(self) -> int:
        """Most children of a node."""
        return max(self.shape.ranks) + 1

    @abstractmethod
    def new_run(self, head: Any, memory: LayerMemory) -> HeadRun:
        """A request's place in the head."""

    @abstractmethod
    def new_memory(self) -> LayerMemory:
        """A request's keys and values."""

    def grown(self, run: Any, budget: int, goes_on: GoesOn | None) -> Drafting:
        """The tree of a head that grows it."""
        raise NotImplementedError

    @property
    def needs(self) -> Needs:
        """The features that the head continues, of every token."""
        return Needs(hidden=self._layers, prompt_hidden=True)

    def check(self, model: ModelCard) -> None:
        """The head must be there, be one of this kind, and fit the target's width and vocabulary."""
        shape = model.config.get_text_config()
        file = find_head(self.head, self.kind.format, self._safetensors, model.name)
        file = self.kind.narrow(file, shape.num_hidden_layers)
        self._config = layer_config(file, shape)
        self._layers = self.kind.layers_read(file, shape.num_hidden_layers)
        self._expected = self.kind.shapes(file, self._config, shape, len(self._layers))
        names = file.shapes()
        if names is not None:
            require_shapes(self.kind.rename(names), self._expected, self.kind.ignored, file)
        drafted = self._expected.get(HEAD, (int(shape.vocab_size),))[0]
        if self.widest > drafted:
            raise InputError(
                f"{file.where}: drafts {drafted} different tokens, and a node of the tree has {self.widest} children;"
                " expected at most as many: lower top_k, or the counts of choices"
            )
        self._file = file

    def bind(self, target: Target) -> None:
        """Load the head beside the target's output head."""
        file, ends = self.file_for(target), TargetEnds(target)
        self.sampling, self._device = target.sampling, ends.device
        self.bound = self.load_head(file, ends)
        self.plan, self.vocabulary = ShapePlan(self.shape, self._device), self.bound.vocabulary
        self.free: list[LayerMemory] = []  # of finished requests: allocated once, their content forgotten

    def load_head(self, file: HeadFile, ends: TargetEnds) -> TreeHead:
        """The head of a file that has been checked, as far as that goes without its weights. Raises InputError."""
        expected = self._expected
        if file.random:
            state = random_weights(expected)
        else:
            state = self.kind.rename(file.load())
            own = [name for name in self.kind.own(file) if name in state]
            expected = dict.fromkeys(own, (ends.vocab, ends.width)) | expected
            require_shapes(shapes_of(state), expected, self.kind.ignored, file)
            if OFFSETS not in self._expected and state.get(OFFSETS, EVERY).count_nonzero():
                raise InputError(f"{file.where}: {OFFSETS} moves ids of the whole vocabulary; expected zeros")
            if HEAD in state and HEAD not in expected:
                ends.require_copy(state[HEAD], file.where)
        placed = ends.place({name: state[name] for name in expected}, file.where)
        return self.kind(placed, file, self._config, ends)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The prompt's features are read with the first draft."""
        run = self.new_run(self.bound, self.free.pop() if self.free else self.new_memory())
        self.remember(run, prefill.hidden, None, [*prompt[1:], prefill.token])
        return TreeDrafter(self, run, seed)


class LevelsMethod(TreeMethod):
    """A head that drafts all levels in one forward: folder, hub id, ``bundled:NAME`` or ``random``.

    length: tokens of the chain, null = ``usual``. choices: in its place a tree by child counts, level by level.
    sampling at temperature > 0: drawn (from each level's distribution, for the ratio test) | top. safetensors: false
    reads torch files.
    """

    runs: type[LevelsRun]
    usual = 7

    def __init__(
        self,
        head: str | None,
        length: int | None = None,
        choices: list[list[int]] | None = None,
        sampling: Literal["top", "drawn"] = "drawn",
        safetensors: bool = True,
    ) -> None:
        if length is not None:
            require_count("length", length)
        self._whole = length is None and choices is None
        chain = [[1]] * (length or self.usual) if choices is None else choices
        super().__init__(head, TreeShape.from_counts(chain, WIDEST, "choices"), sampling == "drawn", safetensors)

    def new_run(self, head: Any, memory: LayerMemory) -> HeadRun:
        """A request's place in the head."""
        return self.runs(head, memory, len(self.shape.levels))
