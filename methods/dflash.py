"""DFlash and its family (2026, arXiv 2602.06036): a small model fills a block of mask tokens in one
forward.

Every layer reads the target's fused hidden states as keys and values of the committed tokens; the
block, the root and mask tokens after it, attends to these and to itself, in both directions unless
the file says otherwise (JetSpec, arXiv 2606.18394; layers with a window). Nothing of a block is
stored, so the cost of a forward does not grow with its length. DSpark (2607.05147), Domino
(2605.29707), DFlash 2 and LiLiCorr (2608.20530) let the tokens of a block know each other
(``parts.place_correction``). Names and shapes of tensors are those of z-lab, DeepSpec, SpecForge,
Model-Optimizer and the speculators library.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from methods.parts.block_convolution import convolution_shapes
from methods.parts.draft_layer import (
    DraftLayers,
    Forwards,
    LayerMemory,
    RowsCall,
    Sight,
    layer_shapes,
)
from methods.parts.head_file import (
    EMBEDDED,
    HEAD,
    MASK,
    OFFSETS,
    HeadFile,
    HeadFormat,
    TensorShape,
    biased,
    drafted_tokens,
    layer_numbers,
    mask_token,
    require_known,
)
from methods.parts.head_method import WIDEST, TargetEnds
from methods.parts.place_correction import (
    KINDS,
    VANILLA,
    Block,
    Correction,
    Domino,
    Lattice,
    LatticeSettings,
    MarkovHead,
    PairSelector,
    domino_shapes,
    lattice_shapes,
    markov_shapes,
    selector_shapes,
)
from methods.parts.tree_method import (
    EMBEDDING,
    LevelsMethod,
    LevelsRun,
    TreeHead,
    require_width,
    target_ids,
)
from methods.parts.tree_shape import TreeShape
from specbench.input import read_file
from specbench.models.facade import ModelCard, Target
from specbench.models.fast.host.forward import Norm, Product
from specbench.types import InputError, require_count

RANDOM_BLOCK, LONGEST = 8, 1024  # the speculators library's default; of any block
SURE = "confidence_head.proj"
NESTED = ("dflash_config", "dspark_config")
BLOCK, LAYERS, STATES, ANCHOR = (
    "block_size",
    "target_layer_ids",
    "aux_hidden_state_layer_ids",
    "sample_from_anchor",
)
RANK, KIND, CONFIDENT, WITH = (
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
)
DOMINO, STATE, BIAS, PLAIN, SHIFT = (
    "domino",
    "gru_hidden_dim",
    "emb_dim",
    "pure_draft_prefix_len",
    "shift_label",
)
TAPS, GROUP, SELECTOR, TOP_K = (
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
)
# of vLLM's files (JetSpec's too), of z-lab's, and of JetSpec's own
CAUSAL = ("causal", "is_causal", "causal_head")
WINDOW, WINDOWED, TYPES, ALL_WINDOWED, OF_ALL = (
    "sliding_window", "use_sliding_window", "layer_types", "use_swa",
    "swa_window_size")  # fmt: skip
SLIDING, LIBRARY, BOTH_WAYS = (
    "sliding_attention",
    "speculators_model_type",
    "sliding_window_non_causal",
)
# without effect
SCALES = {"input_embedding_scale": 1.0, "output_multiplier": 1.0, "final_logit_softcapping": 0.0}
LATTICE_KEYS = {
    "candidates": "lilicorr_candidate_topk", "hidden": "lilicorr_hidden_size",
    "layers": "lilicorr_num_layers", "heads": "lilicorr_num_heads", "factor": "lilicorr_factor_dim",
    "epsilon": "lilicorr_vector_eps", "scale": "lilicorr_logit_scale",
    "inner": "lilicorr_mlp_ratio",
}  # fmt: skip
RERANKED = "lilicorr_enabled"
LATTICE_NAMES = (
    (r"^lilicorr\.feature_mlp\.0\.", "lilicorr.feature_norm."),
    (r"^lilicorr\.feature_mlp\.1\.", "lilicorr.feature_mlp.up_proj."),
    (r"^lilicorr\.feature_mlp\.3\.", "lilicorr.feature_mlp.down_proj."),
    (r"^(lilicorr\.layers\.\d+\.mlp)\.0\.", r"\1.up_proj."),
    (r"^(lilicorr\.layers\.\d+\.mlp)\.2\.", r"\1.down_proj."),
)
KNOWN = {RANK, BLOCK, LAYERS, STATES, ANCHOR, TAPS, GROUP, SELECTOR, TOP_K, OF_ALL,
         *SCALES, *LATTICE_KEYS.values(), *MASK}  # fmt: skip
# Settings of Domino, without meaning where the part is missing, and settings of training.
IDLE = {
    PLAIN,
    BIAS,
    STATE,
    "lambda_base_start",
    "lambda_base_decay_ratio",
    "auf",
    "num_anchors",
    "ce_loss_alpha",
    "l1_loss_alpha",
    "confidence_head_alpha",
    "loss_decay_gamma",
}
EITHER = (True, False)
ONLY = {
    LIBRARY: ("dflash", "dspark", "dflash2"),
    "projector_type": ("dflash", DOMINO, "dflash2", "lilicorr"),
    KIND: KINDS,
    **dict.fromkeys((CONFIDENT, WITH, ANCHOR, RERANKED, ALL_WINDOWED, BOTH_WAYS, *CAUSAL), EITHER),
}


def setting(file: HeadFile, name: str) -> Any:
    """A value of the configuration, or of what is nested in it; None where it is not set.

    Raises InputError where two parts of the configuration have different values: their readers
    differ in which counts.
    """
    found = [part.get(name) for part in (file.config, *map(file.nested, NESTED))]
    found = [value for value in found if value is not None]
    if any(value != found[0] for value in found):
        raise file.refusal(f"{name}={' and '.join(map(repr, found))}", "one value")
    return found[0] if found else None


def whole(file: HeadFile, name: str, least: int = 1, most: int = 1 << 24) -> int:
    """A setting that must be there. Raises InputError."""
    value = setting(file, name)
    if type(value) is not int or not least <= value <= most:
        raise file.refusal(f"{name}={value!r}", f"a whole number from {least} to {most}")
    return value


def is_number(value: Any) -> bool:
    """Returns whether it is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def require_settings(file: HeadFile) -> None:
    """Raises InputError for a setting that is unknown, or has a value that it cannot have."""
    known = {*KNOWN, *IDLE, *((SHIFT,) if is_domino(file) else ())}
    require_known(file, known, ONLY, *NESTED, windowed=True)
    setting(file, MASK[0])
    for name, part in [
        (name, file.nested(each)) for each in NESTED for name in (WINDOW, WINDOWED, TYPES)
    ]:
        if part.get(name) is not None and part[name] != file.layer.get(name):
            raise file.refusal(f"{name}={part[name]} nested", "it with the layers' settings")
    for name, neutral in SCALES.items():
        if (top := file.config.get(name, file.layer.get(name))) is not None and top != neutral:
            fix = f"{neutral}, or the setting in {NESTED[0]}: not all readers take it from there"
            raise file.refusal(f"{name}={top}", fix)
        value = setting(file, name)
        if value is not None and not (is_number(value) and (value > 0 or value == neutral)):
            raise file.refusal(f"{name}={value!r}", "a number above 0")
    projector, lattice = setting(file, "projector_type"), setting(file, RERANKED)
    needed = {"dflash2": SELECTOR, "lilicorr": LATTICE_KEYS["factor"]}.get(projector)
    if needed and (setting(file, needed) is None or lattice is False):
        raise file.refusal(f"projector_type={projector} and no {needed}", "both")
    if setting(file, TOP_K) is not None and not setting(file, SELECTOR):
        raise file.refusal(f"{TOP_K} and no {SELECTOR}", "both")
    if is_domino(file) and not isinstance(setting(file, SHIFT), bool):
        raise file.refusal(f"{SHIFT}={setting(file, SHIFT)!r}", "True or False")


