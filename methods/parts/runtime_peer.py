"""Base class of peers on another runtime, and the conversion of a loaded model into that runtime's format.

A conversion is written once, before any clock, into a folder whose name has the runtime, its version, the dtype and a
fingerprint of configuration and weights, so that a change of any of them is converted again.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from filelock import FileLock
from safetensors.torch import save_file

from methods.parts.draft_lm import read_draft_card
from methods.parts.parameters import Parameters, count
from specbench.method import Emit, Peer
from specbench.models.facade import ModelCard, Target
from specbench.models.family import find_windows
from specbench.models.fast.compact import FAMILIES, explain_unsupported
from specbench.models.load import load_model
from specbench.types import InputError

_UNRELATED = ("_name_or_path", "transformers_version")  # of a configuration
Write = Callable[[ModelCard, Any, Path], None]


def find_cache() -> Path:
    """The folder of all conversions: ``$XDG_CACHE_HOME/specbench/converted``, by default below ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specbench" / "converted"


def convert(card: ModelCard, model: Any, runtime: str, write: Write) -> Path:
    """Return the folder with ``model`` in the runtime's format; ``write`` makes it if it does not exist.

    runtime: name and version, the beginning of the folder's name. write: fills an empty folder.
    """
    settings = {name: value for name, value in model.config.to_dict().items() if name not in _UNRELATED}
    digest = hashlib.sha256(json.dumps([card.context, settings], sort_keys=True, default=str).encode())
    for name, weight in model.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy())
    folder = find_cache() / f"{runtime}-{card.dtype}-{digest.hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    printed = io.StringIO()  # converters print what they do
    with FileLock(f"{folder}.lock"), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        if not folder.is_dir():
            scratch = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
            try:
                write(card, model, scratch)
                scratch.rename(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder


@contextlib.contextmanager
def saved_checkpoint(card: ModelCard, model: Any) -> Iterator[str]:
    """A folder with the model as transformers reads it, for a converter; dropped afterwards.

    The library's own way refuses weights that are views of one matrix.
    """
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], model.dtype
    with tempfile.TemporaryDirectory(dir=find_cache()) as folder:
        save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)
        card.tokenizer.save_pretrained(folder)
        yield folder


NONE, LOOKUP, DRAFT = "none", "lookup", "draft"
BUT_PHI = tuple(name for name in FAMILIES if name != "phi3")  # its configuration is read as an older library wrote it


@dataclass(eq=False)
class RuntimePeer(Parameters, Peer):
    """Greedy decoding of a converted model of the Llama family, on a CPU, with torch's number of threads.

    module, package: of the runtime. extra: of specbench, which installs it. dtypes: that it computes in.
    speculations: its own. families, scalings of rotary angles: that it converts unchanged; no scaling = all.
    write: a model into an empty folder, in the runtime's format.
    load: the runtime's model from the folders of target and draft model; ``self.eos`` and ``self.threads`` are set.
    """

    module: ClassVar[str]
    package: ClassVar[str]
    extra: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    speculations: ClassVar[tuple[str, ...]] = (NONE,)
    families: ClassVar[tuple[str, ...]] = FAMILIES
    scalings: ClassVar[tuple[str, ...]] = ()

    speculation: str = NONE
    draft: str | None = None
    num_draft: int = count(8)
    max_ngram: int = count(3)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.speculation not in self.speculations:
            raise InputError(f"speculation={self.speculation}: expected one of {', '.join(self.speculations)}")
        self._card: ModelCard | None = None
        self._stats: dict[str, float] = {}
        self._model: Any = None

    @property
    def inputs(self) -> tuple[str, ...]:
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
        self._stats = {}
        self.run(prompt, limit, emit)

    @abstractmethod
    def run(self, prompt: Sequence[int], limit: int, emit: Emit) -> None:
        """Decode, and leave what the runtime counts of its drafts in ``self._stats``."""

    def stats(self) -> dict[str, float]:
        return self._stats

    def close(self) -> None:
        self._model = None
