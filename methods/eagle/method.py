"""EAGLE (Li et al. 2024; 2025): a layer trained to continue the target's hidden features drafts a tree of tokens.

A draft position takes a feature and the embedding of the token behind it, which settles what features alone
leave open; drafted positions take the head's own output in place of the feature. EAGLE-1 fills a fixed tree,
EAGLE-2 and -3 let the head's confidence shape it; EAGLE-3 reads three of the target's layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from methods.eagle.head import EagleHead, FirstHead
from methods.eagle.third import ThirdHead
from methods.parts.heads.draft_layer import LayerMemory
from methods.parts.heads.grown_tree import DrawnChoice, choose_best, fill, grow
from methods.parts.heads.head_file import (
    find_head,
    random_weights,
    require_shapes,
    shapes_of,
)
from methods.parts.heads.head_method import EAGLE, WIDEST, HeadMethod, TargetEnds
from methods.parts.heads.layer_config import layer_config
from methods.parts.trees.tree_shape import ShapePlan, TreeShape
from specbench.method import Drafter
from specbench.target.facade import ModelCard, Target
from specbench.target.transfer import upload
from specbench.types import EMPTY, Draft, InputError, Needs, Prefill, Step, require_count


class EagleRun:
    """One request's place: committed tokens are queued, read with the next draft, and the tree grows below them."""

    def __init__(self, head: EagleHead, memory: LayerMemory) -> None:
        """memory: of ``head.layers``; it is emptied."""
        self._head, self.memory = head, memory
        memory.forget()
        self._queue: list[tuple[Sequence[Tensor], Tensor]] = []
        self._blind = head.layers.like.new_full((1, memory.nodes), -torch.inf)
        self._hidden, self._root, self._seen = self._blind, self._blind, self._blind
        self._fed = self._depth = 0

    def remember(self, features: Sequence[Tensor], following: Tensor) -> None:
        """Queue committed tokens.

        features: (T, D) of each layer.
        following: (T,) int64, the tokens that FOLLOW them.
        """
        self._queue.append((features, following))

    def root(self) -> Tensor:
        """(1, Vd) logits of what follows the root, the last token remembered."""
        if self._queue:
            inputs, residual = self._queued()
            self._root = self._head.carry(self._head.layers.read(inputs, residual, self.memory))
        self._hidden, self._seen = self._root, self._blind
        self._fed = self._depth = 0
        return self._head.logits(self._root)

    def _queued(self) -> tuple[Tensor, Tensor]:
        """The committed tokens that were not read yet, as the head's layers read them; they leave the queue."""
        layers = zip(*(features for features, _ in self._queue), strict=True)
        features = [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in layers]
        following = torch.cat([following for _, following in self._queue])
        self._queue.clear()
        return self._head.inputs(following, self._head.enter(features))

    def expand(self, ids: Tensor, rows: Tensor) -> Tensor:
        """Logits (w, Vd) below w nodes one level down.

        ids: (w,) int64, their tokens.
        rows: (w,) int64, where their parents stood in the last call (zeros for children of the root).
        """
        count = len(ids)
        inputs, residual = self._head.inputs(ids, self._hidden.index_select(0, rows))
        self._seen = self._seen.index_select(0, rows)
        self._seen[:, self._fed : self._fed + count].diagonal().zero_()
        depths = slice(self._depth, self._depth + 1)
        written = self._head.layers.grow(inputs, residual, self.memory, self._fed, depths, self._seen)
        self._depth += 1
        self._hidden = self._head.carry(written)
        self._fed += count
        return self._head.logits(self._hidden)

    def ids(self, choice: Tensor) -> Tensor:
        """The head's ids -> the target's."""
        return self._head.ids(choice)

    def spread(self, logits: Tensor) -> Tensor:
        """See ``EagleHead.spread``."""
        return self._head.spread(logits)


