"""PARD (An et al. 2025): a draft model that was adapted to draft a whole chain in one forward.

It reads the context's new tokens and a mask token for every further token of the chain. The row of
the last real token gives the first drafted token, the row of each mask the next. A mask's row knows
the context, not the tokens drafted before it: so the tokens of a chain are drawn independently,
each from a distribution of its own.

A draft model of PARD-2 (arXiv 2605.08632) may read the target's states too: a token's embedding
gets a projection of the states of several layers at the token before it, a mask's that of the last
token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from typing_extensions import override

from methods.parts.best_tree import draft_places
from methods.parts.draft_lm import DraftCall, DraftLM, DraftRequest, draw_one
from methods.parts.draft_method import DrawingMethod, TargetTraits
from methods.parts.head_file import (
    HeadFile,
    HeadFormat,
    find_head,
    require_finite,
    require_numbers,
    require_shapes,
    shapes_of,
)
from methods.parts.parameters import KEPT, count
from specbench.method import Drafter, Drafting, DraftLevel, SharedDrafter
from specbench.models.facade import ModelCard, Target
from specbench.models.load import load_model
from specbench.models.runner import LibraryRunner
from specbench.models.tree import TreeRows
from specbench.types import EMPTY, Draft, InputError, Needs, Prefill, Step

# of the mask token in config.json: the authors', and vLLM's other one
NAMES = ("pard_token", "ptd_token_id")
# of the projection
FORMAT = HeadFormat("PARD-2", ("warp_model.safetensors",), ("warp_model.bin",), "unused")
WEIGHT, BIAS = "target_proj.weight", "target_proj.bias"
LAYERS = "pard2_target_layers"
# names in config.json, the first that is there counts, as in the authors' code
SCALES, DIMS, BIASES = (
    ("pard2_scale", "pard_scale", "feat_scale"), ("pard2_target_dim", "pard_target_dim"),
    ("pard2_proj_bias", "proj_bias"),
)  # fmt: skip
USUAL_SCALE = 0.02  # of the authors' code


class StateEmbedding(nn.Module):
    """A draft model's embedding, to which each forward adds ``added``, (m, D)."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.inner = embedding
        self.added: Tensor | None = None

    @property
    def weight(self) -> Any:
        """(V, D) of the embedding."""
        return self.inner.weight

    def forward(self, ids: Tensor) -> Tensor:
        """(1, m) ids -> (1, m, D)."""
        found: Tensor = self.inner(ids)
        return found if self.added is None else found + self.added


class StatesLM(DraftLM):
    """A draft model of PARD-2 with the projection of the target's states; transformers computes its
    forwards.
    """

    def __init__(
        self, model: Any, context: int, weight: Tensor, bias: Tensor | None, scale: float
    ) -> None:
        """weight: (D, layers * target's D). bias: (D,) or None."""
        self.embedding = StateEmbedding(model.get_input_embeddings())
        model.set_input_embeddings(self.embedding)
        super().__init__(model, context, runner=LibraryRunner(model, context))
        self._weight, self._scale = weight.to(self.embedding.weight), scale
        self._bias = None if bias is None else bias.to(self._weight)

    @torch.inference_mode()
    def project(self, states: Tensor) -> Tensor:
        """(m, layers * target's D) -> (m, D)."""
        return linear(states.to(self._weight), self._weight, self._bias) * self._scale

    @override
    def run_together(self, forwards: Sequence[DraftCall]) -> list[Tensor]:
        return [each.run() for each in forwards]


@dataclass(frozen=True, slots=True, eq=False)
class StatesCall(DraftCall):
    """A forward of a ``StatesLM``. added: (m, D) to the embeddings of its tokens."""

    added: Tensor

    @override
    def run(self) -> Tensor:
        assert isinstance(self.owner, StatesLM)
        self.owner.embedding.added = self.added
        return DraftCall.run(self)


