"""Native multi-token prediction (DeepSeek-AI 2024, arXiv 2412.19437, section 2.2): a module of the target drafts.

It projects the target's last state beside the next token's embedding and runs one decoder layer; embedding and output
head are the target's. Drafted tokens continue its own states, so one module drafts a chain of any length. Of several
modules each drafts one token: it reads the states of the module before it beside the tokens one place further on. The
layouts differ in names, in the order of what is projected, and in whether the state that goes on is normed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from methods.eagle.method import Eagle
from methods.eagle.modules import ModulesMemory, ModulesRun
from methods.parts.heads.draft_layer import DraftLayers, LayerMemory, layer_shapes
from methods.parts.heads.head_file import HeadFile, HeadFormat, TensorShape, require_shapes
from methods.parts.heads.head_method import TargetEnds
from methods.parts.heads.layer_config import biased, head_norms, require_known
from methods.parts.heads.tree_head import EMBEDDING, TreeHead, require_width
from methods.parts.heads.tree_method import HeadRun
from specbench.models.facade import ModelCard, Target
from specbench.types import InputError, require_count


@dataclass(frozen=True, slots=True)
class ModuleLayout:
    """prefix: of a module's names. states_first: before the embedding. normed: the state that goes on is normed.

    bare: the target's state is read without its final norm.
    """

    prefix: str
    states_first: bool = False
    normed: bool = True
    bare: bool = False


SPECULATORS = ModuleLayout("mtp_layers.{place}.")
MIMO = ModuleLayout("model.mtp_layers.{place}.", states_first=True, bare=True)
FAST_MTP = replace(MIMO, bare=False)  # MiMo's, trained on behind the final norm
DEEPSEEK = ModuleLayout("model.layers.{behind}.", normed=False)
MOST_MODULES = 16
NATIVE, RECURSIVE = "num_nextn_predict_layers", "num_speculative_steps"  # settings: modules, FastMTP's steps
# DeepSeek's names, and what MiMo and the speculators library call the same.
NAMES = {
    "eh_proj": "input_proj", "hnorm": "hidden_layernorm", "enorm": "token_layernorm",
    "shared_head.norm": "final_layernorm", "shared_head.head": "lm_head",
}  # fmt: skip
NORMS = ("hidden_layernorm", "token_layernorm", "input_layernorm", "final_layernorm")
# Of a configuration, what no forward here computes.
UNKNOWN = {
    "n_routed_experts": "a mixture of experts", "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts", "kv_lora_rank": "latent attention",
    "num_centroids": "an output head of two levels",
}  # fmt: skip
GATED = ("qwen3_next", "qwen3_5")  # their attention has a gate, their norms are about one


def find_layout(file: HeadFile) -> ModuleLayout:
    """By the configuration. Raises InputError where it has no module, or one that is not computed here."""
    kind, layer = file.config.get("speculators_model_type"), file.layer
    if file.random:
        return SPECULATORS
    if kind not in (None, "mtp"):
        raise InputError(f"{file.where}: config.json has speculators_model_type={kind}; expected mtp")
    reasons = [f"{what} ({key})" for key, what in UNKNOWN.items() if layer.get(key) or file.config.get(key)]
    family = str(layer.get("model_type"))
    if family.startswith(GATED):
        reasons.append(f"gated attention ({family})")
    if reasons:
        raise InputError(f"{file.where}: its MTP module has {', '.join(reasons)}; expected one dense Llama-like layer")
    if kind is None and not layer.get(NATIVE):
        raise InputError(f"{file.where}: config.json has no {NATIVE}; expected a model with MTP modules")
    require_known(file, (NATIVE, RECURSIVE), {"speculators_model_type": ("mtp",)})
    if kind or family != "mimo":
        return SPECULATORS if kind else DEEPSEEK
    return FAST_MTP if file.config.get(RECURSIVE) else MIMO


def count_modules(file: HeadFile) -> int:
    """Modules of a checkpoint; FastMTP and random weights have one. Raises InputError."""
    if file.random or find_layout(file) is FAST_MTP:
        return 1
    found = [each[NATIVE] for each in (file.config, file.layer) if each.get(NATIVE) is not None] or [1]
    if type(found[0]) is not int or not 0 < found[0] <= MOST_MODULES:
        raise InputError(
            f"{file.where}: config.json has {NATIVE}={found[0]!r}; expected a whole number from 1 to {MOST_MODULES}"
        )
    return found[0]


class MtpHead(TreeHead):
    """A module, in one of the layouts."""

    format = HeadFormat("MTP", ("model.safetensors", "model.safetensors.index.json"), ())
    ignored = (EMBEDDING, r"lm_head\.weight")  # copies of the target's

    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        self.ends, self.eps, self._layout = ends, float(config.rms_norm_eps), find_layout(file)
        self._project = state["input_proj.weight"]
        self._final = ends.final_norm() if self._layout.bare else None
        self._norms = {name: state[f"{name}.weight"] for name in NORMS}
        self.layers = DraftLayers(state, [""], config, _biased(file))

    @staticmethod
    def narrow(file: HeadFile, layers: int, place: int = 0) -> HeadFile:
        """The tensors of the module at ``place`` alone."""
        return replace(file, prefix=find_layout(file).prefix.format(place=place, behind=layers + place))

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """The last one."""
        return (layers,)

    @classmethod
    def shapes(cls, file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """Without the prefix."""
        hidden = require_width(file, config, target)
        shapes: dict[str, TensorShape] = {"input_proj.weight": (hidden, 2 * hidden)}
        shapes |= {f"{name}.weight": (hidden,) for name in NORMS}
        return {**shapes, **layer_shapes(config, "", hidden, _biased(file), head_norms(file))}

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """DeepSeek's names as the others have them."""
        parts = {name: name.rpartition(".") for name in names}
        return {f"{NAMES.get(stem, stem)}.{last}": names[name] for name, (stem, _, last) in parts.items()}

    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """The state itself; without the target's final norm up to its length, which the module's own norm settles."""
        return features[0] if self._final is None else features[0] / self._final

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Normed embedding and state, projected; normed once more for attention."""
        both = [self._norm(self.ends.embed(ids), "token_layernorm"), self._norm(hidden, "hidden_layernorm")]
        mixed = functional.linear(torch.cat(both[::-1] if self._layout.states_first else both, dim=-1), self._project)
        return self._norm(mixed, "input_layernorm"), mixed

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        return self.normed(hidden, self._norms[name])

    def carry(self, hidden: Tensor) -> Tensor:
        """Behind the last norm, or as it is."""
        return self._norm(hidden, "final_layernorm") if self._layout.normed else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """The last norm, if that is still to come, and the target's output head."""
        return self.ends.logits(hidden if self._layout.normed else self._norm(hidden, "final_layernorm"))


