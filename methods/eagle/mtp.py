"""Native multi-token prediction (DeepSeek-AI 2024, arXiv 2412.19437, section 2.2): a module of the
target drafts.

A module projects the target's last state and the next token's embedding and runs one decoder layer;
embedding and output head are the target's. Drafted tokens continue its own states, so one module
drafts a chain of any length. Of several modules each drafts one token: at row i module k reads what
module k - 1 wrote at row i (the first one: the target's state) and token i + k. So the last k - 1
rows of a module wait for tokens that are only drafted: they are fed with these, and nothing of them
is stored. The layouts of checkpoints differ in names, in the order of what is projected, and in
whether the state that continues is normed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModel, LlamaConfig
from transformers.core_model_loading import revert_weight_conversion
from typing_extensions import override

from methods.eagle.eagle import EagleRun, static_memory
from methods.parts.draft_layer import (
    GROWTH,
    DraftLayers,
    Forwards,
    LayerMemory,
    LayersCall,
    RowsCall,
    layer_shapes,
)
from methods.parts.head_file import (
    HeadFile,
    HeadFormat,
    TensorShape,
    biased,
    head_norms,
    require_known,
    require_shapes,
    require_vocabulary,
)
from methods.parts.head_method import TargetEnds
from methods.parts.parameters import count
from methods.parts.tree_method import EMBEDDING, HeadRun, TreeHead, TreeMethod, require_width
from specbench.models.eager.cache import SlotCache
from specbench.models.entries import refuse_entries
from specbench.models.facade import ModelCard, Target
from specbench.models.family import EXPERTS, check_family, find_steady_context
from specbench.models.fast.host.forward import Norm, Product
from specbench.models.load import UNREADABLE, choose_experts, explain
from specbench.models.tree import build_causal_mask, list_masked_chunks
from specbench.types import InputError, require_count

# Settings of one layer with full attention and experts, without tokens of its own; a family has
# some of them.
ALONE: dict[str, Any] = {
    "num_hidden_layers": 1, "layer_types": ["full_attention"], "mlp_layer_types": ["sparse"],
    "first_k_dense_replace": 0, "mlp_only_layers": [], "decoder_sparse_step": 1, "vocab_size": 1,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
MOST_EXPERTS = 4096
FIRST, UNUSED = "layers.0.", ("embed_tokens.weight", "norm.weight")


def list_settings(family: str) -> frozenset[str]:
    """The names of a family's settings in ``config.json``."""
    kind = CONFIG_MAPPING[family]
    return frozenset({*kind().to_dict(), *kind.attribute_map, *ALONE})


def configure_layer(file: HeadFile, target: Any) -> Any:
    """The configuration of a model of the head's family with one layer.

    target: its configuration. Raises InputError.
    """
    raw, family = file.layer, str(file.layer["model_type"])
    require_vocabulary(file, raw.get("vocab_size"), target)
    for name in EXPERTS:
        if raw.get(name) is not None and not (
            type(raw[name]) is int and 1 <= raw[name] <= MOST_EXPERTS
        ):
            raise InputError(
                f"{file.where}: {name}={raw[name]!r}; expected a whole number from 1 to"
                f" {MOST_EXPERTS}"
            )
    known = CONFIG_MAPPING[family]().to_dict()
    try:
        config = CONFIG_MAPPING[family].from_dict(
            {**raw, **{name: ALONE[name] for name in ALONE if name in known}}
        )
        limit = int(config.max_position_embeddings)
        switches = find_steady_context(config, limit)[0] < limit
    except UNREADABLE as error:
        raise InputError(
            f"{file.where}: config.json describes no layer of {family} ({explain(error)})"
        ) from error
    refuse_entries(config, f"{file.where}: config.json")
    check_family(config, file.where)
    if switches:
        raise InputError(
            f"{file.where}: its rotary positions change with the length; expected steady ones, as"
            " yarn"
        )
    return config