class StatesRequest(DraftRequest):
    """A request whose tokens have projected states: those from position ``first`` on are kept in
    ``rows``, (k, D).
    """

    def __init__(self, lm: StatesLM, vocab: int, states: Tensor) -> None:
        """states: (P, layers * target's D), of the prompt's tokens; the first token has zeros."""
        super().__init__(lm, vocab)
        self._states_lm, self.first, self.rows = lm, 0, lm.project(pad(states, (0, 0, 1, 0)))

    def add(self, states: Tensor) -> None:
        """The states of the tokens before each emitted one are known."""
        self.rows = torch.cat([self.rows, self._states_lm.project(states)])

    @override
    def _forward(
        self, ids: Sequence[int] | Tensor, places: Sequence[int], tree: TreeRows | None, wanted: int
    ) -> DraftCall:
        last = len(self.rows) - 1
        added = self.rows[[min(place - self.first, last) for place in places]]
        self.first, self.rows = self.first + last, self.rows[-1:]
        return StatesCall(
            self._states_lm, self._cut, (self.cache, ids, places, tree, wanted), added
        )


class _Chain(SharedDrafter):
    def __init__(self, method: Pard, prefill: Prefill, seed: int) -> None:
        self._method = method
        self._request = method.chain_after(prefill.hidden) if method.layers else method.chain()
        self._random = method.generator(seed)
        self._settled = 0

    def drafting(self, context: Sequence[int], budget: int) -> Drafting:
        method = self._method
        count = min(method.length, budget)
        if not count:
            return EMPTY
        rows = yield self._request.feeding(context, self._settled, [method.mask] * (count - 1))
        self._settled = len(context)
        if method.nodes is not None:
            return draft_places(rows, min(method.nodes, budget), self.goes_on)
        drawn_from = (
            None if method.sampling is None or not method.draws else method.drawn_from(rows)
        )
        chain = rows.argmax(-1) if drawn_from is None else draw_one(drawn_from, self._random)
        probs = None if drawn_from is None else method.pad_probs(drawn_from)
        if (goes_on := self.goes_on) is not None:
            law = rows.softmax(-1, dtype=torch.float32) if drawn_from is None else drawn_from
            reach = law.gather(1, chain[:, None])[:, 0].cumprod(0).tolist()
            levels = (
                DraftLevel(place, reach[place - 1], law[place - 1], True)
                for place in range(1, count)
            )
            ends = (level.depth for level in levels if not goes_on(level))
            count = next(ends, count)
            chain, probs = chain[:count], None if probs is None else probs[:count]
        tokens: Any = chain.tolist() if chain.device.type == "cpu" else chain
        return Draft(tokens, range(-1, count - 1), probs, source=[0] * count)

    def observe(self, step: Step) -> None:
        if isinstance(self._request, StatesRequest):
            self._request.add(
                self._method.join(step.hidden)[[0, *(node + 1 for node in step.path)]]
            )


