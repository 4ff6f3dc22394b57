"""DFlash and its family (2026, arXiv 2602.06036): a small model fills a block of mask tokens in one forward.

Every layer reads the target's fused hidden states as keys and values of the committed tokens; the block, the root and
mask tokens after it, attends to these and to itself, in both directions unless the file says otherwise (JetSpec, arXiv
2606.18394; layers with a window). Nothing of a block is stored, so the cost of a forward does not grow with its length.
DSpark (2607.05147), Domino (2605.29707), DFlash 2 and LiLiCorr (2608.20530) let the tokens of a block know each other
(``parts.place_correction``). Names and shapes of tensors are those of z-lab, DeepSpec, SpecForge, Model-Optimizer and
the speculators library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from methods.parts.block_settings import (
    BIAS,
    DOMINO,
    KIND,
    LATTICE_KEYS,
    LATTICE_NAMES,
    LAYERS,
    NESTED,
    RANK,
    RERANKED,
    SCALES,
    SELECTOR,
    STATE,
    STATES,
    SURE,
    TOP_K,
    anchored,
    block_sights,
    block_size,
    convolutions,
    correction_part,
    is_confident,
    is_number,
    is_spark,
    lattice_settings,
    markov_rank,
    plain_places,
    reads_markov,
    require_settings,
    scale,
    setting,
    whole,
)
from methods.parts.draft_layer import DraftLayers, Forwards, LayerMemory, RowsCall, layer_shapes
from methods.parts.head_file import (
    EMBEDDED,
    HEAD,
    OFFSETS,
    HeadFile,
    HeadFormat,
    TensorShape,
    biased,
    drafted_tokens,
    layer_numbers,
    mask_token,
)
from methods.parts.head_method import WIDEST, TargetEnds
from methods.parts.place_correction import (
    VANILLA,
    Block,
    Correction,
    Domino,
    Lattice,
    MarkovHead,
    PairSelector,
    domino_shapes,
    lattice_shapes,
    markov_shapes,
    selector_shapes,
)
from methods.parts.tree_method import EMBEDDING, LevelsMethod, LevelsRun, TreeHead, require_width, target_ids
from methods.parts.tree_shape import TreeShape
from specbench.input import read_file
from specbench.models.facade import ModelCard, Target
from specbench.models.fast.host.forward import Product
from specbench.types import InputError, require_count


class ConfidenceHead:
    """The chance that a place's token is accepted where those before it are; it does not depend on that token."""

    def __init__(self, state: Mapping[str, Tensor], markov: MarkovHead | None) -> None:
        """markov: whose embedding of the token before is read too."""
        self._weight, self._bias, self._markov = state[f"{SURE}.weight"], state[f"{SURE}.bias"], markov
        self.temperatures: Sequence[float] = ()  # of each place's logit; empty = 1

    def __call__(self, level: int, ids: Tensor, hidden: Tensor) -> Tensor:
        """(w,) float32 of a level. ids: (w,) the token before. hidden: (w, D) the drafter's normed state."""
        read = hidden if self._markov is None else torch.cat([hidden, self._markov.embed(ids)], dim=-1)
        logits = functional.linear(read, self._weight, self._bias)[:, 0].float()
        return (logits / self.temperatures[level] if self.temperatures else logits).sigmoid()


def read_temperatures(path: str, places: int) -> list[float]:
    """The temperatures of each place of a block, as SGLang and TensorRT-LLM fit them. Raises InputError."""
    where, fix = f"calibration={path}", f"expected {places} numbers above 0 as temperatures or sts_temperatures"
    raw = read_file(Path(path), f"{where}: ", fix)
    try:
        content = json.loads(raw)
        found = next(content[name] for name in ("sts_temperatures", "temperatures") if name in content)
        good = len(found) == places and all(is_number(each) and each > 0 for each in found)
    except (ValueError, TypeError, StopIteration, RecursionError) as error:
        raise InputError(f"{where}: is no calibration ({error!r}); {fix}") from error
    if not good:
        raise InputError(f"{where}: has {found}; {fix}, the places of the head's block")
    return [float(each) for each in found]


