"""What the tokens that are drafted before a place of a block change in the place's logits, by one
of four parts.

A block drafter computes all places in one forward, so its places do not know each other's tokens.
DSpark adds a bias by the token before (arXiv 2607.05147), Domino a bias by a recurrent state of all
drafted tokens (arXiv 2605.29707), DFlash 2 scores pairs of neighbouring tokens (z-lab, 2026), and
LiLiCorr reranks the lattice of candidates with a transformer (arXiv 2608.20530). The latter two
leave each place its k likeliest tokens, and the logits of all others are -inf. The formulas are
those of DeepSpec and the speculators library; SpecForge; z-lab/dflash; Model-Optimizer and SGLang.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from methods.parts.best_tree import log_probs
from methods.parts.head_file import TensorShape


@dataclass(slots=True, eq=False)
class Block:
    """One forward of a block drafter, for n places.

    root: (1,) the token in front of the block.
    anchor: (1, D) the fused states of the last token before the root.
    passed: (p, D) normed states of rows that draft nothing, 0 or 1.
    states: (n, D) normed states of the places. logits: (n, Vd).
    notes: what the correction computes once for the block.
    """

    root: Tensor
    anchor: Tensor
    passed: Tensor
    states: Tensor
    logits: Tensor
    notes: Any = None


class Correction(ABC):
    """Changes a place's logits by the drafted tokens before it. candidates: tokens that a place
    keeps, None = all.
    """

    candidates: int | None = None

    def begin(self, block: Block) -> Tensor:
        """(1, s) the recurrent state in front of the first place; fills ``block.notes``."""
        return block.states.new_zeros(1, 0)

    @abstractmethod
    def apply(self, block: Block, level: int, ids: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """The logits (w, Vd) of a level below w nodes, and their recurrent states (w, s).

        level: the place. ids: (w,) the token before it, a node each.
        before: (w, s) the recurrent state in front of that token.
        """


VANILLA, GATED, RNN = KINDS = ("vanilla", "gated", "rnn")
PREFIX = "markov_head."
W1, W2 = f"{PREFIX}markov_w1.weight", f"{PREFIX}markov_w2.weight"
GATE, JOINT = f"{PREFIX}gate_proj", f"{PREFIX}joint_proj"


def markov_shapes(
    kind: str, vocab: int, drafted: int, rank: int, hidden: int
) -> dict[str, TensorShape]:
    """Names and shapes of the Markov head. drafted: tokens of its vocabulary."""
    shapes: dict[str, TensorShape] = {W1: (vocab, rank), W2: (drafted, rank)}
    if kind == GATED:
        shapes |= {f"{GATE}.weight": (rank, hidden + rank), f"{GATE}.bias": (rank,)}
    if kind == RNN:
        shapes |= {f"{JOINT}.weight": (3 * rank, 2 * rank + hidden), f"{JOINT}.bias": (3 * rank,)}
    return shapes


class MarkovHead(Correction):
    """DSpark: the bias W2 m by the token before; m = W1[token], or that gated, or what a recurrent
    cell makes of it.

    rank: r.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._w1, self._w2 = state[W1], state[W2]
        self.rank = self._w1.shape[1]
        self._gate, self._joint = (
            (state[f"{name}.weight"], state[f"{name}.bias"]) if f"{name}.weight" in state else None
            for name in (GATE, JOINT)
        )

    def embed(self, ids: Tensor) -> Tensor:
        """(w,) tokens -> (w, r)."""
        return functional.embedding(ids, self._w1)

    def begin(self, block: Block) -> Tensor:
        """(1, r), which has passed the root's row if that drafts nothing."""
        before = self._w1.new_zeros(1, self.rank)
        return self._mix(block.root, block.passed, before)[1] if len(block.passed) else before

    def apply(self, block: Block, level: int, ids: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        read, before = self._mix(ids, block.states[level].expand(len(ids), -1), before)
        return block.logits[level] + functional.linear(read, self._w2), before

    def _mix(self, ids: Tensor, hidden: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """M (w, r), and the recurrent states (w, r), with the drafter's normed states (w, D) of the
        places.
        """
        read = self.embed(ids)
        if self._gate:
            read = (
                torch.sigmoid(functional.linear(torch.cat([hidden, read], dim=-1), *self._gate))
                * read
            )
        elif self._joint:
            mixed = functional.linear(torch.cat([before, read, hidden], dim=-1), *self._joint)
            gate, new, written = mixed.chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            before, read = gate * before + (1 - gate) * torch.tanh(new), torch.tanh(written)
        return read, before


Embed = Callable[[Tensor], Tensor]  # (...) ids of the target's vocabulary -> (..., D) its embedding
GRU_IN, GRU_STATE = "prefix_gru.weight_ih_l0", "prefix_gru.weight_hh_l0"
DOWN, UP = "embed_proj.0.weight", "embed_proj.2.weight"


def domino_shapes(vocab: int, hidden: int, width: int, rank: int) -> dict[str, TensorShape]:
    """Names and shapes of Domino's part. width: of the recurrent state. rank: of the bias."""
    return {
        GRU_IN: (3 * width, hidden),
        GRU_STATE: (3 * width, width),
        DOWN: (rank, hidden + width),
        UP: (vocab, rank),
    }


class Domino(Correction):
    """The bias U silu(W [h; s]), where a GRU (torch's, without biases) has read the root and all
    drafted tokens into s.

    The first ``plain`` places keep their logits; their tokens are read nevertheless.
    """

    def __init__(self, state: Mapping[str, Tensor], plain: int, embed: Embed) -> None:
        self._gru, self._plain, self._embed = (state[GRU_IN], state[GRU_STATE]), plain, embed
        self._down, self._up = state[DOWN], state[UP]

    def begin(self, block: Block) -> Tensor:
        return self._down.new_zeros(1, self._gru[1].shape[1])

    def apply(self, block: Block, level: int, ids: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.gru_cell(self._embed(ids), before, *self._gru)
        if level < self._plain:
            return block.logits[level].expand(len(ids), -1), state
        read = torch.cat([block.states[level].expand(len(ids), -1), state], dim=-1)
        return (
            block.logits[level]
            + functional.linear(functional.silu(functional.linear(read, self._down)), self._up),
            state,
        )


def only(like: Tensor, tokens: Tensor, scores: Tensor) -> Tensor:
    """(w, Vd) with these scores (w, k) at these tokens (k,), and -inf at all others. like:
    (Vd,).
    """
    return like.new_full((len(scores), len(like)), -torch.inf).index_copy_(
        1, tokens, scores.to(like.dtype)
    )


PREDECESSOR, SUCCESSOR = (
    "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook",
)
CONTEXT = "candidate_selector.hidden_projection.weight"


def selector_shapes(vocab: int, hidden: int, rank: int) -> dict[str, TensorShape]:
    """Names and shapes of the pairwise selector."""
    return {PREDECESSOR: (vocab, rank), SUCCESSOR: (vocab, rank), CONTEXT: (rank, hidden)}


class PairSelector(Correction):
    """DFlash 2: of a place's k likeliest tokens, b has the score u(b) + <A[a] * P h, B[b]> after
    the token a.
    """

    def __init__(self, state: Mapping[str, Tensor], candidates: int) -> None:
        self._before, self._after, self._context = (
            state[PREDECESSOR],
            state[SUCCESSOR],
            state[CONTEXT],
        )
        self.candidates = self._count = candidates

    def begin(self, block: Block) -> Tensor:
        """No recurrent state; notes the places' candidates, and P h."""
        block.notes = (
            *block.logits.topk(self._count),
            functional.linear(block.states, self._context),
        )
        return super().begin(block)

    def apply(self, block: Block, level: int, ids: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        logits, tokens, context = (part[level] for part in block.notes)
        pairs = (functional.embedding(ids, self._before) * context) @ functional.embedding(
            tokens, self._after
        ).T
        return only(block.logits[level], tokens, logits + pairs), before


LATTICE = "lilicorr."
# of a candidate: log probability, probability, distance to the best one's, rank, whether it is the
# best
FEATURES = 5
IN, OUT, ANCHOR_OUT = "in_head", "out_head", "anchor_out_head"


@dataclass(frozen=True, slots=True)
class LatticeSettings:
    """The shape of LiLiCorr's transformer, whose field names are those of its configuration.

    places: of a block that drafts. scale, epsilon: of its scores, which no tensor's shape shows.
    """

    candidates: int
    hidden: int
    layers: int
    heads: int
    inner: int
    factor: int
    epsilon: float
    scale: float
    places: int


def lattice_shapes(settings: LatticeSettings, hidden: int) -> dict[str, TensorShape]:
    """Names and shapes of LiLiCorr's part, as SGLang names them. hidden: of the drafter."""
    own, shapes = settings.hidden, dict[str, TensorShape]()

    def add(name: str, outputs: int, inputs: int) -> None:
        shapes[f"{LATTICE}{name}.weight"], shapes[f"{LATTICE}{name}.bias"] = (
            (outputs, inputs),
            (outputs,),
        )

    for name in ("pass_hidden_proj", "context_proj", *(("token_proj",) if own != hidden else ())):
        add(name, own, hidden)
    shapes |= {f"{LATTICE}feature_norm.{part}": (FEATURES,) for part in ("weight", "bias")}
    add("feature_mlp.up_proj", own, FEATURES)
    add("feature_mlp.down_proj", own, own)
    for layer in (f"layers.{place}." for place in range(settings.layers)):
        shapes |= {f"{LATTICE}{layer}{name}_norm.weight": (own,) for name in ("attn", "mlp")}
        shapes |= {
            f"{LATTICE}{layer}attn.in_proj_weight": (3 * own, own),
            f"{LATTICE}{layer}attn.in_proj_bias": (3 * own,),
        }
        add(f"{layer}attn.out_proj", own, own)
        add(f"{layer}mlp.up_proj", settings.inner, own)
        add(f"{layer}mlp.down_proj", own, settings.inner)
    shapes |= {f"{LATTICE}{name}_norm.weight": (own,) for name in ("output", "anchor")}
    add("factor_input_proj", own, 3 * own)
    for name in (IN, OUT, ANCHOR_OUT):
        add(name, settings.factor, own)
    return shapes | {
        f"{LATTICE}slot_embedding": (1, 1, settings.places, 1, own),
        f"{LATTICE}rank_embedding": (1, 1, 1, settings.candidates, own),
        f"{LATTICE}relative_slot_bias": (settings.heads, 2 * settings.places + 1),
        f"{LATTICE}same_slot_bias": (settings.heads,),
    }


class Lattice(Correction):
    """LiLiCorr: a token's score is a cosine between its vector and one of the candidate before, or
    of the anchor.

    The vectors come from a transformer over the n * k candidates of the block, which sees all of
    them.
    """

    def __init__(
        self, state: Mapping[str, Tensor], settings: LatticeSettings, epsilon: float, embed: Embed
    ) -> None:
        """epsilon: of the norms."""
        self._state = {
            name.removeprefix(LATTICE): weight
            for name, weight in state.items()
            if name.startswith(LATTICE)
        }
        self._settings, self._epsilon, self._embed = settings, epsilon, embed
        self.candidates = settings.candidates

    def begin(self, block: Block) -> Tensor:
        """No recurrent state; notes the candidates (n, k), the scores (k,) of the first, and (n -
        1, k, k) of pairs.
        """
        logs, tokens = log_probs(block.logits).topk(self._settings.candidates)
        block.notes = tokens, *self._score(block, logs, tokens)
        return super().begin(block)

    def apply(self, block: Block, level: int, ids: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """The scores after the candidates that ``ids`` are; after another token, those after the
        best candidate.
        """
        tokens, first, pairs = block.notes
        if level == 0:
            scores = first.expand(len(ids), -1)
        else:
            scores = pairs[level - 1][(tokens[level - 1] == ids[:, None]).int().argmax(-1)]
        return only(block.logits[level], tokens[level], scores), before

    def _score(self, block: Block, logs: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        places, count = tokens.shape
        ranks = torch.arange(count, device=logs.device)
        features = [
            logs,
            logs.exp(),
            logs - logs[:, :1],
            (ranks / max(1, count - 1)).expand_as(logs),
            (ranks == 0).expand_as(logs),
        ]
        hidden = self._embed(tokens.view(-1)).view(places, count, -1)
        hidden = (
            self._linear("token_proj", hidden) if "token_proj.weight" in self._state else hidden
        )
        hidden = hidden + self._linear("pass_hidden_proj", block.states)[:, None]
        normed = functional.layer_norm(
            torch.stack([each.to(hidden.dtype) for each in features], dim=-1),
            (FEATURES,),
            self._state["feature_norm.weight"],
            self._state["feature_norm.bias"],
        )
        hidden = hidden + self._mlp("feature_mlp", normed)
        hidden = (
            hidden
            + self._state["slot_embedding"][0, 0, :places]
            + self._state["rank_embedding"][0, 0]
        ).flatten(0, 1)
        bias = self._attention_bias(places, count)
        for layer in (f"layers.{place}." for place in range(self._settings.layers)):
            hidden = hidden + self._attend(layer, self._norm(f"{layer}attn_norm", hidden), bias)
            hidden = hidden + self._mlp(f"{layer}mlp", self._norm(f"{layer}mlp_norm", hidden))
        hidden = self._norm("output_norm", hidden)
        anchor = self._norm("anchor_norm", self._linear("context_proj", block.anchor))
        joined = torch.cat([hidden, anchor.expand_as(hidden), hidden * anchor], dim=-1)
        factor = functional.silu(self._linear("factor_input_proj", joined))
        into, out = (self._unit(name, factor).view(places, count, -1) for name in (IN, OUT))
        first = into[0] @ self._unit(ANCHOR_OUT, anchor)[0]
        return self._settings.scale * first, self._settings.scale * (
            out[:-1] @ into[1:].transpose(1, 2)
        )

    def _attention_bias(self, places: int, count: int) -> Tensor:
        """(heads, n * k, n * k), by how many places a candidate stands after another."""
        place = torch.arange(places, device=self._state["same_slot_bias"].device).repeat_interleave(
            count
        )
        apart = place[:, None] - place
        return self._state["relative_slot_bias"][:, apart + self._settings.places] + (
            (apart == 0) * self._state["same_slot_bias"][:, None, None]
        )

    def _attend(self, layer: str, rows: Tensor, bias: Tensor) -> Tensor:
        weight, added = (self._state[f"{layer}attn.in_proj_{part}"] for part in ("weight", "bias"))
        parts = (
            functional.linear(rows, weight, added)
            .view(len(rows), 3, self._settings.heads, -1)
            .permute(1, 2, 0, 3)
        )
        query, key, value = parts
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self._linear(f"{layer}attn.out_proj", mixed.transpose(0, 1).flatten(1))

    def _linear(self, name: str, rows: Tensor) -> Tensor:
        return functional.linear(rows, self._state[f"{name}.weight"], self._state[f"{name}.bias"])

    def _mlp(self, name: str, rows: Tensor) -> Tensor:
        return self._linear(
            f"{name}.down_proj", functional.silu(self._linear(f"{name}.up_proj", rows))
        )

    def _norm(self, name: str, rows: Tensor) -> Tensor:
        return functional.rms_norm(
            rows, rows.shape[-1:], self._state[f"{name}.weight"], self._epsilon
        )

    def _unit(self, name: str, rows: Tensor) -> Tensor:
        return functional.normalize(self._linear(name, rows), dim=-1, eps=self._settings.epsilon)