def is_spark(file: HeadFile) -> bool:
    """Returns whether the file is a DSpark drafter."""
    return file.config.get(LIBRARY) == "dspark" or "DSpark" in str(file.config.get("architectures"))


def is_domino(file: HeadFile) -> bool:
    """Returns whether the file is a Domino drafter."""
    return bool(setting(file, "projector_type") == DOMINO)


def correction_part(file: HeadFile) -> str | None:
    """The part that makes places depend on the drafted tokens before them, by its first setting.
    Raises InputError.
    """
    lattice = setting(file, RERANKED) is not False and any(
        setting(file, key) for key in LATTICE_KEYS.values()
    )
    there = {
        RANK: markov_rank(file),
        DOMINO: is_domino(file),
        SELECTOR: setting(file, SELECTOR),
        RERANKED: lattice,
    }
    found = [name for name, given in there.items() if given]
    if len(found) > 1:
        raise InputError(f"{file.where}: config.json sets {', '.join(found)}; expected one of them")
    return found[0] if found else None


def anchored(file: HeadFile) -> bool:
    """Returns whether the first row of a block drafts too, as in DSpark unless the file has another
    setting.
    """
    given = setting(file, ANCHOR)
    if is_domino(file):
        if given is not None and given != setting(file, SHIFT):
            raise file.refusal(f"{ANCHOR}={given}, {SHIFT}={setting(file, SHIFT)}", "the same")
        return bool(setting(file, SHIFT))
    return is_spark(file) if given is None else bool(given)