class DFlashHead(TreeHead):
    """The drafter: fused states, layers with norms of queries and keys, embedding and output head of the target."""

    format = HeadFormat("DFlash")
    # Copies of the target's, where the vocabulary is whole; and a confidence head that is switched off.
    ignored = (EMBEDDING, r"lm_head\.weight", "d2t", "t2d", r"confidence_head\..*")

    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        self.ends, self.eps = ends, float(config.rms_norm_eps)
        self._fc, self._norms = Product(state["fc.weight"]), (state["hidden_norm.weight"], state["norm.weight"])
        prefixes = [f"layers.{place}." for place in range(config.num_hidden_layers)]
        self._first = state[f"{prefixes[0]}input_layernorm.weight"]
        self.layers = DraftLayers(state, prefixes, config, biased(file), block_sights(file, len(prefixes)))
        self._mask = torch.tensor([mask_token(file, ends.vocab, *NESTED)], device=ends.device)
        self.skipped = 0 if anchored(file) else 1  # rows of a block that draft nothing: the root's
        self._head = Product(state[HEAD]) if HEAD in state else None
        self._embedding = state.get(EMBEDDED)
        self._scale, self._multiplier, self._cap = (scale(file, name) for name in SCALES)
        self.correction = self._find_correction(state, file)
        self.candidates = self.correction.candidates if self.correction else None
        markov = self.correction if isinstance(self.correction, MarkovHead) and reads_markov(file) else None
        self.confidence = ConfidenceHead(state, markov) if f"{SURE}.weight" in state else None
        if OFFSETS in state:
            self.known = target_ids(state[OFFSETS], ends.vocab, file.where)

    def _find_correction(self, state: Mapping[str, Tensor], file: HeadFile) -> Correction | None:
        """The part that makes places depend on the drafted tokens before them."""
        part = correction_part(file)
        if part == RANK:
            return MarkovHead(state)
        if part == DOMINO:
            return Domino(state, plain_places(file), self.ends.embed)
        if part == SELECTOR:
            return PairSelector(state, whole(file, TOP_K))
        return Lattice(state, lattice_settings(file, self.ends.width), self.eps, self.ends.embed) if part else None

    @staticmethod
    def own(file: HeadFile) -> tuple[str, ...]:
        """DeepSpec trains both with DSpark; in other files they are copies of the target's, or noise."""
        return (HEAD, EMBEDDED) if is_spark(file) else ()

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """z-lab's ``target_layer_ids`` count blocks, whose outputs are meant; speculators' ids count hidden states."""
        require_settings(file)
        blocks, states = (layer_numbers(file, name, setting(file, name)) for name in (LAYERS, STATES))
        chosen = (1, max(1, layers // 2), layers) if file.random else states or [block + 1 for block in blocks or ()]
        if not chosen or not all(0 <= layer <= layers for layer in chosen):
            raise InputError(
                f"{file.where}: config.json has {LAYERS}={blocks}, {STATES}={states}; expected one of them, in a target"
                f" of {layers} layers"
            )
        return tuple(chosen)

    @classmethod
    def shapes(cls, file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """A smaller vocabulary has ``lm_head`` and ``d2t``. Raises InputError where widths or settings do not fit."""
        hidden = require_width(file, config, target)
        drafted = drafted_tokens(file, config.vocab_size)
        mask_token(file, config.vocab_size, *NESTED)
        shapes: dict[str, TensorShape] = {"fc.weight": (hidden, read * hidden)}
        shapes |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
        for place in range(config.num_hidden_layers):
            shapes |= layer_shapes(config, f"layers.{place}.", hidden, biased(file), normed=True)
            shapes[f"layers.{place}.input_layernorm.weight"] = (hidden,)
        shapes |= convolutions(file, config.num_hidden_layers, hidden)
        block_sights(file, config.num_hidden_layers)
        part, vocab = correction_part(file), config.vocab_size
        if part not in (None, RANK) and drafted != vocab:
            raise InputError(f"{file.where}: {part} with a vocabulary of {drafted}; expected the target's {vocab}")
        if part == RANK:
            shapes |= markov_shapes(setting(file, KIND) or VANILLA, vocab, drafted, markov_rank(file), hidden)
        elif part == DOMINO:
            plain_places(file)
            shapes |= domino_shapes(vocab, hidden, whole(file, STATE), whole(file, BIAS))
        elif part == SELECTOR:
            whole(file, TOP_K, most=vocab)
            shapes |= selector_shapes(vocab, hidden, whole(file, SELECTOR))
        elif part:
            whole(file, LATTICE_KEYS["candidates"], most=vocab)
            shapes |= lattice_shapes(lattice_settings(file, hidden), hidden)
        if is_confident(file):
            width = hidden + (markov_rank(file) if reads_markov(file) else 0)
            shapes |= {f"{SURE}.weight": (1, width), f"{SURE}.bias": (1,)}
        return shapes if drafted == config.vocab_size else {
            **shapes, HEAD: (drafted, hidden), OFFSETS: (drafted,)}  # fmt: skip

    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """Fused and normed: what every layer's keys and values are made of."""
        return self.normed(self._fc(torch.cat(list(features), dim=-1)), self._norms[0])

    def block(self, root: Tensor, rows: int) -> Tensor:
        """(rows,) ids of a block."""
        return torch.cat([root, self._mask.expand(rows - 1)])

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Embed a block's tokens; the target's states do not enter here."""
        embedded = self.ends.embed(ids) if self._embedding is None else functional.embedding(ids, self._embedding)
        embedded = embedded if self._scale == 1 else embedded * self._scale
        return self.normed(embedded, self._first), embedded

    def carry(self, hidden: Tensor) -> Tensor:
        """Apply the head's own norm."""
        return self.normed(hidden, self._norms[1])

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head's own output head, or the target's; scaled and capped as the file states."""
        logits = self.ends.logits(hidden) if self._head is None else self._head(hidden)
        logits = logits if self._multiplier == 1 else logits * self._multiplier
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """Model-Optimizer numbers the layers of LiLiCorr's small networks, which SGLang names."""
        for pattern, name in LATTICE_NAMES:
            names = {re.sub(pattern, name, each): value for each, value in names.items()}
        return names


class _BlockRun(LevelsRun):
    """A request's place: its last block, and the recurrent states of the level before."""

    def root(self) -> Forwards:
        logits = yield from super().root()
        if not self.head.correction:
            return logits
        self._recurrent = self._start
        return self._corrected(self._block.root, torch.zeros_like(self._block.root))

    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        logits = yield from super().expand(ids, rows)
        return self._corrected(ids, rows) if self.head.correction else logits

    def _corrected(self, ids: Tensor, rows: Tensor) -> Tensor:
        """(w, Vd) this level's logits, after the tokens (w,) before it."""
        logits, self._recurrent = self.head.correction.apply(self._block, self._level, ids, self._recurrent[rows])
        return logits

    def chances(self, ids: Tensor | None) -> Tensor | None:
        """The confidence head's (w,) chances of the next level."""
        if not self.head.confidence:
            return None
        level, before = (0, self._block.root) if ids is None else (self._level + 1, ids)
        return self.head.confidence(level, before, self._block.states[level].expand(len(before), -1))

    def levels(self) -> Forwards:
        head, memory = self.head, self.memory
        features, following = self.taken()
        root, entered = following[-1:], head.enter(features)
        head.layers.keep(entered, memory)
        inputs, residual = head.inputs(head.block(root, self.count + head.skipped), features[0])
        written = yield head.layers.fill(inputs, residual, memory)
        passed, states = head.carry(written).tensor_split([head.skipped])
        logits = yield RowsCall(head.output, states)
        self._block = Block(root, entered[-1:], passed, states, logits)
        if head.correction:
            self._start = head.correction.begin(self._block)
        return logits


@dataclass(eq=False)
class DFlash(LevelsMethod):
    """DFlash and its family; conf/method/dflash.yaml describes the parameters."""

    kind, runs = DFlashHead, _BlockRun

    calibration: str | None = None

    def check(self, model: ModelCard) -> None:
        """The head must be there and fit, and its block must hold the draft."""
        super().check(model)
        assert self._file is not None
        most = block_size(self._file) - (0 if anchored(self._file) else 1)
        if self.length is None and self.choices is None:
            self.shape = TreeShape.from_counts([[1]] * most, WIDEST)
        require_count("length or levels of choices", len(self.shape.levels), high=most)
        limits = {SELECTOR: TOP_K, RERANKED: LATTICE_KEYS["candidates"]}
        limit = limits.get(correction_part(self._file) or "")
        if limit and self.widest > (kept := whole(self._file, limit)):
            raise InputError(
                f"{self._file.where}: keeps {kept} candidates for a place, and a node of the tree has {self.widest}"
                " children; expected at most as many: lower the counts of choices"
            )
        if self.calibration is not None:
            if not is_confident(self._file):
                raise InputError(
                    f"calibration={self.calibration}: {self._file.where} has no confidence head; expected null"
                )
            self._temperatures = read_temperatures(self.calibration, most)

    def bind(self, target: Target) -> None:
        super().bind(target)
        if self.calibration is not None:
            self.bound.confidence.temperatures = self._temperatures  # type: ignore[attr-defined]

    @property
    def inputs(self) -> tuple[str, ...]:
        return super().inputs + (() if self.calibration is None else (self.calibration,))

    def new_memory(self) -> LayerMemory:
        """Committed tokens, and a block."""
        assert isinstance(self.bound, DFlashHead)
        rows = len(self.shape.levels) + self.bound.skipped
        return LayerMemory(self.bound.layers, rows, rows)
