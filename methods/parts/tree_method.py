"""Methods that fill a draft tree from a trained head over the target's features.

The tree has a fixed shape, filled with the head's best or drawn tokens, or the shape that the
head's probabilities give. The dynamic tree (EAGLE-2, Li et al. 2024, section 4) expands the best
nodes of each level by the product of the head's probabilities along their path, then keeps the best
of all candidates. That product cannot rise along a path, and equal ones are taken shallower first,
so that no node is kept without its parent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig

from methods.parts.best_tree import draft_places, find_top, keep_best, log_probs
from methods.parts.draft_layer import DraftLayers, Forwards, LayerMemory, RowFunction
from methods.parts.head_file import (
    HEAD,
    OFFSETS,
    HeadFile,
    HeadFormat,
    TensorShape,
    find_head,
    layer_config,
    random_weights,
    require_shapes,
    shapes_of,
)
from methods.parts.head_method import WIDEST, HeadMethod, TargetEnds
from methods.parts.parameters import count
from methods.parts.tree_shape import ShapePlan, TreeShape, draw_children
from specbench.method import Drafter, Drafting, DraftLevel, GoesOn, SharedDrafter
from specbench.models.facade import ModelCard, Target
from specbench.types import EMPTY, ROOT, Draft, InputError, Needs, Prefill, Step

# the target's is used: it is the same, and some exported heads hold noise there
EMBEDDING = r"embed_tokens\.weight"


class DraftVocabulary:
    """The vocabulary of a head. known: (Vd,) the target's ids of its vocabulary, None = all.

    candidates: how many tokens a place can have, None = all; the logits of the others are -inf.
    """

    ends: TargetEnds
    known: Tensor | None = None
    candidates: int | None = None

    @property
    def vocabulary(self) -> frozenset[int] | None:
        """The target's ids that it can draft; None = all."""
        return None if self.known is None else frozenset(self.known.tolist())

    def ids(self, choice: Tensor) -> Tensor:
        """The head's ids -> the target's."""
        return choice if self.known is None else self.known[choice]

    def spread(self, logits: Tensor) -> Tensor:
        """(rows, Vd) -> (rows, V) over the target's vocabulary, -inf where the head has no
        token.
        """
        if self.known is None:
            return logits
        return logits.new_full((len(logits), self.ends.vocab), -torch.inf).index_copy_(
            1, self.known, logits
        )


class TreeHead(DraftVocabulary, ABC):
    """The interface of a head for methods and requests.

    format: of its files. ignored: patterns of tensors that are not used. cast: its weights take the
    target's dtype. layers: its decoder layers.
    """

    format: HeadFormat
    ignored: tuple[str, ...] = (EMBEDDING,)
    cast: ClassVar[bool] = True
    layers: DraftLayers

    @abstractmethod
    def __init__(
        self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds
    ) -> None:
        """state: with the names of ``shapes``, placed by ``ends``. Raises InputError."""

    @classmethod
    def choose(cls, file: HeadFile) -> type[TreeHead]:
        """The class that computes the head of a file. Raises InputError."""
        return cls

    @staticmethod
    def configure(file: HeadFile, target: Any) -> Any:
        """The configuration of the head's layer. target: its configuration. Raises InputError."""
        return layer_config(file, target)

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """The target's hidden states that the head continues: here the last. layers: of the
        target.
        """
        return (layers,)

    @classmethod
    @abstractmethod
    def shapes(
        cls, file: HeadFile, config: LlamaConfig, target: Any, read: int
    ) -> dict[str, TensorShape]:
        """Names and shapes of the checkpoint. config: of the head's layer. target: its
        configuration. read: layers.

        Raises InputError where the widths differ.
        """

    @staticmethod
    def own(file: HeadFile) -> tuple[str, ...]:
        """Names of its embedding and output head of the target's size, used where the checkpoint
        has them.
        """
        return ()

    @staticmethod
    def narrow(file: HeadFile, layers: int) -> HeadFile:
        """The head's tensors alone, of a file that holds others too; layers: of the target. Raises
        InputError.
        """
        return file

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint's names as ``shapes`` has them, of its shapes or tensors."""
        return names

    @abstractmethod
    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """Features of committed tokens, (T, D) a layer, as the head continues them: (T, H)."""

    @abstractmethod
    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the input of attention for (T,) tokens and the states before them (T, H), and the
        residual (T, H).
        """

    def carry(self, hidden: Tensor) -> Tensor:
        """Turns a layer's output (rows, H) into the states that the next tokens and ``logits``
        continue (rows, H).
        """
        return hidden

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, H) of ``carry`` -> (rows, Vd) over the head's vocabulary."""

    @cached_property
    def output(self) -> RowFunction:
        """``logits`` of several requests in one call."""
        return RowFunction(self.logits)