def block_size(file: HeadFile) -> int:
    """Rows of a block, the root's among them. Raises InputError."""
    return RANDOM_BLOCK if file.random else whole(file, BLOCK, 2, LONGEST)


def block_sights(file: HeadFile, layers: int) -> list[Sight]:
    """What a block's rows see in each layer, as z-lab's code, SGLang and vLLM read the
    configuration.

    Without a setting of causality, rows of a layer with a window see no later rows, and those of
    others do. A file of the speculators library is read as the library trains: a window is counted
    from the root, and rows of a layer with a window see later rows if ``sliding_window_non_causal``
    is set. Returns an empty list where all rows see everything. Raises InputError.
    """
    given = {name: value for name in CAUSAL if (value := setting(file, name)) is not None}
    if len(set(given.values())) > 1:
        raise file.refusal(f"{given}", "one value")
    causal = next(iter(given.values()), None)
    types = file.layer.get(TYPES) or ["full_attention"] * layers
    if (
        not isinstance(types, list)
        or len(types) != layers
        or not {"full_attention", SLIDING} >= set(map(str, types))
    ):
        raise file.refusal(f"{TYPES}={types}", f"full_attention or {SLIDING} {layers}x")
    windowed, some = setting(file, ALL_WINDOWED) or False, SLIDING in types
    library, both = setting(file, LIBRARY) is not None, setting(file, BOTH_WAYS)
    misread = both is not None if windowed or not library else both is None or bool(given)
    if (windowed and library) or ((windowed or some) and misread):
        raise file.refusal(
            f"a window, {LIBRARY}={setting(file, LIBRARY)}, {BOTH_WAYS}={both},"
            f" {given | {ALL_WINDOWED: windowed}}",
            f"{TYPES} and {BOTH_WAYS} alone in the speculators library's format, and no {BOTH_WAYS}"
            " in others: their readers differ in what the rows see",
        )
    if some != (file.layer.get(WINDOWED) or False) or (some and windowed):
        raise file.refusal(
            f"{WINDOWED}={file.layer.get(WINDOWED)}, {ALL_WINDOWED}={windowed}, {TYPES}={types}",
            f"{WINDOWED} where layers are {SLIDING}, else {ALL_WINDOWED} or neither",
        )
    width = setting(file, OF_ALL) if windowed else file.layer.get(WINDOW)
    if (some or windowed) and (type(width) is not int or width < 1):
        raise file.refusal(f"a window of {width!r}", "a whole number above 0")
    sights = [Sight(each == SLIDING and not both if causal is None else causal,
                    width if windowed or each == SLIDING else None, library and each == SLIDING)
              for each in types]  # fmt: skip
    return sights if any(sight != Sight() for sight in sights) else []


def convolution(file: HeadFile, hidden: int) -> tuple[int, int] | None:
    """(taps, channels of a group) of the convolutions in DFlash 2's layers, if there are any.
    Raises InputError.
    """
    if setting(file, TAPS) is None and setting(file, GROUP) is None:
        return None
    taps, group = whole(file, TAPS, most=block_size(file)), whole(file, GROUP, most=hidden)
    if hidden % group:
        raise file.refusal(f"{GROUP}={group}", f"a divisor of {hidden}")
    return taps, group


def plain_places(file: HeadFile) -> int:
    """Domino's places that keep their logits. Raises InputError."""
    return whole(file, PLAIN, 0, block_size(file))