def list_shapes(config: Any, where: str) -> dict[str, TensorShape]:
    """Names and shapes of the layer's tensors in a checkpoint of its family. Raises InputError."""
    try:
        with torch.device("meta"):
            model = AutoModel.from_config(config)
        stored = revert_weight_conversion(model, model.state_dict())
    except (*UNREADABLE, RuntimeError) as error:
        raise InputError(
            f"{where}: config.json describes no layer of {config.model_type} ({explain(error)})"
        ) from error
    return {
        name.removeprefix(FIRST): tuple(each.shape)
        for name, each in stored.items()
        if name not in UNUSED
    }


class LibraryMemory(LayerMemory):
    """Keys and values of one request, as the family stores them, in the cache of the eager
    engine.
    """

    def __init__(self, layers: LibraryLayer, nodes: int) -> None:
        self.nodes, self.length = nodes, 0
        self.mask = layers.like.new_empty(0, 0)
        self.cache = SlotCache(layers.shapes)
        self.reserve(GROWTH)

    @override
    def reserve(self, tokens: int) -> None:
        self.cache.truncate(self.length)
        self.cache.grow(tokens + self.nodes)


class LibraryLayer(DraftLayers):
    """A decoder layer that transformers computes: experts, latent and gated attention need no code
    here.

    The layer is the only one of a model of its family, whose embedding and final norm are not used.
    Slots, positions and masks are given to it as the eager engine gives them to a target. Requests
    do not share a forward. shapes: of its keys and values.
    """

    def __init__(self, state: Mapping[str, Tensor], config: Any, like: Tensor, where: str) -> None:
        """state: with the names of ``list_shapes``. like: an empty tensor of the target's dtype.
        Raises InputError.
        """
        empty = like.new_zeros(1, config.hidden_size), like.new_ones(config.hidden_size)
        named = {
            **{f"{FIRST}{name}": each for name, each in state.items()},
            **dict(zip(UNUSED, empty, strict=True)),
        }
        kind: Any = AutoModel._model_mapping[type(config)]
        options = {"dtype": like.dtype, "experts_implementation": choose_experts(like.dtype)}
        try:
            self._model = (
                kind.from_pretrained(None, config=config, state_dict=named, **options)
                .to(like.device)
                .eval()
            )
            self.shapes = SlotCache.for_model(self._model).shapes
        except (*UNREADABLE, RuntimeError) as error:
            raise InputError(
                f"{where}: no layer of {config.model_type} can be built ({explain(error)})"
            ) from error
        self._norm, self._model.norm = self._model.norm, nn.Identity()
        self.like, self.count, self.compiled = like, 1, None

    def normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """(rows, D) after a norm of the family with this weight."""
        return torch.func.functional_call(self._norm, {"weight": weight}, (hidden,))

    @override
    def new_memory(self, nodes: int, width: int) -> LibraryMemory:
        return LibraryMemory(self, nodes)

    @override
    def run_together(self, calls: Sequence[LayersCall]) -> list[Tensor]:
        return [self._run(call) for call in calls]

    @torch.no_grad()
    def _run(self, call: LayersCall) -> Tensor:
        """(outputs, D) of one request."""
        memory, start, end = call.memory, call.first, call.first + len(call.residual)
        assert isinstance(memory, LibraryMemory)
        memory.cache.truncate(start)
        if call.seen is not None:
            near = call.seen[:, : end - memory.length]
            shown = torch.cat([near.new_zeros(len(near), memory.length), near], 1)
            return self._call(
                memory,
                call.residual,
                call.at,
                shown.clamp(min=torch.finfo(near.dtype).min)[None, None],
            )
        written = []
        for part in list_masked_chunks(end, start):
            later = part.start and part.stop - part.start > 1
            mask = (
                build_causal_mask(part.stop, None, self.like.dtype, part.start) if later else None
            )
            written.append(
                self._call(
                    memory, call.residual[part.start - start : part.stop - start], part, mask
                )
            )
        return torch.cat(written)[-call.outputs :]

    def _call(self, memory: LibraryMemory, rows: Tensor, at: slice, mask: Tensor | None) -> Tensor:
        """(m, D) after the layer.

        rows: (m, D). at: their positions, one for all or one each. mask: (1, 1, m, slots) additive;
        None is causal.
        """
        device = rows.device
        written: Tensor = self._model(
            inputs_embeds=rows[None],
            attention_mask=None if mask is None else mask.to(device),
            position_ids=torch.arange(at.start, at.stop, device=device).expand(1, len(rows)),
            past_key_values=memory.cache,
            use_cache=True,
            return_dict=True,
        ).last_hidden_state[0]
        return written


