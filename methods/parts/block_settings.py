"""Settings of block drafters' files, as z-lab, SGLang and vLLM read them; what these read differently is refused.

A file has its settings at the top, in ``dflash_config`` or in ``dspark_config``. Its layers are described at the top,
in the speculators library's files in ``transformer_layer_config``.
"""

from __future__ import annotations

import math
from typing import Any

from methods.parts.block_convolution import convolution_shapes
from methods.parts.draft_layer import Sight
from methods.parts.head_file import MASK, HeadFile, TensorShape, require_known
from methods.parts.place_correction import KINDS, LatticeSettings
from specbench.types import InputError

RANDOM_BLOCK, LONGEST = 8, 1024  # the speculators library's default; of any block
SURE = "confidence_head.proj"
NESTED = ("dflash_config", "dspark_config")
BLOCK, LAYERS, STATES, ANCHOR = "block_size", "target_layer_ids", "aux_hidden_state_layer_ids", "sample_from_anchor"
RANK, KIND, CONFIDENT, WITH = "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"
DOMINO, STATE, BIAS, PLAIN, SHIFT = "domino", "gru_hidden_dim", "emb_dim", "pure_draft_prefix_len", "shift_label"
TAPS, GROUP, SELECTOR, TOP_K = "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"
CAUSAL = ("causal", "is_causal", "causal_head")  # of vLLM's files (JetSpec's too), of z-lab's, and of JetSpec's own
WINDOW, WINDOWED, TYPES, ALL_WINDOWED, OF_ALL = (
    "sliding_window", "use_sliding_window", "layer_types", "use_swa", "swa_window_size")  # fmt: skip
SLIDING = "sliding_attention"
SCALES = {"input_embedding_scale": 1.0, "output_multiplier": 1.0, "final_logit_softcapping": 0.0}  # without effect
LATTICE_KEYS = {
    "candidates": "lilicorr_candidate_topk", "hidden": "lilicorr_hidden_size", "layers": "lilicorr_num_layers",
    "heads": "lilicorr_num_heads", "factor": "lilicorr_factor_dim", "epsilon": "lilicorr_vector_eps",
    "scale": "lilicorr_logit_scale", "inner": "lilicorr_mlp_ratio",
}  # fmt: skip
RERANKED = "lilicorr_enabled"
LATTICE_NAMES = (
    (r"^lilicorr\.feature_mlp\.0\.", "lilicorr.feature_norm."),
    (r"^lilicorr\.feature_mlp\.1\.", "lilicorr.feature_mlp.up_proj."),
    (r"^lilicorr\.feature_mlp\.3\.", "lilicorr.feature_mlp.down_proj."),
    (r"^(lilicorr\.layers\.\d+\.mlp)\.0\.", r"\1.up_proj."),
    (r"^(lilicorr\.layers\.\d+\.mlp)\.2\.", r"\1.down_proj."),
)
KNOWN = {"sliding_window_non_causal", RANK, BLOCK, LAYERS, STATES, ANCHOR, TAPS, GROUP, SELECTOR, TOP_K, OF_ALL,
         *SCALES, *LATTICE_KEYS.values(), *MASK}  # fmt: skip
# Settings of Domino, without meaning where the part is missing, and settings of training.
IDLE = {PLAIN, BIAS, STATE, "lambda_base_start", "lambda_base_decay_ratio", "auf", "num_anchors", "ce_loss_alpha",
        "l1_loss_alpha", "confidence_head_alpha", "loss_decay_gamma"}  # fmt: skip
EITHER = (True, False)
ONLY = {
    "speculators_model_type": ("dflash", "dspark", "dflash2"),
    "projector_type": ("dflash", DOMINO, "dflash2", "lilicorr"),
    KIND: KINDS,
    **dict.fromkeys((CONFIDENT, WITH, ANCHOR, RERANKED, ALL_WINDOWED, *CAUSAL), EITHER),
}


def setting(file: HeadFile, name: str) -> Any:
    """A value of the configuration, or of what is nested in it; None where it is not set.

    Raises InputError where two parts of the configuration have different values: their readers differ in which counts.
    """
    found = [part.get(name) for part in (file.config, *map(file.nested, NESTED))]
    found = [value for value in found if value is not None]
    if any(value != found[0] for value in found):
        raise InputError(f"{file.where}: config.json has {name}={' and '.join(map(repr, found))}; expected one value")
    return found[0] if found else None


def whole(file: HeadFile, name: str, least: int = 1, most: int = 1 << 24) -> int:
    """A setting that must be there. Raises InputError."""
    value = setting(file, name)
    if type(value) is not int or not least <= value <= most:
        raise InputError(
            f"{file.where}: config.json has {name}={value!r}; expected a whole number from {least} to {most}"
        )
    return value