def lattice_settings(file: HeadFile, hidden: int) -> LatticeSettings:
    """The shape of LiLiCorr's part; hidden: of the drafter. Raises InputError."""
    given = {name: setting(file, key) for name, key in LATTICE_KEYS.items()}
    wholes = {
        name: whole(file, LATTICE_KEYS[name])
        for name in ("candidates", "layers", "heads", "factor")
    }
    own = whole(file, LATTICE_KEYS["hidden"], 0) or hidden
    for name in ("epsilon", "scale", "inner"):
        if not is_number(given[name]) or given[name] <= 0:
            raise file.refusal(f"{LATTICE_KEYS[name]}={given[name]!r}", "a number above 0")
    if own % wholes["heads"] or anchored(file):
        raise file.refusal(
            f"{LATTICE_KEYS['hidden']}={own}, {LATTICE_KEYS['heads']}={wholes['heads']},"
            f" {ANCHOR}={anchored(file)}",
            "a multiple, and False",
        )
    return LatticeSettings(
        hidden=own,
        inner=int(own * given["inner"]),
        epsilon=float(given["epsilon"]),
        scale=float(given["scale"]),
        places=block_size(file) - 1,
        **wholes,
    )


def markov_rank(file: HeadFile) -> int:
    """The rank of DSpark's Markov head, 0 without one. Raises InputError."""
    return whole(file, RANK) if setting(file, RANK) else 0


def is_confident(file: HeadFile) -> bool:
    """Returns whether it has a confidence head: by the configuration, by its tensors, or (unread)
    if it is DSpark's.
    """
    given, shapes = setting(file, CONFIDENT), file.shapes()
    there = is_spark(file) and not file.random if shapes is None else f"{SURE}.weight" in shapes
    return there if given is None else bool(given)


def reads_markov(file: HeadFile) -> bool:
    """Returns whether the confidence head reads the token before. Raises InputError if nothing
    embeds it.
    """
    given, rank = setting(file, WITH), markov_rank(file)
    if given and not rank and is_confident(file):
        raise file.refusal(f"{WITH}=True and {RANK}=0", "a Markov head")
    return rank > 0 if given is None else bool(given)


class ConfidenceHead:
    """The chance that a place's token is accepted where those before it are; it does not depend on
    that token.
    """

    def __init__(self, state: Mapping[str, Tensor], markov: MarkovHead | None) -> None:
        """markov: whose embedding of the token before is read too."""
        self._weight, self._bias, self._markov = (
            state[f"{SURE}.weight"],
            state[f"{SURE}.bias"],
            markov,
        )
        self.temperatures: Sequence[float] = ()  # of each place's logit; empty = 1

    def __call__(self, level: int, ids: Tensor, hidden: Tensor) -> Tensor:
        """(w,) float32 of a level. ids: (w,) the token before. hidden: (w, D) the drafter's normed
        state.
        """
        read = (
            hidden if self._markov is None else torch.cat([hidden, self._markov.embed(ids)], dim=-1)
        )
        logits = functional.linear(read, self._weight, self._bias)[:, 0].float()
        return (logits / self.temperatures[level] if self.temperatures else logits).sigmoid()


def read_temperatures(path: str, places: int) -> list[float]:
    """The temperatures of each place of a block, as SGLang and TensorRT-LLM fit them. Raises
    InputError.
    """
    where, fix = (
        f"calibration={path}",
        f"expected {places} numbers above 0 as temperatures or sts_temperatures",
    )
    raw = read_file(Path(path), f"{where}: ", fix)
    try:
        content = json.loads(raw)
        found = next(
            content[name] for name in ("sts_temperatures", "temperatures") if name in content
        )
        good = len(found) == places and all(is_number(each) and each > 0 for each in found)
    except (ValueError, TypeError, StopIteration, RecursionError) as error:
        raise InputError(f"{where}: is no calibration ({error!r}); {fix}") from error
    if not good:
        raise InputError(f"{where}: has {found}; {fix}, the places of the head's block")
    return [float(each) for each in found]