class ModulesMemory(LayerMemory):
    """A request's keys and values, those of each module."""

    def __init__(self, heads: Sequence[TreeHead]) -> None:
        self.each = [head.layers.new_memory(0, 1) for head in heads]

    def forget(self) -> None:
        for memory in self.each:
            memory.forget()


class ModulesRun(HeadRun):
    """One request's place in the modules; after the last one the chain continues from its own
    states.
    """

    def __init__(self, heads: Sequence[TreeHead], memory: ModulesMemory) -> None:
        super().__init__(heads[0], memory)
        like = heads[0].layers.like
        self._heads, self._memories = heads, memory.each
        self._rows = 0  # committed ones of the first module
        # Of each module, from its first row that is not stored on: the states it reads, and the
        # tokens.
        self._states = [like.new_empty(0, heads[0].ends.width) for _ in heads]
        self._tokens = [like.new_empty(0, dtype=torch.int64) for _ in heads]
        self._drafted, self._root = self._tokens[0], self._states[0]
        self._written = self._waiting_states = self._root
        self._waiting = self._drafted

    def root(self) -> Forwards:
        if self.queue:
            features, following = self.taken()
            # the first token of module ``place`` is that far on
            for place, tokens in enumerate(self._tokens):
                self._tokens[place] = torch.cat([tokens, following[max(0, place - self._rows) :]])
            self._rows += len(following)
            self._states[0] = self.head.enter(features)
            self._written = yield from self._read(0, self._drafted[:0])
            self._root = self._states[1][-1:]
        self._drafted, self._written = self._drafted[:0], self._root[:0]
        return (yield RowsCall(self.head.output, self._root))

    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        """Returns the logits (1, Vd) after one more token of the chain."""
        self._drafted, last = torch.cat([self._drafted, ids]), len(self._heads) - 1
        place = min(len(self._drafted), last)
        if place == len(self._drafted):
            self._written = yield from self._read(place, self._drafted[-min(place, self._rows) :])
        else:
            self._waiting = torch.cat([self._waiting, ids])
            self._waiting_states = torch.cat([self._waiting_states, self._written[-1:]])
            self._written = yield from self._feed(
                place, self._waiting, self._waiting_states, len(self._waiting)
            )
        return (yield RowsCall(self._heads[place].output, self._written[-1:]))

    def _read(self, place: int, drafted: Tensor) -> Forwards:
        """The module at ``place`` reads its new rows, and the n that wait for (n,) drafted tokens:
        what these write.
        """
        tokens, stored = self._tokens[place], self._states[place]
        new, states = len(tokens), torch.cat([stored, self._written]) if place else stored
        self._waiting, self._waiting_states = drafted, states[new:]
        written = yield from self._feed(place, torch.cat([tokens, drafted]), states, len(drafted))
        self._tokens[place], self._states[place] = tokens[:0], stored[new:].clone()
        if place + 1 == len(self._heads):
            return written
        self._states[place + 1] = torch.cat([self._states[place + 1], written[:new]])
        return written[new:]

    def _feed(self, place: int, ids: Tensor, states: Tensor, passing: int) -> Forwards:
        """(rows, H) states that continue after the module at ``place``; after the last one, of the
        passing rows alone.

        passing: the last rows, of which nothing is kept.
        """
        head, outputs = self._heads[place], len(ids) if place + 1 < len(self._heads) else passing
        read = head.layers.read(*head.inputs(ids, states), self._memories[place], outputs, passing)
        return head.carry((yield from read))