def _biased(file: HeadFile) -> bool:
    return biased(file) or file.layer.get("model_type") in ("qwen2", "mimo")


class Mtp(Eagle):
    """MTP. head: None = the target's own checkpoint; or folder, hub id, ``random``. length: tokens of the chain.

    choices: in its place a tree by child counts, level by level. sampling at temperature > 0: drawn (from the module's
    distribution, for the ratio test) | top. modules: of several those that draft, None = all, 1 = the first alone.
    """

    kind = MtpHead

    def __init__(
        self,
        head: str | None = None,
        length: int = 3,
        choices: list[list[int]] | None = None,
        sampling: Literal["top", "drawn"] = "drawn",
        modules: int | None = None,
    ) -> None:
        require_count("length", length)
        if modules is not None:
            require_count("modules", modules)
        super().__init__(head, "static", choices=choices or [[1]] * length, sampling=sampling)
        self._wanted = modules
        self._files: list[HeadFile] = []  # of the modules that draft
        self._heads: list[TreeHead] = []

    def check(self, model: ModelCard) -> None:
        """See ``Eagle.check``; a target's own modules are looked for where its weights are."""
        self.head = self.head or model.path
        super().check(model)
        assert self._file is not None
        count = count_modules(self._file)
        if self._wanted is not None:
            require_count("modules", self._wanted, high=count)
        layers = model.config.get_text_config().num_hidden_layers
        self._files = [MtpHead.narrow(self._file, layers, place) for place in range(self._wanted or count)]
        if len(self._files) > 1 and len(self.shape) > len(self.shape.levels):
            raise InputError(
                f"choices: {len(self._files)} modules draft a chain; expected one node a level, or modules=1"
            )
        for file in self._files[1:]:
            names = file.shapes()
            if names is not None:
                require_shapes(self.kind.rename(names), self._expected, self.kind.ignored, file)

    def bind(self, target: Target) -> None:
        """As ``Eagle``, with the later modules."""
        super().bind(target)
        self._heads = [self.bound, *(self.load_head(file, self.bound.ends) for file in self._files[1:])]

    def new_run(self, head: Any, memory: LayerMemory) -> HeadRun:
        """A request's place in the modules."""
        return ModulesRun(self._heads, memory) if isinstance(memory, ModulesMemory) else super().new_run(head, memory)

    def new_memory(self) -> LayerMemory:
        """A request's keys and values."""
        return ModulesMemory(self._heads) if len(self._heads) > 1 else super().new_memory()