class _Tree(Drafter):
    def __init__(self, method: Eagle, run: EagleRun, seed: int, start: int) -> None:
        """start: [tokens] of the prompt."""
        self._method, self._run, self._start = method, run, start
        self._emitted: Sequence[int] = ()
        self._random = torch.Generator(run.memory.pairs.device).manual_seed(seed)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method, run = self._method, self._run
        if budget < 1:
            return EMPTY
        if method.tree == "dynamic":
            return grow(run, method.top_k, method.depth, min(budget, method.total_tokens - 1), self.goes_on)
        plan = method.plan.cut(budget)
        parents = plan.shape.parents
        if method.sampling is None or not method.draws:
            tokens = fill(run, plan, choose_best(run), self.goes_on)
            return Draft(tokens, parents[: len(tokens)], source=[0] * len(tokens))
        drawn = DrawnChoice(run, method.sampling, self._random)
        tokens = fill(run, plan, drawn, self.goes_on)
        return Draft(tokens, parents[: len(tokens)], torch.cat(drawn.probs), source=[0] * len(tokens))

    def observe(self, step: Step) -> None:
        if not step.done:
            rows = [0, *(node + 1 for node in step.path)]
            self._method.remember(self._run, step.hidden, rows, step.emitted)

    def finish(self, context: Sequence[int]) -> None:
        self._method.free.append(self._run.memory)
        self._emitted = context[self._start :]

    def stats(self) -> dict[str, float]:
        """in_vocabulary: share of the emitted tokens that the head can draft, where it has part of the vocabulary."""
        known = self._method.vocabulary
        if known is None or not self._emitted:
            return {}
        return {"in_vocabulary": sum(token in known for token in self._emitted) / len(self._emitted)}


class Eagle(HeadMethod):
    """EAGLE-1 and -2. head: folder, hub id, ``bundled:NAME`` or ``random``.

    tree: ``dynamic`` (EAGLE-2): top_k nodes expanded depth times, the best total_tokens - 1 kept (total_tokens counts
    the root). ``static`` (EAGLE-1): a fixed tree, filled with the best tokens or, at temperature > 0 with
    sampling=drawn, drawn without replacement; choices: its child counts level by level, null = the published one.
    safetensors: false reads torch files.
    """

    kind: type[EagleHead] = FirstHead

    def __init__(
        self,
        head: str | None,
        tree: Literal["dynamic", "static"] = "dynamic",
        top_k: int = 10,
        depth: int = 5,
        total_tokens: int = 60,
        choices: list[list[int]] | None = None,
        sampling: Literal["top", "drawn"] = "top",
        safetensors: bool = True,
    ) -> None:
        require_count("top_k", top_k)
        require_count("depth", depth, low=0)
        require_count("total_tokens", total_tokens, low=2)
        if sampling == "drawn" and tree == "dynamic":
            raise InputError("sampling=drawn: a dynamic tree takes the best tokens; expected top, or tree=static")
        super().__init__(head, safetensors)
        self.tree, self.draws = tree, sampling == "drawn"
        self.top_k, self.depth, self.total_tokens = top_k, depth, total_tokens
        self._shape = TreeShape.from_counts(EAGLE if choices is None else choices, WIDEST, "choices")

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
        self._file = file

    def bind(self, target: Target) -> None:
        """Load the head beside the target's output head."""
        file = self.file_for(target)
        if file.random:
            state = random_weights(self._expected)
        else:
            state = self.kind.rename(file.load())
            require_shapes(shapes_of(state), self._expected, self.kind.ignored, file)
        ends = TargetEnds(target)
        self.sampling, self._device = target.sampling, ends.device
        placed = ends.place({name: state[name] for name in self._expected})
        self._head = self.kind(placed, file, self._config, ends)
        self.plan, self.vocabulary = ShapePlan(self._shape, self._device), self._head.vocabulary
        self.free: list[LayerMemory] = []  # of finished requests: allocated once, their content forgotten

    def remember(
        self, run: EagleRun, hidden: Mapping[int, Tensor], rows: list[int] | None, following: Sequence[int]
    ) -> None:
        """Queue features of committed tokens and the tokens that follow them. rows: of each layer, None = all."""
        taken = [hidden[layer].to(self._device) for layer in self._layers]
        if rows is not None:
            index = upload(rows, self._device)
            taken = [layer.index_select(0, index) for layer in taken]
        run.remember(taken, upload(following, self._device))

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The prompt's features are read with the first draft."""
        run = self.new_run(self._head, self.free.pop() if self.free else self._memory())
        self.remember(run, prefill.hidden, None, [*prompt[1:], prefill.token])
        return _Tree(self, run, seed, len(prompt))

    def new_run(self, head: Any, memory: LayerMemory) -> EagleRun:
        """A request's place in the head."""
        return EagleRun(head, memory)

    def _memory(self) -> LayerMemory:
        if self.tree == "dynamic":
            return LayerMemory(self._head.layers, self.depth * self.top_k, self.top_k)
        inner = [len(level.inner) for level in self._shape.levels]
        return LayerMemory(self._head.layers, sum(inner), max(inner))


class Eagle3(Eagle):
    """EAGLE-3, with the parameters of ``Eagle``: fused features, an output head of its own."""

    kind = ThirdHead
