"""A peer on another runtime: what it refuses, its conversion before any clock, and its own speculation."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from methods.parts.draft_lm.draft_lm import read_draft_card
from methods.parts.runtimes.conversion import convert
from specbench.method import Emit, Peer
from specbench.models.facade import ModelCard, Target
from specbench.models.family import find_windows
from specbench.models.fast.compact import FAMILIES, explain_unsupported
from specbench.models.load import load_model
from specbench.types import InputError, require_count

NONE, LOOKUP, DRAFT = "none", "lookup", "draft"
BUT_PHI = tuple(name for name in FAMILIES if name != "phi3")  # its configuration is read as an older library wrote it


class RuntimePeer(Peer):
    """Greedy decoding of a converted model of the Llama family, on a CPU, with torch's number of threads.

    module, package: of the runtime. extra: of specbench, which installs it. dtypes: that it computes in.
    speculations: its own. families: that it converts as they are. scalings: of rotary angles, likewise; empty = all.
    write: a model into an empty folder, in the runtime's format.
    load: the runtime's model from the folders of target and draft model; ``self.eos`` and ``self.threads`` are set.
    """

    module: str
    package: str
    extra: str
    dtypes: tuple[str, ...] = ("float32",)
    speculations: tuple[str, ...] = (NONE,)
    families: tuple[str, ...] = FAMILIES
    scalings: tuple[str, ...] = ()

    def __init__(
        self, speculation: str = NONE, draft: str | None = None, num_draft: int = 8, max_ngram: int = 3
    ) -> None:
        """speculation: none | lookup (n-grams of the context) | draft (a draft model, of hub id or folder ``draft``).

        num_draft: [tokens] a draft. max_ngram: longest suffix looked up.
        """
        require_count("num_draft", num_draft)
        require_count("max_ngram", max_ngram)
        if speculation not in self.speculations:
            raise InputError(f"speculation={speculation}: expected one of {', '.join(self.speculations)}")
        self.speculation, self.draft = speculation, draft
        self.num_draft, self.max_ngram = num_draft, max_ngram
        self._card: ModelCard | None = None
        self._stats: dict[str, float] = {}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The draft model, if any."""
        return (self._card.path,) if self._card else ()

    def check(self, model: ModelCard) -> None:
        """The runtime must be installed and serve such a model, and its draft model's vocabulary be the target's."""
        if importlib.util.find_spec(self.module) is None:
            raise InputError(
                f"_target_: the package {self.package} is not installed; expected pip install"
                f" 'specbench[{self.extra}]', or a list of methods without it (method=[...])"
            )
        self._require_fit("model", model)
        if self.speculation == DRAFT:
            self._card = read_draft_card(self.draft, model, None, None)
            self._require_fit("draft", self._card)

    def _require_fit(self, what: str, card: ModelCard) -> None:
        windows = [window for window in find_windows(card.config).values() if window and window < card.context]
        family, scaling = card.config.model_type, (getattr(card.config, "rope_parameters", None) or {}).get("rope_type")
        reasons = (
            (not card.device.startswith("cpu"), f"it is on {card.device}; expected model.device=cpu"),
            (card.dtype not in self.dtypes, f"its dtype is {card.dtype}; expected {' or '.join(self.dtypes)}"),
            (explain_unsupported(card.config), f"{explain_unsupported(card.config)}; expected a model of the family"),
            (family not in self.families, f"its family is {family}; expected {', '.join(self.families)}"),
            (
                scaling and self.scalings and scaling not in self.scalings,
                f"its rotary angles are scaled by {scaling}; expected {' or '.join(self.scalings)}",
            ),
            (windows, "its layers attend within a window; expected full attention"),
        )
        for applies, reason in reasons:
            if applies:
                raise InputError(f"_target_: cannot convert {what}={card.name}, {reason}")

    def bind(self, target: Target) -> None:
        """Convert where that is not done yet, and load. Raises InputError at a temperature above 0."""
        if target.sampling is not None:
            raise InputError("_target_: draws by a rule of its own; expected decode.temperature=0")
        if self.speculation == DRAFT and self._card is None:
            self.check(target.card)
        self.eos, self.threads, self.dtype = sorted(target.eos), torch.get_num_threads(), target.card.dtype
        runtime = f"{self.package}-{importlib.metadata.version(self.package)}"
        folder = convert(target.card, target.model, runtime, self.write)
        drafting = None
        if self._card is not None:
            drafting = convert(self._card, load_model(self._card), runtime, self.write)
        self.load(importlib.import_module(self.module), folder, drafting)

    @abstractmethod
    def write(self, card: ModelCard, model: Any, folder: Path) -> None:
        """See the class."""

    @abstractmethod
    def load(self, runtime: Any, folder: Path, drafting: Path | None) -> None:
        """See the class. runtime: its module."""

    def decode(self, prompt: Sequence[int], limit: int, seed: int, emit: Emit) -> None:
        """One request in the runtime's loop."""
        self._stats = {}
        self.run(prompt, limit, emit)

    @abstractmethod
    def run(self, prompt: Sequence[int], limit: int, emit: Emit) -> None:
        """Decode, and leave what the runtime counts of its drafts in ``self._stats``."""

    def stats(self) -> dict[str, float]:
        """What the runtime says of the last request's drafts."""
        return self._stats