@dataclass(frozen=True, slots=True)
class ModuleLayout:
    """The layout of a module in a kind of checkpoint.

    prefix: of a module's names. states_first: before the embedding. normed: the state that
    continues is normed. bare: the target's state is read without its final norm.
    """

    prefix: str
    states_first: bool = False
    normed: bool = True
    bare: bool = False


SPECULATORS = ModuleLayout("mtp_layers.{place}.")
QWEN = ModuleLayout("mtp.")
MIMO = ModuleLayout("model.mtp_layers.{place}.", states_first=True, bare=True)
FAST_MTP = replace(MIMO, bare=False)  # MiMo's, trained on states after the final norm
DEEPSEEK = ModuleLayout("model.layers.{behind}.", normed=False)
MOST_MODULES = 16
# settings: modules, FastMTP's steps
NATIVE, RECURSIVE = "num_nextn_predict_layers", "num_speculative_steps"
# DeepSeek's and Qwen's names, and what MiMo and the speculators library call the same.
NAMES = {
    "eh_proj": "input_proj", "hnorm": "hidden_layernorm", "enorm": "token_layernorm",
    "shared_head.norm": "final_layernorm", "shared_head.head": "lm_head",
    "fc": "input_proj", "pre_fc_norm_hidden": "hidden_layernorm",
    "pre_fc_norm_embedding": "token_layernorm", "norm": "final_layernorm",
}  # fmt: skip
NORMS = ("hidden_layernorm", "token_layernorm", "input_layernorm", "final_layernorm")
# Settings of a layer that ``DraftLayers`` does not compute; the last one is of a module that
# nothing here computes.
TWO_LEVELS = "num_centroids"
UNLIKE = {
    "n_routed_experts": "a mixture of experts", "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts", "kv_lora_rank": "latent attention",
    TWO_LEVELS: "an output head of two levels",
}  # fmt: skip
GATED = ("qwen3_next", "qwen3_5")  # their attention has a gate, their norms are about one
# families whose layer transformers computes
DRIVEN = ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "qwen3_next")


def list_unlike(file: HeadFile) -> list[str]:
    """The parts of its layer that make it unlike a dense Llama layer."""
    found = [
        f"{what} ({key})"
        for key, what in UNLIKE.items()
        if file.layer.get(key) or file.config.get(key)
    ]
    family = str(file.layer.get("model_type"))
    return [*found, f"gated attention ({family})"] if family.startswith(GATED) else found


def find_layout(file: HeadFile) -> ModuleLayout:
    """By the configuration. Raises InputError where it has no module, or one that is not computed
    here.
    """
    kind, layer = file.config.get("speculators_model_type"), file.layer
    if file.random:
        return SPECULATORS
    if kind not in (None, "mtp"):
        raise file.refusal(f"speculators_model_type={kind}", "mtp")
    unlike, family = list_unlike(file), str(layer.get("model_type"))
    if unlike and (family not in DRIVEN or layer.get(TWO_LEVELS) or file.config.get(TWO_LEVELS)):
        raise InputError(
            f"{file.where}: its MTP module has {', '.join(unlike)}, model_type={family}; expected"
            f" one dense Llama-like layer, or a layer of {', '.join(DRIVEN)}"
        )
    layout = SPECULATORS if kind else QWEN if family == "qwen3_next" else DEEPSEEK
    if layout is DEEPSEEK and not layer.get(NATIVE):
        raise file.refusal(f"no {NATIVE}", "a model with MTP modules")
    # and the module's attention is full, whatever the target's is
    settings = list_settings(family) if unlike else ()
    require_known(
        file,
        (NATIVE, RECURSIVE, *settings),
        {"speculators_model_type": ("mtp",)},
        windowed=bool(unlike),
    )
    if layout is DEEPSEEK and family == "mimo":
        return FAST_MTP if file.config.get(RECURSIVE) else MIMO
    return layout