@dataclass(eq=False)
class Pard(DrawingMethod):
    """PARD; conf/method/pard.yaml describes the parameters."""

    length: int = count(12)
    mask_token: int | None = count(None, low=0, high=KEPT)
    choice: Literal["drawn", "argmax"] = "drawn"
    nodes: int | None = count(None)
    target_states: bool = True
    safetensors: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.layers: tuple[int, ...] = ()  # of the target, whose states are read
        self._file: HeadFile | None = None
        self.draws, self.mask = self.choice == "drawn", self.mask_token or 0
        if self.nodes is not None and self.draws:
            raise InputError(
                f"nodes={self.nodes}: the likeliest paths are not drawn; expected choice=argmax,"
                " got drawn"
            )

    def check(self, model: ModelCard) -> None:
        if not self.draft:
            raise InputError(
                f"draft: not set and model={model.name} names none (model.heads.pard); expected a"
                " hub id"
            )
        super().check(model)
        assert self._card is not None
        config = self._card.config.get_text_config()
        named = [value for name in NAMES if (value := getattr(config, name, None)) is not None]
        if self.mask_token is None and named and type(named[0]) is not int:
            raise InputError(
                f"draft={self.draft}: its config.json has the mask token {named[0]!r}; expected"
                " an id"
            )
        if self.mask_token is None and not named:
            raise InputError(
                f"draft={self.draft}: its config.json has neither {' nor '.join(NAMES)}: it was not"
                " trained to draft in parallel; expected one that was, or mask_token=ID"
            )
        self.mask = named[0] if self.mask_token is None else self.mask_token
        if not 0 <= self.mask < config.vocab_size:
            raise InputError(
                f"mask_token={self.mask}: expected an id of the draft, from 0 to"
                f" {config.vocab_size - 1}"
            )
        if (
            getattr(config, "pard2", False) or getattr(config, "spd_type", None) == "pard2"
        ) and self.target_states:
            self._check_states(config, model)

    def _check_states(self, config: Any, model: ModelCard) -> None:
        """The projection of the target's states must fit the target and be there."""
        where, target = f"draft={self.draft}: config.json has", model.config.get_text_config()
        states, layers = target.num_hidden_layers + 1, getattr(config, LAYERS, None)
        if (
            not isinstance(layers, list)
            or not layers
            or not all(type(each) is int and -states <= each < states for each in layers)
        ):
            raise InputError(
                f"{where} {LAYERS}={layers!r}; expected a list of hidden states of the target, from"
                f" {-states} to {states - 1}, or target_states=false, the mode that reads none"
            )
        found: list[Any] = [
            next(
                (value for name in names if (value := getattr(config, name, None)) is not None),
                usual,
            )
            for names, usual in ((SCALES, USUAL_SCALE), (DIMS, None), (BIASES, False))
        ]
        self.scale, size, self._biased = found
        if size != len(layers) * target.hidden_size:
            raise InputError(
                f"{where} {DIMS[0]}={size!r}; expected {len(layers)} states of"
                f" {target.hidden_size}, those of model={model.name}"
            )
        if type(self.scale) not in (int, float) or not abs(self.scale) < float("inf"):
            raise InputError(f"{where} {SCALES[0]}={self.scale!r}; expected a number")
        if type(self._biased) is not bool:
            raise InputError(f"{where} {BIASES[0]}={self._biased!r}; expected true or false")
        if model.widening is not None:
            raise InputError(
                f"draft={self.draft}: reads the target's states, which a widened model has in other"
                " shapes; expected another model, or target_states=false"
            )
        self._file = find_head(self.draft, FORMAT, self.safetensors, model)
        self.layers = tuple(each % states for each in layers)

    @property
    def needs(self) -> Needs:
        return Needs(hidden=self.layers, prompt_hidden=True) if self.layers else Needs()

    def bind(self, target: Target) -> None:
        if self._file is None:
            super().bind(target)
            return
        assert self._card is not None
        state, hidden = self._file.load(), self._card.config.get_text_config().hidden_size
        wide = len(self.layers) * target.card.config.get_text_config().hidden_size
        expected = {WEIGHT: (hidden, wide)} | ({BIAS: (hidden,)} if self._biased else {})
        require_shapes(shapes_of(state), expected, (), self._file)
        require_numbers(state, self._file.where)
        require_finite(state, self._file.where)
        lm = StatesLM(
            load_model(self._card), self._card.context, state[WEIGHT], state.get(BIAS), self.scale
        )
        self.adopt(lm, TargetTraits.of(target))

    def join(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """(m, layers * target's D) states next to each other. hidden: layer -> (m, D)."""
        return torch.cat([hidden[layer] for layer in self.layers], -1)

    def chain_after(self, hidden: Mapping[int, Tensor]) -> StatesRequest:
        """A request that drafts chains. hidden: layer -> (P, D) of the prompt's tokens."""
        assert isinstance(self.lm, StatesLM)
        return StatesRequest(self.lm, self.vocab, self.join(hidden))

    def adopt(self, lm: DraftLM, traits: TargetTraits) -> None:
        """As ``DraftModelMethod.adopt``; a draft's forward is recorded after any number of accepted
        tokens.
        """
        super().adopt(lm, traits)
        lm.prepare([(rows, rows, self.length) for rows in range(self.length, 2 * self.length + 1)])

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        return _Chain(self, prefill, seed)