def require_width(file: HeadFile, config: LlamaConfig, target: Any) -> int:
    """The width of a head's states, which must be the target's. target: its configuration. Raises
    InputError.
    """
    hidden = int(config.hidden_size)
    if hidden != target.hidden_size:
        raise InputError(
            f"{file.where}: made for a hidden size of {hidden}; expected the target's"
            f" {target.hidden_size}"
        )
    return hidden


def target_ids(offsets: Tensor, vocab: int, where: str) -> Tensor:
    """(Vd,) target ids from ``d2t``, which holds offsets: id = place + offset. Raises
    InputError.
    """
    ids = torch.arange(len(offsets), device=offsets.device) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab or len(ids.unique()) < len(ids):
        raise InputError(
            f"{where}: d2t leads to ids from {int(ids.min())} to {int(ids.max())},"
            f" {len(ids.unique())} different ones of {len(ids)}; expected offsets to {len(ids)}"
            f" different ids below {vocab}"
        )
    return ids


def grow(
    run: HeadRun,
    top_k: int,
    depth: int,
    nodes: int,
    goes_on: GoesOn | None = None,
    candidates: int | None = None,
) -> Drafting:
    """The dynamic tree: ``depth`` times the ``top_k`` best nodes of a level are expanded, the best
    ``nodes`` kept.

    goes_on: see ``Drafter``. candidates: see ``DraftVocabulary``.
    """
    # of a level, and of a path, no more can be kept
    top_k, depth = min(top_k, nodes), min(depth, nodes - 1)
    children = min(top_k, candidates or top_k)
    logits = yield from run.root()
    # On a CPU, an operation of numpy takes a fraction of torch's time.
    arrays: Any = np if logits.device.type == "cpu" else torch

    def rank(logits: Tensor) -> tuple[Tensor, Any, Any]:
        """(w, Vd) log probabilities; of the best (w, children) these, and their ids."""
        laws = log_probs(logits)
        logs, choice = laws.topk(children)
        ids = run.head.ids(choice)
        return (laws, logs.numpy(), ids.numpy()) if arrays is np else (laws, logs, ids)

    laws, logs, choice = rank(logits)
    ids, scores, law = choice[0], logs[0], laws[0]
    rows, numbers = arrays.zeros_like(ids), arrays.arange(children, device=ids.device)
    # candidates, numbered level by level
    kept, start = [(ids, scores, scores, arrays.full_like(ids, ROOT))], children
    for level in range(depth):
        if goes_on and not goes_on(DraftLevel(level + 1, arrays.exp(scores[0]), law.exp())):
            break
        expanded = (torch.from_numpy(ids), torch.from_numpy(rows)) if arrays is np else (ids, rows)
        laws, logs, choice = rank((yield from run.expand(*expanded)))
        below, above = (
            (scores[:, None] + logs).reshape(-1),
            arrays.arange(logs.shape[0] * children, device=ids.device),
        )
        kept.append((choice.reshape(-1), below, logs.reshape(-1), numbers[above // children]))
        if level < depth - 1:
            place = find_top(below, min(top_k, len(below)))
            ids, scores, rows, numbers = (
                kept[-1][0][place],
                below[place],
                place // children,
                place + start,
            )
            law = laws[rows[0]] if goes_on else law
            start += len(below)
    return keep_best([arrays.concat(parts) for parts in zip(*kept, strict=True)], nodes, depth + 1)


# tokens (N,), and the chances (N,) that a head states
Filled = Generator[Any, Any, tuple[Tensor, Tensor | None]]


def fill(
    run: HeadRun, plan: ShapePlan, choose: BestChoice | DrawnChoice, goes_on: GoesOn | None = None
) -> Filled:
    """Fill a tree of fixed shape, level by level: tokens (N,) int64, and ``run.chances`` of each
    (N,) or None.

    goes_on: see ``Drafter``; levels that it cuts are not filled.
    """
    logits = yield from run.root()
    chances = run.chances(None)
    filled: list[Tensor] = []
    stated: list[Tensor] = []
    reach = logits.new_ones(1)
    for (rows, ranks, inner), most in zip(plan.levels, plan.most, strict=True):
        filled.append(choose(logits, rows, ranks, most))
        if chances is not None:
            stated.append(chances[rows])
        chances = run.chances(filled[-1][inner]) if len(inner) else None
        if goes_on:
            law = choose.law(logits, rows)
            reach = reach[rows] * (
                stated[-1] if stated else law.gather(1, filled[-1][:, None])[:, 0]
            )
            best, following = reach.argmax(), None  # the path that is likeliest to continue
            if chances is not None:  # and the probability that it does, if the head states one
                place = (reach[inner] * chances).argmax()
                best, following = inner[place], chances[place]
            if not goes_on(DraftLevel(len(filled), reach[best], law[best], run.ready, following)):
                break
            reach = reach[inner]
        if len(inner):
            logits = yield from run.expand(filled[-1][inner], rows[inner])
    return torch.cat(filled), torch.cat(stated) if stated else None


class BestChoice:
    """Fills a level's nodes: a node of rank r gets its parent's r-th best token."""

    def __init__(self, run: HeadRun) -> None:
        self._run = run

    def __call__(self, logits: Tensor, rows: Tensor, ranks: Tensor, most: int) -> Tensor:
        """(n,) ids of nodes of these ranks below rows of ``logits`` (w, Vd); most: children of a
        node.
        """
        return self._run.head.ids(logits.topk(most).indices)[rows, ranks]

    def law(self, logits: Tensor, rows: Tensor) -> Tensor:
        """(n, V) the distributions of the nodes chosen last."""
        return log_probs(self._run.head.spread(logits)).exp()[rows]


class DrawnChoice:
    """Children drawn from the request's distribution over the head's logits, siblings without
    replacement.

    probs: one (n, V) tensor a level, the distribution of each node given its earlier siblings.
        Where nothing is left to draw, any token is taken, with probability 1: such a node is
        verified like a chosen one.
    """

    def __init__(
        self, run: HeadRun, sampling: Callable[[Tensor], Tensor], random: torch.Generator
    ) -> None:
        self._run, self._sampling, self._random = run, sampling, random
        self.probs: list[Tensor] = []

    def __call__(self, logits: Tensor, rows: Tensor, ranks: Tensor, most: int) -> Tensor:
        """Draws the nodes that ``BestChoice`` would choose."""
        tokens, given, alive = draw_children(
            self._sampling(self._run.head.spread(logits)), rows, ranks, most, self._random
        )
        certain = torch.zeros_like(given).scatter_(1, tokens[:, None], 1.0)
        self.probs.append(torch.where(alive[:, None], given, certain))
        return tokens

    def law(self, logits: Tensor, rows: Tensor) -> Tensor:
        """(n, V) the distributions that the last nodes were drawn from."""
        return self.probs[-1]


class HeadRun(ABC):
    """One request's place: committed tokens are queued, and read with the next draft."""

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
        rows: (w,) int64, where their parents stood in the last call (zeros for children of the
        root).
        """

    def chances(self, ids: Tensor | None) -> Tensor | None:
        """(w,) that a token below each of w nodes is accepted, of a head trained to say so; else
        None.

        ids: (w,) int64, tokens of the last call's level; None = the root.
        """
        return None


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
        if self.queue:
            self._levels = yield from self.levels()
        self._level = 0
        return self._levels[:1]

    def places(self) -> Forwards:
        """(levels, Vd) logits of all levels, where they do not depend on drafted tokens."""
        yield from self.root()
        return self._levels

    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        """The next level's logits (w, Vd), the same below every node."""
        self._level += 1
        yield from ()
        return self._levels[self._level].expand(len(ids), -1)


class TreeDrafter(SharedDrafter):
    """A request's drafter. method: with a plan, and the memory of finished requests. run: its place
    in the head.
    """

    def __init__(self, method: Any, run: Any, seed: int) -> None:
        self._method, self._run = method, run
        self._random = torch.Generator(run.head.layers.like.device).manual_seed(seed)

    def drafting(self, context: Sequence[int], budget: int) -> Drafting:
        method, run = self._method, self._run
        if budget < 1:
            return EMPTY
        if method.by_place:
            logits = yield from run.places()
            return draft_places(logits, min(budget, method.nodes), self.goes_on, run.head.ids)
        if method.grown:
            top_k, depth, nodes = method.grown
            return (
                yield from grow(
                    run, top_k, depth, min(budget, nodes), self.goes_on, run.head.candidates
                )
            )
        plan = method.plan.cut(budget)
        parents = plan.shape.parents
        drawn = (
            DrawnChoice(run, method.target_sampling, self._random)
            if method.draws and method.target_sampling
            else None
        )
        tokens, chances = yield from fill(run, plan, drawn or BestChoice(run), self.goes_on)
        score = None if chances is None or chances.device.type != "cpu" else chances.tolist()
        probs = None if drawn is None else torch.cat(drawn.probs)
        return Draft(tokens, parents[: len(tokens)], probs, source=[0] * len(tokens), score=score)

    def observe(self, step: Step) -> None:
        """Queue the features of the accepted path."""
        if not step.done:
            rows = [0, *(node + 1 for node in step.path)]
            self._method.remember(self._run, step.hidden, rows, step.emitted)

    def finish(self, context: Sequence[int]) -> None:
        self._method.free.append(self._run.memory)


@dataclass(eq=False)
class TreeMethod(HeadMethod):
    """A head of one kind, and a fixed tree; or one that it grows itself: ``grown``, the last
    arguments of ``grow``.

    choices: child counts level by level, None = ``usual_counts``. sampling: at temperature > 0 the
    nodes are drawn, siblings without replacement, or the best tokens are taken.
    """

    kind: ClassVar[type[TreeHead]]
    by_place = False  # the tree is made from one distribution for each place

    choices: list[list[int]] | None = None
    sampling: Literal["top", "drawn"] = "drawn"

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = self.usual_counts() if self.choices is None else self.choices
        self.shape, self.draws = (
            TreeShape.from_counts(counts, WIDEST, "choices"),
            self.sampling == "drawn",
        )
        self.grown: tuple[int, int, int] | None = None
        self.widest = max(self.shape.ranks) + 1  # children of a node

    @abstractmethod
    def usual_counts(self) -> Sequence[Sequence[int]]:
        """Returns the child counts of the tree, level by level, without ``choices``."""

    @abstractmethod
    def new_run(self, head: Any, memory: LayerMemory) -> HeadRun:
        """A request's place in the head."""

    @abstractmethod
    def new_memory(self) -> LayerMemory:
        """A request's keys and values."""

    @property
    def needs(self) -> Needs:
        """The features that the head continues, of every token."""
        return Needs(hidden=self._layers, prompt_hidden=True)

    def check(self, model: ModelCard) -> None:
        """The head must be there, be one of this kind, and fit the target's width and
        vocabulary.
        """
        shape = model.config.get_text_config()
        file = find_head(self.head, self.kind.format, self.safetensors, model)
        self.chosen = kind = self.kind.choose(file)
        file = kind.narrow(file, shape.num_hidden_layers)
        self._config = kind.configure(file, shape)
        self._layers = kind.layers_read(file, shape.num_hidden_layers)
        self._expected = kind.shapes(file, self._config, shape, len(self._layers))
        names = file.shapes()
        if names is not None:
            require_shapes(kind.rename(names), self._expected, kind.ignored, file)
        drafted = self._expected.get(HEAD, (int(shape.vocab_size),))[0]
        if self.widest > drafted:
            raise InputError(
                f"{file.where}: drafts {drafted} different tokens, and a node of the tree has"
                f" {self.widest} children; expected at most as many: lower top_k, or the counts of"
                " choices"
            )
        self._file = file

    def bind(self, target: Target) -> None:
        ends = TargetEnds(target)
        assert self._file is not None
        self.target_sampling, self._device = target.sampling, ends.device
        self.bound = self.load_head(self._file, ends)
        self.plan, self.vocabulary = ShapePlan(self.shape, self._device), self.bound.vocabulary
        # of finished requests: allocated once, their content forgotten
        self.free: list[LayerMemory] = []

    def load_head(self, file: HeadFile, ends: TargetEnds) -> TreeHead:
        """The head of a file that has been checked, as far as that goes without its weights. Raises
        InputError.
        """
        expected, kind = self._expected, self.chosen
        if file.random:
            state = random_weights(expected)
        else:
            state = kind.rename(file.load())
            own = [name for name in kind.own(file) if name in state]
            expected = dict.fromkeys(own, (ends.vocab, ends.width)) | expected
            require_shapes(shapes_of(state), expected, kind.ignored, file)
            if (
                OFFSETS not in self._expected
                and OFFSETS in state
                and state[OFFSETS].count_nonzero()
            ):
                raise InputError(
                    f"{file.where}: {OFFSETS} moves ids of the whole vocabulary; expected zeros"
                )
            if HEAD in state and HEAD not in expected:
                ends.require_copy(state[HEAD], file.where)
        placed = ends.place({name: state[name] for name in expected}, file.where, kind.cast)
        return kind(placed, file, self._config, ends)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The prompt's features are read with the first draft."""
        run = self.new_run(self.bound, self.free.pop() if self.free else self.new_memory())
        self.remember(run, prefill.hidden, None, [*prompt[1:], prefill.token])
        return TreeDrafter(self, run, seed)


@dataclass(eq=False)
class LevelsMethod(TreeMethod):
    """A head that drafts all levels in one forward; conf/method/p_eagle.yaml describes the
    parameters.
    """

    runs: ClassVar[type[LevelsRun]]

    length: int | None = count(None)
    nodes: int | None = count(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes is not None and self.choices is not None:
            raise InputError(
                f"nodes={self.nodes}: choices have a shape of their own; expected one of the two"
            )
        if self.nodes is not None and self.draws:
            raise InputError(
                f"nodes={self.nodes}: the likeliest paths are not drawn; expected sampling=top"
            )

    def usual_counts(self) -> Sequence[Sequence[int]]:
        return [[1]] * (self.length or 7)

    def bind(self, target: Target) -> None:
        """As ``TreeMethod``; if drafted tokens change later places, the tree of ``nodes`` grows
        level by level.
        """
        super().bind(target)
        self.by_place = self.nodes is not None and not getattr(self.bound, "correction", None)
        if self.nodes is not None:
            drafted = self.bound.ends.vocab if self.bound.known is None else len(self.bound.known)
            self.grown = (min(self.nodes, drafted), len(self.shape.levels) - 1, self.nodes)

    def new_run(self, head: Any, memory: LayerMemory) -> HeadRun:
        return self.runs(head, memory, len(self.shape.levels))