def count_modules(file: HeadFile) -> int:
    """Modules of a checkpoint; FastMTP and random weights have one. Raises InputError."""
    if file.random or find_layout(file) is FAST_MTP:
        return 1
    found = [
        each[NATIVE] for each in (file.config, file.layer) if each.get(NATIVE) is not None
    ] or [1]
    if type(found[0]) is not int or not 0 < found[0] <= MOST_MODULES:
        raise file.refusal(f"{NATIVE}={found[0]!r}", f"a whole number from 1 to {MOST_MODULES}")
    if found[0] > 1 and find_layout(file) is QWEN:
        raise file.refusal(f"{NATIVE}={found[0]}", "1, as its modules share weights")
    return found[0]


class MtpHead(TreeHead):
    """A module, in one of the layouts."""

    format = HeadFormat("MTP", ("model.safetensors", "model.safetensors.index.json"), ())
    ignored = (EMBEDDING, r"lm_head\.weight")  # copies of the target's

    def __init__(
        self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds
    ) -> None:
        self.ends, self._layout = ends, find_layout(file)
        self._project = Product(state["input_proj.weight"])
        self._final = ends.final_norm() if self._layout.bare else None
        self._norms = {
            name: Norm(state[f"{name}.weight"], float(config.rms_norm_eps)) for name in NORMS
        }
        self.layers = self.build_layer(state, file, config)

    def build_layer(self, state: Mapping[str, Tensor], file: HeadFile, config: Any) -> DraftLayers:
        """Its decoder layer."""
        return DraftLayers(state, [""], config, _biased(file))

    @classmethod
    def choose(cls, file: HeadFile) -> type[TreeHead]:
        """The class for its layer. Raises InputError as ``find_layout``."""
        find_layout(file)
        return LibraryHead if not file.random and list_unlike(file) else cls

    @staticmethod
    def narrow(file: HeadFile, layers: int, place: int = 0) -> HeadFile:
        """The tensors of the module at ``place`` alone."""
        return replace(
            file, prefix=find_layout(file).prefix.format(place=place, behind=layers + place)
        )

    @classmethod
    def shapes(
        cls, file: HeadFile, config: LlamaConfig, target: Any, read: int
    ) -> dict[str, TensorShape]:
        hidden = require_width(file, config, target)
        shapes: dict[str, TensorShape] = {"input_proj.weight": (hidden, 2 * hidden)}
        shapes |= {f"{name}.weight": (hidden,) for name in NORMS}
        return {**shapes, **cls.list_layer(file, config)}

    @staticmethod
    def list_layer(file: HeadFile, config: Any) -> dict[str, TensorShape]:
        """Names and shapes of the layer's tensors."""
        return layer_shapes(config, "", config.hidden_size, _biased(file), head_norms(file))

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """DeepSeek's and Qwen's names as the others have them."""
        parts = {name: name.removeprefix("layers.0.").rpartition(".") for name in names}
        return {
            f"{NAMES.get(stem, stem)}.{last}": names[name]
            for name, (stem, _, last) in parts.items()
        }

    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """The state itself; without the target's final norm up to its length, which the module's
        own norm settles.
        """
        return features[0] if self._final is None else features[0] / self._final

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Normed embedding and state, projected; normed once more for attention."""
        mixed = self.mix(ids, hidden)
        return self._norm(mixed, "input_layernorm"), mixed

    def mix(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """(T, H) normed embeddings of (T,) tokens and normed states (T, H), projected."""
        both = [
            self._norm(self.ends.embed(ids), "token_layernorm"),
            self._norm(hidden, "hidden_layernorm"),
        ]
        return self._project(torch.cat(both[::-1] if self._layout.states_first else both, dim=-1))

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        return self._norms[name](hidden)

    def carry(self, hidden: Tensor) -> Tensor:
        return self._norm(hidden, "final_layernorm") if self._layout.normed else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """The last norm, if that is still to come, and the target's output head."""
        return self.ends.logits(
            hidden if self._layout.normed else self._norm(hidden, "final_layernorm")
        )