class DFlashHead(TreeHead):
    """The drafter: fused states, layers with norms of queries and keys, embedding and output head
    of the target.
    """

    format = HeadFormat("DFlash")
    # Copies of the target's, where the vocabulary is whole; and a confidence head that is switched
    # off.
    ignored = (EMBEDDING, r"lm_head\.weight", "d2t", "t2d", r"confidence_head\..*")

    def __init__(
        self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds
    ) -> None:
        self.ends, self._eps, self._fc = (
            ends,
            float(config.rms_norm_eps),
            Product(state["fc.weight"]),
        )
        self._norms = [Norm(state[f"{name}.weight"], self._eps) for name in ("hidden_norm", "norm")]
        prefixes = [f"layers.{place}." for place in range(config.num_hidden_layers)]
        self._first = Norm(state[f"{prefixes[0]}input_layernorm.weight"], self._eps)
        self.layers = DraftLayers(
            state, prefixes, config, biased(file), block_sights(file, len(prefixes))
        )
        self._mask = torch.tensor([mask_token(file, ends.vocab, *NESTED)], device=ends.device)
        self.skipped = 0 if anchored(file) else 1  # rows of a block that draft nothing: the root's
        self._head = Product(state[HEAD]) if HEAD in state else None
        self._embedding = state.get(EMBEDDED)
        self._scale, self._multiplier, self._cap = (
            float(neutral if (given := setting(file, name)) is None else given)
            for name, neutral in SCALES.items()
        )
        self.correction = self._find_correction(state, file)
        self.candidates = self.correction.candidates if self.correction else None
        markov = (
            self.correction
            if isinstance(self.correction, MarkovHead) and reads_markov(file)
            else None
        )
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
        return (
            Lattice(state, lattice_settings(file, self.ends.width), self._eps, self.ends.embed)
            if part
            else None
        )

    @staticmethod
    def own(file: HeadFile) -> tuple[str, ...]:
        """DeepSpec trains both with DSpark; in other files they are copies of the target's, or
        noise.
        """
        return (HEAD, EMBEDDED) if is_spark(file) else ()

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """z-lab's ``target_layer_ids`` count blocks, whose outputs are meant; speculators' ids
        count hidden states.
        """
        require_settings(file)
        blocks, states = (
            layer_numbers(file, name, setting(file, name)) for name in (LAYERS, STATES)
        )
        chosen = (
            (1, max(1, layers // 2), layers)
            if file.random
            else states or [block + 1 for block in blocks or ()]
        )
        if not chosen or not all(0 <= layer <= layers for layer in chosen):
            raise file.refusal(
                f"{LAYERS}={blocks}, {STATES}={states}",
                f"one of them, in a target of {layers} layers",
            )
        return tuple(chosen)

    @classmethod
    def shapes(
        cls, file: HeadFile, config: LlamaConfig, target: Any, read: int
    ) -> dict[str, TensorShape]:
        """A smaller vocabulary has ``lm_head`` and ``d2t``. Raises InputError where widths or
        settings do not fit.
        """
        hidden = require_width(file, config, target)
        drafted = drafted_tokens(file, config.vocab_size)
        mask_token(file, config.vocab_size, *NESTED)
        shapes: dict[str, TensorShape] = {"fc.weight": (hidden, read * hidden)}
        shapes |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
        convolved = convolution(file, hidden)
        for prefix in (f"layers.{place}." for place in range(config.num_hidden_layers)):
            shapes |= layer_shapes(config, prefix, hidden, biased(file), normed=True)
            shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
            shapes |= convolution_shapes(prefix, hidden, *convolved) if convolved else {}
        block_sights(file, config.num_hidden_layers)
        part, vocab = correction_part(file), config.vocab_size
        if part not in (None, RANK) and drafted != vocab:
            raise InputError(
                f"{file.where}: {part} with a vocabulary of {drafted}; expected the target's"
                f" {vocab}"
            )
        if part == RANK:
            shapes |= markov_shapes(
                setting(file, KIND) or VANILLA, vocab, drafted, markov_rank(file), hidden
            )
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
        return self._norms[0](self._fc(torch.cat(list(features), dim=-1)))

    def block(self, root: Tensor, rows: int) -> Tensor:
        """(rows,) ids of a block."""
        return torch.cat([root, self._mask.expand(rows - 1)])

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Embed a block's tokens; the target's states do not enter here."""
        embedded = (
            self.ends.embed(ids)
            if self._embedding is None
            else functional.embedding(ids, self._embedding)
        )
        embedded = embedded if self._scale == 1 else embedded * self._scale
        return self._first(embedded), embedded

    def carry(self, hidden: Tensor) -> Tensor:
        return self._norms[1](hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head's own output head, or the target's; scaled and capped as the file
        states.
        """
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
        logits, self._recurrent = self.head.correction.apply(
            self._block, self._level, ids, self._recurrent[rows]
        )
        return logits

    def chances(self, ids: Tensor | None) -> Tensor | None:
        """The confidence head's (w,) chances of the next level."""
        if not self.head.confidence:
            return None
        level, before = (0, self._block.root) if ids is None else (self._level + 1, ids)
        return self.head.confidence(
            level, before, self._block.states[level].expand(len(before), -1)
        )

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
                f"{self._file.where}: keeps {kept} candidates for a place, and a node of the tree"
                f" has {self.widest} children; expected at most as many: lower the counts of"
                " choices"
            )
        if self.calibration is not None:
            if not is_confident(self._file):
                raise InputError(
                    f"calibration={self.calibration}: {self._file.where} has no confidence head;"
                    " expected null"
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