def is_number(value: Any) -> bool:
    """Returns whether it is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def scale(file: HeadFile, name: str) -> float:
    """A factor of embeddings or logits, or their cap. Raises InputError."""
    value = setting(file, name)
    return SCALES[name] if value is None else float(value)


def require_settings(file: HeadFile) -> None:
    """Raises InputError for a setting that is unknown, or has a value that it cannot have."""
    known = {*KNOWN, *IDLE, *((SHIFT,) if is_domino(file) else ())}
    require_known(file, known, ONLY, *NESTED, windowed=True)
    setting(file, MASK[0])
    for name, part in [(name, file.nested(each)) for each in NESTED for name in (WINDOW, WINDOWED, TYPES)]:
        if part.get(name) is not None and part[name] != file.layer.get(name):
            raise InputError(
                f"{file.where}: config.json has {name}={part[name]} nested; expected it with the layers' settings"
            )
    for name, neutral in SCALES.items():
        if (top := file.config.get(name, file.layer.get(name))) is not None and top != neutral:
            raise InputError(
                f"{file.where}: config.json has {name}={top}; expected {neutral}, or the setting in {NESTED[0]}: not"
                " all readers take it from there"
            )
        value = setting(file, name)
        if value is not None and not (is_number(value) and (value > 0 or value == neutral)):
            raise InputError(f"{file.where}: config.json has {name}={value!r}; expected a number above 0")
    projector, lattice = setting(file, "projector_type"), setting(file, RERANKED)
    needed = {"dflash2": SELECTOR, "lilicorr": LATTICE_KEYS["factor"]}.get(projector)
    if needed and (setting(file, needed) is None or lattice is False):
        raise InputError(f"{file.where}: config.json has projector_type={projector} and no {needed}; expected both")
    if setting(file, TOP_K) is not None and not setting(file, SELECTOR):
        raise InputError(f"{file.where}: config.json has {TOP_K} and no {SELECTOR}; expected both")
    if is_domino(file) and not isinstance(setting(file, SHIFT), bool):
        raise InputError(f"{file.where}: config.json has {SHIFT}={setting(file, SHIFT)!r}; expected True or False")


def is_spark(file: HeadFile) -> bool:
    """Returns whether the file is a DSpark drafter."""
    return file.config.get("speculators_model_type") == "dspark" or "DSpark" in str(file.config.get("architectures"))


def is_domino(file: HeadFile) -> bool:
    """Returns whether the file is a Domino drafter."""
    return bool(setting(file, "projector_type") == DOMINO)


def correction_part(file: HeadFile) -> str | None:
    """The part that makes places depend on the drafted tokens before them, by its first setting. Raises InputError."""
    lattice = setting(file, RERANKED) is not False and any(setting(file, key) for key in LATTICE_KEYS.values())
    there = {RANK: markov_rank(file), DOMINO: is_domino(file), SELECTOR: setting(file, SELECTOR), RERANKED: lattice}
    found = [name for name, given in there.items() if given]
    if len(found) > 1:
        raise InputError(f"{file.where}: config.json sets {', '.join(found)}; expected one of them")
    return found[0] if found else None


def anchored(file: HeadFile) -> bool:
    """Returns whether the first row of a block drafts too, as in DSpark unless the file has another setting."""
    given = setting(file, ANCHOR)
    if is_domino(file):
        if given is not None and given != setting(file, SHIFT):
            raise InputError(
                f"{file.where}: config.json has {ANCHOR}={given}, {SHIFT}={setting(file, SHIFT)}; expected the same"
            )
        return bool(setting(file, SHIFT))
    return is_spark(file) if given is None else bool(given)


def block_size(file: HeadFile) -> int:
    """Rows of a block, the root's among them. Raises InputError."""
    block = RANDOM_BLOCK if file.random else setting(file, BLOCK)
    if type(block) is not int or not 1 < block <= LONGEST:
        raise InputError(
            f"{file.where}: config.json has {BLOCK}={block}; expected a whole number above 1, to {LONGEST}"
        )
    return block