class LibraryHead(MtpHead):
    """A module whose layer has experts, latent attention or gated attention: transformers computes
    it.
    """

    cast = False  # the bias of a router keeps the precision of its file

    def __init__(
        self, state: Mapping[str, Tensor], file: HeadFile, config: Any, ends: TargetEnds
    ) -> None:
        own = {f"{name}.weight" for name in ("input_proj", *NORMS)}
        super().__init__(
            {name: each.to(ends.dtype) if name in own else each for name, each in state.items()},
            file,
            config,
            ends,
        )

    def build_layer(self, state: Mapping[str, Tensor], file: HeadFile, config: Any) -> LibraryLayer:
        layer = {name: state[name] for name in self.list_layer(file, config)}
        return LibraryLayer(
            layer, config, self._norms["final_layernorm"].weight.new_empty(0), file.where
        )

    @staticmethod
    def configure(file: HeadFile, target: Any) -> Any:
        return configure_layer(file, target)

    @staticmethod
    def list_layer(file: HeadFile, config: Any) -> dict[str, TensorShape]:
        return list_shapes(config, file.where)

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        assert isinstance(self.layers, LibraryLayer)
        return self.layers.normed(hidden, self._norms[name].weight)

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The projection twice: the layer norms its own input."""
        mixed = self.mix(ids, hidden)
        return mixed, mixed


def _biased(file: HeadFile) -> bool:
    return biased(file) or file.layer.get("model_type") in ("qwen2", "mimo")


@dataclass(eq=False)
class Mtp(TreeMethod):
    """Native multi-token prediction; conf/method/mtp.yaml describes the parameters."""

    kind = MtpHead

    head: str | None = None
    length: int = count(3)
    modules: int | None = count(None)
    safetensors: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.choices = self.choices or None
        super().__post_init__()
        self._files: list[HeadFile] = []  # of the modules that draft
        self._heads: list[TreeHead] = []

    def usual_counts(self) -> Sequence[Sequence[int]]:
        return [[1]] * self.length

    def check(self, model: ModelCard) -> None:
        """Checks the heads as ``TreeMethod`` does; a target's own modules are in its checkpoint."""
        self.head = self.head or model.path
        super().check(model)
        assert self._file is not None
        there = count_modules(self._file)
        if self.modules is not None:
            require_count("modules", self.modules, high=there)
        layers = model.config.get_text_config().num_hidden_layers
        self._files = [
            MtpHead.narrow(self._file, layers, place) for place in range(self.modules or there)
        ]
        if len(self._files) > 1 and len(self.shape) > len(self.shape.levels):
            raise InputError(
                f"choices: {len(self._files)} modules draft a chain; expected one node a level, or"
                " modules=1"
            )
        for file in self._files[1:]:
            names = file.shapes()
            if names is not None:
                require_shapes(self.chosen.rename(names), self._expected, self.chosen.ignored, file)

    def bind(self, target: Target) -> None:
        """Loads the module, and the later ones."""
        super().bind(target)
        self._heads = [
            self.bound,
            *(self.load_head(file, self.bound.ends) for file in self._files[1:]),
        ]

    def new_run(self, head: Any, memory: LayerMemory) -> HeadRun:
        return (
            ModulesRun(self._heads, memory)
            if isinstance(memory, ModulesMemory)
            else EagleRun(head, memory)
        )

    def new_memory(self) -> LayerMemory:
        several = len(self._heads) > 1
        return (
            ModulesMemory(self._heads) if several else static_memory(self.bound.layers, self.shape)
        )