def block_sights(file: HeadFile, layers: int) -> list[Sight]:
    """What a block's rows see in each layer, as z-lab's code, SGLang and vLLM read the configuration.

    Without a setting of causality, rows of a layer with a window see no later rows, and those of others do. Returns an
    empty list where all rows see everything. Raises InputError.
    """
    given = {name: value for name in CAUSAL if (value := setting(file, name)) is not None}
    if len(set(given.values())) > 1:
        raise InputError(f"{file.where}: config.json has {given}; expected one value")
    causal = next(iter(given.values()), None)
    types = file.layer.get(TYPES) or ["full_attention"] * layers
    if not isinstance(types, list) or len(types) != layers or not {"full_attention", SLIDING} >= set(map(str, types)):
        raise InputError(
            f"{file.where}: config.json has {TYPES}={types}; expected full_attention or {SLIDING} {layers}x"
        )
    windowed, some = setting(file, ALL_WINDOWED) or False, SLIDING in types
    if some and setting(file, "speculators_model_type") is not None:
        raise InputError(
            f"{file.where}: has a sliding window, which the speculators library counts from a block's root in training"
            " and servers count from each place; expected full attention, or z-lab's format"
        )
    if some != (file.layer.get(WINDOWED) or False) or (some and windowed):
        raise InputError(
            f"{file.where}: config.json has {WINDOWED}={file.layer.get(WINDOWED)}, {ALL_WINDOWED}={windowed}, {TYPES}="
            f"{types}; expected {WINDOWED} where layers are {SLIDING}, else {ALL_WINDOWED} or neither"
        )
    width = (file.layer.get(WINDOW) if some else setting(file, OF_ALL)) if some or windowed else None
    if (some or windowed) and (type(width) is not int or width < 1):
        raise InputError(f"{file.where}: config.json has a window of {width!r}; expected a whole number above 0")
    slides = [windowed or each == SLIDING for each in types]
    sights = [Sight(each == SLIDING if causal is None else causal, width if slide else None)
              for each, slide in zip(types, slides, strict=True)]  # fmt: skip
    return sights if any(sight != Sight() for sight in sights) else []


def convolutions(file: HeadFile, layers: int, hidden: int) -> dict[str, TensorShape]:
    """Names and shapes of the convolutions in DFlash 2's layers, if the file has them. Raises InputError."""
    if setting(file, TAPS) is None and setting(file, GROUP) is None:
        return {}
    taps, group = whole(file, TAPS, most=block_size(file)), whole(file, GROUP, most=hidden)
    if hidden % group:
        raise InputError(f"{file.where}: config.json has {GROUP}={group}; expected a divisor of {hidden}")
    shapes: dict[str, TensorShape] = {}
    for place in range(layers):
        shapes |= convolution_shapes(f"layers.{place}.", hidden, taps, group)
    return shapes


def plain_places(file: HeadFile) -> int:
    """Domino's places that keep their logits. Raises InputError."""
    return whole(file, PLAIN, 0, block_size(file))


def lattice_settings(file: HeadFile, hidden: int) -> LatticeSettings:
    """The shape of LiLiCorr's part; hidden: of the drafter. Raises InputError."""
    given = {name: setting(file, key) for name, key in LATTICE_KEYS.items()}
    wholes = {name: whole(file, LATTICE_KEYS[name]) for name in ("candidates", "layers", "heads", "factor")}
    own = whole(file, LATTICE_KEYS["hidden"], 0) or hidden
    for name in ("epsilon", "scale", "inner"):
        if not is_number(given[name]) or given[name] <= 0:
            raise InputError(
                f"{file.where}: config.json has {LATTICE_KEYS[name]}={given[name]!r}; expected a number above 0"
            )
    if own % wholes["heads"] or anchored(file):
        raise InputError(
            f"{file.where}: config.json has {LATTICE_KEYS['hidden']}={own}, {LATTICE_KEYS['heads']}={wholes['heads']},"
            f" {ANCHOR}={anchored(file)}; expected a multiple, and False"
        )
    return LatticeSettings(hidden=own, inner=int(own * given["inner"]), epsilon=float(given["epsilon"]),
                           scale=float(given["scale"]), places=block_size(file) - 1, **wholes)  # fmt: skip


def markov_rank(file: HeadFile) -> int:
    """The rank of DSpark's Markov head, 0 without one. Raises InputError."""
    rank = setting(file, RANK) or 0
    if type(rank) is not int or rank < 0:
        raise InputError(f"{file.where}: config.json has {RANK}={rank!r}; expected a whole number")
    return rank


def is_confident(file: HeadFile) -> bool:
    """Returns whether it has a confidence head: by the configuration, by its tensors, or (unread) if it is DSpark's."""
    given, shapes = setting(file, CONFIDENT), file.shapes()
    there = is_spark(file) and not file.random if shapes is None else f"{SURE}.weight" in shapes
    return there if given is None else bool(given)


def reads_markov(file: HeadFile) -> bool:
    """Returns whether the confidence head reads the token before. Raises InputError if nothing embeds it."""
    given, rank = setting(file, WITH), markov_rank(file)
    if given and not rank and is_confident(file):
        raise InputError(f"{file.where}: config.json has {WITH}=True and {RANK}=0; expected a Markov head")
    return rank > 0 if given is None else bool(given)
